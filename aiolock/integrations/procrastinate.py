"""Locks in procrastinate: `Locks` has the decorators, and the retry strategy that goes with them.

::

    locks = Locks(aiolock.connect("postgresql://app@db/shop"))


    @app.task(retry=locks.retry(3))
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None: ...
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from procrastinate import BaseRetryStrategy, RetryDecision
from procrastinate.jobs import Job
from procrastinate.retry import get_retry_strategy

from aiolock import LockError
from aiolock.integrations._tasks import Body, TaskLocks, TryAgain, can_pass

__all__ = ["Locks"]

T = TypeVar("T")


class Locks(TaskLocks):
    """Decorators for procrastinate's async tasks, and `retry`, which puts jobs back.

    The first job that needs the client opens it. If you can, open it before the worker starts, and
    close it after the worker has ended.
    """

    def retry(self, own: int | BaseRetryStrategy = 0) -> BaseRetryStrategy:
        """The ``retry`` of a task that has one of the decorators.

        A job that did not get its lock is tried again after ``retry_after`` seconds, as often as
        necessary. Other errors are left to ``own``, which is any value that ``retry`` may have.
        procrastinate counts every run as an attempt, including those without the lock.
        """
        return _Retry(get_retry_strategy(own), self.retry_after)

    async def _put_back(self, error: LockError, args: Sequence[Any]) -> BaseException:
        return TryAgain(str(error))

    async def _or_put_back(self, run: Callable[[Body], Awaitable[T]], args: Sequence[Any]) -> T:
        try:
            await self.client.open()
        except LockError as error:
            if not can_pass(error):
                raise
            put_back = await self._put_back(error, args)
            self._put_back_log.add(error, put_back)
            raise put_back from error
        return await super()._or_put_back(run, args)


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
