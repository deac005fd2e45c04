"""What type checkers see of the API. Checked by mypy and pyright, both strict; never run."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AsyncExitStack
from datetime import timedelta
from typing import Any, assert_type

import redis.asyncio
from fakeredis import FakeAsyncRedis

import aiolock
import aiolock.sync
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore, StoreContract


async def connecting(driver: redis.asyncio.Redis, fake: FakeAsyncRedis, unchecked: Any) -> None:
    """Everything that `connect` takes."""
    async with aiolock.connect("redis://localhost", prefix="app", ttl=10, replicas="all") as client:
        assert_type(client, aiolock.LockClient)
    for target in (driver, fake, MemoryServer(), MemoryStore(MemoryServer())):
        assert_type(aiolock.connect(target), aiolock.LockClient)
    client = aiolock.connect(FaultyStore(MemoryStore(MemoryServer())))
    assert_type(await client.open(), None)
    assert_type(await client.aclose(), None)
    assert_type(client.id, str)
    aiolock.connect(42)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such store
    aiolock.connect("redis://", "app")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # by name
    aiolock.connect("redis://", expire=unchecked)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ttl
    aiolock.sync.connect("redis://", expire=30)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ttl


async def scripting() -> None:
    """One lock, with a client of its own."""
    async with aiolock.lock("nightly", url="redis://localhost", timeout=0, prefix="app") as lease:
        assert_type(lease, aiolock.Lease)
    with aiolock.sync.lock("nightly", ttl=timedelta(minutes=1)) as held:
        assert_type(held, aiolock.sync.Lease)
    aiolock.lock("a", expire=30)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ttl
    aiolock.lock("a", "redis://")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # by name only


async def describing(client: aiolock.LockClient, unchecked: Any) -> None:
    """A lock and its options."""
    lock = client.lock(
        "a",
        ttl=1,
        timeout=None,
        renew=False,
        reentrant=True,
        max_waiters=3,
        max_hold=60.0,
        on_lost="signal",
    )
    assert_type(lock, aiolock.Lock)
    assert_type(lock.name, str)
    assert_type(lock.ttl, float)
    assert_type(lock.held(), bool)
    assert_type(await lock.locked(), bool)
    assert_type(await lock.release(), bool)
    assert_type(await lock.break_(), bool)
    lock.name = "b"  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # read-only
    client.lock("a", on_lost="kill")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such
    client.lock("a", expire=unchecked)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # ttl
    client.lock("a", 30)  # type: ignore[call-arg, arg-type, unused-ignore]  # pyright: ignore[reportCallIssue]  # by name only


async def describing_more(client: aiolock.LockClient) -> None:
    """What is made of locks."""
    both = client.multilock("a", "b", timeout=1)
    assert_type(both, aiolock.MultiLock)
    assert_type(both.names, tuple[str, ...])
    assert_type(await both.acquire(), aiolock.MultiLease)
    assert_type(await both.acquire(timeout=1), aiolock.MultiLease)
    assert_type(await both.try_acquire(), aiolock.MultiLease | None)
    assert_type(await both.try_acquire(timeout=1), aiolock.MultiLease | None)
    async with both as lease:
        assert_type(lease, aiolock.MultiLease)
        assert_type(lease.leases["a"], aiolock.Lease)
        assert_type(await lease.release(), bool)
    node = client.path_lock("acme/7", mode="shared", timeout=1, reentrant=True)
    assert_type(node, aiolock.PathLock)
    assert_type(node.nodes, tuple[str, ...])
    assert_type(await node.acquire(timeout=1), aiolock.PathLease)
    assert_type(await node.try_acquire(), aiolock.PathLease | None)
    assert_type((await node.status()).below, str)
    async with node as below:
        assert_type(below, aiolock.PathLease)
        assert_type(below.fence, int)
        assert_type(await below.release(), bool)
    client.path_lock("a", mode="write")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such
    job = client.periodic("job", every=60, max_hold=5)
    assert_type(job, aiolock.Periodic)
    async with job as run:
        assert_type(run, aiolock.Lease)
        assert_type(run.requested.is_set(), bool)
    once = client.once("a", remember=60)
    assert_type(once, aiolock.Once)
    async with once as mine:
        assert_type(mine, aiolock.Lease | None)

    @client.once("{key}", remember=60)
    async def decorated(key: int) -> str:
        return str(key)

    assert_type(await decorated(1), str | None)
    assert_type(await client.lock("a", min_hold=1, lock_delay=2).request_release(), bool)


async def acquiring(lock: aiolock.Lock) -> None:
    """An acquisition, awaited and entered."""
    async with lock as lease:
        assert_type(lease, aiolock.Lease)
    async with lock.acquire(timeout=2) as lease:
        assert_type(lease, aiolock.Lease)
    async with AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(lock), aiolock.Lease)
        assert_type(await stack.enter_async_context(lock.acquire(timeout=2)), aiolock.Lease)
    _ = assert_type(lock.acquire(), aiolock.AcquireContext[aiolock.Lease])
    _ = assert_type(lock.acquire(timeout=1), aiolock.AcquireContext[aiolock.Lease])
    assert_type(await lock.acquire(), aiolock.Lease)
    assert_type(await lock.acquire(timeout=timedelta(seconds=1)), aiolock.Lease)
    await lock.acquire(blocking=False)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # see try_acquire
    assert_type(await asyncio.wait_for(lock.acquire(timeout=None), 5), aiolock.Lease)
    task = asyncio.create_task(lock.acquire())
    _ = assert_type(task, asyncio.Task[aiolock.Lease])
    first, second = await asyncio.gather(lock.acquire(), asyncio.sleep(0, "x"))
    assert_type(first, aiolock.Lease)
    assert_type(second, str)
    await (await lock.acquire()).release()  # the first line that anybody writes
    await (await lock.acquire(timeout=1)).release()


async def trying(lock: aiolock.Lock) -> None:
    """An attempt: awaited only, and it may give None."""
    assert_type(await lock.try_acquire(), aiolock.Lease | None)
    assert_type(await lock.try_acquire(timeout=timedelta(seconds=1)), aiolock.Lease | None)
    assert_type(await asyncio.wait_for(lock.try_acquire(timeout=1), 5), aiolock.Lease | None)
    task = asyncio.create_task(lock.try_acquire())
    _ = assert_type(task, asyncio.Task[aiolock.Lease | None])
    if lease := await lock.try_acquire():
        assert_type(lease, aiolock.Lease)
    await (await lock.try_acquire()).release()  # type: ignore[union-attr]  # pyright: ignore[reportOptionalMemberAccess]  # it may be None
    await lock.try_acquire(timeout=None)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # see acquire
    async with lock.try_acquire():  # type: ignore[attr-defined]  # pyright: ignore[reportGeneralTypeIssues, reportAttributeAccessIssue]  # it may be None
        pass


async def holding(lease: aiolock.Lease) -> None:
    """A lease."""
    assert_type(lease.name, str)
    assert_type(lease.fence, int)
    assert_type(lease.state, aiolock.LeaseState)
    assert_type(lease.remaining(), float)
    assert_type(lease.lost.is_set(), bool)
    await lease.lost
    await lease.lost.wait()
    assert_type(await lease.release(), bool)
    assert_type(await lease.verify(), bool)
    assert_type(await lease.extend(30), None)
    lease.fence = 3  # type: ignore[misc]  # pyright: ignore[reportAttributeAccessIssue]  # read-only


async def looking(lock: aiolock.Lock) -> None:
    """A status."""
    status = await lock.status()
    assert_type(status, aiolock.Status)
    for party in (*status.holders, *status.waiters):
        assert_type(party, aiolock.Participant)
        assert_type((party.client, party.host, party.pid), tuple[str, str, int])
        assert_type((party.since, party.remaining), tuple[float, float])
        assert_type((party.place, party.fence), tuple[int, int])


def decorating(client: aiolock.LockClient) -> None:
    """A decorated function keeps its parameters and its result."""

    @client.locked("user:{user_id}", timeout=2)
    async def rename(user_id: int, *, name: str = "x") -> bytes:
        return name.encode() * user_id

    async def use() -> None:
        assert_type(await rename(1, name="y"), bytes)
        await rename("1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # an int
        await rename()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # one is missing

    call: Callable[[int], Coroutine[Any, Any, bytes]] = rename
    _ = use, call

    @client.locked("a")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # not async
    def blocking() -> int:
        return 1

    _ = blocking


async def sharing(client: aiolock.LockClient) -> None:
    """Readers, permits, and those who wait for others."""
    rates = client.rwlock("a", reentrant=True)
    assert_type(rates, aiolock.RWLock)
    assert_type(rates.read(), aiolock.Lock)
    async with rates.write() as lease:
        assert_type(await lease.downgrade(), None)
    api = client.semaphore("a", 3)
    assert_type(api, aiolock.Semaphore)
    assert_type(client.semaphore("a", 3, share="acme", weight=2), aiolock.Semaphore)
    assert_type(client.lock("a", share=None, weight=0.5), aiolock.Lock)
    client.rwlock("a", share="acme")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # locks and semaphores only
    assert_type((await api.status()).waiters[0].share, str)
    assert_type(await api.acquire(2), aiolock.Lease)
    assert_type(await api.acquire(2, timeout=1), aiolock.Lease)
    assert_type(await api.try_acquire(2, timeout=1), aiolock.Lease | None)
    assert_type(await api.resize(4), None)
    assert_type((await api.status()).limit, int | None)
    async with api as permit, api.acquire(permits=2) as permits:
        assert_type(permit, aiolock.Lease)
        assert_type(permits, aiolock.Lease)
    async with AsyncExitStack() as stack:
        assert_type(await stack.enter_async_context(api), aiolock.Lease)
    limit = client.rate_limit("a", 100, per=timedelta(minutes=1), burst=20)
    assert_type(await limit.acquire(2, timeout=1), aiolock.Verdict)
    assert_type(await limit.try_acquire(), aiolock.Verdict)
    async with limit as verdict, limit.acquire(3) as other:
        assert_type(verdict, aiolock.Verdict)
        assert_type(other.retry_after, float)
    client.rate_limit("a", 100)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # per what?
    client.semaphore("a")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # how many?
    latch = client.latch("a", 3)
    assert_type(await latch.count_down("part 1"), int)
    assert_type(await latch.missing(), int)
    assert_type(await latch.wait(timeout=1), None)
    assert_type(await client.barrier("a", 3).wait(), None)


async def electing(client: aiolock.LockClient) -> None:
    """One leader, seen by all."""
    election = client.election("a", ttl=5)
    async with election.campaign("10.0.0.7", timeout=1) as term:
        assert_type(term, aiolock.Term)
        assert_type(term.fence, int)
        assert_type(term.lease, aiolock.Lease)
        assert_type(await term.resign(), bool)
    assert_type(await election.leader(), aiolock.Leader | None)
    async for leader in election.observe():
        assert_type(leader, aiolock.Leader)
        assert_type(leader.value, str)


async def grouping(client: aiolock.LockClient) -> None:
    """Who is there, and what is whose."""
    group = client.group("a", data={"n": 1}, ttl=5, on_lost="rejoin")
    async with group as me:
        assert_type(me, aiolock.Membership)
        assert_type(me.lease, aiolock.Lease)
        assert_type(await me.members(), tuple[aiolock.Member, ...])
        async for change in me.watch():
            assert_type(change, aiolock.GroupChange)
            if isinstance(change, aiolock.Joined | aiolock.Left | aiolock.Changed):
                assert_type(change.member, aiolock.Member)
        await me.update({"n": 2})
    assert_type(await group.members(), tuple[aiolock.Member, ...])
    client.group("a", on_lost="ignore")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such effect

    async def serve(shard: aiolock.Shard) -> None:
        async with shard as same:
            assert_type(same, aiolock.Shard)
        assert_type("key" in shard, bool)

    shards = client.shards("a", 8, group=me)
    assert_type(shards.shard_of("key"), int)
    async for shard in shards:
        await serve(shard)
    await shards.run(serve, grace=5)


async def failing(lock: aiolock.Lock) -> None:
    """Errors are caught as what they are, or as the builtin."""
    try:
        async with lock:
            pass
    except aiolock.AcquireTimeout as error:
        timeout: TimeoutError = error
        raise timeout from None
    except aiolock.StoreError as error:
        connection: ConnectionError = error
        raise connection from None
    except (aiolock.WouldDeadlock, aiolock.ClientClosed, aiolock.NotHeld) as error:
        runtime: RuntimeError = error
        raise runtime from None
    except (aiolock.QueueFull, aiolock.LeaseLost) as error:
        lock_error: aiolock.LockError = error
        raise lock_error from None


class MyStoreContract(StoreContract):
    """A store's author has one method to write."""

    def store(self) -> aiolock.Store:
        """Another link."""
        store: aiolock.Store = MemoryStore(MemoryServer())
        return store


