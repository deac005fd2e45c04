"""What each failure does to readers, permits, latches, barriers and leaders."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing

import pytest

import aiolock
from aiolock.protocol import CLAIM
from tests.support.failures import (
    Lockers,
    Peek,
    command_link,
    subscription_link,
    take,
    until,
    within_100_ms,
)
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

TTL = 0.6
"""The lease of whoever comes to grief; all others have one that no busy machine outlasts."""


@pytest.fixture
async def client(server: RedisServer, prefix: str) -> AsyncIterator[aiolock.LockClient]:
    """A client in this process, which nothing happens to."""
    async with aiolock.connect(server.url, prefix=prefix) as client:
        yield client


@pytest.fixture
async def victim(
    server: RedisServer, proxy: Proxy, prefix: str
) -> AsyncIterator[aiolock.LockClient]:
    """A client whose links break."""
    del server
    async with aiolock.connect(proxy.url, prefix=prefix, ttl=5) as client:
        yield client


# --- Killed


async def test_reader_killed_keeps_a_writer_out_only_until_its_lease_ends(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek
) -> None:
    """A killed reader expires alone: readers go on, and the writer enters when its lease ends."""

    async def lag() -> float:
        (dead,) = await lockers(1)
        await dead.lock(kind="read", ttl=TTL)
        await dead.entered()
        other = await take(client.rwlock("lock").read())
        writing = asyncio.create_task(take(client.rwlock("lock").write()))
        await peek.queued(1)
        await dead.killed(peek)
        end = peek.ends(dead.client)
        assert await other.verify()
        await other.release()
        lease = await writing
        entered = time.monotonic()
        assert entered > end - 0.01, "a reader and a writer held it at once"
        await lease.release()
        return entered - end

    await within_100_ms(lag)


async def test_writer_killed_while_waiting_holds_back_no_reader(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek
) -> None:
    """A writer that was killed while it waited holds back no reader that comes."""
    (dead,) = await lockers(1)
    reading = await take(client.rwlock("lock").read())
    await dead.lock(kind="write", ttl=30)
    await peek.queued(1)
    behind = asyncio.create_task(take(client.rwlock("lock").read()))
    await peek.queued(2)
    await dead.killed(peek)
    start = time.monotonic()
    for lease in (await asyncio.create_task(take(client.rwlock("lock").read())), await behind):
        await lease.release()
    assert time.monotonic() - start < CLAIM / 1000, "the dead one was given a claim"
    await reading.release()


async def test_permits_of_a_killed_process_return_when_its_lease_ends(
    client: aiolock.LockClient, lockers: Lockers, server: RedisServer, prefix: str
) -> None:
    """They come back when its lease ends; a waiter that was killed costs nothing."""
    peek = Peek(server, prefix, "semaphore:lock")

    async def lag() -> float:
        dead, waiter = await lockers(2)
        await dead.lock(permits=2, ttl=TTL)
        await dead.entered()
        one = await take(client.semaphore("lock", 3))
        await waiter.lock(permits=3, ttl=TTL)
        await peek.queued(1)
        wanted = asyncio.create_task(take(client.semaphore("lock", 3)))
        await peek.queued(2)
        await waiter.killed(peek)
        await dead.killed(peek)
        end = peek.ends(dead.client)
        lease = await wanted
        entered = time.monotonic()
        assert await one.verify()
        await one.release()
        await lease.release()
        assert entered > end - 0.01, "there were more permits than there are"
        return entered - end

    await within_100_ms(lag)


async def test_barrier_party_killed_while_waiting_does_not_count(
    client: aiolock.LockClient, lockers: Lockers, server: RedisServer, prefix: str
) -> None:
    """A party that was killed at the barrier is not one of those who go on."""
    peek = Peek(server, prefix, "barrier:lock")
    dead, other = await lockers(2)
    await other.meet("barrier")
    await peek.queued(1)
    await dead.meet("barrier")
    await peek.queued(2)
    await dead.killed(peek)
    with pytest.raises(aiolock.AcquireTimeout):
        await client.barrier("lock", 3).wait(timeout=0.5)
    third = asyncio.create_task(client.barrier("lock", 3).wait(timeout=5))
    await until(lambda: client.id in peek.clients())
    await client.barrier("lock", 3).wait(timeout=5)
    await third
    await other.passed()


async def test_leader_killed_is_followed_by_the_next_when_its_lease_ends(
    client: aiolock.LockClient, lockers: Lockers, server: RedisServer, prefix: str
) -> None:
    """The next candidate leads when a killed leader's lease ends, and whoever watches sees it."""
    peek = Peek(server, prefix, "election:lock")

    async def lag() -> float:
        (dead,) = await lockers(1)
        await dead.lock(kind="lead", ttl=TTL)
        await dead.entered()
        election = client.election("lock")
        async with aclosing(election.observe()) as observed:
            assert (await anext(observed)).value == dead.client
            seen = asyncio.ensure_future(anext(observed))
            watched = asyncio.Event()
            candidate = asyncio.create_task(_lead(election, watched))
            # Or it was so slow that it has lost the lease: then `ends` says so.
            await until(lambda: peek.queue() or seen.done())
            await dead.killed(peek)
            end = peek.ends(dead.client)
            assert (await seen).value == "next"
            watched.set()
            leads = await candidate
            assert leads > end - 0.01, "two led at once"
        return leads - end

    await within_100_ms(lag)


