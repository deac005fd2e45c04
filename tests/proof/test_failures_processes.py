"""Processes that are killed, stopped, blocked, forked, or end without a word."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator

import pytest

import aiolock
from tests.support.failures import (
    Locker,
    Lockers,
    Peek,
    command_link,
    take,
    until,
    within_100_ms,
)
from tests.support.procs import Worker
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

TTL = 1.0
UNRENEWED = 2.5
"""Seconds of a lease that must last until a program on a busy machine has ended."""
LONG = 60.0
"""Seconds of a lease that nobody waits for: it is given back before."""
"""Whoever waits asks again when it has passed, so the others have no longer one either."""
CLAIM = 3.0
"""The longest claim: a push comes in time for that also where the machine is busy."""


@pytest.fixture
async def client(server: RedisServer, prefix: str) -> AsyncIterator[aiolock.LockClient]:
    """A client in this process, which nothing happens to."""
    async with aiolock.connect(server.url, prefix=prefix, ttl=TTL) as client:
        yield client


# --- Killed


@pytest.mark.parametrize("dead", [0, 1], ids=["head", "behind_a_killed_waiter"])
async def test_holder_killed_is_followed_within_100_ms_of_its_lease_end(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek, dead: int
) -> None:
    """The next waiter that lives enters when the killed holder's lease ends, within 100 ms."""

    async def lag() -> float:
        holder, *waiters = victims = await lockers(1 + dead)
        await holder.lock(ttl=TTL)
        await holder.entered()
        for waiter in waiters:
            await waiter.lock(ttl=TTL)
            await peek.queued(1)
        waiting = asyncio.create_task(take(client.lock("lock")))
        # Or the holder was so slow that it has lost it: then `ends` says so.
        await until(lambda: len(peek.queue()) == dead + 1 or waiting.done())
        for victim in victims:
            await victim.killed(peek)
        end = peek.ends(holder.client)
        lease = await waiting
        entered = time.monotonic()
        assert entered > end - 0.01, "two held it at once"
        await lease.release()
        return entered - end

    await within_100_ms(lag)


async def test_holder_killed_before_it_confirmed_costs_only_its_claim(
    server: RedisServer, prefix: str, client: aiolock.LockClient, peek: Peek
) -> None:
    """A holder that was handed the lock and dies before it confirmed costs just its claim."""

    async def lag() -> float:
        async with Proxy(server.port) as proxy, Locker(proxy.url, prefix) as victim:
            first = await take(client.lock("lock", ttl=30))
            await victim.lock(ttl=CLAIM)
            await peek.queued(1)
            waiting = asyncio.create_task(take(client.lock("lock")))
            await peek.queued(2)
            # So that it can confirm nothing; the push comes by the other link.
            command_link(proxy).deaf()
            await first.release()
            fence = (await victim.entered())["fence"]
            await victim.killed(peek)
            end = peek.ends(victim.client)
            lease = await waiting
            entered = time.monotonic()
            assert lease.fence > fence
            assert lease.fence / 1e6 - fence / 1e6 > CLAIM - 0.01, "two held it at once"
            await lease.release()
            return entered - end

    await within_100_ms(lag)


async def test_waiters_killed_are_skipped_at_the_handoff(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek
) -> None:
    """Killed waiters are skipped in the call that would have granted to them."""
    first = await take(client.lock("lock", ttl=30))
    victims = await lockers(2)
    for count, victim in enumerate(victims):
        await victim.lock(ttl=30)
        await peek.queued(count + 1)
    waiting = asyncio.create_task(take(client.lock("lock", ttl=30)))
    await peek.queued(3)
    for victim in victims:
        await victim.killed(peek)
    assert len(peek.queue()) == 3
    await first.release()
    (grant,) = peek.holders()
    assert grant.split(":")[1] == client.id
    assert peek.queue() == []
    lease = await asyncio.wait_for(waiting, 5)
    await lease.release()


# --- Stopped


