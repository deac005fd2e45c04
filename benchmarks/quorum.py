"""A lock over several servers: aiolock's quorum compared with Redlock, as written and as sold.

    python benchmarks/quorum.py [--quick]

All contestants run in turn, in processes and environments of their own. Measured are: a free lock;
a lock that twenty tasks want, of one client and of two; links of 10 ms, with one of 100 ms among
them; and a minority of the servers that is stopped, or killed, in the middle of a run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import shutil
import sys
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aiolock.stores.redis import _voting as voting
from benchmarks import catalogue, environments
from benchmarks.catalogue import AIOLOCK, Contestant
from benchmarks.crew import ROOT, PeerFailed, Worker, fresh_name, workers
from benchmarks.far import far_away
from benchmarks.measures import after_waiting
from benchmarks.redis_server import Tap, tapped
from benchmarks.rounds import Entry, handovers, in_turn, overlaps, overtaken, quantile
from benchmarks.run import PLOTS, RESULTS, draw, rounded
from tests.support.majorities import vouch
from tests.support.servers import RedisServer

TASKS: Final = 20
WAITERS: Final = 50
NEAR: Final = 10.0
"""Milliseconds of a round trip."""
FAR: Final = 100.0
"""Milliseconds of a round trip over a slow link."""
LONGEST: Final = 60.0
"""The ``longest_ttl`` for `aiolock.connect`, in seconds."""
_WARM: Final = 5
"""Operations over a long link that do not count: they open connections and set clocks."""
_LATER: Final = 2_000_000
"""A task that asked so many ns earlier was overtaken; less may be the way of two commands."""
_CALM: Final = 0.3
"""Seconds at the beginning that do not count."""
_SETTLED: Final = 1.0
"""Seconds after which all waiters stand in line."""


@dataclass(frozen=True)
class Subject:
    """A contestant with a number of servers."""

    contestant: Contestant
    servers: int = 3

    @property
    def title(self) -> str:
        """Its title in the tables and the plot."""
        many = "one server" if self.servers == 1 else f"{self.servers} servers"
        return f"{self.contestant.title}, {many}"

    @property
    def votes(self) -> bool:
        """Whether it is aiolock's quorum."""
        return self.contestant is AIOLOCK and self.servers > 1


def _peer(module: str, **settings: object) -> Subject:
    (known,) = [peer for peer in catalogue.PEERS if peer.module == module]
    return Subject(replace(known, settings=settings))


ALONE: Final = Subject(AIOLOCK, 1)
OURS: Final = Subject(AIOLOCK)
OF_FIVE: Final = Subject(AIOLOCK, 5)
PEERS: Final = (
    Subject(Contestant("Redlock on redis-py", "redlock")),
    _peer("pottery", timeout=0.1),
    Subject(Contestant("redlock-ng 2.0.4", "redlock_ng", ("redlock-ng==2.0.4", "hiredis"))),
    _peer("aioredlock"),
)
"""The libraries that can be told so wait 0.1 s for an answer, and stand still for as long."""
FAULTS: Final = ("stopped", "killed")


@dataclass(frozen=True)
class Size:
    """How much and how long to measure."""

    rounds: int
    operations: int
    far_operations: int
    crowd: float
    """Seconds of a crowd."""
    third: float
    """Seconds before, during and after a fault, each."""
    watch: float
    """Seconds for which the waiters are watched."""


FULL: Final = Size(rounds=5, operations=800, far_operations=20, crowd=2.0, third=3.0, watch=5.0)
QUICK: Final = Size(rounds=1, operations=200, far_operations=10, crowd=1.0, third=1.0, watch=2.0)


@dataclass
class Record:
    """The results of one subject."""

    figures: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    timelines: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """For each fault: the times of the entries, in seconds from the beginning."""
    failures: dict[str, str] = field(default_factory=dict[str, str])

    def add(self, name: str, figure: float) -> None:
        """Add the figures of one more round."""
        self.figures.setdefault(name, []).append(figure)

    def median(self, name: str) -> float | None:
        """The median of the rounds."""
        return quantile(self.figures[name], 0.5) if self.figures.get(name) else None


Crew = Sequence[Worker]
Servers = Sequence[RedisServer]
Measure = Callable[[Subject, Crew, Servers, Record, Size], Awaitable[None]]


def _url(servers: Servers) -> str:
    return ",".join(f"redis://127.0.0.1:{server.port}" for server in servers)


async def free(
    _: Subject,
    crew: Crew,
    servers: Servers,
    record: Record,
    size: Size,
) -> None:
    """One task takes a free lock and gives it back."""
    laps = await _laps(crew[0], _url(servers), size.operations)
    record.add("free.us", quantile(laps, 0.5) / 1e3)


