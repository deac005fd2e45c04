"""The benchmarks: their statistics, their tables and how a contest goes on.

That each runs as a whole is in `tests/proof/programs/`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import (
    bars,
    contest,
    environments,
    quorum,
    redis_server,
    run,
    scenarios,
    table,
    worker,
)
from benchmarks.bars import Column
from benchmarks.catalogue import (
    AIOLOCK,
    COMPARED,
    FLOOR,
    PEERS,
    REDIS_PY,
    REDSYNC,
    SET_AND_DEL,
    STEINDAMM,
    Contestant,
    on_uvloop,
)
from benchmarks.contest import Record
from benchmarks.crew import PeerFailed, Worker, workers
from benchmarks.labels import spread_out
from benchmarks.measures import Contended, Cost, Holding, Waiting
from benchmarks.ours import Ours
from benchmarks.redis_server import RedisServer, Tap
from benchmarks.rounds import (
    Entry,
    Spread,
    handovers,
    in_turn,
    inversions,
    most_inside,
    overlaps,
    overtaken,
    quantile,
    ratios,
    spread,
)
from benchmarks.scenarios import Outcome, Scenario, Size, _crowd
from benchmarks.spinner import cores_awake
from benchmarks.table import Bar, Measured, amount
from tests.support.benchmarks import HERE, TINY

NOTHING = run.Measured({}, {})


def in_order(*asked: int, who: str = "") -> list[Entry]:
    """Entries, one after the other, that asked at these moments."""
    return [Entry(10 * place, moment, 10 * place, who) for place, moment in enumerate(asked)]


def test_quantile_interpolates_between_values_and_refuses_none() -> None:
    """A quantile lies between the two values that it falls between."""
    values = [40, 10, 30, 20]
    assert [quantile(values, share) for share in (0, 0.5, 1)] == [10, 25, 40]
    assert quantile(values, 0.25) == 17.5
    assert quantile([7], 0.95) == 7
    with pytest.raises(ValueError, match="nothing was measured"):
        quantile([], 0.5)


def test_spread_is_median_quartiles_and_number_of_rounds() -> None:
    """A spread is the median, the quartiles and how many rounds there were."""
    assert spread([5, 1, 2, 4, 3]) == Spread(3, 2, 4, 5)


def test_ratios_of_equal_rounds_compare_round_by_round() -> None:
    """A round in which both were slow does not show in the ratio."""
    assert ratios([10, 1000, 10], [5, 500, 5]) == Spread(2, 2, 2, 3)


def test_ratios_of_unequal_rounds_compare_the_medians() -> None:
    """Where one has fewer rounds, the medians are compared."""
    assert ratios([10, 20, 30], [5, 5]) == Spread(4, 4, 4, 1)


def test_ratios_leave_out_rounds_without_a_result() -> None:
    """They are left out; without another one there is no ratio, and no verdict."""
    assert ratios([10, 10, 30], [0, 5, 5]) == Spread(4, 3, 5, 2)
    assert amount(ratios([10, 20], [0, 0]), "×") == "–"
    assert amount(ratios([10, 20, 30], [0, 0]), "×") == "–"
    bar = Bar("rate", "×", 2, at_least=True, cells={"a": Measured(ratios([1], [0]))})
    assert bar.cell("a") == "–"


def test_rate_of_a_crowd_without_entries_is_zero() -> None:
    """As on a machine that stands still."""
    crowd = Contended([], ended=False, elapsed=0.0, client=0.0, server=0.0, connections=0)
    assert crowd.rate == 0.0
    assert _crowd("crowd", crowd, 10)["crowd.handoffs"] == 0.0


def test_in_turn_gives_each_a_turn_per_round_with_rotating_starts() -> None:
    """Everybody has a turn in each round, and each round begins with another one."""
    turns = list(in_turn("abc", 4))
    assert "".join(who for _, who in turns) == "abc" + "bca" + "cab" + "abc"
    assert [number for number, _ in turns] == [0] * 3 + [1] * 3 + [2] * 3 + [3] * 3
    assert list(in_turn("", 2)) == []


@pytest.mark.parametrize(
    ("asked", "pairs", "waits"),
    [
        pytest.param((1, 2, 3, 4), 0, 0, id="in order"),
        pytest.param((4, 3, 2, 1), 6, 3, id="backwards"),
        pytest.param((1, 3, 2, 4), 1, 1, id="one overtakes"),
        pytest.param((4, 1, 2, 3), 3, 3, id="the last goes first"),
    ],
)
def test_inversions_count_pairs_and_overtaken_counts_those_passed(
    asked: Sequence[int], pairs: int, waits: int
) -> None:
    """Inversions count pairs, overtaken counts those who were passed."""
    assert inversions(in_order(*asked)) == pairs
    assert overtaken(in_order(*asked)) == waits


def test_inversions_within_the_margin_do_not_count() -> None:
    """Who asked within the margin of another may go before it."""
    assert inversions(in_order(3, 1), margin=2) == overtaken(in_order(3, 1), margin=2) == 0
    assert inversions(in_order(4, 1), margin=2) == overtaken(in_order(4, 1), margin=2) == 1


def test_overlaps_and_handovers_count_meetings_and_changes_of_holder() -> None:
    """Two inside at once are seen, and so is a task that takes the lock from itself."""
    apart = [Entry(0, 0, 5, "a"), Entry(6, 0, 9, "a"), Entry(10, 0, 11, "b")]
    assert (overlaps(apart), handovers(apart)) == (0, 1)
    assert overlaps([Entry(0, 0, 5, "a"), Entry(4, 0, 9, "b")]) == 1


@pytest.mark.parametrize(
    ("bodies", "most"),
    [
        pytest.param((), 0, id="none"),
        pytest.param(((0, 5), (5, 9)), 1, id="one enters when another leaves"),
        pytest.param(((0, 5), (4, 9), (8, 10)), 2, id="never three"),
        pytest.param(((0, 9), (1, 3), (2, 4), (5, 6)), 3, id="one stays"),
    ],
)
def test_most_inside_is_the_highest_number_of_bodies_at_once(
    bodies: Sequence[tuple[int, int]], most: int
) -> None:
    """The highest number of bodies at once is counted, not how often they meet."""
    assert most_inside([Entry(entered, 0, left, "") for entered, left in bodies]) == most


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.01234, "0.0123"), (4.567, "4.57"), (45.67, "45.7"), (12345.6, "12,346")],
)
def test_number_is_rounded_to_three_digits_or_to_an_integer(value: float, text: str) -> None:
    """A number has as many digits as say something."""
    assert table.number(value) == text


def test_markdown_table_is_aligned_as_text() -> None:
    """A table is Markdown that reads as text."""
    assert table.markdown(("a", "figure"), [("x", 1), ("long", 22)]) == (
        "| a    | figure |\n| ---- | ------ |\n| x    | 1      |\n| long | 22     |\n"
    )


@pytest.mark.parametrize(
    ("at_least", "median", "reached"),
    [(True, 8.0, True), (True, 7.9, False), (False, 8.0, True), (False, 8.1, False)],
)
def test_bar_is_reached_when_its_median_is_on_the_right_side(
    *, at_least: bool, median: float, reached: bool
) -> None:
    """A bar is reached when the median is on its right side; the table says so."""
    measured = Measured(Spread(median, 1, 9, 3))
    bar = Bar("w", "×", 8, at_least, {"asyncio": measured})
    assert bar.reached(measured) is reached
    assert bar.promised == ("at least 8 ×" if at_least else "at most 8 ×")
    text = f"{median:.2f} (1.00–9.00)"
    assert bar.cell("asyncio") == (text if reached else f"**missed:** {text}")
    assert bar.cell("uvloop") == "–"


def test_table_of_bars_has_a_row_for_each_promise_and_a_column_for_each_way() -> None:
    """There is a row for each promise, and a column for each way to measure any of them."""
    one, two = Measured(spread([1]), "1 : 1"), Measured(spread([3]))
    promised = [Bar("a", "×", 2, True, {"x": one, "y": two}), Bar("b", "", 2, True, {"y": two})]
    assert _rows(table.bars(promised)) == [
        ["what", "promised", "x", "y"],
        ["a", "at least 2 ×", "**missed:** 1.00", "3.00"],
        ["b", "at least 2", "–", "3.00"],
    ]
    assert _rows(table.beside(promised)) == [
        ["behind the bars", "", "x", "y"],
        ["a", "×", "1 : 1", ""],
    ]


def _rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if not line.startswith("| --")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(
    ("wanted", "places"),
    [
        pytest.param([], [], id="none"),
        pytest.param([1, 9], [1, 9], id="far apart"),
        pytest.param([5, 5], [4, 6], id="at one place"),
        pytest.param([6, 1, 5], [6.5, 1, 4.5], id="two of three, in any order"),
        pytest.param([0, 1, 2.5, 9], [-0.83, 1.17, 3.17, 9], id="one pushes the next"),
    ],
)
def test_spread_out_places_labels_near_their_lines_without_overlap(
    wanted: Sequence[float], places: Sequence[float]
) -> None:
    """Labels are as near to their lines as they can be without being on each other."""
    assert spread_out(wanted, 2) == pytest.approx(places, abs=0.01)


def test_tap_counts_only_commands_that_clients_sent() -> None:
    """Commands inside scripts, and the benchmark's own, are not what clients sent."""
    tap = Tap()
    tap.listen(
        '+1.1 [0 127.0.0.1:5] "evalsha" "9f" "x] \\"y"\r\n'
        '+1.2 [0 lua] "SET" "a"\r\n'
        '+1.3 [0 unix:/tmp/socket] "INFO"\r\n'
        '+1.4 [0 127.0.0.1:6] "GET" "a"\r\n'
        '+1.5 [0 127.0.0.1:5] "EVALSHA"\r\n'
    )
    assert tap.commands == {"EVALSHA": 2, "GET": 1}
    assert tap.scripts == {"9f": 1}
    assert tap.by_address == {"127.0.0.1:5": 2, "127.0.0.1:6": 1}
    assert tap.total == 3