async def test_waiter_stopped_costs_one_claim_and_keeps_its_place(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek
) -> None:
    """A stopped waiter costs one claim; woken, it does not enter but takes its old place again."""
    first = await take(client.lock("lock", ttl=30))
    (sleeper,) = await lockers(1)
    await sleeper.lock(ttl=TTL)
    await peek.queued(1)
    (waiter,) = peek.queue()
    ticket = peek.ticket(waiter)
    second = asyncio.create_task(take(client.lock("lock")))
    await peek.queued(2)
    sleeper.stop()
    await first.release()
    (claim,) = peek.holders()
    assert claim.startswith(waiter)
    lease = await second
    await lease.extend(30)
    cost = lease.fence / 1e6 - int(claim.split(":")[-1]) / 1e6
    assert TTL - 0.01 < cost < 1.9 * TTL
    third = asyncio.create_task(take(client.lock("lock")))
    await peek.queued(1)
    sleeper.cont()
    await peek.queued(2)
    assert peek.queue()[0] == waiter
    assert peek.ticket(waiter) == ticket
    assert await lease.verify()
    assert [message["event"] for message in sleeper.history] == ["ready"]
    await lease.release()
    assert (await sleeper.entered())["fence"] > lease.fence
    await sleeper.unlock()
    await (await third).release()


async def test_process_with_many_waiters_stopped_costs_one_claim_in_all(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek
) -> None:
    """A stopped process costs the others one claim in all; woken, its waiters keep their order."""
    first = await take(client.lock("lock", ttl=30))
    (sleeper,) = await lockers(1)
    waiters = ["a", "b", "c", "d", "e"]
    for who in waiters:
        await sleeper.lock(who, ttl=TTL)
    await peek.queued(len(waiters))
    queue = peek.queue()
    second = asyncio.create_task(take(client.lock("lock")))
    await peek.queued(len(waiters) + 1)
    sleeper.stop()
    await first.release()
    (claim,) = peek.holders()
    lease = await second
    await lease.extend(30)
    assert lease.fence / 1e6 - int(claim.split(":")[-1]) / 1e6 < 1.9 * TTL
    sleeper.cont()
    await until(lambda: peek.queue() == queue)
    await lease.release()
    fences = [lease.fence]
    for who in waiters:
        fences.append((await sleeper.entered(who))["fence"])
        await sleeper.unlock(who)
    assert fences == sorted(set(fences))


@pytest.mark.parametrize("how", ["stopped", "blocked"])
async def test_holder_stopped_or_blocked_past_its_ttl_raises_lease_lost(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek, how: str
) -> None:
    """A holder that sleeps past its ttl wakes to a cancelled body and a stale fence."""
    (sleeper,) = await lockers(1)
    await sleeper.lock(ttl=TTL)
    stale = (await sleeper.entered())["fence"]
    waiting = asyncio.create_task(take(client.lock("lock")))
    await peek.queued(1)
    if how == "stopped":
        sleeper.stop()
    else:
        await sleeper.send({"do": "block", "seconds": 2 * TTL})
    lease = await waiting
    assert lease.fence > stale
    assert "cancelled it" not in [message["event"] for message in sleeper.history]
    sleeper.cont()
    await sleeper.expect("cancelled it")
    assert (await sleeper.expect("failed it"))["error"] == "LeaseLost"
    assert await lease.verify(), "the stale holder has taken the lock from the present one"
    assert await lease.release()


async def test_body_that_blocks_the_loop_past_its_ttl_raises_lease_lost(
    client: aiolock.LockClient, lockers: Lockers, peek: Peek
) -> None:
    """A body that blocks past its ttl, and ends before anybody could tell it, raises LeaseLost."""
    (other,) = await lockers(1)
    leases: list[aiolock.Lease] = []

    async def body() -> None:
        async with client.lock("lock", ttl=TTL) as lease:
            leases.append(lease)
            await other.lock(ttl=TTL)
            await peek.queued(1)
            time.sleep(1.5 * TTL)

    with pytest.raises(aiolock.LeaseLost):
        await body()
    (lease,) = leases
    assert lease.state is aiolock.LeaseState.LOST
    assert (await other.entered())["fence"] > lease.fence
    await other.unlock()


# --- Gone without aclose

