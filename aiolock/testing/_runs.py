"""The part of the suite about hand-offs by the clients themselves (see `ReportHandoff`)."""

# a number in an assertion explains itself

from __future__ import annotations

from aiolock.protocol import (
    MAX_AHEAD,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    WAS_UNKNOWN,
    Before,
    Break,
    Form,
    GrantLost,
    Queued,
    ReadStatus,
)
from aiolock.testing._peer import CLAIM, READER, Grant, Peer, fresh_name
from aiolock.testing._shared import SharedContract


async def _before(peer: Peer, name: str, form: Form | None = None) -> tuple[Grant, object]:
    """Queue another waiter of this client: its grant for a release, and `Queued.before`."""
    waiter = peer.waiter() if form is None else peer.waiter(form)
    answer = await peer.ask(name, waiter)
    assert isinstance(answer, Queued)
    return Grant(waiter, 0), answer.before


class RunsContract(SharedContract):
    """For a store that answers with `Queued.before`: inherit from this class, too."""

    async def test_queued_before_names_the_predecessor_of_the_same_client(self) -> None:
        """A newcomer learns which waiter is directly before it, if that is of its own client."""
        async with self.peers(2) as (ann, bob):
            held = await ann.take(name := fresh_name())
            first, before_first = await _before(ann, name)
            assert before_first == Before(*held)
            second, before_second = await _before(ann, name)
            assert before_second == Before(first.waiter, 0)
            assert (await _before(bob, name))[1] is None
            assert (await _before(ann, name))[1] is None
            again = await ann.ask(name, second.waiter)
            assert isinstance(again, Queued)
            assert again.before is None, "only a newcomer hears it"

    async def test_queued_before_is_none_for_a_reader(self) -> None:
        """A waiter that shares a lock does not learn it: others may enter with it."""
        async with self.peers(1) as (ann,):
            await ann.take(name := fresh_name())
            assert (await _before(ann, name, READER))[1] is None

    async def test_report_handoff_makes_the_target_the_holder_for_its_claim(self) -> None:
        """The target holds it for its claim; earlier holders have left, and others still wait."""
        async with self.peers(2) as (ann, bob):
            held = await ann.take(name := fresh_name())
            first, _ = await _before(ann, name)
            second, _ = await _before(ann, name)
            third, _ = await _before(bob, name)
            now = ann.passed(name, held, first.waiter, second.waiter)
            assert await ann.store.submit(now) == WAS_HOLDER
            assert not await ann.holds(name, held)
            status = await bob.store.submit(ReadStatus(name))
            (holder,) = status.holders
            assert (holder.client, holder.fence) == (ann.client, held.fence + 2)
            assert holder.remaining <= CLAIM / 1000
            assert [waiter.client for waiter in status.waiters] == [bob.client]
            assert await ann.release(name, Grant(second.waiter, now.fence)) == WAS_HOLDER
            handed = await bob.handed()
            assert handed.waiter == third.waiter
            assert handed.fence > now.fence

    async def test_report_handoff_sent_twice_changes_nothing(self) -> None:
        """A second copy of the report changes nothing, even when the run has gone on."""
        async with self.peers(1) as (ann,):
            held = await ann.take(name := fresh_name())
            first, _ = await _before(ann, name)
            second, _ = await _before(ann, name)
            one = ann.passed(name, held, first.waiter)
            assert await ann.store.submit(one) == WAS_HOLDER
            assert await ann.store.submit(one) == WAS_HOLDER
            two = ann.passed(name, Grant(first.waiter, one.fence), second.waiter)
            assert await ann.store.submit(two) == WAS_HOLDER
            assert await ann.store.submit(one) in (WAS_ABSENT, WAS_UNKNOWN)
            assert await ann.holds(name, Grant(second.waiter, two.fence))

    async def test_report_handoff_of_an_ended_grant_is_refused(self) -> None:
        """A grant that has ended cannot be handed off, and its targets still wait."""
        async with self.peers(2) as (ann, bob):
            held = await ann.take(name := fresh_name())
            other = await bob.queue(name)
            waiting, _ = await _before(ann, name)
            assert await ann.release(name, held) == WAS_HOLDER
            handed = await bob.handed()
            assert handed.waiter == other.waiter
            passed = ann.passed(name, held, waiting.waiter)
            assert await ann.store.submit(passed) == WAS_ABSENT
            assert await bob.holds(name, Grant(handed.waiter, handed.fence))
            assert await ann.leave(name, waiting.waiter) == WAS_QUEUED

    async def test_report_handoff_target_not_confirmed_is_lost_with_its_claim(self) -> None:
        """The target confirms its grant, or loses it with the claim."""
        short = Form(claim=1)
        async with self.peers(2) as (ann, bob):
            held = await ann.take(name := fresh_name(), ann.waiter(short))
            waiting, _ = await _before(ann, name, short)
            passed = ann.passed(name, held, waiting.waiter)
            assert await ann.store.submit(passed) == WAS_HOLDER
            await self._moment()
            grant = await bob.take(name)
            assert grant.fence > passed.fence
            assert await ann.told() == GrantLost(name, waiting.waiter, passed.fence, "expired")

    async def test_fence_after_a_lost_lease_is_above_all_unreported_handoffs(self) -> None:
        """A lease that ended, or was broken, may have been handed off: the next fence is above."""
        async with self.peers(2) as (ann, bob):
            held = await ann.take(name := fresh_name())
            await ann.expire(name, held)
            after = await bob.take(name)
            assert after.fence > held.fence + MAX_AHEAD
            waiting = await ann.queue(name)
            assert await ann.store.submit(Break(name, [after.fence])) == 1
            handed = await ann.handed()
            assert handed.waiter == waiting.waiter
            assert handed.fence > after.fence + MAX_AHEAD

    async def test_order_unknown_is_pushed_when_a_waiter_returns_to_its_old_place(self) -> None:
        """A waiter back at an old place may come before another client's, which is notified."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := fresh_name())
            old = await bob.queue(name)
            first, _ = await _before(ann, name)
            _, before_second = await _before(ann, name)
            assert before_second == Before(first.waiter, 0)
            await bob.leave(name, old.waiter)
            back = await bob.ask(name, old.waiter, ticket=old.ticket)
            assert isinstance(back, Queued)
            assert back.displaced
            assert await ann.told_order_unknown() == first.waiter

    async def test_order_unknown_is_pushed_when_a_waiter_of_higher_priority_queues(self) -> None:
        """So may one of a higher priority."""
        async with self.peers(2) as (ann, bob):
            held = await ann.take(name := fresh_name())
            first, before_first = await _before(ann, name)
            assert before_first == Before(*held)
            _, before_urgent = await _before(bob, name, Form(CLAIM, priority=-1))
            assert before_urgent is None
            assert await ann.told_order_unknown() == first.waiter
