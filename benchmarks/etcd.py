"""aiolock in etcd beside etcd's own lock service, and beside aiolock on Redis and in PostgreSQL.

    python benchmarks/etcd.py [--quick]

All servers run at the same time, and all contestants in turn, each round beginning with another
one. What is written is on the disk before it is answered, on one server of etcd's and on three, as
in PostgreSQL; Redis does not persist anything. A full run writes its tables, as Markdown, into
`benchmarks/results/full/`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import machine, measures, table
from benchmarks.catalogue import AIOLOCK, Contestant
from benchmarks.crew import Worker, workers
from benchmarks.environments import environments
from benchmarks.redis_server import RedisServer
from benchmarks.rounds import in_turn, overlaps, ratios, spread
from benchmarks.run import RESULTS
from tests.support.databases import PostgresServer
from tests.support.etcds import EtcdServer

_GRPCIO: Final = ("grpcio==1.85.0",)
ONE: Final = replace(AIOLOCK, title="aiolock, one server")
SERVICE: Final = Contestant("lock service, one server", "etcd_lock_grpcio", _GRPCIO)
BARE: Final = Contestant("lock service by our connection, one server", "etcd_lock")
THREE: Final = replace(AIOLOCK, title="aiolock, three servers")
SERVICE_THREE: Final = replace(SERVICE, title="lock service, three servers")
BARE_THREE: Final = replace(BARE, title="lock service by our connection, three servers")
ON_REDIS: Final = replace(AIOLOCK, title="aiolock on Redis")
IN_POSTGRES: Final = replace(AIOLOCK, title="aiolock in PostgreSQL")
ON_ONE: Final = (ONE, SERVICE, BARE)
ON_THREE: Final = (THREE, SERVICE_THREE, BARE_THREE)
CONTESTANTS: Final = (*ON_ONE, *ON_THREE, ON_REDIS, IN_POSTGRES)
PROCESSES: Final = 2
BARS: Final = {
    "free lock, one task": 0.9,
    "20 tasks, one name": 3.0,
    "200 tasks, one name": 3.0,
    "200 tasks, 200 names": 1.5,
    "2 processes of 20 tasks, one name": 3.0,
}
"""At least so many times the rate of the lock service, as a client for Python calls it."""


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    rounds: int
    free: int
    """Times that one task takes a free lock."""
    twenty: int
    """Times that each of twenty tasks takes one lock."""
    crowd: int
    """The same for each of two hundred."""
    names: int
    """Times that each of two hundred tasks takes a lock of its own."""
    limit: float = 20.0
    """Seconds after which a crowd is as far as it is."""


FULL: Final = Size(rounds=5, free=200, twenty=20, crowd=4, names=6)
QUICK: Final = Size(rounds=2, free=40, twenty=6, crowd=2, names=2, limit=10.0)


@dataclass(frozen=True)
class Figure:
    """What one round of one measure gave."""

    rate: float
    """Acquisitions and releases a second."""
    client: float
    """Microseconds of the clients' CPU time for each."""
    overlaps: int = 0


Crew = Sequence[Worker]
Measure = Callable[[RedisServer, Crew, Size], Awaitable[Figure]]


async def _free(server: RedisServer, crew: Crew, size: Size) -> Figure:
    cost = await measures.uncontended(server, crew[0], operations=size.free)
    return Figure(cost.rate, cost.client)


async def _names(server: RedisServer, crew: Crew, size: Size) -> Figure:
    cost = await measures.many_names(server, crew[0], tasks=200, operations=size.names)
    return Figure(cost.rate, cost.client)


async def _crowd(server: RedisServer, crew: Crew, size: Size, *, tasks: int) -> Figure:
    times = size.crowd if tasks == 200 else size.twenty
    found = await measures.one_name(server, crew, tasks=tasks, times=times, limit=size.limit)
    return Figure(found.rate, found.client, overlaps(found.entries))


async def _of_one(server: RedisServer, crew: Crew, size: Size, *, tasks: int) -> Figure:
    return await _crowd(server, crew[:1], size, tasks=tasks)


MEASURES: Final[Mapping[str, Measure]] = {
    "free lock, one task": _free,
    "20 tasks, one name": partial(_of_one, tasks=20),
    "200 tasks, one name": partial(_of_one, tasks=200),
    "200 tasks, 200 names": _names,
    "2 processes of 20 tasks, one name": partial(_crowd, tasks=20),
}


