"""Between a grant and its being kept nothing may raise; and what fails is not tried for ever."""

from __future__ import annotations

import asyncio
import dis
import gc
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Self

import pytest

import aiolock
from aiolock import Lease, LockClient, StoreError
from aiolock.observer import LockRequest
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import asking, queued, settled, virtual

PACKAGE = str(Path(aiolock.__file__).parent)
OTHERS = (str(Path(PACKAGE, "stores")), str(Path(PACKAGE, "_prompt.py")))


class Broken(BaseException):
    """What a step raises that never raises."""


class Over(Exception):
    """What ends a body before it has done its work."""


Inside = Callable[[], Awaitable[object]]


async def enters(client: LockClient, inside: Inside) -> None:
    """As most do."""
    async with client.lock("a"):
        await inside()


async def acquires_with(client: LockClient, inside: Inside) -> None:
    """With options of its own."""
    async with client.lock("a").acquire():
        await inside()


async def acquires(client: LockClient, inside: Inside) -> None:
    """By hand."""
    lease = await client.lock("a").acquire(timeout=100)
    try:
        await inside()
    finally:
        await lease.release()


async def calls(client: LockClient, inside: Inside) -> None:
    """A function that is decorated."""
    await client.locked("a")(inside)()


async def writes_twice(client: LockClient, inside: Inside) -> None:
    """The second time of a re-entrant lock no grant is needed."""
    write = client.rwlock("a", reentrant=True).write()
    async with write, write:
        await inside()


async def takes_permits(client: LockClient, inside: Inside) -> None:
    """Several at once."""
    async with client.semaphore("a", 3).acquire(permits=3):
        await inside()


async def enters_several(client: LockClient, inside: Inside) -> None:
    """Several locks."""
    async with client.multilock("a", "b"):
        await inside()


async def tries(client: LockClient, inside: Inside) -> None:
    """By hand, for so long."""
    lease = await client.lock("a").try_acquire(timeout=100)
    assert lease is not None
    try:
        await inside()
    finally:
        await lease.release()


async def acquires_several(client: LockClient, inside: Inside) -> None:
    """Several locks, by hand."""
    lease = await client.multilock("a", "b").acquire()
    try:
        await inside()
    finally:
        await lease.release()


async def does_once(client: LockClient, inside: Inside) -> None:
    """What is done once."""
    async with client.once("a", remember=1) as lease:
        if lease is not None:
            await inside()


async def wants_outcome(client: LockClient, inside: Inside) -> None:
    """What is done once and has a result."""

    async def work(_: Lease) -> str:
        await inside()
        return "done"

    await client.once("a", remember=1).outcome(work)


async def leads(client: LockClient, inside: Inside) -> None:
    """A leader."""
    async with client.election("a").campaign("here"):
        await inside()


async def runs(client: LockClient, inside: Inside) -> None:
    """A run of a period, whose grant is confirmed before."""
    async with client.periodic("a", every=0.5):
        await inside()


WAYS = [
    *(enters, acquires_with, acquires, calls, writes_twice, takes_permits, enters_several),
    *(tries, acquires_several, does_once, wants_outcome, leads, runs),
]


class Watching(aiolock.Observer):
    """One that is told of everything, and keeps nothing."""

    def waiting(self, request: LockRequest) -> None: ...
    def acquired(self, request: LockRequest, **facts: Any) -> None: ...
    def gave_up(self, request: LockRequest, **facts: Any) -> None: ...
    def released(self, request: LockRequest, **facts: Any) -> None: ...


@cache
def _is_a_step(code: CodeType) -> bool:
    file = code.co_filename
    return file.startswith(PACKAGE) and not file.startswith(OTHERS)


@cache
def _beginning(code: CodeType) -> int:
    return next(each.offset for each in dis.get_instructions(code) if each.opname == "RESUME")


def _deletes(frame: FrameType | None) -> bool:
    """Whether a finalizer is being called, which the garbage collector may do at any step."""
    while frame is not None:
        if frame.f_code.co_name in {"__del__", "collected"}:
            return True
        frame = frame.f_back
    return False


