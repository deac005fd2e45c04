"""The part of the suite about exclusive locks that are acquired, released and handed on."""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Busy,
    Form,
    Full,
    Granted,
    Queued,
    ReadStatus,
    Status,
    WaiterId,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import CLAIM, LONG, PLAIN, Grant, fresh_name


class QueueContract(Contract):
    """See `LockContract`."""

    # acquire

    async def test_acquire_of_a_free_lock_is_granted_for_the_whole_ttl(self) -> None:
        """A free lock is granted in the answer, for the whole ttl."""
        async with self.peers(1) as (ann,):
            answer = await ann.ask(name := fresh_name(), waiter := ann.waiter(), ttl=5000)
            assert isinstance(answer, Granted)
            assert answer.lease == 5000
            assert answer.fence > 0
            assert await ann.holds(name, Grant(waiter, answer.fence))

    async def test_names_that_differ_in_any_character_are_different_locks(self) -> None:
        """Names that differ in anything are different locks, whatever is in them."""
        async with self.peers(1) as (ann,):
            stem = fresh_name()
            odd = [
                "",
                ":queue",
                ":holders",
                "{",
                "}",
                "{}",
                "%7B",
                "%257B",
                " ",
                "\n",
                "é",
                "🔒",
                "*",
            ]
            grants = [await ann.take(stem + end) for end in odd]
            assert [await ann.release(stem + e, g) for e, g in zip(odd, grants, strict=True)] == [
                WAS_HOLDER
            ] * len(odd)

    async def test_acquire_of_a_held_lock_is_queued_at_the_tail(self) -> None:
        """A waiter for a taken lock is queued at the tail, and learns when to look again."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := fresh_name())
            first = await bob.ask(name)
            second = await ann.ask(name)
            assert isinstance(first, Queued)
            assert isinstance(second, Queued)
            assert first.place == 1 < second.place
            assert 0 < first.ticket < second.ticket
            assert 0 < first.until <= self._at_most(LONG)
            assert 0 < second.until <= self._at_most(LONG)

    async def test_acquire_repeated_by_the_holder_returns_the_same_grant(self) -> None:
        """A holder that asks again gets its grant again, and the rest of its lease."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            again = await ann.ask(name, grant.waiter, ttl=2 * LONG)
            assert isinstance(again, Granted)
            assert again.fence == grant.fence
            assert 0 < again.lease <= LONG

    async def test_acquire_repeated_after_an_unheard_handoff_returns_the_grant(self) -> None:
        """A waiter that did not hear of its grant finds it when it asks again."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.release(name, grant)
            again = await bob.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Granted)
            handed = await bob.handed()
            assert (handed.name, handed.waiter, handed.fence) == (name, place.waiter, again.fence)
            assert 0 < again.lease <= CLAIM
            assert not again.displaced

    async def test_acquire_repeated_by_a_waiter_keeps_its_place_and_ticket(self) -> None:
        """A waiter that asks again keeps its place and its ticket, with or without showing it."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.queue(name)
            for ticket in (0, place.ticket):
                again = await bob.ask(name, place.waiter, ticket=ticket)
                assert isinstance(again, Queued)
                assert (again.ticket, again.place) == (place.ticket, 1)
                assert not again.displaced
            assert len((await ann.store.submit(ReadStatus(name))).waiters) == 2

    async def test_acquire_without_waiting_is_granted_or_busy_and_never_queued(self) -> None:
        """A waiter that does not wait gets a free lock, or learns how long it is taken."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert isinstance(await ann.ask(name, wait=False), Granted)
            busy = await bob.ask(name, wait=False)
            assert isinstance(busy, Busy)
            assert 0 < busy.until <= self._at_most(LONG)
            assert not (await bob.store.submit(ReadStatus(name))).waiters

    async def test_acquire_without_waiting_of_a_held_lock_names_the_holder(self) -> None:
        """A waiter that does not wait learns who has the lock, in the same answer.

        If it is closed, nobody has it. Nor does a store that does not report holders name one.
        """
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name(), ann.waiter(Form(CLAIM, after_grant=LONG)))
            busy = await bob.ask(name, wait=False)
            assert isinstance(busy, Busy)
            if self.reports_who_holds:
                assert busy.holder is not None
                assert (busy.holder.client, busy.holder.fence) == (ann.client, grant.fence)
                assert 0 < busy.holder.remaining <= LONG / 1000
                self._runs_here(busy.holder)
            else:
                assert busy.holder is None
            await ann.release(name, grant)
            closed = await bob.ask(name, wait=False)
            assert isinstance(closed, Busy)
            assert closed.holder is None

    async def test_acquire_without_waiting_does_not_overtake_waiters(self) -> None:
        """A waiter that does not wait gets nothing while others wait, even without a holder."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            busy = await cat.ask(name, wait=False)
            assert isinstance(busy, Busy)
            assert 0 < busy.until <= self._at_most(CLAIM)
            assert (await bob.handed()).waiter == place.waiter

    async def test_max_waiters_refuses_newcomers_but_no_queued_waiter(self) -> None:
        """As many may wait as allowed; a waiter that is in the queue already is not refused."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert isinstance(await ann.ask(name, max_waiters=1), Granted)
            waiter = bob.waiter()
            place = await bob.ask(name, waiter, max_waiters=1)
            assert isinstance(place, Queued)
            assert await ann.ask(name, max_waiters=1) == Full(1)
            assert isinstance(await ann.ask(name, max_waiters=2), Queued)
            assert await bob.ask(name, max_waiters=1) == Full(2)
            assert isinstance(await bob.ask(name, waiter, max_waiters=1), Queued)
            await bob.leave(name, waiter)
            back = await bob.ask(name, waiter, ticket=place.ticket, max_waiters=1)
            assert isinstance(back, Queued)
            assert isinstance(await bob.ask(name, wait=False, max_waiters=1), Busy)

    async def test_max_waiters_does_not_count_waiters_of_dead_clients(self) -> None:
        """Waiters whose client is gone do not count, and leave a full queue."""
        self._needs_a_count()
        async with self.peers(3) as (ann, bob, cat):
            await ann.take(name := fresh_name())
            await bob.queue(name)
            place = await ann.queue(name)
            await bob.queue(name)
            assert await cat.ask(name, max_waiters=3) == Full(3)
            await ann.sees_end_of(bob)
            newcomer = await cat.ask(name, max_waiters=3)
            assert isinstance(newcomer, Queued)
            assert newcomer.place > 1
            clients = [party.client for party in (await ann.store.submit(ReadStatus(name))).waiters]
            assert clients == [ann.client, cat.client]
            assert await ann.queue(name, place.waiter) == place
            assert await cat.ask(name, max_waiters=2) == Full(2)

    # release

    async def test_release_by_the_holder_frees_the_lock(self) -> None:
        """A holder that releases was one, and the lock is free."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            assert await ann.release(name, grant) == WAS_HOLDER
            assert not await ann.holds(name, grant)
            assert (await bob.take(name)).fence > grant.fence

    async def test_release_without_a_fence_releases_a_holder_or_a_waiter(self) -> None:
        """A release without a fence releases a waiter whether it holds or waits."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            first, second = await bob.queue(name), await bob.queue(name)
            assert await bob.leave(name, first.waiter) == WAS_QUEUED
            again = await bob.ask(name, second.waiter)
            assert isinstance(again, Queued)
            assert again.place == 1
            assert await ann.leave(name, grant.waiter) == WAS_HOLDER
            assert (await bob.handed()).waiter == second.waiter
            assert await bob.leave(name, second.waiter) == WAS_HOLDER
            assert (await bob.store.submit(ReadStatus(name))) == Status(name, (), ())

    async def test_release_of_an_absent_waiter_changes_nothing(self) -> None:
        """A waiter that neither holds nor waits was absent, and disturbs no other."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert await bob.leave(name, bob.waiter()) == WAS_ABSENT
            grant = await ann.take(name)
            for fence in (0, grant.fence):
                assert await bob.release(name, Grant(bob.waiter(), fence)) == WAS_ABSENT
            assert await ann.holds(name, grant)

    async def test_release_with_another_fence_releases_neither_grant_nor_place(self) -> None:
        """A release with a fence is about that grant alone: no other grant, and no place."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            stale = Grant(grant.waiter, grant.fence - 1)
            assert await ann.release(name, stale) == WAS_ABSENT
            assert await ann.holds(name, grant)
            assert await bob.release(name, Grant(place.waiter, grant.fence)) == WAS_ABSENT
            assert await bob.queue(name, place.waiter) == place

    async def test_release_whose_answer_is_not_awaited_is_carried_out(self) -> None:
        """A release is carried out even if its answer is not awaited."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            ann.release(name, grant).cancel()
            assert not await ann.holds(name, grant)

    async def test_release_under_way_when_the_store_closes_is_carried_out(self) -> None:
        """A store that is closed first carries out the commands under way."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            _ = ann.release(name, grant)
            await ann.store.aclose()
            assert (await bob.handed()).waiter == place.waiter

    # Handing on

    async def test_acquire_by_many_clients_at_once_grants_one_and_queues_the_rest(self) -> None:
        """Several clients ask at once: one has the lock, and each of the others has a place."""
        async with self.peers(8) as peers:
            name = fresh_name()
            answers = await asyncio.gather(*(peer.ask(name) for peer in peers for _ in range(3)))
            kinds = [type(answer) for answer in answers]
            assert kinds.count(Granted) <= 1
            assert kinds.count(Granted) + kinds.count(Queued) == 24
            status = await peers[0].store.submit(ReadStatus(name))
            while len(status.holders) != 1 or len(status.waiters) != 23:
                # On a quorum, different servers may each have let in another one at first.
                status = await peers[0].store.submit(ReadStatus(name))
            everybody = (*status.holders, *status.waiters)
            assert len({(party.client, party.seq) for party in everybody}) == 24

    async def test_handoff_grants_the_next_waiter_by_a_push_for_its_claim(self) -> None:
        """A released lock is granted to the next by a push, for the claim in its form."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := f"{fresh_name()} {{é}}\n%7B x")
            waiter = bob.waiter(form := Form(2500, after_loss=7))
            queued = await bob.ask(name, waiter)
            assert isinstance(queued, Queued)
            assert await ann.release(name, grant) == WAS_HOLDER
            handed = await bob.handed()
            assert handed[:3] == (name, waiter, form)
            assert 0 < handed.lease <= 2500
            assert handed.fence > grant.fence
            assert handed.now >= queued.now
            assert isinstance(await ann.ask(name, wait=False), Busy)
            (holder,) = (await bob.store.submit(ReadStatus(name))).holders
            assert 0 < holder.remaining <= 2.5

    async def test_handoff_follows_the_order_of_arrival_across_clients(self) -> None:
        """The lock goes through the queue in the order of arrival, across all clients."""
        async with self.peers(3) as peers:
            ann = holder = peers[0]
            grant = await ann.take(name := fresh_name())
            order = [(peer, (await peer.queue(name)).waiter) for _ in range(8) for peer in peers]
            fences = [grant.fence]
            for peer, waiter in order:
                assert await holder.release(name, grant) == WAS_HOLDER
                handed = await peer.handed()
                assert handed.waiter == waiter
                holder, grant = peer, Grant(waiter, handed.fence)
                fences.append(handed.fence)
            assert await holder.release(name, grant) == WAS_HOLDER
            assert fences == sorted(set(fences))
            await ann.take(name)

    async def test_handoff_goes_by_priority_and_then_by_arrival(self) -> None:
        """Lower numbers first, then by arrival; a waiter that asks again keeps its place."""
        async with self.peers(2) as peers:
            holder = peers[0]
            grant = await holder.take(name := fresh_name())
            order: list[tuple[int, int, WaiterId]] = []
            for number, priority in enumerate((2, 0, -9, 0, 2, -9)):
                peer, form = peers[number % 2], replace(PLAIN, priority=priority)
                first = not order or priority < min(order)[0]
                answer = await peer.ask(name, waiter := peer.waiter(form))
                assert isinstance(answer, Queued)
                assert (answer.place == 1) == first
                again = await peer.queue(name, waiter, ticket=answer.ticket)
                assert again.ticket == answer.ticket
                order.append((priority, number, waiter))
            waiters = (await holder.store.submit(ReadStatus(name))).waiters
            assert all(abs(party.since - waiters[0].since) < 60 for party in waiters)
            for _, number, waiter in sorted(order):
                assert await holder.release(name, grant) == WAS_HOLDER
                holder = peers[number % 2]
                handed = await holder.handed()
                assert handed.waiter == waiter
                grant = Grant(waiter, handed.fence)
            assert await holder.release(name, grant) == WAS_HOLDER

    async def test_handoff_skips_waiters_of_dead_clients(self) -> None:
        """Waiters whose client is gone are skipped in the call that would have granted to them."""
        self._needs_a_count()
        async with self.peers(4) as (ann, bob, cat, dan):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name)
            await cat.queue(name)
            await bob.queue(name)
            place = await dan.queue(name)
            await ann.sees_end_of(bob)
            await ann.sees_end_of(cat)
            await ann.release(name, grant)
            assert (await dan.handed()).waiter == place.waiter
            status = await ann.store.submit(ReadStatus(name))
            assert [holder.client for holder in status.holders] == [dan.client]
            assert not status.waiters

    async def test_handoff_with_only_dead_waiters_leaves_the_lock_free(self) -> None:
        """If the clients of all waiters are gone, the lock is free."""
        self._needs_a_count()
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name)
            await ann.sees_end_of(bob)
            assert await ann.release(name, grant) == WAS_HOLDER
            assert await ann.store.submit(ReadStatus(name)) == Status(name, (), ())
            assert not await self.left_behind(name)

    async def test_handoff_in_a_store_that_counts_no_listeners_skips_no_waiter(self) -> None:
        """If listeners cannot be counted, no client is considered dead."""
        if self.counts_who_listens:
            self._skip("this store counts who listens: its dead are passed over")
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name)
            await bob.store.aclose()
            await ann.release(name, grant)
            (holder,) = (await ann.store.submit(ReadStatus(name))).holders
            assert holder.client == bob.client
