"""PostgreSQL's own `pg_advisory_lock`, by psycopg: a connection for each task."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import psycopg


class Lock:
    """One task's, on a connection of its own, which ends the lock with it."""

    def __init__(self, connection: psycopg.AsyncConnection, name: str) -> None:
        self._connection = connection
        self._name = (name,)

    async def __aenter__(self) -> None:
        await self._connection.execute("SELECT pg_advisory_lock(hashtext(%s))", self._name)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._connection.execute("SELECT pg_advisory_unlock(hashtext(%s))", self._name)


class Peer:
    """``url`` is the database's. There is no lease, and no fence."""

    def __init__(self, *, url: str) -> None:
        self._url = url
        self._connections: list[psycopg.AsyncConnection] = []

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own
        for _ in range(tasks):
            connection = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
            self._connections.append(connection)
        self._next = itertools.cycle(self._connections)

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Lock(next(self._next), name)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
