"""APScheduler: schedulers that have the same jobs, each as in a process of its own."""

from __future__ import annotations

import asyncio
import logging
import math
import threading
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from apscheduler.events import (  # type: ignore[import-untyped]  # has none
    EVENT_JOB_ERROR,
    EVENT_JOB_EXECUTED,
)
from apscheduler.schedulers.asyncio import (  # type: ignore[import-untyped]  # has none
    AsyncIOScheduler,
)
from apscheduler.schedulers.base import (  # type: ignore[import-untyped]  # has none
    STATE_STOPPED,
)

import aiolock
from aiolock.integrations.apscheduler import SharedExecutor
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore, Operation
from tests.support.failures import until


class Scheduler:
    """One of many."""

    def __init__(self, client: aiolock.LockClient) -> None:
        self.executor = SharedExecutor(client)
        self.scheduler = AsyncIOScheduler(executors={"default": self.executor}, timezone=UTC)
        self.ended = 0
        """Jobs that this one has submitted, and that are over, or were left out."""
        self.events = list[Any]()
        self.scheduler.add_listener(self.events.append, EVENT_JOB_EXECUTED | EVENT_JOB_ERROR)

    def add(self, job: Callable[..., Any], when: datetime, **options: Any) -> None:
        """Add a job that runs once, at that time."""
        options = {"id": "job", "misfire_grace_time": None} | options
        self.scheduler.add_job(job, "date", run_date=when, **options)

    async def idle(self) -> None:
        """Wait until all that was due is over."""
        await until(lambda: not self.scheduler.get_jobs() and not self.executor._pending_futures)


@asynccontextmanager
async def schedulers(
    count: int, store: Any = None, *, ttl: float = 30
) -> AsyncGenerator[list[Scheduler]]:
    """So many, which run."""
    server = MemoryServer()
    async with AsyncExitStack() as stack:
        started = list[Scheduler]()
        for _ in range(count):
            client = await stack.enter_async_context(aiolock.connect(store or server, ttl=ttl))
            started.append(Scheduler(client))
            started[-1].scheduler.start()
        try:
            yield started
        finally:
            for each in started:
                each.scheduler.shutdown()
                await asyncio.sleep(0)
                await until(lambda each=each: not each.executor._pending_futures)  # type: ignore[misc]  # mypy knows no such lambda


PAST = datetime.now(UTC) - timedelta(seconds=1)


async def test_run_time_of_a_job_of_several_schedulers_runs_once() -> None:
    """However many have the job, also those that are late, and of each run time one."""
    begun = list[int]()

    async def job(number: int) -> None:
        begun.append(number)

    async with schedulers(3) as started:
        for number, when in enumerate((PAST, PAST + timedelta(microseconds=1))):
            for each in started[:2]:
                each.add(job, when, args=[number])
            for each in started[:2]:
                await each.idle()
            started[2].add(job, when, args=[number])
            await started[2].idle()
        assert begun == [0, 1]
        assert sum(len(each.events) for each in started) == 2


async def test_run_that_failed_is_not_repeated_by_another_scheduler() -> None:
    """Its error is in the event of the scheduler that ran it, and that is all."""

    async def job() -> None:
        raise aiolock.AcquireTimeout("of its own")

    async with schedulers(2) as (first, second):
        first.add(job, PAST)
        await first.idle()
        second.add(job, PAST)
        await second.idle()
        assert [event.code for event in first.events] == [EVENT_JOB_ERROR]
        assert isinstance(first.events[0].exception, aiolock.AcquireTimeout)
        assert not second.events


async def test_run_whose_scheduler_renews_no_more_is_not_repeated() -> None:
    """A run whose scheduler renews nothing any more ends with its lease, and is not repeated."""
    server = MemoryServer()
    store = FaultyStore(MemoryStore(server))
    begun = list[str]()

    async def job(who: str) -> None:
        begun.append(who)
        store.refuse("renew", math.inf)
        await asyncio.Event().wait()

    async with schedulers(1, server) as (second,), schedulers(1, store, ttl=0.5) as (first,):
        first.add(job, PAST, args=["first"])
        await first.idle()
        second.add(job, PAST, args=["second"])
        await second.idle()
        assert not await second.executor._client.lock("job").locked()
    assert begun == ["first"]


@pytest.mark.parametrize("most", [1, 2])
async def test_max_instances_holds_across_all_schedulers(most: int) -> None:
    """A run time is left out for which there is no room, in whichever process the others run."""
    go = asyncio.Event()
    begun = list[int]()

    async def job(number: int) -> None:
        begun.append(number)
        await go.wait()

    async with schedulers(3) as started:
        for number, each in enumerate(started):
            when = PAST + timedelta(microseconds=number)
            each.add(job, when, args=[number], max_instances=most)
            await until(lambda each=each: not each.scheduler.get_jobs())  # type: ignore[misc]  # mypy knows no such lambda
            if number < most:
                await until(lambda number=number: len(begun) == number + 1)  # type: ignore[misc]  # as above
        await started[2].idle()
        assert begun == list(range(most))
        go.set()


