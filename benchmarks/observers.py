"""The cost of observers: a lock in memory and on Redis, with the log alone and with each kind.

    python benchmarks/observers.py [--quick]

All variants run in one process, in turn, and each round begins with another one.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import sys
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiolock
from aiolock import LockRequest, Observer, observe
from benchmarks.redis_server import RedisServer

TASKS = 200
os.environ["AIOLOCK_OBSERVE"] = "off"  # each has those that it is given, and no others


class Nothing(Observer):
    """An observer that does nothing."""

    def waiting(self, request: LockRequest) -> None:
        """Nothing."""

    def acquired(self, request: LockRequest, **facts: Any) -> None:
        """Nothing."""

    def gave_up(self, request: LockRequest, **facts: Any) -> None:
        """Nothing."""

    def released(self, request: LockRequest, **facts: Any) -> None:
        """Nothing."""

    def lost(self, request: LockRequest, **facts: Any) -> None:
        """Nothing."""


async def alone(client: aiolock.LockClient, times: int) -> float:
    """Microseconds for one acquire and release of a free lock."""
    lock = client.lock("order:42")
    began = time.perf_counter()
    for _ in range(times):
        async with lock:
            pass
    return (time.perf_counter() - began) / times * 1e6


async def crowd(client: aiolock.LockClient, times: int) -> float:
    """The same with many tasks on one name."""
    lock = client.lock("order:42")

    async def enter() -> None:
        for _ in range(times):
            async with lock:
                pass

    began = time.perf_counter()
    await asyncio.gather(*[enter() for _ in range(TASKS)])
    return (time.perf_counter() - began) / (times * TASKS) * 1e6


async def measure(url: str, *, rounds: int, times: int) -> Sequence[str]:
    """A line for each variant: both medians, and their ratios to those with the log alone."""
    async with AsyncExitStack() as stack:
        observers: dict[str, Observer | Sequence[Observer]] = {
            "the log alone": (),
            "an observer that does nothing": Nothing(),
            "Prometheus": observe.prometheus(),
            "OpenTelemetry, no SDK": observe.opentelemetry(),
        }
        clients = {
            title: await stack.enter_async_context(
                aiolock.connect(url, prefix=f"bench{number}", observer=observer)
            )
            for number, (title, observer) in enumerate(observers.items())
        }
        found = {title: (list[float](), list[float]()) for title in clients}
        titles = list(clients)
        for _ in range(rounds):
            for title in titles:
                found[title][0].append(await alone(clients[title], times))
                found[title][1].append(await crowd(clients[title], max(1, times // 50)))
            titles.append(titles.pop(0))
    base = found["the log alone"]
    return [
        f"| {title} | "
        + " | ".join(
            f"{statistics.median(each):.1f} | {_ratio(each, of):.2f}"
            for each, of in zip(mine, base, strict=True)
        )
        + " |"
        for title, mine in found.items()
    ]


def _ratio(mine: Sequence[float], base: Sequence[float]) -> float:
    """The median of the ratios within each round."""
    return statistics.median([one / other for one, other in zip(mine, base, strict=True)])


async def main(*, quick: bool) -> None:
    """Measure, and print a table for each store."""
    rounds, times = (2, 100) if quick else (15, 1000)
    with RedisServer() as server:
        for where, url in (("in memory", "memory://"), ("on Redis", server.url)):
            print(f"| {where} | free lock, µs | ratio | {TASKS} tasks, one name, µs | ratio |")
            print("| --- | ---: | ---: | ---: | ---: |")
            for line in await measure(url, rounds=rounds, times=times):
                print(line)
            print()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    asyncio.run(main(quick=parser.parse_args().quick))
