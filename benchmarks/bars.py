"""The promises of the design, and the results: on each loop, with cores that may sleep or not."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.catalogue import (
    AIOLOCK,
    FLOOR,
    PEERS,
    REDIS_PY,
    SET_AND_DEL,
    UNCONFIRMED,
    Contestant,
    on_uvloop,
)
from benchmarks.contest import Record
from benchmarks.ours import Ours
from benchmarks.rounds import ratios, spread
from benchmarks.table import Bar, Measured, amount, number

CROWDS = (5, 20, 200)
"""The crowds for which the design promises a figure."""


@dataclass(frozen=True)
class Column:
    """One measurement of all promises: on one loop, with cores that may sleep or not."""

    title: str
    records: Mapping[Contestant, Record]
    ours: Ours | None = None
    loop: str = "asyncio"

    def on_loop(self, contestant: Contestant) -> Contestant:
        """The contestant on the loop of this column; the floor is the same for all."""
        if contestant is FLOOR or contestant.loop == self.loop:
            return contestant
        return on_uvloop(contestant)

    def figures(self, contestant: Contestant, name: str) -> Sequence[float]:
        """The figures of the rounds, on the loop of this column; none if they were not measured."""
        record = self.records.get(self.on_loop(contestant))
        return record.figures.get(name, []) if record else []

    def fastest(self, name: str) -> Contestant | None:
        """The peer with the highest figure of this name; redis-py's lock has bars of its own."""
        rates = {
            peer: spread(figures).median
            for peer in PEERS
            if peer.module != REDIS_PY.module and (figures := self.figures(peer, name))
        }
        return max(rates, key=rates.__getitem__, default=None)


@dataclass(frozen=True)
class Promise:
    """A row of the design's table of figures."""

    what: str
    unit: str
    limit: float
    at_least: bool
    measure: Callable[[Column], Measured | None]
    """The figure in one column; None if it was not measured there."""


def through(
    column: Column, name: str, ours: Contestant, theirs: Contestant, their_name: str = ""
) -> Measured | None:
    """A figure of aiolock divided by that of a peer, round by round."""
    one = column.figures(ours, name)
    other = column.figures(theirs, their_name or name)
    if not one or not other:
        return None
    return Measured(ratios(one, other), f"{_median(one)} : {_median(other)}")


def through_fastest(column: Column, name: str, crowd: str) -> Measured | None:
    """A figure of aiolock divided by that of the fastest peer in this crowd."""
    fastest = column.fastest(f"{crowd}.rate")
    measured = fastest and through(column, f"{crowd}.{name}", AIOLOCK, fastest)
    if not fastest or not measured:
        return None
    return Measured(measured.spread, f"{measured.beside} {fastest.title}")


def order(column: Column, contestant: Contestant = AIOLOCK) -> Measured | None:
    """Pairs, in all crowds of one process, that entered in another order than they came."""
    record = column.records.get(column.on_loop(contestant))
    inverted = [
        figures
        for name, figures in (record.figures if record else {}).items()
        if name.startswith(("crowd", "yielding")) and name.endswith(".inverted")
    ]
    if not inverted:
        return None
    beside = f"{len(inverted)} crowds in {len(inverted[0])} rounds"
    return Measured(spread([sum(map(sum, inverted))]), beside)


def highest(column: Column, contestant: Contestant = AIOLOCK, *, name: str) -> Measured | None:
    """The highest figure of its rounds."""
    figures = column.figures(contestant, name)
    return Measured(spread([max(figures)])) if figures else None


def commands(column: Column, tasks: int) -> Measured | None:
    """The commands that so many tasks of one process send."""
    sent = column.ours and column.ours.commands.get(tasks)
    return Measured(spread([sent])) if sent else None


def lone_waiter(column: Column) -> Measured | None:
    """The commands of a process whose only waiter waits."""
    if column.ours is None:
        return None
    return Measured(spread([column.ours.lone_waiter]), f"for {number(column.ours.watched)} s")


def holding(column: Column) -> Measured | None:
    """The needs of a process that holds many leases."""
    if column.ours is None:
        return None
    held = column.ours.holding
    return Measured(
        spread([100 * held.busy]),
        f"{held.tasks} tasks, {number(held.commands * 10)} commands in 10 s",
    )


def move(column: Column, what: str) -> Measured | None:
    """The cost of a move in the longest queue, divided by that in the shortest."""
    if column.ours is None or not column.ours.lines:
        return None
    few, many = (
        [cost.wall for cost in line.moves[what]]
        for line in (column.ours.lines[0], column.ours.lines[-1])
    )
    return Measured(ratios(many, few), f"{amount(spread(many))} : {amount(spread(few))} µs")


