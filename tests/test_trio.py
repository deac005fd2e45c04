"""Under trio, which has no asyncio: whatever is asked says so at once."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import textwrap
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager
from typing import Any

import anyio
import pytest
import trio
from starlette.applications import Starlette

import aiolock
from aiolock.integrations.starlette import setup

SAYS = r"aiolock runs on asyncio, and no asyncio event loop is running here\. Under trio"

Entry = Callable[[aiolock.LockClient], Awaitable[Any]]


@pytest.fixture(params=["not opened", "opened elsewhere", "closed"])
def client(request: pytest.FixtureRequest) -> Iterator[aiolock.LockClient]:
    """A client that somebody tries to use under trio."""
    client = aiolock.connect("memory://")
    if request.param == "not opened":
        yield client
        return
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def there(what: Awaitable[None]) -> None:
        async def carry_out() -> None:
            await what

        asyncio.run_coroutine_threadsafe(carry_out(), loop).result(10)

    there(client.open())
    if request.param == "closed":
        there(client.aclose())
    yield client
    if request.param != "closed":
        there(client.aclose())
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


async def entered(manager: AbstractAsyncContextManager[Any]) -> None:
    """Enter it."""
    async with manager:
        raise AssertionError("it was entered")


async def decorated(client: aiolock.LockClient) -> None:
    """Call a function that takes a lock."""

    @client.locked("a")
    async def function() -> None:
        raise AssertionError("it was called")

    await function()


ENTRIES: dict[str, Entry] = {
    "open": lambda client: client.open(),
    "async with": entered,
    "aclose": lambda client: client.aclose(),
    "acquire": lambda client: client.lock("a").acquire(),
    "try": lambda client: client.lock("a").try_acquire(),
    "lock": lambda client: entered(client.lock("a")),
    "entered acquire": lambda client: entered(client.lock("a").acquire(timeout=1)),
    "release": lambda client: client.lock("a").release(),
    "locked": lambda client: client.lock("a").locked(),
    "status": lambda client: client.lock("a").status(),
    "break": lambda client: client.lock("a").break_(),
    "decorated": decorated,
    "rwlock": lambda client: entered(client.rwlock("a").write()),
    "semaphore": lambda client: entered(client.semaphore("s", 2)),
    "multilock": lambda client: entered(client.multilock("a", "b")),
    "path_lock": lambda client: entered(client.path_lock("a/b")),
    "once": lambda client: entered(client.once("o", remember=5)),
    "event": lambda client: client.event("e", remember=5).wait(),
    "latch": lambda client: client.latch("l", 2, remember=5).wait(),
    "barrier": lambda client: client.barrier("b", 2).wait(),
    "election": lambda client: entered(client.election("e").campaign("me")),
    "leader": lambda client: client.election("e").leader(),
    "snapshot": lambda client: client.snapshot(),
    "names": lambda client: client.names(),
    "deadlocks": lambda client: client.deadlocks(),
}


@pytest.mark.parametrize("entry", ENTRIES)
def test_client_method_under_trio_raises_runtime_error(
    client: aiolock.LockClient, entry: str
) -> None:
    """Opened or not: it is a RuntimeError that says what is needed, and nothing is asked."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match=SAYS):
            await ENTRIES[entry](client)

    trio.run(main)


def test_sync_lock_under_trio_works_in_threads_only() -> None:
    """`aiolock.sync` serves them, with its own event loop; trio's own thread would stand still."""
    with aiolock.sync.connect("memory://") as client:

        def work() -> str:
            with client.lock("a") as lease:
                return str(lease.state)

        async def main() -> str:
            with pytest.raises(RuntimeError, match=r"would block the event loop.*to_thread"):
                work()
            return await anyio.to_thread.run_sync(work)

        assert anyio.run(main, backend="trio") == "held"


def test_starlette_application_under_trio_fails_to_start() -> None:
    """It does not start, and says why."""
    app = Starlette()
    setup(app, aiolock.connect("memory://"))

    async def main() -> None:
        with pytest.raises(RuntimeError, match=SAYS):
            await entered(app.router.lifespan_context(app))

    trio.run(main)


def test_aiolock_client_fixture_under_trio_fails_the_test(tmp_path: Any) -> None:
    """A test on anyio's other backend fails by it, at its first use of the client."""
    (tmp_path / "test_it.py").write_text(
        textwrap.dedent("""
            import pytest

            @pytest.fixture
            def anyio_backend():
                return "trio"

            @pytest.mark.anyio
            async def test_it(aiolock_client):
                async with aiolock_client.lock("a"):
                    pass
        """)
    )
    pytest_ = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", ".")
    run = subprocess.run(pytest_, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert run.returncode == 1, run.stdout
    assert "RuntimeError: aiolock runs on asyncio" in run.stdout
