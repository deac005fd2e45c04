"""pottery: Redlock, here with one master; waiters poll at random, every 0 to 0.2 s."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from pottery import AIORedlock  # type: ignore[import-not-found]  # in its own environment
from redis.asyncio import Redis


class Peer:
    """A connection for each task."""

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=tasks + 10, protocol=2, socket_timeout=None
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        lock: AbstractAsyncContextManager[object] = AIORedlock(
            key=name, masters={self._redis}, auto_release_time=30
        )
        return lock

    async def close(self) -> None:
        await self._redis.aclose()
