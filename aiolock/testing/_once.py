"""The part of the suite about work to be done once, which quorums also pass."""

from __future__ import annotations

import asyncio
from typing import Final

from aiolock.protocol import WAS_ABSENT, WAS_HOLDER, Done, Form, Granted, ReadStatus
from aiolock.testing._base import Contract
from aiolock.testing._peer import CLAIM, LONG, Grant, fresh_name

_ONCE: Final = Form(CLAIM, once=True, remember=LONG)


class OnceContract(Contract):
    """See `StoreContract`: for stores that offer ``once``."""

    async def test_finish_notifies_the_waiters_and_answers_done_to_later_ones(self) -> None:
        """Finished work is remembered: its waiters leave and are notified, and so are
        later ones.
        """
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(_ONCE))
            places = [await bob.queue(name, bob.waiter(_ONCE)) for _ in range(2)]
            assert await ann.finish(name, grant, LONG) == WAS_HOLDER
            assert await ann.finish(name, grant, LONG) == WAS_HOLDER
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await bob.told_done() == name
            for peer, waiter, ticket, wait in (
                *((bob, waiter, ticket, True) for waiter, ticket in places),
                (bob, bob.waiter(_ONCE), 0, True),
                (ann, ann.waiter(_ONCE), 0, False),
            ):
                answer = await peer.ask(name, waiter, ticket=ticket, wait=wait)
                assert isinstance(answer, Done), answer
                assert 0 < answer.until <= self._at_most(LONG)
            status = await bob.store.submit(ReadStatus(name))
            assert (status.holders, status.waiters) == ((), ())
            assert 0 < status.closed <= LONG / 1000

    async def test_finish_is_forgotten_after_its_remember_time_and_granted_again(self) -> None:
        """When finished work is forgotten, it can be done once more."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(_ONCE))
            assert await ann.finish(name, grant, 100) == WAS_HOLDER
            waiter, again = bob.waiter(_ONCE), None
            while not isinstance(again, Granted):
                again = await bob.ask(name, waiter, wait=False)
                if isinstance(again, Done):
                    await asyncio.sleep(again.until / 1000)
            assert again.fence > grant.fence
            assert await bob.release(name, Grant(waiter, again.fence)) == WAS_HOLDER

    async def test_finish_of_a_lost_or_released_grant_has_no_effect(self) -> None:
        """Only the holder finishes; a grant that it lost finishes nothing."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(_ONCE))
            await ann.expire(name, grant)
            theirs = await bob.take(name, bob.waiter(_ONCE))
            assert await ann.finish(name, grant, 200) == WAS_ABSENT
            assert await bob.holds(name, theirs)
            await bob.release(name, theirs)
            assert await bob.finish(name, theirs, 200) == WAS_ABSENT
            await ann.release(name, await ann.take(name, ann.waiter(_ONCE)))

    async def test_finish_closes_the_lock_for_waiters_of_another_form(self) -> None:
        """A waiter that wants the lock for something else waits, as while it is closed."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(_ONCE))
            place = await bob.queue(name)
            await ann.finish(name, grant, LONG)
            assert await bob.queue(name, place.waiter, ticket=place.ticket) == place
            await self._closed(name, bob, most=LONG)
            grant = await ann.take(name := fresh_name(), ann.waiter(_ONCE))
            await ann.finish(name, grant, 100)
            after = await self._opened(name, bob)
            assert after.fence > grant.fence
            await bob.release(name, after)
