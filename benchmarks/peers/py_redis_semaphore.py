"""py-redis-semaphore: permits, one for a lock, each with a fence and a heartbeat; `BLPOP`."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from redis.asyncio import Redis
from redis_semaphore import (  # type: ignore[import-not-found]  # in its own environment
    Semaphore,
    SemaphoreConfig,
)


class Peer:
    """One connection for each waiter."""

    def __init__(self, *, permits: int = 1) -> None:
        self._permits = permits

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=tasks + 10, protocol=2, socket_timeout=None
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        config = SemaphoreConfig(name, self._permits, lock_timeout=30)
        lock: AbstractAsyncContextManager[object] = Semaphore(self._redis, config)
        return lock

    async def close(self) -> None:
        await self._redis.aclose()
