"""Nothing keeps the event loop for long, however many locks, waiters and leases there are."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any

import pytest

import aiolock
from aiolock import AcquireTimeout
from aiolock.page._limits import Limits
from aiolock.page._poller import Poller
from aiolock.page._view import Wanted
from aiolock.protocol import GrantLost, Reconnected, WaiterId
from aiolock.stores.memory import MemoryServer
from tests.support import loops, stretches
from tests.support.crowds import (
    MANY,
    all_wait,
    are_renewed,
    begun,
    check_readers,
    each,
    expire,
    kept,
    look,
    make_due,
    waits,
)
from tests.support.servers import RedisServer
from tests.support.stretches import check_short, measured

pytestmark = [pytest.mark.alone, pytest.mark.one_loop]


@pytest.fixture(params=["memory", "redis"])
def connect(request: pytest.FixtureRequest, prefix: str) -> Callable[[], aiolock.LockClient]:
    """Makes clients of one store, without a log: ten thousand lines in it take their time."""
    target: Any = MemoryServer()
    if request.param == "redis":
        server: RedisServer = request.getfixturevalue("redis_server")
        target = server.url
    return lambda: aiolock.connect(target, prefix=prefix, ttl=600)


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


async def test_loop_with_ten_thousand_waiters_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """One lock, for which ten thousand tasks of another client wait."""
    lock = other.lock("crowded")
    holds = await lock.acquire()
    tasks = await all_wait(client.lock("crowded"))
    waiters = client._engine.waiters

    async def times_out() -> None:
        with pytest.raises(AcquireTimeout, match="has held it since"):
            async with lock.acquire(timeout=0.5):
                pass

    async def asks_again(why: Callable[[], None]) -> None:
        why()
        await waiters._to_ask.done()
        await client.lock("crowded").status()  # behind all of the questions

    def stuck() -> None:
        waiters.deliver(GrantLost("lock:crowded", WaiterId("nobody", 1), 1, "expired"))

    await check_short(partial(look, client))
    await check_short(lock.status)
    await check_short(other.snapshot)
    await check_short(other.deadlocks)
    await check_short(lambda: other.status("crowded"))
    task = asyncio.create_task(times_out())  # as another: this one holds it
    await task
    await check_short(lambda: asyncio.create_task(times_out()))
    await check_short(lambda: asks_again(lambda: waiters.deliver(Reconnected())))
    await check_short(lambda: asks_again(stuck))
    status = await lock.status()
    assert [waiter.place for waiter in status.waiters] == list(range(1, MANY + 1))
    assert len({waiter.seq for waiter in status.waiters}) == MANY
    with measured() as found:
        await client.aclose()
    assert found.longest <= stretches.LONGEST, found
    await asyncio.gather(*tasks)
    await holds.release()


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
async def test_loop_with_ten_thousand_waiters_that_hold_locks_stays_responsive(
    client: aiolock.LockClient,
) -> None:
    """What ten thousand such tasks wait for is held by one that begins to wait as well."""
    hot, far = client.lock("hot"), client.lock("far")

    async def holds_one(number: int) -> None:
        async with client.lock(f"own:{number}"):
            await waits(hot)

    async def holds_far() -> None:
        async with far:
            await let_go.wait()

    async def begins_to_wait() -> None:
        holder = asyncio.create_task(holds_far())
        asyncio.get_running_loop().call_later(0.2, let_go.set)
        await asyncio.sleep(0.1)
        async with far:
            pass
        await holder
        let_go.clear()

    let_go = asyncio.Event()
    async with hot:
        tasks = await begun(holds_one)
        async with asyncio.timeout(60):
            while len(client._engine.waiters.index()) < MANY:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0.05)
        await check_short(begins_to_wait)
        await client.aclose()
    await asyncio.gather(*tasks)


@pytest.mark.parametrize("own", [1, MANY])
@pytest.mark.parametrize("connect", ["memory"], indirect=True)
async def test_loop_while_a_cycle_is_sought_among_many_readers_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient, own: int
) -> None:
    """Ten thousand read a lock, for which a task that holds something wanted begins to wait.

    Each of them waits for another lock: all for the same, or each for one of its own.
    """
    far, book = client.lock("far"), client.rwlock("book")

    async def reads(number: int) -> None:
        async with book.read():
            await waits(client.lock(f"own:{number % own}"))

    async def waits_for_far() -> None:
        async with client.lock("other"):
            await waits(far)

    async def writes() -> None:
        async with far:
            async with asyncio.timeout(60):
                while len(waiters.index()) <= MANY:  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0)
            async with book.write():
                raise AssertionError

    async def begins_to_wait() -> None:
        writing = asyncio.create_task(writes())
        await asyncio.sleep(0.01)
        waiting = asyncio.create_task(waits_for_far())
        async with asyncio.timeout(60):
            while len(waiters.index()) < MANY + 2:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0)
        await asyncio.sleep(0.5)
        for task in (writing, waiting):
            task.cancel()
        await asyncio.wait([writing, waiting])

    waiters = client._engine.waiters
    await each(lambda number: other.lock(f"own:{number}").acquire(), own)
    tasks = await begun(reads)
    async with asyncio.timeout(60):
        while len(waiters.index()) < MANY:  # noqa: ASYNC110  # it sets no Event
            await asyncio.sleep(0.05)
    await check_short(begins_to_wait)
    await client.aclose()
    await asyncio.wait(tasks)


async def test_loop_with_ten_thousand_leases_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Ten thousand names, each of them held."""
    leases = list[aiolock.Lease]()

    async def take() -> None:
        if client._engine.state.name == "CLOSED":  # the first to close has what there is
            await client.open()
        if not client._engine.watchdog.holds:
            leases[:] = await each(lambda number: client.lock(f"name:{number}").acquire())

    async def all_due() -> None:
        make_due(client, 100)

    async def given_slots() -> None:
        async with asyncio.timeout(60):
            while client._engine.watchdog.wheel.young:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0.01)

    await take()
    await check_short(given_slots)
    await check_short(partial(look, client))
    await check_short(partial(are_renewed, client), all_due)
    assert {lease.state for lease in leases} == {aiolock.LeaseState.HELD}
    found = await other.snapshot()
    assert [status.name for status in found] == sorted(f"name:{n}" for n in range(MANY))
    await check_short(other.snapshot)
    await check_short(other.names)
    await check_short(other.deadlocks)
    await check_short(client.aclose, take)


