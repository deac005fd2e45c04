"""python-redis-lock: `SET NX EX`, waiters `BLPOP`. It blocks, so it runs in threads."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager

import redis_lock  # type: ignore[import-untyped]  # has no types
from redis import Redis


class Peer:
    """A thread and a connection for each waiter, as an asyncio program has to run it."""

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=tasks + 10, protocol=2, socket_timeout=None
        )
        # Room to release while all the others wait.
        self._threads = ThreadPoolExecutor(tasks + 1)

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return _InThread(redis_lock.Lock(self._redis, name, expire=30), self._threads)

    async def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._redis.close()


class _InThread:
    def __init__(self, lock: redis_lock.Lock, threads: ThreadPoolExecutor) -> None:
        self._lock = lock
        self._threads = threads

    async def __aenter__(self) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._lock.acquire)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.get_running_loop().run_in_executor(self._threads, self._lock.release)
