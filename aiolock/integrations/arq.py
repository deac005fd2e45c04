"""Locks in arq: `Locks` has the decorators, and opens and closes the client with the worker.

::

    locks = Locks(aiolock.connect("redis://localhost:6379/0"))


    @locks.locked("user:{user}")
    async def welcome(ctx, user): ...


    class WorkerSettings:
        functions = [welcome]
        on_startup = locks.startup
        on_shutdown = locks.shutdown
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arq import ArqRedis, Retry
from arq.constants import retry_key_prefix

from aiolock import LockClient, LockError
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks
from aiolock.options import Seconds

__all__ = ["Locks"]


class Locks(TaskLocks):
    """Decorators for arq's functions. A run that is put back is a `Retry`, and costs no try.

    arq counts each run, and after ``max_tries`` of them the job has failed. A run that did not get
    its lock is taken off that count, even if its worker ended while it waited. A job that is put
    back for longer than a day expires, like any job.
    """

    def __init__(self, client: LockClient, *, retry_after: Seconds = RETRY_AFTER) -> None:
        super().__init__(
            client, retry_after=retry_after, put_back=self._retry, interrupted=_not_counted
        )

    async def startup(self, ctx: dict[Any, Any]) -> None:
        """Open the client: arq's ``on_startup``. `StoreError` ends the worker."""
        await self.client.open()

    async def shutdown(self, ctx: dict[Any, Any]) -> None:
        """Close the client: arq's ``on_shutdown``, when all jobs have ended."""
        await self.client.aclose()

    async def _retry(self, _: LockError, args: Sequence[Any]) -> BaseException:
        await _not_counted(args)
        return Retry(defer=self.retry_after)


async def _not_counted(args: Sequence[Any]) -> None:
    ctx: dict[Any, Any] = args[0] if args else {}
    redis, job = ctx.get("redis"), ctx.get("job_id")
    if isinstance(redis, ArqRedis) and job is not None:
        await redis.decr(f"{retry_key_prefix}{job}")