@pytest.mark.parametrize("name", ["asyncio", "uvloop"])
def test_worker_new_loop_is_of_the_named_library(name: str) -> None:
    """A worker has the loop that its contestant is to run on."""
    loop = worker.new_loop(name)
    assert type(loop).__module__.partition(".")[0] == name
    loop.close()


async def test_contest_gives_slow_contestants_one_round() -> None:
    """Who is slow takes part in the first round only."""

    async def count(_: RedisServer, __: Sequence[Worker], ___: Size) -> Outcome:
        return Outcome({"turns": 1.0})

    slow = replace(SET_AND_DEL, title="slow", slow=True)
    size = replace(TINY, processes=(1, 1, 1))
    with RedisServer() as server:
        async with contest.teams(dict.fromkeys((SET_AND_DEL, slow), HERE), size) as entered:
            await contest.contest(server, entered, [Scenario(count, waits=False)], rounds=3)
    turns = {each.title: team.record.figures["turns"] for each, team in entered.items()}
    assert turns == {SET_AND_DEL.title: [1.0] * 3, "slow": [1.0]}


def test_cores_awake_spins_a_process_per_core_and_ends_them() -> None:
    """A process for each core spins behind all others, and is gone afterwards."""
    with cores_awake() as spinning:
        if hasattr(os, "SCHED_IDLE"):
            assert {os.sched_getscheduler(pid) for pid in spinning} == {os.SCHED_IDLE}
            assert {pid: len(os.sched_getaffinity(pid)) for pid in spinning} == dict.fromkeys(
                spinning, 1
            )
        assert spinning
    for pid in spinning:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


