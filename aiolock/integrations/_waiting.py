"""A lock that is held for a request, unless the client has gone before it gets it."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Final, TypeVar

from aiolock import Lease, Lock

T = TypeVar("T")

SOON: Final = 0.05
"""Seconds after which a request checks if its client is still there: most wait for less."""
GONE: Final = "the client has gone"


class Disconnected(Exception):
    """The client has closed the connection while its request waited for its turn."""


ReasonToLeave = Callable[[], Awaitable[Exception]]
"""A function that returns, with the reason, when a request must not wait any more."""


@asynccontextmanager
async def held(lock: Lock, reason_to_leave: ReasonToLeave | None = None) -> AsyncGenerator[Lease]:
    """Hold the lock. If ``reason_to_leave()`` returns an error before it is ours, raise that.

    Other errors, cancellation and loss are those of ``async with lock``, and it ends in the task in
    which it began. ``reason_to_leave()`` runs in a task of its own, which is cancelled when the
    body begins: a body that has begun is finished.
    """
    async with AsyncExitStack() as stack:
        enter = functools.partial(stack.enter_async_context, lock.acquire())
        yield await patient(enter, reason_to_leave)


async def patient(wait: Callable[[], Awaitable[T]], reason_to_leave: ReasonToLeave | None) -> T:
    """Wait; if ``reason_to_leave()`` returns an error meanwhile, raise that.

    That may be after ``wait()`` has its result, but before this returns it.
    """
    patience = asyncio.timeout(None)
    reasons = list[Exception]()
    try:
        async with patience, _watched(reason_to_leave, patience, reasons):
            return await wait()
    except TimeoutError as error:
        if reasons and type(error) is TimeoutError:  # not its subclass AcquireTimeout
            raise reasons[0] from None
        raise


@asynccontextmanager
async def _watched(
    reason_to_leave: ReasonToLeave | None, patience: asyncio.Timeout, reasons: list[Exception]
) -> AsyncGenerator[None]:
    """End the wait when there is a reason to leave."""
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
    """Ignore an error: a server that cannot check its client has reported no disconnect."""
    if not task.cancelled():
        task.exception()
