"""The site: every page can be found, by the words that people look for, and no link leads nowhere.

`make docs` is strict about more, and needs the tools that build the site.
"""

from __future__ import annotations

import inspect
import re
import runpy
import unicodedata
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import aiolock
import aiolock.errors
from aiolock._engine.engine import State
from aiolock._engine.lease_state import LossReason

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
HOOKS = SimpleNamespace(**runpy.run_path(str(ROOT / "docs-theme" / "hooks.py")))
"""What mkdocs does with each page."""
PAGES = sorted(DOCS.glob("**/*.md"))
FENCED = re.compile(r"^( *)```.*?^\1```$", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)


def name_of(page: Path) -> str:
    """How the site calls a page."""
    return page.relative_to(DOCS).as_posix()


def text_of(page: Path) -> str:
    """What a page says, less its says and its blocks of code."""
    text = HOOKS.with_names(page.read_text("utf-8"), name_of(page)).replace(
        '--8<-- "CHANGELOG.md"', "# Changelog\n\nAll of it."
    )
    return FENCED.sub("```\n```", re.sub(r"\A---\n.*?\n---\n", "", text, flags=re.DOTALL))


def entries(nav: list[Any]) -> Iterator[tuple[str, str]]:
    """What stands in the navigation, and the page that it leads to."""
    for entry in nav:
        for label, target in entry.items():
            if isinstance(target, str):
                yield label, target
            else:
                yield from entries(target)


@pytest.fixture(scope="module")
def nav() -> list[tuple[str, str]]:
    """The entries of the navigation."""
    config = yaml.safe_load((ROOT / "mkdocs.yml").read_text("utf-8"))
    return list(entries(config["nav"]))


def test_navigation_has_each_page_once_with_unique_labels(nav: list[tuple[str, str]]) -> None:
    """No page is left out, none is there twice, and no two are called the same."""
    assert Counter(page for _, page in nav) == Counter(map(name_of, PAGES))
    assert [label for label, times in Counter(label for label, _ in nav).items() if times > 1] == []


@pytest.mark.parametrize(
    ("words", "page"),
    [
        ("Semaphores", "howto/semaphores.md"),
        ("Leader election", "howto/leader-election.md"),
        ("Fencing tokens", "howto/fencing-tokens.md"),
        ("Rate limits", "howto/rate-limits.md"),
        ("Idempotency", "howto/idempotency.md"),
        ("Scheduled jobs", "howto/scheduled-jobs.md"),
        ("Read-write locks", "howto/read-write-locks.md"),
        ("Deadlocks and multiple locks", "howto/deadlocks.md"),
        ("Timeouts", "howto/timeouts.md"),
        ("Glossary", "reference/glossary.md"),
    ],
)
def test_navigation_and_title_use_the_words_of_the_field(
    words: str, page: str, nav: list[tuple[str, str]]
) -> None:
    """Who knows what a thing is called finds it by that, in the navigation and by its title."""
    assert (words, page) in nav
    assert (DOCS / page).read_text("utf-8").startswith(f"# {words}")


def test_page_titles_are_unique_and_followed_by_text() -> None:
    """A page has one title, which no other one has, and then says in words what it is for."""
    titles = Counter[str]()
    for page in PAGES:
        found = re.findall(r"^# (.+)$", text_of(page), re.MULTILINE)
        assert len(found) == 1, f"{name_of(page)}: {found}"
        titles.update(found)
        if name_of(page) != "index.md":  # the front page has a head of its own
            after = text_of(page).partition("\n\n")[2]
            begin = after[:30]
            assert re.match(r"[\w*\[`](?!pip)", begin), f"{name_of(page)} begins with {begin!r}"
    assert [title for title, times in titles.items() if times > 1] == []


NO_PROGRAM = {
    "command-line.md": "commands of a shell",
    "testing.md": "tests, which pytest runs",
}
"""Guides that do not begin with a program, and what they begin with."""


@pytest.mark.parametrize("page", sorted((DOCS / "howto").glob("*.md")), ids=name_of)
def test_guide_begins_with_the_problem_and_a_program(page: Path) -> None:
    """Words first, and then a whole program that the reader can run."""
    text = page.read_text("utf-8")
    first = re.search(r"^```python(.*)\n(.*)$", text, re.MULTILINE)
    whole = first is not None and ("title=" in first[1] or '--8<-- "examples/' in first[2])
    assert whole or page.name in NO_PROGRAM
    if first is not None and whole:
        assert len(text[: first.start()].split()) > 20, "says nothing before its program"


