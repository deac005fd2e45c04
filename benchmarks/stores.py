"""The stores compared with each other, and with locks that need no server of their own.

    python benchmarks/stores.py [--quick]

Measured are a free lock, many tasks and several processes on one name, and hand-offs between two
processes: on Redis, in an SQLite file, in PostgreSQL and MariaDB, and with filelock, the databases'
own locks, a table of leases, and bare statements. Of PostgreSQL also what a vacuum, an open
transaction and a notification cost. Writes the tables of a full run, as Markdown, into
`benchmarks/results/full/`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import (
    bare,
    database_scenarios,
    environments,
    machine,
    report,
    scenarios,
    table,
)
from benchmarks.bars import Column, highest, order, through
from benchmarks.catalogue import (
    AIOLOCK,
    DLOCK,
    FILELOCK,
    GET_LOCK,
    LEASE_ROW,
    PG_ADVISORY,
    Contestant,
)
from benchmarks.contest import Record, Team, contest, cores_apart, teams
from benchmarks.databases import Servers
from benchmarks.run import RESULTS
from benchmarks.scenarios import Scenario, Size
from benchmarks.table import Bar, Measured

FULL = replace(
    scenarios.FULL,
    rounds=5,
    operations=1500,
    each=25,
    crowds={5: 600, 20: 250, 200: 40},
    yielding=(20, 1000),
    waits=30,
    lines=(200,),
    watch=30,
)
QUICK = replace(
    scenarios.QUICK,
    rounds=2,
    yielding=(20, 50),
    lines=(200,),
    watch=3,
    patience=30,  # on a busy machine 400 commits, each of them flushed, take longer than 5 s
)
ON_REDIS = replace(AIOLOCK, title="aiolock on Redis")
IN_A_FILE = replace(AIOLOCK, title="aiolock on SQLite", remark="in a file, by threads")
IN_POSTGRES = replace(AIOLOCK, title="aiolock on PostgreSQL", remark="as it comes: `durable=1`")
UNFLUSHED = replace(AIOLOCK, title="aiolock on PostgreSQL, `durable=0`", remark="not flushed")
IN_MARIADB = replace(AIOLOCK, title="aiolock on MariaDB", remark="as it comes, by threads")
POLLING = replace(AIOLOCK, title="aiolock on MariaDB, polling", remark="`doorbell=poll`: 50 ms")
OURS = (ON_REDIS, IN_A_FILE, IN_POSTGRES, UNFLUSHED, IN_MARIADB)
THEIRS = (FILELOCK, PG_ADVISORY, DLOCK, LEASE_ROW, GET_LOCK)
STATEMENTS = (*bare.ON_POSTGRES, *bare.ON_MARIADB)
AT_LEAST = (
    *(ON_REDIS, IN_A_FILE, UNFLUSHED, IN_MARIADB),
    *(bare.TWO_TRIPS, bare.NOT_NOTIFIED, bare.NOTIFIED),
)
"""Those that take part also where there must be little to do."""


class Part(NamedTuple):
    """Some scenarios, and who takes part in them."""

    scenarios: Sequence[Scenario]
    who: Collection[Contestant]
    once: bool = False
    """Whether in one round only: what is counted, not timed, is the same in each."""


PARTS = (
    Part(
        scenarios.FREE,
        (*OURS, *THEIRS, *(each for each in STATEMENTS if each not in bare.WRITERS)),
    ),
    Part((*scenarios.CROWDS, *scenarios.CHAIN), (*OURS, *THEIRS)),
    Part((Scenario(scenarios.quiet),), (*OURS, *THEIRS, POLLING)),
    Part((Scenario(database_scenarios.writers, waits=False),), bare.WRITERS),
    Part(
        (Scenario(database_scenarios.vacuumed), Scenario(database_scenarios.snapshots)),
        (UNFLUSHED,),
    ),
    Part((Scenario(database_scenarios.waiting),), (IN_POSTGRES, IN_MARIADB, POLLING), once=True),
)


class Promise(NamedTuple):
    """A limit for figures of aiolock: for each of ``ours``, how it is measured."""

    what: str
    unit: str
    limit: float
    ours: tuple[Contestant, ...]
    measure: Callable[[Column, Contestant], Measured | None]
    at_least: bool = False


def _less(  # noqa: PLR0917  # in the order in which one reads it
    what: str,
    figure: str,
    ours: Contestant,
    theirs: Contestant,
    limit: float,
    their_figure: str = "",
) -> Promise:
    """A time that is at most so many times that of another."""

    def measure(column: Column, ours: Contestant) -> Measured | None:
        return through(column, figure, ours, theirs, their_figure)

    return Promise(what, f"× {theirs.title}", limit, (ours,), measure)


def _more(what: str, figure: str, ours: Contestant, theirs: Contestant, limit: float) -> Promise:
    """A rate that is at least so many times that of another."""
    return _less(what, figure, ours, theirs, limit)._replace(at_least=True)


def _still(what: str, figure: str, before: str, limit: float) -> Promise:
    """A rate that is at least so much of what it was before."""
    kept = _less(what, figure, UNFLUSHED, UNFLUSHED, limit, before)
    return kept._replace(unit="× before", at_least=True)


def _at_most(what: str, unit: str, limit: float, figure: str, *ours: Contestant) -> Promise:
    """A number that is never higher."""
    return Promise(what, unit, limit, ours, partial(highest, name=figure))


_FREE = "free lock, one task: acquire + release"
_NAMES = "200 tasks, 200 names, a second"
_QUIET = "hand-off between two processes, after a quiet while"
_RATE = "hand-offs a second, 200 tasks of one process"
_SHARED_RATE = "hand-offs a second, 4 processes of 50 tasks"
_VACUUM = "hand-offs a second after a VACUUM ANALYZE"
_SNAPSHOT = "hand-offs a second, a transaction open for 10 s"
_SENT = "statements a second of a process, while 200 of its tasks wait"
PROMISES = (
    _less(_FREE, "alone.us", IN_A_FILE, ON_REDIS, 2),
    _less(_QUIET, "quiet.us", IN_A_FILE, ON_REDIS, 2),
    _less(_FREE, "alone.us", UNFLUSHED, bare.TWO_TRIPS, 2.5),
    _more(_NAMES, "names.rate", IN_POSTGRES, bare.A_SYNC_EACH, 4),
    _more(_NAMES, "names.rate", IN_POSTGRES, bare.ASYNCPG_POOL, 3),
    _more(_RATE, "crowd200.handoffs", UNFLUSHED, PG_ADVISORY, 0.35),
    _more(_SHARED_RATE, "processes.handoffs", UNFLUSHED, PG_ADVISORY, 0.35),
    _more(_RATE, "crowd200.handoffs", UNFLUSHED, LEASE_ROW, 2),
    _less(_QUIET, "quiet.us", UNFLUSHED, ON_REDIS, 2),
    _less(_QUIET, "quiet.us", UNFLUSHED, PG_ADVISORY, 2),
    _still(f"{_VACUUM} of empty tables", "vacuum.after.rate", "vacuum.before.rate", 0.8),
    _still(f"{_VACUUM} of bloated tables", "vacuum.bloated.rate", "vacuum.before.rate", 0.8),
    _at_most("full scans of a table after that", "", 0, "vacuum.scans", UNFLUSHED),
    _still(
        f"{_SNAPSHOT} in another database",
        "snapshot.elsewhere.rate",
        "snapshot.elsewhere.before.rate",
        0.9,
    ),
    _more(
        f"commits a second of {database_scenarios.WRITERS} writers, `commit_delay={bare.DELAY}`",
        "writers.rate",
        bare.NOTIFIED,
        bare.NOT_NOTIFIED,
        0.7,
    ),
    _more(_NAMES, "names.rate", IN_MARIADB, bare.IN_A_ROW, 3),
    _more(_NAMES, "names.rate", IN_MARIADB, bare.PROCEDURES, 3),
    _less(_QUIET, "quiet.us", IN_MARIADB, POLLING, 1 / 8),
    _less(_QUIET, "quiet.us", IN_MARIADB, bare.BARE_INSERT, 5, "alone.us"),
    _at_most(_SENT, "", 0.2, "waiting.statements", IN_POSTGRES, IN_MARIADB),
    _at_most(_SENT, "", 20, "waiting.statements", POLLING),
    _at_most(
        "connections, 200 tasks of one process",
        "",
        2,
        "crowd200.connections",
        *(IN_POSTGRES, IN_MARIADB),
    ),
    Promise("order", "inversions", 0, OURS[1:], order),
)
"""See `docs/stores/`. One bar of the design has no row: 1.5 times the hand-offs of a prototype, not
kept, that loaded and saved whole lines in PostgreSQL. MariaDB's store works that way."""


