"""sqlalchemy-dlock: the database's own locks, by SQLAlchemy; a connection for each task."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import contextlib
import itertools
from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import create_async_engine
from sqlalchemy.pool import NullPool
from sqlalchemy_dlock import create_async_sadlock  # type: ignore[import-not-found]  # in its own environment


class Lock:
    """One task's: an object for each time, as its documentation has it."""

    def __init__(self, connection: Any, name: str) -> None:
        self._connection = connection
        self._name = name

    async def __aenter__(self) -> None:
        self._lock = create_async_sadlock(self._connection, self._name)
        await self._lock.acquire()

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._lock.release()


class Peer:
    """``url`` is the database's, as SQLAlchemy has it. There is no lease, and no fence."""

    def __init__(self, *, url: str) -> None:
        self._url = url
        self._connections: list[Any] = []

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own
        self._engine = create_async_engine(
            self._url, poolclass=NullPool, isolation_level="AUTOCOMMIT"
        )
        for _ in range(tasks):
            self._connections.append(await self._engine.connect())
        self._next = itertools.cycle(self._connections)

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Lock(next(self._next), name)

    async def close(self) -> None:
        for connection in self._connections:
            # psycopg has closed it, if a task that waited was cancelled: SQLAlchemy finds that out
            # only now, and says so.
            with contextlib.suppress(OperationalError):
                await connection.close()
        await self._engine.dispose()
