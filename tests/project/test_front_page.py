"""The README and the front page: short, and with the figures and the table of their sources.

The figures are those of `benchmarks/results/`, the table is cut out of `docs/comparison.md`.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from aiolock.cli.demo import report

pytestmark = pytest.mark.one_loop

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text("utf-8")
INDEX = (ROOT / "docs/index.md").read_text("utf-8")
COMPARISON = (ROOT / "docs/comparison.md").read_text("utf-8")
DEMO = (ROOT / "docs/assets/demo.txt").read_text("utf-8")
FRONT = pytest.mark.parametrize("page", [README, INDEX], ids=["README", "index"])
WIDEST = 48
"""The characters of a line of code that a phone shows."""
OURS, REDIS_PY, NEXT = "aiolock", "redis-py `Lock`", "redsync 2.0.0"
PLAIN = r"\S+ [\d.]+"
"""A library in the results, in its plain form: with its version, and nothing else."""
RESULTS: dict[str, Any] = json.loads(
    (ROOT / "benchmarks/results/full/results.json").read_text("utf-8")
)


def figure(who: str, what: str) -> float:
    """A figure of the run that the docs show: the median of its rounds."""
    rounds: list[float] = RESULTS["contestants"][who]["figures"][what]
    return median(rounds)


def rounded(number: float) -> str:
    """A rate as the pages say it: with three digits, or two below ten thousand."""
    digits = len(str(int(number)))
    return f"{round(number, min(0, (3 if digits > 4 else 2) - digits)):,.0f}"


def tables(page: str) -> list[dict[str, dict[str, str]]]:
    """The tables of a page: of each row its cells, by the titles of the columns."""
    found: list[dict[str, dict[str, str]]] = []
    for block in re.findall(r"^(?:\|.*\|\n)+", page, re.MULTILINE):
        lines = [[cell.strip() for cell in line[1:-2].split(" |")] for line in block.splitlines()]
        title, _, *rows = lines
        found.append({row[0]: dict(zip(title[1:], row[1:], strict=True)) for row in rows})
    return found


def compared(column: str) -> dict[str, str]:
    """A column of the comparison of locks."""
    table = next(table for table in tables(COMPARISON) if column in table["**aiolock**"])
    return {row: cells[column] for row, cells in table.items()}


@FRONT
def test_front_table_is_cut_out_of_the_comparison(page: str) -> None:
    """What is said of each library stands in the comparison, word for word."""
    table = tables(page)[-1]
    assert len(table) >= 4
    for row, cells in table.items():
        assert cells == {column: compared(column)[row] for column in cells}


def test_comparison_of_locks_has_the_same_rows_in_both_tables() -> None:
    """A library is in both, under the same name."""
    assert list(compared("order")) == list(compared("told of a loss"))


def versions() -> dict[str, str]:
    """The versions that the comparison names, by library."""
    (table,) = (each for each in tables(COMPARISON) if "version" in next(iter(each.values())))
    return {row[1:].partition("]")[0]: cells["version"] for row, cells in table.items()}


def test_comparison_versions_are_those_that_were_measured() -> None:
    """A library that took part in the run shown is named with the version that did."""
    named = versions()
    measured = dict(who.split(" ") for who in RESULTS["contestants"] if re.fullmatch(PLAIN, who))
    measured["redis-py"] = RESULTS["environment"]["redis-py"]
    both = named.keys() & measured.keys()
    assert {name: named[name] for name in both} == {name: measured[name] for name in both}
    for row in list(compared("order"))[1:]:
        name, short, *_ = row.split(" ")
        assert f"{named[name]}.".startswith(f"{short}."), row
        assert name in both or name == "Redisson"


def test_comparison_connections_are_those_that_were_measured() -> None:
    """Of each library that took part in the run shown."""
    named = versions()
    for row, connections in compared("connections, 200 waiters").items():
        name = row.strip("*").split(" ")[0]
        who = {OURS: OURS, "redis-py": REDIS_PY}.get(name) or f"{name} {named[name]}"
        if name != "Redisson":
            assert int(connections) == figure(who, "crowd200.connections"), row


@FRONT
def test_front_figures_are_those_of_the_benchmarks(page: str) -> None:
    """Three figures of ours, and those of redis-py beside them."""
    handoffs, overtaken, connections = (
        [figure(who, f"crowd200.{what}") for who in (OURS, REDIS_PY)]
        for what in ("handoffs", "overtaken", "connections")
    )
    for ours, theirs in (
        (rounded(handoffs[0]), f"{handoffs[1]:.0f}"),
        (f"{overtaken[0]:.0f}", f"1 in {1 / overtaken[1]:.0f}"),
        (f"{connections[0]:.0f}", f"{connections[1]:.0f}"),
    ):
        row = rf"\*\*{ours}\*\* \| {theirs} \|$"
        tile = rf"<strong>{ours}</strong> .+ <span>redis-py: {theirs}</span></p>$"
        assert re.search(rf"{row}|{tile}", page, re.MULTILINE), (ours, theirs)
    for name in ("Redis", "redis-py"):
        assert f"{name} {RESULTS['environment'][name]}" in page


def test_comparison_figures_are_those_of_the_benchmarks() -> None:
    """What the comparison says of rates, and README of the limits."""
    fast, limits = (" ".join(page.split()) for page in (COMPARISON, README))
    handoffs = {who: rounded(figure(who, "crowd200.handoffs")) for who in (OURS, NEXT)}
    apart = {who: rounded(figure(who, "processes.rate")) for who in (OURS, NEXT)}
    assert f"hand it off {handoffs[OURS]} times a second" in fast
    assert f"With redis-py it is {figure(REDIS_PY, 'crowd200.handoffs'):.0f} times" in fast
    assert f"on {figure(NEXT, 'crowd200.connections'):.0f} connections, {handoffs[NEXT]}." in fast
    assert f"50 tasks each: {apart[OURS]} against {apart[NEXT]}." in fast
    assert (
        f"make {apart[OURS]} hand-offs a second; with redsync, the next, {apart[NEXT]}." in limits
    )
    assert 1.05 < figure(NEXT, "crowd5.handoffs") / figure(OURS, "crowd5.handoffs") < 1.15
    again = 1 - figure(REDIS_PY, "crowd200.handoffs") / figure(REDIS_PY, "crowd200.rate")
    assert f"{again:.1f}" == "0.8", "With redis-py, four of five entries are the same task's"
    bars = {bar["what"]: bar["cells"]["asyncio"]["spread"][0] for bar in RESULTS["bars"]}
    assert f"{bars['free lock, one task: acquire + release, `confirm=False`']:.2f} of that" in fast
    assert f"{bars['200 tasks on 200 names, a second (aim: 8)']:.1f} times as often" in fast


def test_readme_fits_two_screens() -> None:
    """The links below the text do not count."""
    text = README.partition("<!-- Absolute links")[0]
    words = re.sub(r"!\[[^\]]*\]|\]\([^)]*\)|\]\[[^\]]*\]|[|#*`]", " ", text).split()
    assert len(text.splitlines()) <= 120
    assert len(words) <= 700


@FRONT
def test_front_pages_have_nothing_that_a_phone_cuts_off(page: str) -> None:
    """Lines of code are short, and tables have four columns at most."""
    blocks = "".join(re.findall(r"^```\w+\n(.+?)^```$", page, re.MULTILINE | re.DOTALL))
    assert max(map(len, (blocks + DEMO).splitlines())) <= WIDEST
    assert all(len(row) <= 3 for table in tables(page) for row in table.values())


def test_demo_on_the_front_page_is_what_the_demo_prints_today() -> None:
    """Its rows are those of the report, and its last words that all was right."""
    for title, _ in report.ROWS.values():
        assert re.search(rf"^{title} ", DEMO, re.MULTILINE)
    assert re.search(r"^oversold +[1-9]\d* +0 +0$", DEMO, re.MULTILINE)
    assert re.search(r"^items sold +2,200 +2,000 +2,000$", DEMO, re.MULTILINE)
    assert DEMO.endswith(f"{report.RIGHT}\n")
