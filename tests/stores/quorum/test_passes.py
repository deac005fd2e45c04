"""Work on many acquisitions part by part, and what comes between two parts."""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

import aiolock
from aiolock import Lease, LockClient, StoreError
from aiolock.stores.quorum import _passes
from aiolock.stores.quorum._passes import PART, Passes
from aiolock.testing import Peer
from tests.stores.quorum.test_quorum import later
from tests.support.quorums import clients, left_behind, servers, store_on
from tests.support.worlds import virtual


def made() -> Passes:
    """Those of a client."""
    return Passes(asyncio.get_running_loop().time)


def steps(seen: list[str], what: str, count: int, units: int = PART) -> Iterator[int]:
    """A pass of so many steps."""
    for number in range(count):
        seen.append(f"{what}{number}")
        yield units


@virtual
async def test_passes_begun_together_share_one_part_per_iteration() -> None:
    """Each iteration of the loop has one part, of one pass after the other."""
    passes, seen = made(), list[str]()
    assert not passes.begin("a", steps(seen, "a", 3))
    assert not passes.begin("b", steps(seen, "b", 3))
    assert seen == ["a0"]
    found = list[str]()
    while not passes.idle:
        found.append(seen[-1])
        await asyncio.sleep(0)
    assert seen == ["a0", "a1", "b0", "a2", "b1", "b2"]
    assert len(found) == len(seen)


