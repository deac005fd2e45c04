"""The fixtures for programs that use aiolock, in runs of pytest of their own."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading

import pytest

from aiolock.protocol import AskAgain, Event
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore

pytest_plugins = ["pytester"]

BODIES = """
import asyncio
import time
import aiolock
import pytest

{mark}

async def test_open(aiolock_client, aiolock_server):
    async with aiolock_client.lock("a") as lease:
        assert lease.state == "held"
        assert aiolock_server.names() == ["lock:a"]
        async with aiolock.connect(aiolock_server) as another:
            assert await another.lock("a").try_acquire() is None

async def test_busy(aiolock_client, aiolock_others):
    lock = aiolock_client.lock("a")
    with aiolock_others.hold("a") as fence:
        assert await lock.try_acquire(timeout=0.01) is None
        waiting = asyncio.create_task(lock.acquire())
        while not (status := await lock.status()).waiters:
            pass
        assert status.holders[0].alive
    lease = await waiting
    assert lease.fence > fence
    await lease.release()

async def test_crashed(aiolock_client, aiolock_others, aiolock_clock):
    aiolock_others.take("a")
    aiolock_clock.advance(31)
    async with aiolock_client.lock("a", timeout=0):
        pass

async def test_lost(aiolock_client, aiolock_clock):
    with pytest.raises(aiolock.LeaseLost):
        async with aiolock_client.lock("a"):
            aiolock_clock.advance(31)
            await asyncio.sleep(10)

async def test_fault(aiolock_client, aiolock_faults):
    aiolock_faults.refuse("acquire")
    with pytest.raises(aiolock.StoreError):
        await aiolock_client.lock("a").acquire()
    assert aiolock_faults.calls["acquire"] == 1

async def test_frozen(aiolock_client, monkeypatch):
    async with aiolock_client.lock("a") as lease:
        with monkeypatch.context() as frozen:
            frozen.setattr(time, "monotonic", lambda: 1e9)
            assert await lease.verify()

async def test_opened(aiolock_client):
    async with aiolock_client, aiolock_client.lock("a"):
        pass
