"""The part of the suite about stores on one server: one clock, and one queue for each name."""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Form,
    Granted,
    GrantLost,
    Queued,
    ReadStatus,
    Renew,
    Rule,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import (
    CLAIM,
    LONG,
    PLAIN,
    READER,
    Grant,
    fresh_name,
    permits,
)

_A_DAY: Final = 86_400_000
_FIXED: Final = Form(CLAIM, fixed=True)


class ServerContract(Contract):
    """See `StoreContract`: the further requirements of a store on one server."""

    # acquire

    async def test_acquire_with_an_old_ticket_returns_the_waiter_to_its_place(self) -> None:
        """A waiter that had left the queue comes back at its old ticket, not at the end."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := fresh_name())
            first = await bob.queue(name)
            second = await ann.queue(name)
            await bob.leave(name, first.waiter)
            assert await ann.queue(name, second.waiter) == second
            back = await bob.ask(name, first.waiter, ticket=first.ticket)
            assert isinstance(back, Queued)
            assert (back.ticket, back.place) == (first.ticket, 1)
            assert back.displaced
            last = await ann.ask(name, newcomer := ann.waiter())
            assert isinstance(last, Queued)
            assert last.place > 1
            order = [party.seq for party in (await ann.store.submit(ReadStatus(name))).waiters]
            assert order == [first.waiter.seq, second.waiter.seq, newcomer.seq]

    async def test_acquire_without_waiting_is_granted_past_dead_waiters(self) -> None:
        """A lock without a holder and without living waiters is never busy."""
        self._needs_a_count()
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            grant = await ann.take(name)
            for form in (PLAIN, READER, PLAIN):
                await bob.queue(name, bob.waiter(form))
            await ann.sees_end_of(bob)
            await ann.expire(name, grant)
            assert isinstance(await cat.ask(name, wait=False), Granted)
            assert not (await cat.store.submit(ReadStatus(name))).waiters

    async def test_acquire_without_waiting_by_a_queued_waiter_grants_it_once(self) -> None:
        """A queued waiter that is alone there and no longer waits enters once, not twice."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            reader = bob.waiter(READER)
            await bob.queue(name, reader)
            await ann.expire(name, grant)
            assert isinstance(await bob.ask(name, reader, wait=False), Granted)
            assert len((await bob.store.submit(ReadStatus(name))).holders) == 1

    async def test_queued_until_is_the_end_of_the_first_lease(self) -> None:
        """A queued waiter learns when the first lease ends, by a clock that all share."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            first = await bob.ask(name)
            second = await cat.ask(name)
            assert isinstance(first, Queued)
            assert isinstance(second, Queued)
            assert 0 < second.until <= first.until <= self._at_most(LONG)
            assert first.now <= second.now
            await ann.expire(name, grant)
            third = await cat.ask(name)
            assert isinstance(third, Queued)
            assert 0 < third.until <= self._at_most(CLAIM), "bob has it, who has not confirmed it"
            assert second.now <= third.now

    async def test_ticket_of_each_concurrent_waiter_is_unique(self) -> None:
        """Each waiter has a ticket of its own, whatever clients ask at the same time."""
        async with self.peers(4) as peers:
            name = fresh_name()
            answers = await asyncio.gather(*(peer.ask(name) for peer in peers for _ in range(3)))
            tickets = {answer.ticket for answer in answers if isinstance(answer, Queued)}
            assert len(tickets) == 11

    # Handing on

    async def test_handoff_push_carries_the_whole_form_of_the_waiter(self) -> None:
        """The push carries the whole form of a waiter, as it was given."""
        async with self.peers(2) as (ann, bob):
            closing = Form(1001, after_loss=11, after_grant=12, period=13)
            for form in (
                replace(closing, fixed=True, once=True, downgrades=True),
                replace(closing, shared=True),
                replace(closing, shared=True, rule=Rule.PERMITS, number=2, declared=3),
                replace(permits(14, 15), fixed=True),
                Form(1002, after_grant=21),
                Form(1003, period=31),
            ):
                grant = await ann.take(name := fresh_name())
                await bob.queue(name, waiter := bob.waiter(form))
                await ann.release(name, grant)
                assert (await bob.handed())[:3] == (name, waiter, form)

    async def test_handoff_lease_is_exactly_the_claim(self) -> None:
        """The first lease of a pushed grant is the claim in its waiter's form."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name, bob.waiter(Form(2500)))
            await ann.release(name, grant)
            assert (await bob.handed()).lease == 2500

    # Leases

    async def test_renew_with_a_shorter_ttl_ends_the_lease_sooner(self) -> None:
        """A renewal moves the end of a lease to a new ttl from now, even if that is sooner."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            assert await ann.store.submit(Renew([ann.renewal(name, grant, 5000)])) == [True]
            (holder,) = (await ann.store.submit(ReadStatus(name))).holders
            assert 0 < holder.remaining <= 5

    async def test_claim_not_confirmed_ends_and_the_next_waiter_is_granted(self) -> None:
        """A waiter that does not confirm a grant loses it with its claim, to the next."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name, bob.waiter(Form(claim=1)))
            place = await cat.queue(name)
            await ann.release(name, grant)
            handed = await bob.handed()
            assert handed.lease == 1
            await self._moment()
            after = await cat.take(name, place.waiter, ticket=place.ticket)
            assert after.fence > handed.fence
            assert await bob.told() == GrantLost(name, handed.waiter, handed.fence, "expired")

    async def test_claim_not_confirmed_removes_all_waiters_of_its_client(self) -> None:
        """A client that does not confirm a grant is stuck, even if its lease is not renewed."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            for claim in (1, CLAIM, CLAIM):
                await bob.queue(name, bob.waiter(Form(claim, fixed=True)))
            place = await cat.queue(name)
            await ann.release(name, grant)
            handed = await bob.handed()
            await self._moment()
            after = await cat.take(name, place.waiter, ticket=place.ticket)
            assert after.fence > handed.fence
            assert await bob.told() == GrantLost(name, handed.waiter, handed.fence, "expired")
            assert not (await cat.store.submit(ReadStatus(name))).waiters

    async def test_acquire_repeated_says_if_the_grant_is_still_a_claim(self) -> None:
        """A waiter that asks again learns whether its grant is still a claim, in any mode."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            for form in (PLAIN, READER):
                grant = await ann.take(name)
                again = await ann.ask(name, grant.waiter)
                assert isinstance(again, Granted)
                assert not again.claim
                await bob.queue(name, waiter := bob.waiter(form))
                await ann.release(name, grant)
                handed = await bob.handed()
                again = await bob.ask(name, waiter)
                assert isinstance(again, Granted)
                assert again.claim
                grant = await bob.confirm(name, handed)
                again = await bob.ask(name, waiter)
                assert isinstance(again, Granted)
                assert not again.claim
                await bob.release(name, grant)

    async def test_acquire_by_a_waiter_after_expiry_is_granted_for_the_whole_ttl(self) -> None:
        """A waiter that asks after the end of a lease is granted the lock, for the whole ttl."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            again = await bob.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Granted)
            assert again.lease == LONG
            assert again.fence > grant.fence
            assert not again.displaced

    async def test_expiry_removes_all_waiters_of_the_stuck_client(self) -> None:
        """The end of a lease also removes its client's waiters: the whole client is stuck."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            own = [await ann.queue(name)]
            place = await bob.queue(name)
            own.append(await ann.queue(name))
            await ann.expire(name, grant)
            await cat.queue(name)
            assert (await bob.handed()).waiter == place.waiter
            status = await bob.store.submit(ReadStatus(name))
            assert [waiter.client for waiter in status.waiters] == [cat.client]
            # It was only slow: when it is notified, its waiters come back to their old places.
            assert (await ann.told()).reason == "expired"
            assert [await ann.queue(name, w, ticket=ticket) for w, ticket in own] == own
            status = await bob.store.submit(ReadStatus(name))
            clients = [waiter.client for waiter in status.waiters]
            assert clients == [ann.client, ann.client, cat.client]

    async def test_acquire_by_a_stuck_client_after_expiry_keeps_its_place(self) -> None:
        """A client that was only slow, and asks by itself, loses the lease but not its place."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await ann.queue(name)
            await bob.queue(name)
            await ann.expire(name, grant)
            again = await ann.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Granted)
            assert again.fence > grant.fence
            assert again.displaced

    async def test_expiry_of_a_fixed_lease_keeps_its_clients_waiters(self) -> None:
        """The end of a lease that was not to be renewed says nothing about its client."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name(), ann.waiter(_FIXED))
            place = await ann.queue(name)
            await bob.queue(name)
            await ann.expire(name, grant)
            await cat.queue(name)
            assert (await ann.told()).waiter == grant.waiter
            assert (await ann.handed()).waiter == place.waiter
            clients = [
                waiter.client for waiter in (await bob.store.submit(ReadStatus(name))).waiters
            ]
            assert clients == [bob.client, cat.client]

    # Closed for a while

    async def test_claim_not_confirmed_closes_the_lock_unless_only_for_a_period(self) -> None:
        """A claim that ends unconfirmed may have been entered; but not with a `period`."""
        async with self.peers(2) as (ann, bob):
            for form, closes in (
                (Form(claim=1, period=_A_DAY), False),
                (Form(claim=1, after_loss=9000), True),
                (Form(claim=1, after_grant=9000, period=_A_DAY), True),
            ):
                grant = await ann.take(name := fresh_name())
                await bob.queue(name, bob.waiter(form))
                await ann.release(name, grant)
                await bob.handed()
                await self._moment()
                if closes:
                    await self._closed(name, ann, most=9000)
                else:
                    await ann.take(name)

    async def test_after_loss_closes_the_lock_after_a_release_of_an_ended_lease(self) -> None:
        """A holder that releases what has ended has lost it, so `after_loss` closes the lock."""
        async with self.peers(2) as (ann, bob):
            forms = [replace(form, after_loss=LONG) for form in (PLAIN, READER, _FIXED)]
            for form in forms:
                grant = await ann.take(name := fresh_name(), ann.waiter(form))
                await ann.expire(name, grant)
                await ann.release(name, grant)
                await self._closed(name, bob, most=LONG)
                grant = await ann.take(name := fresh_name(), ann.waiter(form))
                await ann.expire(name, grant)
                await ann.leave(name, grant.waiter)
                await self._closed(name, bob, most=LONG)

    async def test_closing_of_a_lock_notifies_its_first_waiter(self) -> None:
        """The first waiter in the queue is notified that it stays closed, and asks for how long."""
        async with self.peers(2) as (ann, bob):
            for end in (ann.release, ann.expire):
                form = Form(CLAIM, after_loss=LONG, after_grant=LONG)
                grant = await ann.take(name := fresh_name(), ann.waiter(form))
                place = await bob.queue(name)
                await end(name, grant)
                again = await bob.ask(name, place.waiter, ticket=place.ticket)
                assert await bob.told_done() == name
                assert isinstance(again, Queued)
                assert 0 < again.until <= self._at_most(LONG)

    # Throughout

    async def test_status_since_is_in_order_by_the_clock_of_the_server(self) -> None:
        """An earlier party has held, or waited, for longer: all by the server's clock."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := fresh_name())
            for peer in (bob, ann, bob):
                await peer.queue(name)
            status = await bob.store.submit(ReadStatus(name))
            since = [party.since for party in (*status.holders, *status.waiters)]
            assert since == sorted(since)

    async def test_status_marks_participants_of_dead_clients(self) -> None:
        """A status tells which clients do not listen any more, if that can be counted."""
        async with self.peers(3) as (ann, bob, cat):
            await bob.take(name := fresh_name())
            await ann.queue(name)
            await bob.queue(name)
            if self.counts_who_listens:
                await ann.sees_end_of(bob)
            else:
                await bob.store.aclose()
            status = await cat.store.submit(ReadStatus(name))
            alive = [party.alive for party in (*status.holders, *status.waiters)]
            theirs = not self.counts_who_listens
            expected = [theirs, True, theirs]
            assert alive == (expected[1:] if self.holds_end_with_client else expected)
            assert str(status).count("dead") == alive.count(False)

    async def test_operation_carried_out_twice_has_the_effect_of_one(self) -> None:
        """A command carried out twice, as after a lost reply, has the effect of one."""
        async with self.peers(3) as (ann, bob, cat):
            name, ours, theirs = fresh_name(), ann.waiter(), bob.waiter()
            one, two = await asyncio.gather(ann.ask(name, ours), ann.ask(name, ours))
            assert isinstance(one, Granted)
            assert isinstance(two, Granted)
            assert one.fence == two.fence
            asked = await asyncio.gather(bob.ask(name, theirs), bob.ask(name, theirs))
            assert isinstance(asked[0], Queued)
            assert isinstance(asked[1], Queued)
            assert asked[0][:2] == asked[1][:2]
            place = await cat.queue(name)
            assert len((await ann.store.submit(ReadStatus(name))).waiters) == 2
            grant = Grant(ours, one.fence)
            renewal = ann.renewal(name, grant, LONG)
            assert await ann.store.submit(Renew([renewal, renewal])) == [True, True]
            released = [ann.release(name, grant) for _ in range(2)]
            assert await asyncio.gather(*released) == [WAS_HOLDER, WAS_ABSENT]
            handed = await bob.handed()
            assert await bob.holds(name, Grant(handed.waiter, handed.fence))
            assert await cat.queue(name, place.waiter) == place
            released = [cat.leave(name, place.waiter) for _ in range(2)]
            assert await asyncio.gather(*released) == [WAS_QUEUED, WAS_ABSENT]

    async def test_operations_of_one_waiter_are_carried_out_in_order(self) -> None:
        """Commands about one waiter are carried out in the order in which they were called."""
        async with self.peers(2) as (ann, bob):
            name, waiter = fresh_name(), ann.waiter()
            await ann.store.submit(
                ReadStatus(name)
            )  # now it is connected to the server of this name
            asked = ann.ask(name, waiter)
            released = ann.leave(name, waiter)
            assert isinstance(await asked, Granted)
            assert await released == WAS_HOLDER
            await bob.take(name)
            asked = ann.ask(name, waiter)
            released = ann.leave(name, waiter)
            assert isinstance(await asked, Queued)
            assert await released == WAS_QUEUED
