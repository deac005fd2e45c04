"""The part of the suite about what others see of exclusive locks, and may do with them."""

from __future__ import annotations

import asyncio

from aiolock.protocol import (
    WAS_ABSENT,
    Break,
    GrantLost,
    ReadPage,
    ReadStatus,
    RequestRelease,
    Status,
)
from aiolock.testing._base import Contract
from aiolock.testing._peer import LONG, PATIENCE, Grant, Peer, fresh_name


class StatusContract(Contract):
    """See `LockContract`."""

    # All names at the store

    async def test_snapshot_contains_every_held_name_with_its_status(self) -> None:
        """Every name that is held or waited for is on a page, with its status."""
        async with self.peers(2) as (ann, bob):
            stem = fresh_name()
            odd = ["", ":queue", "{", "}", "%7B", " ", "\n", "é", "🔒", "*", "x" * 400]
            names = [stem + end for end in odd]
            for name in names:
                await ann.take(name)
            for name in names[:3]:
                await bob.queue(name)
            found = await _snapshot(bob, stem)
            assert found.keys() == set(names)
            for name in names:
                assert _who(found[name]) == _who(await bob.store.submit(ReadStatus(name)))

    async def test_snapshot_of_many_names_is_complete_page_by_page(self) -> None:
        """Page by page, however many there are; released names have no holders."""
        async with self.peers(1) as (ann,):
            stem = fresh_name()
            names = [f"{stem}{number}" for number in range(300)]
            for start in range(0, len(names), 50):  # or the last of them might wait for too long
                some = names[start : start + 50]
                grants = await asyncio.gather(*[ann.take(name) for name in some])
                let_go = list(zip(some, grants, strict=True))[::4]
                await asyncio.gather(*[ann.release(name, grant) for name, grant in let_go])
            held = {name for number, name in enumerate(names) if number % 50 % 4}
            found = await _snapshot(ann, stem)
            assert {name for name, status in found.items() if status.holders} == held

    async def test_snapshot_with_one_unreadable_name_contains_the_others(self) -> None:
        """What others have written under a name is no name of a snapshot, and the rest is there."""
        async with self.peers(1) as (ann,):
            stem = fresh_name()
            names = [f"{stem}{number}" for number in range(3)]
            for name in names:
                await ann.take(name)
            unreadable = {names[1]} if await self.spoil(names[1]) else set[str]()
            found = await _snapshot(ann, stem)
            assert found.keys() == set(names) - unreadable

    # request, break_ and status

    async def test_request_release_notifies_the_holder_and_changes_nothing(self) -> None:
        """The holders are asked to release the lock; nothing else changes."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert await bob.store.submit(RequestRelease(name)) == 0
            grant = await ann.take(name)
            place = await bob.queue(name)
            assert await bob.store.submit(RequestRelease(name)) == 1
            assert await ann.requested_of() == grant
            assert await ann.holds(name, grant)
            assert await bob.queue(name, place.waiter, ticket=place.ticket) == place

    async def test_client_with_an_id_like_that_of_a_reserved_grant_gets_its_pushes(self) -> None:
        """A random id may begin with any character, also with that of a grant without a client."""
        odd = Peer(self.store(), self.expire)
        odd.client = f"-{odd.client[1:]}"
        async with self.peers(1) as (ann,), odd:
            name = fresh_name()
            grant = await odd.take(name)
            assert await ann.store.submit(RequestRelease(name)) == 1
            assert await odd.requested_of() == grant
            assert await ann.store.submit(Break(name, [grant.fence])) == 1
            assert await odd.told() == GrantLost(name, grant.waiter, grant.fence, "broken")

    async def test_break_notifies_the_holder_and_grants_the_next_waiter(self) -> None:
        """A broken lock is taken from its holder, who is notified, and granted to the next."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := f"{fresh_name()} {{é}}\n%7B x")
            place, own = await bob.queue(name), await ann.queue(name)
            assert await cat.store.submit(Break(name, [grant.fence])) == 1
            assert await ann.told() == GrantLost(name, grant.waiter, grant.fence, "broken")
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            assert handed.fence > grant.fence
            assert not await ann.holds(name, grant)
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await ann.queue(name, own.waiter) == own

    async def test_break_takes_only_the_named_grants_and_only_once(self) -> None:
        """Only the named grants are broken, so a second call breaks no other."""
        async with self.peers(2) as (ann, bob):
            name = fresh_name()
            assert await ann.store.submit(Break(name, [1])) == 0
            grant = await ann.take(name)
            await bob.queue(name)
            assert await ann.store.submit(Break(name, [])) == 0
            assert await ann.store.submit(Break(name, [grant.fence + 1])) == 0
            assert await ann.holds(name, grant)
            assert await ann.store.submit(Break(name, [1, grant.fence])) == 1
            assert await ann.store.submit(Break(name, [1, grant.fence])) == 0
            handed = await bob.handed()
            assert await bob.holds(name, Grant(handed.waiter, handed.fence))

    async def test_status_shows_holders_and_waiters_in_order_and_where_they_run(self) -> None:
        """A status shows the holders and waiters, in order, and where they run."""
        async with self.peers(3) as (ann, bob, cat):
            name = fresh_name()
            assert await cat.store.submit(ReadStatus(name)) == Status(name, (), ())
            grant = await ann.take(name)
            for peer in (bob, ann, bob):
                await peer.queue(name)
            status = await cat.store.submit(ReadStatus(name))
            assert status.name == name
            (holder,) = status.holders
            assert (holder.client, holder.place, holder.fence) == (ann.client, 0, grant.fence)
            assert LONG / 1000 - 10 < holder.remaining <= LONG / 1000
            waiters = status.waiters
            assert [waiter.client for waiter in waiters] == [bob.client, ann.client, bob.client]
            assert [waiter.place for waiter in waiters] == [1, 2, 3]
            assert all(waiter.fence == 0 and waiter.remaining == 0 for waiter in waiters)
            since = [party.since for party in (holder, *waiters)]
            assert max(since) - min(since) < PATIENCE
            seqs = [party.seq for party in status.waiters if party.client == bob.client]
            assert seqs == sorted(set(seqs))
            for party in (holder, *waiters):
                assert party.alive
                self._runs_here(party)
            text = str(status).splitlines()
            assert len(text) == 1 + 1 + 3
            assert repr(name) in text[0]
            assert f"#{holder.seq} at " in text[1]
            assert f"fence {grant.fence}" in text[1]
            assert "place 3" in text[4]

    async def test_status_of_the_holders_alone_has_no_waiters(self) -> None:
        """A status of the holders alone has the holders, and no waiters."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            await bob.queue(name)
            status = await bob.store.submit(ReadStatus(name, waiters=False))
            assert [holder.fence for holder in status.holders] == [grant.fence]
            assert status.waiters == ()

    async def test_status_after_an_expiry_grants_nothing_to_the_waiter(self) -> None:
        """Looking at a lock neither reaps a holder nor wakes a waiter."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := fresh_name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            for _ in range(2):
                status = await bob.store.submit(ReadStatus(name))
                assert not status.holders
                assert [waiter.client for waiter in status.waiters] == [bob.client]
            assert (await self._takes_over(bob, name, place)).fence > grant.fence


async def _snapshot(peer: Peer, stem: str) -> dict[str, Status]:
    """The names of a store that begin like that, with their statuses."""
    found = dict[str, Status]()
    start = ""
    while True:
        page = await peer.store.submit(ReadPage(start))
        found |= {status.name: status for status in page.statuses if status.name.startswith(stem)}
        start = page.more
        if not start:
            return found


def _who(status: Status) -> list[tuple[str, int, int, int, bool]]:
    parties = (*status.holders, *status.waiters)
    return [(each.client, each.seq, each.place, each.fence, each.alive) for each in parties]