GONE = """
import asyncio, os, signal, sys
import aiolock
from tests.support import loops
from tests.support.procs import commands, say

async def main():
    client = aiolock.connect(sys.argv[1], prefix=sys.argv[2])
    await client.open()
    lease = await client.lock("lock", ttl=float(sys.argv[3]), renew=False).acquire()
    say("entered", fence=lease.fence)
    async for command in commands():
        break
    {}

loops.run(main())
"""


@pytest.mark.parametrize(
    ("end", "code"),
    [
        pytest.param("sys.exit(3)", 3, id="sys.exit"),
        pytest.param("return", 0, id="end_of_main"),
        pytest.param("os.kill(os.getpid(), signal.SIGTERM)", -15, id="SIGTERM"),
        pytest.param("os._exit(4)", 4, id="os._exit"),
    ],
)
async def test_process_that_ends_without_aclose_is_silent_and_its_lease_ends(
    client: aiolock.LockClient,
    peek: Peek,
    capfd: pytest.CaptureFixture[str],
    end: str,
    code: int,
) -> None:
    """A process that ends and closes nothing is as one that was killed, and ends in silence.

    But where its main task ends, nobody can reach the lease any more, and there is still time to
    give it back.
    """
    source = GONE.format(end)
    ttl = LONG if end == "return" else UNRENEWED
    async with Worker("-c", source, peek.server.url, peek.prefix, str(ttl)) as worker:
        gone = (await worker.expect("entered"))["fence"]
        waiting = asyncio.create_task(take(client.lock("lock")))
        await until(lambda: peek.queue() or waiting.done())
        await worker.send({})
        assert await worker.wait() == code
    lease = await asyncio.wait_for(waiting, 5)
    if end != "return":
        kept = lease.fence / 1e6 - gone / 1e6
        assert kept > UNRENEWED - 0.01, "the lease was not kept to its end"
    await lease.release()
    assert capfd.readouterr().err == ""


# --- Somewhere else


FORK = """
import asyncio, os, sys
import aiolock
from tests.support import loops
from tests.support.procs import say

async def attempt(use):
    try:
        await use()
    except aiolock.ClientClosed as error:
        return "fork" in str(error)
    return False

async def main():
    async with aiolock.connect(sys.argv[1], prefix=sys.argv[2]) as client:
        lock = client.lock("lock", ttl=float(sys.argv[3]))
        async with lock as lease:
            uses = [lock.acquire, lock.release, lock.status, lock.locked, lock.break_,
                    lease.release, lease.verify, lambda: lease.extend(1.0)]
            read, write = os.pipe()
            if not os.fork():
                os.write(write, bytes(asyncio.run(attempt(use)) for use in uses))
                os._exit(0)
            os.wait()
            say("forked", refused=list(os.read(read, 100)), uses=[str(use) for use in uses])
            say("verified", ours=await lease.verify())
        say("left")

loops.run(main())
"""


async def test_client_used_in_a_fork_raises_client_closed(server: RedisServer, prefix: str) -> None:
    """In a fork every use says that it is one, and the parent's connections are left alone."""
    async with Worker("-W", "ignore", "-c", FORK, server.url, prefix, "30") as worker:
        forked = await worker.expect("forked")
        used = dict(zip(forked["uses"], forked["refused"], strict=True))
        assert all(used.values()), used
        assert (await worker.expect("verified"))["ours"]
        await worker.expect("left")
        assert await worker.wait() == 0


@pytest.mark.parametrize(
    "use", ["acquire", "release", "locked", "status", "break_", "held", "lease.release"]
)
async def test_client_used_in_another_event_loop_raises_client_closed(
    client: aiolock.LockClient, use: str
) -> None:
    """In another event loop every use says that it is another one."""
    lock = client.lock("lock", ttl=30)
    async with lock as lease:
        method = getattr(lease, use[6:]) if use.startswith("lease.") else getattr(lock, use)

        async def elsewhere() -> None:
            result = method()
            if use != "held":
                await result

        with pytest.raises(aiolock.ClientClosed, match="event loop"):
            await asyncio.to_thread(asyncio.run, elsewhere())
        assert await lease.verify()
