"""Every Python block of the documentation runs, in order, each page by itself.

A block may use `await` at its top, as in the asyncio REPL. It is given `asyncio`, `aiolock`, an
open `client` and a `work()` that takes a moment; the rest, a page brings itself. A test that needs
no fixture is run. What cannot run here is only compiled, and says why above the block:
`<!-- not run: reason -->`.

A block with a title is a whole program, a file of that name. It is given nothing, as if a reader
had copied it, and has to pass a strict type checker as it stands.
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import os
import pkgutil
import re
import runpy
import sqlite3
import sys
import textwrap
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import aiolock
import aiolock.errors
import aiolock.integrations
import aiolock.options
import aiolock.store
import aiolock.sync
import aiolock.testing
from tests.support.servers import RedisServer

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
MODULES = (aiolock, aiolock.errors, aiolock.options, aiolock.store, aiolock.sync, aiolock.testing)
URL = "redis://localhost:6379/0"
FILE = "sqlite:////run/app/locks.db"
ETCD = "etcd://localhost:2379"
BLOCK = re.compile(
    r"^(?P<not_run> *<!-- not run: .+ -->\n+)?"
    r'(?P<indent> *)```python\b(?: title="(?P<title>[^"]+)")?\n(?P<code>(?s:.*?))^(?P=indent)```$',
    re.MULTILINE,
)
PROGRAMS = [page for page in PAGES if "```python title=" in page.read_text("utf-8")]


def name_of(page: Path) -> str:
    """How a test is called."""
    return str(page.relative_to(ROOT))


async def work() -> None:
    """The reader's own code."""
    await asyncio.sleep(0.001)


