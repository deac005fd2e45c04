"""The tables: a line for each contestant, a column for each figure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter

from benchmarks.catalogue import AIOLOCK, FLOOR, Contestant
from benchmarks.contest import Record
from benchmarks.ours import Ours
from benchmarks.rounds import quantile, ratios, spread
from benchmarks.table import amount, markdown, number

CROWDS = {
    "yielding": "50 tasks on one name, whose bodies await `sleep(0)`",
    "processes": "4 processes, 50 tasks each, on one name",
}
"""The tables of the scenarios that are more than a number of tasks."""
MOVES = ("enqueue", "cancel", "grant")
Records = Mapping[Contestant, Record]
Column = tuple[str, str] | tuple[str, str, float]
"""A heading and the name of its figure, with a factor for display."""


def _contestants(records: Records) -> Iterable[tuple[Contestant, Record]]:
    return ((each, record) for each, record in records.items() if each is not FLOOR)


def _cell(record: Record, column: Column) -> str:
    _, name, *factor = column
    rounds = record.figures.get(name)
    if not rounds:
        return "–"
    return amount(spread([figure * (factor[0] if factor else 1) for figure in rounds]))


def columns(records: Records, first: str, shown: Sequence[Column]) -> str:
    """A table of figures; a contestant with none of them is left out."""
    rows = [
        (contestant.title, *(_cell(record, column) for column in shown))
        for contestant, record in _contestants(records)
        if any(name in record.figures for _, name, *_ in shown)
    ]
    return markdown((first, *(heading for heading, *_ in shown)), rows)


def free(records: Records) -> str:
    """A free lock."""
    return columns(
        records,
        "a free lock",
        (
            ("acquire + release µs", "alone.us"),
            ("p95 µs", "alone.p95.us"),
            ("client CPU µs", "alone.client.us"),
            ("server CPU µs", "alone.server.us"),
            ("200 tasks, 200 names, a second", "names.rate"),
            ("client CPU µs", "names.client.us"),
            ("server CPU µs", "names.server.us"),
        ),
    )


def crowds(records: Records) -> str:
    """A lock that many tasks want: a table for each crowd."""
    names = dict.fromkeys(
        name.removesuffix(".rate")
        for _, record in _contestants(records)
        for name in record.figures
        if name.startswith(("crowd", *CROWDS)) and name.endswith(".rate")
    )
    return "\n".join(_crowd(records, name) for name in names)


def _crowd(records: Records, name: str) -> str:
    return columns(
        records,
        CROWDS.get(name) or f"tasks on one name: {name.removeprefix('crowd')}",
        (
            ("entries a second", f"{name}.rate"),
            ("hand-offs a second", f"{name}.handoffs"),
            *_waited(name),
            ("two inside", f"{name}.overlaps"),
        ),
    )


def _waited(name: str) -> tuple[Column, ...]:
    return (
        ("came through %", f"{name}.through", 100),
        ("waited p50 ms", f"{name}.waited.p50.ms"),
        ("p95 ms", f"{name}.waited.p95.ms"),
        ("p99 ms", f"{name}.waited.p99.ms"),
        ("overtaken %", f"{name}.overtaken", 100),
        ("inversions %", f"{name}.inversions", 100),
        ("client CPU µs", f"{name}.client.us"),
        ("server CPU µs", f"{name}.server.us"),
        ("connections", f"{name}.connections"),
    )


def semaphores(records: Records) -> str:
    """A semaphore that many tasks want, a free one, and the ratios of both."""
    wanted = columns(
        records,
        "a semaphore of 5, 50 tasks",
        (
            ("entries a second", "semaphore.rate"),
            *_waited("semaphore"),
            ("commands", "semaphore.commands"),
            ("most inside", "semaphore.inside"),
            ("free: acquire + release µs", "semaphore.free.us"),
            ("free: p95 µs", "semaphore.free.p95.us"),
            ("free: client CPU µs", "semaphore.free.client.us"),
            ("free: server CPU µs", "semaphore.free.server.us"),
        ),
    )
    compared = through_theirs(
        records,
        "the same: aiolock’s through theirs",
        (
            ("entries a second", "semaphore.rate"),
            ("waited p50", "semaphore.waited.p50.ms"),
            ("waited p99", "semaphore.waited.p99.ms"),
            ("free: acquire + release", "semaphore.free.us"),
        ),
    )
    return f"{wanted}\n{compared}"


def through_theirs(records: Records, first: str, shown: Sequence[tuple[str, str]]) -> str:
    """A table of aiolock's figures divided by those of each other contestant, round by round."""
    ours = records[AIOLOCK].figures
    rows = [
        (
            contestant.title,
            *(
                amount(ratios(ours[name], record.figures[name]), "×")
                if ours.get(name) and record.figures.get(name)
                else "–"
                for _, name in shown
            ),
        )
        for contestant, record in _contestants(records)
        if contestant.module != AIOLOCK.module and any(name in record.figures for _, name in shown)
    ]
    return markdown((first, *(heading for heading, _ in shown)), rows)


