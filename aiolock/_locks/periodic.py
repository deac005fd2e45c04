"""A job that one of many instances runs, once in each period, and in turn.

Its lock stays closed from each run to the end of the period (by the store's clock), so nobody runs
it twice; and every instance stands in the lock's queue, so whoever has run goes behind the others.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Awaitable, Callable
from types import CoroutineType, TracebackType
from typing import Any, Final, NoReturn

from aiolock._engine.lease import Lease
from aiolock._locks.lock import Lock
from aiolock.errors import LeaseLost, StoreError
from aiolock.store import Status

Job = Callable[[], Awaitable[object]]
"""What is to be run."""

log = logging.getLogger("aiolock")

_LONGEST_PAUSE: Final = 30.0
"""Seconds between tries while the store cannot be reached."""


class Periodic:
    """A job of which one run begins in each period; made by `LockClient.periodic`.

    ``await periodic.run(job)`` runs it for ever. Or enter it, once for each run::

        async with periodic as lease:  # waits for a period that nobody has begun, and for its turn
            await job()

    A period that was begun is not begun again: not where the job failed, nor where its instance
    died. It is begun once the store has confirmed that, just before the job: so none is used up by
    an instance that was stopped, or cancelled, when its turn came. A run that goes on beyond its
    period makes the next one late, and those between are left out. Cancellation, loss and errors
    are those of ``async with lock``.
    """

    __slots__ = ("_every", "_lock")

    def __init__(self, lock: Lock, every: float) -> None:
        self._lock = lock
        self._every = every

    def __repr__(self) -> str:
        return f"<Periodic {self.name!r} every={self._every:g}>"

    @property
    def name(self) -> str:
        """Its name."""
        return self._lock.name

    @property
    def every(self) -> float:
        """The length of a period, in seconds."""
        return self._every

    async def status(self) -> Status:
        """Who runs it, for how long it is closed, and who is next; see `Lock.status`."""
        return await self._lock.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Take it from the instance that runs it, whose run is cancelled: as `Lock.break_`."""
        return await self._lock.break_(fence)

    def __aenter__(self) -> CoroutineType[Any, Any, Lease]:
        return self._lock._enter(sys._getframe(1))  # type: ignore[return-value]  # mypy: no such type

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> CoroutineType[Any, Any, None]:
        return self._lock._leave(error, sys._getframe(1))

    async def run(self, job: Job) -> NoReturn:
        """Take part until cancelled: wait for our turn, run ``job``, go behind the others.

        What ``job`` raises is logged, also where that is the cancellation of a task that it awaits;
        and so is a run that was cancelled because its lease was lost or ``max_hold`` was over: the
        next period is another one. While the store cannot be reached it is tried again, after a
        second, then less and less often. Raises what else `Lock.acquire` raises, `ClientClosed`
        when the client is closed among them.
        """
        pause = 1.0
        while True:
            try:
                async with self._lock:
                    pause = 1.0
                    await self._once(job)
            except LeaseLost as lost:
                log.warning("aiolock: a run of %r was cancelled: %s", self.name, lost)
            except StoreError as failure:
                log.warning("aiolock: %r is tried again in %g s: %s", self.name, pause, failure)
                await asyncio.sleep(pause)
                pause = min(_LONGEST_PAUSE, 2 * pause)

    async def _once(self, job: Job) -> None:
        try:
            await job()
        except Exception:  # of another lock that the job uses, too: not to be taken for this one's
            log.exception("aiolock: a run of %r failed", self.name)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise  # ours, or that of a loss
            log.exception(
                "aiolock: a run of %r failed: a task that it awaits was cancelled", self.name
            )
