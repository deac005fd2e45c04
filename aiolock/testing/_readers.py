"""The part of the suite about readers and writers, which quorums also pass."""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

import asyncio
from dataclasses import replace

from aiolock.protocol import (
    WAS_HOLDER,
    WAS_QUEUED,
    Break,
    Busy,
    Form,
    Granted,
    GrantLost,
    Queued,
    ReadStatus,
    Renew,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import A_MOMENT, LONG, PLAIN, READER, Grant, Peer, fresh_name


class ReadersContract(Contract):
    """See `StoreContract`: for stores that offer ``rwlock``."""

    async def test_readers_share_the_lock_and_a_writer_waits_for_all(self) -> None:
        """Readers hold it side by side, each with its fence; a writer waits until all are gone."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            one, two = await self._read(ann, name), await self._read(bob, name)
            assert one.fence < two.fence
            place = await bob.queue(name)
            assert len((await bob.store.submit(ReadStatus(name))).holders) == 2
            assert await ann.release(name, one) == WAS_HOLDER
            again = await bob.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Queued)
            assert await bob.release(name, two) == WAS_HOLDER
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            assert handed.fence > two.fence
            await bob.release(name, Grant(handed.waiter, handed.fence))
            assert not await self.left_behind(name)

    async def test_writer_in_the_queue_blocks_the_readers_behind_it(self) -> None:
        """A waiting writer blocks the readers behind it, and those that do not wait."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            reading = await self._read(ann, name)
            writer = await bob.queue(name)
            reader = await ann.queue(name, ann.waiter(READER))
            busy = await bob.ask(name, bob.waiter(READER), wait=False)
            assert isinstance(busy, Busy)
            await ann.release(name, reading)
            handed = await bob.handed()
            assert handed.waiter == writer.waiter
            assert await bob.release(name, Grant(handed.waiter, handed.fence)) == WAS_HOLDER
            assert (await ann.handed()).waiter == reader.waiter

    async def test_handoff_from_a_writer_grants_all_readers_up_to_the_next_writer(self) -> None:
        """When a writer leaves, all readers up to the next writer enter, in one step."""
        async with self.peers(3) as (ann, bob, cat):
            writing = await ann.take(name := fresh_name())
            row = [await peer.queue(name, peer.waiter(READER)) for peer in (bob, ann, bob)]
            writer = await cat.queue(name)
            behind = await bob.queue(name, bob.waiter(READER))
            assert await ann.release(name, writing) == WAS_HOLDER
            entered = [await bob.handed(), await ann.handed(), await bob.handed()]
            assert [grant.waiter for grant in entered] == [place.waiter for place in row]
            fences = [grant.fence for grant in entered]
            assert fences == sorted(set(fences))
            for peer, grant in zip((bob, ann, bob), entered, strict=True):
                assert await peer.release(name, Grant(grant.waiter, grant.fence)) == WAS_HOLDER
            handed = await cat.handed()
            assert handed.waiter == writer.waiter
            await cat.release(name, Grant(handed.waiter, handed.fence))
            assert (await bob.handed()).waiter == behind.waiter

    async def test_release_of_a_waiting_writer_grants_the_readers_behind_it(self) -> None:
        """When a writer leaves the queue, the readers behind it enter."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            await self._read(ann, name)
            writer = await bob.queue(name)
            reader = await ann.queue(name, ann.waiter(READER))
            assert await bob.leave(name, writer.waiter) == WAS_QUEUED
            assert (await ann.handed()).waiter == reader.waiter

    async def test_acquire_by_a_reader_behind_a_dead_writer_grants_all_readers(self) -> None:
        """A writer whose client has gone leaves the queue when the next reader comes."""
        await self._past_a_dead_writer(max_waiters=0)

    async def test_acquire_in_a_full_queue_behind_a_dead_writer_grants_all_readers(self) -> None:
        """A waiter that makes room in a full queue, by removing the dead, lets in others."""
        await self._past_a_dead_writer(max_waiters=2)

    async def _past_a_dead_writer(self, max_waiters: int) -> None:
        self._needs_a_count()
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            await self._read(ann, name)
            await bob.queue(name)
            reader = await cat.queue(name, cat.waiter(READER))
            await ann.sees_end_of(bob)
            newcomer = ann.ask(name, ann.waiter(READER), max_waiters=max_waiters)
            assert isinstance(await newcomer, Granted)
            assert (await cat.handed()).waiter == reader.waiter

    async def test_acquire_repeated_by_a_reader_returns_its_own_grant(self) -> None:
        """A reader among others that asks again gets its own grant again, pushed or not."""
        async with self.peers(2) as (ann, bob):
            writing = await ann.take(name := fresh_name())
            places = [await bob.queue(name, bob.waiter(READER)) for _ in range(3)]
            await ann.release(name, writing)
            handed = [await bob.handed() for _ in places]
            for place, grant in zip(places, handed, strict=True):
                again = await bob.ask(name, place.waiter, ticket=place.ticket)
                assert isinstance(again, Granted)
                assert again.fence == grant.fence
                assert not again.displaced
            assert len((await ann.store.submit(ReadStatus(name))).holders) == 3

    async def test_expiry_of_one_reader_leaves_the_other_readers_their_leases(self) -> None:
        """The lease of one reader ends; the others are not touched, and then the writer enters."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            gone, other = await self._read(ann, name), await self._read(bob, name)
            writer = await cat.queue(name)
            await ann.expire(name, gone)
            again = await cat.ask(name, writer.waiter, ticket=writer.ticket)
            assert isinstance(again, Queued)
            assert await ann.told() == GrantLost(name, gone.waiter, gone.fence, "expired")
            assert await bob.holds(name, other)
            assert not await ann.holds(name, gone)
            await bob.release(name, other)
            assert (await cat.handed()).waiter == writer.waiter

    async def test_expiry_of_a_short_reader_lease_does_not_shorten_a_long_one(self) -> None:
        """The record of the holders lives as long as the longest of them."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            long = ann.waiter(READER)
            answer = await ann.ask(name, long, ttl=100 * LONG)
            assert isinstance(answer, Granted)
            short = await bob.ask(name, waiter := bob.waiter(READER), ttl=LONG)
            assert isinstance(short, Granted)
            renewal = bob.renewal(name, Grant(waiter, short.fence), 50)
            assert await bob.store.submit(Renew([renewal])) == [True]
            await asyncio.sleep(0.1)
            await self._read(bob, name)
            again = await ann.ask(name, long)
            assert isinstance(again, Granted)
            assert again.fence == answer.fence
            assert again.lease > 98 * LONG

    async def test_break_of_readers_takes_only_the_named_grants(self) -> None:
        """Only the readers that are named are broken, and notified."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            one, two = await self._read(ann, name), await self._read(bob, name)
            place = await ann.queue(name)
            assert await bob.store.submit(Break(name, [one.fence])) == 1
            assert await ann.told() == GrantLost(name, one.waiter, one.fence, "broken")
            assert await bob.holds(name, two)
            assert await bob.store.submit(Break(name, [one.fence, two.fence])) == 1
            assert (await ann.handed()).waiter == place.waiter

    async def test_after_grant_of_a_reader_closes_the_lock_to_writers_only(self) -> None:
        """After a reader with `after_grant` no writer enters for a while, but readers do."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(replace(READER, after_grant=LONG)))
            assert await ann.release(name, grant) == WAS_HOLDER
            assert isinstance(await bob.ask(name, wait=False), Busy)
            reading = await self._read(bob, name)
            assert 0 < (await bob.store.submit(ReadStatus(name))).closed <= LONG / 1000
            await bob.release(name, reading)
            name = fresh_name()
            grant = await ann.take(name, ann.waiter(replace(READER, after_grant=100)))
            await ann.release(name, grant)
            await self._in_time(name, bob)

    @staticmethod
    async def _in_time(name: str, peer: Peer, form: Form = PLAIN) -> None:
        """Ask until it opens, and release it."""
        waiter, answer = peer.waiter(form), None
        while not isinstance(answer, Granted):
            answer = await peer.ask(name, waiter, wait=False)
            await asyncio.sleep(A_MOMENT)
        await peer.release(name, Grant(waiter, answer.fence))

    @staticmethod
    async def _read(peer: Peer, name: str) -> Grant:
        return await peer.take(name, peer.waiter(READER))
