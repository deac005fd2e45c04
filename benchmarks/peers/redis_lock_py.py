"""redis-lock-py: `SET NX EX`, and a subscription of its own for each waiter."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from redis.asyncio import Redis
from redis_lock.asyncio import RedisLock  # type: ignore[import-untyped]  # has no types


class Peer:
    """Two connections for each waiter: one to try, one to listen."""

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=2 * tasks + 10, protocol=2, socket_timeout=None
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        lock: AbstractAsyncContextManager[object] = RedisLock(
            self._redis, name, blocking_timeout=3600, expire_timeout=30
        )
        return lock

    async def close(self) -> None:
        await self._redis.aclose()
