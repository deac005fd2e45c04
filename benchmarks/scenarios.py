"""The measurements of every contestant: each scenario is one round, with its figures."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field

from benchmarks import measures
from benchmarks.crew import Worker
from benchmarks.measures import Contended, Cost
from benchmarks.redis_server import RedisServer, c_floor
from benchmarks.rounds import (
    handovers,
    inversions,
    most_inside,
    overlaps,
    overtaken,
    quantile,
    ratios,
    spread,
)

MARGIN = 1_000_000
"""Tasks that asked within so many nanoseconds of each other may enter in either order."""


@dataclass(frozen=True)
class Size:
    """How much is measured, and the longest time for it."""

    rounds: int
    pings: int
    """Round trips of each short run in C."""
    operations: int
    """Operations of one task on a free lock."""
    each: int
    """Operations of each of 200 tasks on 200 free locks."""
    crowds: dict[int, int]
    """How many tasks of one process want one name, and how often each enters."""
    yielding: tuple[int, int]
    """How many tasks with bodies that let others run, and how often each enters."""
    processes: tuple[int, int, int]
    """How many processes, of how many tasks, that enter how often."""
    limit: float
    """Seconds that a crowd may take; later entries do not count."""
    chain: int
    """Waiters of each of two processes."""
    waits: int
    """Hand-offs after a quiet time."""
    lines: tuple[int, ...]
    """How many tasks wait in a queue whose moves are timed; the first queue is watched, too."""
    watch: float
    """Seconds for which that queue is watched."""
    semaphore: tuple[int, int, int]
    """How many tasks want a semaphore, of how many permits, and how often each enters."""
    readers: tuple[int, int]
    """How many tasks read one name, and how often each in each turn."""
    leases: int
    """Leases that one process holds."""
    patience: float
    """Seconds without an answer after which a peer counts as hung."""


FULL = Size(
    rounds=3,
    pings=1000,
    operations=3000,
    each=50,
    crowds={1: 1000, 5: 600, 20: 250, 50: 100, 200: 40},
    yielding=(50, 100),
    processes=(4, 50, 20),
    limit=2,
    chain=50,
    waits=12,
    lines=(100, 1_000),
    watch=6,
    semaphore=(50, 5, 60),
    readers=(50, 100),
    leases=1000,
    patience=60,
)
QUICK = Size(
    rounds=1,
    pings=1000,
    operations=400,
    each=3,
    crowds={5: 40, 20: 10, 200: 5},
    yielding=(50, 4),
    processes=(4, 50, 2),
    limit=0.5,
    chain=15,
    waits=3,
    lines=(30,),
    watch=0.5,
    semaphore=(50, 5, 6),
    readers=(50, 40),
    leases=300,
    patience=5,
)


@dataclass(frozen=True)
class Outcome:
    """The figures of one round of a scenario."""

    figures: dict[str, float]
    samples: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """Single values, for figures whose spread is shown."""


async def alone(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """One task, a free lock."""
    cost = await measures.uncontended(server, crew[0], operations=size.operations)
    return Outcome(_free("alone", cost))


def _free(what: str, cost: Cost) -> dict[str, float]:
    return {
        f"{what}.us": cost.median,
        f"{what}.p95.us": cost.tail,
        f"{what}.client.us": cost.client,
        f"{what}.server.us": cost.server,
    }


async def many_names(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """200 tasks, a free lock for each."""
    cost = await measures.many_names(server, crew[0], tasks=200, operations=size.each)
    return Outcome(
        {
            "names.rate": cost.rate,
            "names.client.us": cost.client,
            "names.server.us": cost.server,
        }
    )


async def crowds(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """A number of tasks of one process on one name."""
    figures: dict[str, float] = {}
    for tasks, times in size.crowds.items():
        crowd = await measures.one_name(
            server, crew[:1], tasks=tasks, times=times, limit=size.limit
        )
        figures |= _crowd(f"crowd{tasks}", crowd, tasks * times)
    return Outcome(figures)


async def yielding(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Many tasks of one process on one name, with bodies that let others run."""
    tasks, times = size.yielding
    crowd = await measures.one_name(
        server, crew[:1], tasks=tasks, times=times, limit=size.limit, body=0
    )
    return Outcome(_crowd("yielding", crowd, tasks * times))


