"""cashews: the lock of a cache, `SET NX PX`, which tries again at once while it waits."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from cashews import Cache  # type: ignore[import-not-found]  # in its own environment


class Peer:
    """With its default pause between two tries, none: any other only makes it slower."""

    async def open(self, url: str, tasks: int) -> None:
        self._cache = Cache()
        self._cache.setup(
            url,
            max_connections=tasks + 10,
            wait_for_connection_timeout=60,
            protocol=2,
            socket_timeout=None,
        )
        await self._cache.init()

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return _Again(self._cache, name)

    async def close(self) -> None:
        await self._cache.close()


class _Again:
    """Its lock can be entered once; this makes another each time, as its users do."""

    def __init__(self, cache: Cache, name: str) -> None:
        self._cache = cache
        self._name = name

    async def __aenter__(self) -> None:
        self._lock = self._cache.lock(self._name, expire=30)
        await self._lock.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        await self._lock.__aexit__(*error)
