"""The opening of a store runs in a task of its own, which closing the store can end, too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import anyio

from aiolock.errors import StoreError


class Opening:
    """One opening at a time, in a task of our own: the caller's task is not ours to cancel."""

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None

    @property
    def under_way(self) -> bool:
        """Whether the store is being opened now."""
        return self._task is not None and not self._task.done()

    async def run(
        self, steps: Coroutine[Any, Any, None], aclose: Callable[[], Awaitable[None]]
    ) -> None:
        """Open it; if cancelled, stop the opening and leave nothing open.

        `StoreError` if another task stopped the opening.
        """
        self._task = opening = asyncio.create_task(steps, name="aiolock open")
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            opening.cancel()
            with anyio.CancelScope(shield=True):
                await asyncio.wait([opening])
                if not opening.cancelled() and opening.exception() is None:  # it had just ended
                    await aclose()
            raise
        if opening.cancelled():
            raise StoreError("the client was closed while it was opening")
        opening.result()

    async def end(self) -> None:
        """Cancel it, and return when its own steps have cleaned up."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task])