class Found(NamedTuple):
    """The rounds of one contestant in one measure."""

    rates: list[float]
    clients: list[float]
    overlaps: list[int]


@dataclass
class Results:
    """All that was measured."""

    contestants: Sequence[Contestant]
    found: dict[tuple[Contestant, str], Found] = field(
        default_factory=dict[tuple[Contestant, str], Found]
    )

    def add(self, who: Contestant, what: str, figure: Figure) -> None:
        """Add a round."""
        rounds = self.found.setdefault((who, what), Found([], [], []))
        rounds.rates.append(figure.rate)
        rounds.clients.append(figure.client)
        rounds.overlaps.append(figure.overlaps)

    def rates(self) -> str:
        """The table of rates."""
        rows = [
            (what, *(table.amount(spread(self.found[who, what].rates)) for who in self.contestants))
            for what in MEASURES
        ]
        return table.markdown(("a second", *(who.title for who in self.contestants)), rows)

    def costs(self) -> str:
        """The table of processor time."""
        rows = [
            (
                what,
                *(table.amount(spread(self.found[who, what].clients)) for who in self.contestants),
            )
            for what in MEASURES
        ]
        return table.markdown(
            ("client CPU µs, each", *(who.title for who in self.contestants)), rows
        )

    def bars(self) -> str:
        """The ratios to the lock service on the same servers, and what they should be."""
        promised = [
            table.Bar(
                what,
                "× the lock service",
                limit,
                at_least=True,
                cells={
                    who.title.partition(", ")[2] + how: table.Measured(
                        ratios(self.found[who, what].rates, self.found[other, what].rates)
                    )
                    for who, *others in (ON_ONE, ON_THREE)
                    for other, how in zip(others, ("", ", by our connection"), strict=True)
                    if other in self.contestants
                },
            )
            for what, limit in BARS.items()
        ]
        return table.bars(promised)

    @property
    def overlaps(self) -> int:
        """How often two bodies were inside, in all rounds."""
        return sum(sum(each.overlaps) for each in self.found.values())


async def measure(size: Size, *, others: bool = True) -> str:
    """The tables; without ``others``: of those that need no environment of their own."""
    who_takes_part = [each for each in CONTESTANTS if others or not each.requirements]
    results = Results(who_takes_part)
    async with AsyncExitStack() as stack:
        server = stack.enter_context(RedisServer())
        where = machine.described(machine.environment(server))
        crews = await _crews(stack, who_takes_part)
        for what, measured in MEASURES.items():
            for _, who in in_turn(who_takes_part, size.rounds):
                results.add(who, what, await measured(server, crews[who], size))
                with contextlib.suppress(OSError):
                    print(".", end="", file=sys.stderr, flush=True)
    two_inside = f"Two inside, in all rounds of all contestants: {results.overlaps}."
    tables = results.bars(), results.rates(), results.costs()
    return "\n".join((where, "", *tables, two_inside, ""))


async def _crews(stack: AsyncExitStack, those: Sequence[Contestant]) -> dict[Contestant, Crew]:
    """The servers, and for each contestant its processes."""
    one, three = [stack.enter_context(EtcdServer(n, flushed=True)) for n in (1, 3)]
    postgres = stack.enter_context(PostgresServer(("fsync=on",)))
    urls = {each: one.url() for each in ON_ONE} | {each: three.url() for each in ON_THREE}
    urls[IN_POSTGRES] = postgres.url("app")
    pythons, missing = await environments(those)
    if missing:
        raise SystemExit("\n".join(f"{who.title} {why}" for who, why in missing.items()))
    crews: dict[Contestant, Crew] = {}
    for who in those:
        entered = replace(who, settings={"url": urls[who]} if who in urls else {})
        crew = workers(entered, pythons[who], PROCESSES)
        crews[who] = await stack.enter_async_context(crew)
    return crews


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick = parser.parse_args().quick
    tables = asyncio.run(measure(QUICK if quick else FULL))
    if not quick:
        (RESULTS / "full" / "etcd.md").write_text(tables, encoding="utf-8")
    print(tables)
