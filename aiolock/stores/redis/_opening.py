"""The opening of a store runs in a task of its own, which `aclose` can end too."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import anyio

from aiolock.errors import StoreError


async def opened(opening: asyncio.Task[None], aclose: Callable[[], Awaitable[None]]) -> None:
    """Wait for it; cancelled, end it and leave nothing open.

    `StoreError` where it was ended by another task.
    """
    try:
        await asyncio.wait([opening])
    except asyncio.CancelledError:
        opening.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.wait([opening])
            if not opening.cancelled() and opening.exception() is None:  # just then
                await aclose()
        raise
    if opening.cancelled():
        raise StoreError("the client was closed while it was opening")
    opening.result()
