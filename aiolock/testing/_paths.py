"""The part of the suite about nodes of a tree: holders that share by number, and one fence."""

from __future__ import annotations

from typing import Final

from aiolock.protocol import (
    GRANTS,
    WAS_HOLDER,
    WAS_QUEUED,
    Break,
    Busy,
    Form,
    Granted,
    ReadStatus,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import PLAIN, READER, Grant, Peer, alike, fresh_name
from aiolock.trees import MANY, ONE, MakeFence

FORMS: Final[dict[str, Form]] = {
    "reads below": READER,
    "writes below": alike(ONE),
    "reads": alike(MANY),
    "writes": PLAIN,
}
BESIDE: Final = {
    ("reads below", "reads below"),
    ("reads below", "writes below"),
    ("reads below", "reads"),
    ("writes below", "writes below"),
    ("reads", "reads"),
}
"""What is held beside each other, in either order."""


class PathsContract(Contract):
    """See `StoreContract`: for stores that offer ``path``."""

    async def test_each_two_of_a_node_are_held_beside_each_other_or_not(self) -> None:
        """Writers below a node and readers of all of it exclude each other, as in databases."""
        async with self.peers(2) as (ann, bob):
            for first, form in FORMS.items():
                for second, other in FORMS.items():
                    grant = await ann.take(name := fresh_name(), ann.waiter(form))
                    answer = await bob.ask(name, bob.waiter(other), wait=False)
                    beside = (first, second) in BESIDE or (second, first) in BESIDE
                    kind = Granted if beside else Busy
                    assert isinstance(answer, kind), (first, second)
                    assert await ann.release(name, grant) == WAS_HOLDER

    async def test_number_that_differs_waits_until_the_last_with_the_other_has_gone(self) -> None:
        """And the first that is asked for then decides which number the next ones have."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            below = await ann.take(name, ann.waiter(READER))
            one = await ann.take(name, ann.waiter(alike(ONE)))
            two = await bob.take(name, bob.waiter(alike(ONE)))
            place = await bob.queue(name, bob.waiter(alike(MANY)))
            assert await ann.release(name, one) == WAS_HOLDER
            again = await bob.ask(name, place.waiter, ticket=place.ticket)
            assert not isinstance(again, Granted)
            assert await bob.release(name, two) == WAS_HOLDER
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            grant = await bob.confirm(name, handed)
            assert isinstance(await ann.ask(name, ann.waiter(alike(ONE)), wait=False), Busy)
            more = await ann.take(name, ann.waiter(alike(MANY)))
            for peer, each in ((bob, grant), (ann, more), (ann, below)):
                assert await peer.release(name, each) == WAS_HOLDER
            await ann.release(name, await ann.take(name))

    async def test_waiter_of_another_number_holds_back_those_behind_it(self) -> None:
        """First come, first served, whichever number the waiters have; who leaves lets them in."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            one = await ann.take(name, ann.waiter(alike(ONE)))
            reads = await bob.queue(name, bob.waiter(alike(MANY)))
            assert isinstance(await ann.ask(name, ann.waiter(alike(ONE)), wait=False), Busy)
            two = await ann.queue(name, ann.waiter(alike(ONE)))
            assert await bob.leave(name, reads.waiter) == WAS_QUEUED
            handed = await ann.handed()
            assert handed.waiter == two.waiter
            second = await ann.confirm(name, handed)
            reads = await bob.queue(name, bob.waiter(alike(MANY)))
            writes = await bob.queue(name)
            for each in (one, second):
                assert await ann.release(name, each) == WAS_HOLDER
            handed = await bob.handed()
            assert handed.waiter == reads.waiter
            assert await bob.release(name, Grant(handed.waiter, handed.fence)) == WAS_HOLDER
            handed = await bob.handed()
            assert handed.waiter == writes.waiter
            assert await bob.release(name, Grant(handed.waiter, handed.fence)) == WAS_HOLDER

    async def test_many_of_a_number_all_enter_and_none_of_the_other(self) -> None:
        """All up to the first with another number, also if they are more than enter in a step."""
        async with self.peers(2) as (ann, bob):
            writing = await ann.take(name := fresh_name())
            row = [await bob.queue(name, bob.waiter(alike(MANY))) for _ in range(GRANTS + 2)]
            other = await bob.queue(name, bob.waiter(alike(ONE)))
            assert await ann.release(name, writing) == WAS_HOLDER
            for place in row[:GRANTS]:
                assert (await bob.handed()).waiter == place.waiter
            assert await bob.told_done() == name
            place = row[GRANTS]  # whose client is told so, and asks
            assert isinstance(await bob.ask(name, place.waiter, ticket=place.ticket), Granted)
            assert (await bob.handed()).waiter == row[-1].waiter
            status = await bob.store.submit(ReadStatus(name))
            assert [party.seq for party in status.holders] == [each.waiter.seq for each in row]
            assert [party.seq for party in status.waiters] == [other.waiter.seq]

    async def test_holder_whose_lease_ends_or_is_broken_counts_no_more(self) -> None:
        """However it ends: by its lease, by a break, or detached and discarded."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            ended = await ann.take(name, ann.waiter(alike(ONE)))
            await self.expire(ann, name, ended)
            broken = await bob.take(name, bob.waiter(alike(MANY)))
            place = await ann.queue(name, ann.waiter(alike(ONE)))
            assert await bob.store.submit(Break(name, [broken.fence])) == 1
            handed = await ann.handed()
            assert handed.waiter == place.waiter
            assert handed.fence > broken.fence > ended.fence
            assert await ann.release(name, Grant(handed.waiter, handed.fence)) == WAS_HOLDER
            await bob.release(name, await bob.take(name, bob.waiter(alike(MANY))))

    async def test_status_of_a_node_says_what_each_wants_of_it(self) -> None:
        """In a status that comes from a store, the number is where permits are."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            for form in (READER, alike(MANY)):
                await ann.take(name, ann.waiter(form))
            for form in (alike(ONE), PLAIN, READER):
                await bob.queue(name, bob.waiter(form))
            status = await bob.store.submit(ReadStatus(name))
            shown = [(party.permits, party.shared) for party in status.holders]
            assert shown == [(0, True), (MANY, True)]
            shown = [(party.permits, party.shared) for party in status.waiters]
            assert shown == [(ONE, True), (0, False), (0, True)]
            assert status.limit is None

    async def test_fence_that_is_made_is_between_those_of_grants(self) -> None:
        """Higher than any before, also than one that was made; and the next grant has a higher."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            fences = [(await ann.take(name, ann.waiter(READER))).fence]
            fences += [await self._make(each, name) for each in (ann, bob, ann)]
            fences.append((await bob.take(name, bob.waiter(READER))).fence)
            assert fences == sorted(set(fences))

    async def test_fence_is_made_of_a_name_that_nobody_holds(self) -> None:
        """The next grant has a higher one all the same."""
        async with self.peers(1) as (ann,):
            made = await self._make(ann, name := fresh_name())
            grant = await ann.take(name)
            assert grant.fence > made
            assert await ann.release(name, grant) == WAS_HOLDER
            assert not await self.left_behind(name)

    @staticmethod
    async def _make(peer: Peer, name: str) -> int:
        return await peer.store.submit(MakeFence(name))
