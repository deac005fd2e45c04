"""steindamm: permits, one for a lock, in a list: waiters `BLPOP`, holders `LPUSH`."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from redis.asyncio import Redis
from steindamm import AsyncSemaphore  # type: ignore[import-not-found]  # in its own environment


class Peer:
    """One connection for each waiter, and no limit to how long it waits."""

    def __init__(self, *, permits: int = 1) -> None:
        self._permits = permits

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=tasks + 10, protocol=2, socket_timeout=None
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        semaphore: AbstractAsyncContextManager[object] = AsyncSemaphore.create(
            connection=self._redis, name=name, capacity=self._permits, expiry=30, max_sleep=0
        )
        return semaphore

    async def close(self) -> None:
        await self._redis.aclose()