async def _lead(election: aiolock.Election, watched: asyncio.Event) -> float:
    async with election.campaign("next"):
        leads = time.monotonic()
        await watched.wait()
        return leads


# --- Stopped


async def test_reader_stopped_past_its_ttl_raises_lease_lost_when_it_wakes(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek
) -> None:
    """A reader that was stopped for longer than its lease is cancelled when it wakes."""
    (stopped,) = await lockers(1)
    await stopped.lock(kind="read", ttl=TTL)
    await stopped.entered()
    stopped.stop()
    writing = await asyncio.wait_for(take(client.rwlock("lock").write()), 5)
    assert peek.ends(stopped.client) < 0
    stopped.cont()
    await stopped.expect("cancelled it")
    assert (await stopped.expect("failed it"))["error"] == "LeaseLost"
    await writing.release()


@pytest.mark.parametrize("kind", ["barrier", "latch"])
async def test_barrier_or_latch_waiter_stopped_at_its_grant_passes_when_it_wakes(
    client: aiolock.LockClient, lockers: Lockers, server: RedisServer, prefix: str, kind: str
) -> None:
    """Who was stopped when it might have passed passes when it wakes, and is in nobody's way."""
    peek = Peek(server, prefix, f"{kind}:lock")
    (stopped,) = await lockers(1)
    await stopped.meet(kind)
    await peek.queued(1)
    stopped.stop()
    if kind == "barrier":
        parties = (client.barrier("lock", 3).wait() for _ in range(2))
        await asyncio.wait_for(asyncio.gather(*parties), 5)
    else:
        await client.latch("lock", 1, remember=1).count_down()
    assert peek.queue() == []
    stopped.cont()
    await stopped.passed()
    await until(lambda: not [grant for grant in peek.holders() if stopped.client in grant])


# --- Links


async def test_operations_whose_reply_is_lost_are_repeated_with_one_effect(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy
) -> None:
    """What was carried out though its reply was lost is sent again, and done once."""
    async with victim.rwlock("lock").write() as lease:
        proxy.swallow_replies(1, command_link(proxy))
        await lease.downgrade()
        other = await asyncio.create_task(take(client.rwlock("lock").read()))
        assert await lease.verify()
        await other.release()
    latch = victim.latch("lock", 3, remember=30)
    for missing in (2, 1):
        proxy.swallow_replies(1, command_link(proxy))
        assert await latch.count_down() == missing
    semaphore = victim.semaphore("lock", 3)
    proxy.swallow_replies(1, command_link(proxy))
    permit = await take(semaphore)
    assert len((await client.semaphore("lock", 3).status()).holders) == 1
    proxy.swallow_replies(1, command_link(proxy))
    assert await permit.release()
    proxy.swallow_replies(1, command_link(proxy))
    await semaphore.resize(2)
    async with client.semaphore("lock", 2).acquire(2):
        assert await semaphore.try_acquire() is None


