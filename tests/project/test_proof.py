"""What `make test` sees of `make proof`: its tables are up to date, and it leaves nothing out."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import aiolock
from tests.proof import safeguards
from tests.support.selection import ON_THE_TREE

PACKAGE = Path(aiolock.__file__).parent
TESTS = Path(__file__).parents[1]

pytestmark = [
    pytest.mark.one_loop,
    pytest.mark.skipif(not ON_THE_TREE, reason="on the tree only: it is the same source"),
]


def wrong() -> Iterator[str]:
    """What the tables of safeguards name and is not there."""
    for rows in safeguards.tables().values():
        for row in rows:
            path = PACKAGE / row.file
            count = path.read_text("utf-8").count(row.lines) if path.exists() else 0
            if count != 1:
                yield f"{row.name}: its lines occur {count} times in {row.file}"
            file, _, names = row.test.partition("[")[0].partition("::")
            name = names.rpartition("::")[2]
            tests = (TESTS / file).read_text("utf-8") if (TESTS / file).exists() else ""
            if not tests:
                yield f"{row.name}: there is no {file}"
            # A contract's tests are in `aiolock.testing`.
            elif not names.startswith("Test") and name and f"def {name}(" not in tests:
                yield f"{row.name}: {file} has no {name}"


def test_safeguards_name_existing_source_lines_and_tests() -> None:
    """Each safeguard's lines occur once in the source, and the test that misses it exists."""
    assert list(wrong()) == []


def test_proof_tests_are_not_marked_alone() -> None:
    """`make proof` has no run in which nothing runs beside a test, as `make test` has."""
    sources = (TESTS / "proof").rglob("*.py")
    assert [path for path in sources if "mark.alone" in path.read_text("utf-8")] == []


def test_example_of_an_ablation_is_in_the_tables() -> None:
    """The page shows a row as it is."""
    page = (TESTS / "proof/README.md").read_text("utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (shown,) = tomllib.loads(example)["safeguard"]
    rows = [row for table in safeguards.tables().values() for row in table]
    (row,) = [row for row in rows if row.name == shown["name"]]
    assert shown.pop("seconds")  # which this row does not need
    assert shown == {key: getattr(row, key) for key in shown}
