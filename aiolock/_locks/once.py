"""Something that is to be done once, however often and wherever it is asked for.

A lock, and with it the memory that the work is done: whoever leaves the body in peace does not
give the lock back but *finishes* it, and for a while everybody else is told so instead of entering.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Awaitable, Callable, Coroutine
from types import CoroutineType, FrameType, TracebackType
from typing import Any, ParamSpec, TypeVar

from aiolock._engine.acquirer import AlreadyDone
from aiolock._engine.lease import Lease, give_back
from aiolock._engine.policy import to_ms
from aiolock._locks.lock import Acquisition, Lock
from aiolock._locks.naming import naming
from aiolock.errors import AcquireTimeout, StoreError
from aiolock.store import WAS_UNKNOWN, Status

P = ParamSpec("P")
R = TypeVar("R")


class Once:
    """Something to be done once; made by `LockClient.once`. Any number of tasks may share one.

    ::

        async with client.once("user:42", remember=86400) as lease:
            if lease:  # None: it is done already
                await set_up(42)

    * The first to enter gets a `Lease` and does it. When its body ends in peace, that it is done is
      remembered for ``remember`` seconds, and whoever enters meanwhile gets None.
    * Whoever comes while it is being done waits for the outcome: None when it is done, a lease when
      the one before failed. With ``wait=False`` they get None at once.
    * When the body raises, or its lease is lost, nothing is remembered: the next one does it. So a
      body may be run again after it failed, or was cancelled, half way.

    ``async with`` raises what a lock's does, `AcquireTimeout` among it, and `StoreError` when the
    body has ended but nobody knows whether that is remembered: then it may be done once more.
    Cancelled at that moment it is remembered all the same. As a decorator of an async function it
    gives the function's result, or None where it is done already.
    """

    __slots__ = ("_lock", "_named", "_remember", "_wait")

    def __init__(
        self, lock: Lock, *, remember: float, wait: bool, named: Callable[[str], Once]
    ) -> None:
        self._lock = lock
        self._remember = to_ms(remember)
        self._wait = wait
        self._named = named

    def __repr__(self) -> str:
        return f"<Once {self.name!r} remember={self._remember / 1000:g}>"

    @property
    def name(self) -> str:
        """What is to be done once."""
        return self._lock.name

    async def status(self) -> Status:
        """Who is doing it and who waits; ``closed`` is for how long it will be remembered."""
        return await self._lock.status()

    async def break_(self, fence: int | None = None) -> bool:
        """Take it from whoever is doing it, and let the next do it: as `Lock.break_`."""
        return await self._lock.break_(fence)

    def __aenter__(self) -> CoroutineType[Any, Any, Lease | None]:
        return self._enter(sys._getframe(1))  # type: ignore[return-value]  # mypy: no CoroutineType

    async def _enter(self, frame: FrameType) -> Lease | None:
        acquisition = self._lock.acquire() if self._wait else self._lock.acquire(blocking=False)
        entered: tuple[Acquisition[Any], Lease] | None = None
        try:
            lease = await acquisition.__aenter__()
        except AlreadyDone:
            lease = None
        except AcquireTimeout:
            if self._wait:
                raise
            lease = None
        if lease is not None:
            entered = (acquisition, lease)
        engine = self._lock._engine
        try:
            engine.entered.add(self, frame, engine.watchdog.current_task(), entered)
        except BaseException:
            if lease is not None:
                give_back(lease)
            raise
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        engine = self._lock._engine
        entered: tuple[Acquisition[Any], Lease] | None = engine.entered.take(
            self, sys._getframe(1), engine.watchdog.current_task()
        )
        if entered is None:
            return
        acquisition, lease = entered
        if error is None:
            lease._watchdog.release(lease._hold, finished=self._remember)
        await acquisition.__aexit__(kind, error, traceback)
        released = lease._hold.released
        if error is None and released is not None and released.done() and not released.cancelled():
            failure = released.exception()
            if failure is not None or released.result() == WAS_UNKNOWN:
                why = failure or "its confirmation was lost"
                raise self._lock._policy.about(
                    StoreError(
                        f"{self.name!r} was done, but nobody knows whether that is remembered:"
                        f" {why}"
                    )
                ) from failure

    def __call__(
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorate an async function: each call is one delivery; None where it is done already."""
        name = naming(self.name, function, "once")

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async with self._named(name(*args, **kwargs)) as lease:
                return None if lease is None else await function(*args, **kwargs)

        return call