def contestants(servers: Servers, folder: Path, *, others: bool) -> dict[Contestant, Contestant]:
    """The contestants above, with their targets: files in this folder, and these servers."""
    postgres, mariadb = servers.postgres, servers.mariadb
    ours: dict[Contestant, dict[str, object]] = {
        ON_REDIS: {},
        IN_A_FILE: {"url": f"sqlite:///{folder}/locks.db"},
        IN_POSTGRES: {"url": postgres.url("app")},
        UNFLUSHED: {"url": postgres.url("app", "?durable=0")},
        IN_MARIADB: {"url": mariadb.url("app")},
        POLLING: {"url": mariadb.url("app", "?doorbell=poll")},
    }
    theirs: dict[Contestant, dict[str, object]] = {
        FILELOCK: {"folder": str(folder)},
        PG_ADVISORY: {"url": postgres.url()},
        DLOCK: {"url": postgres.url().replace("://", "+psycopg://")},
        LEASE_ROW: {"url": postgres.url()},
        GET_LOCK: {"port": mariadb.port},
    }
    return {
        each: replace(each, settings=each.settings | target)
        for each, target in (ours | theirs | bare.targets(servers)).items()
        if others or each in AT_LEAST
    }


def bars(records: Mapping[Contestant, Record]) -> list[Bar]:
    """The promises, and the measured figures."""
    column = Column("measured", records)
    return [
        Bar(f"{ours.title}: {what}", unit, limit, at_least, {column.title: measured})
        for what, unit, limit, each_of_ours, measure, at_least in PROMISES
        for ours in each_of_ours
        if (measured := measure(column, ours)) is not None
    ]


