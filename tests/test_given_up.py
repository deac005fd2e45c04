"""Between a grant and its being kept nothing may raise; and what fails is not tried for ever."""

from __future__ import annotations

import asyncio
import gc
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest

import aiolock
from aiolock import StoreError
from aiolock._engine.acquirer import Acquirer
from aiolock._engine.backstop import LocalQueue
from aiolock._engine.hold import Hold
from aiolock._engine.lease import Lease
from aiolock._engine.scope import Scope
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog
from aiolock._engine.wheel import Wheel
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.worlds import asking, queued, settled, virtual


class Broken(Exception):
    """What a step raises that never raises."""


STEPS: list[tuple[type, str]] = [
    (Waiters, "leave"),
    (Acquirer, "_keep"),
    (LocalQueue, "leave"),
    (LocalQueue, "_ask_by"),
    (Hold, "__init__"),
    (Watchdog, "keep"),
    (Watchdog, "_due_at"),
    (Wheel, "schedule"),
    (Watchdog, "watch"),
    (Lease, "__init__"),
    (Scope, "__init__"),
]


# Who enters is not watched.
WAYS = [
    pytest.param(kind, step, how, id=f"{kind.__name__}.{step}-{how}")
    for kind, step in STEPS
    for how in ("with", "acquire with", "await")
    if step != "watch" or how == "await"
]


@pytest.mark.parametrize(("kind", "step", "how"), WAYS)
@pytest.mark.parametrize("waits", [False, True])
@virtual
async def test_a_step_that_raises(kind: type, step: str, how: str, waits: bool) -> None:
    """Whichever step after the grant raises: the grant is given back, and the next one gets it."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        lock = ours.semaphore("s", 1)
        held = await theirs.semaphore("s", 1).acquire() if waits else None
        others = [asking(lock._one) for _ in range(2)] if waits else []

        async def enter() -> None:
            async with lock if how == "with" else lock.acquire():
                pass

        async def take() -> None:
            await (await lock.acquire()).release()

        victim = asyncio.create_task(take() if how == "await" else enter())
        if waits:
            await queued(lock, 3)
            await settled()
            for other in others:  # so that somebody of our own stands behind it, or did
                other.cancel()
            others = [asking(lock._one)]
            await queued(lock, 2)
        original: Callable[..., Any] = getattr(kind, step)
        with pytest.MonkeyPatch.context() as patch:
            struck = False

            def strike(*args: Any, **kwargs: Any) -> Any:
                nonlocal struck
                if not struck:
                    struck = True
                    raise Broken
                return original(*args, **kwargs)

            patch.setattr(kind, step, strike)
            if held is not None:
                await held.release()
            (end,) = await asyncio.gather(victim, return_exceptions=True)
        # Not all of them are on every way: where one was, its error has come out.
        assert isinstance(end, Broken) if struck else end is None
        for other in others:
            await (await other).release()
        await settled()
        assert (await lock.status()).holders == ()
        engine = ours._engine
        left = (
            engine.waiters.attempts,
            engine.waiters._queues,
            engine.watchdog.holds,
            engine.watchdog.owned,
        )
        assert left == ({}, {}, {}, {})
        assert not len(engine.entered)
        async with theirs.semaphore("s", 1, timeout=0):
            pass


@virtual
async def test_releases_that_fail_end() -> None:
    """What was given up and not heard is tried less and less often, and at last no more."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        faulty.lose("acquire", sys.maxsize)
        faulty.refuse("release", sys.maxsize)
        for _ in range(100):
            with pytest.raises(StoreError):
                await client.lock("a", ttl=30).acquire()
        await settled()
        assert len(client._engine.watchdog.releases) == 100
        first = faulty.calls["release"]
        await asyncio.sleep(3600)
        assert not len(client._engine.watchdog.releases)
        assert faulty.calls["release"] - first <= 100 * 10
        before = faulty.calls["release"]
        await asyncio.sleep(3600)
        assert faulty.calls["release"] == before


