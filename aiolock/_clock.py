"""The clock of all deadlines: of clients, and of stores whose server has no clock of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial


def clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """A clock, in seconds, that also runs while the machine is suspended.

    On Linux, the event loop's clock stops meanwhile. After a laptop or a virtual machine was
    suspended, leases that have ended at the store would still count as held. A loop with a time of
    its own, as in tests, keeps that time.
    """
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None or abs(loop.time() - time.monotonic()) > 1:
        return loop.time
    return partial(time.clock_gettime, boottime)
