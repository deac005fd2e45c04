"""`Periodic`: a job that the instances of a program run in turn, once in each period.

After each run its lock stays closed to the end of the period (by the store's clock), so the job
runs once. Every instance waits in the queue of the lock, and after a run at the end of it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import replace
from typing import Any, Final, NoReturn

from aiolock._engine.lease import Lease
from aiolock._engine.policy import Policy
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.lock import Lock
from aiolock.backoff import Backoff
from aiolock.copying import CopiedAsItself
from aiolock.entering import AsyncEnterable, Entered, Entry
from aiolock.errors import LeaseLost, StoreError
from aiolock.options import Seconds
from aiolock.protocol import Status
from aiolock.validation import LONGEST_TTL, SHORTEST_TTL, seconds

Job = Callable[[], Awaitable[object]]
"""The job to run."""

log = logging.getLogger("aiolock")

_FIRST_PAUSE: Final = 1.0
_LONGEST_PAUSE: Final = 30.0
"""The longest pause between tries, in seconds, while the store cannot be reached."""


class Periodic(CopiedAsItself, AsyncEnterable[Lease], AsyncOnly):
    """A job of which one run begins in each period; made by `LockClient.periodic`.

    ``await periodic.run(job)`` runs it for ever. Or enter it, once for each run::

        async with periodic as lease:  # waits for a new period, and for its turn
            await job()

    A period that has begun never begins again, even if the job failed or its instance died. Only a
    store that forgets (a Redis that restarts without persistence, or fails over after a crash) lets
    it begin once more. It begins when the store has confirmed the grant, just before the job. So an
    instance that was suspended or cancelled when its turn came uses up no period. A run that lasts
    longer than its period delays the next one, and the periods between are left out.
    Cancellation, loss and errors are those of ``async with lock``.
    """

    __slots__ = ("__weakref__", "_every", "_lock")

    def __init__(self, lock: Lock, every: float) -> None:
        self._lock = lock
        self._every = every

    def __repr__(self) -> str:
        return f"<Periodic {self.name!r} every={self._every:g}>"

    @property
    def name(self) -> str:
        """The name of the job."""
        return self._lock.name

    @property
    def every(self) -> float:
        """The length of a period, in seconds."""
        return self._every

    async def status(self) -> Status:
        """The instance that runs, how long the job is closed, the next ones; see `Lock.status`."""
        return await self._lock.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Take the job from the instance that runs it, and cancel that run: as `Lock.break_`."""
        return await self._lock.break_(fence)

    @property
    def _entered(self) -> Entered:
        return self._lock._engine.entered

    def _enter(self, entry: Entry) -> Coroutine[Any, Any, Lease]:
        return self._lock._enter(entry, self)

    async def run(self, job: Job) -> NoReturn:
        """Take part until cancelled: wait for a turn, run ``job``, queue again behind the others.

        An exception of ``job`` is logged, also a `CancelledError` of a task that it awaits; so is a
        run that was cancelled because its lease was lost or ``max_hold`` had passed. The next
        period is run in any case. While the store cannot be reached, the call tries again after a
        second, then less and less often. Raises the other errors of `Lock.acquire`, including
        `ClientClosed` when the client is closed.
        """
        if not callable(job):
            raise TypeError(f"job must be an async function, not {job!r}")
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
        while True:
            try:
                async with self._lock:
                    backoff.reset()
                    await self._once(job)
            except LeaseLost as lost:
                log.warning("aiolock: a run of %r was cancelled: %s", self.name, lost)
            except StoreError as failure:
                pause = backoff.pause()
                log.warning("aiolock: %r is tried again in %g s: %s", self.name, pause, failure)
                await asyncio.sleep(pause)

    async def _once(self, job: Job) -> None:
        try:
            await job()
        except Exception:  # including a LeaseLost of another lock, which is not this job's own
            log.exception("aiolock: a run of %r failed", self.name)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # this task was cancelled: by its caller, or because the lease was lost
            log.exception(
                "aiolock: a run of %r failed: a task that it awaits was cancelled", self.name
            )


def describe_periodic(
    described: Callable[[str, Policy], Lock], policy: Policy, every: Seconds
) -> Periodic:
    """The job of these arguments, checked; ``policy`` has its options apart from the period."""
    period = seconds("every", every, least=SHORTEST_TTL, most=LONGEST_TTL)
    least = max(policy.min_hold or 0.0, SHORTEST_TTL)
    if policy.max_hold is not None:
        seconds("max_hold", policy.max_hold, least=least, most=LONGEST_TTL)
    return Periodic(described("periodic", replace(policy, every=period)), period)
