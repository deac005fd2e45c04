"""Tasks of one process that wait for each other: found, or said in the log."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Generator

import pytest

import aiolock
from aiolock import WouldDeadlock
from aiolock.stores.memory import MemoryServer
from tests.support.worlds import queued, settled, virtual

Task = asyncio.Task[None]


@pytest.fixture
async def client() -> AsyncIterator[aiolock.LockClient]:
    """A client of a store of its own."""
    async with aiolock.connect(MemoryServer()) as client:
        yield client


async def _holding(first: aiolock.Lock, then: aiolock.Lock) -> None:
    async with first:
        await settled()
        async with then:
            pass


async def test_acquire_that_closes_a_cycle_of_two_raises_would_deadlock(
    client: aiolock.LockClient,
) -> None:
    """Of two that each hold what the other wants, the one that closes the cycle is told."""
    a, b = client.lock("a"), client.lock("b")
    one = asyncio.create_task(_holding(a, b), name="one")
    two = asyncio.create_task(_holding(b, a), name="two")
    ends = await asyncio.gather(one, two, return_exceptions=True)
    (error,) = (end for end in ends if end is not None)
    assert isinstance(error, WouldDeadlock)
    assert (error.kind, error.name in "ab") == ("lock", True)
    for name in ("'one'", "'two'", "'a'", "'b'", "multilock()"):
        assert name in str(error)
    assert not await a.locked()
    assert not await b.locked()


async def test_acquire_in_a_cycle_within_asyncio_timeout_raises_would_deadlock(
    client: aiolock.LockClient,
) -> None:
    """A circle is an error though one in it would be cancelled: the text says what is seen."""

    async def in_time() -> None:
        async with client.lock("a"):
            await settled()
            async with asyncio.timeout(100), client.lock("b"):
                pass

    ends = await asyncio.gather(
        in_time(), _holding(client.lock("b"), client.lock("a")), return_exceptions=True
    )
    (error,) = (end for end in ends if end is not None)
    assert isinstance(error, WouldDeadlock)
    assert "asyncio.timeout()" in str(error)
    assert "give them a timeout=" in str(error)


async def test_acquire_that_closes_a_cycle_of_three_raises_would_deadlock(
    client: aiolock.LockClient,
) -> None:
    """A cycle of three is found, and the other two go on."""
    locks = [client.lock(name) for name in "abc"]
    tasks = [
        asyncio.create_task(_holding(locks[number], locks[(number + 1) % 3])) for number in range(3)
    ]
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    assert sorted(str(type(end).__name__) for end in ends) == ["NoneType"] * 2 + ["WouldDeadlock"]


async def test_acquire_in_a_cycle_of_reader_and_writer_raises_would_deadlock(
    client: aiolock.LockClient,
) -> None:
    """Who waits to write waits for each reader."""
    rates, other = client.rwlock("rates"), client.lock("other")
    reading = asyncio.create_task(_holding(rates.read(), other))
    writing = asyncio.create_task(_holding(other, rates.write()))
    ends = await asyncio.gather(reading, writing, return_exceptions=True)
    assert sum(isinstance(end, WouldDeadlock) for end in ends) == 1


@pytest.mark.parametrize("step", range(10))
@virtual
async def test_cycle_through_a_cancelled_task_raises_no_would_deadlock(step: int) -> None:
    """Though it has not run since, and so still holds its lock and seems to wait."""
    async with aiolock.connect(MemoryServer()) as client:
        a, b = client.lock("a"), client.lock("b")
        cancelled = list[None]()
        holding = asyncio.create_task(_holding(a, b))
        async with b:

            async def cancel() -> None:
                for _ in range(step):
                    await asyncio.sleep(0)
                cancelled.append(None)
                holding.cancel()

            await queued(b, 1)
            cancelling = asyncio.create_task(cancel())
            try:
                async with a:
                    assert cancelled
            except WouldDeadlock:
                assert not cancelled
            await cancelling


MANY = 1200
"""Readers: more than a search looks at in one iteration of the event loop."""


@contextlib.asynccontextmanager
async def _readers(
    client: aiolock.LockClient, last: aiolock.Lock, first: aiolock.Lock | None = None
) -> AsyncGenerator[list[Task]]:
    """Tasks that read a book and wait for one lock; the first and the last one for another."""

    async def read(then: aiolock.Lock) -> None:
        async with client.rwlock("book").read(), then:
            pass

    free = asyncio.Event()

    async def hold() -> None:
        async with client.lock("busy"):
            await free.wait()

    holding = asyncio.create_task(hold())
    await settled()
    busy = client.lock("busy")
    wants = [first or busy, *[busy] * (MANY - 2), last]
    readers = [asyncio.create_task(read(each), name=f"reader {n}") for n, each in enumerate(wants)]
    async with asyncio.timeout(60):
        while len(client._engine.waiters.index()) < MANY:  # noqa: ASYNC110  # it sets no Event
            await asyncio.sleep(0)
    try:
        yield readers
    finally:
        free.set()
        await asyncio.wait(readers, timeout=1)
        for task in (holding, *readers):
            task.cancel()
        await asyncio.gather(holding, *readers, return_exceptions=True)
    assert not client._engine.acquirer.late.deadlocks.searches._left
    assert not client._engine.waiters.index()


@virtual
async def test_cycle_through_one_of_many_readers_raises_would_deadlock_in_the_writer() -> None:
    """Found while the task waits already, and only by that task: all others go on."""
    async with aiolock.connect(MemoryServer()) as client:
        far, book = client.lock("far"), client.rwlock("book")
        async with far, _readers(client, far) as readers:
            with pytest.raises(WouldDeadlock) as caught:
                await book.write().acquire()
            assert f"of {readers[-1].get_name()!r}, while" in str(caught.value)
            assert (caught.value.kind, caught.value.name) == ("lock", "book")
            assert not (await book.status()).waiters
            await far.release()
        assert all(reader.exception() is None for reader in readers)


@pytest.mark.parametrize("step", [0, 1, 2, 3, 4, 20])
@virtual
async def test_cycle_that_opens_during_the_search_raises_no_would_deadlock(step: int) -> None:
    """It is no deadlock, and the writer enters when all readers have left."""
    async with aiolock.connect(MemoryServer()) as client:
        far, book = client.lock("far"), client.rwlock("book")
        entered = list[None]()

        async def write() -> None:
            async with far:
                begun.set()
                await asks.wait()
                async with book.write():
                    entered.append(None)

        begun, asks = asyncio.Event(), asyncio.Event()
        writing = asyncio.create_task(write())
        await begun.wait()
        async with _readers(client, far) as readers:
            asks.set()
            async with asyncio.timeout(60):
                while not client._engine.acquirer.late.deadlocks.searches._left:  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0)
            for _ in range(step):
                await asyncio.sleep(0)
            told = not client._engine.acquirer.late.deadlocks.searches._left
            readers[-1].cancel()
        await asyncio.wait([writing])
        assert (isinstance(writing.exception(), WouldDeadlock), bool(entered)) == (told, not told)
        assert told == (step == 20)


@pytest.mark.parametrize("step", range(7))
@virtual
async def test_cycle_that_opens_behind_the_search_raises_no_would_deadlock(step: int) -> None:
    """One of three tasks gives up, after the search went on from it and before its end."""
    async with aiolock.connect(MemoryServer()) as client:
        far, near, book = client.lock("far"), client.lock("near"), client.rwlock("book")
        entered = list[None]()

        async def write() -> None:
            async with far:
                await queued(far, 1)
                async with book.write():
                    entered.append(None)

        writing = asyncio.create_task(write())
        between = asyncio.create_task(_holding(near, far))
        await queued(far, 0)
        async with _readers(client, client.lock("busy"), near) as readers:
            async with asyncio.timeout(60):
                while not client._engine.acquirer.late.deadlocks.searches._left:  # noqa: ASYNC110  # it sets no Event
                    await asyncio.sleep(0)
            for _ in range(step):
                await asyncio.sleep(0)
            told = not client._engine.acquirer.late.deadlocks.searches._left
            readers[0].cancel()
        ends = await asyncio.gather(writing, between, return_exceptions=True)
        assert (isinstance(ends[0], WouldDeadlock), bool(entered)) == (told, not told)
        assert ends[1] is None


@pytest.mark.parametrize("ends", ["cancelled", "closed"])
@virtual
async def test_cycle_search_for_a_task_that_stops_waiting_ends(ends: str) -> None:
    """Nothing is looked for any more."""
    async with aiolock.connect(MemoryServer()) as client:
        far, book = client.lock("far"), client.rwlock("book")

        async def write() -> None:
            async with far:
                await queued(far, 1)
                async with book.write():
                    pass

        async with _readers(client, client.lock("busy")):
            writing = asyncio.create_task(write())
            wants_far = asyncio.create_task(_holding(client.lock("other"), far))
            async with asyncio.timeout(60):
                while not client._engine.acquirer.late.deadlocks.searches._left:  # noqa: ASYNC110  # as above
                    await asyncio.sleep(0)
            if ends == "cancelled":
                writing.cancel()
            else:
                await client.aclose()
            await asyncio.wait([writing])
            await settled()
            assert not client._engine.acquirer.late.deadlocks.searches._left
            assert writing.cancelled() == (ends == "cancelled")
            wants_far.cancel()
            ended = await asyncio.gather(writing, wants_far, return_exceptions=True)
            assert not any(isinstance(end, WouldDeadlock) for end in ended)


async def test_would_deadlock_text_of_a_cycle_of_many_tasks_names_some_of_them(
    client: aiolock.LockClient,
) -> None:
    """Its text names some of them."""
    locks = [client.lock(f"lock {number}") for number in range(30)]
    tasks = [
        asyncio.create_task(_holding(locks[n], locks[(n + 1) % 30]), name=f"task {n}")
        for n in range(30)
    ]
    ends = await asyncio.gather(*tasks, return_exceptions=True)
    (error,) = (end for end in ends if end is not None)
    assert "'task 3' for 'lock 4' of 'task 4', and" in str(error)
    assert "and so on for 19 more tasks, up to 'task 29', waits: none" in str(error)


@pytest.mark.parametrize("why", ["timeout", "max_hold", "no renewal", "permits"])
@virtual
async def test_acquire_in_a_cycle_that_ends_by_itself_raises_no_would_deadlock(why: str) -> None:
    """Where somebody gives up, or a lease ends, or another permit may come, nothing is certain."""
    async with aiolock.connect(MemoryServer()) as client:
        a, b = client.lock("a", ttl=5), client.lock("b", ttl=5)
        held: aiolock.Lock | aiolock.Semaphore = b
        if why == "timeout":
            a = client.lock("a", ttl=5, timeout=10)
        elif why == "max_hold":
            held = client.lock("b", ttl=5, max_hold=5)
        elif why == "no renewal":
            held = client.lock("b", ttl=5, renew=False)
        else:
            held = client.semaphore("b", 1, max_hold=5)
        wanted = held if why == "permits" else b

        async def one() -> None:
            async with client.lock("a"):
                await settled()
                async with wanted:
                    pass

        async def two() -> None:
            async with held:
                await settled()
                async with a:
                    pass

        ends = await asyncio.gather(one(), two(), return_exceptions=True)
        assert not any(isinstance(end, WouldDeadlock) for end in ends), ends
        assert any(isinstance(end, aiolock.AcquireTimeout | aiolock.LeaseLost) for end in ends)


@contextlib.contextmanager
def logged() -> Generator[list[logging.LogRecord]]:
    """What is written to the log meanwhile."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append  # type: ignore[method-assign,assignment]  # that is how one listens
    logger = logging.getLogger("aiolock")
    logger.addHandler(handler)
    try:
        yield records
    finally:
        logger.removeHandler(handler)


