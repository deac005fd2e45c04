"""The part of the suite about the leases of exclusive locks: renewals, ends, delays and fences."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any, Final

from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    Acquire,
    Break,
    Busy,
    Downgrade,
    Finish,
    Form,
    Granted,
    GrantLost,
    Operation,
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
)
from aiolock.store import Store
from aiolock.testing._base import Contract
from aiolock.testing._peer import CLAIM, LONG, PATIENCE, PLAIN, Grant, Peer, fresh_name

_A_DAY: Final = 86_400_000
_FIXED: Final = Form(CLAIM, fixed=True)
_ONCE: Final = Form(CLAIM, once=True)
_DOWNGRADES: Final = Form(CLAIM, downgrades=True)


class LeaseContract(Contract):
    """See `LockContract`."""

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


async def _granted_at(peer: Peer, name: str) -> int:
    """When the present holder was granted the lock, by the store's clock, in µs."""
    (holder,) = (await peer.store.submit(ReadStatus(name))).holders
    return round(holder.since * 1e6)
