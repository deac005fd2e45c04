"""redsync: permits, one for a lock, in a list: waiters `BLPOP`, holders `RPUSH`; no lease."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from redis.asyncio import Redis
from redsync import RedisSemaphore  # type: ignore[import-not-found]  # in its own environment


class Peer:
    """One connection for each waiter; `socket_timeout` would throw waiters to the queue's tail."""

    def __init__(self, *, permits: int = 1) -> None:
        self._permits = permits

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=tasks + 10, protocol=2, socket_timeout=None
        )
        self._semaphores: list[RedisSemaphore] = []

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        # One for each task: it remembers whether it is acquired.
        semaphore = await RedisSemaphore.create(self._redis, name, count=self._permits)
        self._semaphores.append(semaphore)
        lock: AbstractAsyncContextManager[object] = semaphore
        return lock

    async def close(self) -> None:
        for semaphore in self._semaphores:
            await semaphore.close()
        await self._redis.aclose()