async def test_loop_with_a_multilock_of_a_thousand_names_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """A thousand names as one lock: each of its operations, also where one name is not free."""
    names = [f"name:{number:03}" for number in range(1000)]
    many = client.multilock(*names)
    last = other.lock("name:999")
    leases = list[aiolock.MultiLease]()

    async def make() -> None:
        client.multilock(*names)

    async def take() -> None:
        leases.append(await many.acquire())

    async def release() -> None:
        assert await leases.pop().release()

    async def enter() -> None:
        async with many:
            await asyncio.sleep(0)

    async def takes_none() -> None:
        assert await many.try_acquire() is None

    async def enters_none() -> None:
        with pytest.raises(AcquireTimeout):
            await tries.acquire()
        with pytest.raises(AcquireTimeout):
            async with tries:
                pass

    async def nothing() -> None:
        while leases:
            await leases.pop().release()

    tries = client.multilock(*names, timeout=0)
    await check_short(make)
    await check_short(take, nothing)
    await check_short(leases[0].verify)
    await check_short(lambda: leases[0].extend(500))
    assert 490 < leases[0].remaining() <= 500
    await nothing()
    await check_short(release, take)
    await check_short(enter)
    async with last:
        await check_short(takes_none)
        await check_short(enters_none)
    assert not await other.names()


async def test_loop_while_ten_thousand_leases_expire_stays_responsive(
    client: aiolock.LockClient,
) -> None:
    """All at once, by the client's clock: the store may have been away."""

    async def ended() -> None:
        async with asyncio.timeout(60):
            while client._engine.watchdog.holds:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0.01)

    async def take() -> None:
        leases = await each(
            lambda number: client.lock(f"{len(taken)}:{number}", renew=False).acquire()
        )
        taken.append(leases)
        expire(client)

    taken = list[Any]()
    await check_short(ended, take)
    assert all(lease.state is aiolock.LeaseState.LOST for lease in taken[-1])


