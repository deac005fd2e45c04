"""The part of the suite about posted values, which a store on several servers also passes."""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

import asyncio
from typing import Final

from aiolock.protocol import Granted, Post, Posted, Queued, ReadPosted
from aiolock.testing._base import Contract
from aiolock.testing._peer import LONG, count_of, fresh_name

_KEPT: Final = LONG
"""Milliseconds for which a test has something remembered."""


class BoardContract(Contract):
    """See `StoreContract`: for stores that offer elections."""

    async def test_count_waiter_behind_is_not_delayed_by_a_waiter_for_more(self) -> None:
        """If two clients watch a count, the slow one is not delayed by the one that is ahead."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            assert await self._count_up(ann, name, 1) == 1
            for peer in (bob, cat):
                assert isinstance(await peer.ask(name, peer.waiter(count_of(1))), Granted)
            ahead = await bob.queue(name, bob.waiter(count_of(2)))
            assert await self._count_up(ann, name, 2) == 2
            assert (await bob.handed()).waiter == ahead.waiter
            await bob.queue(name, bob.waiter(count_of(3)))
            assert isinstance(await cat.ask(name, cat.waiter(count_of(2))), Granted)

    async def test_posted_count_is_forgotten_after_its_remember_time(self) -> None:
        """A count is remembered for as long as was asked for, and then begins anew."""
        async with self.peers(1) as (ann,):
            name = fresh_name()
            counted = ann.store.submit(
                Post(name, 7, token="", declared=0, value="x", remember=LONG)
            )
            assert await counted == 7
            assert await ann.store.submit(ReadPosted(name)) == Posted(7, "x")
            name = fresh_name()
            await ann.store.submit(Post(name, 7, token="", declared=0, value="x", remember=100))
            await asyncio.sleep(0.1)
            await self._moment()
            assert await ann.store.submit(ReadPosted(name)) == Posted(0, "")

    async def test_posted_value_is_replaced_only_with_an_equal_or_higher_count(self) -> None:
        """A posted value stays until one is posted with at least the same count."""
        async with self.peers(2) as (ann, bob):
            name, text = fresh_name(), "é\n{} %s \x00"
            assert await bob.store.submit(ReadPosted(name)) == Posted(0, "")
            place = await bob.queue(name, bob.waiter(count_of(4)))
            high = 1_800_000_000_000_000
            for count, value, result in (
                (3, "old", Posted(3, "old")),
                (high, text, Posted(high, text)),
                (high - 1, "late", Posted(high, text)),
                (high, "new", Posted(high, "new")),
                (high + 1, "", Posted(high + 1, "new")),
            ):
                posted = ann.store.submit(
                    Post(name, count, token="", declared=0, value=value, remember=_KEPT)
                )
                assert await posted == result.count
                assert await bob.store.submit(ReadPosted(name)) == result
            assert (await bob.handed()).waiter == place.waiter
            assert isinstance(await bob.ask(name, bob.waiter(count_of(high + 1))), Granted)
            assert isinstance(await bob.ask(name, bob.waiter(count_of(high + 2))), Queued)
