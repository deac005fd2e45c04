"""The part of the suite about fair shares: which waiter is next."""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Final

from aiolock.protocol import WAS_QUEUED, Break, Form, Full, Granted, Queued, ReadStatus, Resize
from aiolock.testing._base import Contract
from aiolock.testing._peer import CLAIM, LONG, PLAIN, Grant, Peer, Place, fresh_name, permits

_ODD: Final = "é ✓ %!$*#/&^+~@=.:-9"
"""A share may have any characters that can be printed."""


def _of(share: str, form: Form = PLAIN, *, weight: int = 1000) -> Form:
    """The form of a waiter of this share."""
    return replace(form, share=share, weight=weight)


class SharesContract(Contract):
    """See `StoreContract`."""

    @asynccontextmanager
    async def _sharers(self, count: int) -> AsyncGenerator[list[Peer]]:
        """So many clients of a store that offers shares."""
        if why := self.store().features.missing.get("share"):
            self._skip(why)
        async with self.peers(count) as peers:
            yield peers

    @staticmethod
    async def _queue(peer: Peer, name: str, *forms: Form) -> list[Place]:
        """Have a waiter of each form come, in this order."""
        return [await peer.queue(name, peer.waiter(form)) for form in forms]

    @staticmethod
    async def _next(peer: Peer, name: str, grant: Grant) -> Grant:
        """Release a grant; the one that is pushed then."""
        await peer.release(name, grant)
        handed = await peer.handed()
        return Grant(handed.waiter, handed.fence)

    async def _turns(self, peer: Peer, name: str, grant: Grant, count: int) -> list[Grant]:
        """The next grants, each of which is released for the one after it."""
        found = list[Grant]()
        for _ in range(count):
            grant = await self._next(peer, name, grant)
            found.append(grant)
        return found

    async def _order(self, peer: Peer, name: str, grant: Grant, count: int) -> list[str]:
        """The shares of the next grants."""
        turns = await self._turns(peer, name, grant, count)
        return [peer.form(turn.waiter).share for turn in turns]

    async def test_release_grants_the_shares_in_turn(self) -> None:
        """Not one turn for each waiter; within a share, first come, first served."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            places = await self._queue(ann, name, *map(_of, ("a", "a", "a", _ODD, "b")))
            turns = await self._turns(ann, name, grant, 5)
            waiters = [place.waiter for place in places]
            assert [waiters.index(turn.waiter) for turn in turns] == [0, 3, 4, 1, 2]

    async def test_release_grants_shares_by_weight(self) -> None:
        """Of six turns, a weight of 2 has four, and a weight of 1 two."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            double = _of("double", weight=2000)
            await self._queue(ann, name, *[_of("single")] * 6, *[double] * 6)
            order = await self._order(ann, name, grant, 6)
            assert (order.count("single"), order.count("double")) == (2, 4)

    async def test_release_grants_the_share_that_holds_least(self) -> None:
        """However many grants it has had; and for its weight."""
        async with self._sharers(1) as (ann,):
            name = fresh_name()
            one = permits(1, 4)
            held = [await ann.take(name, ann.waiter(_of("long", one))) for _ in range(3)]
            short = await ann.take(name, ann.waiter(_of("short", one)))
            await self._queue(ann, name, *[_of("long", one)] * 3, *[_of("short", one)] * 4)
            for _ in range(3):
                short = await self._next(ann, name, short)
                assert ann.form(short.waiter).share == "short"
            await self._next(ann, name, held[0])
            await self._next(ann, name, held[1])
            handed = [await ann.holds(name, grant) for grant in (*held, short)]
            assert handed == [False, False, True, True]
            status = await ann.store.submit(ReadStatus(name))
            shares = [holder.share for holder in status.holders]
            assert (shares.count("long"), shares.count("short")) == (2, 2)

    async def test_permits_that_end_otherwise_are_held_by_their_share_no_longer(self) -> None:
        """Those of a lease that has ended, and of one that was broken."""
        async with self._sharers(2) as (ann, bob):
            name = fresh_name()
            two = _of("a", permits(2, 6))
            ended, broken = [await ann.take(name, ann.waiter(two)) for _ in range(2)]
            one = await bob.take(name, bob.waiter(_of("b", permits(1, 6))))
            await bob.take(name, bob.waiter(_of("c", permits(1, 6))))
            waiting = await self._queue(bob, name, *[_of(s, permits(2, 6)) for s in "bab"])
            await ann.expire(name, ended)
            first = await bob.ask(name, waiting[0].waiter, ticket=waiting[0].ticket)
            assert isinstance(first, Granted)
            assert await bob.store.submit(Break(name, [broken.fence])) == 1
            assert (await bob.handed()).waiter == waiting[1].waiter
            await bob.release(name, one)
            assert (await bob.store.submit(ReadStatus(name))).waiters[0].share == "b"

    async def test_waiter_that_gives_up_costs_its_share_nothing(self) -> None:
        """It left without a grant."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            await self._queue(ann, name, _of("steady"))
            for _ in range(3):
                (hasty,) = await self._queue(ann, name, _of("hasty"))
                assert await ann.leave(name, hasty.waiter) == WAS_QUEUED
            await self._queue(ann, name, *map(_of, ("steady", "hasty", "hasty")))
            order = await self._order(ann, name, grant, 4)
            assert order == ["steady", "hasty", "steady", "hasty"]

    async def test_dead_waiter_costs_its_share_nothing(self) -> None:
        """It is passed over when its share is next, and the share is next still."""
        self._needs_a_count()
        async with self._sharers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await self._queue(ann, name, _of("a"))
            await self._queue(bob, name, _of("b"), _of("b"))
            await self._queue(ann, name, _of("a"), _of("b"))
            await ann.sees_end_of(bob)
            assert await self._order(ann, name, grant, 3) == ["a", "b", "a"]

    async def test_share_that_was_idle_has_no_credit(self) -> None:
        """From when it comes, it takes turns with others."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            await self._queue(ann, name, *map(_of, "aaaaaab"))
            turns = await self._turns(ann, name, grant, 4)
            await self._queue(ann, name, *map(_of, "ccc"))
            order = await self._order(ann, name, turns[-1], 4)
            assert order.count("c") == 2

    async def test_waiter_without_a_share_is_next_when_those_before_it_have_left(self) -> None:
        """Others that came later, of shares, may enter before."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            await self._queue(ann, name, *map(_of, ("a", "a", "", "b", "a")))
            assert await self._order(ann, name, grant, 5) == ["a", "b", "a", "", "a"]

    async def test_priorities_have_shares_of_their_own(self) -> None:
        """All of a lower number come first, whoever had a turn among the others."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            later = [replace(_of(share), priority=3) for share in "abb"]
            await self._queue(ann, name, *later, *map(_of, "aab"))
            order = await self._order(ann, name, grant, 6)
            assert order == ["a", "b", "a", "a", "b", "b"]

    async def test_full_queue_counts_the_waiters_of_the_share_alone(self) -> None:
        """A tenant with many waiters makes no other one's queue full."""
        async with self._sharers(1) as (ann,):
            await ann.take(name := fresh_name())
            await self._queue(ann, name, *map(_of, ("a", "a", "a", "")))
            assert await ann.ask(name, ann.waiter(_of("a")), max_waiters=3) == Full(3)
            assert isinstance(await ann.ask(name, ann.waiter(_of("b")), max_waiters=1), Queued)
            assert await ann.ask(name, ann.waiter(_of("b")), max_waiters=1) == Full(1)
            assert await ann.ask(name, max_waiters=3) == Full(5)

    async def test_full_queue_of_a_share_does_not_count_its_dead(self) -> None:
        """They are removed for a newcomer."""
        self._needs_a_count()
        async with self._sharers(2) as (ann, bob):
            await ann.take(name := fresh_name())
            await self._queue(bob, name, _of("a"), _of("a"))
            await ann.sees_end_of(bob)
            assert isinstance(await ann.ask(name, ann.waiter(_of("a")), max_waiters=1), Queued)

    async def test_waiter_that_asks_again_keeps_its_place_in_its_share(self) -> None:
        """Its ticket is its place, also when it was not in the queue any more."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            places = await self._queue(ann, name, *map(_of, "aab"))
            assert await ann.queue(name, places[0].waiter, ticket=places[0].ticket) == places[0]
            assert await ann.leave(name, places[0].waiter) == WAS_QUEUED
            back = ann.waiter(_of("a"))
            assert (await ann.queue(name, back, ticket=places[0].ticket)).waiter == back
            grant = await self._next(ann, name, grant)
            assert grant.waiter in {back, places[2].waiter}
            if grant.waiter != back:
                assert (await self._next(ann, name, grant)).waiter == back

    async def test_waiter_that_asks_again_for_its_grant_pays_once(self) -> None:
        """A push may be lost: the waiter finds its grant."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            places = await self._queue(ann, name, *map(_of, "aab"))
            grant = await self._next(ann, name, grant)
            for _ in range(3):
                answer = await ann.ask(name, places[0].waiter, ticket=places[0].ticket)
                assert isinstance(answer, Granted)
                assert (answer.fence, answer.claim) == (grant.fence, True)
            assert await self._order(ann, name, grant, 2) == ["b", "a"]

    async def test_queued_says_of_no_waiter_with_a_share_who_is_before_it(self) -> None:
        """So its client hands nothing off by itself."""
        async with self._sharers(1) as (ann,):
            await ann.take(name := fresh_name())
            for share in ("a", "a", ""):
                answer = await ann.ask(name, ann.waiter(_of(share)))
                assert isinstance(answer, Queued)
                assert answer.before is None

    async def test_newcomer_whose_share_holds_less_enters_past_a_larger_request(self) -> None:
        """It is next at once, and it fits; but who does not wait overtakes nobody."""
        async with self._sharers(1) as (ann,):
            name = fresh_name()
            await ann.take(name, ann.waiter(_of("a", permits(2, 4))))
            (large,) = await self._queue(ann, name, _of("a", permits(3, 4)))
            small = _of("b", permits(1, 4))
            answer = await ann.ask(name, ann.waiter(small), wait=False)
            assert not isinstance(answer, Granted)
            assert isinstance(await ann.ask(name, ann.waiter(small)), Granted)
            assert (await ann.store.submit(ReadStatus(name))).waiters[0].seq == large.waiter.seq

    async def test_resize_grants_permits_to_the_shares_in_turn(self) -> None:
        """Only how many enter is changed."""
        async with self._sharers(1) as (ann,):
            name = fresh_name()
            await ann.take(name, ann.waiter(permits(1, 1)))
            places = await self._queue(ann, name, *[_of(s, permits(1, 1)) for s in "aaab"])
            await ann.store.submit(Resize(name, 1, 3, LONG))
            handed = [(await ann.handed()).waiter for _ in range(2)]
            assert handed == [places[0].waiter, places[3].waiter]

    async def test_grant_that_closes_a_permit_is_of_no_share(self) -> None:
        """From its end on: a share is not held up by what it does not hold."""
        async with self._sharers(1) as (ann,):
            name = fresh_name()
            closing = Form(
                *(CLAIM, True, permits(1, 4).rule, 1, 4),
                after_grant=LONG,
                share="a",
            )
            held = [await ann.take(name, ann.waiter(closing)) for _ in range(2)]
            other = await ann.take(name, ann.waiter(_of("b", permits(1, 4))))
            last = await ann.take(name, ann.waiter(permits(1, 4)))
            for grant in held:
                await ann.release(name, grant)
            await self._queue(ann, name, _of("b", permits(1, 4)), closing)
            grant = await self._next(ann, name, last)
            assert ann.form(grant.waiter).share == "a"
            await ann.release(name, other)

    async def test_status_has_shares_and_the_places_in_them(self) -> None:
        """In order of arrival; one without a share has its place in the queue."""
        async with self._sharers(1) as (ann,):
            name = fresh_name()
            await ann.take(name, ann.waiter(_of(_ODD, weight=10)))
            await self._queue(ann, name, *map(_of, (_ODD, "b", _ODD, "")))
            status = await ann.store.submit(ReadStatus(name))
            (holder,) = status.holders
            assert (holder.share, holder.weight, holder.place) == (_ODD, 0.01, 0)
            waiters = [(each.share, each.weight, each.place) for each in status.waiters]
            assert waiters == [(_ODD, 1, 1), ("b", 1, 1), (_ODD, 1, 2), ("", 1, 4)]

    async def test_released_shares_leave_nothing_behind(self) -> None:
        """Accounts are kept only while somebody with a share waits."""
        async with self._sharers(1) as (ann,):
            grant = await ann.take(name := fresh_name(), ann.waiter(_of("a")))
            await self._queue(ann, name, *map(_of, "abc"))
            for _ in range(3):
                grant = await self._next(ann, name, grant)
            await ann.release(name, grant)
            assert not await self.left_behind(name)