@virtual
async def test_pass_that_fits_into_one_iteration_is_over_at_once() -> None:
    """As long as the iteration has anything left for it."""
    passes, seen, over = made(), list[str](), list[str]()
    assert passes.begin("a", steps(seen, "a", 4, 1), partial(over.append, "a"))
    assert (len(seen), over) == (4, ["a"])
    assert passes.idle
    assert not passes.begin("b", steps(seen, "b", 2, PART), partial(over.append, "b"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert over == ["a", "b"]


@virtual
async def test_pass_begun_again_replaces_the_earlier_one_without_its_end() -> None:
    """It takes the place of the earlier one, whose end nobody is told of: also within a step."""
    passes, seen, over = made(), list[str](), list[str]()

    def begins_another() -> Iterator[int]:
        seen.append("first")
        passes.begin("a", steps(seen, "a", 2), partial(over.append, "second"))
        yield 1
        raise AssertionError("it has gone on")

    passes.begin("a", begins_another(), partial(over.append, "first"))
    await asyncio.sleep(1)
    assert (seen, over) == (["first", "a0", "a1"], ["second"])


@virtual
async def test_pass_whose_step_raises_is_over_and_the_others_go_on() -> None:
    """Its pass is over; the others go on."""
    passes, seen, over, errors = made(), list[str](), list[str](), list[object]()
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"]))
    fault = RuntimeError("a fault")

    def fails() -> Iterator[int]:
        yield PART
        raise fault

    passes.begin("a", fails(), partial(over.append, "a"))
    passes.begin("b", steps(seen, "b", 3))
    await asyncio.sleep(1)
    assert (seen, over, errors) == (["b0", "b1", "b2"], ["a"], [fault])
    assert passes.idle


@virtual
async def test_timers_due_at_once_are_done_in_order_and_in_parts() -> None:
    """They are done in order, part by part; one that is cancelled is not."""
    passes, seen, time = made(), list[int](), asyncio.get_running_loop().time
    timers = [passes.call_at(5.0, partial(seen.append, number)) for number in range(300)]
    early = passes.call_at(1.0, partial(seen.append, -1))
    timers[7].cancel()
    timers[7].cancel()
    await asyncio.sleep(2)
    early.cancel()  # it is done
    assert seen == [-1]
    asyncio.get_running_loop().advance(10)  # type: ignore[attr-defined]  # of a `VirtualLoop`
    iterations, before = 0, time()
    while len(seen) < 300:
        await asyncio.sleep(0)
        iterations += 1
    assert seen == [-1, *(number for number in range(300) if number != 7)]
    assert iterations >= 300 * _passes.ASKED // PART
    assert time() == before


@virtual
async def test_cancelled_timers_are_forgotten() -> None:
    """Before they are due, if they are many: a client may set thousands in a second."""
    passes, seen = made(), list[int]()
    passes.call_at(50.0, partial(seen.append, 1))
    for _ in range(10_000):
        passes.call_at(60.0, partial(seen.append, 2)).cancel()
    assert len(passes._timers) < 250
    await asyncio.sleep(100)
    assert seen == [1]
    assert not passes._timers


@virtual
async def test_passes_after_close_take_no_step_and_do_no_timer() -> None:
    """No pass goes on, and no timer is done."""
    passes, seen = made(), list[str]()
    passes.begin("a", steps(seen, "a", 3))
    passes.call_at(1.0, partial(seen.append, "timer"))
    passes.close()
    assert passes.begin("b", steps(seen, "b", 3))
    passes.call_at(2.0, partial(seen.append, "timer"))
    await asyncio.sleep(5)
    assert seen == ["a0"]


# What comes between two parts


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """One step is one part."""
    monkeypatch.setattr(_passes, "PART", 1)


def _vote(store: Any, *, votes: bool) -> None:
    """Two of the servers vote, or do not."""
    for connection in store._session.membership.connections[1:]:
        connection.silent_until = 0.0 if votes else math.inf
    store._session.voting_changed()


class Entries:
    """Who has entered, in order; each leaves at once."""

    def __init__(self) -> None:
        self.order = list[str]()
        self.tasks = list[asyncio.Task[None]]()

    def begin(self, client: LockClient, name: str, who: str) -> None:
        """Somebody waits for a lock."""

        async def enter() -> None:
            async with client.lock(name):
                self.order.append(who)

        self.tasks.append(asyncio.create_task(enter()))

    async def end(self) -> None:
        """Return when all have left."""
        await asyncio.gather(*self.tasks)


async def _held_before_many_local_waiters(
    ann: LockClient, bob: LockClient, entries: Entries
) -> Lease:
    """Ann holds it, with one waiter of hers at the servers, nineteen at her client, then Bob's."""
    lease = await ann.lock("a").acquire()
    entries.begin(ann, "a", "00")
    await asyncio.sleep(0.005)
    store: Any = ann._engine.store
    queue = store._session.acquisitions.table.queues["lock:a"]
    queue.alone = [asyncio.get_running_loop().time()] * 3
    for number in range(1, 20):
        entries.begin(ann, "a", f"{number:02}")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert len(queue.locals) >= 19
    await asyncio.sleep(0.001)
    entries.begin(bob, "a", "20")
    for _ in range(6):
        await asyncio.sleep(0)
    return lease


async def _held_before_twenty(ann: LockClient, bob: LockClient, entries: Entries) -> Lease:
    """Bob holds it, and twenty of Ann's wait at the servers."""
    lease = await bob.lock("a").acquire()
    for number in range(20):
        entries.begin(ann, "a", f"{number:02}")
        await asyncio.sleep(0.01)
    await asyncio.sleep(1)
    return lease


def _suspended(client: LockClient) -> int:
    store: Any = client._engine.store
    acquisitions = store._session.acquisitions.table.by_waiter.values()
    return sum(each.vote_set.suspended for each in acquisitions)


def _passes_of(client: LockClient) -> Passes:
    store: Any = client._engine.store
    passes: Passes = store._session.acquisitions._passes
    return passes


@pytest.mark.usefixtures("small_parts")
@virtual
async def test_newcomer_while_others_are_resumed_enters_after_earlier_waiters() -> None:
    """Who came before it is asked for before it, though nothing else keeps it from entering."""
    of, entries = servers(), Entries()
    async with clients(of, 2) as (ann, bob):
        held = [await bob.lock(f"other:{number}").acquire() for number in range(30)]
        for number in range(30):
            entries.begin(ann, f"other:{number}", "other")
        lease = await bob.lock("a").acquire()
        entries.begin(ann, "a", "first")
        await asyncio.sleep(1)
        store: Any = ann._engine.store
        _vote(store, votes=False)
        await asyncio.sleep(1)
        await lease.release()
        _vote(store, votes=True)
        assert _suspended(ann)
        entries.begin(ann, "a", "second")
        await asyncio.sleep(1)
        assert entries.order == ["first", "second"]
        for each in held:
            await each.release()
        await entries.end()


@pytest.mark.usefixtures("small_parts")
@virtual
async def test_newcomer_while_removed_waiters_are_asked_for_enters_last() -> None:
    """The servers have taken this client for stuck, and removed its waiters."""
    of, entries = servers(), Entries()
    async with clients(of, 2) as (ann, bob):
        lease = await _held_before_twenty(ann, bob, entries)
        store: Any = ann._engine.store
        some = next(iter(store._session.acquisitions.table.by_waiter))
        for number, server in enumerate(of):
            state = server.quorum_server.states["lock:a"]
            state.queue.clear()
            state.waiting.clear()
            store._session.pushes.vote_lost(number, "lock:a", type(some)("bob", 1), 1, "expired")
        assert not _passes_of(ann).idle
        entries.begin(ann, "a", "20")
        releasing = asyncio.create_task(lease.release())
        await entries.end()
        assert entries.order == [f"{number:02}" for number in range(21)]
        await releasing


@pytest.mark.usefixtures("small_parts")
@virtual
async def test_release_with_many_local_waiters_queues_them_before_returning_votes() -> None:
    """However many: a waiter of another client that came later does not overtake them."""
    of, entries = servers(), Entries()
    async with clients(of, 2) as (ann, bob):
        lease = await _held_before_many_local_waiters(ann, bob, entries)
        for number in range(20):  # it has much else to do
            _passes_of(ann).begin(number, steps([], "", 200))
        assert await lease.release()
        await entries.end()
        assert entries.order == [f"{number:02}" for number in range(21)]
    assert await left_behind(of) == []


@pytest.mark.usefixtures("small_parts")
@virtual
async def test_majority_lost_again_during_resumption_suspends_all_until_it_is_back() -> None:
    """All are suspended in the end, and all are resumed once it is back."""
    of, entries = servers(), Entries()
    async with clients(of, 2) as (ann, bob):
        lease = await _held_before_twenty(ann, bob, entries)
        store: Any = ann._engine.store
        acquisitions = store._session.acquisitions
        _vote(store, votes=False)
        await asyncio.sleep(1)
        assert _suspended(ann) == 20
        _vote(store, votes=True)
        async with asyncio.timeout(60):
            while not 0 < _suspended(ann) < 20:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0)
        entries.begin(ann, "a", "20")
        await asyncio.sleep(0)
        _vote(store, votes=False)
        await asyncio.sleep(1)
        assert _suspended(ann) == 21
        assert not any(each.is_waited_for for each in acquisitions.table.by_waiter.values())
        _vote(store, votes=True)
        await asyncio.sleep(1)
        assert _suspended(ann) == 0
        await lease.release()
        await entries.end()
        assert entries.order == [f"{number:02}" for number in range(21)]


@pytest.mark.usefixtures("small_parts")
@virtual
async def test_waiters_that_give_up_while_all_are_asked_for_leave_nothing() -> None:
    """It is not asked for any more, and leaves nothing."""
    of, errors = servers(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
    async with clients(of, 2) as (ann, bob):
        lease = await bob.lock("a").acquire()
        waiting = [later(ann.lock("a")) for _ in range(20)]
        await asyncio.sleep(1)
        store: Any = ann._engine.store
        store._session.acquisitions.in_turn.ask_for_client(0)
        assert not _passes_of(ann).idle
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)
        await lease.release()
        await asyncio.sleep(1)
        assert _passes_of(ann).idle
        assert await left_behind(of) == errors == []


@pytest.mark.usefixtures("small_parts")
@virtual
async def test_close_while_all_are_asked_for_asks_nothing_more() -> None:
    """The servers are asked nothing more, and each waiter is told."""
    of = servers()
    async with Peer(store_on(of)) as bob:
        held = await bob.take("a")
        async with Peer(store_on(of)) as ann:
            asked = [ann.ask("a") for _ in range(20)]
            await asyncio.wait(asked)
            again = [ann.ask("a") for _ in range(20)]
            store: Any = ann.store
            for server in range(3):
                store._session.acquisitions.in_turn.ask_for_client(server)
            assert not store._session.acquisitions._passes.idle
            await store.aclose()
            before = [server.asked for server in of]
            await asyncio.sleep(60)
            assert [server.asked for server in of] == before
            for answer in again:
                if answer.exception() is not None:
                    with pytest.raises(StoreError, match="was closed"):
                        answer.result()
        assert await bob.release("a", held)


@pytest.mark.usefixtures("small_parts")
@virtual
async def test_release_whose_grant_is_lost_before_its_turn_is_answered() -> None:
    """The release is answered."""
    of, entries = servers(), Entries()
    async with clients(of, 2, ttl=4) as (ann, bob):
        lease = await _held_before_many_local_waiters(ann, bob, entries)
        releasing = asyncio.create_task(lease.release())
        await asyncio.sleep(0)
        store: Any = ann._engine.store
        (waiter, *_) = store._session.acquisitions.table.by_waiter
        for server in of:
            server.quorum_server.step("lock:a", lambda step: step.take_away(waiter))
        async with asyncio.timeout(1):
            await releasing
        await entries.end()
        assert sorted(entries.order) == [f"{number:02}" for number in range(21)]
    assert await left_behind(of) == []


@virtual
async def test_not_voting_answers_of_one_server_make_one_pass() -> None:
    """Not one for each answer: thousands of waiters may have asked."""
    of = servers()
    async with clients(of, 2) as (ann, bob), bob.lock("a"):
        waiting = [later(ann.lock("a")) for _ in range(20)]
        await asyncio.sleep(1)
        acquisitions: Any = ann._engine.store._session.acquisitions
        checked, check = list[object](), acquisitions.suspension.check

        def counts(acquisition: object) -> None:
            checked.append(acquisition)
            check(acquisition)

        acquisitions.suspension.check = counts
        of[0].quorum_server.forget()
        acquisitions.in_turn.ask_for_client(0)
        await asyncio.sleep(0.3)
        assert 20 <= len(checked) <= 4 * 20
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)


@virtual
async def test_client_servers_after_release_break_or_restart_counts_its_votes() -> None:
    """As `LockClient.servers` tells it, whatever has become of them."""
    of = servers()
    async with clients(of, 2) as (ann, bob):

        def votes(client: aiolock.LockClient) -> list[int]:
            return [server.votes for server in client.servers()]

        leases = [await ann.lock(f"name:{number}").acquire() for number in range(3)]
        await asyncio.sleep(0.1)
        assert votes(ann) == [3, 3, 3]
        assert await bob.lock("name:0").break_()
        with contextlib.suppress(aiolock.LeaseLost):
            await leases[0].release()
        await asyncio.sleep(0.1)
        assert votes(ann) == [2, 2, 2]
        of[0].kill()
        await leases[1].release()
        of[0].start(empty=True)
        await asyncio.sleep(1)
        assert votes(ann)[1:] == [1, 1]
        await leases[2].release()
        await asyncio.sleep(1)
        assert votes(ann) == votes(bob) == [0, 0, 0]
