"""aiolock, as it comes."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import aiolock


class Peer:
    """One client, two connections; its locks, its semaphores, or what its readers share.

    ``url`` is of another store than the one that everybody uses.
    """

    def __init__(
        self,
        *,
        permits: int | None = None,
        reads: bool = False,
        confirm: bool = True,
        url: str | None = None,
    ) -> None:
        self._permits = permits
        self._reads = reads
        self._confirm = confirm
        self._url = url

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # any number share them
        target = self._url or url
        servers = target.split(",") if target.startswith("redis://") else [target]
        self._client = aiolock.connect(servers if len(servers) > 1 else target)
        await self._client.open()

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        if self._permits is not None:
            return self._client.semaphore(name, self._permits, ttl=30)
        if self._reads:
            return self._client.rwlock(name, ttl=30).read()
        return self._client.lock(name, ttl=30, confirm=self._confirm)

    async def close(self) -> None:
        await self._client.aclose()