"""


@pytest.mark.parametrize(
    ("mark", "options"),
    [
        pytest.param("", ["--asyncio-mode=auto"], id="asyncio-auto"),
        pytest.param(
            "pytestmark = pytest.mark.asyncio", ["--asyncio-mode=strict"], id="asyncio-strict"
        ),
        pytest.param(
            "pytestmark = pytest.mark.anyio\n"
            '@pytest.fixture\ndef anyio_backend(): return "asyncio"',
            ["-p", "no:asyncio"],
            id="anyio",
        ),
    ],
)
def test_fixtures_work_under_each_async_plugin(
    pytester: pytest.Pytester, mark: str, options: list[str]
) -> None:
    """They are the same under each plugin that runs async tests."""
    pytester.makepyfile(BODIES.format(mark=mark))
    scope = "asyncio_default_fixture_loop_scope=function"
    options = options if "no:asyncio" in options else [*options, "-o", scope]
    pytester.runpytest_inprocess(*options, "-W", "error").assert_outcomes(passed=7)


def test_fixtures_work_with_an_application_and_threads(pytester: pytest.Pytester) -> None:
    """One that a test client starts, more than once, in a thread of its own; and threads."""
    pytester.makepyfile(
        """
        from concurrent.futures import ThreadPoolExecutor
        from contextlib import asynccontextmanager

        import aiolock
        import pytest
        from aiolock.protocol import ReadStatus
        from fastapi import FastAPI
        from fastapi.testclient import TestClient

        @pytest.fixture
        def client(aiolock_server):
            @asynccontextmanager
            async def lifespan(app):
                async with aiolock.connect(aiolock_server) as app.state.locks:
                    yield

            app = FastAPI(lifespan=lifespan)

            @app.post("/orders/{order}")
            async def pay(order: str, timeout: float):
                async with app.state.locks.lock(f"order:{order}", timeout=timeout) as lease:
                    return {"fence": lease.fence}

            @app.exception_handler(aiolock.AcquireTimeout)
            async def busy(request, error):
                from fastapi.responses import JSONResponse
                return JSONResponse({}, 423)

            with TestClient(app) as client:
                yield client

        @pytest.mark.parametrize("time", [1, 2])
        def test_pays(client, aiolock_others, aiolock_server, time):
            assert client.post("/orders/7?timeout=0").status_code == 200
            with ThreadPoolExecutor(1) as threads:
                with aiolock_others.hold("order:7") as fence:
                    assert client.post("/orders/7?timeout=0").status_code == 423
                    waiting = threads.submit(client.post, "/orders/7?timeout=20")
                    while not aiolock_server.run(ReadStatus("lock:order:7")).waiters:
                        pass
                assert waiting.result(20).json()["fence"] > fence

        def test_crashed(client, aiolock_others, aiolock_clock):
            aiolock_others.take("order:7")
            aiolock_clock.advance(31)
            assert client.post("/orders/7?timeout=0").status_code == 200

        def test_threads(aiolock_server, aiolock_others):
            with aiolock.sync.connect(aiolock_server) as client:
                with aiolock_others.hold("a"):
                    assert client.lock("a").try_acquire(timeout=0.01) is None
                with client.lock("a"):
                    pass
        """
    )
    done = pytester.runpytest_inprocess("-p", "no:asyncio", "-W", "default")
    done.assert_outcomes(passed=4)


def test_fixtures_fail_a_test_that_leaves_a_lock_held(pytester: pytest.Pytester) -> None:
    """A test that leaves a lock held fails, and so does one that makes busy what is held."""
    pytester.makepyfile(
        """
        import asyncio
        import gc
        import pytest

        leases = []

        async def test_leaves(aiolock_client):
            leases.append(await aiolock_client.lock("a").acquire())

        def test_is_told_once():
            leases.clear()
            gc.collect()

        async def test_takes_twice(aiolock_client, aiolock_others):
            async with aiolock_client.lock("a"):
                aiolock_others.take("a")

        async def test_leaves_nothing(aiolock_client):
            async with aiolock_client.lock("a", lock_delay=60):
                pass

        async def test_leaves_what_is_done(aiolock_client):
            async with aiolock_client.once("a", remember=60) as lease:
                assert lease

        def test_leaves_it_to_the_others(aiolock_others):
            aiolock_others.take("a")

        def test_gives_the_others_no_kind(aiolock_others):
            for call in (aiolock_others.take, aiolock_others.release):
                with pytest.raises(ValueError, match="kind must be one of lock, .*, not 'mutex'"):
                    call("a", kind="mutex")

        def test_moves_back(aiolock_clock):
            with pytest.raises(ValueError, match="back"):
                aiolock_clock.advance(-1)
        """
    )
    done = pytester.runpytest_inprocess(
        *("--asyncio-mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
        *("-W", "error"),
    )
    done.assert_outcomes(passed=7, failed=1, errors=1)
    done.stdout.fnmatch_lines(["*the test has left locks held or waited for: lock:a*"])
    done.stdout.fnmatch_lines(["*lock:a is held already*"])


def test_fixtures_fail_a_test_that_drops_a_lease(pytester: pytest.Pytester) -> None:
    """It is released by then, so the server holds nothing; the test has forgotten it all the same.

    So it is with a client that the test makes, and with what is dropped by a task.
    """
    pytester.makepyfile(
        """
        import aiolock
        import asyncio

        async def test_drops(aiolock_client):
            await aiolock_client.lock("dropped").acquire()

        async def test_drops_at_its_end(aiolock_client):
            lease = await aiolock_client.semaphore("dropped", 2).acquire()

        async def test_drops_by_a_client_of_its_own(aiolock_server):
            async with aiolock.connect(aiolock_server) as client:
                async def forgets():
                    await client.lock("dropped").acquire()

                await asyncio.create_task(forgets())
                await asyncio.sleep(0.01)

        async def test_another_server(aiolock_client):
            async with aiolock.connect("memory://") as client:
                async def forgets():
                    await client.lock("of another server").acquire()

                await asyncio.create_task(forgets())
                await asyncio.sleep(0.01)

        async def test_releases(aiolock_client):
            lease = await aiolock_client.lock("released").acquire()
            await lease.release()
        """
    )
    done = pytester.runpytest_inprocess(
        *("--asyncio-mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
        *("-W", "ignore::ResourceWarning"),
    )
    done.assert_outcomes(passed=5, errors=3)
    done.stdout.fnmatch_lines(["*the test has dropped leases without releasing them: dropped*"])
    done.stdout.no_fnmatch_line("*of another server*")


@pytest.mark.parametrize(
    ("fault", "operation", "says"),
    [
        ("refuse", "aquire", "did you mean 'acquire'"),
        ("refuse", "push", "none of"),
        ("lose", "open", "none of"),
        ("hold", "releases", "did you mean 'release'"),
    ],
)
def test_fault_of_an_unknown_operation_raises_value_error(
    fault: str, operation: str, says: str
) -> None:
    """A name with a slip would be a fault that never comes, and a test that passes without it."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    with pytest.raises(ValueError, match=says):
        getattr(faulty, fault)(operation)


