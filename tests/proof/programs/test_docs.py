"""The programs of the documentation, by their types."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

import aiolock
from tests.project.test_docs import PROGRAMS, ROOT, URL, name_of, programs

TYPES = ROOT / ".mypy_cache" / "programs"
"""What mypy has read stays, for the next time; apart from that of the tree's own check."""


@pytest.mark.long
@pytest.mark.timeout(400)  # the first time mypy reads much: 10 s of a core, for the tutorial
def test_page_programs_pass_mypy_strict(tmp_path: Path) -> None:
    """The programs of all pages pass mypy --strict as they stand there."""
    if importlib.util.find_spec("mypy") is None:
        # With the installed wheel there are the tools that run tests, and none that check sources.
        pytest.skip("on the tree only: it is the same page")
    names: dict[str, Path] = {}
    folders: list[Path] = []
    for page in PROGRAMS:
        folders.append(tmp_path / name_of(page).replace("/", "-"))
        folders[-1].mkdir()
        for name in programs(page, URL, folders[-1]):
            assert name not in names, f"{name_of(page)}: {name} is on another page, too"
            names[name] = folders[-1] / name
    # Where aiolock is imported from here, be it this tree or an installed wheel.
    places = os.pathsep.join(map(str, [*folders, Path(aiolock.__file__).parent.parent]))
    # Silent: what they import is aiolock's own to check, and is.
    options = ("--strict", "--follow-imports=silent", "--explicit-package-bases")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", *options, "--cache-dir", str(TYPES), *names.values()],
        cwd=tmp_path,
        env=os.environ | {"MYPYPATH": places},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
