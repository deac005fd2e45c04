"""self-limiters: permits, one for a lock, by `BLPOP`, in Rust; its expiry is the queue's."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

from self_limiters import Semaphore  # type: ignore[import-not-found]  # in its own environment


class Peer:
    """One object and one pool for each name, with a connection for each waiter."""

    def __init__(self, *, permits: int = 1) -> None:
        self._permits = permits

    async def open(self, url: str, tasks: int) -> None:
        self._url = url
        self._connections = tasks + 10
        self._semaphores: dict[str, AbstractAsyncContextManager[object]] = {}

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        # It keeps nothing of who acquired it, so all tasks can share it, and its connections.
        if name not in self._semaphores:
            self._semaphores[name] = Semaphore(
                name,
                self._permits,
                expiry=30,
                redis_url=self._url,
                connection_pool_size=self._connections,
            )
        return self._semaphores[name]

    async def close(self) -> None:
        self._semaphores.clear()
