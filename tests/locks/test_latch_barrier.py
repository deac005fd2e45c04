"""Latches and barriers: those who wait for others."""

from __future__ import annotations

import asyncio

import pytest

import aiolock
from aiolock import AcquireTimeout, ClientClosed, LimitMismatch, QueueFull, StoreError
from aiolock.protocol import Deliver, Event, GrantPushed, Reconnected
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.proof.ledger import Ledger
from tests.support.worlds import World, empty, queued, settled, virtual
from tests.support.wrapped import Wrapped


async def test_latch_wait_ends_for_all_when_counted_down_and_at_once_later(world: World) -> None:
    """All who wait go on when it was counted down often enough, and later ones at once."""
    async with world.client() as ours, world.client() as theirs:
        latch = ours.latch("l", 3)
        assert (latch.name, latch.count) == ("l", 3)
        tasks = [asyncio.create_task(client.latch("l", 3).wait()) for client in (ours, theirs) * 3]
        await queued(latch, 6)
        assert [await latch.missing(), await theirs.latch("l", 3).count_down()] == [3, 2]
        assert await latch.count_down() == 1
        assert not any(task.done() for task in tasks)
        assert await latch.count_down() == 0
        await asyncio.gather(*tasks)
        await theirs.latch("l", 3).wait(timeout=0)
        assert await latch.count_down() == 0
        assert await latch.missing() == 0
        status = await latch.status()
        assert (status.waiters, status.limit) == ((), 3)


async def test_latch_count_down_with_the_same_token_counts_once(world: World) -> None:
    """A part that reports twice is one part, whichever process says so."""
    async with world.client() as ours, world.client() as theirs:
        assert await ours.latch("l", 2).count_down("part é") == 1
        assert await theirs.latch("l", 2).count_down("part é") == 1
        assert await theirs.latch("l", 2).count_down("part 2") == 0


async def test_event_wait_ends_for_all_when_set_and_at_once_later(world: World) -> None:
    """All that wait go on when it is set, in any process, and so does whoever comes later."""
    async with world.client() as ours, world.client() as theirs:
        event = ours.event("e")
        assert (event.name, repr(event)) == ("e", "<Event 'e'>")
        tasks = [asyncio.create_task(client.event("e").wait()) for client in (ours, theirs) * 3]
        await queued(event, 6)
        assert not await event.is_set()
        with pytest.raises(AcquireTimeout, match="'e' was not set"):
            await theirs.event("e", timeout=0.5).wait()
        await theirs.event("e").set()
        await asyncio.gather(*tasks)
        assert await event.is_set()
        await event.set()
        await event.wait(timeout=0)
        await queued(event, 0)


@virtual
async def test_event_set_again_is_remembered_from_its_last_set() -> None:
    """After so many seconds since it was last set, and not before."""
    async with aiolock.connect(MemoryServer()) as client:
        event = client.event("e", remember=100)
        await event.set()
        await asyncio.sleep(90)
        await event.set()
        await asyncio.sleep(90)
        assert await event.is_set()
        await asyncio.sleep(11)
        assert not await event.is_set()


@virtual
async def test_latch_after_its_last_count_is_forgotten_in_its_remember_time() -> None:
    """Its ttl after the last count, open or not."""
    async with aiolock.connect(MemoryServer()) as client:
        latch = client.latch("l", 2, remember=60)
        await latch.count_down()
        await asyncio.sleep(59)
        await latch.count_down()
        await asyncio.sleep(59)
        await latch.wait()
        await asyncio.sleep(160)  # passing it keeps it for a minute and a ttl
        assert await latch.missing() == 2
        with pytest.raises(AcquireTimeout, match="'l' did not open"):
            await latch.wait(timeout=5)


async def test_latch_of_another_count_raises_limit_mismatch(world: World) -> None:
    """Whoever declares another count is told."""
    async with world.client() as client:
        await client.latch("l", 2).count_down()
        with pytest.raises(LimitMismatch, match="count of 2, but 3"):
            await client.latch("l", 3).count_down()
        with pytest.raises(LimitMismatch, match="in use with 2, but 3"):
            await client.latch("l", 3).wait()
        assert await client.latch("l", 2).count_down() == 0


@virtual
async def test_latch_count_down_without_an_answer_raises_store_error_once() -> None:
    """`StoreError`: it may have been counted; with a token it can be said again."""
    faulty = FaultyStore(MemoryStore(MemoryServer()))
    async with aiolock.connect(faulty) as client:
        faulty.lose("post")
        with pytest.raises(StoreError):
            await client.latch("l", 2).count_down("a")
        assert await client.latch("l", 2).count_down("a") == 1


