"""redlock-ng: Redlock on redis-py; waiters poll at random, every 0.1 to 0.3 s."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from redlock import AsyncRedlock  # type: ignore[import-not-found]  # in its own environment
from redlock.client import RedlockConfig  # type: ignore[import-not-found]  # in its own environment


class Peer:
    """``url`` is that of each server, with commas between them."""

    def __init__(self, *, timeout: float = 0.1) -> None:
        self._timeout = timeout

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # it makes its own pools
        self._locks = AsyncRedlock(
            RedlockConfig(
                masters=url.split(","),
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
            )
        )

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return _Again(self._locks, name)

    async def close(self) -> None:
        for server in self._locks.client.instances:
            await server.aclose()


class _Again:
    """Its own context manager runs the body also where it did not get the lock in three tries."""

    def __init__(self, locks: AsyncRedlock, name: str) -> None:
        self._locks = locks
        self._name = name

    async def __aenter__(self) -> None:
        self._lock: Any = await self._locks.acquire(self._name, 30_000, blocking=True)

    async def __aexit__(self, *_: object) -> None:
        await self._locks.release(self._lock)
