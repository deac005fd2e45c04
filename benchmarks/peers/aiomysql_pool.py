"""Bare statements through a pool of aiomysql: each takes a connection, and gives it back."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import aiomysql  # type: ignore[import-not-found]  # in its own environment


class Statements:
    """What one task asks: ``%s`` is the name."""

    def __init__(self, pool: Any, name: str, enter: str, leave: str) -> None:
        self._pool = pool
        self._name = (name,)
        self._enter = enter
        self._leave = leave

    async def __aenter__(self) -> None:
        await self._ask(self._enter)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._leave:
            await self._ask(self._leave)

    async def _ask(self, statement: str) -> None:
        async with self._pool.acquire() as connection, connection.cursor() as cursor:
            await cursor.execute(statement, self._name)


class Peer:
    """The server is at ``port`` of 127.0.0.1; a few connections serve all tasks."""

    def __init__(self, *, port: int, enter: str, leave: str = "", connections: int = 8) -> None:
        self._port = port
        self._connections = connections
        self._statements = (enter, leave)

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own, any number
        self._pool = await aiomysql.create_pool(
            minsize=self._connections,
            maxsize=self._connections,
            host="127.0.0.1",
            port=self._port,
            user="root",
            db="shop",
            autocommit=True,
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Statements(self._pool, name, *self._statements)

    async def close(self) -> None:
        self._pool.close()
        await self._pool.wait_closed()
