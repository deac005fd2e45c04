"""Keep the cores awake: a process for each core that is busy whenever no other process wants it.

    python -m benchmarks.spinner <core>

On a virtual machine it takes long to wake a core that sleeps, which may be most of a round trip.
With a spinner no core sleeps.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Generator

from benchmarks.crew import ROOT


@contextlib.contextmanager
def cores_awake() -> Generator[list[int]]:
    """No core sleeps while this is open; yields the spinning processes."""
    spinning: list[subprocess.Popen[bytes]] = []
    try:
        for core in _cores():
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.spinner", str(core)],
                stdout=subprocess.PIPE,
                cwd=ROOT,
            )
            spinning.append(process)
            assert process.stdout is not None
            process.stdout.readline()  # it says when it begins
        yield [process.pid for process in spinning]
    finally:
        for process in spinning:
            process.kill()
            process.wait()
            assert process.stdout is not None
            process.stdout.close()


def _cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def stand_back() -> None:
    """Run only if no other process wants to, or with the lowest priority the system allows."""
    try:
        os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    except (AttributeError, OSError):  # not on Linux, or not allowed here
        os.nice(19)


def spin(core: int) -> None:
    """Be busy on this core, until the process that started us is gone."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, {core})
    stand_back()
    conductor = os.getppid()
    print("spinning", flush=True)
    while os.getppid() == conductor:
        for _ in range(100_000):
            pass


if __name__ == "__main__":
    spin(int(sys.argv[1]))