async def test_contest_records_failures_and_goes_on_with_the_others() -> None:
    """Who cannot start, fails or hangs is in the record with the reason, and the others go on."""
    absent = Contestant("absent", "no_such_module")

    async def hang(_: RedisServer, crew: Sequence[Worker], __: Size) -> Outcome:
        await crew[0].hear("what nobody says", within=0.05)
        return Outcome({})

    size = replace(TINY, processes=(1, 1, 1))
    with RedisServer() as server:
        async with contest.teams(dict.fromkeys((absent, SET_AND_DEL), HERE), size) as entered:
            crowds = Scenario(scenarios.crowds, waits=False)  # which this one cannot
            order = (crowds, Scenario(hang, waits=False), *scenarios.FREE)
            await contest.contest(server, entered, order, rounds=2)
    assert "No module named" in entered[absent].record.failures["start"]
    assert entered[absent].record.figures == {}
    failures = entered[SET_AND_DEL].record.failures
    assert "is taken, and this does not wait" in failures["crowds"]
    assert failures["hang"] == "hangs: no 'what nobody says' within 0.05 s"
    assert len(entered[SET_AND_DEL].record.figures["alone.us"]) == 2


async def test_worker_that_ends_raises_peer_failed_at_once() -> None:
    """A worker that is gone is a failure at once, not a time-out."""
    async with workers(SET_AND_DEL, HERE) as (worker,):
        worker.say(workload="none", url="", at_once=1, settings={}, options={})
        with pytest.raises(PeerFailed, match="StopIteration"):
            await worker.hear("ready")
    with pytest.raises(PeerFailed, match="ended: "):
        async with workers(SET_AND_DEL, Path("/bin/false")):
            pytest.fail("/bin/false is no worker")


