"""The part of the suite about rate limits: tokens that come with time, and that nobody holds."""

# a number in an assertion explains itself

from __future__ import annotations

import asyncio
from typing import Final

from aiolock._rate import Rate
from aiolock.protocol import (
    WAS_ABSENT,
    WAS_QUEUED,
    Busy,
    Differs,
    Form,
    Full,
    Granted,
    Queued,
    ReadStatus,
    Resize,
    Rule,
    WaiterId,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import LONG, Peer, fresh_name

_SELDOM: Final = Rate(100_000_000, 5)
"""A rate at which no token comes while a test runs."""
_OFTEN: Final = Rate(20_000, 5)
"""A rate at which they come soon."""
_REMEMBERED: Final = 50_000


def tokens(number: int, rate: Rate = _SELDOM) -> Form:
    """The form of a waiter that wants so many tokens."""
    return Form(
        _REMEMBERED,
        shared=True,
        rule=Rule.RATE,
        number=number,
        declared=rate.declared,
        fixed=True,
    )


class RatesContract(Contract):
    """See `StoreContract`."""

    async def test_tokens_that_are_there_are_taken_and_held_by_nobody(self) -> None:
        """All in the bucket can be taken at once; then a refusal says when there are others."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert 0 < await self._take(ann, name, 3) <= 3 * _SELDOM.interval
            assert 0 < await self._take(bob, name, 2) <= 5 * _SELDOM.interval
            status = await ann.store.submit(ReadStatus(name))
            assert (status.holders, status.waiters, status.closed) == ((), (), 0)
            assert status.limit == _SELDOM.declared
            for number in (1, 4):
                refused = await ann.ask(name, ann.waiter(tokens(number)), wait=False)
                assert isinstance(refused, Busy)
                due = number * _SELDOM.interval
                assert due - 60_000_000 < refused.until <= due + self._skew(1_000_000)
                assert refused.holder is None

    async def test_acquire_repeated_finds_its_tokens_and_takes_no_others(self) -> None:
        """A waiter whose answer was lost asks again; its tokens are taken once."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            waiter = ann.waiter(tokens(3))
            for wait in (True, False, True):
                assert isinstance(await ann.ask(name, waiter, wait=wait), Granted)
            assert await self._take(bob, name, 2)
            assert isinstance(await bob.ask(name, bob.waiter(tokens(1)), wait=False), Busy)
            # A release of what has its tokens gives none of them back.
            assert await ann.leave(name, waiter) == WAS_ABSENT
            assert isinstance(await bob.ask(name, bob.waiter(tokens(1)), wait=False), Busy)

    async def test_waiter_is_told_when_its_tokens_and_those_before_it_are_there(self) -> None:
        """Each waiter is told a time of its own, in the order of the queue; nobody overtakes."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._take(ann, name, 5)
            expected = 0
            for place, (peer, number) in enumerate(((ann, 3), (bob, 1), (ann, 2)), start=1):
                answer = await peer.ask(name, peer.waiter(tokens(number)))
                expected += number * _SELDOM.interval // 1000
                assert isinstance(answer, Queued)
                assert min(answer.place, 2) == min(place, 2)
                assert expected - 60_000 < answer.until <= expected + self._skew(1000)
            refused = await bob.ask(name, bob.waiter(tokens(1)), wait=False)
            assert isinstance(refused, Busy)
            assert refused.until // 1000 > expected
            status = await ann.store.submit(ReadStatus(name))
            assert [party.permits for party in status.waiters] == [3, 1, 2]

    async def test_whoever_asks_lets_all_take_their_tokens_that_are_there(self) -> None:
        """The tokens of other clients' waiters are pushed to them, in the order of the queue."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._take(ann, name, 5, _OFTEN)
            first = bob.waiter(tokens(3, _OFTEN))
            second = ann.waiter(tokens(2, _OFTEN))
            queued = [await bob.ask(name, first), await ann.ask(name, second)]
            taken = await self._when_told(ann, name, second, queued[1])
            assert isinstance(taken, Granted)
            if isinstance(queued[0], Queued):  # else the machine is slow
                handed = await bob.handed()
                assert handed.waiter == first
                assert 0 < handed.fence <= 5 * _OFTEN.interval
                again = await bob.ask(name, first, ticket=queued[0].ticket)
                assert isinstance(again, Granted)

    async def test_tokens_of_a_dead_waiter_go_to_the_next(self) -> None:
        """A dead waiter is skipped, also by one that has waited behind it."""
        self._needs_a_count()
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._take(ann, name, 5, _OFTEN)
            await bob.ask(name, bob.waiter(tokens(5, _OFTEN)))
            waiter = ann.waiter(tokens(1, _OFTEN))
            queued = await ann.ask(name, waiter)
            await ann.sees_end_of(bob)
            assert isinstance(await self._when_told(ann, name, waiter, queued), Granted)

    async def test_release_of_a_waiter_lets_the_next_ask_for_its_time(self) -> None:
        """Whoever is first now was told a time that is too late: it is notified, and asks."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._take(ann, name, 5)
            gone = await ann.queue(name, ann.waiter(tokens(4)))
            place = await bob.queue(name, bob.waiter(tokens(2)))
            assert await ann.leave(name, gone.waiter) == WAS_QUEUED
            assert await bob.told_done() == name
            again = await bob.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Queued)
            assert again.until <= 2 * _SELDOM.interval // 1000 + self._skew(1000)
            assert again.place == 1

    async def test_release_of_a_waiter_for_many_tokens_lets_those_behind_it_take_theirs(
        self,
    ) -> None:
        """When a waiter for many gives up, those behind it, whose tokens are there, get them."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._take(ann, name, 3)
            many = await ann.queue(name, ann.waiter(tokens(5)))
            single = await bob.queue(name, bob.waiter(tokens(1)))
            assert await ann.leave(name, many.waiter) == WAS_QUEUED
            assert (await bob.handed()).waiter == single.waiter

    async def test_acquire_with_another_rate_is_refused_unless_resized(self) -> None:
        """After a resize both rates are valid, and as many tokens are missing as before."""
        async with self.peers(2) as (ann, bob):
            name, other = fresh_name(), Rate(_SELDOM.interval, 8)
            await self._take(ann, name, 5)
            wrong = bob.waiter(tokens(1, other))
            assert await bob.ask(name, wrong) == Differs(_SELDOM.declared)
            resize = Resize(name, _SELDOM.declared, other.declared, LONG)
            assert await ann.store.submit(resize) == _SELDOM.declared
            for rate in (_SELDOM, other):
                await self._take(bob, name, 1, rate)
            assert await self._take(ann, name, 1, other)
            refused = await ann.ask(name, ann.waiter(tokens(1, other)), wait=False)
            assert isinstance(refused, Busy)

    async def test_resize_to_a_larger_bucket_lets_waiters_take_their_tokens(self) -> None:
        """A waiter for more than a smaller bucket has waits for a larger one."""
        async with self.peers(1) as (ann,):
            name, smaller = fresh_name(), Rate(_SELDOM.interval, 2)
            await self._take(ann, name, 1)
            small = Resize(name, _SELDOM.declared, smaller.declared, LONG)
            await ann.store.submit(small)
            place = await ann.queue(name, ann.waiter(tokens(4)))
            await ann.store.submit(Resize(name, _SELDOM.declared, _SELDOM.declared, LONG))
            assert (await ann.handed()).waiter == place.waiter

    async def test_rate_limit_with_a_full_queue_refuses_a_newcomer(self) -> None:
        """As many wait as may; a waiter that is there keeps its place."""
        async with self.peers(1) as (ann,):
            name = fresh_name()
            await self._take(ann, name, 5)
            place = await ann.queue(name, ann.waiter(tokens(1)))
            assert await ann.ask(name, ann.waiter(tokens(1)), max_waiters=1) == Full(1)
            again = await ann.ask(name, place.waiter, ticket=place.ticket, max_waiters=1)
            assert isinstance(again, Queued)

    async def test_newcomer_that_removes_dead_waiters_lets_the_others_ask_for_their_time(
        self,
    ) -> None:
        """Those behind the dead come earlier than they were told, also where the first lives."""
        self._needs_a_count()
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            await self._take(ann, name, 5)
            await cat.queue(name, cat.waiter(tokens(5)))
            await bob.queue(name, bob.waiter(tokens(4)))
            last = await cat.queue(name, cat.waiter(tokens(1)))
            await ann.sees_end_of(bob)
            assert isinstance(await ann.ask(name, ann.waiter(tokens(1)), max_waiters=3), Queued)
            assert await cat.told_done() == name
            again = await cat.ask(name, last.waiter, ticket=last.ticket)
            assert isinstance(again, Queued)
            assert again.until <= 6 * _SELDOM.interval // 1000 + self._skew(1000)

    # Parts of these

    def _skew(self, unit: int) -> float:
        """By how much the clocks of two clients may differ."""
        return unit * self.max_skew

    async def _take(self, peer: Peer, name: str, number: int, rate: Rate = _SELDOM) -> int:
        """Take tokens that must be there; the µs until the bucket is full."""
        answer = await peer.ask(name, peer.waiter(tokens(number, rate)))
        assert isinstance(answer, Granted), answer
        return answer.fence

    async def _when_told(self, peer: Peer, name: str, waiter: WaiterId, answer: object) -> object:
        """Ask when the store says so, until the answer is another."""
        while isinstance(answer, Queued):
            await asyncio.sleep(answer.until / 1000 + 0.003)
            answer = await peer.ask(name, waiter, ticket=answer.ticket)
        return answer
