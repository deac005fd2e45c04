"""MySQL's and MariaDB's own `GET_LOCK`, by aiomysql: a connection for each task."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import itertools
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import aiomysql  # type: ignore[import-not-found]  # in its own environment


class Lock:
    """One task's, on a connection of its own, which ends the lock with it."""

    def __init__(self, cursor: Any, name: str) -> None:
        self._cursor = cursor
        self._name = (name,)

    async def __aenter__(self) -> None:
        await self._cursor.execute("SELECT GET_LOCK(%s, 600)", self._name)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._cursor.execute("SELECT RELEASE_LOCK(%s)", self._name)


class Peer:
    """The server is at ``port`` of 127.0.0.1. There is no lease, and no fence."""

    def __init__(self, *, port: int) -> None:
        self._port = port
        self._connections: list[Any] = []

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own
        for _ in range(tasks):
            connection = await aiomysql.connect(
                host="127.0.0.1", port=self._port, user="app", db="shop", autocommit=True
            )
            self._connections.append(connection)
        self._next = itertools.cycle(self._connections)

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Lock(await next(self._next).cursor(), name)

    async def close(self) -> None:
        for connection in self._connections:
            connection.close()
