"""The clock by which deadlines are measured, in the client and in stores without a clock."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial


def clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """A clock, in seconds, that goes on while the machine is suspended.

    On Linux, the event loop's clock stops meanwhile: after a laptop or a virtual machine has slept,
    it would believe in leases that have ended. A loop with a time of its own keeps that time.
    """
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None or abs(loop.time() - time.monotonic()) > 1:
        return loop.time
    return partial(time.clock_gettime, boottime)