WAITERS = """
import asyncio
import pytest

pytestmark = pytest.mark.asyncio

async def enter(context):
    async with context:
        pass

async def run(periodic):
    done = asyncio.Event()

    async def job(*_):
        done.set()

    task = asyncio.create_task(periodic.run(job))
    await done.wait()
    task.cancel()

@pytest.mark.parametrize(
    ("kind", "wait"),
    [
        ("lock", lambda client: enter(client.lock("a"))),
        ("lock", lambda client: enter(client.rwlock("a").read())),
        ("semaphore", lambda client: enter(client.semaphore("a", 2))),
        ("election", lambda client: enter(client.election("a").campaign())),
        ("once", lambda client: enter(client.once("a", remember=60))),
        ("periodic", lambda client: run(client.periodic("a", every=60))),
    ],
)
async def test_held(aiolock_client, aiolock_others, aiolock_clock, kind, wait):
    aiolock_others.take("a", kind=kind, ttl=30)
    waiting = asyncio.create_task(wait(aiolock_client))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    aiolock_clock.advance(60)
    await asyncio.wait_for(waiting, 5)

async def test_closed(aiolock_client, aiolock_clock):
    lock = aiolock_client.lock("a", min_hold=30)
    await enter(lock)
    waiting = asyncio.create_task(enter(lock))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    aiolock_clock.advance(31)
    await asyncio.wait_for(waiting, 5)
"""


def test_clock_that_is_advanced_grants_to_waiters_at_once(pytester: pytest.Pytester) -> None:
    """They would ask again at the end of the lease, by the clock of their event loop."""
    pytester.makepyfile(WAITERS)
    done = pytester.runpytest_inprocess(
        "--asyncio-mode=strict", "-o", "asyncio_default_fixture_loop_scope=function"
    )
    done.assert_outcomes(passed=7)


async def test_resume_in_another_thread_delivers_in_the_event_loop() -> None:
    """A test of `aiolock.sync` resumes in its own thread: what is held back may not run there."""
    faulty = FaultyStore(MemoryStore(server := MemoryServer()))
    threads: list[int] = []

    def deliver(event: Event) -> None:
        threads.append(threading.get_ident())

    faulty.resume()  # of no use before it is open, and no error
    await faulty.open("a", deliver)
    faulty.hold("push")
    server.push("a", AskAgain("lock:a"))
    await asyncio.sleep(0)
    await asyncio.to_thread(faulty.resume)
    await asyncio.sleep(0)
    assert threads == [threading.get_ident()]
    await faulty.aclose()


KINDS = """
import aiolock
import asyncio
import pytest

pytestmark = pytest.mark.asyncio

async def work(lease):
    return "done"

async def hold(context):
    async with context:
        pass

LEAVES_NOTHING = {
    "once": lambda locks: hold(locks.once("a", remember=60)),
    "outcome": lambda locks: locks.once("a", remember=60).outcome(work),
    "min_hold": lambda locks: hold(locks.lock("a", min_hold=60)),
    "periodic": lambda locks: hold(locks.periodic("a", every=3600)),
    "event": lambda locks: locks.event("a").set(),
    "latch": lambda locks: locks.latch("a", 2).count_down(),
    "election": lambda locks: hold(locks.election("a").campaign()),
    "semaphore": lambda locks: hold(locks.semaphore("a", 2)),
}

@pytest.mark.parametrize("kind", LEAVES_NOTHING)
async def test_leaves_nothing(aiolock_client, kind):
    await LEAVES_NOTHING[kind](aiolock_client)

leaves = []

@pytest.mark.parametrize("kind", ["once", "periodic", "semaphore"])
async def test_leaves(aiolock_client, kind):
    context = {
        "once": lambda: aiolock_client.once("a", remember=60),
        "periodic": lambda: aiolock_client.periodic("a", every=3600),
        "semaphore": lambda: aiolock_client.semaphore("a", 2),
    }[kind]()
    leaves.append(context)
    await context.__aenter__()
"""


def test_fixtures_fail_held_leases_of_each_kind_and_pass_remembered_work(
    pytester: pytest.Pytester,
) -> None:
    """What is remembered, or closed for a while, is not left by anybody; what is held is."""
    pytester.makepyfile(KINDS)
    done = pytester.runpytest_inprocess(
        "--asyncio-mode=strict", "-o", "asyncio_default_fixture_loop_scope=function"
    )
    done.assert_outcomes(passed=11, errors=3)
    for kind in ("once", "periodic", "semaphore"):
        done.stdout.fnmatch_lines([f"*the test has left locks held or waited for: {kind}:a*"])


def test_plugin_in_a_run_without_its_fixtures_imports_no_aiolock(pytester: pytest.Pytester) -> None:
    """A run that has nothing to do with aiolock imports nothing of it."""
    pytester.makepyfile(
        """
        import sys

        def test_nothing():
            assert "pytest_aiolock" in sys.modules
            assert [name for name in sys.modules if name.startswith("aiolock")] == []
        """
    )
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", "no:asyncio"],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_plugin_exports_its_types_by_name() -> None:
    """What tests are annotated with is there by name."""
    import pytest_aiolock

    for name in pytest_aiolock.__all__:
        assert getattr(pytest_aiolock, name).__name__ == name
    with pytest.raises(AttributeError, match="nothing"):
        _ = pytest_aiolock.nothing