async def test_grants_lost_with_the_subscription_are_found_on_the_next(
    client: aiolock.LockClient, victim: aiolock.LockClient, proxy: Proxy, peek: Peek
) -> None:
    """Readers and watchers whose subscription is killed find what they were given meanwhile."""
    writing = await take(client.rwlock("lock").write())
    reading = [asyncio.create_task(take(victim.rwlock("lock").read())) for _ in range(3)]
    opened = asyncio.create_task(victim.latch("lock", 1, remember=30).wait())
    await peek.queued(3)
    await until(lambda: peek.server.call("ZCARD", f"{peek.prefix}:{{latch:lock}}:queue") == 1)
    subscription_link(proxy).cut()
    await writing.release()
    await client.latch("lock", 1, remember=30).count_down()
    for task in reading:
        lease = await asyncio.wait_for(task, 5)
        assert await lease.verify()
        await lease.release()
    await asyncio.wait_for(opened, 5)


# --- The server


async def test_restart_without_data_loses_readers_and_permits_and_waiters_enter(
    own_server: RedisServer, prefix: str
) -> None:
    """Readers and permits are lost at their next renewal; whoever waits asks again."""
    async with (
        aiolock.connect(own_server.url, prefix=prefix, ttl=1.5) as ours,
        aiolock.connect(own_server.url, prefix=prefix, ttl=1.5) as theirs,
    ):
        reading = await take(ours.rwlock("lock").read())
        permit = await take(ours.semaphore("lock", 1))
        writing = asyncio.create_task(take(theirs.rwlock("lock").write()))
        waiting = asyncio.create_task(take(theirs.semaphore("lock", 1)))
        party = asyncio.create_task(theirs.barrier("lock", 2).wait())
        for meeting in (ours.rwlock("lock"), ours.semaphore("lock", 1), ours.barrier("lock", 2)):
            async with asyncio.timeout(30):
                while not (await meeting.status()).waiters:  # noqa: ASYNC110  # a server tells nobody
                    await asyncio.sleep(0.01)
        own_server.restart()
        for lease in (reading, permit):
            await asyncio.wait_for(lease.lost.wait(), 5)
        for task in (writing, waiting):
            lease = await asyncio.wait_for(task, 5)
            assert await lease.verify()
            await lease.release()
        await asyncio.wait_for(ours.barrier("lock", 2).wait(), 5)
        await party


async def test_full_server_still_downgrades_renews_and_hands_off(
    own_server: RedisServer, prefix: str
) -> None:
    """On a full server what is held is kept, downgraded, counted back and handed on."""
    async with (
        aiolock.connect(own_server.url, prefix=prefix, ttl=10) as ours,
        aiolock.connect(own_server.url, prefix=prefix, ttl=10) as theirs,
    ):
        writing = await take(ours.rwlock("lock").write())
        reading = asyncio.create_task(take(theirs.rwlock("lock").read()))
        permits = await take(ours.semaphore("lock", 1))
        waiting = asyncio.create_task(take(theirs.semaphore("lock", 1)))
        for lock in (ours.rwlock("lock"), ours.semaphore("lock", 1)):
            async with asyncio.timeout(30):
                while not (await lock.status()).waiters:  # noqa: ASYNC110  # a server tells nobody
                    await asyncio.sleep(0.01)
        own_server.call("CONFIG", "SET", "maxmemory", 1)
        with pytest.raises(aiolock.StoreError, match="out of memory"):
            await theirs.semaphore("another", 1).acquire()
        with pytest.raises(aiolock.StoreError, match="out of memory"):
            await theirs.latch("lock", 1).count_down()
        await writing.downgrade()
        reader = await asyncio.wait_for(reading, 5)
        await reader.extend(20)
        assert await permits.release()
        permit = await asyncio.wait_for(waiting, 5)
        for lease in (writing, reader, permit):
            assert await lease.verify()
            assert await lease.release()
