"""The integrations of task frameworks: each does the same, with a real worker and a real server."""

from __future__ import annotations

import asyncio
import gc
import importlib
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from saq import Job, Status

import aiolock
from aiolock.integrations import arq, saq
from aiolock.integrations._tasks import TaskLocks
from aiolock.integrations.arq import hand as hand_arq
from aiolock.integrations.saq import Locks as SaqLocks
from aiolock.integrations.saq import hand as hand_saq
from tests.support.failures import queued, take, until
from tests.support.servers import RedisServer
from tests.support.taskapps.arq import Arq
from tests.support.taskapps.procrastinate import Procrastinate
from tests.support.taskapps.saq import Saq
from tests.support.taskapps.tasks import App, Failed, Tasks

FRAMEWORKS = ["arq", "saq", "taskiq", "procrastinate"]

# arq is made for redis-py 5, and has never heard of what newer ones think of its arguments.
# And a worker that is told to end while redis-py connects leaves that connection to the collector.
LEFT = "Exception ignored in.*(Connection|StreamWriter|SelectorTransport|socket)"
pytestmark = pytest.mark.filterwarnings(
    "ignore:Call to .*deprecated:DeprecationWarning",
    f"ignore:{LEFT}:pytest.PytestUnraisableExceptionWarning",
)


@pytest.fixture
async def others(redis_server: RedisServer, prefix: str) -> AsyncGenerator[aiolock.LockClient]:
    """Somebody else."""
    async with aiolock.connect(redis_server.url, prefix=prefix) as client:
        yield client
        assert await client.snapshot() == []


@pytest.fixture
def tasks(redis_server: RedisServer, prefix: str) -> Tasks:
    """What the tasks of the test do."""
    return Tasks(aiolock.connect(redis_server.url, prefix=prefix))


@pytest.fixture(params=FRAMEWORKS)
async def app(
    request: pytest.FixtureRequest, tasks: Tasks, redis_server: RedisServer, prefix: str
) -> AsyncGenerator[App]:
    """An application of each framework."""
    url = redis_server.url
    if request.param == "procrastinate":
        url = request.getfixturevalue("postgres_server").url()
    module = importlib.import_module(f"tests.support.taskapps.{request.param}")
    async with module.application(tasks, url, prefix) as app:
        yield app
    gc.collect()  # what is not closed is told of here, and not in another test


