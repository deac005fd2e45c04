"""A Redis Cluster compared with one server: a free lock, a crowd, hand-offs, and servers' work.

Each cluster is measured twice: with pushes that go to all its nodes, and with pushes that stay in
their shard.

    python benchmarks/cluster.py [--quick]

All contestants run in one process, in turn, and each round begins with another one. The figures of
the servers' CPU are the sum over all masters, because a publish goes to every one of them. The idle
use is measured before each round, and subtracted.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import aiolock
from tests.support.clusters import Cluster
from tests.support.servers import RedisServer

MASTERS = (3, 9)
NAMES = 100
TASKS = 200
PUSHES = {"": "broadcast", ", sharded": "sharded"}
"""The title in the rows, and the URL."""
IDLE = 0.5
"""Seconds without any load, to measure what the servers use then."""


class Place:
    """One server or one cluster, and two clients with all their connections open."""

    def __init__(self, servers: Sequence[RedisServer], *clients: aiolock.LockClient) -> None:
        self.servers = servers
        self.clients = clients

    @property
    def cpu(self) -> float:
        """CPU seconds that all servers have used."""
        found = 0.0
        for server in self.servers:
            said = server.call("INFO", "cpu")
            found += said["used_cpu_user"] + said["used_cpu_sys"]
        return found


async def alone(place: Place, times: int) -> None:
    """One task that acquires and releases free locks."""
    locks = [place.clients[0].lock(f"order:{number}") for number in range(NAMES)]
    for number in range(times):
        async with locks[number % NAMES]:
            pass


async def crowd(place: Place, times: int) -> None:
    """Many tasks of one client on one name."""
    lock = place.clients[0].lock("order:42")

    async def enter() -> None:
        for _ in range(max(1, times // TASKS)):
            async with lock:
                pass

    await asyncio.gather(*[enter() for _ in range(TASKS)])


async def to_and_fro(place: Place, times: int) -> None:
    """Two clients that hand one lock to each other through the server: each entry is a push."""
    entered = 0

    async def enter(client: aiolock.LockClient) -> None:
        nonlocal entered
        lock = client.lock("order:42")
        while entered < times:
            async with lock:
                entered += 1
                await asyncio.sleep(0)

    await asyncio.gather(*map(enter, place.clients))


WORK: dict[str, Callable[[Place, int], Awaitable[None]]] = {
    "free lock": alone,
    f"{TASKS} tasks, one name": crowd,
    "two clients, one name": to_and_fro,
}


async def _opened(stack: AsyncExitStack, url: str, servers: Sequence[RedisServer]) -> Place:
    clients = [await stack.enter_async_context(aiolock.connect(url)) for _ in range(2)]
    place = Place(servers, *clients)
    for client in clients:
        for number in range(NAMES):  # so that all connections are there
            async with client.lock(f"order:{number}"):
                pass
    await to_and_fro(place, 20)
    return place


async def _idle(place: Place) -> float:
    """CPU seconds that all servers use in one second without any request."""
    cpu, began = place.cpu, time.perf_counter()
    await asyncio.sleep(IDLE)
    return (place.cpu - cpu) / (time.perf_counter() - began)


async def measure(masters: Sequence[int], *, rounds: int, times: int) -> str:
    """A table: µs of each operation, and the servers' CPU time for it."""
    async with AsyncExitStack() as stack:
        started = stack.enter_context(ExitStack())
        server = started.enter_context(RedisServer())
        places = {"one server": await _opened(stack, server.url, [server])}
        for count in masters:
            cluster = Cluster(started, count)
            for title, push in PUSHES.items():
                url = f"{cluster.url}?push={push}"
                places[f"{count} masters{title}"] = await _opened(stack, url, cluster.nodes)
        found = {title: {work: list[tuple[float, float]]() for work in WORK} for title in places}
        titles = list(places)
        for _ in range(rounds):
            for work, do in WORK.items():
                for title in titles:
                    idle = await _idle(places[title])
                    cpu, began = places[title].cpu, time.perf_counter()
                    await do(places[title], times)
                    took = time.perf_counter() - began
                    used = places[title].cpu - cpu - idle * took
                    found[title][work].append((took, used))
            titles.append(titles.pop(0))
    lines = [
        f"| | {' | '.join(f'{work}, µs | servers, µs' for work in WORK)} |",
        f"| --- |{' ---: |' * (2 * len(WORK))}",
    ]
    for title, measured in found.items():
        cells = [
            f"{statistics.median(part) / times * 1e6:.0f}"
            for work in WORK
            for part in zip(*measured[work], strict=True)
        ]
        lines.append(f"| {title} | {' | '.join(cells)} |")
    return "\n".join(lines)


async def main(*, quick: bool) -> None:
    """Measure, and print."""
    rounds, times = (2, 400) if quick else (9, 4000)
    print(await measure(MASTERS, rounds=rounds, times=times))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true")
    asyncio.run(main(quick=parser.parse_args().quick))
