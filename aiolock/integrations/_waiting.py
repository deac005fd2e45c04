"""A lock that is held for a request: who has gone away does not wait for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiolock import Lease, Lock

SOON: Final = 0.05
"""Seconds after which somebody looks whether the client is still there: most wait for less."""


class Disconnected(Exception):
    """The client has closed the connection while its request waited for its turn."""


@asynccontextmanager
async def held(
    lock: Lock, gone: Callable[[], Awaitable[object]] | None = None
) -> AsyncGenerator[Lease]:
    """Hold the lock. `Disconnected` if ``gone()`` comes back before it is ours.

    The other errors, and what happens on cancellation and loss, are those of ``async with lock``;
    it ends in the task in which it began. ``gone`` runs in a task of its own, which has ended when
    the body begins. It is not asked while the lock is held: what has begun is finished.
    """
    async with AsyncExitStack() as stack:
        patience = asyncio.timeout(None)
        try:
            async with patience, _watched(gone, patience):
                lease = await stack.enter_async_context(lock.acquire(label=None))
        except TimeoutError as error:
            if patience.expired() and type(error) is TimeoutError:
                raise Disconnected("the client has gone") from None
            raise
        yield lease


@asynccontextmanager
async def _watched(
    gone: Callable[[], Awaitable[object]] | None, patience: asyncio.Timeout
) -> AsyncGenerator[None]:
    """End the patience when ``gone()`` comes back."""
    if gone is None:
        yield
        return
    loop = asyncio.get_running_loop()
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        await gone()
        patience.reschedule(loop.time())

    def begin() -> None:
        nonlocal watching
        watching = loop.create_task(watch(), name="aiolock: is the client still there?")
        watching.add_done_callback(_seen)

    timer = loop.call_later(SOON, begin)
    try:
        yield
    finally:
        timer.cancel()
        if watching is not None:
            watching.cancel()


def _seen(task: asyncio.Task[None]) -> None:
    """A server that cannot say whether a client is there is none that says it has gone."""
    if not task.cancelled():
        task.exception()