async def _passed_on(first: aiolock.Lock, then: aiolock.Lock, seconds: float) -> None:
    """Pass the lease of the first lock on to a task that releases it so late; enter the other."""
    lease = await first.acquire()
    assert lease is not None

    async def release() -> None:
        await asyncio.sleep(seconds)
        await lease.release()

    releasing = asyncio.create_task(release())
    await settled()
    async with then:
        pass
    await releasing


@pytest.mark.parametrize("closes", ["passing", "other"])
@virtual
async def test_cycle_through_a_lease_passed_to_another_task_is_only_logged(closes: str) -> None:
    """Another task may release it, so whoever closes the circle waits, and is told in the log."""
    async with aiolock.connect(MemoryServer()) as client:
        a, b = client.lock("a"), client.lock("b")

        async def both() -> None:
            async with b:
                await settled()
                async with a:
                    await asyncio.sleep(3)  # the circle is open, and who waits for `b` waits on

        async def meet(seconds: float) -> list[logging.LogRecord]:
            tasks = {"passing": _passed_on(a, b, seconds), "other": both()}
            in_order = sorted(tasks.items(), key=lambda each: each[0] == closes)
            with logged() as records:
                await asyncio.gather(
                    *(asyncio.create_task(task, name=name) for name, task in in_order)
                )
            return records

        assert not await meet(0.5)
        (record,) = await meet(5)
        assert record.levelname == "WARNING"
        for words in (f"{closes!r} waits for the lock", "passed on", "multilock()"):
            assert words in record.getMessage()


