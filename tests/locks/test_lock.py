"""A lock: how it is acquired, waited for, entered, shared and given back."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest

import aiolock
from aiolock import AcquireTimeout, LockError, NotHeld, QueueFull, WouldDeadlock
from aiolock.protocol import Acquire, Form, Granted, WaiterId
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support import looks
from tests.support.virtual import VirtualLoop
from tests.support.worlds import World, asking, queued, settled, virtual

# --- Acquiring a free lock


async def test_lock_entered_is_held_in_the_body_and_free_after_it(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """The body of `async with lock` has the lock, and after it the lock is free."""
    lock = client.lock("order:42")
    async with lock as lease:
        assert isinstance(lease, aiolock.Lease)
        assert (lease.name, lease.state) == ("order:42", "held")
        assert lock.held()
        assert await other.lock("order:42").locked()
    assert lease.state == "released"
    assert not lock.held()
    assert not await other.lock("order:42").locked()


async def test_acquire_awaited_holds_the_lock_until_release(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """`await lock.acquire()` gives a lease that is held until it is released."""
    lock = client.lock("a")
    lease = await lock.acquire()
    assert lock.held()
    assert await other.lock("a").try_acquire(timeout=0) is None
    assert await lease.release() is True
    assert not lock.held()
    theirs = await other.lock("a").acquire(timeout=0)
    assert theirs.fence > lease.fence
    await theirs.release()


async def test_acquire_entered_holds_the_lock_in_the_body(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """`async with lock.acquire()` is the same as `async with lock`, with a timeout of its own."""
    async with client.lock("a").acquire(timeout=2) as lease:
        assert lease.state == "held"
        assert await other.lock("a").locked()
    assert lease.state == "released"
    assert not await other.lock("a").locked()


async def test_locks_of_different_names_are_independent(client: aiolock.LockClient) -> None:
    """One task holds any number of locks of different names, odd ones among them."""
    names = ["a", "a:queue", "{a}", "%7Ba%7D", "a b\nc", "ü🔒", "x" * 512]
    async with contextlib.AsyncExitStack() as stack:
        for name in names:
            lease = await stack.enter_async_context(client.lock(name, timeout=0))
            assert lease.name == name
        for name in names:
            assert await client.lock(name).locked()
    for name in names:
        assert not await client.lock(name).locked()


async def test_body_that_raises_frees_the_lock_and_keeps_the_error(
    client: aiolock.LockClient,
) -> None:
    """An error in the body comes out as it is, and the lock is free."""
    error = ValueError("the body's own")
    with pytest.raises(ValueError, match="own") as caught:
        async with client.lock("a"):
            raise error
    assert caught.value is error
    assert not hasattr(error, "__notes__")
    assert not await client.lock("a").locked()


async def test_release_within_the_body_leaves_the_exit_nothing_to_do(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """A body may give the lock back early, in either way; the exit then leaves it alone."""
    for how in ("lease", "lock"):
        lock = client.lock("a")
        async with lock as lease:
            assert await (lease if how == "lease" else lock).release() is True
            theirs = await other.lock("a").acquire(timeout=0)
        assert await theirs.verify()
        await theirs.release()


# --- Not getting it


async def test_acquire_at_timeout_raises_and_try_acquire_returns_none(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """`acquire` raises in the end, whoever set the timeout; `try_acquire` gives None."""
    async with other.lock("a"):
        assert await client.lock("a", timeout=0.5).try_acquire() is None
        # Both at once, for the time must be long enough for a busy store to answer in it.
        attempt = asyncio.create_task(client.lock("a").try_acquire(timeout=0.5))
        errors = await asyncio.gather(
            client.lock("a").acquire(timeout=0.5),
            client.lock("a", timeout=0.5).acquire(),
            return_exceptions=True,
        )
        assert await attempt is None
        for error in errors:
            assert isinstance(error, AcquireTimeout)
            assert "'a'" in str(error)
        await queued(other.lock("a"), 0)
    assert not await client.lock("a").locked()


async def test_acquire_entered_at_timeout_raises_acquire_timeout_without_a_body(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Entering raises AcquireTimeout, which is a TimeoutError, and the body does not run."""
    async with other.lock("a"):

        async def times_out(acquisition: AbstractAsyncContextManager[object]) -> None:
            with pytest.raises(AcquireTimeout, match=r"'a'.* 0\.5 s") as caught:
                async with acquisition:
                    pytest.fail("the body has run without the lock")
            assert isinstance(caught.value, TimeoutError)
            assert isinstance(caught.value, LockError)

        await asyncio.gather(
            times_out(client.lock("a").acquire(timeout=0.5)),
            times_out(client.lock("a", timeout=0.5).acquire()),
            times_out(client.lock("a", timeout=0.5)),
        )
        await queued(other.lock("a"), 0)


