"""The part of the suite about swaps that are lost, late, or overtaken by others."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from functools import cached_property
from typing import Final, Literal, TypeVar

from aiolock.errors import StoreError
from aiolock.protocol import (
    BREAK_UNKNOWN,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    WAS_UNKNOWN,
    Answer,
    Break,
    Busy,
    ReadStatus,
    Renew,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import LONG, Grant, Peer, fresh_name

Value = TypeVar("Value")

_FOR_EVER: Final = 1000
"""More swaps than are tried before an operation is given up."""
_IN_TIME: Final = 9.5
"""Seconds after which a store gives up, at most: see `Store`."""


class SwapFaults:
    """The faults of the next swaps, for `SwapContract`.

    A swap is the one request that saves what an operation has changed, if nobody else has saved
    anything meanwhile. The store under test sends each by `carry_out`.
    """

    def __init__(self) -> None:
        self.swaps: list[Literal["", "lost", "late", "hangs"]] = []
        """The faults of the next swaps. ``lost``: it is carried out, and its reply is lost.
        ``late``: it arrives only when nobody waits for it any more, by `arrive`. ``hangs``: it is
        never carried out, and there is no reply."""
        self.late: list[Callable[[], Awaitable[object]]] = []
        """Those that have not arrived yet."""
        self.meanwhile: Callable[[], Awaitable[object]] | None = None
        """What others do before the next swap arrives."""

    async def carry_out(self, swap: Callable[[], Awaitable[Value]]) -> Value:
        """Carry out a swap with the next fault; ``swap`` sends it, and may do so later."""
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            await meanwhile()
        fault = self.swaps.pop(0) if self.swaps else ""
        if fault == "hangs":
            await asyncio.get_running_loop().create_future()
        if fault == "late":
            self.late.append(swap)
            raise ConnectionResetError("its reply is missing, and it is still under way")
        reply = await swap()
        if fault == "lost":
            raise ConnectionResetError("its reply was lost")
        return reply

    async def arrive(self) -> None:
        """Let those arrive that are late, in their order."""
        assert self.late, "no swap was late: does the store send them by `carry_out`?"
        late, self.late = self.late, []
        for swap in late:
            with contextlib.suppress(OSError):
                await swap()


class SwapContract(Contract):
    """The requirements of a store whose requests may be lost, late or overtaken.

    ::

        class TestMyStoreWithFaults(SwapContract):
            def store(self) -> Store:
                return MyStoreWithFaults("localhost", self.faults)

    where the store sends each swap by ``self.faults.carry_out``. A fault is an `OSError`.

    After a lost reply, a store may know what was done, or not: it then answers with `WAS_UNKNOWN`
    or `BREAK_UNKNOWN`, and delivers `Reconnected`.
    """

    @cached_property
    def faults(self) -> SwapFaults:
        """The faults of the store under test."""
        return SwapFaults()

    async def test_swap_whose_reply_is_lost_queues_a_waiter_once(self) -> None:
        """What was carried out already is not done once more."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            self.faults.swaps = ["lost", "lost"]
            first, last = await bob.queue(name), await cat.queue(name)
            waiting = (await ann.store.submit(ReadStatus(name))).waiters
            assert [waiter.client for waiter in waiting] == [bob.client, cat.client]
            assert first.ticket < last.ticket
            assert await ann.holds(name, grant)

    async def test_swap_whose_reply_is_lost_grants_once(self) -> None:
        """The waiter has the grant that the lost swap has made."""
        async with self.peers(1) as (ann,):
            self.faults.swaps = ["lost"]
            grant = await ann.take(name := fresh_name())
            (holder,) = (await ann.store.submit(ReadStatus(name))).holders
            assert holder.fence == grant.fence
            assert await ann.release(name, grant) == WAS_HOLDER

    async def test_release_whose_reply_is_lost_notifies_the_next_waiter(self) -> None:
        """The push comes all the same, and the answer is not "absent"."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            place, last = await bob.queue(name), await cat.queue(name)
            self.faults.swaps = ["lost"]
            assert await ann.release(name, grant) in (WAS_HOLDER, WAS_UNKNOWN)
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            self.faults.swaps = ["lost", "late"]
            released = await bob.release(name, Grant(place.waiter, handed.fence))
            assert released in (WAS_HOLDER, WAS_UNKNOWN)
            handed = await cat.handed()
            assert handed.waiter == last.waiter
            assert await cat.holds(name, Grant(last.waiter, handed.fence))

    async def test_break_whose_reply_is_lost_is_unknown_at_most(self) -> None:
        """It was ended by this call, or nobody knows; the next call knows."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            self.faults.swaps = ["lost"]
            broken = await bob.store.submit(Break(name, [grant.fence]))
            assert broken in (1, BREAK_UNKNOWN)
            assert (await ann.told()).fence == grant.fence
            assert await bob.store.submit(Break(name, [grant.fence])) == 0

    async def test_own_push_lost_with_a_reply_is_delivered_or_reported(self) -> None:
        """A client whose own waiter was granted unheard has the push, or is told to ask again."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := fresh_name())
            place = await ann.queue(name)
            self.faults.swaps = ["lost"]
            assert await ann.release(name, grant) in (WAS_HOLDER, WAS_UNKNOWN)
            told: set[asyncio.Task[object]] = {
                asyncio.create_task(ann.handed()),
                asyncio.create_task(ann.reconnected.wait()),
            }
            _, pending = await asyncio.wait(told, return_when=asyncio.FIRST_COMPLETED)
            for other in pending:
                other.cancel()
            again = await ann.take(name, place.waiter, ticket=place.ticket)
            assert again.waiter == place.waiter

    async def test_swap_that_was_given_up_and_arrives_late_has_no_effect(self) -> None:
        """It must not take the lock for a waiter that has gone, though nothing else has changed."""
        async with self.peers(2) as (ann, bob):
            name, waiter = fresh_name(), ann.waiter()
            self.faults.swaps = ["late"] * _FOR_EVER
            assert not (await _failure(ann.ask(name, waiter))).refused
            self.faults.swaps = []
            assert await ann.leave(name, waiter) in (WAS_ABSENT, WAS_UNKNOWN)
            await self.faults.arrive()
            await bob.take(name)

    async def test_swap_that_was_repeated_and_arrives_late_has_no_effect(self) -> None:
        """Whatever was done and undone since is not done again."""
        async with self.peers(2) as (ann, bob):
            self.faults.swaps = ["late"]
            grant = await ann.take(name := fresh_name())
            assert await ann.release(name, grant) == WAS_HOLDER
            await self.faults.arrive()
            grant = await bob.take(name)

            self.faults.swaps = ["late"]
            place = await ann.queue(name)
            assert await ann.leave(name, place.waiter) == WAS_QUEUED
            await self.faults.arrive()
            assert not (await bob.store.submit(ReadStatus(name))).waiters

            self.faults.swaps = ["late"]
            renewal = bob.renewal(name, grant, 2 * LONG)
            assert await bob.store.submit(Renew([renewal])) == [True]
            assert await bob.release(name, grant) == WAS_HOLDER
            if self.faults.late:  # a store may renew without a swap
                await self.faults.arrive()
            self.faults.swaps = []
            grant = await ann.take(name)

            self.faults.swaps = ["late"]
            assert await ann.release(name, grant) in (WAS_HOLDER, WAS_UNKNOWN)
            grant = await ann.take(name)
            await self.faults.arrive()
            assert await ann.holds(name, grant)

    async def test_swap_that_another_client_overtakes_begins_again(self) -> None:
        """A lost race is noticed: two clients do not both get the lock."""
        async with self.peers(2) as (ann, bob):
            name, taken = fresh_name(), list[Grant]()

            async def take() -> None:
                taken.append(await bob.take(name))

            self.faults.meanwhile = take
            assert isinstance(await ann.ask(name, wait=False), Busy)
            assert await bob.holds(name, taken[0])

    async def test_client_that_opens_during_a_release_is_not_taken_for_dead(self) -> None:
        """It has queued while another client was releasing, and gets the lock."""
        async with self.peers(1) as (ann,), contextlib.AsyncExitStack() as stack:
            grant = await ann.take(name := fresh_name())
            bob = Peer(self.store())

            async def come() -> None:
                await stack.enter_async_context(bob)
                await bob.queue(name)

            self.faults.meanwhile = come
            await ann.release(name, grant)
            await bob.handed()

    async def test_swap_without_a_reply_fails_in_time(self) -> None:
        """Whatever has to wait for it fails in time, too, and the store can be closed."""
        loop = asyncio.get_running_loop()
        async with self.peers(1) as (ann,):
            name = fresh_name()
            self.faults.swaps = ["hangs"] * _FOR_EVER
            begun = loop.time()
            asked = [ann.ask(name)]
            await asyncio.sleep(0.1)
            asked.append(ann.ask(name))
            for answer in asked:
                await _failure(answer)
            assert loop.time() - begun < _IN_TIME
        assert loop.time() - begun < 2 * _IN_TIME


async def _failure(answer: asyncio.Future[Answer]) -> StoreError:
    """The error of an operation that fails."""
    try:
        answered = await answer
    except StoreError as error:
        return error
    raise AssertionError(f"there should be no answer: {answered}")