async def _laps(worker: Worker, url: str, operations: int) -> list[float]:
    await worker.begin("one_task", url, name=fresh_name(), operations=operations)
    laps: list[float] = (await worker.go_on("done"))["laps"]
    await worker.finish()
    return laps


async def crowd(
    subject: Subject,
    crew: Crew,
    servers: Servers,
    record: Record,
    size: Size,
) -> None:
    """Many tasks want one lock: all of one process, and then half of them of another.

    With two processes, commands are counted in one more run, to find the raises: a server is told
    a fence that it does not know yet, before a task enters, which is one round trip more.
    """
    counted = await _counted(crew[:1], servers, size)
    record.add("crowd.rate", len(counted) / (size.crowd - _CALM))
    record.add("crowd.overtaken", overtaken(counted, margin=_LATER) / max(1, len(counted)))
    counted = await _counted(crew, servers, size)
    record.add("apart.rate", len(counted) / (size.crowd - _CALM))
    if subject.votes:
        with _tapped(servers) as taps:
            entries, _ = await _entries(crew, _url(servers), size.crowd)
        raises = sum(tap.scripts.get(voting.RENEW.digest, 0) for tap in taps)
        record.add("apart.raises", raises / max(1, handovers(entries)))


async def waiting(
    _: Subject,
    crew: Crew,
    servers: Servers,
    record: Record,
    size: Size,
) -> None:
    """Many tasks of one process wait for another that holds the lock, and none of them leaves."""
    holder, waiter = crew
    name, url = fresh_name(), _url(servers)
    await holder.begin("turns", url, name=name)
    holder.say(do="ask")
    await holder.hear("entered")
    await waiter.begin(
        *("one_name", url),
        at_once=WAITERS,
        name=name,
        tasks=WAITERS,
        times=1,
        limit=_SETTLED + size.watch + 1.0,
        body=None,
    )
    waiter.say()
    await asyncio.sleep(_SETTLED)
    with _tapped(servers) as taps:
        await asyncio.sleep(size.watch)
    if (await waiter.hear("done"))["entries"]:
        raise PeerFailed("somebody who was to wait has entered")
    await waiter.finish()
    holder.say(do="leave")
    await holder.hear("left")
    holder.say(do="end")
    await holder.hear("done")
    await holder.finish()
    record.add("waiting.commands", sum(tap.total for tap in taps) / size.watch)


@contextlib.contextmanager
def _tapped(servers: Servers) -> Iterator[list[Tap]]:
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(tapped(server.socket_path, partial(server.call, "ECHO")))
            for server in servers
        ]


async def _counted(crew: Crew, servers: Servers, size: Size) -> list[Entry]:
    """The entries of a crowd after the beginning."""
    entries, start = await _entries(crew, _url(servers), size.crowd)
    began = start + int(_CALM * 1e9)
    return [entry for entry in entries if entry.entered >= began]


async def _entries(crew: Crew, url: str, seconds: float) -> tuple[list[Entry], int]:
    """The entries of so many tasks in each of these processes, by process; and when they began."""
    tasks, name = TASKS // len(crew), fresh_name()
    for worker in crew:
        await worker.begin(
            *("one_name", url),
            at_once=tasks,
            name=name,
            tasks=tasks,
            times=1_000_000_000,
            limit=seconds,
            body=0.0,
        )
    start = time.monotonic_ns() + 20_000_000
    for worker in crew:
        worker.say(start=start)
    done = [await worker.hear("done") for worker in crew]
    for worker in crew:
        await worker.finish()
    entries = [
        Entry(entered, asked, left, str(place))
        for place, each in enumerate(done)
        for entered, asked, left, _ in each["entries"]
    ]
    return entries, max(each["start"] for each in done)


