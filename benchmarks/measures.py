"""What the conductor measures with a peer's workers and the server: a round of each workload."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.crew import Settings, Worker, fresh_name
from benchmarks.redis_server import RedisServer
from benchmarks.rounds import Entry, NothingMeasured, in_turn, quantile
from benchmarks.workloads import Message

Value = TypeVar("Value")


async def take_turns(
    probes: Mapping[str, Callable[[], Awaitable[Value]]], rounds: int
) -> dict[str, list[Value]]:
    """Each probe once in every round, and what each gave."""
    taken: dict[str, list[Value]] = {name: [] for name in probes}
    for _, name in in_turn(list(probes), rounds):
        taken[name].append(await probes[name]())
    return taken


@dataclass(frozen=True)
class Cost:
    """What one acquire and release cost, on average, in microseconds."""

    wall: float
    client: float
    """CPU time of the worker."""
    server: float
    """CPU time of the server."""
    median: float = 0.0
    """Of the wall times, where each was taken."""
    tail: float = 0.0
    """Their 95th percentile."""

    @property
    def rate(self) -> float:
        """Operations per second."""
        return 1e6 / self.wall


async def uncontended(
    server: RedisServer, worker: Worker, *, operations: int, settings: Settings | None = None
) -> Cost:
    """One task on a free lock."""
    await worker.begin(
        "one_task", server.url, settings=settings, name=fresh_name(), operations=operations
    )
    before = server.usage()
    done = await worker.go_on("done")
    after = server.usage()
    await worker.finish()
    laps = [lap / 1e3 for lap in done["laps"]]
    return Cost(
        sum(laps) / operations,
        done["cpu"] / 1e3 / operations,
        (after.cpu - before.cpu) * 1e6 / operations,
        quantile(laps, 0.5),
        quantile(laps, 0.95),
    )


async def many_names(
    server: RedisServer,
    worker: Worker,
    *,
    tasks: int,
    names: int | None = None,
    operations: int,
    settings: Settings | None = None,
) -> Cost:
    """Many tasks, each on a lock of its own or on one of ``names``, each so many times."""
    await worker.begin(
        "many_names",
        server.url,
        at_once=tasks,
        settings=settings,
        tasks=tasks,
        name=fresh_name(),
        names=names or tasks,
        operations=operations,
    )
    before = server.usage()
    done = await worker.go_on("done")
    after = server.usage()
    await worker.finish()
    total = tasks * operations
    return Cost(
        done["elapsed"] / 1e3 / total,
        done["cpu"] / 1e3 / total,
        (after.cpu - before.cpu) * 1e6 / total,
    )


@dataclass(frozen=True)
class Contended:
    """Many tasks on one name."""

    entries: Sequence[Entry]
    ended: bool
    """Whether all came through in the time they had."""
    elapsed: float
    """Seconds from the first asking to the last leaving."""
    client: float
    """Microseconds of the workers' CPU time for each entry."""
    server: float
    """Microseconds of the server's CPU time for each entry."""
    connections: int
    """Of one process, on average."""

    @property
    def rate(self) -> float:
        """Entries per second."""
        return len(self.entries) / self.elapsed if self.entries else 0.0

    def waited(self, share: float) -> float:
        """The quantile of the waiting times, in milliseconds."""
        return quantile([(each.entered - each.asked) / 1e6 for each in self.entries], share)


async def one_name(
    server: RedisServer,
    crew: Sequence[Worker],
    *,
    tasks: int,
    times: int,
    limit: float,
    body: float | None = None,
    settings: Settings | None = None,
) -> Contended:
    """``tasks`` tasks in each process enter one lock, each so many times."""
    others = server.addresses()
    name = fresh_name()
    for worker in crew:
        await worker.begin(
            "one_name",
            server.url,
            at_once=tasks,
            settings=settings,
            tasks=tasks,
            name=name,
            times=times,
            limit=limit,
            body=body,
        )
    before = server.usage()
    start = time.monotonic_ns() + 20_000_000 * (len(crew) > 1)
    for worker in crew:
        worker.say(start=start)
    hearing = asyncio.ensure_future(_all_done(crew, limit))
    try:
        # Before the time is up: some open more connections then, to cancel their requests.
        await asyncio.wait((hearing,), timeout=0.9 * limit)
        connections = len(server.addresses() - others) / len(crew)
        done = await hearing
    finally:
        hearing.cancel()
    after = server.usage()
    for worker in crew:
        await worker.finish()
    entries = _entries(done)
    count = max(1, len(entries))
    return Contended(
        entries,
        all(each["ended"] for each in done),
        max(each["start"] + each["elapsed"] for each in done) / 1e9
        - min(each["start"] for each in done) / 1e9,
        sum(each["cpu"] for each in done) / 1e3 / count,
        (after.cpu - before.cpu) * 1e6 / count,
        round(connections),
    )