@virtual
async def test_nothing_grows_with_failures() -> None:
    """After 10,000 failures, some each second, nothing is kept of them and little was sent."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        faulty.lose("acquire", sys.maxsize)
        faulty.refuse("release", sys.maxsize)
        for number in range(10_000):
            with pytest.raises(StoreError):
                await client.lock(f"name {number % 7}", ttl=1).acquire()
            if number % 10 == 0:
                await asyncio.sleep(1)
            assert len(client._engine.watchdog.releases) <= 10 * 100
        await asyncio.sleep(120)
        gc.collect()
        assert not len(client._engine.watchdog.releases)
        assert faulty.calls["release"] <= 10 * 10_000


@virtual
async def test_what_was_refused_needs_no_release() -> None:
    """Where the store has certainly done nothing, nothing is sent to undo it."""
    store = MemoryStore(MemoryServer())
    faulty = FaultyStore(store)

    class Refusing(StoreError):
        refused = True

    async with aiolock.connect(faulty) as client:

        def refuse(*_: Any, **__: Any) -> asyncio.Future[Any]:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(Refusing("full"))
            return future

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "acquire", refuse)
            for _ in range(100):
                with pytest.raises(StoreError, match="full"):
                    await client.lock("a").acquire()
        assert faulty.calls["release"] == 0


@virtual
async def test_a_waiter_outlives_refusals_that_pass() -> None:
    """Who stands in the queue is not thrown out by an answer that is missing, or a refusal."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        held = await theirs.lock("a", ttl=5).acquire()
        first, second = asking(ours.lock("a", ttl=1)), asking(ours.lock("a", ttl=20))
        await queued(theirs.lock("a"), 2)
        faulty.refuse("acquire", 12)
        await asyncio.sleep(15)
        assert faulty.calls["acquire"] > 14, "they did ask, and ask again"
        await held.release()
        lease = await first
        await lease.release()
        await (await second).release()


@virtual
@pytest.mark.parametrize(("ttl", "least"), [(20, 20), (1, 10)])
async def test_a_waiter_is_told_in_the_end(ttl: float, least: float) -> None:
    """A store that refuses for as long as a holder would believe in its lease is an error.

    For a short lease, it is one after ten seconds.
    """
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with (
        aiolock.connect(faulty) as ours,
        aiolock.connect(server) as theirs,
        theirs.lock("a", ttl=5),
    ):
        began = loop.time()
        waiting = asking(ours.lock("a", ttl=ttl))
        await queued(theirs.lock("a"), 1)
        faulty.refuse("acquire", sys.maxsize)
        with pytest.raises(StoreError):
            await waiting
        assert least <= loop.time() - began <= least + 10
        assert faulty.calls["acquire"] < 60


@virtual
@pytest.mark.parametrize("how", ["release", "with", "error"])
async def test_a_release_that_the_store_refuses_is_sent_again(how: str) -> None:
    """Who waits gets the lock as soon as the store takes the release, not when the lease ends."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        lock = ours.lock("a", ttl=30, min_hold=3.2)
        faulty.refuse("release", 2)
        began = loop.time()
        if how == "release":
            lease = await lock.acquire()
            with pytest.raises(StoreError):
                await lease.release()
        else:
            with suppress(Broken):
                async with lock:
                    if how == "error":
                        raise Broken
        async with theirs.lock("a"):
            # It is sent after a second, and after two more; and what was entered keeps its terms.
            assert 3.1 < loop.time() - began < 3.5
        assert not len(ours._engine.watchdog.releases)


@virtual
async def test_a_release_is_sent_again_for_the_same_grant() -> None:
    """However often it fails, it never takes away what the same client was granted after that."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        lock = client.lock("a", ttl=30)
        lease = await lock.acquire()
        faulty.lose("release", 3)
        with pytest.raises(StoreError):
            await lease.release()
        async with lock as again:
            await asyncio.sleep(20)
            assert faulty.calls["release"] == 4
            assert again.state == "held"


class SlowToClose(FaultyStore):
    """A store whose server does not answer while it is closed."""

    async def aclose(self) -> None:
        await asyncio.sleep(5)
        await super().aclose()


@virtual
async def test_an_exit_while_the_client_is_closed() -> None:
    """It waits for the release until its lease ends, and not for as long as the closing takes."""
    faulty = SlowToClose(MemoryStore(MemoryServer()))
    loop = asyncio.get_running_loop()
    client = aiolock.connect(faulty)
    began = loop.time()

    async def hold() -> float:
        async with client.lock("a", ttl=1):
            faulty.hold("release")
        return loop.time() - began

    async with client:
        held = asyncio.create_task(hold())
        await settled()
    assert held.done()
    assert 0.9 < await held < 1.01
