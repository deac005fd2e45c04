"""Runs: what a client hands on among its own tasks, before the store has heard of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import pytest

import aiolock
from aiolock import Lease, LeaseLost, Lock, StoreError
from aiolock.protocol import (
    MAX_AHEAD,
    Break,
    Deliver,
    Event,
    GrantLost,
    Reconnected,
    RequestRelease,
)
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.virtual import VirtualLoop
from tests.support.worlds import asking, queued, settled, virtual

KEY = "lock:l"


@dataclass
class Scene:
    """One client whose store can fail, and another."""

    server: MemoryServer
    faulty: FaultyStore
    ours: aiolock.LockClient
    theirs: aiolock.LockClient

    @property
    def lock(self) -> Lock:
        return self.ours.lock("l")

    async def line_up(self, *locks: Lock) -> tuple[Lease, list[asyncio.Task[Lease]]]:
        """The first of these holds it, and the others wait, in order."""
        held = await locks[0].acquire()
        assert held is not None
        waiting = list[asyncio.Task[Lease]]()
        for lock in locks[1:]:
            waiting.append(asking(lock))
            await queued(lock, len(waiting))
        return held, waiting

    async def hand_off(self, held: Lease) -> asyncio.Task[bool]:
        """Release it; who is next has it when this returns, and nothing is reported yet."""
        released = asyncio.create_task(held.release())
        await asyncio.sleep(0)
        return released


@asynccontextmanager
async def scene() -> AsyncGenerator[Scene]:
    """Both open; in the end nothing is left, at the server or in the client."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with (
        asyncio.timeout(10_000),
        aiolock.connect(faulty) as ours,
        aiolock.connect(server) as theirs,
    ):
        yield Scene(server, faulty, ours, theirs)
        assert not (await theirs.lock("l").status()).waiters
        assert len(ours._engine.handoff.names) == 0, "nothing is kept of a run that is over"


@virtual
async def test_handoff_to_a_holder_that_is_lost_leaves_no_record() -> None:
    """It was handed the lock, and hands it to nobody."""
    async with scene() as s:

        async def hold() -> None:
            async with s.ours.lock("l", max_hold=0.5):
                await asyncio.sleep(10)

        holding = [asyncio.create_task(hold()) for _ in range(2)]
        lost = await asyncio.gather(*holding, return_exceptions=True)
        assert [type(each) for each in lost] == [LeaseLost, LeaseLost]


@virtual
async def test_handoff_along_a_queue_is_reported_in_one_command() -> None:
    """In order, under fences one above the other; who has left hears that it was confirmed."""
    async with scene() as s:
        entered = list[tuple[int, int]]()

        async def enter(number: int) -> None:
            async with s.lock as lease:
                entered.append((number, lease.fence))

        held = await s.lock.acquire()
        assert held is not None
        tasks = [asyncio.create_task(enter(number)) for number in range(1, 7)]
        await queued(s.lock, 6)
        s.faulty.calls.clear()
        assert await held.release()
        await asyncio.gather(*tasks)
        assert entered == [(number, held.fence + number) for number in range(1, 7)]
        assert (s.faulty.calls["report_handoff"], s.faulty.calls["release"]) == (1, 1)
        assert not await s.theirs.lock("l").locked()


@virtual
async def test_handoff_to_a_waiter_of_another_client_goes_through_the_store() -> None:
    """A run ends where another client's waiter stands, and goes on behind it."""
    async with scene() as s:
        theirs = s.theirs.lock("l")
        held, waiting = await s.line_up(s.lock, s.lock, theirs, s.lock, s.lock)
        s.faulty.calls.clear()
        last = held
        for task in waiting:
            assert await last.release()
            lease = await task
            assert lease.fence > last.fence
            assert not any(other.done() for other in waiting[waiting.index(task) + 1 :])
            last = lease
        assert await last.release()
        assert s.faulty.calls["report_handoff"] == 2


@virtual
async def test_handoff_to_cancelled_waiter_goes_to_the_next() -> None:
    """Its task has not run yet, so it still stands in the queue."""
    async with scene() as s:
        held, (first, second) = await s.line_up(s.lock, s.lock, s.lock)
        first.cancel()
        assert await held.release()
        lease = await second
        assert await lease.release()
        assert s.faulty.calls["report_handoff"] == 0


