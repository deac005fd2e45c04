"""Some of the examples, quickly: the others, and more of these, are in `tests/proof/programs/`."""

from __future__ import annotations

import asyncio
import importlib
import re
from pathlib import Path

import httpx
import pytest

import aiolock
from tests.support.failures import queued
from tests.support.procs import Worker
from tests.support.servers import RedisServer

EXAMPLES = Path(__file__).parents[2] / "examples"


async def test_fastapi_example_that_shuts_down_answers_503_to_waiters(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A request that waits when the client is closed is told that it may try elsewhere: 503."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    monkeypatch.syspath_prepend(EXAMPLES)
    app = importlib.import_module("fastapi_app").app
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with http, app.router.lifespan_context(app), aiolock.connect("memory://") as others:
        lock = others.lock("stock:pear")
        async with lock:
            buying = asyncio.create_task(http.post("/items/pear/sales"))
            await queued(lock, 1)
            await app.state.aiolock.aclose()
            reply = await buying
    assert reply.status_code == 503
    assert reply.headers["Retry-After"] == "1"


async def test_fastapi_example_with_negative_stock_answers_409(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Whatever has brought the stock below nothing, it sells no more."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    monkeypatch.syspath_prepend(EXAMPLES)
    app = importlib.import_module("fastapi_app").app
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with http, app.router.lifespan_context(app):
        assert await app.state.stock.write("plum", -1, 1)
        assert (await http.post("/items/plum/sales")).status_code == 409


async def test_packing_example_refuses_to_cancel_an_order_that_it_has_accepted(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In one process: who asks meanwhile waits until it is packed."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    monkeypatch.setenv("PACKING_SECONDS", "0.02")
    monkeypatch.syspath_prepend(EXAMPLES)
    app = importlib.import_module("packing").app
    http = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")
    async with http, app.router.lifespan_context(app):
        assert (await http.post("/orders/42/packing")).status_code == 202
        assert (await http.delete("/orders/42")).status_code == 409
        assert (await http.post("/orders/42/packing")).status_code == 409
        assert (await http.delete("/orders/7")).status_code == 204


async def test_worker_example_told_to_end_while_waiting_finishes_its_message(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is told to end while it waits for a lock still does that message."""
    monkeypatch.setenv("AIOLOCK_URL", own_server.url)
    busy = Worker(str(EXAMPLES / "worker.py"))
    async with busy, aiolock.connect(own_server.url) as locks:
        lock = locks.lock("user:ada")
        async with lock:
            own_server.call("RPUSH", "signups", "ada")
            await queued(lock, 1)
            await busy.ask_to_end()
        for line in ("ada is being set up", "ada is set up"):
            assert (await busy.expect("print"))["text"] == line
        assert await busy.wait() == 0
        assert await lock.status() == aiolock.Status("user:ada", (), (), kind="lock")
    assert own_server.call("EXISTS", "signups", "taken") == 0


async def test_upstream_example_has_no_call_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty workers, and an API that counts in any window."""
    for name, value in (("AIOLOCK_URL", "memory://"), ("SECONDS", "2"), ("JOBS", "150")):
        monkeypatch.setenv(name if name == "AIOLOCK_URL" else f"UPSTREAM_{name}", value)
    async with Worker(str(EXAMPLES / "upstream.py")) as script:
        assert await script.wait() == 0
        while "all 150 jobs" not in (said := (await script.expect("print"))["text"]):
            assert said.startswith("job ")
        assert said == "all 150 jobs are done, 0 calls were refused"


async def test_script_example_takes_its_lock_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """The script takes its lock and says so."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    async with Worker(str(EXAMPLES / "script.py")) as script:
        said = await script.expect("print")
        assert re.fullmatch(r"we hold 'report', fence \d+", said["text"])
        assert await script.wait() == 0
