"""`aiolock.sync`: the same locks for threads, and what a thread meets that a task does not."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
import signal
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from types import SimpleNamespace
from typing import Any, TypeVar

import anyio
import anyio.to_thread
import pytest

import aiolock
import aiolock.sync
from aiolock import AcquireTimeout, ClientClosed, LeaseLost, NotHeld, QueueFull, WouldDeadlock
from aiolock import entering as lookups
from aiolock._target import store_at
from aiolock.observer import LockRequest
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.sync import _jobs, _portal, _thread
from aiolock.testing import FaultyStore
from tests.support.failures import Peek
from tests.support.procs import Worker
from tests.support.servers import RedisServer

T = TypeVar("T")

PATIENCE = 20.0
"""Seconds after which something hangs."""


@pytest.fixture(autouse=True)
def nothing_runs() -> Iterator[None]:
    """No loop is left running once all clients are closed."""
    yield
    assert [thread for thread in threading.enumerate() if thread.name == "aiolock"] == []
    assert _portal.process()._portal is None


@pytest.fixture
def url(redis_server: RedisServer) -> str:
    """Where the locks are."""
    return redis_server.url


@pytest.fixture
def client(url: str, prefix: str) -> Iterator[aiolock.sync.LockClient]:
    """A client that all threads share."""
    with aiolock.sync.connect(url, prefix=prefix) as client:
        yield client


@pytest.fixture
def threads() -> Iterator[ThreadPoolExecutor]:
    """Threads that live until the end of the test."""
    with ThreadPoolExecutor(8) as threads:
        yield threads


def passes(condition: Callable[[], object]) -> None:
    """Return once it is so."""
    end = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < end, "it never came to that"
        time.sleep(0.002)


def result(future: Future[T]) -> T:
    """What a thread came to."""
    return future.result(PATIENCE)


# --- Locks, and who owns them


def test_lock_shared_by_threads_has_one_holder_at_a_time(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Any number of threads share one description, and are in its body one at a time."""
    lock = client.lock("a")
    inside, fences = list[int](), list[int]()

    def visit() -> None:
        for _ in range(5):
            with lock as lease:
                inside.append(1)
                assert len(inside) == 1
                fences.append(lease.fence)
                time.sleep(0.001)
                inside.pop()

    for visitor in [threads.submit(visit) for _ in range(6)]:
        result(visitor)
    assert len(fences) == 30
    assert sorted(fences) == fences
    assert not lock.locked()