@virtual
async def test_handoff_after_a_waiter_gave_up_goes_to_the_one_behind() -> None:
    """Behind the holder stands now who stood behind the one that is gone."""
    async with scene() as s:
        held, (first, second, third) = await s.line_up(s.lock, s.lock, s.lock, s.lock)
        first.cancel()
        await settled()
        released = await s.hand_off(held)
        lease = await second
        assert lease.fence == held.fence + 1
        third.cancel()
        assert await released
        assert await lease.release()
        assert s.faulty.calls["report_handoff"] == 1


@virtual
async def test_handoff_before_its_report_keeps_the_deadline_of_the_holder_before() -> None:
    """Until it is confirmed: the store's entry is an older grant, and ends with that."""
    async with scene() as s:
        lock = s.ours.lock("l", ttl=4)
        held, (waiting,) = await s.line_up(lock, lock)
        await asyncio.sleep(1.3)  # just before it is renewed
        left = held.remaining()
        assert left < 2.7
        released = await s.hand_off(held)
        lease = await waiting
        assert lease.remaining() <= left
        assert await released
        assert lease.remaining() > 2.9, "it is a claim of its own now"
        assert await lease.release()


@virtual
async def test_handoff_of_a_lease_near_its_deadline_goes_through_the_store() -> None:
    """Whoever is next would have to give it back at once."""
    async with scene() as s:
        lock = s.ours.lock("l", ttl=4)
        held, (waiting,) = await s.line_up(lock, lock)
        s.faulty.refuse("renew", 10)
        await asyncio.sleep(3.3)
        assert 0 < held.remaining() < 0.75
        assert await held.release()
        lease = await waiting
        assert lease.remaining() > 2.5
        s.faulty.resume()
        assert await lease.release()
        assert s.faulty.calls["report_handoff"] == 0


async def body(lock: Lock, leases: list[Lease]) -> None:
    """Hold it for ever."""
    async with lock as lease:
        leases.append(lease)
        await asyncio.Event().wait()


@pytest.mark.parametrize("heard", [True, False])
@virtual
async def test_handoff_of_a_grant_that_was_broken_loses_the_new_holder(heard: bool) -> None:
    """Whoever has it by then has lost it: by the word that it was broken, or by the report."""
    async with scene() as s:
        leases = list[Lease]()
        held = await s.lock.acquire()
        assert held is not None
        task = asyncio.create_task(body(s.lock, leases))
        await queued(s.lock, 1)
        other = asking(s.theirs.lock("l"))
        await queued(s.lock, 2)
        released = await s.hand_off(held)
        if not heard:
            s.faulty.lose("push")
        assert s.server.run(Break(KEY, [held.fence])) == 1
        with pytest.raises(LeaseLost, match=r"break_\(\)" if heard else "does not know it"):
            await task
        assert asyncio.get_running_loop().time() < 0.5, "not when it is to be renewed"
        assert not await released, "it was not ours when it was released"
        lease = await other
        assert lease.fence > leases[0].fence
        assert await lease.release()


@virtual
async def test_request_release_after_a_handoff_reaches_the_new_holder() -> None:
    """The store knows of an older grant of the run."""
    async with scene() as s:
        held, (waiting,) = await s.line_up(s.lock, s.lock)
        released = await s.hand_off(held)
        assert s.server.run(RequestRelease(KEY)) == 1
        lease = await waiting
        async with asyncio.timeout(1):
            await lease.requested.wait()
        assert await released
        assert await lease.release()


@pytest.mark.parametrize("carried_out", [True, False])
@virtual
async def test_report_handoff_that_fails_is_sent_again_and_keeps_the_holder(
    carried_out: bool,
) -> None:
    """Before anything else, or after a second; who has left is told, who has it is not in doubt."""
    async with scene() as s:
        held, (waiting,) = await s.line_up(s.lock, s.lock)
        (s.faulty.lose if carried_out else s.faulty.refuse)("report_handoff", 2)
        released = await s.hand_off(held)
        lease = await waiting
        with pytest.raises(StoreError):
            await released
        await asyncio.sleep(2.5)  # the second time fails as well
        assert s.faulty.calls["report_handoff"] == 3
        assert await lease.verify()
        assert await lease.release()
        assert s.faulty.calls["release"] == 1


