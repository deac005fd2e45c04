"""aiolock, as it comes."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager

import aiolock


class Peer:
    """One client, two connections."""

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # any number share them
        self._client = aiolock.connect(url)
        await self._client.open()

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return self._client.lock(name, ttl=30)

    async def close(self) -> None:
        await self._client.aclose()
