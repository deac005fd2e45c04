"""Bare statements through a pool of asyncpg: each takes a connection, and gives it back."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from types import TracebackType
from typing import Any

import asyncpg  # type: ignore[import-not-found]  # in its own environment


class Statements:
    """What one task asks: ``$1`` is the name, ``$2`` of the second statement the first answer."""

    def __init__(self, pool: Any, name: str, enter: str, leave: str) -> None:
        self._pool = pool
        self._name = name.encode()
        self._enter = enter
        self._leave = leave

    async def __aenter__(self) -> None:
        self._answer = await self._pool.fetchval(self._enter, self._name)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._pool.fetchval(self._leave, self._name, self._answer)


class Peer:
    """``url`` is the database's; eight connections serve all tasks."""

    def __init__(self, *, url: str, enter: str, leave: str) -> None:
        self._url = url
        self._statements = (enter, leave)

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own, any number
        self._pool = await asyncpg.create_pool(self._url, min_size=8, max_size=8)

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Statements(self._pool, name, *self._statements)

    async def close(self) -> None:
        await self._pool.close()
