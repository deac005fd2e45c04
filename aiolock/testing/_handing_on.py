"""The part of the suite about handing a grant on: it is detached, and adopted by another client."""

# a number in an assertion explains itself

from __future__ import annotations

import secrets
from typing import Final

from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    Adopt,
    Break,
    Detach,
    Discard,
    Form,
    Granted,
    ReadStatus,
    RequestRelease,
    WaiterId,
    detached,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import CLAIM, LONG, PLAIN, READER, Grant, Peer, fresh_name, permits

_DOWNGRADES: Final = Form(CLAIM, downgrades=True)
_ONCE: Final = Form(CLAIM, once=True, remember=LONG)


class HandingOnContract(Contract):
    """See `StoreContract`."""

    async def test_adopt_moves_a_detached_grant_under_a_higher_fence_before_any_waiter(
        self,
    ) -> None:
        """The lock goes from one client to another, and the waiters still wait."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            place = await cat.queue(name)
            key = await _detach(ann, name, grant)
            theirs = await _adopt(bob, name, bob.waiter(), grant, key)
            assert theirs.fence > grant.fence
            assert not await ann.holds(name, grant)
            assert await bob.holds(name, theirs)
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await bob.release(name, theirs) == WAS_HOLDER
            handed = await cat.handed()
            assert handed.waiter == place.waiter
            assert handed.fence > theirs.fence

    async def test_detach_repeated_answers_alike_and_after_the_adoption_has_no_effect(self) -> None:
        """A copy of a detach finds it done; one that comes after the adoption undoes nothing."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            key = await _detach(ann, name, grant)
            assert await ann.store.submit(_detaching(ann, name, grant, key)) == WAS_HOLDER
            theirs = await _adopt(bob, name, bob.waiter(), grant, key)
            assert await ann.store.submit(_detaching(ann, name, grant, key)) == WAS_ABSENT
            assert await bob.holds(name, theirs)
            await bob.release(name, theirs)

    async def test_adopt_repeated_returns_the_grant_to_its_waiter_and_to_no_other(self) -> None:
        """A key works once, but a copy of the adoption finds its own grant."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            key = await _detach(ann, name, grant)
            waiter = bob.waiter()
            theirs = await _adopt(bob, name, waiter, grant, key)
            assert await _adopt(bob, name, waiter, grant, key) == theirs
            for peer in (ann, bob):
                other = _adopting(name, peer.waiter(), grant, key)
                assert await peer.store.submit(other) is None
            assert await bob.release(name, theirs) == WAS_HOLDER
            assert await bob.store.submit(_adopting(name, waiter, grant, key)) is None

    async def test_adopt_with_another_key_or_fence_or_of_what_was_not_detached_has_no_effect(
        self,
    ) -> None:
        """Only the key of this very grant adopts it."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            other, waiter = secrets.token_urlsafe(16), bob.waiter()
            assert await bob.store.submit(_adopting(name, waiter, grant, other)) is None
            key = await _detach(ann, name, grant)
            assert await bob.store.submit(_adopting(name, waiter, grant, other)) is None
            late = Grant(grant.waiter, grant.fence - 1)
            assert await bob.store.submit(_adopting(name, waiter, late, key)) is None
            theirs = await _adopt(bob, name, waiter, grant, key)
            await bob.release(name, theirs)

    async def test_detach_of_an_ended_grant_has_no_effect(self) -> None:
        """Only a holder detaches."""
        async with self.peers(2) as (ann, bob):
            name, key = fresh_name(), secrets.token_urlsafe(16)
            grant = await ann.take(name)
            await ann.release(name, grant)
            assert await ann.store.submit(_detaching(ann, name, grant, key)) == WAS_ABSENT
            grant = await ann.take(name)
            await ann.expire(name, grant)
            assert await ann.store.submit(_detaching(ann, name, grant, key)) == WAS_ABSENT
            assert await bob.store.submit(_adopting(name, bob.waiter(), grant, key)) is None
            await bob.release(name, await bob.take(name))

    async def test_detached_grant_that_nobody_adopts_ends_and_removes_no_waiter(self) -> None:
        """It ends as any lease does, but no client is taken for dead, not even its own."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            own = await ann.queue(name)
            key = await _detach(ann, name, grant, ttl=1)
            await self._moment()
            place = await cat.queue(name)  # which finds that it has ended
            handed = await ann.handed()
            assert handed.waiter == own.waiter
            assert handed.fence > grant.fence
            assert await bob.store.submit(_adopting(name, bob.waiter(), grant, key)) is None
            await ann.release(name, await ann.confirm(name, handed))
            assert (await cat.handed()).waiter == place.waiter

    async def test_adopt_after_the_end_of_the_lease_has_no_effect(self) -> None:
        """Also if nobody has looked for leases that have ended: another may have been told so."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            key = await _detach(ann, name, grant, ttl=1)
            await self._moment()
            assert await bob.store.submit(_adopting(name, bob.waiter(), grant, key)) is None
            await bob.release(name, await bob.take(name))

    async def test_break_of_a_detached_grant_lets_the_next_waiter_in(self) -> None:
        """By its fence it is broken like any grant, and its key is worth nothing then."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            key = await _detach(ann, name, grant)
            assert await bob.store.submit(Break(name, [grant.fence])) == 1
            assert (await bob.handed()).waiter == place.waiter
            assert await ann.store.submit(_adopting(name, ann.waiter(), grant, key)) is None

    async def test_discard_releases_a_detached_grant_to_the_next_waiter_once(self) -> None:
        """What was discarded is free, and cannot be adopted."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            key = await _detach(ann, name, grant)
            discard = Discard(name, detached(key), PLAIN, grant.fence)
            assert await bob.store.submit(discard) == WAS_HOLDER
            assert (await bob.handed()).waiter == place.waiter
            assert await bob.store.submit(discard) == WAS_ABSENT
            assert await ann.store.submit(_adopting(name, ann.waiter(), grant, key)) is None

    async def test_status_shows_a_detached_grant_without_its_key(self) -> None:
        """Whoever may look at a lock must not be able to take it."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            key = await _detach(ann, name, grant)
            status = await bob.store.submit(ReadStatus(name))
            (party,) = status.holders
            assert (party.detached, party.client, party.alive) == (True, "", True)
            assert party.fence == grant.fence
            assert 0 < party.remaining <= self._at_most(LONG) / 1000
            assert key not in repr(status) + str(status)
            assert await bob.store.submit(RequestRelease(name)) == 0
            theirs = await _adopt(bob, name, bob.waiter(), grant, key)
            (party,) = (await ann.store.submit(ReadStatus(name))).holders
            assert (party.detached, party.client) == (False, bob.client)
            await bob.release(name, theirs)

    async def test_status_shows_each_of_several_detached_grants(self) -> None:
        """They have no client, by which others are told apart."""
        async with self.peers(1) as (ann,):
            name, one = fresh_name(), permits(1, 3)
            grants = [await ann.take(name, ann.waiter(one)) for _ in range(2)]
            keys = [await _detach(ann, name, grant) for grant in grants]
            holders = (await ann.store.submit(ReadStatus(name))).holders
            assert [party.fence for party in holders] == [grant.fence for grant in grants]
            assert all(party.detached for party in holders)
            for key, grant in zip(keys, grants, strict=True):
                discard = Discard(name, detached(key), one, grant.fence)
                assert await ann.store.submit(discard) == WAS_HOLDER

    async def test_permits_of_a_detached_grant_stay_taken_until_the_adopter_releases(self) -> None:
        """Neither step frees a permit or takes another."""
        async with self.peers(3) as (ann, bob, cat):
            two, one = permits(2, 3), permits(1, 3)
            grant = await ann.take(name := fresh_name(), ann.waiter(two))
            beside = await cat.take(name, cat.waiter(one))
            place = await cat.queue(name, cat.waiter(two))
            key = await _detach(ann, name, grant)
            assert not isinstance(await cat.ask(name, cat.waiter(one), wait=False), Granted)
            theirs = await _adopt(bob, name, bob.waiter(two), grant, key)
            assert not isinstance(await cat.ask(name, cat.waiter(one), wait=False), Granted)
            await cat.release(name, beside)
            assert await bob.release(name, theirs) == WAS_HOLDER
            assert (await cat.handed()).waiter == place.waiter

    async def test_reader_hands_on_beside_other_readers(self) -> None:
        """A shared grant moves, and the others that share are as they were."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name(), ann.waiter(READER))
            beside = await cat.take(name, cat.waiter(READER))
            writer = await cat.queue(name)
            key = await _detach(ann, name, grant)
            waiter = bob.waiter(READER)
            theirs = await _adopt(bob, name, waiter, grant, key)
            assert await _adopt(bob, name, waiter, grant, key) == theirs
            await cat.release(name, beside)
            assert await bob.leave(name, waiter) == WAS_HOLDER
            assert (await cat.handed()).waiter == writer.waiter

    async def test_downgraded_grant_is_handed_on_as_shared(self) -> None:
        """Readers are beside a downgraded writer, and stay beside the one that adopts it."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name(), ann.waiter(_DOWNGRADES))
            await ann.downgrade(name, grant)
            key = await _detach(ann, name, grant)
            await cat.release(name, await cat.take(name, cat.waiter(READER)))
            assert await ann.store.submit(_detaching(ann, name, grant, key)) == WAS_HOLDER
            waiter = bob.waiter(_DOWNGRADES)
            theirs = await _adopt(bob, name, waiter, grant, key)
            assert await _adopt(bob, name, waiter, grant, key) == theirs
            assert await bob.holds(name, theirs)
            beside = await cat.take(name, cat.waiter(READER))
            assert await bob.release(name, theirs) == WAS_HOLDER
            await cat.release(name, beside)
            await cat.release(name, await cat.take(name))

    async def test_claim_is_detached_and_adopted_for_the_full_ttl(self) -> None:
        """A pushed grant that was not confirmed may be handed on: that confirms it."""
        async with self.peers(2) as (ann, bob):
            held = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.release(name, held)
            handed = await bob.handed()
            grant = Grant(place.waiter, handed.fence)
            key = await _detach(bob, name, grant)
            theirs = await _adopt(ann, name, ann.waiter(), grant, key)
            answer = await ann.ask(name, theirs.waiter, wait=False)
            assert isinstance(answer, Granted)
            assert not answer.claim
            assert answer.lease > CLAIM
            await ann.release(name, theirs)

    async def test_adopted_work_is_finished_by_the_adopter(self) -> None:
        """The delays and the purpose of a grant move with it: work that is to be done once."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name(), ann.waiter(_ONCE))
            key = await _detach(ann, name, grant)
            theirs = await _adopt(bob, name, bob.waiter(_ONCE), grant, key)
            assert await bob.finish(name, theirs, LONG) == WAS_HOLDER
            assert (await bob.store.submit(ReadStatus(name))).closed > 0

    async def test_newcomers_behind_a_detached_grant_wait_and_keep_their_order(self) -> None:
        """A queue may grow while nobody has the grant."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := fresh_name())
            key = await _detach(ann, name, grant)
            places = [await peer.queue(name) for peer in (cat, ann, cat)]
            theirs = await _adopt(bob, name, bob.waiter(), grant, key)
            await bob.release(name, theirs)
            for peer, place in zip((cat, ann, cat), places, strict=True):
                handed = await peer.handed()
                assert handed.waiter == place.waiter
                await peer.release(name, Grant(place.waiter, handed.fence))


def _detaching(peer: Peer, name: str, grant: Grant, key: str, ttl: int = LONG) -> Detach:
    waiter, fence = grant
    return Detach(name, waiter, peer.form(waiter), fence, key, ttl)


async def _detach(peer: Peer, name: str, grant: Grant, ttl: int = LONG) -> str:
    """Detach a grant; the key."""
    key = secrets.token_urlsafe(16)
    assert await peer.store.submit(_detaching(peer, name, grant, key, ttl)) == WAS_HOLDER
    return key


def _adopting(name: str, waiter: WaiterId, grant: Grant, key: str, form: Form = PLAIN) -> Adopt:
    return Adopt(name, waiter, form, grant.fence, key, LONG)


async def _adopt(peer: Peer, name: str, waiter: WaiterId, grant: Grant, key: str) -> Grant:
    """Adopt a detached grant, which must be there."""
    adopting = _adopting(name, waiter, grant, key, peer.form(waiter))
    answer = await peer.store.submit(adopting)
    assert answer is not None
    assert 0 < answer.lease <= LONG
    return Grant(waiter, answer.fence)
