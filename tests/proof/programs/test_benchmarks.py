"""Each benchmark runs as a whole, and gives sane figures."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import cast

import pytest

from benchmarks import (
    cluster,
    contest,
    database_scenarios,
    environments,
    etcd,
    handoff,
    measures,
    ours,
    quorum,
    replicas,
    scenarios,
    scripts,
    stores,
)
from benchmarks import uncontended as free_lock
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
from benchmarks.contest import Team
from benchmarks.crew import workers
from benchmarks.redis_server import RedisServer
from benchmarks.rounds import most_inside, quantile
from benchmarks.scenarios import QUICK, Outcome, Scenario
from tests.support import databases, etcds
from tests.support.benchmarks import HERE, TINY


async def test_scenario_in_which_nothing_was_measured_is_recorded_as_failed() -> None:
    """The others go on."""

    async def nothing(*_: object) -> Outcome:
        return Outcome({"chain.us": quantile([], 0.5)})

    team = Team(AIOLOCK, Path(sys.executable), QUICK)
    await team.start()
    try:
        await team.play(cast("RedisServer", None), Scenario(nothing, fresh=False))
    finally:
        await team.stop()
    assert team.record.failures == {"nothing": "nothing was measured"}


async def test_contest_runs_every_scenario_with_every_kind_of_contestant() -> None:
    """Every scenario runs with every kind of contestant, and its figures make sense."""
    polling = PEERS[1]  # redis-py with a short pause: the default one takes seconds
    entered_by = dict.fromkeys((FLOOR, AIOLOCK, SET_AND_DEL, polling), HERE)
    with RedisServer() as server:
        async with contest.teams(entered_by, TINY) as entered:
            everything = (*scenarios.FREE, *scenarios.WANTED, *scenarios.IDLE)
            await contest.contest(server, entered, everything, rounds=1)
            records = {contestant: team.record for contestant, team in entered.items()}
    assert [record.failures for record in records.values()] == [{}] * 4
    mine, theirs = records[AIOLOCK].figures, records[polling].figures
    assert mine.keys() == theirs.keys()
    assert records[SET_AND_DEL].figures.keys() == {
        name for name in mine if name.startswith(("alone", "names"))
    }
    assert records[FLOOR].figures.keys() == {
        f"{scenario}.{what}.us" for scenario in ("alone", "chain") for what in ("floor", "hop")
    }
    exact = {
        "commands.free": 2,
        "crowd3.through": 1,
        "crowd200.through": 1,
        "yielding.through": 1,
        "processes.through": 1,
        "crowd200.inverted": 0,
        "yielding.inverted": 0,
        "crowd200.overlaps": 0,
        "processes.overlaps": 0,
        "crowd200.connections": 2,
        "processes.connections": 2,
    }
    assert {name: mine[name] for name in exact} == {n: [value] for n, value in exact.items()}
    # On a busy machine a body may last so long that its claim is confirmed.
    assert 0.1 < mine["commands.wanted"][0] < 2.2
    assert theirs["crowd200.connections"] == [200]
    for name, values in mine.items():
        if name.endswith((".us", ".rate", ".ms")) and "server" not in name:
            assert values[0] > 0, name
    assert 1 <= len(records[AIOLOCK].samples["chain"]) < 2 * TINY.chain


async def test_contest_measures_semaphores_and_readers_only_where_offered() -> None:
    """Who has semaphores or readers is measured with them, and nobody else."""
    entered_by = dict.fromkeys((AIOLOCK, PEERS[1]), HERE)
    with RedisServer() as server:
        async with contest.teams(entered_by, TINY) as entered:
            await contest.contest(server, entered, scenarios.SHARED, rounds=1)
            records = {contestant: team.record for contestant, team in entered.items()}
    assert [record.failures for record in records.values()] == [{}] * 2
    assert records[PEERS[1]].figures == {}
    mine = records[AIOLOCK].figures
    exact = {
        "semaphore.through": 1,
        "semaphore.inverted": 0,
        "semaphore.inside": 3,
        "semaphore.permits": 3,
        "semaphore.connections": 2,
    }
    assert {name: mine[name] for name in exact} == {n: [value] for n, value in exact.items()}
    # On a busy machine the crowd takes so long that the first of those who wait asks once more.
    assert 2 <= mine["semaphore.commands"][0] < 2.5
    assert all(
        values[0] > 0
        for name, values in mine.items()
        if name.endswith((".us", ".rate", ".ms", ".ratio")) and "server" not in name
    )


async def test_contest_on_uvloop_runs_without_failures() -> None:
    """Those that need nothing installed do the same on uvloop; without waiting, if they may."""
    contestants = [on_uvloop(each) for each in (AIOLOCK, UNCONFIRMED, REDIS_PY)]
    size = replace(TINY, crowds={3: 2})
    with RedisServer() as server:
        async with contest.teams(dict.fromkeys(contestants, HERE), size) as entered:
            order = (*scenarios.FREE, *scenarios.CROWDS)
            await contest.contest(server, entered, order, rounds=1)
    assert [team.record.failures for team in entered.values()] == [{}] * 3
    confirmed, unconfirmed, polling = (team.record.figures for team in entered.values())
    assert confirmed.keys() == polling.keys() > unconfirmed.keys()
    assert confirmed["crowd3.through"] == polling["crowd3.through"] == [1]


@pytest.mark.parametrize("permits", [1, 3])
@pytest.mark.parametrize(
    "contestant",
    [pytest.param(each, id=each.module) for each in (AIOLOCK, *PEERS) if "permits" in each.has],
)
async def test_semaphore_of_each_contestant_uses_all_permits_and_no_more(
    contestant: Contestant, permits: int
) -> None:
    """Of each contestant's semaphore all permits are used, by two processes, and no more."""
    wanted = contestant.requirements
    if wanted and not environments.is_there(contestant.module, wanted):
        pytest.skip("not installed; `make bench` does that")
    ready, _ = await environments.environments((contestant,))
    with RedisServer() as server:
        async with workers(contestant, ready[contestant], 2, patience=10) as crew:
            crowd = await measures.one_name(
                server,
                crew,
                tasks=5,
                times=2,
                limit=10,
                body=0.01,
                settings={"permits": permits},
            )
    assert crowd.ended
    assert len(crowd.entries) == 2 * 5 * 2
    assert most_inside(crowd.entries) == permits