async def _all_done(crew: Sequence[Worker], limit: float) -> list[Message]:
    return [await worker.hear("done", within=limit + worker.patience) for worker in crew]


def _entries(done: Sequence[Message]) -> list[Entry]:
    return [
        Entry(entered, asked, left, f"{place}:{who}")
        for place, each in enumerate(done)
        for entered, asked, left, who in each["entries"]
    ]


@dataclass(frozen=True)
class Watched:
    """Tasks on one name, whose commands were listened to: how long they took says nothing."""

    commands: float
    """That clients sent for each acquire and release."""
    entries: Sequence[Entry]


async def commands(
    server: RedisServer,
    worker: Worker,
    *,
    tasks: int,
    times: int,
    body: float | None = None,
    settings: Settings | None = None,
) -> Watched:
    """What clients send for the acquire and release of a lock that others wait for."""
    await worker.begin(
        "one_name",
        server.url,
        at_once=tasks,
        settings=settings,
        tasks=tasks,
        name=fresh_name(),
        times=times,
        limit=worker.patience / 2,
        body=body,
    )
    with server.tap() as tap:
        done = await worker.go_on("done")
    await worker.finish()
    if not done["entries"]:
        raise NothingMeasured("nobody came through in time")
    return Watched(tap.total / len(done["entries"]), _entries([done]))


async def chain(server: RedisServer, pair: Sequence[Worker], *, tasks: int) -> list[float]:
    """Microseconds from leaving in one process to entering in the other, for each hand-off.

    Both have ``tasks`` waiters that stand in line in turn: the queue is full before the first
    hand-off, and what is timed is only that.
    """
    name, gap = fresh_name(), 1_000_000
    for place, worker in enumerate(pair):
        await worker.begin(
            "chain", server.url, at_once=tasks, tasks=tasks, name=name, gap=gap, place=place
        )
    start = time.monotonic_ns() + 20_000_000
    for worker in pair:
        worker.say(start=start)
    done = [await worker.hear("done") for worker in pair]
    for worker in pair:
        await worker.finish()
    entries = sorted(
        Entry(entered, asked, left, str(place))
        for place, each in enumerate(done)
        for entered, asked, left, _ in each["entries"]
    )
    return [
        (after.entered - before.left) / 1e3
        for before, after in itertools.pairwise(entries)
        if before.who != after.who
    ]


async def after_waiting(url: str, pair: Sequence[Worker], waits: Sequence[float]) -> list[float]:
    """Microseconds of a hand-off from one process to the other's only waiter.

    Before each of them everything has been quiet for one of ``waits``, in seconds.
    """
    name = fresh_name()
    for worker in pair:
        await worker.begin("turns", url, name=name)
    holder, waiter = pair
    holder.say(do="ask")
    await holder.hear("entered")
    latencies: list[float] = []
    for wait in waits:
        waiter.say(do="ask")
        await asyncio.sleep(wait)
        holder.say(do="leave")
        left = (await holder.hear("left"))["at"]
        entered = (await waiter.hear("entered"))["at"]
        latencies.append((entered - left) / 1e3)
        holder, waiter = waiter, holder
    holder.say(do="leave")
    await holder.hear("left")
    for worker in pair:
        worker.say(do="end")
        await worker.hear("done")
        await worker.finish()
    return latencies


async def ping_pong(server: RedisServer, pair: Sequence[Worker], *, hops: int) -> list[float]:
    """Microseconds from PUBLISH in one process to its arrival in the other, for each hop.

    Plain asyncio transports, no library: the least that a hand-off by pub/sub could take.
    """
    for place, worker in enumerate(pair):
        await worker.begin("ping_pong", server.url, server=server.url, hops=hops, place=place)
    for worker in reversed(pair):  # the one that begins is the last to go on
        worker.say()
    done = [await worker.hear("done") for worker in pair]
    for worker in pair:
        await worker.finish()
    return [
        (caught - thrown) / 1e3
        for one, other in (done, done[::-1])
        for thrown, caught in zip(one["thrown"], other["caught"], strict=True)
    ]


@dataclass(frozen=True)
class Waiting:
    """What a queue of one length costs: the waiting, and each move in it."""

    length: int
    client: float
    """Bytes of the worker's memory for each waiter, its task included."""
    server: float
    """Bytes of the server's memory for each waiter, its connections included."""
    commands: float
    """That clients sent in a second for each waiter, while nothing happened."""
    moves: dict[str, list[Cost]]
    """Enqueue, cancel and grant: what each cost in each round."""


