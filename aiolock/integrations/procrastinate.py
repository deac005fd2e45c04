"""Locks in procrastinate: `Locks` has the decorators, and the retry strategy that goes with them.

::

    locks = Locks(aiolock.connect("postgresql://app@db/shop"))


    @app.task(retry=locks.retry(3))
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None: ...

`hand` defers a job with a lease, which its worker adopts.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from procrastinate import BaseRetryStrategy, RetryDecision
from procrastinate.jobs import Job, JobDeferrer
from procrastinate.retry import get_retry_strategy
from procrastinate.tasks import Task

from aiolock import Lease, LeaseToken, LockClient, LockError
from aiolock.integrations._handing import HANDED, check_adopts, hand_by
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks, TryAgain
from aiolock.options import Seconds

__all__ = ["Locks", "hand"]


class Locks(TaskLocks):
    """Decorators for procrastinate's async tasks, and `retry`, which puts jobs back.

    The first job that needs the client opens it. If you can, open it before the worker starts, and
    close it after the worker has ended.
    """

    def __init__(self, client: LockClient, *, retry_after: Seconds = RETRY_AFTER) -> None:
        super().__init__(client, retry_after=retry_after, put_back=_put_back, begin=self._open)

    def retry(self, own: int | BaseRetryStrategy = 0) -> BaseRetryStrategy:
        """The ``retry`` of a task that has one of the decorators.

        A job that did not get its lock is tried again after ``retry_after`` seconds, as often as
        necessary. Other errors are left to ``own``, which is any value that ``retry`` may have.
        procrastinate counts every run as an attempt, including those without the lock.
        """
        return _Retry(get_retry_strategy(own), self.retry_after)

    async def _open(self, _: Sequence[Any]) -> None:
        await self.client.open()


async def _put_back(error: LockError, _: Sequence[Any]) -> BaseException:
    return TryAgain(str(error))


class _Retry(BaseRetryStrategy):
    def __init__(self, own: BaseRetryStrategy | None, after: float) -> None:
        self._own = own
        self._after = timedelta(seconds=after)

    def get_retry_decision(self, *, exception: BaseException, job: Job) -> RetryDecision | None:
        """Put the job back, or decide as ``own`` does; called by procrastinate."""
        if isinstance(exception, TryAgain):
            return RetryDecision(retry_at=datetime.now(UTC) + self._after)
        if self._own is None:
            return None
        retry = self._own.get_retry_exception(exception, job)
        return None if retry is None else retry.retry_decision


async def hand(
    lease: Lease,
    task: Task[..., Any, Any] | JobDeferrer,
    *,
    ttl: Seconds = 60.0,
    label: str | None = None,
    **task_kwargs: Any,
) -> int:
    """Defer a job, and hand a lease on to it: nobody else gets the lock in between.

    ::

        async with client.lock("order:42") as lease:
            await hand(lease, pack, order=42)

    The lease ends here when this is called, as by `Lease.detach`, whose errors are those of this.
    The job adopts it, by its `Locks.locked` (or another decorator) of the same lock, or by
    `Locks.adopted`. If it cannot be deferred, as because of its
    ``queueing_lock``, that error is raised, and the lock is released. Returns the id of the job.

    The token is the argument ``aiolock_lease`` of the job, and a secret: procrastinate has no other
    place for it, so it is in the table of jobs until the job is deleted.

    :param task: the task, or what its ``configure`` returns. `TypeError` for a task that has none
        of the decorators.
    :param ttl: seconds until the lock is free if no worker has begun the job.
    :param label: shown in a status until then; the name of the task, if None.
    """
    if isinstance(task, Task):
        check_adopts(task.name, task.func)
        deferrer = task.configure()
    else:
        deferrer = task

    async def send(token: LeaseToken) -> int:
        return await deferrer.defer_async(**task_kwargs, **{HANDED: token})

    return await hand_by(lease, deferrer.job.task_name, send, ttl=ttl, label=label)
