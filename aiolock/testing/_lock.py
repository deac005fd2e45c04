"""The part of the suite about exclusive locks: what every store of them does."""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

import asyncio
import os
import socket
from dataclasses import replace
from typing import Any, Final

from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Acquire,
    Break,
    Busy,
    Downgrade,
    Finish,
    Form,
    Full,
    Granted,
    GrantLost,
    Operation,
    Participant,
    Post,
    Queued,
    ReadPage,
    ReadPosted,
    ReadStatus,
    Release,
    Renew,
    RequestRelease,
    Resize,
    Status,
    WaiterId,
)
from aiolock.store import Store
from aiolock.testing._base import Contract
from aiolock.testing._peer import (
    CLAIM,
    LONG,
    PATIENCE,
    PLAIN,
    Grant,
    Peer,
    Place,
    fresh_name,
)

_A_DAY: Final = 86_400_000
_FIXED: Final = Form(CLAIM, fixed=True)
_ONCE: Final = Form(CLAIM, once=True)
_DOWNGRADES: Final = Form(CLAIM, downgrades=True)


class LockContract(Contract):
    """The requirements of a store of locks, on one server or several: one test for each.

    For a store that offers only exclusive locks (see `Features`); for others, inherit from
    `StoreContract`, which says how.
    """

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

    # All names at the store

    async def test_snapshot_contains_every_held_name_with_its_status(self) -> None:
        """Every name that is held or waited for is on a page, with its status."""
        async with self.peers(2) as (ann, bob):
            stem = fresh_name()
            odd = ["", ":queue", "{", "}", "%7B", " ", "\n", "é", "🔒", "*", "x" * 400]
            names = [stem + end for end in odd]
            for name in names:
                await ann.take(name)
            for name in names[:3]:
                await bob.queue(name)
            found = await _snapshot(bob, stem)
            assert found.keys() == set(names)
            for name in names:
                assert _who(found[name]) == _who(await bob.store.submit(ReadStatus(name)))

    async def test_snapshot_of_many_names_is_complete_page_by_page(self) -> None:
        """Page by page, however many there are; released names have no holders."""
        async with self.peers(1) as (ann,):
            stem = fresh_name()
            names = [f"{stem}{number}" for number in range(300)]
            for start in range(0, len(names), 50):  # or the last of them might wait for too long
                some = names[start : start + 50]
                grants = await asyncio.gather(*[ann.take(name) for name in some])
                let_go = list(zip(some, grants, strict=True))[::4]
                await asyncio.gather(*[ann.release(name, grant) for name, grant in let_go])
            held = {name for number, name in enumerate(names) if number % 50 % 4}
            found = await _snapshot(ann, stem)
            assert {name for name, status in found.items() if status.holders} == held

    # Leases

    async def test_renew_moves_the_end_of_the_lease_to_the_new_ttl(self) -> None:
        """A renewal moves the end of a lease to a new ttl from now."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            for ttl in (2 * LONG, 10 * LONG):
                assert await ann.store.submit(Renew([ann.renewal(name, grant, ttl)])) == [True]
                (holder,) = (await ann.store.submit(ReadStatus(name))).holders
                assert ttl - 5000 < 1000 * holder.remaining <= ttl

    async def test_renew_with_a_ttl_of_zero_leaves_the_lease_as_it_is(self) -> None:
        """A renewal with a ttl of 0 changes nothing: the lease ends when it would have."""
        async with self.peers(1) as (ann,):
            name, waiter = fresh_name(), ann.waiter()
            answer = await ann.ask(name, waiter, ttl=10 * LONG)
            assert isinstance(answer, Granted)
            before = await ann.store.submit(ReadStatus(name))
            renewal = ann.renewal(name, Grant(waiter, answer.fence), 0)
            assert await ann.store.submit(Renew([renewal])) == [True]
            after = await ann.store.submit(ReadStatus(name))
            (was,), (holder,) = before.holders, after.holders
            assert was.remaining - PATIENCE < holder.remaining <= was.remaining
            assert replace(holder, remaining=0) == replace(was, remaining=0)

    async def test_renew_many_leases_in_one_call_answers_each_in_its_order(self) -> None:
        """One call renews leases of many names, and answers for each in its order."""
        async with self.peers(2) as (ann, bob):
            names = [fresh_name() for _ in range(40)]
            grants = [await ann.take(name) for name in names]
            released = set(names[::3])
            for name, grant in zip(names, grants, strict=True):
                if name in released:
                    await ann.release(name, grant)
                    await bob.take(name)
            renewals = [ann.renewal(n, g, LONG) for n, g in zip(names, grants, strict=True)]
            answers = await ann.store.submit(Renew(renewals))
            assert answers == [name not in released for name in names]

    async def test_renew_with_one_unreadable_name_answers_for_the_others(self) -> None:
        """What is wrong with one name does not keep the others of a call from their answers."""
        async with self.peers(1) as (ann,):
            names = [fresh_name() for _ in range(5)]
            grants = [await ann.take(name) for name in names]
            spoilt = await self.spoil(names[2])
            renewals = [ann.renewal(n, g, LONG) for n, g in zip(names, grants, strict=True)]
            *others, answer = await ann.store.submit(
                Renew([*renewals[:2], *renewals[3:], renewals[2]])
            )
            assert others == [True] * 4
            assert answer is not True or not spoilt

    async def test_snapshot_with_one_unreadable_name_contains_the_others(self) -> None:
        """What others have written under a name is no name of a snapshot, and the rest is there."""
        async with self.peers(1) as (ann,):
            stem = fresh_name()
            names = [f"{stem}{number}" for number in range(3)]
            for name in names:
                await ann.take(name)
            unreadable = {names[1]} if await self.spoil(names[1]) else set[str]()
            found = await _snapshot(ann, stem)
            assert found.keys() == set(names) - unreadable

    async def test_renew_of_anything_but_a_held_grant_is_refused(self) -> None:
        """What is not a holder is not renewed: a waiter, another grant, a lease that has ended."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            waits, other = Grant(place.waiter, grant.fence), Grant(grant.waiter, grant.fence + 1)
            assert await bob.store.submit(Renew([bob.renewal(name, waits, LONG)])) == [False]
            assert await ann.store.submit(Renew([ann.renewal(name, other, LONG)])) == [False]
            await ann.expire(name, grant)
            assert await ann.store.submit(Renew([ann.renewal(name, grant, LONG)])) == [False]
            assert await ann.store.submit(Renew([ann.renewal(fresh_name(), grant, LONG)])) == [
                False
            ]

    async def test_lease_that_expired_frees_the_lock_and_notifies_its_client(self) -> None:
        """A lease that has ended blocks no waiter, and its client is notified."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await ann.expire(name, grant)
            assert not (await bob.store.submit(ReadStatus(name))).holders
            theirs = await bob.take(name)
            assert theirs.fence > grant.fence
            assert await ann.told() == GrantLost(name, grant.waiter, grant.fence, "expired")
            assert not await ann.holds(name, grant)
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await bob.holds(name, theirs)

    async def test_lease_that_expired_is_taken_over_by_the_next_waiter(self) -> None:
        """The next waiter takes the lock over, by asking, when the lease has ended."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            assert (await self._takes_over(bob, name, place)).fence > grant.fence

    async def test_acquire_by_a_newcomer_after_expiry_hands_off_to_the_first_waiter(self) -> None:
        """A newcomer that finds that a lease has ended wakes the next, and queues behind."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            newcomer = await cat.ask(name)
            assert isinstance(newcomer, Queued)
            assert newcomer.place == 1
            assert (await bob.handed()).waiter == place.waiter

    async def test_expiry_of_a_confirmed_fixed_lease_keeps_its_clients_waiters(self) -> None:
        """A fixed lease that was confirmed may end, and its client is not stuck."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name, bob.waiter(_FIXED))
            other = await bob.queue(name)
            await ann.release(name, grant)
            grant = await bob.confirm(name, await bob.handed())
            await bob.expire(name, grant)
            await ann.queue(name)
            assert (await bob.handed()).waiter == other.waiter

    # Closed for a while

    async def test_after_grant_closes_the_lock_for_a_time_from_the_grant(self) -> None:
        """With `after_grant`, the lock is closed for a time after a grant, whenever it ends."""
        async with self.peers(2) as (ann, bob):
            form = Form(CLAIM, after_grant=LONG)
            grant = await ann.take(name := fresh_name(), ann.waiter(form))
            assert await ann.release(name, grant) == WAS_HOLDER
            assert await ann.release(name, grant) == WAS_ABSENT
            await self._closed(name, bob, most=LONG)
            form = Form(CLAIM, after_grant=100)
            grant = await ann.take(name := fresh_name(), ann.waiter(form))
            before = await _granted_at(ann, name)
            assert await ann.release(name, grant) == WAS_HOLDER
            after = await self._opened(name, bob)
            assert await _granted_at(bob, name) // 1000 >= before // 1000 + 100
            assert await bob.release(name, after) == WAS_HOLDER
            await ann.release(name, await ann.take(name))

    async def test_release_of_a_grant_not_entered_does_not_close_the_lock(self) -> None:
        """A grant that was given up, or back, does not close the lock."""
        async with self.peers(2) as (ann, bob):
            for form in (
                Form(CLAIM, after_grant=LONG),
                Form(CLAIM, period=_A_DAY),
                Form(CLAIM, after_loss=LONG, after_grant=LONG),
            ):
                grant = await ann.take(name := fresh_name(), ann.waiter(form))
                assert await ann.release(name, grant, entered=False) == WAS_HOLDER
                grant = await bob.take(name, bob.waiter(form))
                given_up = bob.leave(name, grant.waiter, entered=False)
                assert await given_up == WAS_HOLDER
                grant = await ann.take(name)
                place = await bob.queue(name, bob.waiter(form))
                last = await ann.queue(name)
                await ann.release(name, grant)
                handed = await bob.handed()
                await bob.release(name, Grant(place.waiter, handed.fence), entered=False)
                assert (await ann.handed()).waiter == last.waiter

    async def test_period_closes_the_lock_after_a_confirmed_handoff(self) -> None:
        """With a `period`, a hand-off closes the lock once it was confirmed, however it ends."""
        async with self.peers(2) as (ann, bob):
            for end in (bob.release, bob.expire):
                grant = await ann.take(name := fresh_name())
                await bob.queue(name, bob.waiter(Form(CLAIM, period=1000 * _A_DAY)))
                await ann.release(name, grant)
                await end(name, await bob.confirm(name, await bob.handed()))
                assert isinstance(await ann.ask(name, wait=False), Busy)

    async def test_after_loss_closes_the_lock_after_an_expired_lease(self) -> None:
        """With `after_loss`, the lock is closed for a time after a lease that was not renewed."""
        async with self.peers(2) as (ann, bob):
            form = Form(CLAIM, after_loss=LONG)
            grant = await ann.take(name := fresh_name(), ann.waiter(form))
            await ann.release(name, grant)
            grant = await ann.take(name, ann.waiter(form))  # a release is no loss
            await ann.expire(name, grant)
            await self._closed(name, bob, most=LONG)
            assert await ann.told() == GrantLost(name, grant.waiter, grant.fence, "expired")
            assert await ann.release(name, grant) == WAS_ABSENT
            form = Form(CLAIM, after_loss=100)
            grant = await ann.take(name := fresh_name(), ann.waiter(form))
            await ann.expire(name, grant)
            await bob.release(name, await self._opened(name, bob))

    async def test_after_loss_closes_the_lock_when_the_holder_reports_the_loss(self) -> None:
        """A holder whose deadline has passed reports the loss, and `after_loss` closes the lock."""
        async with self.peers(2) as (ann, bob):
            for exact in (True, False):
                form = Form(CLAIM, after_loss=LONG)
                grant = await ann.take(name := fresh_name(), ann.waiter(form))
                await bob.queue(name)
                released = Grant(grant.waiter, grant.fence if exact else 0)
                assert await ann.release(name, released, lost=True) == WAS_HOLDER
                await self._closed(name, ann, most=LONG)
                assert await ann.release(name, grant, lost=True) == WAS_ABSENT

    async def test_after_loss_closes_a_broken_lock_and_no_break_opens_it(self) -> None:
        """A broken lock is lost, so `after_loss` closes it; and it cannot be broken open."""
        async with self.peers(2) as (ann, bob):
            form = Form(CLAIM, after_loss=LONG)
            grant = await ann.take(name := fresh_name(), ann.waiter(form))
            assert await bob.store.submit(Break(name, [grant.fence])) == 1
            assert await bob.store.submit(Break(name, [grant.fence])) == 0
            await self._closed(name, bob, most=LONG)
            form = Form(CLAIM, after_loss=100)
            grant = await ann.take(name := fresh_name(), ann.waiter(form))
            assert await bob.store.submit(Break(name, [grant.fence])) == 1
            await bob.release(name, await self._opened(name, bob))

    async def test_period_closes_the_lock_until_the_end_of_the_grants_period(self) -> None:
        """With `period`, the lock is closed to the end of the grant's period, however it ends."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            for end in (ann.release, ann.expire, ann.release):
                period = 50
                while True:
                    period *= 2
                    grant = await self._opened(name, ann, Form(CLAIM, period=period))
                    before = await _granted_at(ann, name)
                    await end(name, grant)
                    busy = await bob.ask(name, waiter := bob.waiter(), wait=False)
                    if isinstance(busy, Busy):
                        break
                    # That took longer than the period, which closed it until then: a longer one.
                    assert isinstance(busy, Granted), busy
                    assert await _granted_at(bob, name) // 1000 // period > before // 1000 // period
                    await bob.release(name, Grant(waiter, busy.fence))
                assert 0 < busy.until <= self._at_most(period)
                after = await self._opened(name, bob)
                assert await _granted_at(bob, name) // 1000 // period > before // 1000 // period
                await bob.release(name, after)

    # request, break_ and status

    async def test_request_release_notifies_the_holder_and_changes_nothing(self) -> None:
        """The holders are asked to release the lock; nothing else changes."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert await bob.store.submit(RequestRelease(name)) == 0
            grant = await ann.take(name)
            place = await bob.queue(name)
            assert await bob.store.submit(RequestRelease(name)) == 1
            assert await ann.requested_of() == grant
            assert await ann.holds(name, grant)
            assert await bob.queue(name, place.waiter, ticket=place.ticket) == place

    async def test_client_with_an_id_like_that_of_a_reserved_grant_gets_its_pushes(self) -> None:
        """A random id may begin with any character, also with that of a grant without a client."""
        odd = Peer(self.store(), self.expire)
        odd.client = f"-{odd.client[1:]}"
        async with self.peers(1) as (ann,), odd:
            name = fresh_name()
            grant = await odd.take(name)
            assert await ann.store.submit(RequestRelease(name)) == 1
            assert await odd.requested_of() == grant
            assert await ann.store.submit(Break(name, [grant.fence])) == 1
            assert await odd.told() == GrantLost(name, grant.waiter, grant.fence, "broken")

    async def test_break_notifies_the_holder_and_grants_the_next_waiter(self) -> None:
        """A broken lock is taken from its holder, who is notified, and granted to the next."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := f"{fresh_name()} {{é}}\n%7B x")
            place, own = await bob.queue(name), await ann.queue(name)
            assert await cat.store.submit(Break(name, [grant.fence])) == 1
            assert await ann.told() == GrantLost(name, grant.waiter, grant.fence, "broken")
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            assert handed.fence > grant.fence
            assert not await ann.holds(name, grant)
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await ann.queue(name, own.waiter) == own

    async def test_break_takes_only_the_named_grants_and_only_once(self) -> None:
        """Only the named grants are broken, so a second call breaks no other."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert await ann.store.submit(Break(name, [1])) == 0
            grant = await ann.take(name)
            await bob.queue(name)
            assert await ann.store.submit(Break(name, [])) == 0
            assert await ann.store.submit(Break(name, [grant.fence + 1])) == 0
            assert await ann.holds(name, grant)
            assert await ann.store.submit(Break(name, [1, grant.fence])) == 1
            assert await ann.store.submit(Break(name, [1, grant.fence])) == 0
            handed = await bob.handed()
            assert await bob.holds(name, Grant(handed.waiter, handed.fence))

    async def test_status_shows_holders_and_waiters_in_order_and_where_they_run(self) -> None:
        """A status shows the holders and waiters, in order, and where they run."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            assert await cat.store.submit(ReadStatus(name)) == Status(name, (), ())
            grant = await ann.take(name)
            for peer in (bob, ann, bob):
                await peer.queue(name)
            status = await cat.store.submit(ReadStatus(name))
            assert status.name == name
            (holder,) = status.holders
            assert (holder.client, holder.place, holder.fence) == (ann.client, 0, grant.fence)
            assert LONG / 1000 - 10 < holder.remaining <= LONG / 1000
            waiters = status.waiters
            assert [waiter.client for waiter in waiters] == [bob.client, ann.client, bob.client]
            assert [waiter.place for waiter in waiters] == [1, 2, 3]
            assert all(waiter.fence == 0 and waiter.remaining == 0 for waiter in waiters)
            since = [party.since for party in (holder, *waiters)]
            assert max(since) - min(since) < PATIENCE
            seqs = [party.seq for party in status.waiters if party.client == bob.client]
            assert seqs == sorted(set(seqs))
            for party in (holder, *waiters):
                assert party.alive
                self._runs_here(party)
            text = str(status).splitlines()
            assert len(text) == 1 + 1 + 3
            assert repr(name) in text[0]
            assert f"#{holder.seq} at " in text[1]
            assert f"fence {grant.fence}" in text[1]
            assert "place 3" in text[4]

    @staticmethod
    def _runs_here(party: Participant) -> None:
        assert party.host in (socket.gethostname(), "")
        assert party.pid in (os.getpid(), 0)

    async def test_status_of_the_holders_alone_has_no_waiters(self) -> None:
        """A status of the holders alone has the holders, and no waiters."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name)
            status = await bob.store.submit(ReadStatus(name, waiters=False))
            assert [holder.fence for holder in status.holders] == [grant.fence]
            assert status.waiters == ()

    async def test_status_after_an_expiry_grants_nothing_to_the_waiter(self) -> None:
        """Looking at a lock neither reaps a holder nor wakes a waiter."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            for _ in range(2):
                status = await bob.store.submit(ReadStatus(name))
                assert not status.holders
                assert [waiter.client for waiter in status.waiters] == [bob.client]
            assert (await self._takes_over(bob, name, place)).fence > grant.fence

    @staticmethod
    async def _takes_over(peer: Peer, name: str, place: Place) -> Grant:
        """A waiter asks again, and is granted the lock: in the answer, or by a push."""
        answer = await peer.ask(name, place.waiter, ticket=place.ticket)
        if isinstance(answer, Queued):
            handed = await peer.handed()
            assert handed.waiter == place.waiter
            return Grant(handed.waiter, handed.fence)
        assert isinstance(answer, Granted), answer
        return Grant(place.waiter, answer.fence)

    # Throughout

    async def test_fence_of_each_grant_is_higher_than_all_before(self) -> None:
        """Each grant has a higher fence than any before, whatever became of that one."""
        async with self.peers(2) as (ann, bob):
            name, fences = fresh_name(), list[int]()
            for _ in range(3):
                grant = await ann.take(name)
                fences.append(grant.fence)
                await bob.queue(name)
                await ann.release(name, grant)
                handed = await bob.handed()
                fences.append(handed.fence)
                await bob.store.submit(Break(name, [handed.fence]))
                grant = await ann.take(name)
                fences.append(grant.fence)
                await ann.expire(name, grant)
                grant = await bob.take(name)
                fences.append(grant.fence)
                await bob.release(name, grant)
            assert fences == sorted(set(fences))

    async def test_acquire_cancelled_and_released_leaves_nothing(self) -> None:
        """An acquire that was cancelled and released leaves nothing, whether sent or not."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            for _ in range(2):
                waiter = ann.waiter()
                ann.ask(name, waiter).cancel()
                await ann.leave(name, waiter)
                status = await ann.store.submit(ReadStatus(name))
                assert ann.client not in {p.client for p in (*status.holders, *status.waiters)}
                if not status.holders:
                    await bob.take(name)

    async def test_release_after_every_kind_of_use_leaves_nothing_at_the_server(self) -> None:
        """After a lock was used in every way, and released, the server has forgotten it."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            grant = await ann.take(name)
            given_up, place = await bob.queue(name), await bob.queue(name)
            await bob.leave(name, given_up.waiter)
            await ann.release(name, grant)
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            await cat.queue(name)
            await ann.store.submit(Break(name, [handed.fence]))
            handed = await cat.handed()
            await cat.expire(name, Grant(handed.waiter, handed.fence))
            grant = await ann.take(name)
            await ann.release(name, grant)
            await ann.release(name, grant)
            assert await ann.store.submit(ReadStatus(name)) == Status(name, (), ())
            assert not await self.left_behind(name)

    async def test_aclose_of_a_closed_store_is_harmless(self) -> None:
        """A store closes once; closing it again is harmless."""
        async with self.peers(1) as (ann,):
            await ann.take(fresh_name())
            await ann.store.aclose()
            await ann.store.aclose()

    async def test_store_operations_return_futures_of_the_running_loop(self) -> None:
        """It has every operation of the kinds that it offers, each a future of the running loop.

        Except for `ReportHandoff`: that is only sent to a store that `RunsContract` tests.
        """
        async with self.peers(1) as (ann,):
            assert isinstance(ann.store, Store)
            name, waiter = fresh_name(), ann.waiter()
            absent = Grant(ann.waiter(), 1)
            operations: dict[str, list[Operation[Any]]] = {
                "lock": [
                    Acquire(name, waiter, PLAIN, LONG),
                    Renew([ann.renewal(name, Grant(waiter, 1), 0)]),
                    ReadStatus(name),
                    ReadPage(),
                    RequestRelease(name),
                    Break(name, [1]),
                    Release(name, waiter, PLAIN, 0),
                ],
                "once": [Finish(name, absent.waiter, _ONCE, absent.fence, LONG)],
                "semaphore": [  # and what else takes one server, where not each kind does
                    Resize(fresh_name(), 2, 3, LONG),
                    Downgrade(name, absent.waiter, _DOWNGRADES, absent.fence),
                ],
                "election": [
                    Post(name, 1, token="", declared=0, value="it", remember=LONG),
                    ReadPosted(name),
                ],
            }
            for kind in operations.keys() - ann.store.features.missing.keys():
                for operation in operations[kind]:
                    future = ann.store.submit(operation)
                    assert future.get_loop() is asyncio.get_running_loop()
                    await future


async def _snapshot(peer: Peer, stem: str) -> dict[str, Status]:
    """The names of a store that begin like that, with their statuses."""
    found = dict[str, Status]()
    start = ""
    while True:
        page = await peer.store.submit(ReadPage(start))
        found |= {status.name: status for status in page.statuses if status.name.startswith(stem)}
        start = page.more
        if not start:
            return found


async def _granted_at(peer: Peer, name: str) -> int:
    """When the present holder was granted the lock, by the store's clock, in µs."""
    (holder,) = (await peer.store.submit(ReadStatus(name))).holders
    return round(holder.since * 1e6)


def _who(status: Status) -> list[tuple[str, int, int, int, bool]]:
    parties = (*status.holders, *status.waiters)
    return [(each.client, each.seq, each.place, each.fence, each.alive) for each in parties]
