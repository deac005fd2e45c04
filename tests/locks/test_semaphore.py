"""A number of permits, each held by a lease."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiolock
from aiolock import AcquireTimeout, LeaseLost, LimitMismatch, QueueFull, StoreError
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import World, queued, settled, virtual


async def take(
    semaphore: aiolock.Semaphore, permits: int = 1, timeout: float | None = None
) -> aiolock.Lease:
    """So many permits, by hand."""
    return await semaphore.acquire(permits, timeout=timeout)


async def test_semaphore_under_contention_gives_no_more_permits_than_there_are(
    world: World,
) -> None:
    """However many want permits, in however many processes, no more are out than there are."""
    out = most = entered = 0
    async with world.client() as ours, world.client() as theirs:

        async def use(semaphore: aiolock.Semaphore, permits: int) -> None:
            nonlocal out, most, entered
            async with semaphore.acquire(permits):
                out += permits
                most = max(most, out)
                entered += 1
                await asyncio.sleep(0.002)
                out -= permits

        async with asyncio.TaskGroup() as group:
            for number in range(40):
                semaphore = (ours, theirs)[number % 2].semaphore("s", 4)
                group.create_task(use(semaphore, 1 + number % 3))
        assert entered == 40
        assert 1 < most <= 4
        status = await ours.semaphore("s", 4).status()
        assert (status.holders, status.waiters, status.limit) == ((), (), 4)


async def test_semaphore_entered_takes_one_permit_and_status_counts_them(world: World) -> None:
    """`async with` takes one, and the semaphore says who has how many."""
    async with world.client() as client:
        semaphore = client.semaphore("s", 3)
        assert (semaphore.name, semaphore.limit) == ("s", 3)
        async with semaphore as lease, semaphore.acquire(2) as other:
            assert other.fence > lease.fence
            status = await semaphore.status()
            assert [holder.permits for holder in status.holders] == [1, 2]
            assert await semaphore.try_acquire() is None
            with pytest.raises(AcquireTimeout):
                async with semaphore.acquire(timeout=0.5):
                    raise AssertionError


@virtual
async def test_semaphore_waiter_for_many_permits_is_not_overtaken() -> None:
    """One that wants many is not overtaken by those that want few."""
    server, order = MemoryServer(), list[str]()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        first = await take(ours.semaphore("s", 3), 2)

        async def use(semaphore: aiolock.Semaphore, permits: int, who: str) -> None:
            async with semaphore.acquire(permits):
                order.append(who)
                await asyncio.sleep(1)

        wanted = [(3, "all"), (1, "a"), (1, "b"), (2, "two"), (1, "c")]
        tasks: list[asyncio.Task[None]] = []
        for number, (permits, who) in enumerate(wanted):
            semaphore = (ours, theirs)[number % 2].semaphore("s", 3)
            tasks.append(asyncio.create_task(use(semaphore, permits, who)))
            await queued(semaphore, number + 1)
        await first.release()
        await asyncio.gather(*tasks)
        assert order == ["all", "a", "b", "two", "c"]
        assert not server.names()


@virtual
async def test_semaphore_waiter_that_gives_up_lets_those_behind_enter() -> None:
    """When one that wants many gives up, those behind it that fit enter at once."""
    loop = asyncio.get_running_loop()
    async with aiolock.connect(MemoryServer()) as client:
        semaphore = client.semaphore("s", 3)
        async with semaphore.acquire(2):
            many = asyncio.create_task(take(semaphore, 3))
            await queued(semaphore, 1)
            single = asyncio.create_task(take(semaphore, 1))
            await queued(semaphore, 2)
            start = loop.time()
            many.cancel()
            lease = await single
            assert loop.time() == start
            await lease.release()


@virtual
async def test_resize_changes_the_number_of_permits_at_once() -> None:
    """Another number of permits counts at once, for everybody."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        semaphore = ours.semaphore("s", 2)
        leases = [await take(semaphore) for _ in range(2)]
        asked = [asyncio.create_task(take(theirs.semaphore("s", 2))) for _ in range(3)]
        await queued(semaphore, 3)
        await semaphore.resize(4)
        await settled()
        assert [task.done() for task in asked] == [True, True, False]
        await theirs.semaphore("s", 4).resize(1)
        for lease in (*leases, await asked[0]):
            assert lease.state == "held"
            await lease.release()
        await settled()
        assert not asked[2].done()
        await (await asked[1]).release()
        await (await asked[2]).release()
        await semaphore.resize(0)
        assert await semaphore.try_acquire(timeout=100) is None
        assert (await semaphore.status()).limit == 0


@virtual
async def test_resize_of_an_unused_semaphore_is_remembered_for_a_month() -> None:
    """For a month, also when nobody uses it; a limit that was only declared, for a minute."""
    async with aiolock.connect(MemoryServer()) as client:
        await (await take(client.semaphore("s", 2))).release()
        with pytest.raises(LimitMismatch):
            await client.semaphore("s", 3).acquire()
        await asyncio.sleep(120)
        await (await take(client.semaphore("s", 3))).release()
        await client.semaphore("s", 3).resize(5)
        await asyncio.sleep(29 * 86400)
        for declared in (3, 5):
            async with client.semaphore("s", declared):
                assert (await client.semaphore("s", 3).status()).limit == 5
        await asyncio.sleep(2 * 86400)
        async with client.semaphore("s", 4) as lease:
            assert lease.state == "held"