# arq does not know what newer versions of redis-py call deprecated.
@pytest.mark.filterwarnings("ignore:Call to .*deprecated:DeprecationWarning")
@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_page_code_blocks_run_in_order(
    page: Path, redis_server: RedisServer, tmp_path: Path
) -> None:
    """What a page shows works as it stands there."""
    text = page.read_text("utf-8").replace(URL, redis_server.url)
    text = text.replace(FILE, f"sqlite:///{tmp_path}/locks.db")
    found = list(BLOCK.finditer(text))
    assert len(found) == text.count("```python"), "a block does not end, or is badly indented"
    redis_server.call("FLUSHALL")  # pages use the same names, and what was done once stays done
    names: dict[str, object] = {"__name__": "__main__"}  # frameworks look where functions are
    with asyncio.Runner() as runner, opened(runner, redis_server.url) as client:
        for block in found:
            if block["title"] or block["code"].lstrip().startswith("--8<--"):
                continue  # a file of its own: see below, or with tests of its own
            above = text[: block.start("code")].count("\n")
            source = "\n" * above + textwrap.dedent(block["code"])  # a traceback shows this line
            code = compile(source, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if not block["not_run"]:
                names |= {"asyncio": asyncio, "aiolock": aiolock, "client": client, "work": work}
                awaitable = eval(code, names)
                if awaitable is not None:
                    runner.run(awaitable)
                for name in [each for each in names if each.startswith("test_")]:
                    test: Any = names.pop(name)
                    if not inspect.signature(test).parameters:  # others want pytest's fixtures
                        runner.run(test())
    for value in names.values():
        if isinstance(value, sqlite3.Connection | aiolock.sync.LockClient):
            value.close()  # a page is no program that ends


def programs(page: Path, url: str, folder: Path, etcd: str = ETCD) -> list[str]:
    """Write each program of a page to its file, as a reader does; their names, in order."""
    names: list[str] = []
    text = page.read_text("utf-8").replace(URL, url).replace(ETCD, etcd)
    for block in BLOCK.finditer(text):
        if name := block["title"]:
            (folder / name).write_text(textwrap.dedent(block["code"]), "utf-8")
            names.append(name)
    return names


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The working directory of programs, which import each other; a test forgets what they are."""
    monkeypatch.setenv("AIOLOCK_OBSERVE", "auto")  # as where no test runs
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(getattr(module, "__file__", "")).startswith(f"{tmp_path}{os.sep}"):
            del sys.modules[name]


@pytest.mark.parametrize("page", PROGRAMS, ids=name_of)
def test_page_programs_run_one_by_one(
    page: Path,
    redis_server: RedisServer,
    folder: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The programs of a page run one by one as they stand there, and say that they did."""
    etcd = ETCD
    if ETCD in page.read_text("utf-8"):
        etcd = request.getfixturevalue("etcd_server").url()
    redis_server.call("FLUSHALL")  # what was done once stays done
    for name in programs(page, redis_server.url, folder, etcd):
        runpy.run_path(str(folder / name), run_name="__main__")
        said = capsys.readouterr().out
        assert said or name == "shop.py", f"{name} does not show that it worked"


@contextmanager
def opened(runner: asyncio.Runner, url: str) -> Generator[aiolock.LockClient]:
    """An open client in the runner's loop, which runs only while a block does."""
    client = aiolock.connect(url)
    runner.run(client.open())
    try:
        yield client
    finally:
        runner.run(client.aclose())


def test_reference_shows_each_public_name() -> None:
    """Each public name stands on a page of the reference, by itself or with its whole module."""
    with_names = runpy.run_path(str(ROOT / "docs-theme" / "hooks.py"))["with_names"]
    pages = "\n".join(
        with_names(page.read_text("utf-8"), f"reference/{page.name}")
        for page in ROOT.glob("docs/reference/*.md")
    )
    shown = set(re.findall(r"^::: (aiolock[\w.]*)", pages, re.MULTILINE))
    errors = [name for name, it in vars(aiolock.errors).items() if inspect.isclass(it)]
    missing = set[str]()
    names = (*aiolock.__all__, *aiolock.options.__all__, *aiolock.testing.__all__, *errors)
    for name in names:
        places = {module.__name__ for module in MODULES if hasattr(module, name)}
        if not shown & (places | {f"{place}.{name}" for place in places}):
            missing.add(name)
    for name in aiolock.sync.__all__:
        if f"aiolock.sync.{name}" not in shown:
            missing.add(f"sync.{name}")
    for entry in pkgutil.iter_modules(aiolock.integrations.__path__, "aiolock.integrations."):
        if "._" not in entry.name and entry.name not in shown:
            missing.add(entry.name)
    assert not missing, f"docs/reference/ forgets: {missing}"


def test_readme_links_are_absolute_and_lead_to_existing_files() -> None:
    """They are absolute, for it is the package's page as well, and lead to what there is."""
    text = (ROOT / "README.md").read_text("utf-8")
    links = re.findall(r"\]\(([^)]+)\)|^\[[^\]]+\]: (\S+)$", text, re.MULTILINE)
    urls = {inline or reference for inline, reference in links}
    assert all(url.startswith("https://") for url in urls)
    pages = r"github\.com/aiolock/aiolock/(?:blob|tree)|raw\.githubusercontent\.com/aiolock/aiolock"
    ours = re.compile(rf"https://(?:{pages})/main/([^#]+)")
    paths = {found[1] for url in urls if (found := ours.match(url))}
    assert paths
    assert {path for path in paths if not (ROOT / path).exists()} == set()
    defined = set(re.findall(r"^\[([^\]]+)\]: ", text, re.MULTILINE))
    assert defined == set(re.findall(r"\]\[([^\]]+)\]", text))


async def test_acl_rule_of_the_docs_suffices_for_a_client(own_server: RedisServer) -> None:
    """A user with the rule that the documentation names can do all that a client does."""
    page = (ROOT / "docs/stores/redis.md").read_text("utf-8")
    rule = re.search(r"^ACL SETUSER locks on >password (.+)$", page, re.MULTILINE)
    assert rule is not None
    own_server.call("ACL", "SETUSER", "locks", "on", ">password", *rule[1].split())
    url = f"redis://locks:password@127.0.0.1:{own_server.port}/1"
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        async with ours.lock("x") as lease:
            waiting = asyncio.create_task(theirs.lock("x", timeout=10).acquire())
            async with asyncio.timeout(30):
                while not (await ours.lock("x").status()).waiters:  # noqa: ASYNC110  # tells nobody
                    await asyncio.sleep(0.01)
            with pytest.raises(aiolock.QueueFull):
                await theirs.lock("x", max_waiters=1).acquire()
            await lease.extend(20)
        handed_over = await waiting
        assert await ours.lock("x").break_()
        assert await handed_over.release() is False