@virtual
async def test_warning_of_a_child_waiting_for_its_parent_is_logged_once() -> None:
    """A child task that waits for a lock of its parent is told in the log, once, after a second."""
    with logged() as records:
        async with aiolock.connect(MemoryServer()) as client:
            lock = client.lock("a")

            async def enter() -> None:
                async with lock:
                    pass

            async with lock:
                quick = asyncio.create_task(enter(), name="quick")
                await asyncio.sleep(0.5)
            await quick
            assert not records
            async with lock:
                child = asyncio.create_task(enter(), name="child")
                await queued(lock, 1)
                await asyncio.sleep(0.9)
                assert not records
                await asyncio.sleep(5)
            await child
    (record,) = records
    assert record.levelname == "WARNING"
    for name in ("'child'", "the lock 'a'", "parent task"):
        assert name in record.getMessage()


@virtual
async def test_warning_of_many_waiting_children_is_one_line_with_their_number() -> None:
    """A line for each would say the same; a child that comes later has no line of its own."""
    with logged() as records:
        async with aiolock.connect(MemoryServer()) as client:
            lock = client.lock("a")

            async def enter(timeout: float | None = None) -> None:
                async with client.lock("a", timeout=timeout):
                    pass

            async with lock:
                gone = asyncio.create_task(enter(0.5))
                await asyncio.sleep(0.4)
                children = [asyncio.create_task(enter(), name=f"child {n}") for n in range(10)]
                await asyncio.sleep(0.9)
                assert not records
                await asyncio.sleep(0.2)
                assert len(records) == 1
                children.append(asyncio.create_task(enter()))
                await asyncio.sleep(5)
            with pytest.raises(aiolock.AcquireTimeout):
                await gone
            await asyncio.gather(*children)
            assert client._engine.acquirer.late.deadlocks.children == {}
            async with lock:
                children = [asyncio.create_task(enter()) for _ in range(2)]
                await asyncio.sleep(5)
            await asyncio.gather(*children)
    first, again = (record.getMessage() for record in records)
    assert "'child 0' and 9 more tasks wait for the lock 'a'" in first
    assert "and 1 more task wait for" in again


@virtual
async def test_warning_of_a_waiting_child_is_not_logged_for_an_unrelated_task() -> None:
    """A task that waits for one that is not its parent has nothing to be told."""
    async with aiolock.connect(MemoryServer()) as client:
        lock = client.lock("a")

        async def enter(seconds: float) -> None:
            async with lock:
                await asyncio.sleep(seconds)

        first = asyncio.create_task(enter(5))
        await settled()
        second = asyncio.create_task(enter(0))
        await settled()
        (waiting,) = client._engine.waiters.acquisitions["lock:a"].values()
        assert waiting.blocked is second
        with logged() as records:
            await asyncio.gather(first, second)
        assert not records
