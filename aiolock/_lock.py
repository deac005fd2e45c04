"""A lock: a description that any number of tasks share, and what its `acquire` returns."""

from __future__ import annotations

import warnings
from collections.abc import Coroutine, Generator
from dataclasses import dataclass
from types import CoroutineType, TracebackType
from typing import Any, Final

from aiolock._hold import Owner
from aiolock._lease import Lease, Scope
from aiolock._policy import Policy, checked_timeout
from aiolock._waiting import WaitingRoom
from aiolock.errors import AcquireTimeout, NotHeld
from aiolock.store import Status


class Default:
    """The lock's own timeout: what `acquire` uses when none is given."""

    def __repr__(self) -> str:
        return "the lock's own"


DEFAULT: Final = Default()


class Acquisition(Coroutine[Any, Any, Lease | None]):
    """One acquisition, not begun yet: await it, or enter it with ``async with``.

    Awaited, it gives a `Lease`, or None when the timeout has passed. Entered, it gives a `Lease`
    or raises `AcquireTimeout`, and the body is cancelled when the lease is lost. It is good for
    one of the two, once. The task that called `Lock.acquire` owns the lease, whichever task
    awaits it, so ``asyncio.wait_for(lock.acquire(), 5)`` and ``create_task(lock.acquire())`` work.
    """

    __name__ = "Lock.acquire"  # what the repr of a task shows that runs it
    __slots__ = ("_coroutine", "_lock", "_owner", "_scope", "_timeout", "_wait")

    def __init__(self, lock: Lock, *, timeout: float | None, wait: bool) -> None:
        self._coroutine: Coroutine[Any, Any, Lease | None] | None = None
        self._lock = lock
        self._timeout = timeout
        self._wait = wait
        self._owner: Owner = (lock._room.keeper.current_task(), lock._policy.name)
        self._scope: Scope | None = None

    def __repr__(self) -> str:
        return f"<Acquisition of {self._lock.name!r} timeout={self._timeout}>"

    async def _acquire(self) -> Lease | None:
        room = self._lock._room
        room.check()
        hold = await room.acquire(
            self._lock._policy, self._owner, timeout=self._timeout, wait=self._wait
        )
        return None if hold is None else Lease(room.keeper, hold)

    def _begin(self) -> Coroutine[Any, Any, Lease | None]:
        if self._coroutine is not None:
            raise RuntimeError("this acquisition was begun already: call acquire() again")
        self._coroutine = self._acquire()
        return self._coroutine

    def __await__(self) -> Generator[Any, None, Lease | None]:
        return self._begin().__await__()

    async def __aenter__(self) -> Lease:
        lease = await self._begin()
        if lease is None:
            raise self._lock._not_acquired(self._timeout, wait=self._wait)
        self._scope = Scope(lease, lease._keeper.current_task())
        return lease

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> CoroutineType[Any, Any, None]:
        assert self._scope is not None
        return self._scope.close(error)  # type: ignore[return-value]  # mypy knows no CoroutineType

    # A coroutine too, because create_task() takes nothing less.

    def send(self, value: Any, /) -> Any:
        return (self._coroutine or self._begin()).send(value)

    def throw(self, *error: Any) -> Any:
        return (self._coroutine or self._begin()).throw(*error)

    def close(self) -> None:
        if self._coroutine is not None:
            self._coroutine.close()
        else:
            self._coroutine = _never()
            self._coroutine.close()

    def __del__(self) -> None:
        if self._coroutine is None:
            warnings.warn(
                f"{self!r} was never awaited, so nothing was locked",
                RuntimeWarning,
                stacklevel=2,
                source=self,
            )


async def _never() -> None:
    """What an acquisition that was closed before it began consists of."""


