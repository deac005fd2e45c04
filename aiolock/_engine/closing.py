"""The end of a client's holds, when the client closes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from aiolock._engine.acquisition import Acquisition
from aiolock._engine.lease_state import LossReason
from aiolock._turns import turns

if TYPE_CHECKING:
    from aiolock._engine.watchdog import Watchdog

_ENDING: Final = 6
"""Units of work to end one hold: see `Turns`."""


async def close_holds(watchdog: Watchdog, caller: asyncio.Task[Any] | None) -> None:
    """Release what is held; bodies of other tasks are cancelled, and release their own.

    Waits for those bodies, at most until the last of their leases has ended.
    """
    watchdog.closing = asyncio.Event()
    bodies, end = deque[Acquisition](), 0.0
    left, take = deque(watchdog.holds.values()), turns().take
    try:
        if "finishes" in watchdog.__dict__:
            watchdog.finishes.aclose()
        await watchdog.releases.aclose()
        while left:
            await take(_ENDING)
            if _close(watchdog, left.popleft(), caller, bodies):
                end = max(end, bodies[-1].deadline)
    finally:
        for hold in left:  # without a pause, because this was cancelled
            _close(watchdog, hold, caller, bodies)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(end - watchdog.time()):
            while bodies:
                await take()
                if bodies[0].inside:
                    watchdog.closing.clear()
                    await watchdog.closing.wait()
                else:
                    bodies.popleft()
    watchdog.wheel.aclose()


def _close(
    watchdog: Watchdog,
    hold: Acquisition,
    caller: asyncio.Task[Any] | None,
    bodies: deque[Acquisition],
) -> bool:
    """End a hold; True if it has bodies of other tasks, which are cancelled and still run."""
    if any(body.task is not caller for body in hold.inside):
        bodies.append(hold)
        watchdog.lose(hold, LossReason.CLOSED)
        return True
    watchdog.abandon(hold)
    return False
