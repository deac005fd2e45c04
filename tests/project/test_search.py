"""The search of the site: for what people type, the right page comes first.

The theme searches in the browser, by lunr. Here its port to Python has the same settings: fields,
boosts, and the order of results as the theme makes it. The index is made of the Markdown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from tests.project.test_site import HOOKS, PAGES, ROOT, name_of

pytestmark = pytest.mark.one_loop

Finder = Callable[[str], list[str]]
LUNR: Any = import_module("lunr")  # has no types
FIELDS = {"title": 1e3, "text": 1, "tags": 1e6}
"""What the theme's search takes for the worth of each field."""


def entries() -> list[SimpleNamespace]:
    """Each section of each page, as the theme has it in its index."""
    found: list[SimpleNamespace] = []
    for page in PAGES:
        name = name_of(page)
        if not HOOKS.boost_of(name):
            continue
        text = HOOKS.with_names(page.read_text("utf-8"), name)
        fenced = False
        for line in re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL).split("\n"):
            fenced ^= line.lstrip().startswith("```")
            heading = None if fenced else re.match(r"#{1,6} (.+)", line)
            if heading or not found or found[-1].page != name:
                title = heading[1] if heading else name
                first = not found or found[-1].page != name
                found.append(SimpleNamespace(page=name, title=title, text=[], first=first))
            if not heading:
                found[-1].text.append(re.sub(r"\]\([^)]+\)", "]", line))
    return found


@pytest.fixture(scope="module")
def search() -> Finder:
    """A function: the pages that the site finds for some words, best first."""
    config = yaml.load((ROOT / "mkdocs.yml").read_text("utf-8"), yaml.BaseLoader)
    settings = next(each["search"] for each in config["plugins"] if "search" in each)
    separator = re.compile(settings["separator"])
    sections = entries()
    builder = import_module("lunr.builder").Builder()
    builder.pipeline.add(import_module("lunr.stop_word_filter").stop_word_filter)
    builder.b(0)
    documents: list[tuple[dict[str, str], dict[str, float]]] = []
    for number, each in enumerate(sections):
        tags = " ".join(HOOKS.WORDS.get(each.page, []))
        words = {"title": each.title, "text": "\n".join(each.text), "tags": tags}
        document = {name: separator.sub(" ", said) for name, said in words.items()}
        documents.append((document | {"id": str(number)}, {"boost": HOOKS.boost_of(each.page)}))
    fields = [{"field_name": name, "boost": boost} for name, boost in FIELDS.items()]
    index = LUNR.lunr("id", fields, documents, builder=builder)

    def find(typed: str) -> list[str]:
        terms = separator.sub(" ", typed.lower()).split()
        scores: list[tuple[float, str]] = []
        for result in index.search(" ".join(f"{term}*" for term in terms)):
            each = sections[int(result["ref"])]
            matched: dict[str, Any] = result["match_data"].metadata
            share = sum(any(word.startswith(term) for word in matched) for term in terms)
            boost = each.first + share / len(terms)
            scores.append((result["score"] * (1 + boost**2), each.page))
        return list(dict.fromkeys(page for _, page in sorted(scores, reverse=True)))

    return find


@pytest.mark.parametrize(
    ("typed", "page"),
    [
        ("SETNX", "migrate/redis-py.md"),
        ("stampede", "howto/idempotency.md"),
        ("thundering herd", "howto/idempotency.md"),
        ("exactly once", "howto/idempotency.md"),
        ("idempotency", "howto/idempotency.md"),
        ("mutex", "tutorial.md"),
        ("distributed lock", "tutorial.md"),
        ("leader", "howto/leader-election.md"),
        ("singleton", "howto/leader-election.md"),
        ("cron", "howto/scheduled-jobs.md"),
        ("rate limit", "howto/rate-limits.md"),
        ("throttle", "howto/rate-limits.md"),
        ("expire", "howto/timeouts.md"),
        ("timeout", "howto/timeouts.md"),
        ("deadlock", "howto/deadlocks.md"),
        ("lease", "howto/lost-locks.md"),
        ("fencing", "howto/fencing-tokens.md"),
        ("semaphore", "howto/semaphores.md"),
        ("rwlock", "howto/read-write-locks.md"),
        ("Redlock", "stores/quorum.md"),
        ("advisory lock", "stores/postgres.md"),
        ("celery", "howto/task-queues.md"),
        ("arq", "howto/task-queues.md"),
        ("aiohttp", "howto/web.md"),
        ("apscheduler", "howto/scheduled-jobs.md"),
        ("shards", "howto/groups.md"),
        ("kubernetes", "howto/shutdown.md"),
        ("prometheus", "howto/observability.md"),
        ("ElastiCache", "stores/redis.md"),
        ("sentinel", "stores/sentinel.md"),
        ("stuck lock", "howto/status.md"),
        ("pottery", "migrate/python-redis-lock.md"),
        ("fakeredis", "howto/testing.md"),
        ("LeaseLost", "howto/lost-locks.md"),
        ("StoreError", "reference/errors.md"),
    ],
)
def test_search_for_what_people_type_finds_its_page_first(
    search: Finder, typed: str, page: str
) -> None:
    """For a word of the field, its page comes first."""
    assert search(typed)[:1] == [page], search(typed)[:5]
