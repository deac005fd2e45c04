"""What `make test` sees of `make proof`: its tables are up to date, and it leaves nothing out."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest

import aiolock
from tests.proof import safeguards
from tests.support import selection
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


RECORD = """#!/bin/sh
echo "$@" >>"$(dirname "$0")/../../runs"
"""


def runs_of(folder: Path, script: str, *arguments: str) -> list[str]:
    """The arguments of each pytest that a script of `.ci/` starts, in a folder of its own."""
    python, wheel = folder / ".venv/bin/python", folder / ".ci/test-wheel"
    for path, text in ((python, RECORD), (wheel, "#!/bin/sh\n")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, "utf-8")
        path.chmod(0o755)
    shutil.copy(TESTS.parent / ".ci" / script, folder / ".ci" / script)
    runs = folder / "runs"
    runs.write_text("", "utf-8")
    subprocess.run([str(folder / ".ci" / script), *arguments], check=True, capture_output=True)
    return runs.read_text("utf-8").splitlines()


def test_each_test_on_the_tree_is_run_by_make_test_or_make_proof(tmp_path: Path) -> None:
    """One leaves out a folder, and what is marked `alone`; the other runs just these."""
    assert runs_of(tmp_path, "test", "8", "-k", "x") == [
        "-m pytest --ignore=tests/proof -n 8 -k x"  # with -n, less those that run alone
    ]
    assert runs_of(tmp_path, "proof", "3.12", "8", "-k", "x") == [
        "-m pytest -n 8 -o testpaths=tests/proof -k x",
        "-m pytest -o testpaths=tests -k x -n 0 --alone",
    ]


@pytest.mark.parametrize("alone", [False, True])
def test_marked_alone_a_test_is_run_with_the_option_and_by_no_process_of_several(
    alone: bool,
) -> None:
    """Each test is run by one of the two."""
    marker = object() if alone else None
    item = mock.Mock(get_closest_marker={"alone": marker}.get)
    left: list[bool] = []
    for option in (False, True):
        hook = SimpleNamespace(pytest_deselected=lambda items: None)
        config: Any = SimpleNamespace(getoption={"--alone": option}.get, hook=hook, workerinput={})
        items: list[Any] = [item]
        selection.leave_out_alone(config, items)
        left += [bool(items)]
    assert left == [not alone, alone]


def test_example_of_an_ablation_is_in_the_tables() -> None:
    """The page shows a row as it is."""
    page = (TESTS / "proof/README.md").read_text("utf-8")
    (example,) = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    (shown,) = tomllib.loads(example)["safeguard"]
    rows = [row for table in safeguards.tables().values() for row in table]
    (row,) = [row for row in rows if row.name == shown["name"]]
    assert shown.pop("seconds")  # which this row does not need
    assert shown == {key: getattr(row, key) for key in shown}
