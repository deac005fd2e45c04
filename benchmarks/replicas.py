"""The cost of waiting for replicas: a master with two replicas, and clients that wait or do not.

    python benchmarks/replicas.py [--quick]

All clients run in one process, in turn, and each round begins with another one.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Final, Literal

import redis.asyncio

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiolock
from benchmarks.redis_server import RedisServer

TASKS: Final = 20
NAMES: Final = 200
_AT_ONCE: Final = ("--repl-diskless-sync-delay", "0")

Pair = tuple[aiolock.LockClient, aiolock.LockClient]
"""Two clients, each a process as far as the server can tell."""


async def alone(clients: Pair, times: int) -> float:
    """Microseconds for one acquire and release of a free lock."""
    lock = clients[0].lock("order:42")
    began = time.perf_counter()
    for _ in range(times):
        async with lock:
            pass
    return (time.perf_counter() - began) / times * 1e6


async def to_and_fro(clients: Pair, times: int) -> float:
    """The same for a lock that one client hands to the other by a push, and gets back."""
    return await _crowd([client.lock("order:42") for client in clients], times // 2)


async def crowd(clients: Pair, times: int) -> float:
    """The same with many tasks of one client on one name."""
    return await _crowd([clients[0].lock("order:42")] * TASKS, times // TASKS)


async def many_names(clients: Pair, times: int) -> float:
    """The same with many tasks, each on a name of its own."""
    locks = [clients[0].lock(f"order:{number}") for number in range(NAMES)]
    return await _crowd(locks, times // NAMES)


async def _crowd(locks: Sequence[aiolock.Lock], times: int) -> float:
    times = max(1, times)

    async def enter(lock: aiolock.Lock) -> None:
        for _ in range(times):
            async with lock:
                pass

    began = time.perf_counter()
    await asyncio.gather(*map(enter, locks))
    return (time.perf_counter() - began) / (times * len(locks)) * 1e6


MEASURES: Final = {
    "free lock": alone,
    "to and fro": to_and_fro,
    f"{TASKS} tasks, one name": crowd,
    f"{NAMES} tasks, {NAMES} names": many_names,
}


@contextmanager
def master_of_two() -> Iterator[RedisServer]:
    """A master that two replicas follow."""
    with RedisServer(*_AT_ONCE) as master:
        follow = ("--replicaof", "127.0.0.1", str(master.port))
        with RedisServer(*_AT_ONCE, *follow), RedisServer(*_AT_ONCE, *follow):
            yield master


async def measure(*, rounds: int, times: int) -> Sequence[str]:
    """A table: for each measure the medians, and their ratios to those without replicas."""
    wanted: dict[str, int | Literal["all"] | None] = {
        "none": None,
        "`replicas=1`": 1,
        '`replicas="all"`, two': "all",
    }
    async with AsyncExitStack() as stack:
        master = stack.enter_context(master_of_two())
        await _followed(master.url)
        pairs: dict[str, Pair] = {}
        for number, (title, replicas) in enumerate(wanted.items()):
            first, second = [
                await stack.enter_async_context(
                    aiolock.connect(master.url, prefix=f"bench{number}", replicas=replicas)
                )
                for _ in range(2)
            ]
            pairs[title] = first, second
        found = {(title, what): list[float]() for title in wanted for what in MEASURES}
        titles = list(wanted)
        for _ in range(rounds):
            for title in titles:
                for what, measured in MEASURES.items():
                    found[title, what].append(await measured(pairs[title], times))
            titles.append(titles.pop(0))
    head = "".join(f" {what}, µs | ratio |" for what in MEASURES)
    lines = [f"| replicas that are waited for |{head}", "| --- |" + " ---: |" * 2 * len(MEASURES)]
    for title in wanted:
        cells = [
            f"{statistics.median(found[title, what]):.0f} |"
            f" {_ratio(found[title, what], found['none', what]):.2f}"
            for what in MEASURES
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return lines


async def _followed(url: str) -> None:
    """Wait until both replicas have all that the master has."""
    async with redis.asyncio.Redis.from_url(url) as client, asyncio.timeout(30):
        while True:
            await client.set("followed", 1)
            if await client.execute_command("WAIT", 2, 1000) == 2:  # type: ignore[no-untyped-call]
                return
            await asyncio.sleep(0.05)


def _ratio(mine: Sequence[float], base: Sequence[float]) -> float:
    """The median of the ratios within each round."""
    return statistics.median([one / other for one, other in zip(mine, base, strict=True)])


async def main(*, quick: bool) -> None:
    """Measure, and print a table."""
    for line in await measure(rounds=3 if quick else 15, times=400 if quick else 2000):
        print(line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    asyncio.run(main(quick=parser.parse_args().quick))
