"""Descriptions of what threads acquire and release: locks, of one name or of several, permits."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar, Unpack

import aiolock
from aiolock.copying import CopiedAsItself
from aiolock.errors import ClientClosed
from aiolock.options import DEFAULT, Default, Mode, Seconds
from aiolock.protocol import Status
from aiolock.signatures import NoOptions, unexpected, without_unknown
from aiolock.sync._body import Entrance, Opened
from aiolock.sync._lease import Lease, MultiLease, PathLease, give_up
from aiolock.sync._portal import Portal
from aiolock.sync.transactions import check_released, refuse_in_transaction

Given = TypeVar("Given")
Taken = TypeVar("Taken", bound=Lease | MultiLease)


class Taking(Entrance[Given, Taken], Generic[Given, Taken]):
    """A description that a thread acquires, and releases by its lease."""

    __slots__ = ()

    def _take(self, ask: Callable[[str], Awaitable[Given | None]]) -> Taken | None:
        """The lease that ``ask`` gives, or None.

        It is called in the thread's task, because the calling task owns the lease, and with the
        line of the calling program, not one of aiolock's.
        """
        frame = sys._getframe(2)
        where = f"{frame.f_code.co_filename}:{frame.f_lineno}" if sys.flags.dev_mode else ""
        refuse_in_transaction(self)
        portal = self._client.portal()

        taken = list[Taken]()  # shared with the loop, because the way back may be interrupted

        async def take() -> None:
            given = await ask(where)
            if given is not None:
                taken.append(self._given(portal, given))

        async def undo(_: None) -> None:
            undo_now()

        def undo_now() -> None:
            for each in taken:
                give_up(each)

        try:
            self._client.call(take, undo, waits=True)
            return taken[0] if taken else None
        except BaseException:
            with contextlib.suppress(ClientClosed):
                portal.soon(undo_now)
            raise


class _Acquirable(Taking[Given, Taken], Generic[Given, Taken]):
    """One that is acquired as a whole."""

    __slots__ = ("_acquisition", "_attempt")

    def __init__(
        self,
        client: Opened,
        context: AbstractAsyncContextManager[Given],
        given: Callable[[Portal, Given], Taken],
        *,
        acquisition: Callable[[Any, str, str | None], Awaitable[Given]],
        attempt: Callable[[Any, str, str | None], Awaitable[Given | None]],
    ) -> None:
        """``acquisition`` and ``attempt`` give the awaitables of `acquire` and `try_acquire`.

        They get the timeout, the line that asks, and the label.
        """
        super().__init__(client, context, given)
        self._acquisition = acquisition
        self._attempt = attempt

    @without_unknown
    def acquire(
        self,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Taken:
        """Take it, or wait for it in its queue, and return its lease.

        It waits at most for ``timeout`` seconds, and then raises `AcquireTimeout`; with None as
        long as it takes, and for its own timeout, if none is given. Other errors are those of
        ``with lock``. Interrupted (Ctrl-C), it leaves the queue, or releases what was granted at
        that moment. ``label`` is as in `aiolock.Lock.acquire`; it is the name of the thread, if
        None.
        """
        for wrong in unknown:
            raise unexpected(_Acquirable[Any, Any].acquire, wrong)
        taken = self._take(lambda where: self._acquisition(timeout, where, label))
        assert taken is not None
        return taken

    @without_unknown
    def try_acquire(
        self, *, timeout: Seconds = 0, label: str | None = None, **unknown: Unpack[NoOptions]
    ) -> Taken | None:
        """Take it if it is free now, or within ``timeout`` seconds; else the result is None.

        As `aiolock.Lock.try_acquire`. Interrupted (Ctrl-C), it leaves nothing, as `acquire`.
        """
        for wrong in unknown:
            raise unexpected(_Acquirable[Any, Any].try_acquire, wrong)
        return self._take(lambda where: self._attempt(timeout, where, label))


class Lock(_Acquirable[aiolock.Lease, Lease]):
    """A description of one lock: as `aiolock.Lock`, for threads. Holds nothing and does no I/O.

    Made by `LockClient.lock`. Any number of threads may share one; each thread is an owner of its
    own. ``with lock as lease`` waits its turn, at most for the lock's ``timeout``, and gives a
    `Lease`:

    * It raises `AcquireTimeout` when the time has passed, `QueueFull` when ``max_waiters`` wait
      already, `WouldDeadlock` when this thread holds it already, `StoreError` when the store does
      not answer, and `ClientClosed` when the client is closed. After each of them nothing is left
      behind.
    * Within a transaction of Django in this thread it raises `RuntimeError`, before anything is
      done: it would be released before the commit. So does a release, after it, if a transaction
      is open then. See `aiolock.integrations.django.ignore_transactions`.
    * Interrupted while it waits (Ctrl-C), it leaves the queue, or releases the lock if it was
      granted at that moment.
    * When the lease is lost, nothing stops the thread, but `Lease.lost` is set and `Lease.check`
      raises at once. Any waiting of the thread in aiolock ends with `LeaseLost`, and so does the
      exit; if the body raises an exception of its own, that one is raised, with a note. With
      ``on_lost="signal"`` only `Lease.lost` is set.
    """

    __slots__ = ("__weakref__", "_lock")

    def __init__(self, client: Opened, lock: aiolock.Lock) -> None:
        super().__init__(
            *(client, lock, Lease),
            acquisition=lambda timeout, where, label: lock._acquisition(
                timeout, where=where, label=label
            ),
            attempt=lambda timeout, where, label: lock._attempt(timeout, where=where, label=label),
        )
        self._lock = lock

    def __repr__(self) -> str:
        return repr(self._lock)

    @property
    def name(self) -> str:
        """The lock's name; locks of one name on one store and prefix are one lock."""
        return self._lock.name

    @property
    def ttl(self) -> float:
        """Seconds for which the store keeps a lease that nobody renews."""
        return self._lock.ttl

    def release(self) -> bool:
        """End the lease that this thread holds; True if it was still ours.

        `NotHeld` when this thread holds none of this name, though another may.
        """
        released = self._client.call(self._lock.release)
        check_released(self)
        return released

    def locked(self) -> bool:
        """Whether the lock is held or closed now: one round trip. `StoreError` if unknown."""
        return self._client.call(self._lock.locked)

    def held(self) -> bool:
        """Whether this thread holds it, as far as this process knows: no I/O."""

        async def held() -> bool:
            return self._lock.held()

        return self._client.call(held)

    def status(self) -> Status:
        """The holders and waiters of the lock, in order; as `aiolock.Lock.status`."""
        return self._client.call(self._lock.status)

    def request_release(self) -> bool:
        """Ask the holders to release it when they can; as `aiolock.Lock.request_release`."""
        return self._client.call(self._lock.request_release)

    def break_(self, fence: int | None = None) -> bool:
        """Take it from its holders, and grant it to the next; as `aiolock.Lock.break_`."""
        return self._client.call(lambda: self._lock.break_(fence))


