"""Locks in arq: `Locks` has the decorators, and opens and closes the client with the worker.

::

    locks = Locks(aiolock.connect("redis://localhost:6379/0"))


    @locks.locked("user:{user}")
    async def welcome(ctx, user): ...


    class WorkerSettings:
        functions = [welcome]
        on_startup = locks.startup
        on_shutdown = locks.shutdown

`hand` enqueues a job with a lease, which its worker adopts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from arq import ArqRedis, Retry
from arq.constants import retry_key_prefix
from arq.jobs import Job

from aiolock import Lease, LeaseToken, LockClient, LockError
from aiolock.integrations._handing import HANDED, hand_by
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks
from aiolock.options import Seconds

__all__ = ["Locks", "hand"]


class Locks(TaskLocks):
    """Decorators for arq's functions. A run that is put back is a `Retry`, and costs no try.

    If a program calls the function itself, the lock's error is raised instead.

    arq counts each run, and after ``max_tries`` of them the job has failed. A run that did not get
    its lock is taken off that count, even if its worker ended while it waited. A job that is put
    back for longer than a day expires, like any job.
    """

    def __init__(self, client: LockClient, *, retry_after: Seconds = RETRY_AFTER) -> None:
        super().__init__(
            client,
            retry_after=retry_after,
            put_back=self._retry,
            interrupted=_not_counted,
            opened_by="`on_startup = locks.startup`",
        )

    async def startup(self, ctx: dict[Any, Any]) -> None:
        """Open the client: arq's ``on_startup``. `StoreError` ends the worker."""
        await self.client.open()

    async def shutdown(self, ctx: dict[Any, Any]) -> None:
        """Close the client: arq's ``on_shutdown``, when all jobs have ended."""
        await self.client.aclose()

    async def _retry(self, error: LockError, args: Sequence[Any]) -> BaseException:
        if _job_of(args) is None:
            return error
        await _not_counted(args)
        return Retry(defer=self.retry_after)


async def _not_counted(args: Sequence[Any]) -> None:
    if (found := _job_of(args)) is not None:
        redis, job = found
        await redis.decr(f"{retry_key_prefix}{job}")


def _job_of(args: Sequence[Any]) -> tuple[ArqRedis, str] | None:
    """The pool and the id of the job that runs; None where a program calls the function itself."""
    ctx: dict[Any, Any] = args[0] if args else {}
    redis, job = ctx.get("redis"), ctx.get("job_id")
    return (redis, str(job)) if isinstance(redis, ArqRedis) and job is not None else None


async def hand(
    lease: Lease,
    redis: ArqRedis,
    function: str,
    *args: Any,
    ttl: Seconds = 60.0,
    label: str | None = None,
    **kwargs: Any,
) -> Job | None:
    """Enqueue a job, and hand a lease on to it: nobody else gets the lock in between.

    ::

        async with client.lock("order:42") as lease:
            await hand(lease, redis, "pack", 42)

    The lease ends here when this is called, as by `Lease.detach`, whose errors are those of this.
    The job adopts it, by its `Locks.locked` (or another decorator) of the same lock, or by
    `Locks.adopted`. If it is not enqueued, because of an error, or because
    there is a job of this ``_job_id`` (None), the lock is released.

    The token is the argument ``aiolock_lease`` of the job, and a secret. arq's log shows the
    arguments, but of a token only name and fence, unless the serializer is another than pickle.

    :param redis: the pool, by ``arq.create_pool``.
    :param function: with arguments and options (``_job_id``, …) as for its ``enqueue_job``.
    :param ttl: seconds until the lock is free if no worker has begun the job.
    :param label: shown in a status until then; the name of the function, if None.
    """

    async def send(token: LeaseToken) -> Job | None:
        arguments: dict[str, Any] = {**kwargs, HANDED: token}
        return await redis.enqueue_job(function, *args, **arguments)

    return await hand_by(lease, function, send, ttl=ttl, label=label)
