"""`Lock`: a description that any number of tasks share."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from dataclasses import dataclass
from functools import partial
from types import FrameType
from typing import Any, Final, Unpack

from aiolock._engine.acquirer import acquire
from aiolock._engine.diagnostics.deadlock import remember
from aiolock._engine.engine import Engine
from aiolock._engine.lease import Lease
from aiolock._engine.policy import Policy
from aiolock._engine.scope import body_of
from aiolock._locks.acquire_context import AcquireContext, watch
from aiolock._locks.async_only import AsyncOnly
from aiolock.copying import CopiedAsItself
from aiolock.entering import AnyEnterable, AsyncEnterable, Entered, Entry, Inside
from aiolock.errors import NotHeld, StoreError
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import BREAK_UNKNOWN, Break, ReadStatus, RequestRelease, Status
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.validation import checked_label, checked_number, checked_timeout, checked_wait

_AT_ONCE: Final = 128
"""Grants that one request to the store breaks."""


@dataclass(frozen=True, slots=True, repr=False, eq=False, weakref_slot=True)
class Lock(CopiedAsItself, AsyncEnterable[Lease], AsyncOnly):
    """A description of one lock: its name and its options. Holds nothing and does no I/O.

    Made by `LockClient.lock`. Any number of tasks may share one. ``async with lock as lease``
    waits its turn, at most for the lock's ``timeout``, and gives a `Lease`:

    * It raises `AcquireTimeout` when the time has passed, `QueueFull` when ``max_waiters`` wait
      already, `WouldDeadlock` when this task holds it already, `StoreError` when the store does not
      answer, and `ClientClosed` when the client is not open here. After each of them nothing is
      left behind.
    * Cancelled while it waits, it leaves the queue, or gives back the lock if it was granted at
      that moment.
    * When the lease is lost, the body is cancelled and `LeaseLost` is raised at the exit; if the
      body raises an exception of its own, that one is raised, with a note.
    """

    _engine: Engine
    _policy: Policy

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} ttl={self.ttl:g}>"

    @property
    def name(self) -> str:
        """The lock's name; locks of one name on one store and prefix are one lock."""
        return self._policy.name

    @property
    def ttl(self) -> float:
        """The seconds for which the store keeps a lease that nobody renews."""
        return self._policy.ttl

    @without_unknown
    def acquire(
        self,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> AcquireContext[Lease]:
        """Take the lock, or wait for it in its queue; `AcquireTimeout` when the time has passed.

        Await the result for a `Lease`. Or enter it with ``async with``: then the body is cancelled
        when the lease is lost. Errors and cancellation are as for ``async with lock``.

        :param timeout: seconds that *you* wait at most (how long the lock is kept for you is its
            ``ttl``); None waits as long as it takes. The lock's own, if it is not given.
        :param label: a name for this acquisition in `status`, the commands and observers ("job
            17"), shown to others after a second of waiting or holding; the task's name, if None.
        """
        for wrong in unknown:
            raise unexpected(Lock.acquire, wrong)
        where = caller(sys._getframe(1)) if sys.flags.dev_mode else ""
        return self._acquisition(timeout, where=where, label=label)

    @without_unknown
    def try_acquire(
        self, *, timeout: Seconds = 0, label: str | None = None, **unknown: Unpack[NoOptions]
    ) -> Coroutine[Any, Any, Lease | None]:
        """Take the lock if it is free now, or within ``timeout`` seconds; else the result is None.

        Only to be awaited; the task that calls it owns the lease. It raises the same errors as
        `acquire`, including `QueueFull` and `StoreError`, but no `AcquireTimeout`. The lock's own
        timeout does not count. With a timeout of 0, it still waits for the store's answer, for the
        ``answer_timeout`` of the client.

        :param timeout: seconds to wait in the queue at most; `ValueError` for None, which `acquire`
            takes: it waits as long as it takes.
        :param label: as for `acquire`.
        """
        for wrong in unknown:
            raise unexpected(Lock.try_acquire, wrong)
        where = caller(sys._getframe(1)) if sys.flags.dev_mode else ""
        return self._attempt(timeout, where=where, label=label)

    def _acquisition(
        self,
        timeout: Seconds | Default | None,
        *,
        where: str = "",
        label: str | None = None,
    ) -> AcquireContext[Lease]:
        own = isinstance(timeout, Default)
        seconds = self._policy.timeout if own else checked_timeout(timeout)
        label = checked_label("label", label)
        self._engine.check()
        return AcquireContext(self, timeout=seconds, where=where, label=label)

    def _attempt(
        self, timeout: Seconds, *, where: str = "", label: str | None = None
    ) -> Coroutine[Any, Any, Lease | None]:
        seconds, label = checked_wait(timeout), checked_label("label", label)
        self._engine.check()
        begins = partial(watch, where)
        acquisition = acquire(
            *(self._engine, self._policy, seconds, begins),
            owner=self._owner(),
            raises=False,
            label=label,
        )
        # Shown by the repr of a task that runs it.
        acquisition.__qualname__ = "Lock.try_acquire"  # type: ignore[attr-defined]  # of any coroutine
        return acquisition

    def _owner(self) -> asyncio.Task[Any] | None:
        task = self._engine.watchdog.current_task()
        remember(task)
        return task

    async def release(self) -> bool:
        """End the lease that the current task holds; True if it was still ours.

        As `Lease.release`, for code that does not have the lease at hand. `NotHeld` when the
        current task holds no lease of this name: it may have been released or lost already.
        """
        self._engine.check()
        lease = self._ours()
        if lease is None:
            raise self._policy.with_name(
                NotHeld(
                    f"this task does not hold {self._policy.called}: it was released or lost, or"
                    " another task acquired it, which must release it (or use the lease)"
                )
            )
        return await lease.release()

    async def locked(self) -> bool:
        """Whether the lock is held or closed now; await it, for it takes a round trip.

        `StoreError` when the store does not answer. `held` tells whether the current task holds the
        lock, without I/O.
        """
        status = await self._engine.status(self._policy, waiters=False)
        return bool(status.holders or status.more_holders) or status.closed > 0

    def held(self) -> bool:
        """Whether the current task holds it, as far as this process knows: no I/O."""
        self._engine.check()
        return self._ours() is not None

    def _ours(self) -> Lease | None:
        """The current task's last lease of this lock, of the same mode: shared or exclusive."""
        watchdog, policy = self._engine.watchdog, self._policy
        hold = watchdog.held_by(watchdog.current_task(), policy.key)
        if hold is not None:
            for lease in reversed(hold.leases):
                if (hold.shared or lease._shares) == policy.shared:
                    return lease
        return None

    async def status(self) -> Status:
        """The holders and waiters of the lock, in order; `StoreError` if unknown.

        For people and dashboards: it is true of a moment that has passed. A holder or waiter whose
        process is gone is not ``alive``. Such a waiter is removed when its turn comes, such a
        holder at the end of its lease.

        Hundreds of holders and waiters are read in parts, so that other clients need not wait for
        long: first the waiters, then the holders. Each that waits or holds all that time is in it
        once; a waiter may be in it that has left meanwhile.
        """
        return await self._engine.status(self._policy)

    async def request_release(self) -> bool:
        """Ask the holders to release the lock when they can; True if any of them was notified.

        It sets `Lease.requested` of each holder, and does nothing else: the caller still has to
        wait in the queue. One round trip; a request may get lost. `StoreError` when the store does
        not answer. Cancelled, it may have been sent.
        """
        self._engine.check()
        with self._policy.errors_named():
            return await self._engine.submit(RequestRelease(self._policy.key)) > 0

    async def break_(self, fence: int | None = None) -> bool:
        """Take the lock from its holders, and grant it to the next waiter; True if it was held.

        With a ``fence`` (see `status`), only the holder of that grant loses it. The holder is
        notified at once: its lease is lost and its body cancelled, but until that body ends, two
        bodies run. It is for a holder that hangs but still renews: the lease of a dead one ends by
        itself. Two round trips, or one with a ``fence``; more if there are
        more than a hundred holders. Cancelled, or on a `StoreError`, it may
        have been carried out. With a ``fence`` it is a `StoreError`, too, if the store's first
        answer got lost and that grant is not held any more: this call may have broken it, or it may
        have ended before.
        """
        self._engine.check()
        if fence is not None:
            fences = [checked_number("fence", fence, most=sys.maxsize)]
        else:
            # Break only the grants seen here: if the reply is lost and the command is sent again,
            # it must not take the lock from the next holder too.
            with self._policy.errors_named():
                status = await self._engine.submit(ReadStatus(self._policy.key))
            fences = [holder.fence for holder in status.holders]
        if not fences:
            return False
        broken = 0
        with self._policy.errors_named():
            # Not too many at once: all other clients wait for the store meanwhile.
            for start in range(0, len(fences), _AT_ONCE):
                part = fences[start : start + _AT_ONCE]
                broken = await self._engine.submit(Break(self._policy.key, part))
        if fence is not None and broken == BREAK_UNKNOWN:
            raise self._policy.with_name(
                StoreError(
                    f"{self._policy.called} is not held with the fence {fence} any more, but nobody"
                    " knows whether this call broke it: the store's first answer was lost"
                )
            )
        return fence is None or broken > 0

    @property
    def _entered(self) -> Entered:
        return self._engine.entered

    def _enter(
        self, entry: Entry, of: AnyEnterable[Any] | None = None
    ) -> Coroutine[Any, Any, Lease]:
        """Acquire the lock for an ``async with``: of ``of``, or else of the lock itself."""
        policy = self._policy
        return acquire(  # type: ignore[return-value]  # never None, as it raises
            *(self._engine, policy, policy.timeout, None),
            entry=(entry, self if of is None else of),
            enters=True,
            lease_type=Lease,
        )

    def _dropped(self) -> Inside | None:
        # Its exit was looked up and dropped, as by code that checks whether there is a method.
        lease = self._ours()
        if lease is not None and lease._left_behind:
            return body_of(lease, None, cancels=False)
        return None


def caller(frame: FrameType) -> str:
    """The file and line of a frame."""
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
