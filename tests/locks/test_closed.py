"""Locks that stay closed for a while after a holder, and holders that are asked to release."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import pytest

import aiolock
from aiolock import LeaseLost
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import World, asking, queued, settled, virtual


async def hold(lock: aiolock.Lock) -> None:
    """Hold a lock until it is lost."""
    async with lock:
        await asyncio.Event().wait()


@virtual
async def test_min_hold_after_an_early_release_keeps_the_lock_closed_until_its_end() -> None:
    """A lock released early stays closed, and then goes to whoever has waited longest."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        lock = ours.lock("a", min_hold=60)
        start = loop.time()
        async with lock:
            waiting = [asking(theirs.lock("a"))]
            await queued(lock, 1)
            waiting.append(asking(ours.lock("a")))
            await queued(lock, 2)
        status = await lock.status()
        assert status.holders == ()
        assert 59 < status.closed <= 60
        assert await lock.locked()
        assert await theirs.lock("a").try_acquire() is None
        for asked in waiting:
            lease = await asked
            assert 60 <= loop.time() - start < 60.1
            await lease.release()
        assert not await lock.locked()


@virtual
async def test_min_hold_of_many_waiters_lets_each_enter_when_it_ends() -> None:
    """Whoever waits enters when the lock opens, however long the lease of the one before was."""
    loop = asyncio.get_running_loop()
    server, entered = MemoryServer(), list[float]()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:

        async def enter(client: aiolock.LockClient) -> None:
            async with client.lock("a", ttl=30, min_hold=0.5):
                entered.append(loop.time())

        async with asyncio.TaskGroup() as group:
            for client in (ours, theirs) * 3:
                group.create_task(enter(client))
    gaps = [later - earlier for earlier, later in itertools.pairwise(entered)]
    assert all(0.499 <= gap < 0.52 for gap in gaps), gaps


@virtual
async def test_min_hold_already_passed_at_release_closes_nothing() -> None:
    """A body that took longer than that closes nothing."""
    async with aiolock.connect(MemoryServer()) as client:
        lock = client.lock("a", ttl=5, min_hold=60)
        async with lock:
            await asyncio.sleep(61)
        assert not await lock.locked()


@virtual
async def test_lock_delay_after_a_lost_lease_delays_the_next_holder() -> None:
    """Where a holder has lost the lock, nobody enters for a while; a release delays nobody."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        lock = ours.lock("a", ttl=10, lock_delay=30)
        async with lock:
            pass
        assert not await theirs.lock("a").locked()
        lost = asyncio.create_task(hold(lock))
        await settled()
        start = loop.time()
        waiting = asking(theirs.lock("a"))
        await queued(theirs.lock("a"), 1)
        faulty.refuse("renew", 100)
        faulty.refuse("release", 100)
        lease = await waiting
        with pytest.raises(LeaseLost):
            await lost
        assert 40 <= loop.time() - start < 40.2  # its ttl, and the delay
        await lease.release()


ENDS: list[dict[str, Any]] = [{"ttl": 10, "max_hold": 15}, {"ttl": 15, "renew": False}]
"""Options by which a lease ends after 15 seconds, or a hundredth earlier by its client's clock."""


@virtual
@pytest.mark.parametrize("options", ENDS, ids=lambda options: [*options][-1])
async def test_lock_delay_after_the_holder_noticed_its_own_expiry_applies(
    options: dict[str, Any],
) -> None:
    """A holder that notices the end of its lease, and releases it a little before, has lost it."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        start = loop.time()
        lost = asyncio.create_task(hold(ours.lock("a", lock_delay=30, **options)))
        await settled()
        waiting = asking(theirs.lock("a"))
        with pytest.raises(LeaseLost):
            await lost
        assert loop.time() - start < 15
        lease = await waiting
        assert 44.8 <= loop.time() - start < 45.1
        await lease.release()


@virtual
async def test_lock_delay_after_a_release_sent_behind_the_expiry_applies() -> None:
    """The end of a lease that its holder slept through is a loss, whoever speaks of it first."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        start = loop.time()
        faulty.refuse("renew", 100)
        faulty.refuse("release")  # the second comes a second later, when the lease has ended
        with pytest.raises(LeaseLost):
            await hold(ours.lock("a", ttl=10, lock_delay=30))
        await asyncio.sleep(2)
        lease = await theirs.lock("a").acquire()
        assert lease is not None
        assert 40 <= loop.time() - start < 40.2
        await lease.release()


@virtual
async def test_lock_delay_after_a_repeated_release_of_a_lost_lease_applies() -> None:
    """A release that has failed says the same when it is sent once more: the lock was lost."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        start = loop.time()
        faulty.refuse("release")
        with pytest.raises(LeaseLost):
            await hold(ours.lock("a", ttl=1000, renew=False, lock_delay=30))
        lease = await theirs.lock("a").acquire()
        assert lease is not None
        assert faulty.calls["release"] == 2
        assert 1020 < loop.time() - start < 1022  # a hundredth earlier, a second later, the delay
        await lease.release()


@virtual
async def test_lock_delay_after_max_hold_without_a_body_applies() -> None:
    """With `max_hold`, a lease without a body is given back as lost; its client is not stuck."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        start = loop.time()
        lease = await ours.lock("a", ttl=3, max_hold=10, lock_delay=30).acquire()
        assert lease is not None
        entered: list[tuple[aiolock.LockClient, float]] = []

        async def enter(client: aiolock.LockClient) -> None:
            async with client.lock("a"):
                entered.append((client, loop.time() - start))

        waiting = [asyncio.create_task(enter(client)) for client in (ours, ours, theirs)]
        await lease.lost.wait()
        await settled()
        status = await theirs.lock("a").status()
        assert len(status.waiters) == 3
        assert 29 < status.closed <= 30
        await asyncio.wait(waiting)
        assert [client for client, _ in entered] == [ours, ours, theirs]
        assert 39.9 <= entered[0][1] < 40.1
        assert await lease.release() is False


