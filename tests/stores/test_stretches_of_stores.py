"""Nothing keeps the event loop for long with thousands of parties in any store that has I/O."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Callable
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest
import redis.asyncio

import aiolock
import aiolock.sync
from aiolock.protocol import FEW, ReadPosted, ReadStatus
from aiolock.stores.memory import MemoryServer
from tests.support.crowds import (
    MANY,
    all_wait,
    check_readers,
    each,
    expire,
    kept,
    look,
)
from tests.support.servers import RedisServer
from tests.support.stretches import check_short
from tests.support.worlds import asking

pytestmark = [pytest.mark.alone, pytest.mark.one_loop]

_FEWER: Final = 4000
"""Where each takes the store longer, the more there are already: ten thousand take it minutes."""
_HOLDERS: Final = 2000
"""As above, of a semaphore: to take a permit, a store reads or writes all holders."""


STORES: Final = ["sqlite", "postgres", "mariadb", "quorum", "cluster"]


@pytest.fixture(params=STORES)
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where a client connects to."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/locks.db"
        case "quorum":
            return [MemoryServer() for _ in range(3)]
        case "cluster":
            return request.getfixturevalue("cluster").url
        case _:
            return request.getfixturevalue(f"{request.param}_server").url("app")


@pytest.fixture
def connect(target: Any, prefix: str) -> Callable[[], aiolock.LockClient]:
    """Makes clients, without a log."""
    return lambda: aiolock.connect(target, prefix=prefix, ttl=60)


@pytest.fixture
async def client(connect: Callable[[], aiolock.LockClient]) -> AsyncIterator[aiolock.LockClient]:
    """The client that has them all."""
    async with connect() as client:
        yield client
    kept.clear()


@pytest.fixture
async def other(connect: Callable[[], aiolock.LockClient]) -> AsyncIterator[aiolock.LockClient]:
    """One that has none."""
    async with connect() as client:
        yield client


async def test_snapshot_and_names_of_many_leases_do_not_block_the_loop(
    client: aiolock.LockClient, other: aiolock.LockClient, target: Any
) -> None:
    """Ten thousand names, each of them held; some thousands in a quorum."""
    many = _FEWER if isinstance(target, list) else MANY
    await each(lambda number: client.lock(f"name:{number}").acquire(), many)
    await check_short(other.snapshot)
    await check_short(other.names)
    found = await other.snapshot()
    assert [status.name for status in found] == sorted(f"name:{n}" for n in range(many))


async def _look_after_all(client: aiolock.LockClient) -> None:
    """What a client of a quorum does now and then, by a timer: it looks at all who wait."""
    store: Any = client._engine.handoff._store
    acquisitions = store._session.acquisitions
    (queue,) = acquisitions.table.queues.values()
    assert len(queue.acquisitions) == MANY
    queue.look_by(-1.0)
    async with asyncio.timeout(60):
        while queue._look_at < 0 or not acquisitions._passes.idle:  # noqa: ASYNC110  # no Event
            await asyncio.sleep(0)


async def test_status_of_a_lock_with_many_waiters_does_not_block_the_loop(
    client: aiolock.LockClient, other: aiolock.LockClient, target: Any
) -> None:
    """One lock, for which ten thousand tasks of another client wait.

    Some thousands, where the store writes all that wait for a name at each step of it.
    """
    in_quorum = isinstance(target, list)
    many = MANY if in_quorum or target.startswith(("redis", "postgres")) else _FEWER
    lock = other.lock("crowded")
    holds = await lock.acquire()
    tasks = await all_wait(client.lock("crowded"), many)
    await check_short(lock.status)
    await check_short(other.snapshot)
    if in_quorum:
        await check_short(partial(_look_after_all, client))
    status = await lock.status()
    assert [waiter.place for waiter in status.waiters] == list(range(1, many + 1))
    assert len({waiter.seq for waiter in status.waiters}) == many
    await client.aclose()
    await asyncio.gather(*tasks)
    await holds.release()


async def test_status_of_a_semaphore_with_many_holders_does_not_block_the_loop(
    client: aiolock.LockClient, other: aiolock.LockClient, target: Any
) -> None:
    """A semaphore with thousands of permits, all of them taken; a read lock in a quorum."""
    lock: aiolock.RWLock | aiolock.Semaphore
    if isinstance(target, list):  # which has no semaphores
        lock, kind = other.rwlock("api"), "lock"
        await each(lambda _: asking(client.rwlock("api").read()), _HOLDERS)
    else:
        lock, kind = other.semaphore("api", _HOLDERS), "semaphore"
        await each(lambda _: client.semaphore("api", _HOLDERS).acquire(), _HOLDERS)
    await check_short(lock.status)
    await check_short(other.snapshot)
    few = await other._engine.handoff.submit(ReadStatus(f"{kind}:api", waiters=False))
    assert (len(few.holders), few.more_holders) == (FEW, _HOLDERS - FEW)
    status = await lock.status()
    assert len({holder.seq for holder in status.holders}) == _HOLDERS


async def test_release_of_a_writer_before_many_readers_does_not_block_the_loop(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Some thousands of tasks wait for a writer, and each leaves as soon as it has entered."""
    await check_readers(client, other, _HOLDERS)