def threads(client: aiolock.sync.LockClient) -> None:
    """The same without `await`."""
    with aiolock.sync.connect("redis://localhost", prefix="app", ttl=10) as opened:
        assert_type(opened, aiolock.sync.LockClient)
    lock = client.lock("a", ttl=1, on_lost="signal")
    assert_type(lock, aiolock.sync.Lock)
    with lock as lease:
        assert_type(lease, aiolock.sync.Lease)
        assert_type(lease.fence, int)
        assert_type(lease.state, aiolock.LeaseState)
        assert_type(lease.lost.wait(1), bool)
        assert_type(lease.release(), bool)
    assert_type(lock.acquire(), aiolock.sync.Lease)
    assert_type(lock.acquire(timeout=None), aiolock.sync.Lease)
    assert_type(lock.acquire(timeout=1), aiolock.sync.Lease)
    assert_type(lock.try_acquire(), aiolock.sync.Lease | None)
    assert_type(lock.try_acquire(timeout=1), aiolock.sync.Lease | None)
    assert_type(client.semaphore("s", 3).acquire(2), aiolock.sync.Lease)
    assert_type(client.semaphore("s", 3, share="acme", weight=2).acquire(), aiolock.sync.Lease)
    assert_type(client.rate_limit("r", 3, per=1).acquire(2), aiolock.Verdict)
    assert_type(client.semaphore("s", 3).acquire(2, timeout=1), aiolock.sync.Lease)
    assert_type(client.semaphore("s", 3).try_acquire(2), aiolock.sync.Lease | None)
    with lock.acquire() as lease, client.semaphore("s", 3) as permit:
        assert_type(lease, aiolock.sync.Lease)
        assert_type(permit, aiolock.sync.Lease)
    with client.multilock("a", "b") as both:
        assert_type(both, aiolock.sync.MultiLease)
        assert_type(both.leases["a"], aiolock.sync.Lease)
    assert_type(client.multilock("a").acquire(timeout=1), aiolock.sync.MultiLease)
    assert_type(client.multilock("a").try_acquire(timeout=1), aiolock.sync.MultiLease | None)
    with client.path_lock("a/b", mode="shared") as node:
        assert_type(node, aiolock.sync.PathLease)
        assert_type(node.fence, int)
    assert_type(client.path_lock("a").acquire(timeout=1), aiolock.sync.PathLease)
    assert_type(client.path_lock("a").try_acquire(), aiolock.sync.PathLease | None)
    with client.once("a", remember=60) as mine:
        assert_type(mine, aiolock.sync.Lease | None)
    with client.rwlock("a").read() as reading, client.periodic("p", every=60) as run:
        assert_type(reading, aiolock.sync.Lease)
        assert_type(run, aiolock.sync.Lease)
    assert_type(client.names(), list[str])
    assert_type(client.lock("a").status(), aiolock.Status)

    @client.locked("{key}")
    def decorated(key: int) -> str:
        return str(key)

    assert_type(decorated(1), str)

    @client.once("{key}", remember=60)
    def delivered(key: int) -> str:
        return str(key)

    assert_type(delivered(1), str | None)
    client.lock("a", on_lost="kill")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # no such
    client.lock("a", 30)  # type: ignore[call-arg, arg-type, unused-ignore]  # pyright: ignore[reportCallIssue]  # by name only


def threads_together(client: aiolock.sync.LockClient) -> None:
    """Primitives with which threads see each other."""
    with client.election("e").campaign("me") as term:
        assert_type(term, aiolock.sync.Term)
    for leader in client.election("e").observe():
        assert_type(leader, aiolock.Leader)
    with client.group("g", data={}) as me:
        assert_type(me, aiolock.sync.Membership)
        assert_type(me.members(), tuple[aiolock.Member, ...])
    assert_type(client.shards("g", 4).count, int)
