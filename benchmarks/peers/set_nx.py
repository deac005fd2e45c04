"""No lock, but the least that one could cost: redis-py's bare `SET NX PX`, and `DEL`."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from redis.asyncio import Redis


class Peer:
    """As fast as redis-py gets: RESP2, no socket timeout. It cannot wait."""

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(
            url, max_connections=tasks + 10, protocol=2, socket_timeout=None
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return _SetAndDelete(self._redis, name)

    async def close(self) -> None:
        await self._redis.aclose()


class _SetAndDelete:
    def __init__(self, redis: Redis, name: str) -> None:
        self._redis = redis
        self._name = name

    async def __aenter__(self) -> None:
        if not await self._redis.set(self._name, "token", nx=True, px=30_000):
            raise RuntimeError(f"{self._name} is taken, and this does not wait")

    async def __aexit__(self, *_: object) -> None:
        await self._redis.delete(self._name)
