"""What one acquire + release costs the client: function calls, and executed opcodes of Python.

    python benchmarks/calls.py [TREE]

TREE is another checkout, to compare. Every call counts, those of built-in functions and of asyncio
too, as cProfile sees them; so do all opcodes, by `sys.settrace`. With one version of CPython they
are the same on every machine, whatever else that does, so they can be a test:
`tests/engine/test_calls.py`. What is counted on Redis includes what goes on behind the task, such
as replies that are read, but nothing of the server. `Calm` keeps out what depends on how busy the
machine is.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import gc
import os
import selectors
import sys
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import redis

from benchmarks.redis_server import RedisServer

if TYPE_CHECKING:
    from aiolock import Lock, LockClient

ROOT = Path(__file__).resolve().parent.parent

Cycle = Callable[["Lock", int], Awaitable[object]]
"""Acquires and releases a lock so often."""


async def enters(lock: Lock, each: int) -> None:
    """With ``async with``."""
    for _ in range(each):
        async with lock:
            pass


async def calls(lock: Lock, each: int) -> None:
    """With `Lock.acquire` and `Lease.release`."""
    for _ in range(each):
        lease = await lock.acquire()
        await lease.release()


@dataclass(frozen=True)
class Row:
    """Tasks, spread over some names, each of which acquires and releases so often."""

    names: int
    tasks: int
    each: int
    options: tuple[tuple[str, Any], ...] = ()
    cycle: Cycle = enters
    url: str = "redis"

    async def run(self, client: LockClient, each: int) -> None:
        """All of its tasks, each so often."""

        async def work(number: int) -> None:
            lock = client.lock(f"name {number % self.names}", **dict(self.options))
            await self.cycle(lock, each)

        await asyncio.gather(*map(work, range(self.tasks)))


ROWS: dict[str, Row] = {
    "free lock, one task": Row(1, 1, 400),
    "200 tasks, 200 names": Row(200, 200, 10),
    "5 tasks, one name": Row(1, 5, 200),
    "20 tasks, one name": Row(1, 20, 50),
    "200 tasks, one name": Row(1, 200, 20),
    "free, acquire()": Row(1, 1, 400, cycle=calls),
    "free, timeout=5": Row(1, 1, 400, (("timeout", 5),)),
    "free, renew=False": Row(1, 1, 400, (("renew", False),)),
    "free, confirm=False": Row(1, 1, 400, (("confirm", False),)),
    "free, memory": Row(1, 1, 400, url="memory://"),
    "200 tasks, one name, memory": Row(1, 200, 20, url="memory://"),
}


class Calm(selectors.DefaultSelector):
    """Looks for replies when the server has carried out all that was sent, as a quick one has.

    Where other programs keep the server from its work, its replies come one by one, and each then
    takes an iteration of the event loop.
    """

    profile: cProfile.Profile | None = None
    """What counts meanwhile."""

    def __init__(self, server: int) -> None:
        super().__init__()
        self._state = os.open(f"/proc/{server}/stat", os.O_RDONLY) if server else 0
        self._plain = super().select

    def close(self) -> None:
        """Close what tells the state of the server, too."""
        if self._state:
            os.close(self._state)
        super().close()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for the server, and look; all that this calls is built in, so it has no opcodes."""
        if self._state:
            if self.profile is not None:
                self.profile.disable()
            while b") S " not in os.pread(self._state, 100, 0):
                time.sleep(0)
            if self.profile is not None:
                self.profile.enable()
        return self._plain(timeout)


_SELECT: Final = Calm.select.__code__
_OURS: Final = {
    (_SELECT.co_filename, _SELECT.co_firstlineno, _SELECT.co_name),
    ("~", 0, "<method 'disable' of '_lsprof.Profiler' objects>"),
}
"""What `Calm` does is not counted."""


async def count_calls(row: Row, client: LockClient, each: int) -> float:
    """Function calls per acquire + release."""
    Calm.profile = profile = cProfile.Profile()
    profile.enable()
    try:
        await row.run(client, each)
    finally:
        profile.disable()
        Calm.profile = None
    profile.create_stats()
    calls = sum(called[1] for what, called in profile.stats.items() if what not in _OURS)
    return calls / (row.tasks * each)


async def count_opcodes(row: Row, client: LockClient, each: int) -> float:
    """Executed opcodes per acquire + release."""
    found = 0

    def local(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal found
        if event == "opcode":
            found += 1
        return local

    def trace(frame: FrameType, _event: str, _: object) -> Any:
        if frame.f_code is _SELECT:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await row.run(client, each)
    finally:
        sys.settrace(before)
    return found / (row.tasks * each)


async def _measure(row: Row, url: str, *, opcodes: bool) -> tuple[float, float]:
    import aiolock

    async with aiolock.connect(url) as client:
        await row.run(client, 5)  # the server has the scripts then
        found = await count_calls(row, client, row.each)
        return found, await count_opcodes(row, client, max(3, row.each // 8)) if opcodes else 0.0


def measure(title: str, server: str, *, opcodes: bool = True) -> tuple[float, float]:
    """The calls and the opcodes of one row; without ``opcodes``, 0 of these.

    While others use the processor no time passes for the event loop, so nothing is renewed, asked
    again or warned of more often. No garbage is looked for: what it is, others have left.
    """
    row, pid = ROWS[title], 0
    if row.url == "redis" and Path("/proc/self/stat").exists():
        with redis.Redis.from_url(server) as driver:
            pid = int(driver.info("server")["process_id"])

    def calm_loop() -> asyncio.AbstractEventLoop:
        loop = asyncio.SelectorEventLoop(Calm(pid))
        own_time = partial(time.clock_gettime, time.CLOCK_THREAD_CPUTIME_ID)
        loop.time = own_time  # type: ignore[method-assign]  # of this loop only
        return loop

    gc.disable()
    try:
        with asyncio.Runner(loop_factory=calm_loop) as runner:
            url = server if row.url == "redis" else row.url
            return runner.run(_measure(row, url, opcodes=opcodes))
    finally:
        gc.enable()


def main() -> None:
    """Print the table."""
    print("| one acquire + release | calls | opcodes |\n| --- | --: | --: |")
    with RedisServer() as server:
        for title in ROWS:
            made, opcodes = measure(title, server.url)
            print(f"| {title} | {made:,.0f} | {opcodes:,.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", default=str(ROOT), help="another checkout of aiolock")
    sys.path.insert(0, str(Path(parser.parse_args().tree).resolve()))
    main()
