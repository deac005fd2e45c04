"""Locks in procrastinate: `Locks` has the decorators, and the retry strategy that goes with them.

::

    locks = Locks(aiolock.connect("postgresql://app@db/shop"))


    @app.task(retry=locks.retry(3))
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None: ...
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from procrastinate import BaseRetryStrategy, RetryDecision
from procrastinate.jobs import Job
from procrastinate.retry import get_retry_strategy

from aiolock import LockClient, LockError
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks, TryAgain
from aiolock.options import Seconds

__all__ = ["Locks"]


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