@virtual
async def test_lock_delay_of_a_semaphore_keeps_only_the_lost_permit_taken() -> None:
    """A permit that was lost stays taken for the delay, and one that was released does not."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        semaphore = theirs.semaphore("a", 2)
        released = await ours.semaphore("a", 2, ttl=10, lock_delay=30).acquire()
        assert released is not None
        with pytest.raises(LeaseLost):
            async with ours.semaphore("a", 2, ttl=10, renew=False, lock_delay=30):
                await asyncio.Event().wait()
        await released.release()
        async with semaphore:
            assert await semaphore.try_acquire() is None
        assert 29 < (await semaphore.status()).closed <= 30


@virtual
async def test_lock_delay_after_a_client_closed_does_not_apply() -> None:
    """Its bodies have ended before their leases do, and release the lock: there is no delay."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    async with aiolock.connect(server) as theirs:
        ours = aiolock.connect(server)
        await ours.open()
        held = asyncio.create_task(hold(ours.lock("a", lock_delay=30)))
        await settled()
        start = loop.time()
        await ours.aclose()
        with pytest.raises(LeaseLost):
            await held
        async with theirs.lock("a"):
            assert loop.time() - start < 1


async def test_lock_delay_on_every_store_closes_the_lock_after_expiry(world: World) -> None:
    """A holder that has seen its lease end, and releases it just then, closes the lock."""
    async with world.client() as ours, world.client() as theirs:
        with pytest.raises(LeaseLost):
            await hold(ours.lock("a", ttl=0.5, renew=False, lock_delay=3600))
        assert await ours.lock("a").locked()  # asked after the release
        assert await theirs.lock("a").try_acquire() is None
        assert (await theirs.lock("a").status()).closed > 3000


@virtual
async def test_lock_delay_after_a_break_delays_the_next_holder() -> None:
    """Whoever had the lock broken may still be at it, so nobody enters for a while."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        lost = asyncio.create_task(hold(ours.lock("a", lock_delay=30)))
        await settled()
        waiting = asking(theirs.lock("a"))
        await queued(theirs.lock("a"), 1)
        start = loop.time()
        assert await theirs.lock("a").break_()
        with pytest.raises(LeaseLost):
            await lost
        lease = await waiting
        assert 30 <= loop.time() - start < 30.2
        await lease.release()


@pytest.mark.parametrize("options", [{"min_hold": 0.2}, {"min_hold": 0.2, "lock_delay": 9}])
async def test_min_hold_of_the_decorator_on_every_store_closes_the_lock(
    world: World, options: dict[str, Any]
) -> None:
    """The decorator takes the same options, and every store closes the lock."""
    async with world.client() as ours, world.client() as theirs:
        loop = asyncio.get_running_loop()

        @ours.locked("a", **options)
        async def work() -> None:
            pass

        begun = loop.time()
        await work()
        closed = await theirs.lock("a").locked()
        assert closed or loop.time() - begun > 0.19
        async with theirs.lock("a"):
            assert loop.time() - begun > 0.19
        assert not await ours.lock("a").locked()


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"min_hold": -1}, ValueError),
        ({"min_hold": "1"}, TypeError),
        ({"min_hold": float("inf")}, ValueError),
        ({"lock_delay": float("nan")}, ValueError),
        ({"lock_delay": True}, TypeError),
    ],
)
async def test_min_hold_or_lock_delay_that_is_invalid_is_refused(
    options: dict[str, Any], error: type[Exception]
) -> None:
    """What cannot be is refused before anything is sent."""
    (what,) = options
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        with pytest.raises(error, match=what):
            async with client.lock("a", **options):
                raise AssertionError
    assert faulty.calls == {"open": 1}


async def test_request_release_sets_requested_of_the_holder_and_keeps_its_lease(
    world: World,
) -> None:
    """A holder hears that somebody asks for the lock, and may let go; or not."""
    async with world.client() as ours, world.client() as theirs:
        lock = theirs.lock("a")
        assert not await lock.request_release()
        async with ours.lock("a") as lease:
            assert not lease.requested.is_set()
            waiting = asking(lock)
            await queued(lock, 1)
            assert await lock.request_release()
            await asyncio.wait_for(lease.requested.wait(), 5)
            assert lease.state == "held"
        lease = await waiting
        assert not lease.requested.is_set()
        await lease.release()


async def test_request_release_before_requested_is_read_is_seen_later(world: World) -> None:
    """Whoever looks later sees that it was asked for."""
    async with world.client() as ours, world.client() as theirs:
        async with ours.lock("a") as lease:
            assert await theirs.lock("a").request_release()
            async with asyncio.timeout(30):
                while not lease._hold.is_wanted:  # noqa: ASYNC110  # nothing else looks at it
                    await asyncio.sleep(0)
            assert lease.requested.is_set()
        async with ours.lock("a") as lease:
            assert not lease.requested.is_set()


@virtual
async def test_request_release_before_the_holder_has_run_is_kept_for_it() -> None:
    """A request for a grant that its task has not seen yet is kept for it."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        first = await theirs.lock("a").acquire()
        assert first is not None
        waiting = asking(ours.lock("a"))
        await queued(theirs.lock("a"), 1)
        released = asyncio.ensure_future(first.release())
        asked = asyncio.ensure_future(theirs.lock("a").request_release())
        lease = await waiting
        await released
        assert await asked
        await settled()
        assert lease.requested.is_set()
        await lease.release()