@dataclass(frozen=True, slots=True, repr=False, eq=False)
class Lock:
    """A description of one lock: its name and how it behaves. Holds nothing and does no I/O.

    Made by `LockClient.lock`. Any number of tasks may share one. ``async with lock as lease``
    waits its turn, at most the lock's ``timeout``, and gives a `Lease`:

    * `AcquireTimeout` when the time has passed, `QueueFull` when ``max_waiters`` wait already,
      `WouldDeadlock` when this task holds it already, `StoreError` when nobody knows, and
      `ClientClosed` when the client is not open here. After each of them nothing is left behind.
    * Cancelled while it waits, it leaves the queue, or gives back the lock that was handed to it
      at that moment.
    * When the lease is lost, the body is cancelled and `LeaseLost` is raised at the exit; if the
      body raises an exception of its own, that one is raised, with a note.
    """

    _room: WaitingRoom
    _policy: Policy

    def __repr__(self) -> str:
        return f"<Lock {self.name!r} ttl={self.ttl:g}>"

    @property
    def name(self) -> str:
        """The lock's name; locks of one name on one store and prefix are one lock."""
        return self._policy.name

    @property
    def ttl(self) -> float:
        """For how many seconds the store keeps a lease that nobody renews."""
        return self._policy.ttl

    def acquire(
        self, *, timeout: float | Default | None = DEFAULT, blocking: bool = True
    ) -> Acquisition:
        """Take the lock, or stand in its queue for up to ``timeout`` seconds (None: for ever).

        Await the result for a `Lease`, or None when the time has passed or, with
        ``blocking=False``, when the lock is not free at once. Enter it with ``async with`` to
        have `AcquireTimeout` instead of None, and the body cancelled when the lease is lost.
        Errors and cancellation are as for ``async with lock``.

        ``timeout`` is how long *you* wait; how long the lock is kept for you is its ``ttl``.
        """
        if not isinstance(blocking, bool):
            raise TypeError(f"blocking must be True or False, not {blocking!r}")
        own = isinstance(timeout, Default)
        seconds = self._policy.timeout if own else checked_timeout(timeout)
        if not blocking and not own and timeout:
            raise ValueError("blocking=False does not wait, so it takes no timeout")
        self._room.check()
        return Acquisition(self, timeout=seconds, wait=blocking and seconds != 0)

    async def release(self) -> bool:
        """End the lease that the current task holds; says whether it was still ours.

        As `Lease.release`, for code that does not have the lease at hand. `NotHeld` when the
        current task holds no lease of this name: it may have been released or lost already.
        """
        self._room.check()
        keeper = self._room.keeper
        hold = keeper.owned.get((keeper.current_task(), self.name))
        if hold is None:
            raise NotHeld(
                f"this task does not hold the lock {self.name!r}: it was released or lost, or"
                " another task acquired it, which must release it (or use the lease)"
            )
        return await hold.leases[-1].release()

    async def locked(self) -> bool:
        """Whether it is held, or closed, now: one round trip; `StoreError` when nobody knows."""
        status = await self.status()
        return bool(status.holders) or status.closed > 0

    def held(self) -> bool:
        """Whether the current task holds it, as far as this process knows: no I/O."""
        self._room.check()
        keeper = self._room.keeper
        return (keeper.current_task(), self.name) in keeper.owned

    async def status(self) -> Status:
        """Who holds it and who waits for it, in order; `StoreError` when nobody knows.

        For people and dashboards: it is true of a moment that has passed.
        """
        self._room.check()
        return await self._room.store.status(self.name)

    async def request_release(self) -> bool:
        """Ask whoever holds it to let go, when it can; whether anybody was told.

        It sets `Lease.requested` of each holder, and that is all: whoever asks stands in the queue
        as ever. One round trip; a request may get lost. `StoreError` when nobody knows. Cancelled,
        it may have been sent.
        """
        self._room.check()
        return await self._room.store.request(self.name) > 0

    async def break_(self) -> bool:
        """Take the lock from whoever holds it, and hand it to the next; whether anybody held it.

        The holder is told at once: its lease is lost and its body cancelled, but until it has
        ended two bodies run. For a holder that hangs and renews; one that died needs no help.
        Two round trips. Cancelled, or on a `StoreError`, it may have been carried out.
        """
        # Of the grants that we saw, and no others: sent again after a lost reply, it must not
        # take the lock from the next one too.
        holders = (await self.status()).holders
        if holders:
            await self._room.store.break_(self.name, [holder.fence for holder in holders])
        return bool(holders)

    async def __aenter__(self) -> Lease:
        room, policy = self._room, self._policy
        room.check()
        owner: Owner = (room.keeper.current_task(), policy.name)
        wait = policy.timeout != 0
        hold = await room.acquire(policy, owner, timeout=policy.timeout, wait=wait)
        if hold is None:
            raise self._not_acquired(policy.timeout, wait=wait)
        lease = Lease(room.keeper, hold)
        room.entered.add(owner, self, Scope(lease, owner[0]))
        return lease

    def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> CoroutineType[Any, Any, None]:
        return self._left().close(error)  # type: ignore[return-value]  # as above

    def _not_acquired(self, timeout: float | None, *, wait: bool) -> AcquireTimeout:
        if not wait:
            return AcquireTimeout(f"{self._policy.called} is not free")
        return AcquireTimeout(f"{self._policy.called} did not become free in {timeout:g} s")

    def _left(self) -> Scope:
        """The innermost body of this lock that the current task has entered, now left."""
        room = self._room
        scope: Scope = room.entered.take((room.keeper.current_task(), self.name), self)
        return scope
