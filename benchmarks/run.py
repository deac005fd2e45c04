"""All measurements, with every alternative that installs: `make bench`, or `make bench QUICK=1`.

    python benchmarks/run.py [--quick]

All is measured once with the cores as they are; then the figures that bars compare are measured
again with the cores kept awake. Writes the bars and tables as Markdown, the figures as JSON, and
plots as PNG into `benchmarks/results/`, and the plots of a full run as SVG into `docs/images/`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import cast

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bars, environments, machine, ours, report, scenarios, table
from benchmarks.bars import Column
from benchmarks.catalogue import (
    AIOLOCK,
    COMPARED,
    FLOOR,
    PEERS,
    SET_AND_DEL,
    UNCONFIRMED,
    Contestant,
    on_uvloop,
)
from benchmarks.contest import Record, Team, contest, cores_apart, teams
from benchmarks.crew import ROOT
from benchmarks.ours import Ours
from benchmarks.redis_server import RedisServer
from benchmarks.scenarios import FULL, QUICK, Size
from benchmarks.spinner import cores_awake

RESULTS = ROOT / "benchmarks" / "results"
PLOTS = ROOT / "docs" / "images"
AWAKE = ", cores awake"
"""The suffix of the titles of columns that were measured with a spinner."""
PLACES = 4
"""How many digits of a figure are kept."""


@dataclass(frozen=True)
class Measured:
    """The figures measured with the cores as they are, or with the cores kept awake."""

    records: Mapping[Contestant, Record]
    ours: Mapping[str, Ours]
    """For each loop, the measurements of aiolock alone."""

    def columns(self, remark: str = "") -> list[Column]:
        """The columns of the table of bars."""
        return [
            Column(f"{loop}{remark}", self.records, self.ours.get(loop), loop)
            for loop in ("asyncio", "uvloop")
        ]


@contextlib.asynccontextmanager
async def on_their_cores(
    server: RedisServer, pythons: Mapping[Contestant, Path], size: Size
) -> AsyncGenerator[dict[Contestant, Team]]:
    """The teams, with the server on a core of its own."""
    async with teams(pythons, size) as entered:
        with cores_apart(server, entered):
            yield entered


async def everything(
    server: RedisServer, pythons: Mapping[Contestant, Path], size: Size, *, quick: bool
) -> Measured:
    """All scenarios with all contestants."""
    async with on_their_cores(server, pythons, size) as entered:
        timed = (*scenarios.FREE, *scenarios.WANTED)
        await contest(server, entered, timed, rounds=size.rounds, tell=True)
        on_asyncio = {each: team for each, team in entered.items() if each.loop == "asyncio"}
        await contest(server, on_asyncio, scenarios.SHARED, rounds=size.rounds, tell=True)
        # Bytes and commands differ little from round to round.
        await contest(server, on_asyncio, scenarios.IDLE, rounds=1, tell=True)
        alone = await ours_alone(server, pythons, quick=quick)
        return Measured({each: team.record for each, team in entered.items()}, alone)


async def compared(
    server: RedisServer, pythons: Mapping[Contestant, Path], size: Size, *, quick: bool
) -> Measured:
    """The scenarios that bars compare, with the contestants that they compare."""
    wanted = (FLOOR, *COMPARED, *map(on_uvloop, COMPARED))
    present = {each: pythons[each] for each in wanted if each in pythons}
    crowds = {tasks: times for tasks, times in size.crowds.items() if tasks in bars.CROWDS}
    size = replace(size, crowds=crowds)
    async with on_their_cores(server, present, size) as entered:
        timed = (*scenarios.FREE, *scenarios.CROWDS)
        await contest(server, entered, timed, rounds=size.rounds, tell=True)
        handing_on = {
            each: team
            for each, team in entered.items()
            if each is FLOOR or each.module == AIOLOCK.module
        }
        await contest(server, handing_on, scenarios.CHAIN, rounds=size.rounds, tell=True)
        alone = {} if quick else await ours_alone(server, pythons, quick=quick)
        return Measured({each: team.record for each, team in entered.items()}, alone)


async def ours_alone(
    server: RedisServer, pythons: Mapping[Contestant, Path], *, quick: bool
) -> dict[str, Ours]:
    """The measurements of aiolock alone, on each loop; in a quick run, on one."""
    measured: dict[str, Ours] = {}
    for contestant in (AIOLOCK,) if quick else (AIOLOCK, on_uvloop(AIOLOCK)):
        print(f"{contestant.title}: 10,000 leases, 10,000 waiters", flush=True)
        measured[contestant.loop] = await ours.measure(
            server,
            contestant,
            pythons[contestant],
            watched=10.5 if quick else 31,  # the leases are renewed every 10 s
            rounds=3 if quick else 25,
        )
    return measured


async def measure(size: Size, *, quick: bool) -> Path:
    """Run all measurements; returns the folder with the results."""
    began = time.monotonic()
    print("environments of the peers", flush=True)
    pythons, missing = await environments.environments(
        (FLOOR, AIOLOCK, UNCONFIRMED, SET_AND_DEL, *PEERS, *map(on_uvloop, COMPARED))
    )
    installed = time.monotonic()
    with RedisServer() as server:
        where = machine.environment(server)
        as_it_is = await everything(server, pythons, size, quick=quick)
        print("once more, with the cores kept awake", flush=True)
        with cores_awake():
            awake = await compared(server, pythons, size, quick=quick)
    where["measured in"] = f"{time.monotonic() - installed:.0f} s"
    print(f"installed in {installed - began:.0f} s, measured in {where['measured in']}")
    folder = RESULTS / ("quick" if quick else "full")
    write(folder, where, as_it_is, awake, missing)
    return folder


def write(
    folder: Path,
    where: dict[str, str],
    as_it_is: Measured,
    awake: Measured,
    missing: Mapping[Contestant, str],
) -> None:
    """Write the bars, the tables and the figures."""
    records = as_it_is.records
    columns = [*as_it_is.columns(), *awake.columns(AWAKE)]
    promised = bars.promises(columns)
    alone = {column.title: column.ours for column in columns if column.ours is not None}
    tables = (
        table.beside(promised),
        report.failures(records, missing),
        report.failures(awake.records),
        report.free(records),
        report.crowds(records),
        report.handoffs(records),
        report.semaphores(records),
        report.readers(records),
        report.idle(records),
        report.queues(alone),
        report.floors(records),
        report.contestants((*records, *missing)),
    )
    figures = {
        "environment": where,
        "bars": [
            asdict(bar)
            | {"reached": {column: bar.reached(cell) for column, cell in bar.cells.items()}}
            for bar in promised
        ],
        "contestants": _contestants(records),
        "awake": _contestants(awake.records),
        "missing": {contestant.title: why for contestant, why in missing.items()},
        "aiolock": {column: asdict(each) for column, each in alone.items()},
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, pages in (
        ("bars.md", (f"{machine.described(where)}\n", table.bars(promised))),
        ("results.md", [page for page in tables if page]),
    ):
        (folder / name).write_text("\n".join(pages), encoding="utf-8")
    (folder / "results.json").write_text(
        json.dumps(rounded(figures), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


def _contestants(records: Mapping[Contestant, Record]) -> dict[str, object]:
    return {
        contestant.title: {
            "remark": contestant.remark,
            "requirements": contestant.requirements,
            "loop": contestant.loop,
            **asdict(record),
        }
        for contestant, record in records.items()
    }


def rounded(value: object) -> object:
    """The same value with floats rounded to a few digits."""
    if isinstance(value, float):
        return float(f"{value:.{PLACES}g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in cast(dict[str, object], value).items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in cast(Sequence[object], value)]
    return value


def draw(folder: Path) -> None:
    """Draw the plots, in an environment of their own."""
    try:
        python = asyncio.run(environments.environment("plots", environments.PLOTS))
    except environments.NotInstalled as reason:
        print(f"no plots: {reason}")
    else:
        subprocess.run([python, "-m", "benchmarks.plots", folder], cwd=ROOT, check=True)


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, in three minutes")
    quick = parser.parse_args().quick
    folder = asyncio.run(measure(QUICK if quick else FULL, quick=quick))
    draw(folder)
    if not quick:  # the docs show them, and a site has only what lies in its folder
        PLOTS.mkdir(exist_ok=True)
        for plot in folder.glob("*.svg"):
            shutil.move(plot, PLOTS / plot.name)
    for page in ("bars.md", "results.md"):
        print("\n" + (folder / page).read_text(encoding="utf-8"))
    print(f"written to {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
