"""aioredlock: Redlock on aioredis 1, on one master or several; it polls every 0.1 to 0.3 s."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from aioredlock import Aioredlock  # type: ignore[import-untyped]  # has no types


class Peer:
    """It gives up after three tries unless told otherwise."""

    async def open(self, url: str, tasks: int) -> None:
        masters = list[dict[str, object]]()
        for each in url.split(","):
            host, port = each.removeprefix("redis://").split(":")
            masters.append({"host": host, "port": int(port), "maxsize": tasks + 10})
        self._locks = Aioredlock(masters, retry_count=1_000_000)

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return _Again(self._locks, name)

    async def close(self) -> None:
        await self._locks.destroy()


class _Again:
    """Its lock can be entered once; this makes another each time, as its users do."""

    def __init__(self, locks: Aioredlock, name: str) -> None:
        self._locks = locks
        self._name = name

    async def __aenter__(self) -> None:
        self._lock: Any = await self._locks.lock(self._name, lock_timeout=30)

    async def __aexit__(self, *_: object) -> None:
        await self._locks.unlock(self._lock)
