"""What observers are told, and the log that is one of them."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from datetime import timedelta
from typing import Any, Literal, Self

import pytest
import redis.exceptions

import aiolock
import aiolock.sync
from aiolock import (
    AcquireTimeout,
    ClientClosed,
    LeaseLost,
    LockRequest,
    Observer,
    QueueFull,
    StoreError,
    WouldDeadlock,
    observe,
)
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.proxy import Proxy
from tests.support.worlds import World, asking, queued, virtual


class Told(Observer):
    """Remembers all that it was told, in order."""

    slow_wait = 20.0
    slow_hold = 30.0

    def __init__(self) -> None:
        self.all = list[tuple[str, Any, dict[str, Any]]]()

    def _remember(self, what: str, of: Any, **facts: Any) -> None:
        self.all.append((what, of, facts))

    def waiting(self, request: LockRequest) -> None:
        self._remember("waiting", request)

    def acquired(self, request: LockRequest, **facts: Any) -> None:
        self._remember("acquired", request, **facts)

    def gave_up(self, request: LockRequest, **facts: Any) -> None:
        self._remember("gave_up", request, **facts)

    def released(self, request: LockRequest, **facts: Any) -> None:
        self._remember("released", request, **facts)

    def lost(self, request: LockRequest, **facts: Any) -> None:
        self._remember("lost", request, **facts)

    def waits_long(self, request: LockRequest, **facts: Any) -> None:
        self._remember("waits_long", request, **facts)

    def holds_long(self, request: LockRequest, **facts: Any) -> None:
        self._remember("holds_long", request, **facts)

    def link(self, state: str, error: Exception | None) -> None:
        self._remember("link", state, error=error)

    @property
    def words(self) -> list[str]:
        return [what for what, _, _ in self.all]

    def of(self, what: str) -> list[dict[str, Any]]:
        """The facts that came with it, each time."""
        return [{"request": of, **facts} for word, of, facts in self.all if word == what]


@pytest.fixture
def told() -> Told:
    """The observer of "us"."""
    return Told()


@pytest.fixture
async def client(world: World, told: Told) -> AsyncIterator[aiolock.LockClient]:
    """A client that is observed, on each store."""
    async with world.client(observer=told, label="billing") as client:
        yield client


async def soon(what: Callable[[], object]) -> None:
    """Return when it is so."""
    give_up = time.monotonic() + 30
    while not what():
        assert time.monotonic() < give_up, "it never came"
        await asyncio.sleep(0.01)


async def test_observer_of_a_free_lock_is_told_acquired_and_released(
    client: aiolock.LockClient, told: Told
) -> None:
    """It is acquired and released; both name the same request."""
    async with client.lock("order:42").acquire(label="job 17") as lease:
        await asyncio.sleep(0.02)
    assert told.words == ["acquired", "released"]
    (acquired,), (released,) = told.of("acquired"), told.of("released")
    assert acquired["request"] == LockRequest(
        kind="lock",
        name="order:42",
        family="order",
        client=client.id,
        seq=1,
        label="billing: job 17",
    )
    assert acquired["request"] == released["request"]
    assert acquired["fence"] == released["fence"] == lease.fence
    assert acquired["handed_on_by"] is None
    assert acquired["waited"] >= 0
    assert released["held"] >= 0.01


async def test_observer_of_a_taken_lock_is_told_waiting_before_acquired(
    client: aiolock.LockClient, told: Told
) -> None:
    """Who waits is told of before; and who handed it on, where both are tasks of one client."""
    lock = client.lock("order:42")
    lease = await lock.acquire()
    waits = asking(lock)
    await queued(lock, 1)
    await lease.release()
    await (await waits).release()
    assert told.words == ["acquired", "waiting", "released", "acquired", "released"]
    first, second = told.of("acquired")
    assert told.of("waiting")[0]["request"] == second["request"]
    assert second["handed_on_by"] in (None, first["request"])  # not every store lets it be known
    assert second["waited"] > 0


@virtual
async def test_acquired_after_a_local_handoff_names_the_holder_before() -> None:
    """It is known where it was handed on within the client."""
    told = Told()
    async with aiolock.connect(MemoryServer(), observer=told) as client:
        lock = client.lock("x")
        lease = await lock.acquire()
        tasks = [asking(lock) for _ in range(2)]
        await queued(lock, 2)
        await lease.release()
        for task in tasks:
            await (await task).release()
    first, second, third = told.of("acquired")
    assert second["handed_on_by"] == first["request"]
    assert third["handed_on_by"] == second["request"]


async def gives_up(client: aiolock.LockClient, other: aiolock.LockClient, why: str) -> None:
    """Ask for a lock that somebody has, and give up for that reason."""
    lock = client.lock("x", max_waiters=1)
    if why == "busy":
        assert await lock.try_acquire() is None
    elif why == "timeout":
        with pytest.raises(AcquireTimeout):
            async with lock.acquire(timeout=1):
                pass
    elif why == "cancelled":
        waits = asking(lock)
        await queued(lock, 1)
        waits.cancel()
        await asyncio.wait([waits])
    elif why == "full":
        waits = asking(other.lock("x"))
        await queued(lock, 1)
        with pytest.raises(QueueFull):
            await lock.acquire()
        waits.cancel()
        await asyncio.wait([waits])
    elif why == "closed":
        waits = asking(lock)
        await queued(lock, 1)
        await client.aclose()
        with pytest.raises(ClientClosed):
            await waits
    else:
        async with client.once("user", remember=60):
            pass
        async with client.once("user", remember=60) as lease:
            assert lease is None


@pytest.mark.parametrize("why", ["busy", "timeout", "cancelled", "full", "closed", "done"])
async def test_gave_up_is_told_last_and_with_its_reason(
    client: aiolock.LockClient, other: aiolock.LockClient, told: Told, why: str
) -> None:
    """The reason is told, on every store, and nothing else after it."""
    async with other.lock("x"):
        await gives_up(client, other, why)
    (gave_up,) = told.of("gave_up")
    assert gave_up["why"] == why
    assert told.words[-1] == "gave_up"
    assert ("waiting" in told.words) == (why in ("timeout", "cancelled", "closed"))


@virtual
async def test_gave_up_after_a_store_failure_has_the_reason_store() -> None:
    """That the store says nothing, or refuses, is told as such."""
    told = Told()
    store = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(store, observer=told) as client:
        store.refuse("acquire")
        with pytest.raises(StoreError):
            await client.lock("x").acquire()
        store.hold("acquire")
        with pytest.raises(StoreError):
            async with client.lock("x").acquire(timeout=1):
                pass
        store.resume()
    assert [each["why"] for each in told.of("gave_up")] == ["store", "store"]


@virtual
async def test_gave_up_at_a_deadlock_has_the_reason_deadlock() -> None:
    """Who would wait for itself within the process."""
    told = Told()
    async with aiolock.connect(MemoryServer(), observer=told) as client:
        have = asyncio.Barrier(2)

        async def take(first: str, second: str) -> None:
            async with client.lock(first):
                await have.wait()
                async with client.lock(second):
                    pass

        results = await asyncio.gather(take("a", "b"), take("b", "a"), return_exceptions=True)
        assert [type(each) for each in results if each] == [WouldDeadlock]
    assert [each["why"] for each in told.of("gave_up")] == ["deadlock"]


async def test_observer_of_a_broken_lock_is_told_lost_and_not_released(
    client: aiolock.LockClient, other: aiolock.LockClient, told: Told
) -> None:
    """What somebody takes away is lost, and not released."""
    lock = client.lock("x")
    held = asyncio.create_task(hold(lock))
    await soon(lambda: told.words == ["acquired"])
    await other.lock("x").break_()
    await held
    assert told.words == ["acquired", "lost"]
    (lost,) = told.of("lost")
    assert lost["reason"] == "broken"
    assert "broke it" in lost["why"]
    assert lost["fence"] == told.of("acquired")[0]["fence"]
    assert lost["held"] >= 0


@virtual
@pytest.mark.parametrize("on_lost", ["cancel", "signal"])
async def test_log_of_a_loss_says_if_a_body_is_cancelled_or_goes_on(
    on_lost: Literal["cancel", "signal"], caplog: pytest.LogCaptureFixture
) -> None:
    """It is cancelled, or goes on; and what was acquired by hand has none."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        told = "Its body is cancelled; what" if on_lost == "cancel" else "Its body goes on, for on_"
        with contextlib.suppress(aiolock.LeaseLost):
            async with ours.lock("a", on_lost=on_lost) as lease:
                await theirs.lock("a").break_()
                await lease.lost.wait()
        assert [told in record.getMessage() for record in caplog.records] == [True]
        caplog.clear()
        lease = await ours.lock("a", on_lost=on_lost).acquire()
        await theirs.lock("a").break_()
        await lease.lost.wait()
        assert ["has no body that" in each.getMessage() for each in caplog.records] == [True]


