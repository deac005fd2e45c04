"""The clock by which leases in a file end: the same for all processes of the machine, never set.

It counts the time since the machine was started, also while that sleeps. Once for each start, the
time of the start is written down in the file; from then on the wall clock, which may be set, is not
read. If the kernel gives no id of this start, the wall clock is used after all.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")
_OFFSETS: Final = Path("/proc/self/timens_offsets")


def boot() -> str:
    """The id of this start of the machine; empty if that is not known."""
    if not hasattr(time, "CLOCK_BOOTTIME"):
        return ""  # not Linux
    try:
        if _is_shifted():
            return ""
        return _BOOT.read_text("ascii").strip()
    except OSError:
        return ""


def _is_shifted() -> bool:
    """Whether a time namespace shows this process another time since the start."""
    try:
        lines = _OFFSETS.read_text("ascii").splitlines()
    except FileNotFoundError:
        return False  # this kernel has no time namespaces
    return any(line.split() != ["boottime", "0", "0"] for line in lines if "boottime" in line)


def since_boot() -> int:
    """Microseconds since the machine was started."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1000


def wall() -> int:
    """The machine's wall clock, in microseconds."""
    return time.time_ns() // 1000


def clock(began: int | None) -> Callable[[], int]:
    """A clock that showed ``began`` when the machine was started; None: the wall clock."""
    return wall if began is None else lambda: began + since_boot()