async def processes(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Several processes on one name."""
    count, tasks, times = size.processes
    crowd = await measures.one_name(
        server, crew[:count], tasks=tasks, times=times, limit=size.limit
    )
    return Outcome(_crowd("processes", crowd, count * tasks * times))


def _crowd(what: str, crowd: Contended, wanted: int) -> dict[str, float]:
    return _through(what, crowd, wanted) | {
        f"{what}.handoffs": handovers(crowd.entries) / crowd.elapsed if crowd.entries else 0.0,
        f"{what}.overlaps": float(overlaps(crowd.entries)),
    }


def _through(what: str, crowd: Contended, wanted: int) -> dict[str, float]:
    entries = crowd.entries
    pairs = max(1, len(entries) * (len(entries) - 1) // 2)
    figures = {
        f"{what}.through": len(entries) / wanted,
        f"{what}.rate": crowd.rate,
        f"{what}.inversions": inversions(entries, margin=MARGIN) / pairs,
        f"{what}.inverted": float(inversions(entries)),
        f"{what}.overtaken": overtaken(entries, margin=MARGIN) / max(1, len(entries)),
        f"{what}.client.us": crowd.client,
        f"{what}.server.us": crowd.server,
        f"{what}.connections": float(crowd.connections),
    }
    if entries:
        for share in (50, 95, 99):
            figures[f"{what}.waited.p{share}.ms"] = crowd.waited(share / 100)
    return figures


async def chain(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Hand-off after hand-off between two processes, out of a full queue."""
    latencies = await measures.chain(server, crew[:2], tasks=size.chain)
    return Outcome({"chain.us": quantile(latencies, 0.5)}, {"chain": latencies})


async def quiet(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """A hand-off between two processes after a quiet time."""
    # Different lengths: else a lock that polls would always be caught at the same moment.
    waits = [0.05 + 0.1 * turn / size.waits for turn in range(size.waits)]
    latencies = await measures.after_waiting(server.url, crew[:2], waits)
    return Outcome({"quiet.us": quantile(latencies, 0.5)}, {"quiet": latencies})


async def commands(server: RedisServer, crew: Sequence[Worker], _: Size) -> Outcome:
    """The commands for each acquire and release, of a free lock and of one that others want."""
    free = await measures.commands(server, crew[0], tasks=1, times=50)
    wanted = await measures.commands(server, crew[0], tasks=10, times=5)
    return Outcome({"commands.free": free.commands, "commands.wanted": wanted.commands})


async def semaphore(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Many tasks of one process want a few permits; and one task wants permits that are free.

    The bodies let other tasks run: else it would be no wonder that the limit is never exceeded.
    They last a while in the runs that are not timed, so that all permits are taken.
    """
    tasks, permits, times = size.semaphore
    settings = {"permits": permits}
    free = await measures.uncontended(
        server, crew[0], operations=size.operations, settings=settings
    )
    crowd = await measures.one_name(
        server,
        crew[:1],
        tasks=tasks,
        times=times,
        limit=size.limit,
        body=0,
        settings=settings,
    )
    watched = await measures.commands(
        server, crew[0], tasks=tasks, times=2, body=0.002, settings=settings
    )
    figures = _free("semaphore.free", free) | _through("semaphore", crowd, tasks * times)
    inside = max(most_inside(crowd.entries), most_inside(watched.entries))
    return Outcome(
        figures
        | {
            "semaphore.commands": watched.commands,
            "semaphore.inside": float(inside),
            "semaphore.permits": float(permits),
        }
    )


async def readers(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """Many tasks that read one name, compared with as many that each have a lock of their own."""
    tasks, times = size.readers

    def probe(names: int, **settings: object) -> Callable[[], Awaitable[Cost]]:
        return functools.partial(
            measures.many_names,
            server,
            crew[0],
            tasks=tasks,
            names=names,
            operations=times,
            settings=settings,
        )

    costs = await measures.take_turns({"read": probe(1, reads=True), "plain": probe(tasks)}, 3)
    rates = {what: [cost.rate for cost in each] for what, each in costs.items()}
    return Outcome(
        {
            "readers.rate": spread(rates["read"]).median,
            "readers.plain.rate": spread(rates["plain"]).median,
            "readers.ratio": ratios(rates["read"], rates["plain"]).median,
        }
    )


async def idle(server: RedisServer, crew: Sequence[Worker], size: Size) -> Outcome:
    """The cost of holding and waiting, and of each move in a queue.

    In new processes: memory that was used and given back is not asked for again.
    """
    held = await measures.holding(server, crew[0], asyncio.Lock(), leases=size.leases, watch=0.1)
    figures = {"lease.client.bytes": held.client, "lease.server.bytes": held.server}
    watch = size.watch
    for length, worker in zip(size.lines, crew[1:], strict=True):
        batch = min(100, length // 3)
        (line,) = await measures.waiting(
            server, {length: worker}, batch=batch, rounds=1, watch=watch
        )
        if watch:
            figures["waiter.client.bytes"] = line.client
            figures["waiter.server.bytes"] = line.server
            figures["waiter.commands"] = line.commands
            watch = 0
        for move, (cost,) in line.moves.items():
            figures[f"queue{length}.{move}.us"] = cost.wall
    return Outcome(figures)


async def floors(server: RedisServer, crew: Sequence[Worker], size: Size, of: str) -> Outcome:
    """The floors: a round trip in C, and a hop of a bare ping-pong by pub/sub."""
    hops = await measures.ping_pong(server, crew[:2], hops=size.pings // 2)
    return Outcome(
        {
            f"{of}.floor.us": await c_floor(server, requests=size.pings),
            f"{of}.hop.us": quantile(hops, 0.5),
        }
    )


@dataclass(frozen=True)
class Scenario:
    """One of these scenarios, and its requirements."""

    measure: Callable[[RedisServer, Sequence[Worker], Size], Awaitable[Outcome]]
    waits: bool = True
    """Whether it is for locks that can wait."""
    fresh: bool = False
    """Whether it needs new processes: one, and one for each queue."""
    needs: str = ""
    """The primitive that it needs, which some contestants lack: `Contestant.has`."""
    floor: bool = False
    """Whether the floors are measured in each of its rounds."""

    @property
    def name(self) -> str:
        """Its name."""
        return self.measure.__name__


FREE = (Scenario(alone, waits=False, floor=True), Scenario(many_names, waits=False))
CROWDS = (Scenario(crowds), Scenario(processes))
CHAIN = (Scenario(chain, floor=True),)
WANTED = (Scenario(commands), *CROWDS, Scenario(yielding), *CHAIN, Scenario(quiet))
SHARED = (Scenario(semaphore, needs="permits"), Scenario(readers, needs="reads"))
IDLE = (Scenario(idle, fresh=True),)
