"""A lock that is held for a request: who has gone away does not wait for it any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final

from aiolock import Lease, Lock

SOON: Final = 0.05
"""Seconds after which somebody looks whether the client is still there: most wait for less."""
GONE: Final = "the client has gone"


class Disconnected(Exception):
    """The client has closed the connection while its request waited for its turn."""


ReasonToLeave = Callable[[], Awaitable[Exception]]
"""Comes back, with the reason, when a request is not to wait any more."""


@asynccontextmanager
async def held(lock: Lock, reason_to_leave: ReasonToLeave | None = None) -> AsyncGenerator[Lease]:
    """Hold the lock. If ``reason_to_leave()`` gives one before it is ours, that is raised.

    The other errors, and what happens on cancellation and loss, are those of ``async with lock``;
    it ends in the task in which it began. Who asks for a reason has a task of its own, which is
    cancelled when the body begins: what has begun is finished.
    """
    async with AsyncExitStack() as stack:
        patience = asyncio.timeout(None)
        reasons = list[Exception]()
        try:
            async with patience, _watched(reason_to_leave, patience, reasons):
                lease = await stack.enter_async_context(lock.acquire())
        except TimeoutError as error:
            if reasons and type(error) is TimeoutError:  # not its heir, AcquireTimeout
                raise reasons[0] from None
            raise
        yield lease


@asynccontextmanager
async def _watched(
    reason_to_leave: ReasonToLeave | None, patience: asyncio.Timeout, reasons: list[Exception]
) -> AsyncGenerator[None]:
    """End the patience when there is a reason to leave."""
    if reason_to_leave is None:
        yield
        return
    loop = asyncio.get_running_loop()
    watching: asyncio.Task[None] | None = None

    async def watch() -> None:
        reasons.append(await reason_to_leave())
        patience.reschedule(loop.time())

    def begin() -> None:
        nonlocal watching
        watching = loop.create_task(watch(), name="aiolock: waits for a reason to leave")
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