async def waiting(
    server: RedisServer,
    crew: Mapping[int, Worker],
    *,
    batch: int,
    rounds: int,
    watch: float,
) -> list[Waiting]:
    """Queues of different lengths, each in a process of its own, and so many moves in each."""
    standing: dict[int, tuple[float, float]] = {}
    for length, worker in crew.items():
        before = await worker.begin(
            "queue",
            server.url,
            at_once=length + batch + 2,
            name=fresh_name(),
            length=length,
            batch=batch,
            rounds=rounds,
        )
        empty = server.usage().memory
        after = await worker.go_on("standing")
        standing[length] = (
            (after["memory"] - before["memory"]) / length,
            (server.usage().memory - empty) / length,
        )
    commands = 0.0
    if watch:
        with server.tap() as tap:
            await asyncio.sleep(watch)
        commands = tap.total / watch / sum(crew)
    moves: dict[int, dict[str, list[Cost]]] = {length: {} for length in crew}
    for _, length in in_turn(list(crew), rounds):
        for move, cost in (await _moves(server, crew[length], batch)).items():
            moves[length].setdefault(move, []).append(cost)
    for worker in crew.values():
        await worker.go_on("done")
        await worker.finish()
    return [Waiting(length, *standing[length], commands, moves[length]) for length in crew]


async def _moves(server: RedisServer, worker: Worker, batch: int) -> dict[str, Cost]:
    cpu: dict[str, float] = {}
    for move in ("enqueue", "cancel", "grant"):
        await worker.go_on(f"before {move}")
        before = server.usage().cpu
        await worker.go_on(f"after {move}")
        cpu[move] = (server.usage().cpu - before) * 1e6
    done = await worker.go_on("round")
    return {
        move: Cost(
            done[move]["elapsed"] / 1e3 / batch, done[move]["cpu"] / 1e3 / batch, spent / batch
        )
        for move, spent in cpu.items()
    }


async def restarted(
    server: RedisServer, worker: Worker, lengths: Sequence[int], *, rounds: int
) -> dict[int, list[float]]:
    """Microseconds for each waiter of queues of these lengths, in each round.

    From when a server has forgotten everybody, and every connection is broken, until all of them
    have been through. Nobody else may be connected.
    """
    costs: dict[int, list[float]] = {length: [] for length in lengths}
    for _, length in in_turn(list(lengths), rounds):
        await worker.begin(
            "forgotten", server.url, at_once=length + 2, name=fresh_name(), length=length
        )
        await worker.go_on("standing")
        began = time.monotonic_ns()
        server.forget()
        through = await worker.go_on("through")
        costs[length].append((through["at"] - began) / 1e3 / length)
        await worker.finish()
    return costs


@dataclass(frozen=True)
class Holding:
    """What it costs to hold many locks and to do nothing."""

    client: float
    """Bytes of the worker's memory for each lease."""
    server: float
    """Bytes of the server's memory for each lease."""
    tasks: int
    """That the library runs for it."""
    busy: float
    """The share of a core that the worker needed while it was watched."""
    server_busy: float
    """The same of the server."""
    commands: float
    """That it sent in a second."""


async def holding(
    server: RedisServer, worker: Worker, connecting: asyncio.Lock, *, leases: int, watch: float
) -> Holding:
    """One process that holds so many locks at once, with leases of 30 s.

    ``connecting`` is for whoever connects beside it: whose connections are new must be certain.
    """
    async with connecting:
        others = server.addresses()
        before = await worker.begin("hold", server.url, name=fresh_name(), leases=leases)
        empty = server.usage().memory
        after = await worker.go_on("held")
        full = server.usage()
        ours = server.addresses() - others
    worker.say()
    with server.tap() as tap:
        await asyncio.sleep(watch)
    idle = server.usage()
    watched = await worker.go_on("watched")
    await worker.go_on("done")
    await worker.finish()
    return Holding(
        (after["memory"] - before["memory"]) / leases,
        (full.memory - empty) / leases,
        after["tasks"],
        watched["cpu"] / watched["elapsed"],
        (idle.cpu - full.cpu) / watch,
        sum(tap.by_address.get(address, 0) for address in ours) / watch,
    )


async def waiters(
    server: RedisServer,
    pair: Sequence[Worker],
    connecting: asyncio.Lock,
    *,
    tasks: int = 1,
    watch: float,
) -> float:
    """Commands a second that a process sends whose tasks all wait for another process."""
    name = fresh_name()
    holder, waiter = pair
    async with connecting:
        await holder.begin("turns", server.url, name=name)
        holder.say(do="ask")
        await holder.hear("entered")
        others = server.addresses()
        await waiter.begin("waits", server.url, at_once=tasks, name=name, tasks=tasks)
        await waiter.go_on("asked")
        await asyncio.sleep(0.1 + tasks / 100)  # until all are in the queue
        ours = server.addresses() - others
    with server.tap() as tap:
        await asyncio.sleep(watch)
    for order, answer in (("leave", "left"), ("end", "done")):
        holder.say(do=order)
        await holder.hear(answer)
    await holder.finish()
    await waiter.go_on("done")
    await waiter.finish()
    return sum(tap.by_address.get(address, 0) for address in ours) / watch
