"""redis-py's own `Lock`: `SET NX PX`, then polling with `sleep`; released by a script."""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from typing import Any

from redis.asyncio import Redis


class Peer:
    """``sleep`` is the pause between two tries.

    ``best``: RESP2 and no socket timeout, with which redis-py 8 is a third faster than with its
    defaults. Either way there is a connection for every task, or 200 tasks would get errors.
    """

    def __init__(self, *, sleep: float = 0.1, best: bool = True) -> None:
        self._sleep = sleep
        self._options: dict[str, Any] = {"protocol": 2, "socket_timeout": None} if best else {}

    async def open(self, url: str, tasks: int) -> None:
        self._redis = Redis.from_url(url, max_connections=tasks + 10, **self._options)

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return self._redis.lock(name, timeout=30, sleep=self._sleep)

    async def close(self) -> None:
        await self._redis.aclose()
