"""A lock that many tasks want: how fast and in what order it is handed on, and at what cost.

    python benchmarks/handoff.py [--quick]

Many tasks, of one process and of several, want one name, and two processes hand a lock on. This is
compared with redis-py's `Lock`, a PING by a client written in C, and a bare pub/sub ping-pong.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks import bars, machine, report, scenarios, table
from benchmarks.bars import Column
from benchmarks.catalogue import AIOLOCK, FLOOR, REDIS_PY
from benchmarks.contest import contest, cores_apart, teams
from benchmarks.redis_server import RedisServer
from benchmarks.scenarios import Size

CONTESTANTS = dict.fromkeys((FLOOR, AIOLOCK, REDIS_PY), Path(sys.executable))
FULL = replace(scenarios.FULL, rounds=7)
QUICK = replace(scenarios.QUICK, rounds=2, limit=10)


async def measure(size: Size) -> str:
    """The bars, and the figures of each contestant for each crowd and hand-off."""
    with RedisServer() as server:
        where = machine.environment(server)
        async with teams(CONTESTANTS, size) as entered:
            with cores_apart(server, entered):
                await contest(server, entered, scenarios.WANTED, rounds=size.rounds)
            records = {contestant: team.record for contestant, team in entered.items()}
    return "\n".join(
        (
            f"{machine.described(where)}\n",
            table.bars(bars.promises([Column("asyncio", records)])),
            report.crowds(records),
            report.handoffs(records),
            report.failures(records),
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    print(asyncio.run(measure(QUICK if parser.parse_args().quick else FULL)))
