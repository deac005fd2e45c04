"""The promises of the design, and what became of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.catalogue import AIOLOCK, FLOOR, PEERS, REDIS_PY, SET_AND_DEL, Contestant
from benchmarks.contest import Record
from benchmarks.measures import Holding, Waiting
from benchmarks.rounds import ratios, spread
from benchmarks.table import Bar, amount, number


@dataclass(frozen=True)
class Ours:
    """What is measured of aiolock alone."""

    lone_waiter: float
    """Commands a second of a process whose only waiter waits."""
    holding: Holding
    leases: int
    watched: float
    """Seconds for which they were held and watched."""
    lines: list[Waiting] = field(default_factory=list[Waiting])
    """Queues of different lengths."""


def promises(records: Mapping[Contestant, Record], ours: Ours | None = None) -> list[Bar]:
    """A bar for each promise of which something was measured."""
    bars = [*_free(records), *_wanted(records), *_shared(records)]
    if ours is not None:
        bars += _idle(ours)
    return bars


def _figures(
    records: Mapping[Contestant, Record], contestant: Contestant, name: str
) -> Sequence[float]:
    record = records.get(contestant)
    return record.figures.get(name, []) if record else []


def _free(records: Mapping[Contestant, Record]) -> Iterator[Bar]:
    alone = _figures(records, AIOLOCK, "alone.us")
    bare = _figures(records, SET_AND_DEL, "alone.us")
    floor = _figures(records, FLOOR, "alone.floor.us")
    what = "uncontended acquire + release, one task"
    if alone and bare:
        yield Bar(
            what,
            ratios(alone, bare),
            "× bare `SET NX PX` + `DEL`",
            0.9,
            at_least=False,
            beside=f"{_median(alone)} against {_median(bare)} µs",
        )
    if alone and floor:
        yield Bar(
            what,
            ratios(alone, [2 * one for one in floor]),
            "× two round trips in C",
            2,
            at_least=False,
            beside=f"one in C takes {_median(floor)} µs",
        )
    names = _figures(records, AIOLOCK, "names.rate")
    theirs = _figures(records, REDIS_PY, "names.rate")
    if names and theirs:
        yield Bar(
            "200 tasks on 200 names, one process",
            ratios(names, theirs),
            "× redis-py `Lock`",
            8,
            at_least=True,
            beside=f"{_median(names)} against {_median(theirs)} a second",
        )


def _wanted(records: Mapping[Contestant, Record]) -> Iterator[Bar]:
    rate = _figures(records, AIOLOCK, "crowd200.rate")
    theirs = _figures(records, REDIS_PY, "crowd200.rate")
    what = "hand-offs per second, 200 tasks on one name"
    if rate and theirs:
        yield Bar(
            what,
            ratios(rate, theirs),
            "× redis-py `Lock`",
            50,
            at_least=True,
            beside=f"{_median(rate)} against {_median(theirs)}",
        )
    fastest = _fastest(records)
    if rate and fastest:
        theirs = _figures(records, fastest, "crowd200.rate")
        yield Bar(
            what,
            ratios(rate, theirs),
            "× the fastest peer",
            1.5,
            at_least=True,
            beside=f"{fastest.title}: {_median(theirs)}",
        )
    chain = _figures(records, AIOLOCK, "chain.us")
    floor = _figures(records, FLOOR, "chain.floor.us")
    if chain and floor:
        hop = _figures(records, FLOOR, "chain.hop.us")
        yield Bar(
            "hand-off, release sent to next body entered, two processes",
            ratios(chain, floor),
            "× one round trip in C",
            2.5,
            at_least=False,
            beside=f"{_median(chain)} against {_median(floor)} µs; a hop of a bare pub/sub"
            f" ping-pong takes {_median(hop)} µs",
        )
    ours = records[AIOLOCK].figures if AIOLOCK in records else {}
    crowds = [name for name in ours if name.startswith("crowd") and name.endswith(".inverted")]
    if crowds:
        yield Bar(
            "order",
            spread([sum(sum(ours[name]) for name in crowds)]),
            "inversions against the order of arrival",
            0,
            at_least=False,
            beside=f"in {len(ours[crowds[0]])} rounds of {len(crowds)} crowds",
        )
    if "commands.wanted" in ours:
        yield Bar(
            "commands per contended acquire + release",
            spread(ours["commands.wanted"]),
            "",
            2,
            at_least=False,
        )
    if "crowd200.connections" in ours:
        yield Bar(
            "connections per process",
            spread([max(ours["crowd200.connections"])]),
            "",
            2,
            at_least=False,
        )


def _shared(records: Mapping[Contestant, Record]) -> Iterator[Bar]:
    inside = _figures(records, AIOLOCK, "semaphore.inside")
    if not inside:
        return
    ours = records[AIOLOCK].figures
    permits = ours["semaphore.permits"][0]
    what = f"a semaphore of {permits:.0f}, 50 tasks"
    yield Bar(
        f"{what}: most inside at once",
        spread([max(inside)]),
        "",
        permits,
        at_least=False,
        beside="as many as there are permits, or they were not all used",
    )
    yield Bar(
        f"{what}: order",
        spread([sum(ours["semaphore.inverted"])]),
        "inversions against the order of arrival",
        0,
        at_least=False,
        beside=f"in {len(inside)} rounds",
    )
    yield Bar(
        f"{what}: commands per acquire + release",
        spread(ours["semaphore.commands"]),
        "",
        2,
        at_least=False,
    )


def _fastest(records: Mapping[Contestant, Record]) -> Contestant | None:
    rates = {
        peer: spread(figures).median
        for peer in PEERS
        if peer.module != REDIS_PY.module and (figures := _figures(records, peer, "crowd200.rate"))
    }
    return max(rates, key=rates.__getitem__, default=None)


def _idle(ours: Ours) -> Iterator[Bar]:
    yield Bar(
        "commands per waiting second of an idle waiter",
        spread([ours.lone_waiter]),
        "",
        0.1,
        at_least=False,
        beside="the only one of its process, watched for"
        f" {number(ours.watched)} s: many waiters share what their client sends",
    )
    held = ours.holding
    yield Bar(
        f"{number(ours.leases)} leases held by one process, ttl 30 s",
        spread([100 * held.busy]),
        "% of a core",
        10,
        at_least=False,
        beside=f"{held.tasks} tasks, {number(held.commands * 10)} commands in 10 s, in which all"
        f" are renewed; {number(100 * held.server_busy)} % of the server's core",
    )
    yield Bar(
        f"{number(ours.leases)} leases held by one process, ttl 30 s",
        spread([float(held.tasks)]),
        "tasks",
        1,
        at_least=False,
    )
    if not ours.lines:
        return
    short, long = ours.lines[0], ours.lines[-1]
    for move in short.moves:
        few = [cost.wall for cost in short.moves[move]]
        many = [cost.wall for cost in long.moves[move]]
        yield Bar(
            f"{number(long.length)} waiters on one name: {move}",
            ratios(many, few),
            f"× its cost at {number(short.length)}",
            2,
            at_least=False,
            beside=f"{amount(spread(many))} against {amount(spread(few))} µs",
        )


def _median(values: Sequence[float]) -> str:
    return number(spread(values).median)