def test_quorum_bar_without_entries_is_not_reached() -> None:
    """What was not seen once in a short run on a machine that stands still is a bar not reached."""
    records = {subject: quorum.Record() for subject in (quorum.OURS, quorum.ALONE)}
    for record in records.values():
        record.add("crowd.rate", 0.0)
    (crowd,) = [bar for bar in quorum.bars(records) if bar.what.startswith("20 tasks")]
    assert math.isnan(crowd.figure)
    assert not crowd.reached


async def test_c_floor_is_a_plausible_number_of_microseconds() -> None:
    """The floor is a plausible number of microseconds."""
    with RedisServer() as server:
        assert 1 < await redis_server.c_floor(server, requests=50, runs=1) < 1e6


async def test_environment_that_does_not_install_is_named_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A peer that does not install is named with pip's reason."""
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    wrong = Contestant("wrong", "wrong", ("this is no requirement",))
    ready, missing = await environments.environments((AIOLOCK, wrong))
    assert ready == {AIOLOCK: HERE}
    assert missing[wrong].startswith("does not install: ERROR: Invalid requirement")


async def test_environment_is_kept_until_its_requirements_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment with the same requirements is kept, another one is made anew."""
    monkeypatch.setattr(environments, "FOLDER", tmp_path)
    made: list[tuple[str, ...]] = []

    async def note(*arguments: str) -> None:
        made.append(arguments)
        (tmp_path / "peer").mkdir(exist_ok=True)

    monkeypatch.setattr(environments, "_run", note)
    python = await environments.environment("peer", ("peer==1",))
    assert python == tmp_path / "peer" / "bin" / "python"
    assert made[-1][-1] == "peer==1"
    await environments.environment("peer", ("peer==1",))
    assert len(made) == 2
    await environments.environment("peer", ("peer==2",))
    assert made[-1][-1] == "peer==2"


def promised(limits: bars.Promise, *columns: Column) -> dict[str, float]:
    """What was measured of one promise, by column."""
    measured = {column.title: limits.measure(column) for column in columns}
    return {title: each.spread.median for title, each in measured.items() if each is not None}


def test_bars_compare_aiolock_on_each_loop_with_that_loop() -> None:
    """On each loop aiolock is compared with what ran on that loop, and with one floor."""
    records = {
        AIOLOCK: Record({"crowd200.rate": [30.0], "chain.us": [30.0]}),
        REDSYNC: Record({"crowd200.rate": [10.0]}),
        STEINDAMM: Record({"crowd200.rate": [5.0]}),
        REDIS_PY: Record({"crowd200.rate": [60.0]}),  # has bars of its own
        on_uvloop(AIOLOCK): Record({"crowd200.rate": [40.0], "chain.us": [20.0]}),
        on_uvloop(STEINDAMM): Record({"crowd200.rate": [8.0]}),
        FLOOR: Record({"chain.hop.us": [10.0]}),
    }
    columns = [Column(loop, records, loop=loop) for loop in ("asyncio", "uvloop")]
    fastest = next(each for each in bars.PROMISES if each.what.endswith("one name, 200 tasks"))
    assert promised(fastest, *columns) == {"asyncio": 3, "uvloop": 5}
    hop = next(each for each in bars.PROMISES if each.unit == "× a bare hop")
    assert promised(hop, *columns) == {"asyncio": 3, "uvloop": 2}
    polling = [each for each in bars.PROMISES if each.unit == "× redis-py `Lock`"]
    assert [promised(each, *columns) for each in polling] == [{}, {"asyncio": 0.5}]
    assert bars.promises([Column("nothing", {})]) == []


def test_order_bar_counts_inversions_of_all_crowds_of_one_process() -> None:
    """An inversion in any round of any crowd counts; several processes have no common order."""
    figures = {"crowd5.inverted": [0.0, 1.0], "yielding.inverted": [2.0, 0.0]}
    record = Record(figures | {"processes.inverted": [9.0, 9.0]})
    (bar,) = bars.promises([Column("asyncio", {AIOLOCK: record})])
    assert bar.cells["asyncio"] == Measured(spread([3.0]), "2 crowds in 2 rounds")
    assert bar.cell("asyncio") == "**missed:** 3.00"


def sample_records() -> dict[Contestant, Record]:
    """Figures for all that bars compare."""
    records: dict[Contestant, Record] = {FLOOR: Record({"chain.hop.us": [1.0]})}
    for place, contestant in enumerate(COMPARED):
        names = ["alone.us", "names.rate", "chain.us"]
        names += ["processes.rate"]
        names += [f"crowd{n}.{what}" for n in bars.CROWDS for what in ("rate", "handoffs")]
        figures = {name: [1.23456 + place] for name in names}
        records[contestant] = Record(figures | {"crowd200.server.us": [1.0]})
    for name in ("crowd200.connections", "crowd200.inverted"):
        records[AIOLOCK].figures[name] = [2.0]
    for name in ("inside", "inverted", "commands", "permits", "rate"):
        records[AIOLOCK].figures[f"semaphore.{name}"] = [2.0]
    return records


def sample_ours() -> Ours:
    """Figures for all that is measured of aiolock alone."""
    cost = Cost(1, 1, 1)
    moves = {move: [cost] for move in ("enqueue", "cancel", "grant")}
    lines = [Waiting(length, 1, 1, 0, moves) for length in (100, 10_000)]
    holding = Holding(1, 1, 0, 0.01, 0.01, 4)
    restarted = {1_000: [1.0], 10_000: [1.0]}
    return Ours(0.05, {2: 2, 4: 1.5, 50: 1.1}, holding, 10_000, 30, lines, restarted)


def test_results_are_written_as_tables_and_json(tmp_path: Path) -> None:
    """The results are a table of all bars, the tables behind it, and the same as JSON."""
    fast = REDSYNC
    records = sample_records()
    records[fast].figures["semaphore.rate"] = [8.0]
    records[fast].failures["quiet"] = "hangs"
    as_it_is = run.Measured(records, {"asyncio": sample_ours()})
    awake = run.Measured({AIOLOCK: records[AIOLOCK], SET_AND_DEL: records[SET_AND_DEL]}, {})
    run.write(tmp_path, {"Python": "3"}, as_it_is, awake, {PEERS[3]: "does not install"})
    of_bars = (tmp_path / "bars.md").read_text(encoding="utf-8")
    text = (tmp_path / "results.md").read_text(encoding="utf-8")
    figures = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    header, *rows = _rows(of_bars.partition("\n\n")[2])
    assert header == ["what", "promised", "asyncio", "asyncio, cores awake"]
    assert len(rows) == len(figures["bars"]) == len(bars.PROMISES)
    assert "–" not in [row[2] for row in rows]
    assert rows[0][2] == rows[0][3] == "0.382"
    assert figures["bars"][0]["reached"] == {"asyncio": True, "asyncio, cores awake": True}
    assert fast.title in text
    assert figures["contestants"][AIOLOCK.title]["figures"]["alone.us"] == [1.235]
    assert figures["awake"].keys() == {AIOLOCK.title, SET_AND_DEL.title}
    assert figures["missing"] == {PEERS[3].title: "does not install"}
    (beside,) = (line for line in text.splitlines() if "0.25 ×" in line)
    assert [cell.strip() for cell in beside.split("|")[1:4]] == [fast.title, "0.25 ×", "–"]
    lost = [line.split("|")[1:4] for line in text.splitlines() if "does not install" in line]
    assert [[cell.strip() for cell in line] for line in lost] == [
        [PEERS[3].title, "install", "does not install"]
    ]


def test_plots_are_drawn_from_the_results_without_a_background(tmp_path: Path) -> None:
    """The plots are drawn from the results, for light pages and dark ones: without a background."""
    if not environments.is_there("plots", environments.PLOTS):
        pytest.skip("no matplotlib; `make bench` installs it")
    records = sample_records()
    records[AIOLOCK].samples["chain"] = [1.0, 2.0]
    run.write(tmp_path, {}, run.Measured(records, {"asyncio": sample_ours()}), NOTHING, {})
    run.draw(tmp_path)
    drawn = {path.name: path.read_text(encoding="utf-8") for path in tmp_path.glob("*.svg")}
    names = ("contention", "handoff", "lead", "queue")
    assert sorted(drawn) == [f"{name}.svg" for name in names]
    assert all((tmp_path / f"{name}.png").exists() for name in names)
    assert all("#ffffff" not in svg for svg in drawn.values())
