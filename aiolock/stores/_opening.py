"""The opening of a store runs in a task of its own, which closing the store can end, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import anyio

from aiolock.errors import StoreError


class Opening:
    """One opening at a time, in a task of its own, because only that may be cancelled by
    a close.
    """

    def __init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._cancelled = False
        """Whether we have cancelled it."""

    @property
    def under_way(self) -> bool:
        """Whether the store is being opened now."""
        return self._task is not None and not self._task.done()

    async def run(
        self,
        steps: Coroutine[Any, Any, None],
        aclose: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """Open it; if cancelled, stop the opening and leave nothing open.

        `StoreError` if another task stopped the opening.
        """
        self._task = opening = asyncio.create_task(steps, name="aiolock open")
        self._cancelled = False
        try:
            await asyncio.wait([opening])
        except asyncio.CancelledError:
            await self._stop(opening)
            if not opening.cancelled() and opening.exception() is None:  # it had just ended
                await _ended(asyncio.create_task(aclose(), name="aiolock close"))
            raise
        if opening.cancelled():
            raise StoreError("the client was closed while it was opening")
        opening.result()

    async def end(self) -> None:
        """Cancel it, and return when its own steps have cleaned up."""
        if self._task is not None and not self._task.done():
            cancellation = await self._stop(self._task)
            if cancellation is not None:
                raise cancellation

    async def _stop(self, opening: asyncio.Task[None]) -> asyncio.CancelledError | None:
        if not self._cancelled:  # a second time, that would interrupt its cleaning up
            self._cancelled = True
            opening.cancel()
        return await _ended(opening)


async def _ended(task: asyncio.Task[None]) -> asyncio.CancelledError | None:
    """Wait until it has ended, even if cancelled meanwhile; returns that cancellation.

    If we left earlier, it would go on alone, and the store might be opened again beside it.
    """
    cancellation = None
    with anyio.CancelScope(shield=True):  # which does not shield from `Task.cancel`
        while not task.done():
            try:
                await asyncio.wait([task])
            except asyncio.CancelledError as error:
                cancellation = error
    return cancellation