async def test_wire_with_many_replies_and_pushes_at_once_does_not_block_the_loop(
    redis_server: RedisServer, prefix: str
) -> None:
    """Ten thousand answers and as many pushes, read from the sockets in one piece."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        store: Any = client._engine.handoff._store
        told = list[str]()
        store.session._pushes._deliver = lambda event: told.append(event.name)
        wires = (store.session.pipe.outbox.wire, store.session.subscription._link.wire)

        async def pause() -> None:
            told.clear()
            for wire in wires:
                wire._transport.pause_reading()
            async with redis.asyncio.Redis.from_url(redis_server.url) as publisher:
                channel = store._names.channels + client.id
                async with publisher.pipeline(transaction=False) as pipeline:
                    for number in range(MANY):
                        key = store._names.keys(f"name:{number}")[0]
                        _ = pipeline.publish(channel, f"d {key}")
                    assert await pipeline.execute() == [1] * MANY
            answers[:] = []
            for number in range(MANY):
                answers.append(store.submit(ReadPosted(f"name:{number}")))
                if number % 100 == 0:
                    await asyncio.sleep(0)
            await asyncio.sleep(0.1)

        async def read() -> None:
            for wire in wires:
                wire._transport.resume_reading()
            async with asyncio.timeout(60):
                while not answers[-1].done() or len(told) < MANY:  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0)

        answers = list[Any]()
        await check_short(read, pause)
        assert told == [f"name:{number}" for number in range(MANY)]
        assert all(answer.result().count == 0 for answer in answers)


async def test_status_of_many_leases_with_one_end_does_not_block_the_loop(
    redis_server: RedisServer, prefix: str
) -> None:
    """Readers that were let in at once, for example: the server has one score for all of them."""
    async with aiolock.connect(redis_server.url, prefix=prefix, ttl=600) as client:
        await each(lambda _: client.semaphore("api", MANY).acquire(), MANY)
        store: Any = client._engine.handoff._store
        key = store._names.keys("semaphore:api")[0]
        async with redis.asyncio.Redis.from_url(redis_server.url) as server:
            found: Any = await server.zrange(key, 0, -1, withscores=True)
            ends = {grant: end for grant, end in found if grant.count(b":") == 3}
            assert len(ends) == MANY
            await server.zadd(key, dict.fromkeys(ends, max(ends.values())))
        semaphore = client.semaphore("api", MANY)
        await check_short(semaphore.status)
        status = await semaphore.status()
        assert len({holder.seq for holder in status.holders}) == MANY
    kept.clear()


async def test_status_of_a_redis_quorum_with_many_waiters_does_not_block_the_loop(
    prefix: str,
) -> None:
    """Some thousands of waiters, whom each server names in parts."""
    with contextlib.ExitStack() as stack:
        urls = [stack.enter_context(RedisServer()).url for _ in range(3)]
        async with aiolock.connect(urls, prefix=prefix, longest_ttl=3, ttl=3) as client:
            lock = client.lock("crowded")
            async with lock:  # once the servers, which have just been started, vote
                tasks = await all_wait(lock, _FEWER)
                await check_short(lambda: client._engine.handoff.submit(ReadStatus("lock:crowded")))
                status = await lock.status()
                assert [each.place for each in status.waiters] == list(range(1, _FEWER + 1))
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)


class _Counts(aiolock.Observer):
    """Counts what it is told."""

    def __init__(self) -> None:
        self.told = Counter[str]()

    def acquired(self, *_: Any, **__: Any) -> None:
        self.told["acquired"] += 1

    def released(self, *_: Any, **__: Any) -> None:
        self.told["released"] += 1

    def lost(self, *_: Any, **__: Any) -> None:
        self.told["lost"] += 1


async def test_loss_and_close_of_many_observed_leases_do_not_block_the_loop() -> None:
    """Ten thousand leases, with an observer: lost at once, and released on closing."""
    observer = _Counts()
    client = aiolock.connect(MemoryServer(), ttl=600, observer=observer)
    taken = list[Any]()

    async def take() -> None:
        if client._engine.state.name == "CLOSED":
            await client.open()
        taken.append(await each(lambda n: client.lock(f"{len(taken)}:{n}", renew=False).acquire()))

    async def all_are_lost() -> None:
        async with asyncio.timeout(60):
            while observer.told["lost"] < observer.told["acquired"]:  # noqa: ASYNC110  # no Event
                await asyncio.sleep(0.05)

    async def all_end() -> None:
        await take()
        expire(client)

    await client.open()
    await check_short(all_are_lost, all_end)
    await check_short(client.aclose, take)
    assert observer.told["lost"] % MANY == observer.told["released"] % MANY == 0
    assert observer.told["acquired"] == observer.told["released"] + observer.told["lost"]
    assert observer.told["lost"] >= MANY <= observer.told["released"]
    kept.clear()


def test_sync_client_with_many_leases_does_not_block_its_loop() -> None:
    """Ten thousand leases, a third of them of a thread, in the loop that serves it."""
    with aiolock.sync.connect(MemoryServer(), ttl=600) as client:
        portal, ours = client._portal, client._client
        assert portal is not None
        assert ours is not None
        leases = [client.lock(f"name:{number}").acquire() for number in range(MANY // 3)]

        async def take_others() -> None:
            await each(lambda number: ours.lock(f"other:{number}").acquire(), MANY - len(leases))

        portal.start(take_others, "it").result()

        def check(operation: Callable[[], object]) -> None:
            portal.start(lambda: check_short(lambda: asyncio.to_thread(operation)), "it").result()

        portal.start(lambda: check_short(partial(look, ours)), "it").result()
        check(client.snapshot)
        check(client.names)
        check(client.lock("name:1").status)
        check(lambda: [lease.release() for lease in leases])