async def test_acquire_without_waiting_takes_only_a_free_lock(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """`try_acquire()` and `timeout=0` get a free lock, do not queue for a taken one."""
    async with other.lock("a"):
        assert await client.lock("a").try_acquire() is None
        assert await client.lock("a").try_acquire(timeout=0) is None
        with pytest.raises(AcquireTimeout, match="'a' is not free"):
            await client.lock("a").acquire(timeout=0)
        with pytest.raises(AcquireTimeout, match="'a' is not free"):
            async with client.lock("a").acquire(timeout=0):
                pytest.fail("the body has run without the lock")
        await queued(other.lock("a"), 0)
    async with client.lock("a").acquire(timeout=0):
        assert await other.lock("a").locked()
    for lease in (
        await client.lock("a").acquire(timeout=0),
        await client.lock("b").try_acquire(),
        await client.lock("c").try_acquire(timeout=0),
    ):
        assert lease is not None
        assert await other.lock(lease.name).locked()
        await lease.release()


async def test_timeout_of_a_call_overrules_the_timeout_of_the_lock(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """`try_acquire` overrules the lock's own timeout; so does any timeout that is given."""
    lock = client.lock("a", timeout=30)
    async with other.lock("a"):
        assert await lock.try_acquire() is None
        assert await lock.try_acquire(timeout=0) is None
        with pytest.raises(AcquireTimeout, match="not free"):
            async with client.lock("a", timeout=0):
                pytest.fail("the body has run without the lock")
        waiting = asking(client.lock("a", timeout=0))
        await queued(lock, 1)
    lease = await waiting
    await lease.release()


@virtual
@pytest.mark.parametrize("free", [True, False], ids=["free", "taken"])
async def test_try_acquire_in_a_process_stuck_past_its_timeout_hears_the_answer(free: bool) -> None:
    """What the store has answered meanwhile is heard: that is no store that does not answer."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    server = MemoryServer()
    store = FaultyStore(MemoryStore(server))  # whose answers take more turns of the loop
    async with aiolock.connect(store) as client, aiolock.connect(server) as other:
        if not free:
            await other.lock("a").acquire()
        acquiring = asyncio.create_task(client.lock("a").try_acquire(timeout=0.01))
        loop.call_soon(loop.advance, 1.0)  # when it has asked
        lease = await acquiring
        assert (lease is not None) == free


@virtual
async def test_timeout_of_try_acquire_ends_exactly_on_the_loop_clock() -> None:
    """A timeout is over when it is over, on the loop's clock, and not before."""
    async with aiolock.connect("memory://") as ours, aiolock.connect("memory://") as theirs:
        now = asyncio.get_running_loop().time
        async with theirs.lock("a"):
            for timeout in (0.001, 2.5, 500):
                begun = now()
                assert await ours.lock("a").try_acquire(timeout=timeout) is None
                assert now() - begun == pytest.approx(timeout)


@virtual
async def test_timeout_in_the_turn_of_the_answer_ends_try_acquire() -> None:
    """A timeout that ends in the very turn of the loop that brings the answer is not forgotten."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        for early in (-1e-10, 0.0, 1e-10):
            async with theirs.lock("a"):
                faulty.hold("acquire")
                begun = loop.time()
                loop.call_at(begun + 1 + early, faulty.resume)
                with contextlib.suppress(aiolock.StoreError):  # the answer was a trifle late
                    assert await ours.lock("a").try_acquire(timeout=1) is None
                assert loop.time() - begun == pytest.approx(1)
                await queued(theirs.lock("a"), 0)


@virtual
async def test_timeout_without_an_answer_raises_store_error() -> None:
    """When the store has not answered in the timeout nobody knows: no None, but a StoreError."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        faulty.hold("acquire")
        with pytest.raises(aiolock.StoreError, match=r"timeout of 1 s.*nobody knows"):
            await client.lock("a").acquire(timeout=1)
        with pytest.raises(aiolock.StoreError, match=r"timeout of 1 s.*nobody knows"):
            await client.lock("a").try_acquire(timeout=1)
        faulty.resume()
        assert not await client.lock("a").locked()
    assert not server.names()


@virtual
async def test_acquire_on_a_failing_store_raises_store_error_and_is_undone() -> None:
    """A StoreError of the store comes out of `acquire`, and what it may have done is undone."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with aiolock.connect(faulty) as client:
        lock = client.lock("a")
        faulty.refuse("acquire")
        with pytest.raises(aiolock.StoreError, match="refused"):
            await lock.acquire()
        faulty.lose("acquire")
        with pytest.raises(aiolock.StoreError, match="lost"):
            async with lock:
                pytest.fail("the body has run without the lock")
        assert not lock.held()
        assert not await lock.locked()


async def test_max_waiters_reached_raises_queue_full_at_once(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """QueueFull at once when so many wait already, of whatever client."""
    lock = client.lock("a", max_waiters=2)
    async with other.lock("a"):
        waiting = [asking(lock)]
        await queued(lock, 1)
        waiting.append(asking(other.lock("a")))
        await queued(lock, 2)
        for acquisition in (lock, lock.acquire(timeout=5)):
            with pytest.raises(QueueFull, match=r"2 wait.*'a'.*max_waiters=2"):
                async with acquisition:
                    pytest.fail("the body has run without the lock")
        assert len((await lock.status()).waiters) == 2
        with pytest.raises(QueueFull, match=r"2 wait"):
            await lock.try_acquire(timeout=5)
        assert await lock.try_acquire() is None
    for task in waiting:
        await (await task).release()


# --- Who asks, and who owns


async def test_acquire_under_wait_for_belongs_to_the_calling_task(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Under `asyncio.wait_for` the lease is of the task that called `acquire`."""
    lock = client.lock("a")
    lease = await asyncio.wait_for(lock.acquire(), 5)
    assert lease is not None
    assert lock.held()
    with pytest.raises(WouldDeadlock):
        await asyncio.wait_for(lock.acquire(), 5)
    assert await lock.release() is True
    async with other.lock("a"):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(lock.acquire(), 0.02)
        await queued(other.lock("a"), 0)
    assert not await lock.locked()


async def test_acquire_in_create_task_belongs_to_the_calling_task(
    client: aiolock.LockClient,
) -> None:
    """An acquisition is a coroutine: a task of its own may wait for it, for the one that asked."""
    lock = client.lock("a")
    lease = await asyncio.create_task(lock.acquire())
    assert lease is not None
    assert lock.held()
    assert await lock.release() is True
    lease, none = await asyncio.gather(lock.acquire(), asyncio.sleep(0))
    assert lease is not None
    assert none is None
    await lease.release()
    acquisition = lock.acquire()
    assert asyncio.iscoroutine(acquisition)
    acquisition.close()


async def test_child_task_does_not_hold_the_lock_of_its_parent(client: aiolock.LockClient) -> None:
    """A child task does not hold what its parent holds, not even if the lock is re-entrant."""
    lock = client.lock("a", reentrant=True)

    async def child() -> None:
        assert not lock.held()
        assert await lock.try_acquire() is None
        with pytest.raises(NotHeld):
            await lock.release()

    async with lock:
        await asyncio.create_task(child())
        assert lock.held()


async def test_acquire_again_without_reentrant_raises_would_deadlock_unsent(world: World) -> None:
    """Who asks again for a lock that is not re-entrant hears so at once; nothing is sent."""
    faulty = FaultyStore(world.store())
    async with aiolock.connect(faulty) as client:
        lock = client.lock("a")
        async with lock as lease:
            sent = faulty.calls.total()
            for again in (lock, client.lock("a"), lock.acquire(), lock.acquire(timeout=9)):
                with pytest.raises(WouldDeadlock, match=r"'a'.*reentrant=True") as caught:
                    async with again:
                        pytest.fail("the body has run twice")
                assert isinstance(caught.value, RuntimeError)
            with pytest.raises(WouldDeadlock):
                await lock.try_acquire()
            assert faulty.calls.total() == sent
            assert lease.state == "held"
            assert lock.held()


async def test_acquire_never_awaited_warns_and_locks_nothing(client: aiolock.LockClient) -> None:
    """An acquisition that nobody awaits warns, as a coroutine does, and nothing is locked."""
    acquisition = client.lock("a").acquire()
    with pytest.warns(RuntimeWarning, match=r"AcquireContext of 'a'.*never awaited"):
        del acquisition
    assert not await client.lock("a").locked()
    closed = client.lock("a").acquire()
    closed.close()
    del closed  # and this one does not: a warning would be an error
    attempt = client.lock("a").try_acquire()
    with pytest.warns(RuntimeWarning, match=r"'Lock.try_acquire' was never awaited"):
        del attempt


async def test_try_acquire_awaited_by_another_task_belongs_to_the_calling_task(
    client: aiolock.LockClient,
) -> None:
    """Whichever task awaits it: `wait_for` and `create_task` have one of their own."""
    lock = client.lock("a")
    assert await asyncio.wait_for(lock.try_acquire(timeout=1), 5)
    assert lock.held()
    assert await lock.release()
    lease = await asyncio.create_task(lock.try_acquire())
    assert lease is not None
    assert lock.held()
    with pytest.raises(WouldDeadlock):
        await asyncio.create_task(lock.try_acquire(timeout=1))
    assert await asyncio.create_task(_tried(lock)) is None
    assert await lock.release()


async def _tried(lock: aiolock.Lock) -> aiolock.Lease | None:
    return await lock.try_acquire()


async def test_try_acquire_entered_raises_type_error_and_locks_nothing(
    client: aiolock.LockClient,
) -> None:
    """It may give None, so it is awaited only; an error says so before anything is locked."""
    attempt: Any = client.lock("a").try_acquire()
    with pytest.raises(TypeError, match="context manager"):
        async with attempt:
            pytest.fail("the body has run without the lock")
    attempt.close()
    assert not await client.lock("a").locked()


async def test_acquire_context_used_twice_raises_runtime_error(client: aiolock.LockClient) -> None:
    """One acquisition gives one lease: for another one `acquire` has to be called again."""
    acquisition = client.lock("a").acquire()
    lease = await acquisition
    with pytest.raises(RuntimeError, match="call acquire"):
        await acquisition
    with pytest.raises(RuntimeError, match="call acquire"):
        async with acquisition:
            pytest.fail("the body has run without the lock")
    await lease.release()


# --- Re-entrant


async def test_reentrant_acquire_sends_nothing_and_last_release_frees_the_lock(
    world: World, other: aiolock.LockClient
) -> None:
    """The holder acquires a re-entrant lock again at no cost; the last release gives it back."""
    faulty = FaultyStore(world.store())
    async with aiolock.connect(faulty) as client:
        lock = client.lock("a", reentrant=True)
        async with lock as outer:
            sent = faulty.calls.total()
            async with lock as middle, client.lock("a", reentrant=True) as inner:
                assert outer.fence == middle.fence == inner.fence
                assert len({outer, middle, inner}) == 3
            assert (middle.state, inner.state) == ("released", "released")
            assert outer.state == "held"
            assert faulty.calls.total() == sent
            assert lock.held()
            assert await other.lock("a").locked()
        assert not lock.held()
    assert not await other.lock("a").locked()


@pytest.mark.parametrize("order", ["012", "021", "102", "120", "201", "210"])
async def test_reentrant_leases_released_in_any_order_end_one_by_one(
    client: aiolock.LockClient, order: str
) -> None:
    """The leases of a re-entrant lock are released one by one, in any order, and each once."""
    lock = client.lock("a", reentrant=True)
    leases = [await lock.acquire() for _ in range(3)]
    for released, place in enumerate(order, start=1):
        assert lock.held()
        assert await lock.locked()
        lease = leases[int(place)]
        assert lease is not None
        for _ in range(2):
            assert await lease.release() is True
            assert lease.state == "released"
            assert lease.remaining() == 0.0
        held = [lease for lease in leases if lease.state == "held"]
        assert len(held) == 3 - released
        assert all(lease.remaining() > 0 for lease in held)
    assert not lock.held()
    assert not await lock.locked()


async def test_reentrant_lock_release_ends_the_last_acquisition_first(
    client: aiolock.LockClient,
) -> None:
    """`lock.release` ends the last acquisition first, and then the one before."""
    lock = client.lock("a", reentrant=True)
    outer, inner = await lock.acquire(), await lock.acquire()
    assert outer is not None
    assert inner is not None
    assert await lock.release() is True
    assert (outer.state, inner.state) == ("held", "released")
    assert await lock.release() is True
    assert outer.state == "released"
    with pytest.raises(NotHeld):
        await lock.release()


async def test_reentrant_acquisitions_of_mixed_ways_all_count(client: aiolock.LockClient) -> None:
    """Awaited, entered and entered by `acquire`: all count, and each exit ends its own."""
    lock = client.lock("a", reentrant=True)
    lease = await lock.acquire()
    assert lease is not None
    async with lock.acquire(), lock:
        await lease.release()
        assert lock.held()
        assert await lock.locked()
    assert not lock.held()
    assert not await lock.locked()


# --- Giving back


async def test_lock_release_ends_the_lease_of_the_current_task_only(
    client: aiolock.LockClient,
) -> None:
    """`lock.release` ends the lease that the current task holds, and no other task's."""
    lock, lease = client.lock("a"), await client.lock("a").acquire()
    assert lease is not None

    async def stranger() -> None:
        with pytest.raises(NotHeld, match=r"'a'.*another task") as caught:
            await lock.release()
        assert isinstance(caught.value, RuntimeError)

    await asyncio.create_task(stranger())
    assert await lock.release() is True
    assert lease.state == "released"
    with pytest.raises(NotHeld, match="released or lost"):
        await lock.release()


async def test_lease_released_by_another_task_frees_its_owner(client: aiolock.LockClient) -> None:
    """Whoever has the lease may release it, and then the owner holds nothing."""
    lock, lease = client.lock("a"), await client.lock("a").acquire()
    assert lease is not None
    assert await asyncio.create_task(lease.release()) is True
    assert not lock.held()
    async with lock:
        pass


async def test_release_after_a_loss_does_not_free_the_next_holder(
    client: aiolock.LockClient,
) -> None:
    """Two tasks share a Lock; A lost it, B has it: what A does late does not free B's."""
    lock = client.lock("a")
    entered, done = asyncio.Event(), asyncio.Event()

    async def late() -> None:
        async with lock as lost:
            entered.set()
            with contextlib.suppress(asyncio.CancelledError):
                await done.wait()
            await done.wait()
            assert not lock.held()
            with pytest.raises(NotHeld):
                await lock.release()
            assert await lost.release() is False

    task = asyncio.create_task(late())
    await entered.wait()
    await lock.break_()
    async with lock as lease:
        done.set()
        with pytest.raises(aiolock.LeaseLost):
            await task
        assert lock.held()
        assert await lease.verify() is True
        assert lease.state == "held"


async def test_exit_in_another_task_releases_the_lock(client: aiolock.LockClient) -> None:
    """What one task has entered another may leave, as with fixtures and generators."""
    lock = client.lock("a")
    stack = contextlib.AsyncExitStack()
    lease = await asyncio.create_task(stack.enter_async_context(lock))
    assert await lock.locked()
    assert not lock.held()
    await stack.aclose()
    assert lease.state == "released"
    assert not await lock.locked()


async def test_exit_in_another_task_after_a_loss_keeps_the_next_holder(
    client: aiolock.LockClient,
) -> None:
    """Nor is it mixed up with what another task has entered since it was lost."""
    lock = client.lock("a")
    stack = contextlib.AsyncExitStack()
    lease = await asyncio.create_task(stack.enter_async_context(lock))
    await lock.break_()
    await lease.lost
    entered, done = asyncio.Event(), asyncio.Event()

    async def other() -> aiolock.Lease:
        async with lock as theirs:
            entered.set()
            await done.wait()
            assert lock.held()
            assert await theirs.verify() is True
        return theirs

    task = asyncio.create_task(other())
    await entered.wait()
    with pytest.raises(aiolock.LeaseLost):
        await stack.aclose()
    done.set()
    assert (await task).state == "released"


async def test_aexit_without_having_entered_raises_not_held(client: aiolock.LockClient) -> None:
    """Leaving a lock that this task has not entered is NotHeld, and harms nobody."""
    lock = client.lock("a")
    with pytest.raises(NotHeld, match="not entered"):
        await lock.__aexit__(None, None, None)
    async with client.lock("a"):
        with pytest.raises(NotHeld, match="not entered"):
            await client.lock("b").__aexit__(None, None, None)
        assert await lock.locked()


# --- The queue


async def test_queue_of_several_clients_is_served_in_order_of_arrival(world: World) -> None:
    """The lock goes round in the order of arrival, across tasks and clients."""
    entered: list[int] = []

    async def worker(lock: aiolock.Lock, number: int) -> None:
        async with lock:
            entered.append(number)

    async with world.client() as one, world.client() as two, world.client() as three:
        locks = [client.lock("a") for client in (one, two, three)]
        async with asyncio.TaskGroup() as tasks, one.lock("a"):
            for number in range(24):
                tasks.create_task(worker(locks[number % 3], number))
                await queued(locks[0], number + 1)
        assert entered == list(range(24))
        assert not await one.lock("a").locked()


async def test_queue_of_one_client_is_served_in_order_of_asking(client: aiolock.LockClient) -> None:
    """Tasks of one client that ask in one turn of the loop are served in that order."""
    entered: list[int] = []
    lock = client.lock("a")

    async def worker(number: int) -> None:
        async with lock:
            entered.append(number)

    async with asyncio.TaskGroup() as tasks:
        for number in range(100):
            tasks.create_task(worker(number))
    assert entered == list(range(100))


async def test_lock_has_one_holder_at_a_time_with_rising_fences(world: World) -> None:
    """Never two bodies at once, and each fence is higher than the one before."""
    inside, fences = 0, list[int]()

    async def worker(lock: aiolock.Lock) -> None:
        nonlocal inside
        for _ in range(5):
            async with lock as lease:
                inside += 1
                assert inside == 1
                fences.append(lease.fence)
                await asyncio.sleep(0)
                inside -= 1

    async with world.client() as one, world.client() as two, asyncio.TaskGroup() as tasks:
        for client in (one, two):
            for _ in range(8):
                tasks.create_task(worker(client.lock("a")))
    assert len(fences) == 80
    assert fences == sorted(set(fences))


async def test_try_acquire_behind_waiters_does_not_overtake_them(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Who does not wait does not get the lock before those who do."""
    lock = client.lock("a")
    held = await other.lock("a").acquire()
    assert held is not None
    waiting = asking(lock)
    await queued(lock, 1)
    await held.release()
    assert await other.lock("a").try_acquire() is None
    lease = await waiting
    await lease.release()


async def test_waiter_that_is_cancelled_leaves_the_queue(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """A waiter that is cancelled leaves the queue; those behind it move up."""
    lock = client.lock("a")
    held = await other.lock("a").acquire()
    assert held is not None
    first = asking(lock)
    await queued(lock, 1)
    second = asking(lock)
    await queued(lock, 2)
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    await queued(lock, 1)
    await held.release()
    lease = await second
    await lease.release()
    assert not await lock.locked()


@virtual
async def test_waiter_behind_a_dead_holder_enters_at_the_end_of_its_lease() -> None:
    """When a holder has died the next waiter enters within 100 ms of the end of its lease."""
    server = MemoryServer()
    dead, form = WaiterId("dead", 1), Form(claim=5000)
    now = asyncio.get_running_loop().time
    async with aiolock.connect(server) as client:
        for ttl in (0.2, 30, 3600):
            grant = server.run(Acquire("lock:a", dead, form, int(ttl * 1000)))
            assert isinstance(grant, Granted)
            begun = now()

            async def worker(begun: float = begun, ttl: float = ttl) -> float:
                async with client.lock("a") as lease:
                    assert ttl <= now() - begun <= ttl + 0.1
                    return lease.fence

            fences = await asyncio.gather(*(worker() for _ in range(5)))
            assert [grant.fence, *fences] == sorted({grant.fence, *fences})


@virtual
async def test_waiter_that_died_is_skipped_at_the_handoff(monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter whose process has died is skipped, and nobody waits for it."""
    looks.decided(monkeypatch)  # nobody removes it before its turn
    server = MemoryServer()
    dead, form = WaiterId("dead", 1), Form(claim=5000)
    now = asyncio.get_running_loop().time
    async with aiolock.connect(server) as client:
        lock = client.lock("a")
        async with lock:
            server.run(Acquire("lock:a", dead, form, 30_000))
            waiting = asking(lock)
            await queued(lock, 2)
            begun = now()
        lease = await waiting
        assert now() == begun
        await lease.release()


@virtual
async def test_waiter_whose_push_was_lost_gets_the_lock_in_time() -> None:
    """A waiter whose push was lost gets the lock all the same, and so do those behind it."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:
        lock = theirs.lock("a")
        held = await lock.acquire()
        assert held is not None
        waiting = [asking(ours.lock("a"))]
        await queued(lock, 1)
        waiting += [asking(lock), asking(ours.lock("a")), asking(lock)]
        await queued(lock, 4)
        faulty.lose("push")
        await held.release()
        begun = loop.time()
        for count in range(4):
            done, rest = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            (task,) = done
            await task.result().release()
            waiting = list(rest)
            assert len(rest) == 3 - count
        assert loop.time() - begun < 31
        assert not await lock.locked()


@virtual
async def test_waiters_that_are_idle_send_one_command_in_ten_seconds_at_most() -> None:
    """A waiter that has nothing to do sends at most one command in ten seconds."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    async with (
        aiolock.connect(faulty) as ours,
        aiolock.connect(server) as theirs,
        theirs.lock("a"),
    ):
        waiting = [asking(ours.lock("a")) for _ in range(10)]
        await queued(theirs.lock("a"), 10)
        before = faulty.calls["acquire"]
        await asyncio.sleep(600)
        assert faulty.calls["acquire"] - before <= 10 * 600 * 0.1
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)


# --- Looking at a lock


async def test_status_names_holder_and_waiters_in_order(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """A status tells who holds and who waits, where, since when, in order."""
    lock = client.lock("a", ttl=20)
    empty = await lock.status()
    assert (empty.name, empty.holders, empty.waiters) == ("a", (), ())
    async with lock as lease:
        waiting = [asking(other.lock("a"))]
        await queued(lock, 1)
        waiting.append(asking(lock))
        await queued(lock, 2)
        for status in (await lock.status(), await other.lock("a").status()):
            (holder,) = status.holders
            assert (holder.client, holder.fence, holder.place) == (client.id, lease.fence, 0)
            assert 10 < holder.remaining <= 20
            assert [(w.client, w.place) for w in status.waiters] == [(other.id, 1), (client.id, 2)]
            assert all((w.fence, w.remaining) == (0, 0.0) for w in status.waiters)
            for party in (holder, *status.waiters):
                assert (party.host, party.pid) == (socket.gethostname(), os.getpid())
            since = [party.since for party in (holder, *status.waiters)]
            assert since == sorted(since)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        await queued(lock, 0)


async def test_locked_and_held_tell_any_holder_from_the_current_task(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """`locked` is whether anybody holds it; `held` whether this task does."""
    ours, theirs = client.lock("a"), other.lock("a")
    assert (await ours.locked(), ours.held()) == (False, False)
    async with theirs:
        assert (await ours.locked(), ours.held(), theirs.held()) == (True, False, True)
    async with ours:
        assert (await ours.locked(), ours.held(), theirs.held()) == (True, True, False)
        assert client.lock("a").held()
        assert not client.lock("b").held()
    assert (await ours.locked(), ours.held()) == (False, False)


async def test_break_takes_the_lock_and_hands_it_to_the_next_waiter(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """`break_` takes the lock from whoever holds it, tells them, and hands it to the next."""
    lock = client.lock("a")
    assert await lock.break_() is False
    held = await other.lock("a").acquire()
    assert held is not None
    waiting = asking(lock)
    await queued(lock, 1)
    assert await lock.break_() is True
    lease = await waiting
    await held.lost
    assert held.state == "lost"
    assert await held.release() is False
    assert await lease.verify() is True
    assert await lock.break_() is True  # one's own too
    await lease.lost
    assert not await lock.locked()


async def test_lock_is_immutable_and_its_repr_names_it(client: aiolock.LockClient) -> None:
    """A Lock is immutable, says what it is, and holds nothing."""
    lock = client.lock("order:42", ttl=12.5)
    assert (lock.name, lock.ttl) == ("order:42", 12.5)
    assert client.lock("x").ttl == 30
    with pytest.raises((AttributeError, TypeError)):
        lock.name = "other"  # type: ignore[misc]  # that is what cannot be done
    assert repr(lock) == "<Lock 'order:42' ttl=12.5>"
    acquisition = lock.acquire(timeout=3)
    assert re.fullmatch(r"<AcquireContext of 'order:42' timeout=3\.0>", repr(acquisition))
    lease = await acquisition
    assert re.fullmatch(r"<Lease 'order:42' fence=\d+ held \d+\.\d+ s>", repr(lease))
    await lease.release()
    assert re.fullmatch(r"<Lease 'order:42' fence=\d+ released .*>", repr(lease))


@virtual
async def test_client_forgets_waiters_and_leases_that_have_ended() -> None:
    """A client forgets its waiters and its leases when they have ended, however they did."""
    async with aiolock.connect("memory://") as client:
        lock = client.lock("a", reentrant=True)
        async with lock, lock:
            giving_up = asyncio.create_task(client.lock("a").acquire(timeout=1))
            with contextlib.suppress(aiolock.LockError):
                await giving_up
            waiting = [asking(lock, timeout=5), asking(lock)]
            await queued(lock, 2)
            waiting[0].cancel()
        await (await waiting[1]).release()
        await client.lock("a", renew=False, ttl=1).acquire()
        await asyncio.sleep(2)
        await settled()
        engine = client._engine
        assert not engine.waiters.acquisitions
        assert not engine.waiters._queues
        assert not engine.entered
        assert not engine.watchdog.holds
        assert not engine.watchdog.owned


@virtual
async def test_errors_of_a_lock_named_like_a_kind_name_it_as_its_user_does() -> None:
    """Also one whose name begins as the store's names of something else do."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        for name in ("lock:a", "semaphore:a", "latch:a"):
            async with ours.lock(name):
                with pytest.raises(AcquireTimeout, match=f"the lock '{name}' did not"):
                    await theirs.lock(name).acquire(timeout=1).__aenter__()
        async with ours.semaphore("lock:a", 1):
            with pytest.raises(AcquireTimeout, match="the semaphore 'lock:a' did not"):
                await theirs.semaphore("lock:a", 1).acquire(timeout=1).__aenter__()