def test_lock_held_by_a_thread_is_not_held_by_other_threads(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """What a thread holds, no other releases by name, nor enters again; the thread itself may."""
    lock = client.lock("a", reentrant=True)
    lease = lock.acquire()
    with lock as again:
        assert again.fence == lease.fence
    assert lock.held()
    assert not result(threads.submit(lock.held))
    with pytest.raises(NotHeld):
        result(threads.submit(lock.release))
    assert result(threads.submit(lock.try_acquire, timeout=0.1)) is None
    with pytest.raises(WouldDeadlock):
        client.lock("a").acquire()
    (holder,) = lock.status().holders
    assert (holder.pid, holder.fence) == (os.getpid(), lease.fence)
    assert lock.release()
    assert not lock.held()
    assert lease.state == "released"


def test_lease_can_be_used_and_released_by_any_thread(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Whoever has the lease may ask it and release it, as a task may."""
    lease = client.lock("a", ttl=10).acquire()
    assert result(threads.submit(lease.verify))
    result(threads.submit(lease.extend, 20))
    assert lease.remaining() > 15
    assert repr(lease).startswith("<Lease 'a' fence=")
    assert result(threads.submit(lease.release))
    assert lease.release()
    with pytest.raises(LeaseLost, match="released"):
        lease.check()


def test_acquire_in_threads_raises_the_errors_of_tasks_and_leaves_nothing(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Those that tasks get, for the same reasons; and no more is left behind."""
    with client.lock("a"), client.semaphore("a", 1), client.path_lock("a"):
        for acquiring, refused in (
            (lambda: client.lock("a").try_acquire(timeout=0.1), None),
            (lambda: client.semaphore("a", 1).try_acquire(timeout=0.1), None),
            (lambda: client.multilock("a").try_acquire(), None),
            (lambda: client.path_lock("a/b").try_acquire(), None),
            (lambda: client.lock("a").acquire(timeout=0.1), AcquireTimeout),
            (lambda: client.semaphore("a", 1).acquire(timeout=0), AcquireTimeout),
            (lambda: client.multilock("a").acquire(timeout=0.1), AcquireTimeout),
            (lambda: client.path_lock("a/b").acquire(timeout=0.1), AcquireTimeout),
            (lambda: client.lock("a").try_acquire(), None),
            (lambda: client.lock("a", timeout=0.1).acquire(), AcquireTimeout),
            (lambda: client.lock("a", timeout=0.1).__enter__(), AcquireTimeout),
        ):
            if refused is None:
                assert result(threads.submit(acquiring)) is None
            else:
                with pytest.raises(refused):
                    result(threads.submit(acquiring))
        waiting = threads.submit(client.lock("a").acquire)
        passes(lambda: client.status("a").waiters)
        with pytest.raises(QueueFull):
            result(threads.submit(client.lock("a", max_waiters=1).acquire))
    assert result(waiting).release()
    assert client.names() == []
    with pytest.raises(ValueError, match="ttl"):
        client.lock("a", ttl=-1)
    with pytest.raises(TypeError, match="unexpected"):
        client.lock("a", tll=1)  # type: ignore[call-arg]


def test_lease_entered_is_released_at_exit_and_raises_if_lost(
    client: aiolock.sync.LockClient,
) -> None:
    """`with` gives back what was acquired before, and says if it was lost."""
    lock = client.lock("a")
    with lock.acquire() as lease:
        assert lease.state == "held"
    assert lease.state == "released"
    with pytest.raises(LeaseLost), lock.acquire() as lease:
        lock.break_()
    with client.semaphore("s", 2).acquire(permits=2) as both:
        assert client.semaphore("s", 2).try_acquire() is None
    assert both.state == "released"
    assert client.names() == []


def test_lease_of_a_thread_that_works_is_renewed(client: aiolock.sync.LockClient) -> None:
    """A lease outlives its ttl many times over while its thread does not come back."""
    for ttl in (0.3, 1.0, 5.0):  # a busy machine may keep the client's own thread waiting
        with contextlib.suppress(LeaseLost), client.lock("a", ttl=ttl) as lease:
            time.sleep(2.4 * ttl)
            lease.check()
            assert lease.verify()
            assert lease.state == "held"
            assert not lease.lost.is_set()
            return
    pytest.fail("it was lost each time")


def test_label_of_a_holder_is_its_thread_name_unless_given() -> None:
    """A holder is called as its thread, or what it calls itself."""
    called = list[str]()

    class Told(aiolock.Observer):
        def acquired(self, request: aiolock.LockRequest, **facts: Any) -> None:
            called.append(request.label)

    with aiolock.sync.connect("memory://", observer=Told(), label="shop") as client:

        def hold() -> None:
            for label in (None, "job 7"):
                client.lock("a").acquire(label=label).release()

        thread = threading.Thread(target=hold, name="mail")
        thread.start()
        thread.join(PATIENCE)
    assert called == ["shop: mail", "shop: job 7"]


# --- Loss


def test_loss_within_a_body_sets_lost_and_raises_at_exit(client: aiolock.sync.LockClient) -> None:
    """Nothing stops the thread; the lease says so, and so does the exit."""
    reached = list[str]()
    with pytest.raises(LeaseLost, match="break_"), client.lock("a") as lease:  # noqa: PT012
        client.lock("a").break_()
        assert lease.lost.wait(PATIENCE)
        reached.append(lease.state)
        with pytest.raises(LeaseLost, match="break_"):
            lease.check()
        assert not lease.requested.is_set()
    assert reached == ["lost"]
    assert lease.remaining() == 0
    assert lease.release() is False
    with client.lock("a"):
        pass


def test_loss_in_a_body_with_its_own_error_adds_a_note(client: aiolock.sync.LockClient) -> None:
    """The body's own exception is what is raised, with a note."""
    with pytest.raises(ZeroDivisionError) as caught, client.lock("a") as lease:  # noqa: PT012
        client.lock("a").break_()
        lease.lost.wait()
        1 / 0  # noqa: B018
    assert "meanwhile the lock 'a'" in caught.value.__notes__[0]


def test_break_of_ones_own_lock_returns_before_the_loss_is_raised() -> None:
    """What the thread asked for is carried out, and it is told of that, though it loses by it."""
    answers = list[bool]()
    with (
        aiolock.sync.connect("memory://") as client,
        pytest.raises(LeaseLost),
        client.lock("a"),
    ):
        answers.append(client.lock("a").break_())
    assert answers == [True]


def test_loss_with_on_lost_signal_raises_nothing(client: aiolock.sync.LockClient) -> None:
    """With "signal" the exit is silent, and so are waits."""
    with client.lock("a", on_lost="signal") as lease:
        client.lock("a").break_()
        assert lease.lost.wait(PATIENCE)
        with client.lock("b"):
            pass


def test_loss_while_waiting_for_another_lock_ends_the_wait(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Who waits for one lock in the body of another waits no more once that is lost."""

    def both() -> None:
        with client.lock("outer"), client.lock("inner"):
            pytest.fail("entered")

    with client.lock("inner"):
        waiting = threads.submit(both)
        passes(lambda: client.status("inner").waiters)
        client.lock("outer").break_()
        with pytest.raises(LeaseLost, match="outer"):
            result(waiting)
        passes(lambda: not client.status("inner").waiters)
    result(threads.submit(lambda: client.lock("outer").acquire().release()))


def test_loss_is_raised_once_at_the_next_wait_of_its_thread(
    client: aiolock.sync.LockClient,
) -> None:
    """Once, as a cancellation comes once: what the body then does to clean up may wait."""
    cleaned_up = list[str]()
    with pytest.raises(LeaseLost, match="outer"), client.lock("outer") as lease:  # noqa: PT012
        client.lock("outer").break_()
        lease.lost.wait()
        with pytest.raises(LeaseLost, match="outer"):
            client.lock("inner").acquire()
        with client.lock("inner"):
            cleaned_up.append("inner")
    assert cleaned_up == ["inner"]
    with client.lock("outer"), client.lock("inner"):
        pass  # the thread is as good as before


def test_loss_after_the_server_restarted_empty_is_raised(
    own_server: RedisServer, prefix: str
) -> None:
    """A server that comes back empty has forgotten the lock: the thread is told."""
    with aiolock.sync.connect(own_server.url, prefix=prefix) as client:
        with pytest.raises(LeaseLost), client.lock("a", ttl=1) as lease:  # noqa: PT012
            own_server.kill()
            own_server.start()
            assert lease.lost.wait(PATIENCE)
        with client.lock("a"):
            pass


def test_request_release_sets_requested_and_a_loss_ends_its_wait(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Somebody asks for it, and the thread that waits for that lets go."""
    lock = client.lock("a")
    with lock as lease:
        asking = threads.submit(lock.request_release)
        assert lease.requested.wait(PATIENCE)
        assert result(asking)
        assert not lease.lost.wait(0.001)
        assert repr(lease.requested) == "<Flag set>"
    with pytest.raises(LeaseLost), lock as lease:  # noqa: PT012
        threads.submit(lock.break_)
        lease.requested.wait()


# --- The other kinds


def test_rwlock_for_threads_shares_readers_and_downgrades_writers(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Readers share, a writer is alone, and goes on as a reader."""
    rates = client.rwlock("rates")
    with rates.write() as lease:
        assert result(threads.submit(rates.read().try_acquire, timeout=0.1)) is None
        lease.downgrade()
        with result(threads.submit(rates.read().acquire)):
            assert len(rates.status().holders) == 2
    assert not rates.break_()


def test_semaphore_for_threads_gives_several_permits_and_resizes(
    client: aiolock.sync.LockClient,
) -> None:
    """Permits, of which a thread may have several."""
    api = client.semaphore("api", 2)
    with api, api:
        assert api.try_acquire() is None
        assert len(api.status().holders) == 2
    api.resize(3)
    assert api.status().limit == 3
    assert api.limit == 2
    assert not api.break_()


def test_rate_limit_for_threads_gives_tokens_and_verdicts(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Tokens that nobody holds; a thread waits for some, and is told when there are others."""
    api = client.rate_limit("api", 20, per=1, burst=2)
    assert (api.name, api.burst, api.interval) == ("api", 2, 0.05)
    with api as verdict:
        assert (verdict.ok, verdict.remaining) == (True, 1)
    api.acquire()
    assert not api.try_acquire()
    assert result(threads.submit(api.acquire, 2))
    with pytest.raises(AcquireTimeout):
        api.acquire(2, timeout=0)
    with pytest.raises(ValueError, match="nobody can take 3"):
        api.acquire(3)
    with pytest.raises(TypeError, match="unexpected"):
        api.try_acquire(blocking=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # as elsewhere
    api.resize(1, per=3600, burst=5)
    assert (api.status().limit, api.status().interval) == (5, 3600)

    @client.rate_limited("call:{who}", 1, per=3600)
    def call(who: str) -> str:
        return who

    assert call("ann") == "ann"
    assert not client.rate_limit("call:ann", 1, per=3600).try_acquire()


def test_multilock_for_threads_holds_all_names_or_none(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """All of them or none, lost when one is."""
    both = client.multilock("b", "a")
    assert both.names == ("a", "b")
    with both as lease:
        assert list(lease.leases) == ["a", "b"]
        assert result(threads.submit(client.multilock("b", "c").try_acquire, timeout=0.1)) is None
        assert lease.verify()
        lease.extend(20)
        lease.check()
        assert lease.remaining() > 15
    assert lease.state == "released"
    taken = both.acquire()
    assert taken.release()
    with pytest.raises(LeaseLost), both as lease:  # noqa: PT012
        client.lock("b").break_()
        assert lease.lost.wait(PATIENCE)
    assert client.names() == []


def test_path_lock_for_threads_excludes_what_is_below_and_above(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """As for tasks, with one fence; lost when an intent is."""
    tenant, document = client.path_lock("acme/7"), client.path_lock("acme/7/doc/42")
    assert (document.name, document.mode, len(document.nodes)) == ("acme/7/doc/42", "exclusive", 4)
    with document as first:
        assert first.name == "acme/7/doc/42"
        assert result(threads.submit(tenant.try_acquire, timeout=0.1)) is None
        assert tenant.locked()
        assert tenant.status().below == "1 writer"
        assert first.verify()
        first.check()
    taken = tenant.acquire()
    assert taken.fence > first.fence
    assert result(threads.submit(document.try_acquire)) is None
    assert taken.release()
    with pytest.raises(LeaseLost), document as lease:  # noqa: PT012
        assert client.path_lock("acme").break_()
        assert lease.lost.wait(PATIENCE)
    assert client.names() == []


@pytest.mark.parametrize("how", ["acquire", "with", "try_acquire"])
def test_multilock_timeout_before_the_last_answer_raises_acquire_timeout(
    threads: ThreadPoolExecutor, how: str
) -> None:
    """It had little time to answer, so it is not to blame: `AcquireTimeout`, or None."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    with aiolock.sync.connect(faulty) as client, aiolock.sync.connect(server) as other:
        first, both = other.lock("a").acquire(), client.multilock("a", "b", timeout=0.6)

        def take() -> None:
            if how == "acquire":
                both.acquire()
            elif how == "with":
                with both:
                    raise AssertionError
            else:
                assert both.try_acquire(timeout=0.6) is None
                raise AcquireTimeout

        taking = threads.submit(take)
        passes(lambda: other.status("a").waiters)
        time.sleep(0.35)  # most of the time has passed then
        client.portal().read(lambda: faulty.hold("acquire"))
        first.release()
        with pytest.raises(AcquireTimeout):
            result(taking)
        client.portal().read(faulty.resume)
        passes(lambda: not other.names())


def test_once_for_threads_is_remembered_after_a_body_without_error(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Done once, remembered when the body has ended in peace, and only then."""
    once = client.once("a", remember=60)
    with pytest.raises(ZeroDivisionError), once as lease:  # noqa: PT012
        assert lease is not None
        1 / 0  # noqa: B018
    with once as lease:
        assert lease is not None
    with once as lease:
        assert lease is None
    assert once.status().closed > 0

    @client.once("{order}", remember=60)
    def ship(order: int) -> str:
        return f"shipped {order}"

    assert sorted(map(str, threads.map(ship, [1, 1, 2]))) == ["None", "shipped 1", "shipped 2"]


def test_outcome_for_threads_is_kept_unless_the_work_fails(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """What came of it, for whoever asks; nothing is kept of what failed."""
    once = client.once("a", remember=60)

    def fails(lease: aiolock.sync.Lease) -> str:
        raise ZeroDivisionError(lease.fence)

    with pytest.raises(ZeroDivisionError):
        once.outcome(fails)
    outcomes = list(threads.map(lambda n: once.outcome(lambda _: f"by {n}"), range(3)))
    assert len({outcome.result for outcome in outcomes}) == 1
    assert sorted(outcome.first for outcome in outcomes) == [False, False, True]
    with pytest.raises(ValueError, match="65536"):
        client.once("b", remember=60).outcome(lambda _: "x" * 70_000)
    assert client.once("b", remember=60).outcome(lambda _: "done").first


def test_locked_decorator_for_threads_holds_the_lock_in_each_call(
    client: aiolock.sync.LockClient,
) -> None:
    """A decorated function runs under its lock."""

    @client.locked("user:{user}")
    def visit(user: int) -> list[str]:
        return client.names()

    assert visit(7) == ["user:7"]
    assert client.names() == []
    with pytest.raises(TypeError, match=r"not async, .*aiolock\.connect"):

        @client.locked("a")
        async def _() -> None: ...


def test_event_latch_and_barrier_for_threads_let_waiters_through(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """Those that wait for something and then go on."""
    event = client.event("e")
    waiting = threads.submit(event.wait)
    passes(lambda: event.status().waiters)
    assert not event.is_set()
    event.set()
    assert event.is_set()
    result(waiting)

    latch = client.latch("l", 2)
    assert latch.count_down("first") == 1
    assert latch.missing() == 1
    with pytest.raises(AcquireTimeout):
        latch.wait(timeout=0.1)
    assert latch.count_down("second") == 0
    latch.wait()
    assert latch.count == 2

    barrier = client.barrier("b", 3)
    for party in [threads.submit(barrier.wait) for _ in range(3)]:
        result(party)
    assert barrier.parties == 3
    assert barrier.status().waiters == ()


def test_election_for_threads_has_one_leader_that_observers_see(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """One leader, whom everybody can ask for, and follow."""
    election = client.election("primary")
    seen = list[str]()

    def follow() -> None:
        for leader in election.observe():
            seen.append(leader.value)
            if leader.value == "second":
                break

    following = threads.submit(follow)
    with election.campaign("first") as term:
        leader = election.leader()
        assert leader is not None
        assert (leader.value, leader.fence) == (term.value, term.fence) == ("first", term.fence)
        passes(lambda: seen == ["first"])
        term.check()
        assert term.resign()
        assert term.state == term.lease.state == "released"
    with pytest.raises(LeaseLost), election.campaign("second") as term:  # noqa: PT012
        election.break_()
        assert term.lost.wait(PATIENCE)

    def lead() -> None:
        with election.campaign("second"):
            passes(lambda: "second" in seen)

    result(threads.submit(lead))
    result(following)


def test_periodic_for_threads_goes_on_after_a_run_that_raises(
    client: aiolock.sync.LockClient, caplog: pytest.LogCaptureFixture
) -> None:
    """One run in each period; what a run raises is logged, and the next one comes."""
    job, runs = client.periodic("p", every=0.2), list[int]()

    def run() -> None:
        runs.append(1)
        if len(runs) == 1:
            raise ZeroDivisionError
        if len(runs) == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        job.run(run)
    assert len(runs) == 3
    (logged,) = caplog.records
    assert logged.getMessage() == "aiolock: a run of 'p' failed"
    assert logged.exc_info is not None
    assert logged.exc_info[0] is ZeroDivisionError
    with job as lease:
        assert lease.fence
    assert job.every == 0.2


def test_job_or_body_that_no_thread_can_run_is_refused_before_any_io() -> None:
    """Otherwise it would be tried for ever, and all errors be in the log."""
    client = aiolock.sync.connect("memory://")

    async def work(*_: object) -> None: ...

    runs: list[Any] = [client.periodic("p", every=60).run, client.shards("p", 1).run]
    for run, what in zip(runs, ("job", "body"), strict=True):
        with pytest.raises(TypeError, match=f"{what} must be a function, not 'work'"):
            run("work")
        with pytest.raises(TypeError, match=f"{what} must be a function without async"):
            run(work)
    assert client._portal is None


def test_periodic_run_waiting_to_retry_ends_with_its_client(
    threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Also while it waits before it tries again, as the store cannot be reached."""
    monkeypatch.setattr(_jobs, "_FIRST_PAUSE", 3600.0)
    store = FaultyStore(MemoryStore(MemoryServer()))
    client = aiolock.sync.connect(store)
    client.open()
    store.refuse("acquire", times=9)
    running = threads.submit(client.periodic("p", every=60).run, int)
    passes(lambda: "is tried again in 3600 s" in caplog.text)
    client.close()
    with pytest.raises(ClientClosed):
        result(running)


# --- Opening and closing


def test_clients_share_one_loop_thread_until_the_last_is_closed(
    redis_server: RedisServer, prefix: str
) -> None:
    """It opens at its first use; all clients share one thread, which ends with the last of them."""
    first = aiolock.sync.connect(redis_server.url, prefix=prefix)
    second = aiolock.sync.connect(redis_server.url, prefix=prefix)
    assert _portal.process()._portal is None
    assert first.names() == []
    portal = _portal.process()._portal
    with second:
        second.open()
        assert _portal.process()._portal is portal
        first.close()
        first.close()
        assert _portal.process()._portal is portal
        with pytest.raises(ClientClosed, match="with `with`"):
            first.names()
    assert _portal.process()._portal is None
    ids = {first.id}
    with first:
        ids.add(first.id)
        assert first.names() == []
    assert len(ids) == 2


def test_client_used_first_by_many_threads_is_opened_once(
    redis_server: RedisServer, prefix: str, threads: ThreadPoolExecutor
) -> None:
    """Threads that use it first at the same time open it once, and closing it ends it."""
    store = FaultyStore(store_at(redis_server.url, prefix))
    client = aiolock.sync.connect(store)
    for got in [threads.submit(client.names) for _ in range(8)]:
        assert result(got) == []
    client.close()
    assert store.calls["open"] == 1


def test_client_that_cannot_open_raises_store_error_and_leaves_no_loop(prefix: str) -> None:
    """What cannot be reached says so, leaves nothing running, and is tried again by the next."""
    client = aiolock.sync.connect("redis://127.0.0.1:1", prefix=prefix)
    for _ in range(2):
        with pytest.raises(aiolock.StoreError):
            client.lock("a").acquire()
    assert _portal.process()._portal is None


def test_close_raises_in_waiters_and_waits_for_bodies(
    url: str, prefix: str, threads: ThreadPoolExecutor
) -> None:
    """Who waits is told at once; who is in a body is told, and waited for."""
    client = aiolock.sync.connect(url, prefix=prefix)
    entered, leave = threading.Event(), threading.Event()
    told = list[bool]()

    def hold() -> None:
        with client.lock("a", ttl=60) as lease:
            entered.set()
            told.append(lease.lost.wait(PATIENCE))
            assert leave.wait(PATIENCE)

    holding = threads.submit(hold)
    assert entered.wait(PATIENCE)
    waiting = threads.submit(client.lock("a").acquire)
    passes(lambda: client.status("a").waiters)
    closing = threads.submit(client.close)
    with pytest.raises(ClientClosed):
        result(waiting)
    passes(lambda: told)
    assert not closing.done()
    leave.set()
    with pytest.raises(LeaseLost, match="closed"):
        result(holding)
    result(closing)
    with pytest.raises(ClientClosed):
        client.lock("a").acquire()


def test_close_within_ones_own_body_releases_without_loss(client: aiolock.sync.LockClient) -> None:
    """Its own body is in nobody's way, and is not lost by it."""
    with client.lock("a") as lease:
        client.close()
        assert lease.state == "released"
    client.open()
    assert client.names() == []


def test_lease_after_its_client_closed_still_tells_its_state(url: str, prefix: str) -> None:
    """It says what it knows, also when there is no loop any more."""
    with aiolock.sync.connect(url, prefix=prefix) as client:
        lease = client.lock("a").acquire()
    assert lease.state == "released"
    assert lease.release()
    assert lease.remaining() == 0
    assert not lease.lost.is_set()
    with pytest.raises(ClientClosed):
        lease.verify()


def test_thread_that_ends_leaves_no_task_in_the_loop(client: aiolock.sync.LockClient) -> None:
    """With a thread ends its task; what it forgot to give back is released."""
    portal = client.portal()
    tasks = len(portal._residents)
    client.names()

    def visit() -> None:
        with client.lock("a"):
            pass

    for _ in range(3):
        thread = threading.Thread(target=visit)
        thread.start()
        thread.join(PATIENCE)
    passes(lambda: len(portal._residents) <= tasks + 1)

    def forgets() -> None:
        thread = threading.Thread(target=client.lock("forgotten").acquire)
        thread.start()
        thread.join(PATIENCE)
        passes(lambda: not client.lock("forgotten").locked())

    with pytest.warns(ResourceWarning, match="'forgotten'.*nobody can release"):
        forgets()
    passes(lambda: len(portal._residents) <= tasks + 1)


# --- Event loops


async def test_sync_call_in_the_thread_of_an_event_loop_raises_runtime_error(
    client: aiolock.sync.LockClient, url: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would stand still: refused, with what to do. A thread beside it may, and a notebook."""
    lease = await asyncio.to_thread(client.lock("a").acquire)
    for call in (
        client.lock("b").acquire,
        client.lock("b").__enter__,
        client.names,
        client.close,
        lease.release,
        lease.lost.wait,
        aiolock.sync.connect(url, prefix=prefix).open,
        aiolock.sync.connect(url, prefix=prefix).names,
    ):
        with pytest.raises(RuntimeError, match=r"use aiolock\.connect\(\) and `async with`"):
            call()
    assert lease.state == "held"  # says what it knows
    assert await asyncio.to_thread(lease.release)

    def get_ipython() -> object:
        return SimpleNamespace(kernel=object())

    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=get_ipython))
    with client.lock("a"):
        pass


def test_sync_call_in_the_thread_of_trio_raises_runtime_error(
    client: aiolock.sync.LockClient,
) -> None:
    """Trio's loop would stand still as well; from its threads it works."""

    async def main() -> None:
        with pytest.raises(RuntimeError, match="would block"):
            client.names()
        assert await anyio.to_thread.run_sync(client.names) == []

    anyio.run(main, backend="trio")


def test_sync_call_in_the_loop_thread_raises_runtime_error() -> None:
    """An observer that asks would wait for itself: it is told so."""
    told = list[str]()

    class Curious(aiolock.Observer):
        def acquired(self, request: aiolock.LockRequest, **facts: Any) -> None:
            try:
                shared.names()
            except RuntimeError as error:
                told.append(str(error))

    shared = aiolock.sync.connect("memory://", observer=Curious())
    with shared, shared.lock("a"):
        pass
    assert "in its own thread" in told[0]


def test_generator_dropped_in_the_loop_thread_frees_its_lock(
    client: aiolock.sync.LockClient,
) -> None:
    """A generator that is thrown away in the loop's thread leaves its body without waiting."""

    def visits() -> Iterator[int]:
        with client.lock("a") as lease:
            yield lease.fence

    generators = [visits()]
    next(generators[0])
    client.portal().read(generators.clear)
    assert generators == []
    with client.lock("a", timeout=PATIENCE):
        pass


def test_election_observer_dropped_in_the_loop_thread_is_closed(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor
) -> None:
    """One that is thrown away in the loop's thread is closed without waiting."""
    election = client.election("a")
    observers = [election.observe()]
    with election.campaign("us"):
        assert next(observers[0]).value == "us"
        client.portal().soon(observers.clear)  # where this waits, the loop never goes on
        assert threads.submit(client.names).result(PATIENCE) == ["a"]
    assert observers == []


def test_generator_dropped_during_an_entrance_or_exit_frees_its_lock(
    client: aiolock.sync.LockClient, threads: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while the same thread looks up an entrance, or notes that it has entered or left one."""

    def visits(name: str) -> Iterator[int]:
        with client.lock(name) as lease:
            yield lease.fence

    add, take, lookup = client.entered.add, client.entered.take, weakref.ref
    generators = list[Iterator[int]]()

    def collects(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            if generators:
                generators.pop().close()  # type: ignore[attr-defined]  # a generator has it
            return function(*args)

        return call

    @contextlib.contextmanager
    def collecting(count: int) -> Iterator[None]:
        generators[:] = [visits(f"{number}") for number in range(count)]
        for generator in list(generators):
            next(generator)
        del generator
        with monkeypatch.context() as patch:
            patch.setattr(client.entered, "add", collects(add))
            patch.setattr(client.entered, "take", collects(take))
            patch.setattr(lookups, "ref", collects(lookup))
            yield

    def work() -> None:
        with collecting(2), client.lock("a"):
            assert not generators, "one for each lookup"
        by_hand = client.lock("a")
        with collecting(3):
            by_hand.__enter__()
            by_hand.__exit__(None, None, None)
            assert not generators, "one for the lookup, two for the notes"

    worker = threading.Thread(target=work, daemon=True)  # it hangs where this fails
    worker.start()
    worker.join(PATIENCE)
    assert not worker.is_alive()
    assert client.names() == []


def test_lease_check_does_not_ask_the_loop_while_the_lease_lasts(
    client: aiolock.sync.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While the lease is surely ours, a thread need not ask the loop; and then it hears the why."""
    lease = client.lock("a").acquire()
    with monkeypatch.context() as patch:
        patch.setattr(client.portal(), "soon", None)  # to ask the loop would raise
        lease.check()
    client.break_("a")
    passes(lease.lost.is_set)
    with pytest.raises(LeaseLost, match="break_"):
        lease.check()


def test_loop_of_a_closed_client_ends_with_the_last_body(url: str, prefix: str) -> None:
    """Also where the client was closed before, and nobody else keeps the loop running."""
    client = aiolock.sync.connect(url, prefix=prefix)

    def visits() -> Iterator[int]:
        with client.lock("a", on_lost="signal") as lease:
            yield lease.fence

    generators = [visits()]
    next(generators[0])
    portal = client.portal()
    client.close()
    assert not portal.ended
    portal.read(generators.clear)
    portal._thread.join(PATIENCE)
    assert portal.ended


# --- Interruptions


@pytest.mark.parametrize("how", ["acquire", "try", "with", "once"])
def test_interrupt_after_the_grant_gives_the_lock_back(
    client: aiolock.sync.LockClient,
    monkeypatch: pytest.MonkeyPatch,
    threads: ThreadPoolExecutor,
    how: str,
) -> None:
    """Ctrl-C when the lock is there already, and the thread does not have it yet: given back."""

    class Late(Future[T]):
        def exception(self, timeout: float | None = None) -> BaseException | None:
            error = super().exception(timeout)
            if threading.current_thread() is threading.main_thread():
                raise KeyboardInterrupt
            return error

    client.names()
    once = client.once("a", remember=60)
    taking: dict[str, Callable[[], object]] = {
        "acquire": client.lock("a").acquire,
        "try": client.lock("a").try_acquire,
        "with": client.lock("a").__enter__,
        "once": once.__enter__,
    }
    with monkeypatch.context() as patch:
        patch.setattr(_thread, "Future", Late)
        with pytest.raises(KeyboardInterrupt):
            taking[how]()
    with client.lock("a", timeout=PATIENCE), once as mine:
        assert mine is not None, "it was not done"


async def test_interrupt_by_ctrl_c_ends_a_wait_and_frees_locks_and_queue(
    server: RedisServer, prefix: str, peek: Peek
) -> None:
    """It ends the wait, which leaves nothing in the queue, and the body, which gives it back."""
    source = """
        import signal, sys
        import aiolock.sync
        from tests.support.procs import say

        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have it ignored
        client = aiolock.sync.connect(sys.argv[1], prefix=sys.argv[2])
        lock = client.lock("lock")
        client.open()
        for step in ("with", "acquire", "wait"):
            say("ready")
            try:
                with client.lock("outer"):
                    if step == "with":
                        with lock:
                            say("entered")
                    elif step == "acquire":
                        lock.acquire()
                    else:
                        client.event("never").wait()
            except KeyboardInterrupt:
                say("interrupted", held=client.names("outer"))
            sys.stdin.readline()
        say("bye", held=client.names())
    """
    async with (
        aiolock.connect(server.url, prefix=prefix) as ours,
        ours.lock("lock"),
        Worker("-c", source, server.url, prefix) as child,
    ):
        for step in ("with", "acquire", "wait"):
            await child.expect("ready")
            if step == "wait":
                event = Peek(server, prefix, "event:never")
                await event.queued(1)
            else:
                await peek.queued(1)
            os.kill(child.pid, signal.SIGINT)
            assert (await child.expect("interrupted"))["held"] == []
            await peek.queued(0)
            await child.send({})
        assert (await child.expect("bye"))["held"] == ["lock"]
        assert await child.wait() == 0


async def test_close_in_a_signal_handler_ends_the_wait_of_its_thread(
    server: RedisServer, prefix: str, peek: Peek
) -> None:
    """A handler closes while its thread waits; anything else it is told not to do."""
    source = """
        import signal, sys
        import aiolock.sync
        from tests.support.procs import say

        def handle(*_):
            try:
                client.names()
            except RuntimeError as error:
                say("refused", why=str(error))
            client.close()

        client = aiolock.sync.connect(sys.argv[1], prefix=sys.argv[2])
        signal.signal(signal.SIGTERM, handle)
        try:
            client.lock("lock").acquire()
        except BaseException as error:
            say("ended", by=type(error).__name__)
    """
    async with (
        aiolock.connect(server.url, prefix=prefix) as ours,
        ours.lock("lock"),
        Worker("-c", source, server.url, prefix) as child,
    ):
        await peek.queued(1)
        os.kill(child.pid, signal.SIGTERM)
        assert "signal handler" in (await child.expect("refused"))["why"]
        assert (await child.expect("ended"))["by"] == "ClientClosed"
        await peek.queued(0)
        assert await child.wait() == 0


# --- The end of the interpreter, and forks


async def test_interpreter_exit_releases_held_locks(
    server: RedisServer, prefix: str, peek: Peek
) -> None:
    """What is held when the interpreter ends is given back."""
    source = """
        import sys
        import aiolock.sync
        from tests.support.procs import say

        client = aiolock.sync.connect(sys.argv[1], prefix=sys.argv[2])
        lease = client.lock("lock").acquire()
        say("holds")
    """
    async with Worker("-X", "dev", "-W", "error", "-c", source, server.url, prefix) as child:
        await child.expect("holds")
        assert await child.wait() == 0
        assert peek.holders() == []


async def test_interpreter_exit_during_the_body_of_a_daemon_leaves_its_lease(
    server: RedisServer, prefix: str, peek: Peek
) -> None:
    """What a daemon thread is still at is left to its lease, and keeps nobody for long."""
    source = """
        import sys, threading, time
        import aiolock.sync
        from aiolock.sync import _portal
        from tests.support.procs import say

        _portal.AT_EXIT = 0.3
        client = aiolock.sync.connect(sys.argv[1], prefix=sys.argv[2])

        def hold():
            with client.lock("lock", ttl=20):
                say("holds")
                time.sleep(60)

        threading.Thread(target=hold, daemon=True).start()
        while not client.lock("lock").locked():
            time.sleep(0.01)
    """
    async with Worker("-c", source, server.url, prefix) as child:
        await child.expect("holds")
        assert await child.wait() == 0
        assert len(peek.holders()) == 1
        async with aiolock.connect(server.url, prefix=prefix) as client:
            assert await client.lock("lock").break_()


async def test_interpreter_exit_while_the_server_hangs_ends(
    own_server: RedisServer, prefix: str
) -> None:
    """A store that does not answer keeps no interpreter from ending."""
    source = """
        import sys
        import aiolock.sync
        from aiolock.sync import _portal
        from tests.support.procs import say

        _portal.AT_EXIT = 0.3
        client = aiolock.sync.connect(sys.argv[1], prefix=sys.argv[2])
        lease = client.lock("lock").acquire()
        say("holds")
        sys.stdin.readline()
    """
    async with Worker("-c", source, own_server.url, prefix) as child:
        await child.expect("holds")
        own_server.pause()
        await child.send({})
        assert await child.wait() == 0
        own_server.resume()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
async def test_client_used_in_a_fork_raises_client_closed_and_keeps_the_parents(
    server: RedisServer, prefix: str, peek: Peek
) -> None:
    """A fork cannot use what was opened before it, nor disturb it, and may open its own."""
    source = """
        import os, sys, warnings
        import aiolock, aiolock.sync
        from tests.support.procs import say

        warnings.simplefilter("ignore", DeprecationWarning)  # of forks where there are threads
        url, prefix = sys.argv[1:]
        client = aiolock.sync.connect(url, prefix=prefix)
        lazy = aiolock.sync.connect(url, prefix=prefix)
        with client.lock("lock") as lease:
            if not (pid := os.fork()):
                for use in (client.names, client.open, client.close, lease.release, lease.check):
                    try:
                        use()
                    except aiolock.ClientClosed as error:
                        assert "another process" in str(error), error
                    else:
                        say("used", how=str(use))
                assert lazy.lock("lock").try_acquire(timeout=0.1) is None
                del lease
                say("child", pid=os.getpid(), names=lazy.names())
                sys.exit()
            assert os.waitpid(pid, 0) == (pid, 0)
            lease.check()
            say("parent", verified=lease.verify(), names=client.names())
            assert client.lock("other").acquire().release()
        say("left", names=client.names())
    """
    async with Worker("-c", source, server.url, prefix) as child:
        said = await child.expect("child")
        assert said["names"] == ["lock"]
        assert (await child.expect("parent"))["verified"]
        assert (await child.expect("left"))["names"] == []
        assert await child.wait() == 0
    assert not [message for message in child.history if message["event"] == "used"]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
@pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning")
def test_client_made_in_a_fork_of_a_fork_has_its_own_loop(client: aiolock.sync.LockClient) -> None:
    """A fork has a loop of its own as soon as it needs one, and so has a fork of that."""
    client.names()
    if not (pid := os.fork()):
        code = 1
        with contextlib.suppress(aiolock.LockError):
            own = aiolock.sync.connect("memory://")
            own.names()
            if not (of_it := os.fork()):
                with contextlib.suppress(aiolock.LockError):
                    aiolock.sync.connect("memory://").names()
                    code = 0
                os._exit(code)
            code = os.waitpid(of_it, 0)[1]
            own.close()
        os._exit(code != 0)
    assert os.waitpid(pid, 0) == (pid, 0)
    assert client.names() == []


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks here")
def test_client_made_before_a_fork_has_another_id_in_each_process() -> None:
    """A client that is made before forks and opened after them is another one in each process."""
    made = aiolock.sync.connect("memory://")
    reading, writing = os.pipe()
    if not (pid := os.fork()):
        made.open()
        os.write(writing, made.id.encode())
        os._exit(0)
    os.close(writing)
    assert os.waitpid(pid, 0) == (pid, 0)
    theirs = os.read(reading, 100).decode()
    os.close(reading)
    with made:
        assert len({made.id, theirs, ""}) == 3


# --- The surface


EXTRAS = {
    ("LockClient", "call"),
    ("LockClient", "leave"),
    ("LockClient", "portal"),
    ("LockClient", "rest"),
    ("LockClient", "begin_close"),
    ("Lease", "check"),
    ("MultiLease", "check"),
    ("PathLease", "check"),
    ("Term", "check"),
    ("Adoption", "acquire"),
}
"""What threads have and tasks have not, the first few for descriptions only."""

KINDS = sorted(set(aiolock.sync.__all__) - {"connect", "Flag"})


def members(kind: type) -> dict[str, Any]:
    """What is public of it, inherited or not."""
    return {
        name: inspect.getattr_static(kind, name)
        for name in dir(kind)
        if not name.startswith("_") and name != "entered"
    }


def called(thing: Any) -> str:
    """How it is called, without types."""
    if isinstance(thing, property) or not callable(thing):
        return "property"
    parameters = inspect.signature(thing).parameters.values()
    bare = [each.replace(annotation=inspect.Parameter.empty) for each in parameters]
    return str(inspect.Signature(bare))


@pytest.mark.parametrize("kind", KINDS)
def test_sync_class_has_the_members_and_signatures_of_its_async_one(kind: str) -> None:
    """All that tasks have, threads have, by the same names and with the same parameters."""
    tasks = members(getattr(aiolock, kind))
    tasks = {{"aclose": "close"}.get(name, name): each for name, each in tasks.items()}
    threads = members(getattr(aiolock.sync, kind))
    extras = {name for name in threads if (kind, name) in EXTRAS}
    assert threads.keys() - extras == tasks.keys()
    for name, each in tasks.items():
        assert called(threads[name]) == called(each), name
    for entered in ("__enter__", "__exit__"):
        aentered = entered.replace("__e", "__ae")
        if hasattr(getattr(aiolock, kind), aentered):
            assert hasattr(getattr(aiolock.sync, kind), entered)


def test_sync_module_has_all_classes_of_the_async_one() -> None:
    """What tasks have, threads have, but for what only makes sense with `await`, and data."""
    beside = {"AcquireContext", "Leader", "LeaseState", "LeaseToken", "Observer", "Store", "web"}
    beside |= {
        "Blocked",
        "Deadlock",
        "LockRequest",
        "Outcome",
        "Participant",
        "ServerStatus",
        "Status",
        "TokensContext",
        "Verdict",
    }
    beside |= {"Changed", "GroupChange", "Joined", "Left", "Member", "Members"}
    errors = {name for name in aiolock.__all__ if hasattr(aiolock.errors, name)}
    assert set(aiolock.__all__) - beside - errors == {*KINDS, "connect"}
    assert called(aiolock.connect) == called(aiolock.sync.connect)
    assert aiolock.sync.LockClient.KINDS == aiolock.LockClient.KINDS


@pytest.mark.parametrize("kind", aiolock.sync.__all__)
def test_sync_public_things_have_docstrings(kind: str) -> None:
    """Everything public has a docstring."""
    thing = getattr(aiolock.sync, kind)
    assert thing.__module__ == "aiolock.sync"
    assert inspect.getdoc(thing)
    if inspect.isclass(thing):
        for name, member in members(thing).items():
            assert inspect.getdoc(member), name


def test_reprs_of_sync_objects_begin_with_their_class_name(client: aiolock.sync.LockClient) -> None:
    """They say what it is, as those for tasks."""
    shown = [
        client.lock("a"),
        client.rwlock("a"),
        client.semaphore("a", 2),
        client.multilock("a"),
        client.path_lock("a"),
        client.event("a"),
        client.latch("a", 1),
        client.barrier("a", 1),
        client.election("a"),
        client.once("a", remember=60),
        client.periodic("a", every=60),
        client.group("a"),
        client.shards("a", 2),
        client,
    ]
    for each in shown:
        assert repr(each).startswith(f"<{type(each).__name__} ")


async def test_exit_whose_release_is_not_answered_raises_nothing(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The exit of a body whose release was not heard is as for tasks: logged, not raised."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))

    def visit() -> None:
        with aiolock.sync.connect(faulty) as client:
            faulty.refuse("acquire")
            with pytest.raises(aiolock.StoreError):
                client.lock("a").acquire()
            faulty.lose("release")
            with client.lock("a"):
                pass
            assert client.lock("a", timeout=PATIENCE).acquire().release()

    await asyncio.to_thread(visit)
    (logged,) = caplog.messages
    assert "the release of 'a' was not confirmed" in logged


CURRENT: ContextVar[str] = ContextVar("current", default="nothing")


def test_observer_of_a_sync_client_runs_in_the_context_of_the_thread() -> None:
    """As that of a task: what the code that takes the lock has set, at each step; and no other."""
    seen = list[tuple[str, str]]()

    class Noting(aiolock.Observer):
        def waiting(self, request: LockRequest) -> None:
            seen.append(("waiting", CURRENT.get()))

        def acquired(self, request: LockRequest, **_: object) -> None:
            seen.append(("acquired", CURRENT.get()))

        def released(self, request: LockRequest, **_: object) -> None:
            seen.append(("released", CURRENT.get()))

        def gave_up(self, request: LockRequest, **_: object) -> None:
            seen.append(("gave up", CURRENT.get()))

    memory = MemoryServer()
    with (
        aiolock.sync.connect(memory) as others,
        aiolock.sync.connect(memory, observer=Noting()) as client,
    ):
        for number in ("one", "two"):
            CURRENT.set(number)
            with client.lock("a"):
                pass
        CURRENT.set("three")
        with others.lock("a"), pytest.raises(AcquireTimeout):
            client.lock("a", timeout=0.05).acquire()
    CURRENT.set("nothing")
    holds = [(step, number) for number in ("one", "two") for step in ("acquired", "released")]
    assert seen == [*holds, ("waiting", "three"), ("gave up", "three")]
