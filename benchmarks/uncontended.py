"""A free lock: the cost of acquire and release if no other task wants it.

    python benchmarks/uncontended.py [--quick]

One task on one name, and 200 tasks on 200 names, with and without waiting for the answer to the
release. This is compared with redis-py's `Lock`, redis-py's bare `SET NX PX` and `DEL`, and a PING
by a client written in C.
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
from benchmarks.catalogue import AIOLOCK, FLOOR, REDIS_PY, SET_AND_DEL, UNCONFIRMED
from benchmarks.contest import contest, cores_apart, teams
from benchmarks.redis_server import RedisServer
from benchmarks.scenarios import Size

AS_IT_COMES = replace(REDIS_PY, title="redis-py `Lock`, default client", settings={"best": False})
CONTESTANTS = dict.fromkeys(
    (FLOOR, AIOLOCK, UNCONFIRMED, SET_AND_DEL, REDIS_PY, AS_IT_COMES), Path(sys.executable)
)
FULL = replace(scenarios.FULL, rounds=15, processes=(2, 1, 1))
QUICK = replace(scenarios.QUICK, rounds=5, processes=(2, 1, 1))


async def measure(size: Size) -> str:
    """The bars, and the cost of each contestant's operations."""
    with RedisServer() as server:
        where = machine.environment(server)
        async with teams(CONTESTANTS, size) as entered:
            with cores_apart(server, entered):
                await contest(server, entered, scenarios.FREE, rounds=size.rounds)
            records = {contestant: team.record for contestant, team in entered.items()}
    return "\n".join(
        (
            f"{machine.described(where)}\n",
            table.bars(bars.promises([Column("asyncio", records)])),
            report.free(records),
            report.failures(records),
        )
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer rounds")
    print(asyncio.run(measure(QUICK if parser.parse_args().quick else FULL)))