async def test_ours_measures_leases_waiters_and_commands_of_aiolock_alone() -> None:
    """Leases, waiters, a lone waiter and what is sent are measured of aiolock alone."""
    with RedisServer() as server:
        alone = await ours.measure(
            server, AIOLOCK, HERE, leases=20, watched=0.1, lengths=(4, 8), rounds=1
        )
    assert alone.lone_waiter < 100
    # On a busy machine a body may last so long that its claim is confirmed.
    assert all(0.1 < sent < 2.5 for sent in alone.commands.values())
    assert alone.commands[50] < alone.commands[2]
    assert alone.holding.tasks == 0
    assert 0 <= alone.holding.busy < 1
    assert [line.length for line in alone.lines] == [4, 8]
    assert alone.restarted.keys() == {4, 8}
    assert all(cost > 0 for costs in alone.restarted.values() for cost in costs)
    assert all(
        line.moves.keys() == {"enqueue", "cancel", "grant"} and line.moves["grant"][0].wall > 0
        for line in alone.lines
    )


async def test_free_lock_benchmark_prints_its_bars() -> None:
    """The benchmark of a free lock prints its bars."""
    text = await free_lock.measure(replace(TINY, processes=(2, 1, 1)))
    assert text.count("| free lock, one task: acquire + release") == 2
    assert "200 tasks on 200 names" in text
    assert "did not come through" not in text


async def test_handoff_benchmark_prints_its_bars() -> None:
    """The benchmark of a wanted lock prints its bars."""
    text = await handoff.measure(replace(TINY, limit=1))
    for promise in ("hand-offs a second", "two processes", "inversions", "connections"):
        assert promise in text
    assert "did not come through" not in text


