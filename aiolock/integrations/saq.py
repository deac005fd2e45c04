"""Locks in SAQ: `Locks` has the decorators, and opens and closes the client with the worker.

::

    locks = Locks(aiolock.connect("redis://localhost:6379/0"))


    @locks.locked("user:{user}")
    async def welcome(ctx, *, user): ...


    settings = {
        "queue": Queue.from_url("redis://localhost:6379/0"),
        "functions": [welcome],
        "startup": locks.startup,
        "shutdown": locks.shutdown,
    }

`hand` enqueues a job with a lease, which its worker adopts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from saq import Job, Queue
from saq.types import Context

from aiolock import Lease, LeaseToken, LockClient, LockError
from aiolock.integrations._handing import HANDED, Carrier, hand_by
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks, TryAgain
from aiolock.options import Seconds

__all__ = ["Locks", "hand"]

_OWN: Final = "aiolock"
"""Key in the meta data of a job: how long it waits after a failure of its own."""


class Locks(TaskLocks):
    """Decorators for SAQ's functions. A run that is put back raises, and costs no attempt.

    SAQ puts back a job that raises, as long as ``retries`` are left. A run that did not get its
    lock is not counted as an attempt, and waits ``retry_after`` seconds, whatever the job's
    ``retry_delay`` is. It is not counted either if it was cancelled while it waited, because its
    worker ended or the job's ``timeout`` had passed: SAQ puts that back by itself.
    """

    def __init__(self, client: LockClient, *, retry_after: Seconds = RETRY_AFTER) -> None:
        super().__init__(
            client,
            retry_after=retry_after,
            put_back=self._try_again,
            begin=_restore,
            interrupted=_not_counted,
            carrier=_meta,
            opened_by='`"startup": locks.startup`',
        )

    async def startup(self, ctx: Context) -> None:
        """Open the client: SAQ's ``startup``. `StoreError` ends the worker."""
        await self.client.open()

    async def shutdown(self, ctx: Context) -> None:
        """Close the client: SAQ's ``shutdown``, when all jobs have ended."""
        await self.client.aclose()

    async def _try_again(self, error: LockError, args: Sequence[Any]) -> BaseException:
        job = _job(args)
        if job is None:
            return error
        job.meta[_OWN] = [job.retry_delay, job.retry_backoff]
        job.retry_delay, job.retry_backoff = self.retry_after, False
        job.attempts = min(job.attempts, job.retries) - 1
        return TryAgain(str(error))


async def _restore(args: Sequence[Any]) -> None:
    job = _job(args)
    own = None if job is None else job.meta.pop(_OWN, None)
    if job is not None and own is not None:
        job.retry_delay, job.retry_backoff = own


async def _not_counted(args: Sequence[Any]) -> None:
    job = _job(args)
    if job is not None:
        # SAQ stores the job when it puts it back, after this.
        job.attempts = min(job.attempts, job.retries) - 1


def _meta(args: Sequence[Any], _: dict[str, Any]) -> Carrier:
    job = _job(args)
    return {} if job is None else job.meta


def _job(args: Sequence[Any]) -> Job | None:
    ctx: Mapping[str, Any] = args[0] if args else {}
    job = ctx.get("job")
    return job if isinstance(job, Job) else None


async def hand(
    lease: Lease,
    queue: Queue,
    job_or_func: str | Job,
    *,
    ttl: Seconds = 60.0,
    label: str | None = None,
    **kwargs: Any,
) -> Job | None:
    """Enqueue a job, and hand a lease on to it: nobody else gets the lock in between.

    ::

        async with client.lock("order:42") as lease:
            await hand(lease, queue, "pack", order=42)

    The lease ends here when this is called, as by `Lease.detach`, whose errors are those of this.
    The job adopts it, by its `Locks.locked` (or another decorator) of the same lock, or by
    `Locks.adopted`. If it is not enqueued, because of an error, or because
    there is a job of this ``key`` (None), the lock is released.

    The token is in the ``meta`` of the job, and a secret: SAQ logs it only at level debug, or
    if SAQ itself fails to run the job.

    :param job_or_func: with arguments and properties (``key``, …) as for ``queue.enqueue``.
    :param ttl: seconds until the lock is free if no worker has begun the job. (A job's own ``ttl``
        must be in a ``Job``.)
    :param label: shown in a status until then; the name of the function, if None.
    """
    name = job_or_func if isinstance(job_or_func, str) else job_or_func.function
    given = kwargs.pop("meta", None) or ({} if isinstance(job_or_func, str) else job_or_func.meta)

    async def send(token: LeaseToken) -> Job | None:
        return await queue.enqueue(job_or_func, meta={**given, HANDED: token}, **kwargs)

    return await hand_by(lease, name, send, ttl=ttl, label=label)