def anchors_of(page: Path) -> set[str]:
    """Where on a page a link may lead to."""
    found = set[str]()
    for heading in re.findall(r"^#+ (.+)$", text_of(page), re.MULTILINE):
        plain = re.sub(r"\[([^\]]+)\]\([^)]+\)", r"\1", heading)
        ascii_only = unicodedata.normalize("NFKD", plain).encode("ascii", "ignore").decode()
        words = re.sub(r"[^\w\s-]", "", ascii_only).strip().lower()
        found.add(re.sub(r"[-\s]+", "-", words))
    found.update(re.findall(r"^::: ([\w.]+)$", text_of(page), re.MULTILINE))
    return found | set(re.findall(r'<a id="([^"]+)">', text_of(page)))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_links_lead_to_existing_pages_and_anchors(page: Path) -> None:
    """A link between pages leads to a page, and to a place on it, that are there."""
    wrong: list[str] = []
    for inline, reference in LINK.findall(text_of(page)):
        link = inline or reference
        target, _, anchor = link.partition("#")
        if "://" in target:
            continue
        other = (page.parent / target).resolve() if target else page
        into_reference = anchor.startswith("aiolock.")  # see the next test
        known = other.exists() and (not anchor or into_reference or anchor in anchors_of(other))
        if not known:
            wrong.append(link)
    assert wrong == []


def test_reference_links_lead_to_names_shown_there() -> None:
    """What is linked as `#aiolock.…` is on that page of the reference, itself or its owner."""
    wrong: list[str] = []
    for page in PAGES:
        for target, anchor in re.findall(r"\]\(([^)#\s]*)#(aiolock\.[\w.]+)\)", text_of(page)):
            shown = anchors_of((page.parent / target).resolve() if target else page)
            parts = anchor.split(".")
            if not any(".".join(parts[:end]) in shown for end in range(2, len(parts) + 1)):
                wrong.append(f"{name_of(page)}: {target}#{anchor}")
    assert wrong == []


def test_errors_page_explains_each_error_loss_reason_and_state() -> None:
    """For each public error there is what it means, why it comes and what to do."""
    errors = [name for name, it in vars(aiolock.errors).items() if inspect.isclass(it)]
    page = (DOCS / "reference/errors.md").read_text("utf-8")
    for name in errors:
        if issubclass(getattr(aiolock.errors, name), aiolock.LockError):
            _, heading, section = page.partition(f"\n### {name}\n")
            assert heading, f"{name} has no section"
            section = section.partition("\n##")[0]
            for question in ("**It means**", "**Why it comes**", "**What to do**"):
                assert question in section, f"{name}: {question}"
    for said in (*LossReason, *State):
        assert said.value.partition(":")[0] in page, f"{said} is not explained"


def test_mkdocs_hooks_name_existing_pages_and_plain_descriptions() -> None:
    """Each page has a description, in plain words; what is said of single pages is of some."""
    names = [name_of(page) for page in PAGES]
    for start in (*HOOKS.BOOSTS, *HOOKS.HIDDEN, *HOOKS.WORDS):
        assert any(name.startswith(start) for name in names), f"{start} is no page"
    for page in PAGES:
        said = HOOKS.first_paragraph(page.read_text("utf-8"))
        if name_of(page) not in {"index.md", "changelog.md"}:
            assert 20 < len(said) <= 300, f"{name_of(page)}: {said!r}"
            assert not re.search(r"\]\(|`|::", said), f"{name_of(page)}: {said!r}"


def test_site_loads_nothing_from_other_hosts() -> None:
    """The site asks no other host for anything: fonts, scripts, pictures."""
    config = (ROOT / "mkdocs.yml").read_text("utf-8")
    assert re.search(r"^  font: false\b", config, re.MULTILINE)
    address = re.compile(r"(?:url\(|src=|href=|@import )[\"']?(\w+:[^\"') ]+)")
    for path in (path for path in DOCS.rglob("*") if path.suffix in {".svg", ".css", ".js"}):
        loads = address.findall(path.read_text("utf-8"))
        assert [url for url in loads if not url.startswith("data:")] == [], path
    for page in PAGES:
        pictures = re.findall(r"!\[[^\]]*\]\((\w+://[^)]+)\)", text_of(page))
        assert pictures == [], name_of(page)
