"""A table of leases in PostgreSQL, as people write it: a row for each name, which is polled."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import asyncio
import uuid
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from psycopg_pool import AsyncConnectionPool  # in an environment of its own

TABLE = "CREATE TABLE IF NOT EXISTS lease (name text PRIMARY KEY, owner text, until timestamptz)"
TAKE = """
INSERT INTO lease VALUES (%s, %s, now() + interval '30 s') ON CONFLICT (name)
DO UPDATE SET owner = EXCLUDED.owner, until = EXCLUDED.until WHERE lease.until < now()
"""
GIVE_BACK = "DELETE FROM lease WHERE name = %s AND owner = %s"
POLL = 0.1


class Lock:
    """One task's."""

    def __init__(self, pool: AsyncConnectionPool, name: str) -> None:
        self._pool = pool
        self._row = (name, uuid.uuid4().hex)

    async def __aenter__(self) -> None:
        while True:
            async with self._pool.connection() as connection:
                if (await connection.execute(TAKE, self._row)).rowcount:
                    return
            await asyncio.sleep(POLL)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        async with self._pool.connection() as connection:
            await connection.execute(GIVE_BACK, self._row)


class Peer:
    """``url`` is the database's; four connections serve all tasks."""

    def __init__(self, *, url: str) -> None:
        self._url = url

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own, any number
        self._pool = AsyncConnectionPool(
            self._url, min_size=4, max_size=4, open=False, timeout=600, kwargs={"autocommit": True}
        )
        await self._pool.open(wait=True)
        async with self._pool.connection() as connection:
            await connection.execute("SELECT pg_advisory_lock(1)")
            await connection.execute(TABLE)
            await connection.execute("SELECT pg_advisory_unlock(1)")

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Lock(self._pool, name)

    async def close(self) -> None:
        await self._pool.close()
