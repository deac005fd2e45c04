"""The stores compared with each other, and with locks that need no server of their own.

    python benchmarks/stores.py [--quick]

Measured are a free lock, many tasks and several processes on one name, and hand-offs between two
processes: on Redis, in an SQLite file, in PostgreSQL and MariaDB, and with filelock, the databases'
own locks and a table of leases. Writes the tables of a full run, as Markdown, into
`benchmarks/results/full/`.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import environments, machine, report, scenarios, table
from benchmarks.bars import Column, through
from benchmarks.catalogue import (
    AIOLOCK,
    DLOCK,
    FILELOCK,
    GET_LOCK,
    LEASE_ROW,
    PG_ADVISORY,
    Contestant,
)
from benchmarks.contest import Record, contest, cores_apart, teams
from benchmarks.databases import Servers
from benchmarks.run import RESULTS
from benchmarks.scenarios import Size
from benchmarks.table import Bar

FULL = replace(scenarios.FULL, rounds=7, crowds={5: 600, 20: 250, 200: 40}, waits=30)
QUICK = replace(scenarios.QUICK, rounds=2)
ON_REDIS = replace(AIOLOCK, title="aiolock on Redis")
IN_A_FILE = replace(AIOLOCK, title="aiolock on SQLite", remark="in a file, by threads")
SCENARIOS = (
    *scenarios.FREE,
    *scenarios.CROWDS,
    *scenarios.CHAIN,
    scenarios.Scenario(scenarios.quiet),
)
IN_POSTGRES = replace(AIOLOCK, title="aiolock on PostgreSQL", remark="as it comes: `durable=1`")
UNFLUSHED = replace(AIOLOCK, title="aiolock on PostgreSQL, `durable=0`", remark="not flushed")
IN_MARIADB = replace(AIOLOCK, title="aiolock on MariaDB", remark="as it comes, by threads")


class Promise(NamedTuple):
    """A figure of aiolock divided by that of another lock, and the limit for it."""

    what: str
    figure: str
    ours: Contestant
    theirs: Contestant
    limit: float
    at_least: bool = False


_FREE = "free lock, one task: acquire + release"
_QUIET = "hand-off between two processes, after a quiet while"
_RATE = "hand-offs a second, 200 tasks of one process"
_SHARED_RATE = "hand-offs a second, 4 processes of 50 tasks"
PROMISES = (
    Promise(_FREE, "alone.us", IN_A_FILE, ON_REDIS, 2),
    Promise(_QUIET, "quiet.us", IN_A_FILE, ON_REDIS, 2),
    Promise(_RATE, "crowd200.rate", UNFLUSHED, PG_ADVISORY, 0.35, at_least=True),
    Promise(_SHARED_RATE, "processes.rate", UNFLUSHED, PG_ADVISORY, 0.35, at_least=True),
    Promise(_RATE, "crowd200.rate", UNFLUSHED, LEASE_ROW, 2, at_least=True),
    Promise(_QUIET, "quiet.us", UNFLUSHED, ON_REDIS, 2),
    Promise(_QUIET, "quiet.us", UNFLUSHED, PG_ADVISORY, 2),
)
"""See `docs/stores/`."""


def contestants(servers: Servers, folder: Path, *, others: bool) -> dict[Contestant, Contestant]:
    """The contestants above, with their targets: files in this folder, and these servers."""
    postgres, mariadb = servers.postgres, servers.mariadb
    ours: dict[Contestant, dict[str, object]] = {
        ON_REDIS: {},
        IN_A_FILE: {"url": f"sqlite://{folder}/locks.db"},
        IN_POSTGRES: {"url": postgres.url("app")},
        UNFLUSHED: {"url": postgres.url("app", "?durable=0")},
        IN_MARIADB: {"url": mariadb.url("app")},
    }
    theirs: dict[Contestant, dict[str, object]] = {
        FILELOCK: {"folder": str(folder)},
        PG_ADVISORY: {"url": postgres.url()},
        DLOCK: {"url": postgres.url().replace("://", "+psycopg://")},
        LEASE_ROW: {"url": postgres.url()},
        GET_LOCK: {"port": mariadb.port},
    }
    entered = ours | theirs if others else ours
    return {each: replace(each, settings=settings) for each, settings in entered.items()}


def bars(records: Mapping[Contestant, Record]) -> list[Bar]:
    """The promises, and the measured figures."""
    found: list[Bar] = []
    for promise in PROMISES:
        if promise.theirs not in records:
            continue
        title = promise.ours.title
        column = Column(title, records)
        measured = through(column, promise.figure, promise.ours, promise.theirs)
        found.append(
            Bar(
                promise.what,
                f"× {promise.theirs.title}",
                promise.limit,
                at_least=promise.at_least,
                cells={title: measured} if measured else {},
            )
        )
    return found


async def measure(size: Size, *, others: bool = True) -> str:
    """The bars and the tables; ``others``: with the other locks, too."""
    with Servers() as server, tempfile.TemporaryDirectory(prefix="aiolock-") as folder:
        where = machine.environment(server)
        taking_part = contestants(server, Path(folder), others=others)
        pythons, missing = await environments.environments(taking_part.values())
        server.keep_to({max(os.sched_getaffinity(0))})
        async with teams(pythons, size) as entered:
            with cores_apart(server, entered):
                await contest(server, entered, SCENARIOS, rounds=size.rounds, tell=True)
            records = {
                each: entered[configured].record
                for each, configured in taking_part.items()
                if configured in entered
            }
    promised = bars(records)
    return "\n".join(
        (
            f"{machine.described(where)}\n",
            table.bars(promised),
            table.beside(promised),
            report.free(records),
            report.crowds(records),
            report.handoffs(records),
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