def readers(records: Records) -> str:
    """The figures of tasks that read one name, relative to tasks with locks of their own."""
    return columns(
        records,
        "50 tasks",
        (
            ("readers of one name: entries a second", "readers.rate"),
            ("50 plain locks: entries a second", "readers.plain.rate"),
            ("readers through plain ×", "readers.ratio"),
        ),
    )


def handoffs(records: Records) -> str:
    """Hand-offs from one process to another: time, and commands."""
    return columns(
        records,
        "from one process to another",
        (
            ("out of a full queue µs", "chain.us"),
            ("after a quiet while µs", "quiet.us"),
            ("commands, free lock", "commands.free"),
            ("commands, wanted lock", "commands.wanted"),
        ),
    )


def idle(records: Records) -> str:
    """The cost of waiting and holding."""
    lines = dict.fromkeys(
        name.split(".")[0]
        for _, record in _contestants(records)
        for name in record.figures
        if name.startswith("queue")
    )
    moves = [
        (f"{move} at {line.removeprefix('queue')} µs", f"{line}.{move}.us")
        for line in lines
        for move in MOVES
    ]
    return columns(
        records,
        "waiting and holding",
        (
            ("commands a second per waiter", "waiter.commands"),
            ("client bytes per waiter", "waiter.client.bytes"),
            ("server bytes per waiter", "waiter.server.bytes"),
            *moves,
            ("client bytes per lease", "lease.client.bytes"),
            ("server bytes per lease", "lease.server.bytes"),
        ),
    )


def floors(records: Records) -> str:
    """The floors: figures that no lock can beat."""
    figures = records[FLOOR].figures
    rows = [
        ("PING, `redis-benchmark -c 1`, a client in C: a round trip", "floor.us"),
        ("PUBLISH to arrival, two processes, plain asyncio transports: a hop", "hop.us"),
    ]
    return markdown(
        ("floor", "µs", "lowest quartile of rounds", "highest"),
        (
            (what, *(number(quantile(values, share)) for share in (0.5, 0.25, 0.75)))
            for what, suffix in rows
            if (values := [v for n, each in figures.items() if n.endswith(suffix) for v in each])
        ),
    )


def failures(records: Records, missing: Mapping[Contestant, str] | None = None) -> str:
    """The contestants that failed, and why; nothing if none did."""
    rows = [
        *((each.title, "install", why) for each, why in (missing or {}).items()),
        *(
            (each.title, scenario, why)
            for each, record in records.items()
            for scenario, why in record.failures.items()
        ),
    ]
    return markdown(("did not come through", "what", "why"), rows) if rows else ""


def contestants(entered: Iterable[Contestant]) -> str:
    """The contestants and their settings."""
    return markdown(
        ("contestant", "how it waits"),
        ((each.title, each.remark) for each in entered if each is not FLOOR),
    )


def queues(measured: Mapping[str, Ours]) -> str:
    """The figures of aiolock alone: queues of different lengths, and many leases."""
    rows = [
        (
            column,
            f"{line.length:,}",
            *(
                amount(spread([figure(cost) for cost in line.moves[move]]))
                for move in MOVES
                for figure in (attrgetter("wall"), attrgetter("client"), attrgetter("server"))
            ),
            number(line.client),
            number(line.server),
        )
        for column, ours in measured.items()
        for line in ours.lines
    ]
    moves = [
        f"{move} {what}" for move in MOVES for what in ("µs", "client CPU µs", "server CPU µs")
    ]
    header = ("aiolock", "waiters", *moves, "client bytes each", "server bytes each")
    holding = markdown(
        ("aiolock", "leases held", "client bytes each", "server bytes each"),
        (
            (column, f"{ours.leases:,}", number(ours.holding.client), number(ours.holding.server))
            for column, ours in measured.items()
        ),
    )
    return f"{markdown(header, rows)}\n{holding}"
