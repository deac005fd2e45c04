"""Every Python block of the documentation runs, in order, each page by itself.

A block may use `await` at its top, as in the asyncio REPL. It is given `asyncio`, `aiolock`, an
open `client` and a `work()` that takes a moment; the rest, a page brings itself. What cannot run
here is only compiled, and says why above the block: `<!-- not run: reason -->`.
"""

from __future__ import annotations

import ast
import asyncio
import re
import sqlite3
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import aiolock
from tests.servers import RedisServer

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
URL = "redis://localhost:6379/0"
BLOCK = re.compile(
    r"^(?P<not_run> *<!-- not run: .+ -->\n+)?"
    r"(?P<indent> *)```python\b.*\n(?P<code>(?s:.*?))^(?P=indent)```$",
    re.MULTILINE,
)


async def work() -> None:
    """The reader's own code."""
    await asyncio.sleep(0.001)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_page(page: Path, redis_server: RedisServer) -> None:
    """What a page shows works as it stands there."""
    text = page.read_text("utf-8").replace(URL, redis_server.url)
    found = list(BLOCK.finditer(text))
    assert len(found) == text.count("```python"), "a block does not end, or is badly indented"
    names: dict[str, object] = {}
    with asyncio.Runner() as runner, opened(runner, redis_server.url) as client:
        for block in found:
            if block["code"].lstrip().startswith("--8<--"):
                continue  # a file of its own, with tests of its own
            above = text[: block.start("code")].count("\n")
            source = "\n" * above + textwrap.dedent(block["code"])  # a traceback shows this line
            code = compile(source, page, "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
            if not block["not_run"]:
                names |= {"asyncio": asyncio, "aiolock": aiolock, "client": client, "work": work}
                awaitable = eval(code, names)
                if awaitable is not None:
                    runner.run(awaitable)
    for value in names.values():
        if isinstance(value, sqlite3.Connection):  # a page is no program that ends
            value.close()


@contextmanager
def opened(runner: asyncio.Runner, url: str) -> Iterator[aiolock.LockClient]:
    """An open client in the runner's loop, which runs only while a block does."""
    client = aiolock.connect(url)
    runner.run(client.open())
    try:
        yield client
    finally:
        runner.run(client.aclose())


async def test_acl_rule_is_enough(own_server: RedisServer) -> None:
    """A user with the rule that the documentation names can do all that a client does."""
    page = (ROOT / "docs/howto/server.md").read_text("utf-8")
    rule = re.search(r"^ACL SETUSER locks on >password (.+)$", page, re.MULTILINE)
    assert rule is not None
    own_server.call("ACL", "SETUSER", "locks", "on", ">password", *rule[1].split())
    url = f"redis://locks:password@127.0.0.1:{own_server.port}/1"
    async with aiolock.connect(url) as ours, aiolock.connect(url) as theirs:
        async with ours.lock("x") as lease:
            waiting = asyncio.create_task(theirs.lock("x", timeout=10).acquire())
            while not (await ours.lock("x").status()).waiters:  # noqa: ASYNC110  # tells nobody
                await asyncio.sleep(0.01)
            with pytest.raises(aiolock.QueueFull):
                await theirs.lock("x", max_waiters=1).acquire()
            await lease.extend(20)
        handed_over = await waiting
        assert handed_over is not None
        assert await ours.lock("x").break_()
        assert await handed_over.release() is False