async def test_locked_task_whose_lock_is_held_is_put_back_without_costing_a_try(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """A task whose lock is held is put back, as often as it takes, and that costs no try."""
    tasks.go.set()
    async with others.lock("user:7") as lease, app.working():
        sent = await app.send("welcome", 7)
        for _ in range(3):
            await queued(others.lock("user:7"), 1)
            await queued(others.lock("user:7"), 0)
        assert not tasks.begun
        assert await lease.release()
        result = await app.done(sent)
    assert result == ("welcome 7 in run 1" if app.keeps_results else None)
    ((_, fence),) = tasks.begun
    assert fence > lease.fence


async def test_once_task_sent_several_times_runs_once_and_all_have_its_result(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """What is sent twice is done once; both have the result of that, also while it goes on."""
    async with app.working():
        sent = [await app.send("pay", 42), await app.send("pay", 42)]
        await until(lambda: tasks.begun)
        await queued_once(others, "payment:42")
        tasks.go.set()
        results = [await app.done(each) for each in sent]
        results.append(await app.done(await app.send("pay", 42)))
    assert results == 3 * ["pay 42 in run 1" if app.keeps_results else None]
    assert [what for what, _ in tasks.begun] == ["pay 42"]


async def queued_once(client: aiolock.LockClient, name: str) -> None:
    """Return when somebody waits for the outcome."""
    async with asyncio.timeout(30):
        while not (await client.status(name, kind="once")).waiters:  # noqa: ASYNC110  # tells nobody
            await asyncio.sleep(0.005)


async def test_limited_task_runs_as_often_at_once_as_its_limit(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """Of ten there are two at a time, while the worker has places for all."""
    async with app.working():
        sent = [await app.send("call", number) for number in range(10)]
        await until(lambda: tasks.inside == 2)
        tasks.go.set()
        for each in sent:
            await app.done(each)
    assert tasks.most == 2
    assert len(tasks.begun) == 10


async def test_locked_task_that_loses_its_lock_is_cancelled_and_run_again(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """A task whose lock is lost is cancelled, and run again."""
    async with app.working():
        sent = await app.send("welcome", 7)
        await until(lambda: tasks.begun)
        assert await others.lock("user:7").break_()
        await until(lambda: len(tasks.begun) == 2)
        tasks.go.set()
        await app.done(sent)
    assert tasks.cancelled == 1
    assert len(tasks.begun) == 2


@pytest.mark.parametrize("error", [ValueError, aiolock.AcquireTimeout])
async def test_locked_task_that_raises_an_error_of_its_own_fails_and_releases(
    app: App, tasks: Tasks, others: aiolock.LockClient, error: type[Exception]
) -> None:
    """A task that raises has failed, as ever, whatever it raises; its lock is given back."""
    tasks.fails = error("of its own")
    tasks.go.set()
    async with app.working():
        with pytest.raises(Failed):
            await app.done(await app.send("welcome", 7))
        assert len(tasks.begun) == 1
        await app.done(await app.send("welcome", 7))


async def test_worker_stopped_while_a_task_waits_leaves_it_to_another_worker(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """A worker that ends leaves the lock's queue, and the task to another worker."""
    tasks.go.set()
    lease = await take(others.lock("user:7"))
    async with app.working():
        sent = await app.send("patient" if app.interrupts else "welcome", 7)
        await queued(others.lock("user:7"), 1)
    assert not (await others.lock("user:7").status()).waiters
    await lease.release()
    async with app.working():
        await app.done(sent)
    assert len(tasks.begun) == 1


async def test_handed_lease_is_adopted_by_the_task_before_any_waiter(
    app: App, tasks: Tasks, others: aiolock.LockClient, caplog: pytest.LogCaptureFixture
) -> None:
    """A task has the lock that was handed on to it, and who waited before it has it afterwards."""
    caplog.set_level(logging.INFO)
    tasks.go.set()
    async with others.lock("user:7") as lease:
        waiting = asyncio.create_task(take(others.lock("user:7")))
        await queued(others.lock("user:7"), 1)
        sent = await app.hand(lease, "welcome", 7)
    (holder,) = (await others.lock("user:7").status()).holders
    assert (holder.detached, "welcome" in holder.label) == (True, True)
    assert not waiting.done()
    async with app.working():
        result = await app.done(sent)
        next_ = await waiting
    assert result == ("welcome 7 in run 1" if app.keeps_results else None)
    ((_, fence),) = tasks.begun
    assert lease.fence < fence < next_.fence
    await next_.release()
    if not isinstance(app, Procrastinate):  # its messages are arguments only, and it logs these
        assert "alk1." not in caplog.text


async def test_handed_task_that_loses_its_lease_is_run_again_with_a_new_one(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """The token is spent when the task is run again: it acquires its lock then."""
    async with others.lock("user:7") as lease:
        sent = await app.hand(lease, "welcome", 7)
    async with app.working():
        await until(lambda: tasks.begun)
        assert await others.lock("user:7").break_()
        await until(lambda: len(tasks.begun) == 2)
        tasks.go.set()
        await app.done(sent)
    (_, first), (_, second) = tasks.begun
    assert lease.fence < first < second


async def test_handed_once_is_done_by_the_task_and_remembered_with_its_result(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """A task that is sent afterwards has the result of the one that the work was handed to."""
    tasks.go.set()
    async with others.once("payment:42", remember=60) as lease:
        assert lease is not None
        sent = [await app.hand(lease, "pay", 42)]
    async with app.working():
        results = [await app.done(sent[0])]
        results.append(await app.done(await app.send("pay", 42)))
    assert results == 2 * ["pay 42 in run 1" if app.keeps_results else None]
    assert len(tasks.begun) == 1


async def test_adopted_task_runs_once_with_its_lease_and_fails_without_one(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """It has no lock of its own: it fails for a token that is spent, and without a token."""
    tasks.go.set()
    async with app.working():
        async with others.semaphore("packers", 2) as lease:
            sent = await app.hand(lease, "pack", 42)
        await app.done(sent)
        assert [what for what, _ in tasks.begun] == ["pack 42"]
        assert not (await others.semaphore("packers", 2).status()).holders
        with pytest.raises(Failed):
            await app.done(await app.send("pack", 42))
    async with others.lock("order:42") as lease:
        sent = await app.hand(lease, "pack", 42)
        assert await others.lock("order:42").break_()
    async with app.working():
        with pytest.raises(Failed):
            await app.done(sent)
    assert len(tasks.begun) == 1


@pytest.mark.parametrize("app", ["arq", "saq"], indirect=True)
async def test_hand_of_a_job_that_is_queued_already_is_none_and_releases_the_lock(
    app: App, others: aiolock.LockClient
) -> None:
    """A job of the same id or key waits, so nothing is enqueued."""
    for enqueued in (True, False):
        async with others.lock("user:7", timeout=10) as lease:
            if isinstance(app, Arq):
                sent: object = await hand_arq(lease, app.pool, "welcome", 7, _job_id=app.queue)
            else:
                assert isinstance(app, Saq)
                job = Job("welcome", kwargs={"user": 7}, key="x", meta={"mine": 1})
                sent = await hand_saq(lease, app.queue, job)
                assert job.meta["mine"] == 1
            assert (sent is not None) == enqueued
        if enqueued:
            assert await others.lock("user:7").break_()
    async with others.lock("user:7", timeout=10):
        pass


@pytest.mark.parametrize(
    ("framework", "opens"),
    [
        ("arq", "on_startup = locks.startup"),
        ("saq", '"startup": locks.startup'),
        ("taskiq", "with_middlewares(locks)"),
        ("faststream", "lifespan=locks.lifespan"),
    ],
)
async def test_task_whose_client_is_not_open_fails_and_says_what_opens_it(
    framework: str, opens: str
) -> None:
    """It is the usual mistake, and a worker has no place for an `async with`."""
    module = importlib.import_module(f"aiolock.integrations.{framework}")
    locks: TaskLocks = module.Locks(aiolock.connect("memory://"))

    @locks.locked("x")
    async def task(ctx: object = None) -> None:
        """Never called."""

    with pytest.raises(aiolock.ClientClosed, match="not open yet") as raised:
        await task()
    assert opens in raised.value.__notes__[0]


async def test_saq_job_with_too_many_attempts_is_put_back_while_it_waits() -> None:
    """A job in SAQ that has more attempts than retries, as a worker died, is put back all the same.

    However the waiting ends: with its worker, or with its time.
    """
    async with aiolock.connect("memory://") as client:
        locks = SaqLocks(client)

        @locks.locked("user", timeout=0.02)
        async def welcome(ctx: object) -> None: ...

        @locks.locked("user")
        async def patient(ctx: object) -> None: ...

        async with client.lock("user"):
            for function in (welcome, patient):
                job = Job("welcome", retries=1, attempts=2)
                run = asyncio.create_task(function({"job": job}))
                if function is patient:
                    await queued(client.lock("user"), 1)
                    run.cancel()
                await asyncio.gather(run, return_exceptions=True)
                assert (job.attempts, job.retryable) == (0, True)


@pytest.mark.parametrize("app", ["saq"], indirect=True)
async def test_saq_job_loses_no_attempt_to_workers_that_end_while_it_waits(
    app: App, tasks: Tasks, others: aiolock.LockClient
) -> None:
    """A job in SAQ has lost no attempt by workers that ended while it waited for its lock."""
    lease = await take(others.lock("user:7"))
    sent = await app.send("patient", 7)
    for _ in range(2):
        async with app.working():
            await queued(others.lock("user:7"), 1)
        await sent.refresh()
        assert (sent.status, sent.attempts) == (Status.QUEUED, 0)
    await lease.release()
    tasks.go.set()
    async with app.working():
        await app.done(sent)
    assert sent.attempts == 1


@pytest.mark.parametrize("module", [arq, saq])
async def test_locked_task_called_without_a_worker_raises_acquire_timeout(module: Any) -> None:
    """As in a test of it, or by another task: nobody would put it back."""
    async with aiolock.connect("memory://") as client:
        locks = module.Locks(client)

        async def welcome(ctx: dict[str, Any], user: int) -> None:
            raise AssertionError

        task = locks.locked("user:{user}", timeout=0)(welcome)
        async with client.lock("user:7"):
            for ctx in ({}, {"redis": object(), "job_id": "x"}):
                with pytest.raises(aiolock.AcquireTimeout):  # in a task that does not hold it
                    await asyncio.create_task(task(ctx, 7))