class Striker:
    """Raises in one of the steps of a task: where a function of aiolock begins that it calls.

    But none of the stores, nor of the future, on which the event loop calls.
    """

    def __init__(self, at: int) -> None:
        self.at = at
        self.task: asyncio.Task[Any] | None = None
        self.seen = list[str]()
        self.struck = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        if event != "call" or self.task is None or not _is_a_step(frame.f_code):
            return
        if self.struck or asyncio.current_task() is not self.task:
            return
        if frame.f_lasti > _beginning(frame.f_code):
            return  # it goes on after an await
        if _deletes(frame):
            return  # what that raises is ignored
        code = frame.f_code
        self.seen.append(f"{code.co_filename[len(PACKAGE) :]} {code.co_qualname}")
        if len(self.seen) == self.at:
            self.struck = self.seen[-1]
            raise Broken

    def __enter__(self) -> Self:
        self.before = sys.getprofile()
        sys.setprofile(self)
        return self

    def __exit__(self, *error: object) -> None:
        sys.setprofile(self.before)


@pytest.mark.parametrize("waits", [False, True], ids=["free", "waits"])
@pytest.mark.filterwarnings("ignore:.*was never awaited")  # where that is the step that raises
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.__name__)
@virtual
async def test_acquire_that_raises_at_any_step_leaves_nothing_held(
    way: Callable[..., Any], waits: bool
) -> None:
    """Whichever step on the way into a body raises: nothing is left, and the next one gets it."""
    server = MemoryServer()
    async with (
        aiolock.connect(server, ttl=3600, observer=Watching()) as ours,
        aiolock.connect(server) as theirs,
    ):
        striker = Striker(1)
        while True:
            await raises_at_a_step(striker, way, ours, theirs, waits=waits)
            if not striker.struck:
                break
            striker = Striker(striker.at + 1)
        gc.collect()  # what was not awaited warns here, where that is expected
        assert any("Watchdog.keep" in name for name in striker.seen)


async def raises_at_a_step(
    striker: Striker, way: Callable[..., Any], ours: LockClient, theirs: LockClient, *, waits: bool
) -> None:
    """One task enters, behind another client's and before another of its own, and one step raises.

    Where its step raises it ends with that; else it was in the body.
    """
    entered, going = asyncio.Event(), asyncio.Event()

    async def block() -> None:
        entered.set()
        await going.wait()
        raise Over  # so that what is to be done once is not done

    async def inside() -> None:
        striker.task = None

    async def victim() -> None:
        striker.task = asyncio.current_task()
        try:
            await way(ours, inside)
        finally:
            striker.task = None

    async def other() -> None: ...

    tasks = list[asyncio.Task[None]]()
    ours._engine.watchdog.index()
    ours._engine.waiters.index()
    if waits:
        blocking = asyncio.create_task(way(theirs, block))
        await entered.wait()
        tasks.append(blocking)
    with striker:
        ending = asyncio.create_task(victim())
        await settled()
        if waits:
            tasks.append(asyncio.create_task(way(ours, other)))
            await settled()
        going.set()
        await asyncio.wait([ending], timeout=100)
    end = ending.exception()
    assert isinstance(end, Broken) if striker.struck else end is None, (striker.struck, end)
    async with asyncio.timeout(100):
        await asyncio.gather(*tasks, return_exceptions=True)
        await way(theirs, other)
    await settled()
    engine = ours._engine
    left = (
        engine.waiters.acquisitions,
        engine.waiters._queues,
        engine.waiters.blocked,
        engine.watchdog.holds,
        engine.watchdog.owned,
        engine.watchdog.holders,
    )
    assert left == ({}, {}, {}, {}, {}, {}), striker.struck
    assert not len(engine.entered), striker.struck
    assert not engine.waiters.on_reconnect - {engine.slow_monitor.publish_again}, striker.struck
    await asyncio.sleep(2)  # what is remembered is forgotten


