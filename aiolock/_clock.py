"""The clock by which deadlines are reckoned, here and in a store that has none of its own."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial


def clock(loop: asyncio.AbstractEventLoop) -> Callable[[], float]:
    """A clock, in seconds, that goes on while the machine is suspended.

    The loop's own does not, on Linux: after a laptop or a virtual machine has slept, it would
    believe in leases that ended meanwhile. A loop with a time of its own keeps that.
    """
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    if boottime is None or abs(loop.time() - time.monotonic()) > 1:
        return loop.time
    return partial(time.clock_gettime, boottime)