class RWLock(CopiedAsItself):
    """A description of one readers-writer lock: as `aiolock.RWLock`, for threads."""

    __slots__ = ("_client", "_lock", "_reading", "_writing")

    def __init__(self, client: Opened, lock: aiolock.RWLock) -> None:
        self._client = client
        self._lock = lock
        self._reading = Lock(client, lock.read())
        self._writing = Lock(client, lock.write())

    def __repr__(self) -> str:
        return repr(self._lock)

    @property
    def name(self) -> str:
        """The name of both locks."""
        return self._lock.name

    def read(self) -> Lock:
        """The lock that readers share; as `aiolock.RWLock.read`."""
        return self._reading

    def write(self) -> Lock:
        """The lock that a writer has alone; its lease can be downgraded (`Lease.downgrade`)."""
        return self._writing

    def status(self) -> Status:
        """The readers or the writer, and the waiters; as `Lock.status`."""
        return self._client.call(self._lock.status)

    def break_(self, fence: int | None = None) -> bool:
        """Take it from all readers or from the writer, or from one holder: as `Lock.break_`."""
        return self._client.call(lambda: self._lock.break_(fence))


class Semaphore(Taking[aiolock.Lease, Lease]):
    """A description of one semaphore: as `aiolock.Semaphore`, for threads.

    ``with`` takes one permit; several are taken with ``with api.acquire(permits=2):``.
    """

    __slots__ = ("__weakref__", "_semaphore")

    def __init__(self, client: Opened, semaphore: aiolock.Semaphore) -> None:
        super().__init__(client, semaphore, Lease)
        self._semaphore = semaphore

    def __repr__(self) -> str:
        return repr(self._semaphore)

    @property
    def name(self) -> str:
        """The semaphore's name."""
        return self._semaphore.name

    @property
    def limit(self) -> int:
        """The number of permits declared here; `status` tells how many there really are."""
        return self._semaphore.limit

    @without_unknown
    def acquire(
        self,
        permits: int = 1,
        *,
        timeout: Seconds | Default | None = DEFAULT,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Lease:
        """Take ``permits`` at once, all or none; otherwise as `Lock.acquire`."""
        for wrong in unknown:
            raise unexpected(Semaphore.acquire, wrong)
        lock = self._semaphore._of(permits)
        taken = self._take(lambda where: lock._acquisition(timeout, where=where, label=label))
        assert taken is not None
        return taken

    @without_unknown
    def try_acquire(
        self,
        permits: int = 1,
        *,
        timeout: Seconds = 0,
        label: str | None = None,
        **unknown: Unpack[NoOptions],
    ) -> Lease | None:
        """Take ``permits`` at once, all or none; otherwise as `Lock.try_acquire`."""
        for wrong in unknown:
            raise unexpected(Semaphore.try_acquire, wrong)
        lock = self._semaphore._of(permits)
        return self._take(lambda where: lock._attempt(timeout, where=where, label=label))

    def resize(self, limit: int) -> None:
        """Set the number of permits, for all clients; as `aiolock.Semaphore.resize`."""
        self._client.call(lambda: self._semaphore.resize(limit))

    def break_(self, fence: int | None = None) -> bool:
        """Take the permits from all holders, or from one: as `Lock.break_`."""
        return self._client.call(lambda: self._semaphore.break_(fence))

    def status(self) -> Status:
        """The holders and waiters with their permits; as `aiolock.Semaphore.status`."""
        return self._client.call(self._semaphore.status)


class MultiLock(_Acquirable[aiolock.MultiLease, MultiLease]):
    """Several locks, all of them or none: as `aiolock.MultiLock`, for threads."""

    __slots__ = ("__weakref__", "_multi")

    def __init__(self, client: Opened, multi: aiolock.MultiLock) -> None:
        super().__init__(
            *(client, multi, MultiLease),
            acquisition=lambda timeout, _, label: multi.acquire(timeout=timeout, label=label),
            attempt=lambda timeout, _, label: multi.try_acquire(timeout=timeout, label=label),
        )
        self._multi = multi

    def __repr__(self) -> str:
        return repr(self._multi)

    @property
    def names(self) -> tuple[str, ...]:
        """The names, in the order in which the locks are taken."""
        return self._multi.names


class PathLock(_Acquirable[aiolock.PathLease, PathLease]):
    """A node of a tree, with all that is below it: as `aiolock.PathLock`, for threads."""

    __slots__ = ("__weakref__", "_path_lock")

    def __init__(self, client: Opened, path: aiolock.PathLock) -> None:
        super().__init__(
            *(client, path, PathLease),
            acquisition=lambda timeout, _, label: path.acquire(timeout=timeout, label=label),
            attempt=lambda timeout, _, label: path.try_acquire(timeout=timeout, label=label),
        )
        self._path_lock = path

    def __repr__(self) -> str:
        return repr(self._path_lock)

    @property
    def name(self) -> str:
        """The path."""
        return self._path_lock.name

    @property
    def mode(self) -> Mode:
        """``exclusive`` or ``shared``."""
        return self._path_lock.mode

    @property
    def nodes(self) -> tuple[str, ...]:
        """The paths of all nodes that are held, the root first."""
        return self._path_lock.nodes

    def locked(self) -> bool:
        """Whether anybody has the node, or a node below it; as `aiolock.PathLock.locked`."""
        return self._client.call(self._path_lock.locked)

    def status(self) -> Status:
        """Who has the node or waits for it, or is below it; as `aiolock.PathLock.status`."""
        return self._client.call(self._path_lock.status)

    def break_(self, fence: int | None = None) -> bool:
        """Take the node from all that have it, or from one; as `aiolock.PathLock.break_`."""
        return self._client.call(lambda: self._path_lock.break_(fence))