@virtual
async def test_release_that_keeps_failing_is_retried_less_and_less_and_then_dropped() -> None:
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
async def test_acquire_failing_four_thousand_times_keeps_no_memory() -> None:
    """After 4,000 failures, some each second, nothing is kept of them and little was sent."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    objects = list[int]()
    async with aiolock.connect(faulty) as client:
        faulty.lose("acquire", sys.maxsize)
        faulty.refuse("release", sys.maxsize)
        for number in range(4000):
            with pytest.raises(StoreError):
                await client.lock(f"name {number % 7}", ttl=1).acquire()
            if number % 10 == 0:
                await asyncio.sleep(1)
            assert len(client._engine.watchdog.releases) <= 10 * 100
            if number in {1999, 3999}:
                await asyncio.sleep(120)
                assert not len(client._engine.watchdog.releases)
                gc.collect()
                objects.append(len(gc.get_objects()))
        assert faulty.calls["release"] <= 10 * 4000
    assert objects[1] - objects[0] < 500, "one for each would be 2,000 more"


@virtual
async def test_acquire_refused_by_the_store_sends_no_release() -> None:
    """Where the store has certainly done nothing, nothing is sent to undo it."""
    store = MemoryStore(MemoryServer())
    faulty = FaultyStore(store)

    class Refusing(StoreError):
        refused = True

    async with aiolock.connect(faulty) as client:

        def refuse(_: object) -> asyncio.Future[Any]:
            future = asyncio.get_running_loop().create_future()
            future.set_exception(Refusing("full"))
            return future

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "submit", refuse)
            for _ in range(100):
                with pytest.raises(StoreError, match="full"):
                    await client.lock("a").acquire()
        assert faulty.calls["release"] == 0


@virtual
async def test_waiter_whose_questions_are_refused_for_a_while_stays_queued() -> None:
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
async def test_waiters_whose_questions_fail_ask_again_ever_less_often() -> None:
    """Each asks again by itself, ever less often: not whenever one of the others does."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        waiting = list[asyncio.Task[Lease]]()
        for number in range(20):
            await theirs.lock(f"{number}").acquire()
            waiting.append(asking(ours.lock(f"{number}")))
            await asyncio.sleep(0.1)
        before = faulty.calls["acquire"]
        faulty.refuse("acquire", sys.maxsize)
        await asyncio.sleep(60)
        assert 200 < faulty.calls["acquire"] - before < 20 * 25
        faulty.resume()
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


@virtual
@pytest.mark.parametrize(("ttl", "least"), [(20, 20), (1, 10)])
async def test_waiter_facing_a_lasting_misconfiguration_gets_the_error(
    ttl: float, least: float
) -> None:
    """What somebody must change is an error, once a holder would not believe in its lease any more.

    For a short lease, it is one after ten seconds.
    """

    def wrong_password(operation: str) -> StoreError:
        error = StoreError(f"{operation}: another password")
        error.refused = error.misconfigured = True
        return error

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
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("aiolock.testing._faulty._refusal", wrong_password)
            faulty.refuse("acquire", sys.maxsize)
            with pytest.raises(StoreError, match="another password"):
                await waiting
        assert least <= loop.time() - began <= least + 10
        assert faulty.calls["acquire"] < 60


@virtual
async def test_waiter_without_timeout_waits_out_an_outage_and_logs_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Without a timeout it waits for as long as it takes, and the log says so once a minute."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        held = await theirs.lock("a", ttl=5).acquire()
        waiting = [asking(ours.lock("a", ttl=1)) for _ in range(3)]
        await queued(theirs.lock("a"), 3)
        faulty.refuse("acquire", sys.maxsize)
        await asyncio.sleep(100)
        assert not any(each.done() for each in waiting)
        told = [each.message for each in caplog.records if "is still waited for" in each.message]
        assert 1 <= len(told) <= 3
        faulty.resume()
        await held.release()
        for each in waiting:
            await (await each).release()


@virtual
@pytest.mark.parametrize("how", ["release", "with", "error"])
async def test_release_refused_by_the_store_is_sent_again_soon(how: str) -> None:
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
            with suppress(Over):
                async with lock:
                    if how == "error":
                        raise Over
        async with theirs.lock("a"):
            # It is sent after a second, and after two more; and what was entered keeps its terms.
            assert 3.1 < loop.time() - began < 3.5
        assert not len(ours._engine.watchdog.releases)


@virtual
async def test_release_sent_again_does_not_end_a_later_grant() -> None:
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
async def test_exit_while_the_client_closes_waits_until_the_lease_ends() -> None:
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
