"""What mkdocs is told about each page, so that pages in a repository viewer need no metadata.

The first paragraph is what search engines show. In the search of the site, a guide comes before the
reference, and that before what is about the inside of aiolock. The words that people type and the
title does not have are the tags of a page: the search ranks them above all else.
"""

from __future__ import annotations

import ast
import re
import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SAFEGUARDS = ROOT / "tests" / "proof" / "safeguards.py"
OF_PAGE = "<!-- the names that link to this page in api.md -->"
OF_THREADS = "<!-- the names in api.md that threads have, too -->"
HIDDEN = {  # what stands beside a page, where it needs the width
    "index.md": ["navigation", "toc"],
    "comparison.md": ["toc"],
}
BOOSTS = {
    "index.md": 0.5,  # it names everything once
    "changelog.md": 0.05,
    "ablations.md": 0,  # none: not in the search, as nobody looks for that here
    "chaos.md": 0,
    "protocol-model.md": 0,
    "protocol.md": 0.1,
    "design.md": 0.1,
    "benchmarks.md": 0.2,
    "policies.md": 0.5,
    "comparison.md": 0.5,
    "safety.md": 0.7,
    "reference/glossary.md": 0.7,
    "reference/store.md": 0.1,
    "reference/wrappers.md": 0.1,
    "reference/errors.md": 1,
    "reference/": 0.2,
    "migrate/": 0.6,
}
WORDS = {
    "tutorial.md": ["distributed lock", "mutex", "critical section", "race condition"],
    "howto/timeouts.md": ["expire", "TTL", "try lock", "priority", "give up", "preemption"],
    "howto/lost-locks.md": ["lease", "renewal", "heartbeat", "watchdog", "keepalive"],
    "howto/fencing-tokens.md": ["stale write", "zombie", "fence"],
    "howto/deadlocks.md": ["multilock", "lock ordering", "transfer"],
    "howto/path-locks.md": ["hierarchical", "tree", "folder"],
    "howto/semaphores.md": ["concurrency limit", "permits", "bulkhead", "max concurrent"],
    "howto/fair-shares.md": ["tenant", "starvation", "noisy neighbour", "weight"],
    "howto/rate-limits.md": ["rate limit", "throttle", "token bucket", "429", "quota"],
    "howto/read-write-locks.md": ["rwlock", "shared lock", "exclusive lock", "readers"],
    "howto/leader-election.md": ["singleton", "single instance", "active standby"],
    "howto/groups.md": ["membership", "partition", "service discovery", "rebalance"],
    "howto/scheduled-jobs.md": ["cron", "periodic", "APScheduler", "ShedLock", "nightly"],
    "howto/idempotency.md": [
        *("exactly once", "duplicate", "deduplicate", "double click"),
        *("cache stampede", "thundering herd", "dogpile"),
    ],
    "howto/barriers.md": ["rendezvous", "countdown", "notify"],
    "howto/handing-on.md": ["detach", "adopt", "transfer a lock"],
    "howto/django.md": ["manage.py", "ATOMIC_REQUESTS", "on_commit", "WSGI", "gunicorn"],
    "howto/web.md": ["lifespan", "middleware"],
    "howto/task-queues.md": ["worker", "consumer", "job queue", "message"],
    "howto/threads.md": ["synchronous", "threading", "gevent"],
    "howto/testing.md": ["mock", "fakeredis", "fixture"],
    "howto/status.md": ["stuck lock", "force unlock", "who holds", "list locks"],
    "howto/observability.md": ["monitoring", "alerts", "Grafana", "logging"],
    "howto/shutdown.md": ["SIGTERM", "pod", "rolling update", "fork"],
    "stores/connecting.md": ["URL", "TLS", "password", "Upstash"],
    "stores/redis.md": ["ElastiCache", "Dragonfly", "ACL", "eviction", "noeviction"],
    "stores/sentinel.md": ["failover", "WAIT", "standby"],
    "stores/quorum.md": ["Redlock", "majority", "consensus"],
    "stores/postgres.md": ["advisory lock", "pg_advisory_lock", "SELECT FOR UPDATE", "PgBouncer"],
    "stores/mysql.md": ["GET_LOCK"],
    "stores/sqlite.md": ["flock", "file lock", "in-memory"],
    "stores/etcd.md": ["ZooKeeper", "Consul", "consensus"],
    "migrate/redis-py.md": ["SETNX", "SET NX"],
    "migrate/shedlock.md": ["SchedulerLock", "lockAtMostFor"],
}
"""What people type and the title does not say, by page."""


def on_config(config: Any) -> None:
    """Called by mkdocs first: the header says which version this is."""
    source = Path(config.config_file_path).parent / "aiolock" / "__init__.py"
    found = re.search(r'^__version__ = "(.+)"$', source.read_text("utf-8"), re.MULTILINE)
    assert found is not None
    config.repo_name = f"aiolock {found[1]}"


def boost_of(path: str) -> float:
    """How much what is found on this page counts."""
    return next((boost for start, boost in BOOSTS.items() if path.startswith(start)), 1)


def first_paragraph(markdown: str) -> str:
    """What stands first below the title, in plain words."""
    for block in markdown.split("\n\n")[1:]:
        if re.match(r"[\w*\[`](?!``)", block):
            text = re.sub(r"\[([^\]]+)\](?:\([^)]*\)|\[[^\]]*\])", r"\1", block)
            return " ".join(re.sub(r"[`*]", "", text).split())[:300]
    return ""


def with_names(markdown: str, page: str) -> str:
    """A page of the reference, with the names that the table of the overview has for it."""
    overview = (ROOT / "docs" / "reference" / "api.md").read_text("utf-8")
    package, linked = "aiolock", re.findall(r"\((\w+\.md)#aiolock\.(\w+)\)", overview)
    if OF_THREADS in markdown:
        package, threads = "aiolock.sync", _all_of(ROOT / "aiolock" / "sync" / "__init__.py")
        names = [name for _, name in linked if name in threads]
    else:
        names = [name for target, name in linked if page == f"reference/{target}"]
    blocks = (f"::: {package}.{name}" for name in names)
    shown = "\n\n".join(block for block in blocks if f"{block}\n" not in markdown)
    return markdown.replace(OF_PAGE, shown).replace(OF_THREADS, shown)


def _all_of(module: Path) -> list[str]:
    """The `__all__` of a module, which is not imported."""
    for node in ast.parse(module.read_text("utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            names: list[str] = ast.literal_eval(node.value)
            return names
    raise LookupError(f"{module} has no __all__")


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Called by mkdocs for each page, before it is made HTML of."""
    page.meta.setdefault("description", first_paragraph(markdown))
    boost = boost_of(page.file.src_uri)
    page.meta.setdefault("search", {"boost": boost} if boost else {"exclude": True})
    page.meta.setdefault("tags", WORDS.get(page.file.src_uri, []))
    if page.file.src_uri == "index.md":
        page.meta.setdefault("title", "Distributed locks for asyncio")
    page.meta.setdefault("hide", HIDDEN.get(page.file.src_uri, []))
    if page.file.src_uri == "ablations.md":
        tables: str = runpy.run_path(str(SAFEGUARDS))["markdown"]()
        return markdown.replace("<!-- the tables of tests/proof/ablations/ -->", tables)
    return with_names(markdown, page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    """Called by mkdocs for each page: docstrings say `::` before an example, Markdown does not."""
    return re.sub(r"::</p>", ":</p>", re.sub(r"<p>::</p>\n?", "", html))