@virtual
async def test_handoff_after_a_failed_report_goes_through_the_store() -> None:
    """Until the store has confirmed it: else there would be more and more that nobody knows."""
    async with scene() as s:
        held, (second, third) = await s.line_up(s.lock, s.lock, s.lock)
        s.faulty.refuse("report_handoff", 1)
        released = await s.hand_off(held)
        lease = await second
        with pytest.raises(StoreError):
            await released
        assert await lease.release()
        assert s.faulty.calls["release"] == 1
        assert await (await third).release()


@virtual
async def test_report_handoff_that_is_refused_takes_its_waiters_from_the_queue() -> None:
    """The report was refused, so that those who have had it still stand there."""
    async with scene() as s:
        held, (second,) = await s.line_up(s.lock, s.lock)
        leases = list[Lease]()
        third = asyncio.create_task(body(s.lock, leases))
        await queued(s.lock, 2)
        s.faulty.lose("push", 9)  # nor that it was granted to them again
        released = await s.hand_off(held)
        then = await s.hand_off(await second)
        assert s.server.run(Break(KEY, [held.fence])) == 1
        with pytest.raises(LeaseLost):
            await third
        assert (await released, await then) == (False, False)
        await settled()
        assert not s.server._states.get(KEY)


@virtual
async def test_verify_before_the_report_of_a_handoff_raises_store_error_not_loss() -> None:
    """It does not know the grant yet, so that it refuses a renewal says nothing."""
    async with scene() as s:
        held, (waiting,) = await s.line_up(s.lock, s.lock)
        s.faulty.refuse("report_handoff", 2)
        released = await s.hand_off(held)
        lease = await waiting
        with pytest.raises(StoreError):
            await released
        with pytest.raises(StoreError, match="has not heard yet"):
            await lease.verify()
        assert lease.state in ("held", "at_risk")
        assert await lease.verify(), "now it has"
        assert await lease.release()


@virtual
async def test_report_handoff_sent_again_too_late_loses_nothing() -> None:
    """The store refuses it, for the lock has gone on since: that is no loss."""
    async with scene() as s:
        held, (second, third) = await s.line_up(s.lock, s.lock, s.lock)
        s.faulty.hold("report_handoff")
        s.faulty.lose("report_handoff", 1)
        first = await s.hand_off(held)
        lease = await second
        await settled()
        assert s.faulty.calls["report_handoff"] == 1
        then = await s.hand_off(lease)
        lease = await third
        await settled()
        assert s.faulty.calls["report_handoff"] == 2
        s.faulty.resume()
        with pytest.raises(StoreError):
            await first
        assert await then
        await asyncio.sleep(1.5)
        assert s.faulty.calls["report_handoff"] == 3
        assert await lease.verify()
        assert await lease.release()


@virtual
async def test_handoff_after_a_waiter_came_back_in_between_goes_to_that_waiter() -> None:
    """The store says that somebody stands there now."""
    async with scene() as s:
        theirs = s.theirs.lock("l")
        held = await s.lock.acquire()
        assert held is not None
        other = asking(theirs)
        await queued(theirs, 1)
        ((_, waiter),) = s.server._states[KEY].queue
        s.server._states[KEY].dequeue(waiter)  # as when its client was taken for stuck
        await asyncio.sleep(0.01)
        mine = asking(s.lock)
        await queued(s.lock, 1)
        s.theirs._engine.waiters.deliver(Reconnected())
        await queued(s.lock, 2)
        assert await held.release()
        lease = await other
        assert not mine.done()
        assert await lease.release()
        assert await (await mine).release()
        assert s.faulty.calls["report_handoff"] == 0


@virtual
async def test_handoff_with_a_more_urgent_waiter_goes_to_that_waiter() -> None:
    """One of our own comes to stand before another."""
    async with scene() as s:
        held, (second,) = await s.line_up(s.lock, s.lock)
        urgent = asking(s.ours.lock("l", priority=-1))
        await queued(s.lock, 2)
        assert await held.release()
        lease = await urgent
        assert not second.done()
        assert await lease.release()
        assert await (await second).release()


