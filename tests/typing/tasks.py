"""What type checkers see of the integrations for tasks. Checked by mypy and pyright; never run."""

from __future__ import annotations

from typing import Any, assert_type

from arq import ArqRedis
from arq.jobs import Job as ArqJob
from arq.worker import Worker as ArqWorker
from celery import Task
from celery.result import AsyncResult
from saq import Job as SaqJob
from saq import Worker as SaqWorker
from saq.queue import Queue
from saq.types import Context
from taskiq import AsyncTaskiqTask, InMemoryBroker

import aiolock
import aiolock.sync
from aiolock.integrations import apscheduler, arq, celery, faststream, procrastinate, saq, taskiq

client = aiolock.connect("memory://")
threads = aiolock.sync.connect("memory://")

with_arq = arq.Locks(client, retry_after=5)
arq.Locks(threads)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # not for tasks
celery.Locks(client)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # not for threads
faststream.Locks(client)
procrastinate.Locks(client).retry(3)
apscheduler.SharedExecutor(client, remember=60)
with_arq.locked("x", timeout="1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # seconds
with_arq.limited("x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # of how many?
with_arq.once("x")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]  # for how long?
assert_type(with_arq.current_lease(), aiolock.Lease)
assert_type(with_arq.client, aiolock.LockClient)


@with_arq.locked("user:{user}")
async def for_arq(ctx: dict[Any, Any], user: int) -> str:
    """A function of arq stays one."""
    return str(user)


ArqWorker([for_arq], on_startup=with_arq.startup, on_shutdown=with_arq.shutdown)

with_saq = saq.Locks(client)


@with_saq.limited("calls", 5)
async def for_saq(ctx: Context, *, user: int) -> str:
    """So does one of SAQ."""
    return str(user)


def worker(queue: Queue) -> SaqWorker[Context]:
    """And its hooks are such."""
    return SaqWorker(queue, [for_saq], startup=with_saq.startup, shutdown=[with_saq.shutdown])


with_taskiq = taskiq.Locks(client)
broker = InMemoryBroker().with_middlewares(with_taskiq)


@broker.task
@with_taskiq.once("payment:{order}", remember=60)
async def for_taskiq(order: int) -> str:
    """A task has the parameters of its function."""
    return str(order)


with_celery = celery.Locks(threads)


@with_celery.once("payment:{order}", remember=60)
def for_celery(order: int) -> str:
    """Whoever comes later may get nothing."""
    assert_type(with_celery.current_lease(), aiolock.sync.Lease)
    return str(order)


@with_arq.adopted(ttl=30)
async def adopts(ctx: dict[Any, Any], order: int) -> int:
    """A task that is handed its lease stays what it is."""
    return order


@with_celery.adopted()
def adopts_in_a_thread(order: int) -> int:
    """And so does a function."""
    return order


async def handing(
    lease: aiolock.Lease,
    of_a_thread: aiolock.sync.Lease,
    redis: ArqRedis,
    queue: Queue,
    task: Task[..., Any],
) -> None:
    """Each returns what its framework does."""
    assert_type(await arq.hand(lease, redis, "adopts", 42, _job_id="x"), ArqJob | None)
    assert_type(await saq.hand(lease, queue, "adopts", user=7), SaqJob | None)
    assert_type(await taskiq.hand(lease, for_taskiq, 42, ttl=9), AsyncTaskiqTask[Any])
    assert_type(await taskiq.hand(lease, for_taskiq.kicker(), 42), AsyncTaskiqTask[Any])
    assert_type(celery.hand(of_a_thread, task, 42), AsyncResult[Any])
    assert_type(await celery.hand(lease, task.s(), 42), AsyncResult[Any])
    assert_type(await adopts({}, 42), int)
    assert_type(adopts_in_a_thread(42), int)
    await arq.hand(of_a_thread, redis, "adopts")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # not for tasks


async def called() -> None:
    """As said."""
    await for_taskiq.kiq(42)
    await for_taskiq.kiq("42")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue, reportArgumentType]  # a number
    assert_type(await for_arq({}, 7), str)
    assert_type(for_celery(42), str | None)
    for_celery("42")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]  # a number
    assert_type(await for_saq({}, user=7), str)  # type: ignore[typeddict-item]  # pyright: ignore[reportArgumentType]  # a worker
