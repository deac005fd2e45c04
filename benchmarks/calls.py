"""What one acquire + release costs the client: function calls, and executed opcodes of Python.

    python benchmarks/calls.py [TREE]

TREE is another checkout, to compare. Every call counts, those of built-in functions and of asyncio
too, as cProfile sees them; so do all opcodes, by `sys.settrace`. With one version of CPython they
are nearly the same on every machine, whatever else that does, so they can be a test:
`tests/engine/test_calls.py`. What is counted on Redis includes what goes on behind the task, such
as replies that are read, but nothing of the server.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

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


async def count_calls(row: Row, client: LockClient, each: int) -> float:
    """Function calls per acquire + release."""
    profile = cProfile.Profile()
    profile.enable()
    try:
        await row.run(client, each)
    finally:
        profile.disable()
    profile.create_stats()
    return sum(called[1] for called in profile.stats.values()) / (row.tasks * each)


async def count_opcodes(row: Row, client: LockClient, each: int) -> float:
    """Executed opcodes per acquire + release."""
    found = 0

    def local(_frame: FrameType, event: str, _: object) -> Any:
        nonlocal found
        if event == "opcode":
            found += 1
        return local

    def trace(frame: FrameType, _event: str, _: object) -> Any:
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return local

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        await row.run(client, each)
    finally:
        sys.settrace(before)
    return found / (row.tasks * each)


async def measure(title: str, server: str, *, opcodes: bool = True) -> tuple[float, float]:
    """The calls and the opcodes of one row; without ``opcodes``, 0 of these."""
    import aiolock

    row = ROWS[title]
    async with aiolock.connect(server if row.url == "redis" else row.url) as client:
        await row.run(client, 5)  # the server has the scripts then
        found = await count_calls(row, client, row.each)
        return found, await count_opcodes(row, client, max(3, row.each // 8)) if opcodes else 0.0


async def main() -> None:
    """Print the table."""
    print("| one acquire + release | calls | opcodes |\n| --- | --: | --: |")
    with RedisServer() as server:
        for title in ROWS:
            made, opcodes = await measure(title, server.url)
            print(f"| {title} | {made:,.0f} | {opcodes:,.0f} |")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", nargs="?", default=str(ROOT), help="another checkout of aiolock")
    sys.path.insert(0, str(Path(parser.parse_args().tree).resolve()))
    asyncio.run(main())
