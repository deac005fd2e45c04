"""The pages for contributors name what exists: files, folders and modules.

Links are checked by `test_site`; these are names in code spans, which are no links.
"""

from __future__ import annotations

import pkgutil
import re
from pathlib import Path

import pytest

import aiolock

pytestmark = pytest.mark.one_loop

ROOT = Path(__file__).parents[2]
PACKAGE = Path(aiolock.__file__).parent
PAGES = [
    *(ROOT / name for name in ("CONTRIBUTING.md", "README.md", "RELEASING.md", "SECURITY.md")),
    *(ROOT / name for name in ("benchmarks/README.md", "tests/proof/README.md")),
    *sorted(ROOT.glob("docs/**/*.md")),
]
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
SPAN = re.compile(r"`([^`\n]+)`")
FILE = re.compile(r"[\w./-]*\w\.(?:py|lua|sql|toml|md|yml|c)")
FOLDER = re.compile(r"(?:aiolock|pytest_aiolock|tests|docs|benchmarks|examples|stores)/[\w/]*")
MODULE = re.compile(r"aiolock(?:\.[a-z_]\w*)+(?:\.[A-Z]\w*)*")
TEST = re.compile(r"test_\w+")
TREES = ("tests", "docs", "docs-theme", "benchmarks", "examples", "pytest_aiolock", ".ci")

# By page: what looks like the project's and is not.
OTHERS = {
    "docs/howto/django.md": re.compile(r"asgi\.py|urls\.py"),  # files of a user
    # Attributes, metrics.
    "docs/howto/observability.md": re.compile(r"aiolock\.(?!sync\b|observe\b).+"),
    "docs/howto/task-queues.md": re.compile(r"aiolock\.tasks"),  # a logger
}


def _existing() -> frozenset[str]:
    """All files and folders, each by every path that ends with it: ``a/b.py``, and ``b.py``."""
    found = set[str]()
    places = [(PACKAGE, "aiolock"), *((ROOT / tree, tree) for tree in TREES)]
    for folder, name in places:
        for path in (folder, *folder.rglob("*")):
            parts = (name, *path.relative_to(folder).parts)
            found.update("/".join(parts[start:]) for start in range(len(parts)))
    return frozenset(found | {path.name for path in ROOT.iterdir()})


EXISTING = _existing()


def name_of(page: Path) -> str:
    """A page, by its path in the project."""
    return page.relative_to(ROOT).as_posix()


def spans(page: Path) -> list[str]:
    """The code spans of a page, outside of its blocks of code."""
    return SPAN.findall(FENCED.sub("", page.read_text("utf-8")))


def is_missing(span: str) -> bool:
    """Whether a code span is the path of a file or folder, or a module, that does not exist."""
    if FILE.fullmatch(span) or FOLDER.fullmatch(span):
        return span.rstrip("/") not in EXISTING
    if MODULE.fullmatch(span):
        try:
            pkgutil.resolve_name(span)
        except (ImportError, AttributeError):
            return True
    return False


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_names_only_existing_paths(page: Path) -> None:
    """A page names no file, folder or module of the project that does not exist."""
    others = OTHERS.get(name_of(page), re.compile("(?!)"))
    assert not [span for span in spans(page) if is_missing(span) and not others.fullmatch(span)]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_names_only_existing_tests(page: Path) -> None:
    """A test that a page names is in the file that the same line names before it."""
    for line in FENCED.sub("", page.read_text("utf-8")).splitlines():
        files = list[str]()
        for span in SPAN.findall(line):
            if span.startswith("tests/") and span.endswith(".py"):
                files.append(span)
            elif TEST.fullmatch(span):
                assert files, f"{span}: in which file?"
                sources = [(ROOT / file).read_text("utf-8") for file in files]
                assert any(f"def {span}(" in source for source in sources), span


@pytest.mark.parametrize(
    "name",
    ["stores/machines.py", "_pipe.py", "tests/stores/nowhere/", "aiolock.stores.missing"],
)
def test_is_missing_of_a_path_that_does_not_exist_is_true(name: str) -> None:
    """These tests see such a name."""
    assert is_missing(name)


@pytest.mark.parametrize(
    "name", ["stores/machine.py", "_pipeline.py", "tests/stores/", "aiolock.store.Store", "make"]
)
def test_is_missing_of_a_path_that_exists_is_false(name: str) -> None:
    """These tests take nothing for missing that exists."""
    assert not is_missing(name)


def test_layout_in_contributing_names_existing_modules() -> None:
    """The drawing of the layout names modules and folders of the package."""
    text = (ROOT / "CONTRIBUTING.md").read_text("utf-8")
    (drawing,) = re.findall(r"```text\n(.*?)```", text, re.DOTALL)
    named = set(re.findall(r"[\w]+(?:\.py|/)", drawing))
    assert {"protocol.py", "store.py", "machine.py", "memory/"} <= named
    assert not [name for name in named if name.rstrip("/") not in EXISTING]