def disturbed(records: Mapping[Contestant, Record]) -> str:
    """What the bars of databases are made of, and what no bar is about."""
    rate = "hand-offs a second"
    return "\n".join(
        (
            report.columns(
                records,
                f"20 tasks on one name, {rate}",
                (
                    ("before", "vacuum.before.rate"),
                    ("after a VACUUM ANALYZE of empty tables", "vacuum.after.rate"),
                    ("… of tables bloated under a snapshot", "vacuum.bloated.rate"),
                    ("full scans", "vacuum.scans"),
                ),
            ),
            report.columns(
                records,
                f"20 tasks on one name, {rate}",
                (
                    ("before", "snapshot.elsewhere.before.rate"),
                    ("a snapshot held in another database", "snapshot.elsewhere.rate"),
                    ("before", "snapshot.here.before.rate"),
                    ("… in the same database", "snapshot.here.rate"),
                ),
            ),
            report.columns(
                records,
                f"{database_scenarios.WRITERS} writers, `commit_delay={bare.DELAY}`",
                (("commits a second", "writers.rate"), ("server CPU µs", "writers.server.us")),
            ),
            report.columns(
                records,
                "200 tasks of a process wait, and nothing happens",
                (("statements a second", "waiting.statements"),),
            ),
        )
    )


async def _contest(
    server: Servers, entered: Mapping[Contestant, Team], size: Size, part: Part
) -> None:
    taking_part = {each: entered[each] for each in part.who if each in entered}
    rounds = 1 if part.once else size.rounds
    await contest(server, taking_part, part.scenarios, rounds=rounds, tell=True)


async def measure(size: Size, *, others: bool = True) -> str:
    """The bars and the tables; without ``others``: of those in `AT_LEAST` only."""
    with Servers() as server, tempfile.TemporaryDirectory(prefix="aiolock-") as folder:
        where = machine.environment(server)
        bare.prepare(server)
        taking_part = contestants(server, Path(folder), others=others)
        pythons, missing = await environments.environments(taking_part.values())
        server.keep_to({max(os.sched_getaffinity(0))})
        async with teams(pythons, size) as started:
            entered = {
                each: started[configured]
                for each, configured in taking_part.items()
                if configured in started
            }
            with cores_apart(server, started):
                for part in PARTS:
                    await _contest(server, entered, size, part)
            records = {each: team.record for each, team in entered.items()}
    promised = bars(records)
    return "\n".join(
        (
            f"{machine.described(where)}\n",
            table.bars(promised),
            table.beside(promised),
            report.free(records),
            report.crowds(records),
            report.handoffs(records),
            disturbed(records),
            report.failures(records, missing),
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    quick = parser.parse_args().quick
    tables = asyncio.run(measure(QUICK if quick else FULL))
    if not quick:
        (RESULTS / "full" / "stores.md").write_text(tables, encoding="utf-8")
    print(tables)