async def test_semaphore_of_another_limit_raises_limit_mismatch(world: World) -> None:
    """Whoever declares another limit is told which one is in use, and what to do."""
    async with world.client() as ours, world.client() as theirs:
        async with ours.semaphore("s", 2):
            for acquisition in (
                theirs.semaphore("s", 3).acquire(),
                theirs.semaphore("s", 3).try_acquire(),
            ):
                with pytest.raises(
                    LimitMismatch, match=r"the semaphore 's' is in use with 2, but 3.*resize\(\)"
                ):
                    await acquisition
            with pytest.raises(ValueError, match="in use with 2"):
                async with theirs.semaphore("s", 3):
                    raise AssertionError
            await theirs.semaphore("s", 3).resize(3)
            async with theirs.semaphore("s", 3), ours.semaphore("s", 2):
                pass
        async with ours.semaphore("another", 7):
            pass


async def test_resize_allows_declaring_the_new_limit_and_the_one_before(world: World) -> None:
    """After a resize the new one, and that of whoever resized, or the one before."""
    async with world.client() as client:

        async def declared() -> list[int]:
            right: list[int] = []
            for limit in range(2, 10):
                try:
                    lease = await client.semaphore("s", limit).acquire()
                except LimitMismatch:
                    continue
                assert lease is not None
                await lease.release()
                right.append(limit)
            return right

        await client.semaphore("s", 3).resize(5)
        assert await declared() == [3, 5]
        await client.semaphore("s", 5).resize(7)
        assert await declared() == [5, 7]
        for _ in range(2):  # as after a lost reply
            await client.semaphore("s", 9).resize(9)
            assert await declared() == [7, 9]


@virtual
@pytest.mark.parametrize("clients", [1, 2])
async def test_permits_of_several_holders_come_back_as_each_lease_ends(clients: int) -> None:
    """Of several that are gone, each lets somebody enter when its own lease ends."""
    loop = asyncio.get_running_loop()
    server = MemoryServer()
    async with (
        aiolock.connect(server) as gone,
        aiolock.connect(server) as ours,
        aiolock.connect(server) as theirs,
    ):
        for ttl in (1, 2, 4):
            await take(gone.semaphore("s", 3, ttl=ttl, renew=False, on_lost="signal"))
        start, entered = loop.time(), list[float]()

        async def enter(client: aiolock.LockClient) -> None:
            lease = await take(client.semaphore("s", 3))
            entered.append(loop.time() - start)
            await asyncio.sleep(10)
            await lease.release()

        async with asyncio.TaskGroup() as group:
            for number in range(3):
                group.create_task(enter((ours, theirs)[number % clients]))
                await settled()
        assert entered == pytest.approx([1, 2, 4], abs=0.1)


@virtual
async def test_loss_of_permits_cancels_the_body_and_hands_them_to_the_next() -> None:
    """The body that loses its permits is cancelled, and they are given to the next."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty, ttl=5) as ours, aiolock.connect(server) as theirs:

        async def lose() -> None:
            async with ours.semaphore("s", 2).acquire(2):
                faulty.refuse("renew", 1000)
                faulty.refuse("release", 1000)
                await asyncio.sleep(1000)

        losing = asyncio.create_task(lose())
        await settled()
        start = asyncio.get_running_loop().time()
        async with theirs.semaphore("s", 2).acquire(2):
            assert asyncio.get_running_loop().time() - start < 5.1
        with pytest.raises(LeaseLost):
            await losing
        faulty.resume()


@virtual
async def test_min_hold_of_a_semaphore_bounds_the_rate_of_grants() -> None:
    """With `min_hold` a permit is not given again for a while: so many begin in that time."""
    loop = asyncio.get_running_loop()
    begun: list[float] = []
    async with aiolock.connect(MemoryServer()) as client:
        limit = client.semaphore("s", 3, min_hold=1)

        async def call() -> None:
            async with limit:
                begun.append(loop.time())

        async with asyncio.TaskGroup() as group:
            for _ in range(10):
                group.create_task(call())
    assert [round(at - begun[0]) for at in begun] == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3]
    assert all(later - earlier >= 0.999 for earlier, later in zip(begun, begun[3:], strict=False))


@virtual
async def test_semaphore_acquire_beyond_max_waiters_raises_queue_full() -> None:
    """As of a lock, no more wait than may."""
    async with aiolock.connect(MemoryServer()) as client:
        semaphore = client.semaphore("s", 1, max_waiters=1)
        async with semaphore:
            one = asyncio.create_task(take(semaphore))
            await queued(semaphore, 1)
            with pytest.raises(QueueFull):
                await semaphore.acquire()
        await (await one).release()


@virtual
async def test_resize_without_an_answer_raises_store_error() -> None:
    """`StoreError`: nobody knows."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        faulty.refuse("resize")
        with pytest.raises(StoreError):
            await client.semaphore("s", 2).resize(3)


@pytest.mark.parametrize(
    ("permits", "error", "text"),
    [
        (0, ValueError, "permits must be from 1 to"),
        (-1, ValueError, "permits must be from 1 to"),
        (3, ValueError, "there are 2 permits, so nobody can have 3"),
        (True, TypeError, "permits must be an int, not True"),
        (1.0, TypeError, "permits must be an int, not 1.0"),
        ("1", TypeError, "permits must be an int, not '1'"),
    ],
)
@virtual
async def test_semaphore_acquire_of_invalid_permits_is_refused_before_it_is_sent(
    permits: Any, error: type[Exception], text: str
) -> None:
    """What nobody can have is an error before anything is sent."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        with pytest.raises(error, match=text):
            _ = client.semaphore("s", 2).acquire(permits)
        assert not faulty.calls["acquire"]
