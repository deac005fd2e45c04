"""A number of permits, each held by a lease of its own."""

from __future__ import annotations

import sys
from dataclasses import dataclass, replace
from types import CoroutineType, TracebackType
from typing import Any, Final, Literal, overload

from aiolock._engine.lease import Lease
from aiolock._engine.policy import Seconds, checked_number
from aiolock._locks.lock import DEFAULT, Acquisition, Default, Lock, caller
from aiolock.store import Status

_REMEMBERED: Final = 30 * 24 * 3_600_000
"""Milliseconds for which a `Semaphore.resize` is remembered, in use or not."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Semaphore:
    """A description of one semaphore; made by `LockClient.semaphore`. Holds nothing.

    ::

        api = client.semaphore("partner api", 5)
        async with api:  # at most 5 at a time, in all processes together
            ...
        async with api.acquire(permits=2):  # both or none
            ...

    Permits are given in the order in which they were asked for: one that wants two is not
    overtaken by those that want one. They are held by leases, like a lock: renewed, lost, fenced;
    those of a process that died come back when its lease ends. ``async with`` takes one; errors,
    cancellation and loss are those of a `Lock`. A task may take permits while it holds some, and
    should know that it may wait for itself.
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
        """The number of permits that is declared here; `status` says how many there are."""
        return self._limit

    @overload
    def acquire(
        self,
        permits: int = 1,
        *,
        timeout: Default | None = DEFAULT,
        blocking: Literal[True] = True,
        label: str | None = None,
    ) -> Acquisition[Lease]: ...

    @overload
    def acquire(
        self,
        permits: int = 1,
        *,
        timeout: Seconds,
        blocking: bool = True,
        label: str | None = None,
    ) -> Acquisition[Lease | None]: ...

    @overload
    def acquire(
        self,
        permits: int = 1,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        blocking: bool,
        label: str | None = None,
    ) -> Acquisition[Lease | None]: ...

    def acquire(
        self,
        permits: int = 1,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        blocking: bool = True,
        label: str | None = None,
    ) -> Acquisition[Lease] | Acquisition[Lease | None]:
        """Take so many permits at once, all or none; otherwise as `Lock.acquire`.

        `LimitMismatch` when others declare another limit. Where `resize` has left fewer permits
        than these it waits until there are more again, and those behind it wait too.
        """
        lock = self._one
        if checked_number("permits", permits) > self._limit:
            raise ValueError(f"there are {self._limit} permits, so nobody can have {permits}")
        if permits > 1:
            policy = replace(lock._policy, number=permits)
            lock = Lock(lock._engine, policy)
        where = caller(sys._getframe(1)) if sys.flags.dev_mode else ""
        return lock._acquisition(timeout, blocking=blocking, where=where, label=label)

    async def resize(self, limit: int) -> None:
        """Let there be ``limit`` permits, for everybody, from now on.

        Remembered for 30 days, and after that while the semaphore is in use. Meanwhile two numbers
        may be declared, so that programs can be changed one after the other: the new one, and the
        one declared here; where that is the new one, the one before. Whoever waits and now fits,
        enters; whoever holds permits keeps them, also where there are fewer now. With 0 nobody
        enters any more. One round trip; `StoreError` when nobody knows: then it may be carried
        out some seconds later, and so undo another one that was asked for meanwhile. Cancelled, it
        may have been carried out.
        """
        engine, policy = self._one._engine, self._one._policy
        engine.check()
        checked_number("limit", limit, least=0)
        with policy.errors_named():
            await engine.store.resize(policy.key, self._limit, limit, _REMEMBERED)

    async def break_(self, fence: int | None = None) -> bool:
        """Take the permits from all who hold some, or from one holder: as `Lock.break_`."""
        return await self._one.break_(fence)

    async def status(self) -> Status:
        """Who holds how many permits, who waits for how many, and how many there are (``limit``).

        As `Lock.status`; ``limit`` is None once the last lease would have ended a minute ago.
        """
        return await self._one.status()

    def __aenter__(self) -> CoroutineType[Any, Any, Lease]:
        return self._one._enter(sys._getframe(1))  # type: ignore[return-value]  # mypy: no such type

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> CoroutineType[Any, Any, None]:
        return self._one._leave(error, sys._getframe(1))