@virtual
async def test_latch_wait_that_hears_late_of_the_opening_ends() -> None:
    """Whoever hears late that it is open goes on: that it opened is a fact, not a lease."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty, ttl=5) as ours, aiolock.connect(server) as theirs:
        task = asyncio.create_task(ours.latch("l", 1).wait())
        await queued(theirs.latch("l", 1), 1)
        faulty.hold("push", "acquire")
        await theirs.latch("l", 1).count_down()
        await asyncio.sleep(8)
        assert not task.done()
        faulty.resume()
        await asyncio.wait_for(task, 1)


async def test_barrier_wait_lets_all_parties_through_together_each_round(world: World) -> None:
    """So many go on together, again and again, and nobody before."""
    rounds: list[int] = []
    async with world.client() as ours, world.client() as theirs:
        barrier = ours.barrier("b", 4)
        assert (barrier.name, barrier.parties) == ("b", 4)

        async def party(client: aiolock.LockClient, number: int) -> None:
            for turn in range(5):
                await asyncio.sleep(0.001 * number)
                rounds.append(turn)
                await client.barrier("b", 4).wait()

        async with asyncio.TaskGroup() as group:
            for number in range(4):
                group.create_task(party((ours, theirs)[number % 2], number))
        assert rounds == [turn for turn in range(5) for _ in range(4)]
        await empty(barrier)


@virtual
async def test_barrier_with_more_waiters_than_parties_lets_the_first_through() -> None:
    """Of more than there are parties, the first go on, and the others wait for more."""
    through: list[int] = []
    async with aiolock.connect(MemoryServer()) as client:
        barrier = client.barrier("b", 3)

        async def party(number: int) -> None:
            await barrier.wait()
            through.append(number)

        tasks: list[asyncio.Task[None]] = []
        for number in range(7):
            tasks.append(asyncio.create_task(party(number)))
            await settled()
        assert through == [0, 1, 2, 3, 4, 5]
        assert len((await barrier.status()).waiters) == 1
        tasks[6].cancel()
        await asyncio.wait(tasks)
        await queued(barrier, 0)


@virtual
async def test_barrier_does_not_count_waiters_that_left() -> None:
    """Whoever timed out, was cancelled, or whose process is gone does not count."""
    server = MemoryServer()
    async with (
        aiolock.connect(server) as ours,
        aiolock.connect(server) as theirs,
        aiolock.connect(server) as gone,
    ):
        dead = asyncio.create_task(gone.barrier("b", 3).wait())
        cancelled = asyncio.create_task(theirs.barrier("b", 3).wait())
        await queued(ours.barrier("b", 3), 2)
        server.leave(gone.id)  # as if it were killed
        cancelled.cancel()
        with pytest.raises(AcquireTimeout, match="the barrier 'b' was not complete in 1 s"):
            await theirs.barrier("b", 3).wait(timeout=1)
        here = [asyncio.create_task(theirs.barrier("b", 3).wait()) for _ in range(2)]
        await queued(ours.barrier("b", 3), 2)  # without the dead one, who was looked for
        async with asyncio.timeout(1):
            await ours.barrier("b", 3).wait()
            await asyncio.gather(*here)
        assert not dead.done()
        dead.cancel()
        await asyncio.wait([dead])


@virtual
@pytest.mark.parametrize("how", ["held back", "lost"])
async def test_barrier_wait_that_hears_late_of_its_group_ends(how: str) -> None:
    """A party that hears late that its group went on goes on, and is not one of the next."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        late = asyncio.create_task(ours.barrier("b", 2).wait())
        await queued(theirs.barrier("b", 2), 1)
        if how == "lost":
            faulty.lose("push")
        else:
            faulty.hold("push")
        await theirs.barrier("b", 2).wait()
        await asyncio.sleep(20 if how == "lost" else 40)
        assert not late.done()
        if how == "lost":
            ours._engine.waiters.deliver(Reconnected())
        faulty.resume()
        await asyncio.wait_for(late, 1)
        await queued(theirs.barrier("b", 2), 0)


class _Late(Wrapped):
    """A store whose grants arrive long after they were made."""

    async def open(self, client: str, deliver: Deliver) -> None:
        def late(event: Event) -> None:
            if isinstance(event, GrantPushed):
                event = event._replace(now=event.now - 3_600_000_000)
            deliver(event)

        await super().open(client, late)


@virtual
async def test_barrier_whose_grants_come_late_is_released_for_observers() -> None:
    """Each party goes on without its grant, and its request has ended: it was not lost."""
    ledger = Ledger()
    async with aiolock.connect(_Late(MemoryStore(MemoryServer())), observer=ledger) as client:
        await asyncio.gather(*(client.barrier("b", 3).wait(timeout=5) for _ in range(3)))
        await settled()
        assert (ledger.left, ledger.wrong) == ([], [])
        assert sorted(ledger._is.values()) == ["released"] * 3


@virtual
async def test_barrier_of_another_number_of_parties_raises_limit_mismatch() -> None:
    """Whoever declares another number of parties is told, while somebody is there."""
    async with aiolock.connect(MemoryServer()) as client:
        one = asyncio.create_task(client.barrier("b", 2).wait())
        await queued(client.barrier("b", 2), 1)
        with pytest.raises(LimitMismatch, match="in use with 2, but 3"):
            await client.barrier("b", 3).wait()
        await client.barrier("b", 2).wait()
        await one


@virtual
async def test_barrier_of_one_and_latch_counted_once_let_through_at_once() -> None:
    """A barrier of one stops nobody; a latch of one needs one."""
    async with aiolock.connect(MemoryServer()) as client:
        await client.barrier("b", 1).wait(timeout=0)
        await client.latch("l", 1).count_down()
        await client.latch("l", 1).wait(timeout=0)


@virtual
async def test_latch_and_barrier_wait_raise_client_closed_when_the_client_closes() -> None:
    """Whoever waits hears it."""
    client = aiolock.connect(MemoryServer())
    await client.open()
    tasks = [
        asyncio.create_task(client.barrier("b", 2).wait()),
        asyncio.create_task(client.latch("l", 2).wait()),
    ]
    await settled()
    await client.aclose()
    for task in tasks:
        with pytest.raises(ClientClosed):
            await task
    for call in (client.latch("l", 2).count_down, client.latch("l", 2).missing):
        with pytest.raises(ClientClosed):
            await call()


@virtual
async def test_latch_wait_beyond_max_waiters_raises_queue_full() -> None:
    """No more wait than may."""
    async with aiolock.connect(MemoryServer()) as client:
        latch = client.latch("l", 1, max_waiters=1)
        task = asyncio.create_task(latch.wait())
        await queued(latch, 1)
        with pytest.raises(QueueFull):
            await latch.wait()
        await latch.count_down()
        await task
