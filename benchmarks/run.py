"""Everything, beside every alternative that installs: `make bench`, or `make bench QUICK=1`.

    python benchmarks/run.py [--quick]

Writes a table, the figures as JSON, and plots as PNG into `benchmarks/results/`, and those of a
full run as SVG into `docs/images/`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bars, environments, machine, measures, report, scenarios, table
from benchmarks.bars import Ours
from benchmarks.catalogue import AIOLOCK, FLOOR, PEERS, SET_AND_DEL, Contestant
from benchmarks.contest import Record, contest, cores_apart, teams
from benchmarks.crew import ROOT, workers
from benchmarks.redis_server import RedisServer
from benchmarks.scenarios import FULL, QUICK, Size

RESULTS = ROOT / "benchmarks" / "results"
PLOTS = ROOT / "docs" / "images"
PLACES = 4
"""Digits of a figure that are kept."""


async def ours_alone(
    server: RedisServer,
    *,
    leases: int = 10_000,
    watched: float,
    lengths: Sequence[int] = (100, 1_000, 10_000),
    rounds: int,
) -> Ours:
    """Of aiolock only: as many leases and waiters as were promised, and a single waiter."""
    python = Path(sys.executable)
    connecting = asyncio.Lock()
    async with workers(AIOLOCK, python, 3) as (holder, *pair):
        holding, lone = await asyncio.gather(
            measures.holding(server, holder, connecting, leases=leases, watch=watched),
            measures.lone_waiter(server, pair, connecting, watch=watched),
        )
    async with workers(AIOLOCK, python, len(lengths)) as crew:
        lines = await measures.waiting(
            server,
            dict(zip(lengths, crew, strict=True)),
            batch=min(lengths),
            rounds=rounds,
            watch=0,
        )
    return Ours(lone, holding, leases, watched, lines)


async def measure(size: Size, *, quick: bool) -> Path:
    """Everything; returns the folder with the results."""
    began = time.monotonic()
    print("environments of the peers", flush=True)
    pythons, missing = await environments.environments((FLOOR, AIOLOCK, SET_AND_DEL, *PEERS))
    installed = time.monotonic()
    with RedisServer() as server:
        where = machine.environment(server)
        async with teams(pythons, size) as entered:
            with cores_apart(server, entered):
                busy = (*scenarios.FREE, *scenarios.WANTED, *scenarios.SHARED)
                await contest(server, entered, busy, rounds=size.rounds, tell=True)
                # Bytes and commands differ little from round to round.
                await contest(server, entered, scenarios.IDLE, rounds=1, tell=True)
                print("aiolock: 10,000 leases, 10,000 waiters", flush=True)
                # The leases are renewed every 10 s.
                ours = await ours_alone(
                    server, watched=10.5 if quick else 31, rounds=3 if quick else 25
                )
            records = {contestant: team.record for contestant, team in entered.items()}
    where["measured in"] = f"{time.monotonic() - installed:.0f} s"
    print(f"installed in {installed - began:.0f} s, measured in {where['measured in']}")
    folder = RESULTS / ("quick" if quick else "full")
    write(folder, where, records, missing, ours)
    return folder


def write(
    folder: Path,
    where: dict[str, str],
    records: Mapping[Contestant, Record],
    missing: Mapping[Contestant, str],
    ours: Ours,
) -> None:
    """The tables and the figures."""
    promises = bars.promises(records, ours)
    pages = (
        f"{machine.described(where)}\n",
        "Medians of the rounds (their quartiles). What each figure is: `benchmarks/README.md`.\n",
        table.bars(promises),
        report.failures(records, missing),
        report.free(records),
        report.crowds(records),
        report.handoffs(records),
        report.semaphores(records),
        report.readers(records),
        report.idle(records),
        report.queues(ours),
        report.floors(records),
        report.contestants((*records, *missing)),
    )
    figures = {
        "environment": where,
        "bars": [asdict(bar) | {"reached": bar.reached} for bar in promises],
        "contestants": {
            contestant.title: {
                "remark": contestant.remark,
                "requirements": contestant.requirements,
                **asdict(record),
            }
            for contestant, record in records.items()
        },
        "missing": {contestant.title: why for contestant, why in missing.items()},
        "aiolock": asdict(ours),
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = "\n".join(page for page in pages if page)
    (folder / "results.md").write_text(text, encoding="utf-8")
    (folder / "results.json").write_text(
        json.dumps(rounded(figures), ensure_ascii=False, indent=1) + "\n", encoding="utf-8"
    )


def rounded(value: object) -> object:
    """The same with floats of a few digits."""
    if isinstance(value, float):
        return float(f"{value:.{PLACES}g}")
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [rounded(each) for each in value]
    return value


def draw(folder: Path) -> None:
    """The plots, in an environment of their own."""
    try:
        python = asyncio.run(environments.environment("plots", environments.PLOTS))
    except environments.NotInstalled as reason:
        print(f"no plots: {reason}")
    else:
        subprocess.run([python, "-m", "benchmarks.plots", folder], cwd=ROOT, check=True)


def main() -> None:
    """Measure, write, draw."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="one round, in two minutes")
    quick = parser.parse_args().quick
    folder = asyncio.run(measure(QUICK if quick else FULL, quick=quick))
    draw(folder)
    if not quick:  # the docs show them, and a site has only what lies in its folder
        PLOTS.mkdir(exist_ok=True)
        for plot in folder.glob("*.svg"):
            shutil.move(plot, PLOTS / plot.name)
    print("\n" + (folder / "results.md").read_text(encoding="utf-8"))
    print(f"written to {folder.relative_to(ROOT)}")


if __name__ == "__main__":
    main()
