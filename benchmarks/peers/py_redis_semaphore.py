"""py-redis-semaphore: a mutex with a fence and a heartbeat; waiters `BLPOP` to be woken."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from redis.asyncio import Redis
from redis_semaphore import Mutex  # type: ignore[import-not-found]  # in its own environment


class Peer:
    """One connection for each waiter."""

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=tasks + 10, protocol=2, socket_timeout=None
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        lock: AbstractAsyncContextManager[object] = Mutex(self._redis, name, lock_timeout=30)
        return lock

    async def close(self) -> None:
        await self._redis.aclose()
