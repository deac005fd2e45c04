"""`Semaphore`: a number of permits, held by leases."""

from __future__ import annotations

import sys
from collections.abc import Coroutine
from dataclasses import dataclass, replace
from typing import Any, Final, Unpack

from aiolock._engine.lease import Lease
from aiolock._locks.acquire_context import AcquireContext
from aiolock._locks.async_only import AsyncOnly
from aiolock._locks.lock import Lock, caller
from aiolock.copying import CopiedAsItself
from aiolock.entering import AsyncEnterable, Entered, Entry
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Resize, Status
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.validation import checked_number

_REMEMBERED: Final = 30 * 24 * 3_600_000
"""Milliseconds for which a `Semaphore.resize` is remembered, in use or not."""


@dataclass(frozen=True, slots=True, repr=False, eq=False, weakref_slot=True)
class Semaphore(CopiedAsItself, AsyncEnterable[Lease], AsyncOnly):
    """A description of one semaphore; made by `LockClient.semaphore`. Holds nothing.

    ::

        api = client.semaphore("partner api", 5)
        async with api:  # at most 5 at a time, in all processes together
            ...
        async with api.acquire(permits=2):  # both or none
            ...

    Permits are granted in the order of the queue: waiters that want one do not overtake a waiter
    that wants two. They are held by leases, like a lock: renewed, lost, fenced. The permits of a
    dead process are free again when its lease ends. ``async with`` takes one; errors, cancellation
    and loss are those of a `Lock`. A task may take more permits while it holds some; it may then
    wait for itself.
    """

    _one: Lock
    _limit: int

    def __repr__(self) -> str:
        return f"<Semaphore {self.name!r} limit={self.limit}>"

    @property
    def name(self) -> str:
        """The semaphore's name."""
        return self._one.name

    @property
    def limit(self) -> int:
        """The number of permits declared here; `Status.limit` is the number at the store."""
        return self._limit

    @without_unknown
    def acquire(
        self,
        permits: int = 1,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> AcquireContext[Lease]:
        """Take ``permits`` at once, all or none; otherwise as `Lock.acquire`.

        `LimitMismatch` when others declare another limit. If `resize` has left fewer permits than
        this asks for, it waits until there are enough again, and the waiters behind it wait too.
        """
        for wrong in unknown:
            raise unexpected(Semaphore.acquire, wrong)
        where = caller(sys._getframe(1)) if sys.flags.dev_mode else ""
        return self._of(permits)._acquisition(timeout, where=where, label=label)

    @without_unknown
    def try_acquire(
        self,
        permits: int = 1,
        *,
        timeout: Seconds = 0,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Coroutine[Any, Any, Lease | None]:
        """Take ``permits`` at once, all or none; otherwise as `Lock.try_acquire`.

        Errors are those of `acquire`.
        """
        for wrong in unknown:
            raise unexpected(Semaphore.try_acquire, wrong)
        where = caller(sys._getframe(1)) if sys.flags.dev_mode else ""
        return self._of(permits)._attempt(timeout, where=where, label=label)

    def _of(self, permits: int) -> Lock:
        """The lock that takes so many permits."""
        lock = self._one
        if checked_number("permits", permits) > self._limit:
            raise ValueError(f"there are {self._limit} permits, so nobody can have {permits}")
        if permits == 1:
            return lock
        return Lock(lock._engine, replace(lock._policy, number=permits))

    async def resize(self, limit: int) -> None:
        """Set the number of permits to ``limit``, for all clients, from now on.

        The store remembers it for 30 days, and longer while the semaphore is in use. Meanwhile
        programs may declare two numbers, so that they can be changed one after the other: the new
        limit, and the one declared here (or, if that is the new one, the one before). Waiters that
        now fit enter; holders keep their permits, even if there are fewer now. With 0, no more
        permits are granted. One round trip; `StoreError` when the store does not answer: it may
        still be carried out some seconds later, and so undo a resize that came after it. Cancelled,
        it may have been carried out.
        """
        engine, policy = self._one._engine, self._one._policy
        engine.check()
        checked_number("limit", limit, least=0)
        with policy.errors_named():
            await engine.submit(Resize(policy.key, self._limit, limit, _REMEMBERED))

    async def break_(self, fence: int | None = None) -> bool:
        """Take the permits from all holders, or from one: as `Lock.break_`."""
        return await self._one.break_(fence)

    async def status(self) -> Status:
        """The holders and waiters with their permits, and how many permits there are (``limit``).

        As `Lock.status`; ``limit`` is None from a minute after the last lease would have ended.
        """
        return await self._one.status()

    @property
    def _entered(self) -> Entered:
        return self._one._engine.entered

    def _enter(self, entry: Entry) -> Coroutine[Any, Any, Lease]:
        return self._one._enter(entry, self)
