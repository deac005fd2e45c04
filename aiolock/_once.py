"""Something that is to be done once, however often and wherever it is asked for.

A lock, and with it the memory that the work is done: whoever leaves the body in peace does not
give the lock back but *finishes* it, and for a while everybody else is told so instead of entering.
"""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Coroutine
from types import TracebackType
from typing import Any, ParamSpec, TypeVar

from aiolock._lease import Lease
from aiolock._lock import Acquisition, Lock
from aiolock._naming import naming
from aiolock._policy import to_ms
from aiolock._waiting import AlreadyDone
from aiolock.errors import AcquireTimeout, StoreError
from aiolock.store import WAS_UNKNOWN, Status

P = ParamSpec("P")
R = TypeVar("R")


class Once:
    """Something to be done once; made by `LockClient.once`. Any number of tasks may share one.

    ::

        async with client.once("user:42", ttl=86400) as lease:
            if lease:  # None: it is done already
                await set_up(42)

    * The first to enter gets a `Lease` and does it. When its body ends in peace, that it is done is
      remembered for ``ttl`` seconds, and whoever enters meanwhile gets None.
    * Whoever comes while it is being done waits for the outcome: None when it is done, a lease when
      the one before failed. With ``wait=False`` they get None at once.
    * When the body raises, or its lease is lost, nothing is remembered: the next one does it. So a
      body may be run again after it failed, or was cancelled, half way.

    ``async with`` raises what a lock's does, `AcquireTimeout` among it, and `StoreError` when the
    body has ended but nobody knows whether that is remembered: then it may be done once more.
    Cancelled at that moment it is remembered all the same. As a decorator of an async function it
    gives the function's result, or None where it is done already.
    """

    __slots__ = ("_keep", "_lock", "_named", "_wait")

    def __init__(
        self, lock: Lock, *, keep: float, wait: bool, named: Callable[[str], Once]
    ) -> None:
        self._lock = lock
        self._keep = to_ms(keep)
        self._wait = wait
        self._named = named

    def __repr__(self) -> str:
        return f"<Once {self.key!r} ttl={self._keep / 1000:g}>"

    @property
    def key(self) -> str:
        """What is to be done once."""
        return self._lock.name.removeprefix(PREFIX)

    async def status(self) -> Status:
        """Who is doing it and who waits; ``closed`` is for how long it will be remembered."""
        return await self._lock.status()

    async def __aenter__(self) -> Lease | None:
        acquisition = self._lock.acquire() if self._wait else self._lock.acquire(blocking=False)
        entered: tuple[Acquisition, Lease] | None = None
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
        room = self._lock._room
        room.entered.add((room.keeper.current_task(), self._lock.name), self, entered)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        room = self._lock._room
        entered: tuple[Acquisition, Lease] | None = room.entered.take(
            (room.keeper.current_task(), self._lock.name), self
        )
        if entered is None:
            return
        acquisition, lease = entered
        if error is None:
            lease._keeper.release(lease._hold, finished=self._keep)
        await acquisition.__aexit__(kind, error, traceback)
        released = lease._hold.released
        if error is None and released is not None and released.done() and not released.cancelled():
            failure = released.exception()
            if failure is not None or released.result() == WAS_UNKNOWN:
                why = failure or "its confirmation was lost"
                raise StoreError(
                    f"{self.key!r} was done, but nobody knows whether that is remembered: {why}"
                ) from failure

    def __call__(
        self, function: Callable[P, Awaitable[R]]
    ) -> Callable[P, Coroutine[Any, Any, R | None]]:
        """Decorate an async function: each call is one delivery; None where it is done already."""
        name = naming(self.key, function, "once")

        @functools.wraps(function)
        async def call(*args: P.args, **kwargs: P.kwargs) -> R | None:
            async with self._named(name(*args, **kwargs)) as lease:
                return None if lease is None else await function(*args, **kwargs)

        return call


PREFIX = "once:"
"""What stands before the key in the lock's name: a lock of the key's own name is another one."""
