"""The part of the suite about locks that are shared: downgrading, permits, groups, counts."""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

from dataclasses import replace
from typing import Final

from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Busy,
    Differs,
    Form,
    Full,
    Granted,
    GrantLost,
    Post,
    Posted,
    Queued,
    ReadPosted,
    ReadStatus,
    Renew,
    RequestRelease,
    Resize,
)
from aiolock.testing._peer import (
    CLAIM,
    LONG,
    READER,
    Grant,
    Peer,
    count_of,
    fresh_name,
    group_of,
    permits,
)
from aiolock.testing._readers import ReadersContract

_KEPT: Final = LONG
"""Milliseconds for which a test has something remembered."""
_DOWNGRADES: Final = Form(CLAIM, downgrades=True)


class SharedContract(ReadersContract):
    """See `StoreContract`."""

    async def test_acquire_repeated_by_a_holder_grants_waiters_that_fit_now(self) -> None:
        """A holder that asks again finds another lease ended: a waiter that now fits enters."""
        async with self.peers(3) as (ann, bob, cat):
            two = permits(1, 2)
            held = await ann.take(name := fresh_name(), ann.waiter(two))
            ended = await bob.take(name, bob.waiter(two))
            place = await cat.queue(name, cat.waiter(two))
            await bob.expire(name, ended)
            assert await ann.take(name, held.waiter) == held
            assert (await cat.handed()).waiter == place.waiter

    # Downgrading

    async def test_downgrade_keeps_the_grant_and_grants_the_readers_behind_it(self) -> None:
        """A writer that becomes a reader keeps its grant, and the readers behind it enter."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(_DOWNGRADES))
            reader = await bob.queue(name, bob.waiter(READER))
            writer = await cat.queue(name)
            for _ in range(2):
                downgraded = ann.downgrade(name, grant)
                assert await downgraded == WAS_HOLDER
            handed = await bob.handed()
            assert handed.waiter == reader.waiter
            assert handed.fence > grant.fence
            assert await ann.holds(name, grant)
            assert await ann.store.submit(Renew([ann.renewal(name, grant, LONG)])) == [True]
            status = await bob.store.submit(ReadStatus(name))
            assert [holder.fence for holder in status.holders] == [grant.fence, handed.fence]
            assert all(holder.shared for holder in status.holders)
            assert await bob.store.submit(RequestRelease(name)) == 2
            assert await ann.requested_of() == grant
            assert await ann.release(name, grant) == WAS_HOLDER
            assert await ann.release(name, grant) == WAS_ABSENT
            await bob.release(name, Grant(handed.waiter, handed.fence))
            assert (await cat.handed()).waiter == writer.waiter

    async def test_release_without_a_fence_finds_a_downgraded_grant(self) -> None:
        """A release without a fence finds a downgraded grant."""
        async with self.peers(1) as (ann,):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(_DOWNGRADES))
            await ann.downgrade(name, grant)
            other = await self._read(ann, name)
            assert await ann.leave(name, grant.waiter) == WAS_HOLDER
            assert await ann.release(name, other) == WAS_HOLDER
            assert not await self.left_behind(name)

    async def test_acquire_repeated_after_a_downgrade_returns_the_grant(self) -> None:
        """A holder that asks again gets its grant, and is not in the queue as well."""
        async with self.peers(1) as (ann,):
            waiter = ann.waiter(_DOWNGRADES)
            grant = await ann.take(name := fresh_name(), waiter)
            await ann.downgrade(name, grant)
            for wait in (True, False):
                answer = await ann.ask(name, waiter, wait=wait)
                assert isinstance(answer, Granted)
                assert answer.fence == grant.fence
            assert await ann.leave(name, waiter) == WAS_HOLDER
            status = await ann.store.submit(ReadStatus(name))
            assert (status.holders, status.waiters) == ((), ())

    async def test_downgrade_of_a_lost_grant_has_no_effect(self) -> None:
        """Only a holder is downgraded, and a downgraded grant is lost under its own name."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(_DOWNGRADES))
            await ann.expire(name, grant)
            assert await ann.downgrade(name, grant) == WAS_ABSENT
            theirs = await bob.take(name, bob.waiter(_DOWNGRADES))
            assert await ann.told() == GrantLost(name, grant.waiter, grant.fence, "expired")
            assert await ann.downgrade(name, grant) == WAS_ABSENT
            assert await bob.downgrade(name, theirs) == WAS_HOLDER
            await bob.expire(name, theirs)
            await self._read(ann, name)
            assert await bob.told() == GrantLost(name, theirs.waiter, theirs.fence, "expired")

    # Permits

    async def test_permits_are_granted_all_or_none_in_queue_order(self) -> None:
        """Permits are granted all or none, in the order of the queue."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            one, two = await self._permits(ann, name, 1), await self._permits(bob, name, 2)
            both = await ann.queue(name, ann.waiter(permits(2, 3)))
            single = await bob.queue(name, bob.waiter(permits(1, 3)))
            status = await bob.store.submit(ReadStatus(name))
            assert [(party.permits, party.shared) for party in status.holders] == [
                (1, True),
                (2, True),
            ]
            assert [party.permits for party in status.waiters] == [2, 1]
            assert status.limit == 3
            await ann.release(name, one)
            again = await ann.ask(name, both.waiter, ticket=both.ticket)
            assert isinstance(again, Queued)
            assert again.place == 1
            await bob.release(name, two)
            first, second = await ann.handed(), await bob.handed()
            assert (first.waiter, second.waiter) == (both.waiter, single.waiter)
            assert first.fence < second.fence
            assert isinstance(await ann.ask(name, ann.waiter(permits(1, 3)), wait=False), Busy)
            assert await bob.release(name, Grant(second.waiter, second.fence)) == WAS_HOLDER
            assert await bob.release(name, Grant(second.waiter, second.fence)) == WAS_ABSENT
            last = await ann.ask(name, ann.waiter(permits(1, 3)), wait=False)
            assert isinstance(last, Granted)

    async def test_permits_of_an_expired_lease_are_granted_to_the_next_waiter(self) -> None:
        """The permits of a lease that has ended are granted to the next."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            gone = await self._permits(ann, name, 2)
            place = await bob.queue(name, bob.waiter(permits(3, 3)))
            await ann.expire(name, gone)
            after = await bob.take(name, place.waiter, ticket=place.ticket)
            assert after.fence > gone.fence
            assert isinstance(await ann.ask(name, ann.waiter(permits(1, 3)), wait=False), Busy)

    async def test_release_of_a_waiter_for_many_permits_grants_those_behind_it(self) -> None:
        """When a waiter for many gives up, those behind it that fit enter."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._permits(ann, name, 2)
            many = await bob.queue(name, bob.waiter(permits(2, 3)))
            single = await ann.queue(name, ann.waiter(permits(1, 3)))
            assert await bob.leave(name, many.waiter) == WAS_QUEUED
            assert (await ann.handed()).waiter == single.waiter

    async def test_resize_to_more_grants_waiters_and_to_fewer_takes_none_away(self) -> None:
        """More permits let waiters in; fewer take none away, but none are granted meanwhile."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            held = [await self._permits(ann, name, 1) for _ in range(3)]
            places = [await bob.queue(name, bob.waiter(permits(1, 3))) for _ in range(2)]
            assert await ann.store.submit(Resize(name, 3, 4, _KEPT)) == 3
            handed = await bob.handed()
            assert handed.waiter == places[0].waiter
            assert await ann.store.submit(Resize(name, 3, 2, _KEPT)) == 4
            assert (await bob.store.submit(ReadStatus(name))).limit == 2
            for grant in held[:2]:
                assert await ann.holds(name, grant)
                await ann.release(name, grant)
            again = await bob.ask(name, places[1].waiter, ticket=places[1].ticket)
            assert isinstance(again, Queued)
            await ann.release(name, held[2])
            assert (await bob.handed()).waiter == places[1].waiter

    async def test_resize_to_zero_blocks_waiters_until_raised_again(self) -> None:
        """With no permits no waiter enters, until there are some again."""
        async with self.peers(1) as (ann,):
            name = fresh_name()
            assert await ann.store.submit(Resize(name, 2, 0, _KEPT)) == 2
            place = await ann.queue(name, ann.waiter(permits(1, 2)))
            assert await ann.store.submit(Resize(name, 2, 1, _KEPT)) == 0
            assert (await ann.handed()).waiter == place.waiter

    async def test_acquire_with_another_limit_is_refused_unless_resized(self) -> None:
        """A waiter that declares another limit is refused; after a resize both numbers
        are valid.
        """
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._permits(ann, name, 1)
            assert await bob.ask(name, bob.waiter(permits(1, 5))) == Differs(3)
            assert await bob.ask(name, bob.waiter(permits(1, 5)), wait=False) == Differs(3)
            await bob.store.submit(Resize(name, 5, 5, _KEPT))
            for declared in (5, 3):
                assert isinstance(await bob.ask(name, bob.waiter(permits(1, declared))), Granted)
            assert await bob.ask(name, bob.waiter(permits(1, 4))) == Differs(5)

    async def test_permits_closed_by_after_grant_are_granted_to_no_waiter(self) -> None:
        """A permit that stays closed for a while after its holder is granted to no waiter."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(replace(permits(2, 3), after_grant=LONG)))
            await ann.release(name, grant)
            await self._permits(bob, name, 1)
            await bob.queue(name, bob.waiter(permits(1, 3)))
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(replace(permits(2, 3), after_grant=100)))
            await ann.release(name, grant)
            await self._in_time(name, bob, permits(3, 3))

    # Groups

    async def test_group_that_is_complete_enters_together(self) -> None:
        """A group enters together as soon as it is complete; later waiters wait for others."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            for _ in range(2):
                one = await ann.queue(name, ann.waiter(group_of(3)))
                two = await bob.queue(name, bob.waiter(group_of(3)))
                three = await ann.ask(name, last := ann.waiter(group_of(3)))
                assert isinstance(three, Granted)
                first, second = await ann.handed(), await bob.handed()
                assert (first.waiter, second.waiter) == (one.waiter, two.waiter)
                assert first.fence < second.fence < three.fence
                await ann.queue(name, ann.waiter(group_of(3)))
                again = await bob.ask(name, two.waiter, ticket=two.ticket)
                assert isinstance(again, Granted)
                assert again.fence == second.fence
                await ann.release(name, Grant(last, three.fence))
                name = fresh_name()

    async def test_group_does_not_count_waiters_that_left_or_died(self) -> None:
        """A waiter that has left, or whose client is gone, does not count."""
        self._needs_a_count()
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            places = [await ann.queue(name, ann.waiter(group_of(3)))]
            await bob.queue(name, bob.waiter(group_of(3)))
            await ann.sees_end_of(bob)
            left = await ann.queue(name, ann.waiter(group_of(3)))
            await ann.leave(name, left.waiter)
            places.append(await ann.queue(name, ann.waiter(group_of(3))))
            assert isinstance(await cat.ask(name, cat.waiter(group_of(3))), Granted)
            assert [(await ann.handed()).waiter for _ in places] == [p.waiter for p in places]
            assert await cat.ask(name, cat.waiter(group_of(2))) == Differs(3)

    async def test_group_completed_by_an_acquire_without_waiting_enters_together(self) -> None:
        """A waiter that completes a group enters with it, even if it would not wait."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            one = await ann.queue(name, ann.waiter(group_of(3)))
            assert isinstance(await bob.ask(name, bob.waiter(group_of(3)), wait=False), Busy)
            two = await bob.queue(name, bob.waiter(group_of(3)))
            again = await bob.ask(name, two.waiter, wait=False)
            assert isinstance(again, Busy), "it is one of those that wait, and not another"
            last = await cat.ask(name, cat.waiter(group_of(3)), wait=False)
            assert isinstance(last, Granted)
            first, second = await ann.handed(), await bob.handed()
            assert (first.waiter, second.waiter) == (one.waiter, two.waiter)
            assert first.fence < second.fence < last.fence
            status = await cat.store.submit(ReadStatus(name))
            assert (len(status.holders), status.waiters) == (3, ())

    async def test_permits_behind_dead_waiters_are_granted_without_waiting(self) -> None:
        """Permits without living waiters are granted to one that does not wait."""
        self._needs_a_count()
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            gone = await self._permits(ann, name, 3)
            await bob.queue(name, bob.waiter(permits(2, 3)))
            await bob.queue(name, bob.waiter(permits(3, 3)))
            await ann.sees_end_of(bob)
            await ann.expire(name, gone)
            waiter = cat.waiter(permits(1, 3))
            assert isinstance(await cat.ask(name, waiter, wait=False), Granted)
            assert not (await cat.store.submit(ReadStatus(name))).waiters

    # Counts

    async def test_acquire_refused_by_a_full_queue_still_removes_dead_waiters(self) -> None:
        """A waiter that may not join also lets in those behind the dead that it removes."""
        self._needs_a_count()
        async with self.peers(4) as (ann, bob, cat, dan):
            name = fresh_name()
            assert isinstance(await ann.ask(name, ann.waiter(permits(1, 2))), Granted)
            await bob.queue(name, bob.waiter(permits(2, 2)))
            first = await cat.queue(name, cat.waiter(permits(1, 2)))
            await cat.queue(name, cat.waiter(permits(1, 2)))
            await ann.sees_end_of(bob)
            assert isinstance(await dan.ask(name, dan.waiter(permits(1, 2)), max_waiters=2), Full)
            assert (await cat.handed()).waiter == first.waiter

    async def test_count_waiter_for_less_enters_past_a_waiter_for_more(self) -> None:
        """A waiter for less enters past a waiter for more, and does not have to wait."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            high = await bob.queue(name, bob.waiter(count_of(9)))
            low = await cat.queue(name, cat.waiter(count_of(5)))
            higher = await bob.queue(name, bob.waiter(count_of(10)))
            assert await self._count_up(ann, name, 5) == 5
            assert (await cat.handed()).waiter == low.waiter
            for wait in (True, False):
                assert isinstance(await cat.ask(name, cat.waiter(count_of(5)), wait=wait), Granted)
                assert isinstance(await cat.ask(name, cat.waiter(count_of(6)), wait=False), Busy)
            back = await cat.ask(name, cat.waiter(count_of(4)), ticket=high.ticket + 1)
            assert isinstance(back, Granted)
            for place in (high, higher):
                again = await bob.ask(name, place.waiter, ticket=place.ticket)
                assert isinstance(again, Queued)
                assert again.ticket == place.ticket
                assert (again.place == 1) == (place is high)
            waiters = (await ann.store.submit(ReadStatus(name))).waiters
            assert [waiter.seq for waiter in waiters] == [high.waiter.seq, higher.waiter.seq]
            assert await self._count_up(ann, name, 9) == 9
            assert (await bob.handed()).waiter == high.waiter

    async def test_count_that_is_reached_grants_its_waiters_and_later_ones(self) -> None:
        """A waiter for a count enters when it is reached, and so does a later one."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            places = [await bob.queue(name, bob.waiter(count_of(2, 2))) for _ in range(2)]
            assert await self._count(ann, name, "a", 2) == 1
            assert await self._count(ann, name, "a", 2) == 1
            assert await ann.store.submit(ReadPosted(name)) == Posted(1, "")
            again = await bob.ask(name, places[0].waiter, ticket=places[0].ticket)
            assert isinstance(again, Queued)
            assert await self._count(bob, name, "b", 2) == 2
            handed = [await bob.handed() for _ in places]
            assert [grant.waiter for grant in handed] == [place.waiter for place in places]
            assert isinstance(await ann.ask(name, ann.waiter(count_of(2, 2))), Granted)
            assert await self._count(bob, name, "c", 2) == 3
            assert await self._count(bob, name, "d", 3) == -2
            assert await bob.ask(name, bob.waiter(count_of(3, 3))) == Differs(2)

    @staticmethod
    async def _permits(peer: Peer, name: str, number: int) -> Grant:
        return await peer.take(name, peer.waiter(permits(number, 3)))

    @staticmethod
    async def _count(peer: Peer, name: str, token: str, declared: int) -> int:
        posted = peer.store.submit(
            Post(name, 0, token=token, declared=declared, value="", remember=_KEPT)
        )
        return await posted