@pytest.mark.parametrize("holders", [1000, MANY])
async def test_loop_with_a_semaphore_of_many_holders_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient, holders: int
) -> None:
    """A semaphore with ten thousand permits, all of them taken."""
    await each(lambda _: client.semaphore("api", holders).acquire(), holders)
    semaphore = other.semaphore("api", holders)

    async def times_out() -> None:
        more = f"; {holders - 1} more hold it, too"
        with pytest.raises(AcquireTimeout, match=more) as caught:
            async with semaphore.acquire(timeout=0.5):
                pass
        assert 0 < len(caught.value.holders) <= 16
        assert len(caught.value.holders) + caught.value.more_holders == holders

    await check_short(times_out)
    await check_short(semaphore.status)
    await check_short(other.snapshot)
    status = await semaphore.status()
    assert len({holder.seq for holder in status.holders}) == holders
    assert [holder.fence for holder in status.holders] == sorted(
        holder.fence for holder in status.holders
    )


async def test_loop_while_ten_thousand_readers_enter_at_once_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Ten thousand of them."""
    await check_readers(client, other)


async def test_loop_while_ten_thousand_readers_enter_and_hold_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Ten thousand tasks wait for a writer, and each of them reads until all do."""
    await check_readers(client, other, hold=True)


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
async def test_loop_with_a_page_of_ten_thousand_locks_stays_responsive(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """The page of ten thousand locks: each look, and each view of it."""
    await each(lambda number: client.lock(f"order:alpha:{number}").acquire())
    poller = Poller(other, Limits(share=0.1))
    await poller._look()
    await check_short(poller._look)
    for text in ("", "ALPHA", "*a*7*", "*a*b*c*d*e*f*g*h*"):
        for sort in ("wait", "held", "queue", "name"):
            wanted = Wanted(text, "", sort)
            await check_short(partial(poller.view, wanted))
            poller.look.rendered.clear()


@pytest.mark.parametrize("connect", ["memory"], indirect=True)
async def test_page_views_in_a_row_pause_for_most_of_the_time(
    client: aiolock.LockClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever searches for ever more texts waits: others in the loop have most of its time."""
    await each(lambda number: client.lock(f"order:alpha:{number}").acquire(), 2000)
    poller = Poller(client, Limits())
    await poller._look()
    loop = asyncio.get_running_loop()
    worked, slept = list[float](), list[float]()
    sleep = asyncio.sleep

    async def pauses(seconds: float) -> None:
        if seconds:
            slept.append(seconds)
        else:
            await sleep(0)

    monkeypatch.setattr("aiolock.page._renderer.asyncio.sleep", pauses)
    for number in range(20):
        began = loop.time()
        await poller.view(Wanted(f"{number}", "", "name"))
        worked.append(loop.time() - began)
    assert len(slept) == 19
    # A pause is five times the processor time of making a view, of which this is a little more.
    assert sum(slept) > 4 * sum(worked[:-1])
    assert len(poller.look.rendered) == 20


# The instrument


def _busy(seconds: float) -> None:
    end = time.thread_time() + seconds
    while time.thread_time() < end:
        pass


async def test_check_short_of_a_long_callback_fails() -> None:
    """And says which one it was."""

    async def works() -> None:
        asyncio.get_running_loop().call_soon(_busy, 0.03)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    which = "" if loops.chosen() == "uvloop" else r", and .* ms by <Handle _busy\("
    with pytest.raises(AssertionError, match=f"the loop was kept for .* ms.*{which}"):
        await check_short(works)


async def test_check_short_of_many_callbacks_in_one_iteration_fails() -> None:
    """No other task has a turn between them."""

    async def works() -> None:
        loop = asyncio.get_running_loop()
        for _ in range(30):
            loop.call_soon(_busy, 0.001)
        await asyncio.sleep(0)
        await asyncio.sleep(0)

    with pytest.raises(AssertionError, match=r"in 3[0-9] callbacks"):
        await check_short(works)


async def test_check_short_of_work_done_in_parts_passes() -> None:
    """However long it takes, and however long nothing is done at all."""

    async def works() -> None:
        for _ in range(30):
            _busy(0.001)
            await asyncio.sleep(0)
        await asyncio.sleep(0.05)

    await check_short(works)
