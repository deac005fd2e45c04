"""Several processes and everything that can break, for a while; the checker judges what happened.

``make chaos`` is the same for longer; ``docs/chaos.md`` says what is done and what is checked.
"""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any, Self, cast

import pytest

from tests.proof.chaos.__main__ import chaos, explain, report
from tests.proof.chaos.checker import check
from tests.proof.chaos.conductor import Slot
from tests.proof.chaos.faults import Fault
from tests.proof.chaos.history import read
from tests.proof.chaos.run import Run
from tests.proof.chaos.targets import sqlite
from tests.support import databases, etcds
from tests.support.failures import until
from tests.support.selection import ON_THE_TREE

# On the installed wheel it only has to show that it works there: on another Python and loop.
RUNS = (
    [
        *(("redis", "1", 7.0), ("sentinel", "5", 6.0), ("cluster", "8", 6.0)),
        *(("sqlite", "1", 5.0), ("postgres", "1", 5.0), ("mysql", "1", 5.0)),
        ("quorum", "11", 7.0),
        # In these plans are most kinds of faults that the servers can have.
        *(("etcd", "455", 8.0), ("etcd-skewed", "346", 8.0)),
    ]
    if ON_THE_TREE
    else [("redis", "2", 4.0)]
)
TASKS = 8
"""Of each process: fewer than by hand, where they use two cores for as long as it takes."""


@pytest.mark.long
@pytest.mark.timeout(180)  # its own limits come first, and say what is stuck
@pytest.mark.parametrize(
    ("store", "seed", "seconds"),
    # Three servers of etcd and all processes beside other tests are too slow for short leases.
    [pytest.param(*run, marks=pytest.mark.alone if "etcd" in run[0] else ()) for run in RUNS],
    ids=[f"{store}_seed_{seed}_{seconds:g}_s" for store, seed, seconds in RUNS],
)
async def test_chaos_run_on_each_store_keeps_every_promise(
    tmp_path: Path, store: str, seed: str, seconds: float
) -> None:
    """Whatever is killed, stopped, cut off, paused, wiped or cancelled, every promise is kept."""
    if store == "postgres":
        databases.need_postgres()
    if store == "mysql":
        databases.need_mariadb()
    if store.startswith("etcd"):
        etcds.need_etcd()
    await chaos(tmp_path, store=store, seconds=seconds, seed=seed, tasks=TASKS)
    run = Run(read(tmp_path))
    violations = check(run)
    assert not violations, explain(run, violations)
    print(report(run, violations))  # noqa: T201  # what pytest shows with -s, and of a failure
    assert sum(map(len, run.entries.values())) > 5 * seconds, "hardly anything happened"


FAULTS_OF_ETCD = {
    "leader_killed": [Fault(1.5, "kill_leader", "all", 2.0, 0)],
    "leader_frozen": [Fault(1.5, "freeze_leader", "all", 4.0, 0)],
    "leader_slow": [Fault(1.5, "stutter_leader", "all", 4.0, 0)],
    "leader_cut_off": [Fault(1.5, "cut_off_leader", "all", 4.0, 0)],
    "follower_frozen": [Fault(1.5, "freeze_follower", "all", 4.0, 0)],
    # One process cannot ask while the history goes that its watch would go on from.
    "history_compacted": [
        Fault(1.5, "refuse", "0", 1.5, 0),
        Fault(2.5, "compact", "all", 0.0, 0),
    ],
    "client_killed": [Fault(1.5, "kill", "0", 0.5, 0)],
    "client_stopped_for_longer_than_its_leases": [Fault(1.5, "stop", "0", 8.0, 0)],
}
"""By name: what happens to three servers of etcd's and to four processes that use them."""


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.one_loop
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", FAULTS_OF_ETCD)
async def test_chaos_of_etcd_with_one_fault_keeps_every_promise(tmp_path: Path, name: str) -> None:
    """One fault at a time, in the middle of everything: no promise is broken, and work goes on."""
    etcds.need_etcd()
    faults = FAULTS_OF_ETCD[name]
    seconds = max(fault.at + fault.seconds for fault in faults) + 2.5
    await chaos(tmp_path, store="etcd", seconds=seconds, seed="1", tasks=TASKS, faults=faults)
    run = Run(read(tmp_path))
    violations = check(run)
    assert not violations, explain(run, violations)
    print(report(run, violations))  # noqa: T201  # what pytest shows with -s, and of a failure
    assert sum(map(len, run.entries.values())) > 5 * seconds, "hardly anything happened"


@pytest.mark.one_loop
async def test_chaos_run_with_a_paused_server_at_start_explains_its_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first of them works already: that it got no answer is known, and explains what it did."""
    start = Slot.start
    working: list[Any] = []

    async def start_later(slot: Slot) -> None:
        if slot.name == "1":
            await until(lambda: working[0].worker.history)
            server = working[0]._conductor._target._server
            server.pause()
            await asyncio.sleep(1.0)
            server.resume()
        working.append(slot)
        await start(slot)

    monkeypatch.setattr(Slot, "start", start_later)
    await chaos(tmp_path, seconds=0.5, seed="1", workers=2, tasks=TASKS)
    run = Run(read(tmp_path))
    slow = [event.t - event["since"] for event in run.of("fault") if event["kind"] == "slow"]
    assert max(slow) > 0.9e9
    violations = check(run)
    assert not violations, explain(run, violations)


class Slow:
    """In the place of a connection: it is at work for a while, unless it is closed meanwhile."""

    def __init__(self) -> None:
        self.begun, self.closed = threading.Event(), threading.Event()
        self.did = list[str]()

    def execute(self, statement: str) -> Self:
        """Be at work."""
        self.begun.set()
        self.closed.wait(0.5)
        self.did.append(statement)
        return self

    def fetchall(self) -> list[Any]:
        """Nothing is found."""
        return []

    def close(self) -> None:
        """Be closed."""
        self.did.append("closed")
        self.closed.set()


@pytest.mark.one_loop
async def test_sqlite_owner_close_waits_for_a_statement_under_way(tmp_path: Path) -> None:
    """Who looks at it and is cancelled leaves a thread behind: a close would end the process."""
    owner = sqlite._Owner(tmp_path / "locks.db", 1.0)
    owner.close()
    slow = Slow()
    owner._database = cast("Any", slow)
    looking = asyncio.create_task(asyncio.to_thread(owner.run, "SELECT 1"))
    await until(slow.begun.is_set)
    looking.cancel()
    await asyncio.wait([looking])
    assert looking.cancelled()
    owner.close()
    assert slow.did == ["SELECT 1", "closed"]