@virtual
async def test_handoff_after_a_reconnection_goes_by_the_queue_of_the_store() -> None:
    """It may be another server, and what it said may not have been heard."""
    async with scene() as s:
        held, (mine,) = await s.line_up(s.lock, s.lock)
        state = s.server._states[KEY]
        (mine_at, _) = state.queue[0]
        other = asking(s.theirs.lock("l"))
        await queued(s.lock, 2)
        _, waiter = state.queue[1]
        form = state.waiting[waiter][1]
        state.dequeue(waiter)
        state.enqueue(mine_at - 1, waiter, form)
        s.ours._engine.waiters.deliver(Reconnected())
        await settled()
        assert await held.release()
        lease = await other
        assert not mine.done()
        assert await lease.release()
        assert await (await mine).release()


OTHERS: dict[str, dict[str, Any]] = {
    "another_claim": {"ttl": 2.0},
    "not_renewed": {"renew": False},
    "closes": {"min_hold": 0.01},
    "closes_after_a_loss": {"lock_delay": 0.01},
    "another_priority": {"priority": 1},
}


@pytest.mark.parametrize("options", OTHERS.values(), ids=list(OTHERS))
@pytest.mark.parametrize("both", [True, False])
@virtual
async def test_handoff_with_options_the_store_must_apply_goes_through_the_store(
    options: dict[str, Any], both: bool
) -> None:
    """What the store does at the hand-off, beside that, it has to do itself."""
    async with scene() as s:
        other = s.ours.lock("l", **options)
        held, (waiting,) = await s.line_up(other if both else s.lock, other)
        assert await held.release()
        lease = await waiting
        assert await lease.release()
        plain = both and set(options) <= {"ttl", "priority"}
        assert s.faulty.calls["report_handoff"] == plain


@virtual
async def test_handoff_of_a_lease_being_shortened_goes_through_the_store() -> None:
    """The store may not have heard of that yet."""
    async with scene() as s:
        held, (waiting,) = await s.line_up(s.lock, s.lock)
        s.faulty.hold("renew")
        shorter = asyncio.create_task(held.extend(2))
        await settled()
        assert await held.release()
        s.faulty.resume()
        lease = await waiting
        await asyncio.wait([shorter])
        assert await lease.release()
        assert s.faulty.calls["report_handoff"] == 0


@virtual
async def test_handoff_without_answers_stops_at_max_ahead_unreported_grants() -> None:
    """What the store has not confirmed is bounded, for it goes on above that after a loss."""
    async with scene() as s:
        fences = list[int]()

        async def enter() -> None:
            async with s.lock as lease:
                fences.append(lease.fence)
                assert len(s.ours._engine.handoff.names[KEY].handed_off) <= MAX_AHEAD

        held = await s.lock.acquire()
        assert held is not None
        tasks = [asyncio.create_task(enter()) for _ in range(MAX_AHEAD + 20)]
        await queued(s.lock, MAX_AHEAD + 20)
        s.faulty.hold("report_handoff")
        s.faulty.calls.clear()
        released = asyncio.create_task(held.release())
        await settled(400)
        assert fences[MAX_AHEAD - 1] == held.fence + MAX_AHEAD
        assert s.faulty.calls["release"] >= 1
        s.faulty.resume()
        await asyncio.gather(*tasks, released)
        assert fences == sorted(fences)
        assert len(fences) == MAX_AHEAD + 20


@virtual
async def test_handoff_taken_up_after_the_lease_ended_is_acquired_again() -> None:
    """The process was stopped after the hand-off: the lease has ended, and others may have it."""
    async with scene() as s:
        held, (waiting,) = await s.line_up(s.lock, s.lock)
        held.release_nowait()  # before any task runs
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        loop.advance(40)
        lease = await waiting
        assert lease.remaining() > 2.9
        assert lease.fence > held.fence + 1
        assert await lease.release()