def restarted(column: Column) -> Measured | None:
    """The cost of a restart for a waiter of a long queue, divided by that of a short queue."""
    if column.ours is None or not column.ours.restarted:
        return None
    (_, few), *_, (_, many) = sorted(column.ours.restarted.items())
    return Measured(ratios(many, few), f"{amount(spread(many))} : {amount(spread(few))} µs")


_FREE = "free lock, one task: acquire + release"
_HANDED = "hand-offs a second, one name,"
_SENT = "commands per acquire + release, one name,"
_FASTEST = "× the fastest peer"


def _hand_offs(crowd: str) -> Callable[[Column], Measured | None]:
    return partial(through_fastest, name="rate", crowd=crowd)


PROMISES = (
    Promise(
        _FREE,
        "× bare `SET NX PX` + `DEL`",
        0.9,
        at_least=False,
        measure=partial(through, name="alone.us", ours=AIOLOCK, theirs=SET_AND_DEL),
    ),
    Promise(
        f"{_FREE}, `confirm=False`",
        "× bare `SET NX PX` + `DEL`",
        0.7,
        at_least=False,
        measure=partial(through, name="alone.us", ours=UNCONFIRMED, theirs=SET_AND_DEL),
    ),
    Promise(
        "200 tasks on 200 names, a second (aim: 8)",
        "× redis-py `Lock`",
        6,
        at_least=True,
        measure=partial(through, name="names.rate", ours=AIOLOCK, theirs=REDIS_PY),
    ),
    Promise(f"{_HANDED} 200 tasks", _FASTEST, 3, at_least=True, measure=_hand_offs("crowd200")),
    Promise(
        f"{_HANDED} 200 tasks",
        "× redis-py `Lock`",
        100,
        at_least=True,
        measure=partial(through, name="crowd200.rate", ours=AIOLOCK, theirs=REDIS_PY),
    ),
    Promise(f"{_HANDED} 20 tasks", _FASTEST, 1.8, at_least=True, measure=_hand_offs("crowd20")),
    Promise(f"{_HANDED} 5 tasks", _FASTEST, 1.2, at_least=True, measure=_hand_offs("crowd5")),
    Promise(
        f"{_HANDED} 4 processes × 50 tasks",
        _FASTEST,
        2.5,
        at_least=True,
        measure=_hand_offs("processes"),
    ),
    Promise(
        "hand-off between two processes, leaving to entering",
        "× a bare hop",
        2.5,
        at_least=False,
        measure=partial(
            through, name="chain.us", ours=AIOLOCK, theirs=FLOOR, their_name="chain.hop.us"
        ),
    ),
    Promise("order", "inversions", 0, at_least=False, measure=order),
    *(
        Promise(
            f"{_SENT} {tasks} tasks",
            "",
            limit,
            at_least=False,
            measure=partial(commands, tasks=tasks),
        )
        for tasks, limit in ((2, 2), (4, 1.25), (50, 1.25))
    ),
    Promise(
        "server CPU per acquire + release, one name, 200 tasks",
        _FASTEST,
        1,
        at_least=False,
        measure=partial(through_fastest, name="server.us", crowd="crowd200"),
    ),
    Promise("commands a second of an idle waiter", "", 0.1, at_least=False, measure=lone_waiter),
    Promise(
        "connections of a process",
        "",
        2,
        at_least=False,
        measure=partial(highest, name="crowd200.connections"),
    ),
    Promise(
        "10,000 leases of 30 s held by one process",
        "% of a core",
        2,
        at_least=False,
        measure=holding,
    ),
    *(
        Promise(
            f"10,000 waiters on one name: {what}",
            "× its cost at 100",
            1.5,
            at_least=False,
            measure=partial(move, what=what),
        )
        for what in ("enqueue", "cancel", "grant")
    ),
    Promise(
        "10,000 waiters on one name, the server restarted and empty: until all are through, each",
        "× its cost at 1,000",
        1.5,
        at_least=False,
        measure=restarted,
    ),
)


def promises(columns: Sequence[Column]) -> list[Bar]:
    """A bar for each promise that was measured."""
    return list(_bars(columns))


def _bars(columns: Sequence[Column]) -> Iterator[Bar]:
    for promise in PROMISES:
        cells = {
            column.title: measured
            for column in columns
            if (measured := promise.measure(column)) is not None
        }
        if cells:
            yield Bar(promise.what, promise.unit, promise.limit, promise.at_least, cells)


def _median(values: Sequence[float]) -> str:
    return number(spread(values).median)
