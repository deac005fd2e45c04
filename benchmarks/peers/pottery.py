"""pottery: Redlock, on one master or several; waiters poll at random, every 0 to 0.2 s."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import contextlib
from contextlib import AbstractAsyncContextManager

from pottery import AIORedlock, QuorumNotAchieved, ReleaseUnlockedLock
from redis.asyncio import Redis


class Peer:
    """A connection for each task; ``url`` is that of each server, with commas between them."""

    def __init__(self, *, timeout: float | None = None) -> None:
        self._timeout = timeout

    async def open(self, url: str, tasks: int) -> None:
        self._masters = {
            Redis.from_url(
                each,
                max_connections=tasks + 10,
                protocol=2,
                socket_timeout=self._timeout,
                socket_connect_timeout=self._timeout,
            )
            for each in url.split(",")
        }

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return _Again(self._masters, name)

    async def close(self) -> None:
        for master in self._masters:
            with contextlib.suppress(Exception):
                await master.aclose()


class _Again:
    """Its lock says so, where a majority does not answer to the release; the next one goes on."""

    def __init__(self, masters: set[Redis], name: str) -> None:
        self._lock = AIORedlock(key=name, masters=masters, auto_release_time=30)

    async def __aenter__(self) -> None:
        await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        with contextlib.suppress(ReleaseUnlockedLock, QuorumNotAchieved):
            await self._lock.release()