@virtual
async def test_report_handoff_answered_late_says_nothing_of_later_handoffs() -> None:
    """The answer to a report may come when another client has had the lock since."""
    async with scene() as s:
        locks = (s.lock, s.lock, s.theirs.lock("l"), s.lock, s.lock)
        held, (second, other, third, fourth) = await s.line_up(*locks)
        s.faulty.hold("report_handoff")
        s.faulty.lose("push")
        released = await s.hand_off(held)
        assert s.server.run(Break(KEY, [held.fence])) == 1
        lease = await second
        theirs = await other
        await settled()  # the report is refused, which we hear only later
        assert await lease.release()
        assert await theirs.release()
        then = await s.hand_off(await third)
        lease = await fourth
        await settled()
        s.faulty.resume()
        await settled()
        assert await lease.verify()
        assert (await released, await then) == (False, True)
        assert await lease.release()


@virtual
async def test_loss_after_a_handoff_is_observed_in_the_context_of_the_new_holder() -> None:
    """A report that is refused is of the task before, and the loss of the one that has it."""
    request = ContextVar("request", default="nobody's")
    told = list[str]()

    class Log(aiolock.Observer):
        def lost(self, *_: Any, **facts: Any) -> None:
            told.append(request.get())

    class Deaf(MemoryStore):
        async def open(self, client: str, deliver: Deliver) -> None:
            def hears(event: Event) -> None:
                if not isinstance(event, GrantLost):
                    deliver(event)

            await super().open(client, hears)

    server = MemoryServer()
    async with aiolock.connect(Deaf(server), observer=Log()) as client:
        lock = client.lock("l")
        inside = asyncio.Event()

        async def first() -> None:
            request.set("first")
            async with lock:
                inside.set()
                await settled()
                (holder,) = (await lock.status()).holders
                assert server.run(Break(KEY, [holder.fence])) == 1

        async def asks() -> None:
            request.set("third")
            await lock.status()  # the report is sent before that, by this task

        async def holds() -> None:
            async with lock:
                third.append(asyncio.create_task(asks()))
                await asyncio.sleep(5)

        async def second() -> None:
            with pytest.raises(LeaseLost):
                await holds()

        third = list[asyncio.Task[None]]()
        leaving = asyncio.create_task(first())
        await inside.wait()
        await second()
        with suppress(LeaseLost):
            await leaving
        await asyncio.gather(*third)
    assert "nobody's" in told
    assert "third" not in told
    assert told.count("first") <= 1, "its own loss"


@virtual
async def test_report_handoff_that_keeps_failing_ends_within_an_hour() -> None:
    """Less and less often; after an hour nothing is left of it at the store, or is kept."""
    async with scene() as s:
        held, (waiting,) = await s.line_up(s.lock, s.lock)
        s.faulty.refuse("report_handoff", 10**6)
        released = await s.hand_off(held)
        lease = await waiting
        with pytest.raises(StoreError):
            await released
        s.faulty.refuse("renew", 10**6)
        await asyncio.sleep(3700)
        assert lease.state == "lost"
        assert len(s.ours._engine.handoff.names) == 0
        tried = s.faulty.calls["report_handoff"]
        assert tried < 3700 / 20
        await asyncio.sleep(3700)
        assert s.faulty.calls["report_handoff"] == tried


@virtual
async def test_report_handoff_that_failed_is_not_repeated_after_close() -> None:
    """What failed is tried once more, and then no more."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    ours = aiolock.connect(faulty)
    await ours.open()
    held = await ours.lock("l").acquire()
    assert held is not None
    waiting = asking(ours.lock("l"))
    await queued(ours.lock("l"), 1)
    faulty.refuse("report_handoff", 10**6)
    held.release_nowait()
    await waiting
    await settled()
    await ours.aclose()
    await settled()
    tried = faulty.calls["report_handoff"]
    await asyncio.sleep(10)
    assert faulty.calls["report_handoff"] == tried


@virtual
async def test_close_during_a_handoff_reports_it_and_empties_the_queue() -> None:
    """And hands nothing on any more."""
    server = MemoryServer()
    async with aiolock.connect(server) as theirs:
        ours = aiolock.connect(server)
        await ours.open()
        lock = ours.lock("l")
        held = await lock.acquire()
        assert held is not None
        waiting = [asking(lock) for _ in range(3)]
        await queued(lock, 3)
        released = asyncio.create_task(held.release())
        await asyncio.sleep(0)
        await ours.aclose()
        await asyncio.wait([*waiting, released])
        assert released.result() is True
        assert not (await theirs.lock("l").status()).waiters
        async with theirs.lock("l", timeout=1):
            pass
