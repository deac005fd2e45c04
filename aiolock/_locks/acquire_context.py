"""`AcquireContext`: an acquisition of a lock that is awaited, or entered, by its caller."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Coroutine, Generator
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast

from aiolock._engine.acquirer import acquire
from aiolock._engine.lease import Lease, LeaseWithoutBody
from aiolock._engine.scope import Scope, body_of
from aiolock._locks.async_only import AsyncOnly
from aiolock.copying import Uncopyable
from aiolock.errors import NotHeld

if TYPE_CHECKING:
    from aiolock._locks.lock import Lock

Got_co = TypeVar("Got_co", bound=Lease, covariant=True)


class AcquireContext(
    Uncopyable,
    Coroutine[Any, Any, Got_co],
    AsyncOnly,
    instead="it is one attempt; call acquire() again",
):
    """One acquisition that has not begun yet: await it, or enter it with ``async with``.

    Either way it gives a `Lease`, or raises `AcquireTimeout`; entered, it also cancels the body
    when the lease is lost. It can be used once, in one of the two ways. The task that called
    `Lock.acquire` owns the lease, whichever task awaits it, so
    ``asyncio.wait_for(lock.acquire(), 5)`` and ``create_task(lock.acquire())`` work.
    """

    __name__ = "Lock.acquire"  # shown by the repr of a task that runs it
    __slots__ = (
        "_coroutine",
        "_label",
        "_lock",
        "_owner",
        "_scope",
        "_since",
        "_timeout",
        "_where",
    )

    def __init__(
        self,
        lock: Lock,
        *,
        timeout: float | None,
        where: str = "",
        label: str = "",
        since: float | None = None,
    ) -> None:
        self._coroutine: Coroutine[Any, Any, Lease | None] | None = None
        self._lock = lock
        self._timeout = timeout
        self._where = where
        self._label = label
        self._since = since
        self._owner = lock._owner()
        self._scope: Scope | None = None

    def __repr__(self) -> str:
        return f"<AcquireContext of {self._lock.name!r} timeout={self._timeout}>"

    def _begin(
        self, begins: Callable[[Lease], None], lease_type: type[Lease] = LeaseWithoutBody
    ) -> Coroutine[Any, Any, Lease | None]:
        if self._coroutine is not None:
            raise RuntimeError("this acquisition was begun already: call acquire() again")
        self._coroutine = acquire(
            self._lock._engine,
            self._lock._policy,
            self._timeout,
            begins,
            owner=self._owner,
            label=self._label,
            since=self._since,
            lease_type=lease_type,
        )
        return self._coroutine

    def _wait(self) -> Coroutine[Any, Any, Lease | None]:
        return self._begin(partial(watch, self._where))

    def _enters(self, lease: Lease) -> None:
        cancels = lease._hold.policy.on_lost == "cancel"
        self._scope = body_of(lease, lease._watchdog.current_task(), cancels=cancels)

    def __await__(self) -> Generator[Any, None, Got_co]:
        return cast("Generator[Any, None, Got_co]", self._wait().__await__())

    async def __aenter__(self) -> Lease:
        lease = await self._begin(self._enters, Lease)
        assert lease is not None
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        scope, self._scope = self._scope, None
        if scope is None:
            raise NotHeld(f"the caller has not entered {self!r}, or has left it already")
        await scope.close(error)

    def _move_to(self, task: asyncio.Task[Any] | None) -> None:
        """The body continues in this task: a loss cancels that one, and it leaves the body."""
        assert self._scope is not None
        self._scope.move_to(task)

    # It is a coroutine as well as an awaitable, because `create_task` accepts nothing else.

    def send(self, value: Any, /) -> Any:
        """As any coroutine."""
        return (self._coroutine or self._wait()).send(value)

    def throw(self, *error: Any) -> Any:
        """As any coroutine."""
        return (self._coroutine or self._wait()).throw(*error)

    def close(self) -> None:
        """As any coroutine."""
        if self._coroutine is not None:
            self._coroutine.close()
        else:
            self._coroutine = _never()
            self._coroutine.close()

    def __del__(self) -> None:
        if getattr(self, "_coroutine", self) is None:  # no such attribute if __init__ has failed
            warnings.warn(
                f"{self!r} was never awaited, so nothing was locked",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


async def _never() -> None:
    """A coroutine in place of an acquisition that was closed before it began."""


def watch(where: str, lease: Lease) -> None:
    """Warn when a lease without a body is dropped; ``where`` is the line of its `acquire`."""
    hold = lease._hold
    hold.where = hold.where or where
    lease._watchdog.forgotten.watch(hold)
