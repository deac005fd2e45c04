"""coredis: `SET NX PX` by its own client, then polling every 0.1 s."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import coredis  # type: ignore[import-not-found]  # in its own environment
from coredis.patterns.lock import Lock  # type: ignore[import-not-found]  # the same


class Peer:
    """Its client shares connections between tasks by itself."""

    async def open(self, url: str, tasks: int) -> None:
        self._redis = coredis.Redis.from_url(url, max_connections=tasks + 10)
        await self._redis.__aenter__()

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        lock: AbstractAsyncContextManager[object] = Lock(self._redis, name, timeout=30)
        return lock

    async def close(self) -> None:
        await self._redis.__aexit__(None, None, None)