async def far(
    subject: Subject,
    crew: Crew,
    servers: Servers,
    record: Record,
    size: Size,
) -> None:
    """Links of 10 ms; then, with several servers, one of them takes 100."""
    ports = [server.port for server in servers]
    for what, ways in (
        ("near", [NEAR] * len(ports)),
        ("far", [FAR, *[NEAR] * (len(ports) - 1)]),
    ):
        if what == "far" and subject.servers == 1:
            continue
        async with far_away(ports, ways) as links:
            ready(servers, links)
            url = ",".join(f"redis://127.0.0.1:{port}" for port in links)
            laps = await _laps(crew[0], url, _WARM + size.far_operations)
            record.add(f"{what}.free.ms", quantile(laps[_WARM:], 0.5) / 1e6)
            passed = await after_waiting(url, crew, [0.2] * (_WARM + size.far_operations // 2))
            record.add(f"{what}.handoff.ms", quantile(passed[_WARM:], 0.5) / 1e3)


async def outages(
    subject: Subject,
    crew: Crew,
    servers: Servers,
    record: Record,
    size: Size,
) -> None:
    """A minority fails, and comes back: entries in each third, and the longest pause."""
    minority = servers[: (subject.servers - 1) // 2]
    third = size.third
    for fault in FAULTS:

        async def happen(fault: str = fault) -> None:
            await asyncio.sleep(third)
            for server in minority:
                await asyncio.to_thread(server.pause if fault == "stopped" else server.kill)
            await asyncio.sleep(third)
            for server in minority:
                await asyncio.to_thread(server.resume if fault == "stopped" else server.start)

        asked = asyncio.create_task(_entries(crew[:1], _url(servers), 3 * third))
        happening = asyncio.create_task(happen())
        try:
            entries, start = await asked
        finally:
            await happening
        record.add(f"{fault}.overlaps", overlaps(entries))
        times = sorted((entry.entered - start) / 1e9 for entry in entries)
        record.timelines[fault] = times
        before, during = (_CALM, third), (third, 2 * third)
        rates = [_rate(times, *span) for span in (before, during)]
        record.add(f"{fault}.kept", rates[1] / rates[0] if rates[0] else 0.0)
        record.add(f"{fault}.pause.ms", 1e3 * _longest_pause(times, *during))


def _rate(times: Sequence[float], begin: float, end: float) -> float:
    return sum(begin <= at < end for at in times) / (end - begin)


def _longest_pause(times: Sequence[float], begin: float, end: float) -> float:
    within = [begin, *(at for at in times if begin <= at < end), end]
    return max(after - before for before, after in itertools.pairwise(within))


MEASURES: Final[Mapping[str, Measure]] = {
    "free": free,
    "crowd": crowd,
    "waiting": waiting,
    "far": far,
    "outages": outages,
}


ONE_PROCESS: Final = {"free", "outages"}
"""What takes one process of the subject; the others take two."""


def applies(what: str, subject: Subject) -> bool:
    """Whether this is measured for this subject."""
    if what == "waiting":
        return subject.votes
    return what != "outages" or subject.servers > 1


async def measure(
    subjects: Sequence[Subject], pythons: Mapping[Contestant, Path], size: Size
) -> dict[Subject, Record]:
    """All measurements, with all subjects in turn."""
    records = {subject: Record() for subject in subjects}
    for what, measured in MEASURES.items():
        rounds = 1 if what in {"waiting", "far", "outages"} else size.rounds
        for number, subject in in_turn([each for each in subjects if applies(what, each)], rounds):
            print(f"{what}, round {number + 1}: {subject.title}", flush=True)
            try:
                with running(subject.servers) as servers:
                    python = pythons[subject.contestant]
                    count = 1 if what in ONE_PROCESS else 2
                    async with workers(subject.contestant, python, count, patience=90) as crew:
                        await measured(subject, crew, servers, records[subject], size)
            except PeerFailed as failure:
                records[subject].failures[what] = str(failure)
    return records


@contextlib.contextmanager
def running(count: int) -> Iterator[list[RedisServer]]:
    """A number of servers that know nothing of each other."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(RedisServer()) for _ in range(count)]
        ready(servers, [server.port for server in servers])
        yield servers


def ready(servers: Servers, ports: Sequence[int]) -> None:
    """Let the servers vote at once, for clients that find them at these ports.

    A server that was started less than a minute ago may have forgotten its votes, so it would give
    none. These servers have not been asked before.
    """
    if len(servers) > 1:
        vouch(servers, [f"redis://127.0.0.1:{port}" for port in ports], "aiolock", LONGEST)


COLUMNS: Final = {
    "free.us": "free lock, µs",
    "crowd.rate": "20 tasks, entries/s",
    "crowd.overtaken": "overtaken",
    "apart.rate": "10 tasks each of two clients, entries/s",
    "near.free.ms": "10 ms links: free lock, ms",
    "near.handoff.ms": "hand-off, ms",
    "far.free.ms": "one of 100 ms: free lock, ms",
    "far.handoff.ms": "hand-off, ms",
    "stopped.kept": "minority stopped: entries kept",
    "stopped.pause.ms": "longest pause, ms",
    "killed.kept": "minority killed: entries kept",
    "killed.pause.ms": "longest pause, ms",
    "killed.overlaps": "two inside",
}


def table(records: Mapping[Subject, Record]) -> list[str]:
    """The medians of all subjects."""
    lines = [f"| | {' | '.join(COLUMNS.values())} |", "| --- |" + " ---: |" * len(COLUMNS)]
    for subject, record in records.items():
        cells = [_cell(name, record.median(name)) for name in COLUMNS]
        lines.append(f"| {subject.title} | {' | '.join(cells)} |")
    lines += [
        f"\n{subject.title}, {what}: {why}"
        for subject, record in records.items()
        for what, why in record.failures.items()
    ]
    return lines


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "–"
    if name.endswith(("kept", "overtaken")):
        return f"{100 * value:.0f} %"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"  # three digits


@dataclass(frozen=True)
class Bar:
    """A promise, the measured figure, and whether that is enough."""

    what: str
    figure: float
    limit: float
    at_least: bool = False

    @property
    def reached(self) -> bool:
        """Whether the promise is kept."""
        return self.figure >= self.limit if self.at_least else self.figure <= self.limit

    def __str__(self) -> str:
        bound = "at least" if self.at_least else "at most"
        reached = "yes" if self.reached else "no"
        return f"| {self.what} | {self.figure:.2f} | {bound} {self.limit:g} | {reached} |"


def bars(records: Mapping[Subject, Record]) -> list[Bar]:
    """The promises for a quorum of three and of five, as far as they were measured."""
    alone, ours = records[ALONE], records[OURS]
    peers = [records[peer] for peer in records if peer.contestant is not AIOLOCK]

    def of(record: Record, name: str) -> float:
        value = record.median(name)
        return float("nan") if value is None else value

    def over(one: float, other: float) -> float:
        # In a short run on a machine that stands still, nobody may have entered.
        return one / other if other else float("nan")

    fastest = min((of(peer, "free.us") for peer in peers if peer.figures), default=float("nan"))
    found = [
        Bar("free lock, of one server's", over(of(ours, "free.us"), of(alone, "free.us")), 3.5),
        Bar("free lock, of the fastest Redlock's", over(of(ours, "free.us"), fastest), 0.6),
        Bar(
            "20 tasks: entries, of one server's",
            over(of(ours, "crowd.rate"), of(alone, "crowd.rate")),
            0.45,
            at_least=True,
        ),
        Bar("free lock on links of 10 ms, round trips", of(ours, "near.free.ms") / NEAR, 2.4),
        Bar(
            "… with one of them of 100 ms, of that",
            over(of(ours, "far.free.ms"), of(ours, "near.free.ms")),
            1.1,
        ),
        Bar("overtaken by who asked later, in %", 100 * of(ours, "crowd.overtaken"), 0.0),
    ]
    for subject in (each for each in (OURS, OF_FIVE) if each in records):
        record, many = records[subject], subject.servers
        found.append(
            Bar(
                f"hand-off on links of 10 ms, {many} servers, round trips",
                of(record, "near.handoff.ms") / NEAR,
                1.3,
            )
        )
        found += [
            Bar(
                f"raises for a hand-off between two clients, {many} servers, in %",
                100 * of(record, "apart.raises"),
                3,
            ),
            Bar(
                f"{WAITERS} wait at {many} servers and nobody leaves: commands/s",
                of(record, "waiting.commands"),
                5 * many,
            ),
        ]
        for fault in FAULTS:
            what = f"minority of {many} {fault}"
            found += [
                Bar(f"{what}: two inside", of(record, f"{fault}.overlaps"), 0),
                Bar(f"{what}: longest pause, ms", of(record, f"{fault}.pause.ms"), 50),
                Bar(f"{what}: entries kept", of(record, f"{fault}.kept"), 0.6, at_least=True),
            ]
    return found


def write(folder: Path, records: Mapping[Subject, Record], promised: Sequence[Bar]) -> list[str]:
    """The tables and the figures."""
    lines = [
        *table(records),
        "",
        "| | measured | bar | reached |",
        "| --- | ---: | ---: | --- |",
        *map(str, promised),
    ]
    figures: dict[str, Any] = {
        "subjects": {subject.title: asdict(record) for subject, record in records.items()},
        "bars": [asdict(bar) | {"reached": bar.reached} for bar in promised],
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "quorum.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
    text = json.dumps(rounded(figures), ensure_ascii=False)
    (folder / "quorum.json").write_text(text + "\n", encoding="utf-8")
    return lines


async def main(*, quick: bool) -> Path:
    """Measure, and print the tables."""
    subjects = (OURS, ALONE, OF_FIVE, *PEERS)
    contestants = dict.fromkeys(subject.contestant for subject in subjects)
    pythons, missing = await environments.environments(contestants)
    for contestant, why in missing.items():
        print(f"{contestant.title}: {why}")
    present = [subject for subject in subjects if subject.contestant in pythons]
    records = await measure(present, pythons, QUICK if quick else FULL)
    folder = RESULTS / ("quorum-quick" if quick else "quorum")
    for line in write(folder, records, bars(records)):
        print(line)
    return folder


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one short round")
    wanted_quick = parser.parse_args().quick
    results = asyncio.run(main(quick=wanted_quick))
    draw(results)
    if not wanted_quick:  # the docs show it
        for plot in results.glob("*.svg"):
            shutil.move(plot, PLOTS / plot.name)
    print(f"written to {results.relative_to(ROOT)}")