async def test_run_that_loses_its_lock_is_cancelled(caplog: pytest.LogCaptureFixture) -> None:
    """A run that loses its lock is cancelled, and told of in APScheduler's log."""
    begun = asyncio.Event()
    cancelled = list[str]()

    async def job() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            cancelled.append(str(error))
            raise

    async with schedulers(2) as (first, second):
        first.add(job, PAST)
        await begun.wait()
        assert await second.executor._client.lock("job").break_()
        await first.idle()
        assert cancelled == ["the lock 'job' was lost"]
        (logged,) = (each for each in caplog.records if each.message == "Error running job job")
        assert logged.name.startswith("apscheduler")
        assert logged.exc_info is not None
        assert isinstance(logged.exc_info[1], aiolock.LeaseLost)
        assert not second.events


async def test_synchronous_job_holds_its_lock_until_its_thread_has_ended() -> None:
    """It runs in a thread, and the lock is held until it has ended."""
    loop = asyncio.get_running_loop()
    begun, go = asyncio.Event(), threading.Event()

    def job() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(30)

    async with schedulers(1) as (only,):
        only.add(job, PAST)
        await begun.wait()
        assert await only.executor._client.lock("job").locked()
        go.set()
        await only.idle()
        assert [event.code for event in only.events] == [EVENT_JOB_EXECUTED]


class Slow(ThreadPoolExecutor):
    """One thread, which has taken what it is to call, but does not call it before it may go on."""

    def __init__(self) -> None:
        super().__init__(1)
        self.has_taken, self.go = threading.Event(), threading.Event()

    def submit(self, call: Callable[..., Any], /, *args: Any, **options: Any) -> Future[Any]:
        """Have it called, some time."""

        def slowly() -> Any:
            self.has_taken.set()
            assert self.go.wait(30)
            return call(*args, **options)

        return super().submit(slowly)


@pytest.mark.parametrize("free", [True, False])
@pytest.mark.parametrize("by", ["loss", "shutdown"])
async def test_synchronous_job_cancelled_before_its_thread_began_is_not_called(
    by: str, *, free: bool
) -> None:
    """It is over at once, and its function is not called later, whether a thread has taken it."""
    begun, pool = list[None](), Slow()
    asyncio.get_running_loop().set_default_executor(pool)
    try:
        async with aiolock.connect("memory://") as client:
            if not free:
                pool.submit(int)
                await until(pool.has_taken.is_set)
            only = Scheduler(client)
            only.scheduler.start()
            only.add(lambda: begun.append(None), PAST)
            await until(pool.has_taken.is_set if free else pool._work_queue.qsize)
            if by == "loss":
                assert await client.lock("job").break_()
                await only.idle()
            only.scheduler.shutdown()
            await only.idle()
            async with client.lock("job", timeout=10):  # the thread may go on when this is left
                pool.go.set()
                await asyncio.wrap_future(pool.submit(int))  # behind it in the queue
                assert not begun
    finally:
        pool.go.set()


@pytest.mark.parametrize("wait", [True, False])
async def test_shutdown_or_aclose_during_a_synchronous_job_keeps_its_lock_held(wait: bool) -> None:
    """Its lock is held until it has ended: by the scheduler's end, and by that of the client."""
    loop, server = asyncio.get_running_loop(), MemoryServer()
    begun, go = asyncio.Event(), threading.Event()

    def job() -> None:
        loop.call_soon_threadsafe(begun.set)
        assert go.wait(30)

    async with aiolock.connect(server) as others, aiolock.connect(server) as client:
        ending = Scheduler(client)
        ending.scheduler.start()
        ending.add(job, PAST)
        await begun.wait()
        ending.scheduler.shutdown(wait=wait)
        closing = asyncio.create_task(client.aclose())
        await until(lambda: ending.scheduler.state == STATE_STOPPED)
        await asyncio.sleep(0.05)
        try:
            assert not closing.done()
            assert await others.lock("job").locked()
        finally:
            go.set()
        await closing
        assert not await others.lock("job").locked()


@pytest.mark.parametrize("operation", ["acquire", "finish"])
async def test_run_whose_store_fails_is_not_begun_and_is_logged(
    operation: Operation, caplog: pytest.LogCaptureFixture
) -> None:
    """Nobody begins what may have been begun or be forgotten, and APScheduler's log says why."""
    store = FaultyStore(MemoryStore(MemoryServer()))
    begun = list[None]()

    async def job() -> None:
        begun.append(None)

    async with schedulers(1, store, ttl=1) as (only,):
        store.refuse(operation, math.inf if operation == "finish" else 1)
        only.add(job, PAST)
        await only.idle()
        assert not begun
    assert any("Error running job job" in record.message for record in caplog.records)


async def test_job_without_an_id_is_refused_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    """It would have another one in each process: it is refused."""

    async def job() -> None:
        raise AssertionError

    async with schedulers(1) as (only,):
        only.add(job, PAST, id=None)
        await only.idle()
        assert not only.events
    (record,) = (record for record in caplog.records if record.levelno == logging.ERROR)
    assert record.exc_info is not None
    assert "a job of a SharedExecutor needs an id" in str(record.exc_info[1])


def test_shared_executor_with_invalid_arguments_raises_type_or_value_error() -> None:
    """The texts say what it takes."""
    with pytest.raises(TypeError, match=r"what connect\(\) gives"):
        SharedExecutor("memory://")  # type: ignore[arg-type]  # that is the test
    with pytest.raises(ValueError, match="remember"):
        SharedExecutor(aiolock.connect("memory://"), remember=0)