@pytest.mark.parametrize("on_lost", ["cancel", "signal"])
def test_log_of_a_loss_in_a_thread_says_that_the_body_goes_on(
    on_lost: Literal["cancel", "signal"], caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing stops a thread."""
    told = (
        "body is in a thread, and goes on" if on_lost == "cancel" else "Its body goes on, for on_"
    )
    with (
        aiolock.sync.connect("memory://") as client,
        contextlib.suppress(aiolock.LeaseLost),
        client.lock("a", on_lost=on_lost) as lease,
    ):
        assert client.break_("a")
        assert lease.lost.wait(60)
    assert [told in record.getMessage() for record in caplog.records] == [True]


@virtual
async def test_lost_is_told_at_expiry_and_at_a_refused_release() -> None:
    """A lease that ended here is lost; so is one of which only the answer to the release tells."""
    told, server = Told(), MemoryServer()
    async with aiolock.connect(server, observer=told) as client:
        lease = await client.lock("x", ttl=5, renew=False).acquire()
        await asyncio.sleep(6)
        assert told.words == ["acquired", "lost"]
        assert await lease.release() is False
        lease = await client.lock("y").acquire()
        server.leave(client.id)  # so nobody tells it
        await server_breaks(server, "y")
        assert await lease.release() is False
    assert told.words == ["acquired", "lost", "acquired", "released", "lost"]
    assert [each["reason"] for each in told.of("lost")] == ["expired", "refused"]
    assert "does not know it any more" in told.of("lost")[1]["why"]


async def server_breaks(server: MemoryServer, name: str) -> None:
    """Take it away, by another client."""
    async with aiolock.connect(server) as other:
        assert await other.lock(name).break_()


@virtual
async def test_observer_of_a_client_that_only_watches_an_election_is_told_nothing() -> None:
    """Nobody is told of who observes an election: it asks for nothing, and waits for ever."""
    told, server = Told(), MemoryServer()
    async with aiolock.connect(server, observer=told) as client, aiolock.connect(server) as other:

        async def watch() -> None:
            async for _ in client.election("primary").observe():
                pass

        watching = asyncio.create_task(watch())
        async with other.election("primary").campaign("there"):
            await asyncio.sleep(100)
        watching.cancel()
        await asyncio.wait([watching])
    assert told.words == []


# What takes long


@virtual
async def test_waits_long_is_told_once_a_minute_per_name_and_not_for_periods() -> None:
    """Told once a minute for each name, with who has it; waits for a period are not long."""
    told, server = Told(), MemoryServer()
    async with (
        aiolock.connect(server, observer=told) as client,
        aiolock.connect(server) as other,
        other.lock("x", ttl=600).acquire(label="the holder"),
    ):
        async with client.periodic("job", every=3600):
            pass
        period = asyncio.create_task(enter(client.periodic("job", every=3600)))
        waits = [asking(client.lock("x")) for _ in range(3)]
        await asyncio.sleep(15)
        assert not told.of("waits_long")
        await asyncio.sleep(10)
        (long,) = told.of("waits_long")
        assert long["request"].name == "x"
        assert 20 <= long["waited"] <= 22
        assert long["others"] == 2
        assert [holder.label for holder in long["holders"]] == ["the holder"]
        await asyncio.sleep(60)
        assert len(told.of("waits_long")) == 2
        for task in (period, *waits):
            task.cancel()
        await asyncio.wait([period, *waits])


async def enter(job: aiolock.Periodic) -> None:
    """Run it."""
    async with job:
        pass


@virtual
async def test_holds_long_is_told_once_for_each_lease() -> None:
    """Told once of each, however long; nobody looks again where nothing changes."""
    told = Told()
    async with (
        aiolock.connect(MemoryServer(), observer=told) as client,
        client.lock("x", ttl=600),
        client.election("primary").campaign("here"),
    ):
        await asyncio.sleep(25)
        assert not told.of("holds_long")
        await asyncio.sleep(600)
        held = {each["request"].name: each["held"] for each in told.of("holds_long")}
        assert held.keys() == {"x", "primary"}
        assert all(30 <= each <= 33 for each in held.values())
        assert not client._engine.slow_monitor.awake


# Observers that are none, or raise


class Raises(Told):
    """Fails whatever it is told."""

    slow_wait = slow_hold = 1.0

    def _remember(self, what: str, of: Any, **facts: Any) -> None:
        raise ZeroDivisionError(what)


class Cancels(Raises):
    """Fails as who asks for the result of a future that was cancelled."""

    def _remember(self, what: str, of: Any, **facts: Any) -> None:
        raise asyncio.CancelledError(what)


@pytest.mark.parametrize("raises", [Raises, Cancels])
@virtual
async def test_observer_that_raises_is_logged_once_per_method_and_changes_nothing(
    raises: type[Raises],
) -> None:
    """It is logged, once for each method, and changes nothing; other observers are told."""
    told, server = Told(), MemoryServer()
    logged = Logged()
    async with aiolock.connect(server, observer=[raises(), told]) as client:
        with logged:
            for _ in range(3):
                lock = client.lock("x")
                lease = await lock.acquire()
                waits = asking(lock)
                await queued(lock, 1)
                await asyncio.sleep(5)
                await lease.release()
                await (await waits).release()
                async with aiolock.connect(server) as other, other.lock("x"):
                    assert await lock.try_acquire(timeout=1) is None
            held = asyncio.create_task(hold(client.lock("x")))
            await asyncio.sleep(1)
            await server_breaks(server, "x")
            await held
    failures = [line for line in logged.lines if "an observer raised" in line]
    assert len(failures) == len(set(failures)) == 7
    assert told.words.count("acquired") == 7
    assert told.words.count("released") == 6
    assert told.words.count("gave_up") == 3
    assert told.words.count("lost") == 1


class Ends(Observer):
    """Ends the process, when it is told that something is acquired."""

    def acquired(self, request: LockRequest, **facts: Any) -> None:
        raise KeyboardInterrupt


async def test_observer_that_raises_keyboard_interrupt_leaves_no_grant() -> None:
    """Nothing is left of the grant of which it was told."""
    server = MemoryServer()
    async with aiolock.connect(server, observer=Ends()) as client:
        acquisition = client.lock("x").acquire()
        with pytest.raises(KeyboardInterrupt):
            await run_by_hand(acquisition)
        async with aiolock.connect(server) as other:
            assert not await other.lock("x").locked()


async def run_by_hand(acquisition: aiolock.AcquireContext[aiolock.Lease]) -> None:
    """Await it where the event loop does not see what it raises, which would end that."""
    while True:
        acquisition.send(None)  # it waits for nothing longer than a turn
        await asyncio.sleep(0)


@pytest.mark.parametrize("observer", ["x", [1], logging.getLogger(), Observer])
def test_connect_with_an_invalid_observer_raises_type_error(observer: Any) -> None:
    """It is refused before anything is opened."""
    with pytest.raises(TypeError, match=r"inherits from aiolock\.Observer"):
        aiolock.connect("memory://", observer=observer)


@virtual
async def test_client_without_observers_keeps_no_request_of_a_lease() -> None:
    """With the log alone nothing is kept of an acquisition, and nobody is told of one."""
    async with aiolock.connect(MemoryServer()) as client:
        assert not client._engine.watchdog.events.often
        lease = await client.lock("x").acquire()
        assert lease._hold.request is None
        await lease.release()


# The family


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("order:42", "order"),
        ("order:42:lines", "order"),
        ("nightly report", "nightly report"),
        ("user-17", "user-*"),
        ("2026-11-23", "*-*-*"),
        ("v2:x", "v*"),
    ],
)
@virtual
async def test_family_of_a_name_is_its_part_before_the_colon_without_digits(
    name: str, family: str
) -> None:
    """What stands before the first colon, without digits: few for however many names."""
    told = Told()
    async with aiolock.connect(MemoryServer(), observer=told) as client:
        async with client.lock(name):
            pass
        async with client.lock(name, family="given"):
            pass
    assert [each["request"].family for each in told.of("acquired")] == [family, "given"]


@virtual
async def test_family_of_a_decorated_function_is_its_template() -> None:
    """What is locked by a decorator has its template for a family."""
    told = Told()
    async with aiolock.connect(MemoryServer(), observer=told) as client:

        @client.locked("user:{user}")
        async def work(user: int) -> None:
            """Nothing."""

        await work(1)
        await work(2)
    assert {each["request"].family for each in told.of("acquired")} == {"user:{user}"}


# The link


async def test_link_that_is_cut_is_told_as_down_and_then_up(
    proxy: Proxy, told: Told, prefix: str
) -> None:
    """It is down, with why, and up once both connections are there again; never twice in a row."""
    async with aiolock.connect(proxy.url, prefix=prefix, observer=told) as client:
        assert not told.all
        for _ in range(2):
            before = len(told.of("link"))
            proxy.cut()
            # The second of the two may be noticed when the first is there again.
            await soon(lambda before=before: len(told.of("link")) > before)  # type: ignore[misc]
            await soon(lambda: told.of("link")[-1]["request"] == "up")
            async with client.lock("x"):
                pass
    links = [(each["request"], each["error"]) for each in told.of("link")]
    assert len(links) >= 4
    assert [state for state, _ in links] == ["down", "up"] * (len(links) // 2)
    for _, error in links[::2]:
        assert isinstance(error, StoreError)
        assert isinstance(error.__cause__, redis.exceptions.ConnectionError | OSError)
        assert str(error) == (str(error.__cause__) or type(error.__cause__).__name__)
    assert all(error is None for _, error in links[1::2])


# The log


class Logged:
    """What the logger ``aiolock`` gets, as lines."""

    def __init__(self) -> None:
        self.records = list[logging.LogRecord]()
        self._handler = logging.Handler()
        self._handler.emit = self.records.append  # type: ignore[assignment, method-assign]

    def __enter__(self) -> Self:
        logging.getLogger("aiolock").addHandler(self._handler)
        return self

    def __exit__(self, *_: object) -> None:
        logging.getLogger("aiolock").removeHandler(self._handler)

    @property
    def lines(self) -> list[str]:
        return [record.getMessage() for record in self.records]


@virtual
async def test_log_has_a_line_each_for_a_loss_a_long_wait_and_a_long_hold() -> None:
    """Losses, long waits and long holds are a line each, that says what to do."""
    server = MemoryServer()
    with Logged() as logged:
        async with (
            aiolock.connect(server) as client,
            aiolock.connect(server, observer=observe.log(slow_wait=None, slow_hold=None)) as other,
        ):
            holding = asyncio.create_task(hold(other.lock("x", ttl=600)), name="hangs")
            await queued(client.lock("x"), 0)
            await asyncio.sleep(1)
            waits = asyncio.create_task(hold(client.lock("x", ttl=600)), name="request 8")
            await asyncio.sleep(15)
            await other.lock("x").break_()
            await asyncio.wait([holding])
            await asyncio.sleep(400)
            waits.cancel()
            await asyncio.wait([waits])
    wait, loss, long = logged.lines
    assert wait.startswith("aiolock: 'request 8' has waited 1")
    assert "the lock 'x': 'hangs' (" in wait
    assert "break_() takes it" in wait
    assert loss.startswith("aiolock: 'hangs' lost the lock 'x' (fence ")
    assert "somebody broke it" in loss
    assert long.startswith("aiolock: 'request 8' has held the lock 'x' (fence ")
    assert "max_hold= bounds it" in long


@virtual
async def test_log_of_an_election_has_no_line_for_a_candidate_or_a_leader() -> None:
    """A candidate stands by, and a leader leads, for as long as it takes: no line says so."""
    server = MemoryServer()
    with Logged() as logged:
        async with (
            aiolock.connect(server) as client,
            aiolock.connect(server) as other,
            client.election("primary").campaign("here"),
        ):
            standby = asyncio.create_task(enter_election(other.election("primary")))
            await asyncio.sleep(600)
            standby.cancel()
            await asyncio.wait([standby])
    assert logged.lines == []


async def enter_election(election: aiolock.Election) -> None:
    """Wait until it leads."""
    async with election.campaign("there"):
        pass


async def hold(lock: aiolock.Lock) -> None:
    """Have it until the end."""
    with contextlib.suppress(LeaseLost):
        async with lock:
            await asyncio.sleep(36_000)


@virtual
async def test_log_of_a_deadlock_names_its_tasks_once_per_client() -> None:
    """Of two clients, in lines that say who waits for whom."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        with Logged() as logged:
            have = asyncio.Barrier(2)

            async def take(client: aiolock.LockClient, first: str, second: str) -> None:
                async with client.lock(first, ttl=600):
                    await have.wait()
                    async with client.lock(second, ttl=600):
                        pass

            tasks = [
                asyncio.create_task(take(ours, "a", "b"), name="ours"),
                asyncio.create_task(take(theirs, "b", "a"), name="theirs"),
            ]
            await asyncio.sleep(20)
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
    deadlocks = [line for line in logged.lines if "deadlock" in line]
    assert len(deadlocks) == 2  # one of each client
    assert "2 tasks wait for each other" in deadlocks[0]
    assert "'ours' (" in deadlocks[0]
    assert "'theirs' (" in deadlocks[0]


@pytest.mark.parametrize("limit", [0, -1.0, timedelta(0)])
def test_log_limits_that_are_invalid_are_refused(limit: float | timedelta) -> None:
    """They are more than nothing, or None."""
    with pytest.raises(ValueError, match="more than 0 seconds"):
        observe.log(slow_wait=limit)
    with pytest.raises(ValueError, match="more than 0 seconds"):
        observe.log(slow_hold=limit)
    with pytest.raises(TypeError, match="a number of seconds, a timedelta or None"):
        observe.log(slow_hold="1")  # type: ignore[arg-type]  # on purpose
    limits: Any = observe.log(slow_wait=timedelta(minutes=1), slow_hold=2)
    assert (limits.slow_wait, limits.slow_hold) == (60, 2)