async def test_replicas_benchmark_prints_a_whole_table() -> None:
    """The benchmark of waiting for replicas runs, and its table is whole."""
    head, rule, *rows = await replicas.measure(rounds=1, times=2)
    assert [line.count("|") for line in (rule, *rows)] == [head.count("|")] * 4
    assert "none" in rows[0]
    assert rows[0].count(" 1.00 ") == len(replicas.MEASURES)


def test_scripts_benchmark_prints_each_call_with_its_ratio() -> None:
    """The benchmark of the server's CPU time runs, and its table is whole."""
    size = scripts.Size(servers=1, rounds=2, batch=8, lengths=(10,), crowd=10, shares=(0, 2))
    head, rule, *rows = scripts.measure([scripts.ROOT, scripts.ROOT], size)
    assert [line.count("|") for line in (rule, *rows)] == [head.count("|")] * 8
    assert {row.split(" ")[1].strip("`,") for row in rows} == {"acquire", "release", "ZADD"}


@pytest.mark.long
async def test_quorum_benchmark_writes_a_whole_table_and_its_bars(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The benchmark of several servers runs, and its table and its bars are whole."""
    monkeypatch.setattr(quorum, "_CALM", 0.1)
    subjects = [quorum.OURS, quorum.ALONE]
    size = quorum.Size(rounds=1, operations=20, far_operations=2, crowd=0.2, third=0.2, watch=0.2)
    records = await quorum.measure(subjects, {AIOLOCK: Path(sys.executable)}, size)
    assert not [record.failures for record in records.values() if record.failures]
    figures = records[quorum.OURS].figures
    assert {"crowd.rate", "apart.rate", "apart.raises", "waiting.commands"} <= figures.keys()
    promised = quorum.bars(records)
    head, rule, *rows = quorum.write(tmp_path, records, promised)[:4]
    assert [line.count("|") for line in (rule, *rows)] == [head.count("|")] * 3
    inside = [bar for bar in promised if "two inside" in bar.what]
    assert len(inside) == 2
    assert all(bar.reached for bar in inside)
    written = json.loads((tmp_path / "quorum.json").read_text("utf-8"))
    assert written["subjects"][quorum.OURS.title]["timelines"].keys() == {"stopped", "killed"}


@pytest.mark.long
async def test_stores_benchmark_prints_its_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    """The benchmark of the stores prints its bars."""
    databases.need_postgres()
    databases.need_mariadb()
    monkeypatch.setattr(database_scenarios, "SLICES", 1)
    text = await stores.measure(replace(TINY, limit=1), others=False)
    for promise in (
        *("free lock, one task", "after a quiet while", "two bare round trips"),
        *("VACUUM ANALYZE of bloated tables", "full scans", "open for 10 s", "8 writers"),
        *("statements a second of a process", "connections, 200 tasks", "order"),
    ):
        assert promise in text
    for store in ("SQLite", "PostgreSQL", "MariaDB"):
        assert text.count(f"aiolock on {store}") >= 5
    assert "did not come through" not in text


async def test_cluster_benchmark_prints_a_line_for_each_number_of_masters() -> None:
    """The benchmark of a cluster prints a line for one server, and for each number of masters."""
    text = await cluster.measure((3,), rounds=1, times=20)
    assert [line.split("|")[1].strip() for line in text.splitlines()[2:]] == [
        "one server",
        "3 masters",
        "3 masters, sharded",
    ]


@pytest.mark.long
async def test_etcd_benchmark_prints_whole_tables() -> None:
    """The benchmark of etcd runs, its tables are whole, and no two bodies were inside."""
    databases.need_postgres()
    etcds.need_etcd()
    size = etcd.Size(rounds=1, free=3, twenty=1, crowd=1, names=1, limit=10)
    where, _, *lines = (await etcd.measure(size, others=False)).splitlines()
    assert where.startswith("date")
    tables = [list(rows) for is_row, rows in groupby(lines, lambda line: line[:1] == "|") if is_row]
    assert [len(rows) for rows in tables] == [2 + len(etcd.MEASURES)] * 3
    assert all(len({row.count("|") for row in rows}) == 1 for rows in tables)
    assert lines[-1] == "Two inside, in all rounds of all contestants: 0."
