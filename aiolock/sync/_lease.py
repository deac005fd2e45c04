"""The leases and terms of threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Generator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Final, TypeVar

import aiolock
from aiolock.copying import Uncopyable
from aiolock.entering import Entry, SyncEnterable
from aiolock.errors import ClientClosed
from aiolock.lease_token import LeaseToken
from aiolock.options import Seconds
from aiolock.sync._body import Bodies, Body
from aiolock.sync._portal import Portal
from aiolock.sync._thread import caller
from aiolock.sync.transactions import check_released, refuse_in_transaction
from aiolock.validation import checked_timeout

T = TypeVar("T")

_BY_HAND: Final = Bodies()
"""The bodies of leases that were entered by hand."""


class Flag(Uncopyable):
    """Something that happens once, with the methods of `threading.Event`; for any thread."""

    __slots__ = ("_event", "_portal", "_waits")

    def __init__(self, portal: Portal, event: asyncio.Event, *, waits: bool) -> None:
        self._portal = portal
        self._event = event
        self._waits = waits

    def __repr__(self) -> str:
        return f"<Flag {'set' if self.is_set() else 'not set'}>"

    def is_set(self) -> bool:
        """Whether it has happened."""
        return self._event.is_set()

    def wait(self, timeout: Seconds | None = None) -> bool:
        """Wait until it has happened, for at most this many seconds; True if it has.

        `LeaseLost` when a lease of the thread is lost meanwhile, unless this flag is about a loss.
        """
        seconds = checked_timeout(timeout)

        async def wait() -> bool:
            try:
                async with asyncio.timeout(seconds):
                    return await self._event.wait()
            except TimeoutError:
                return False

        return self._event.is_set() or caller(self._portal).call(wait, waits=self._waits)


class Lease(Uncopyable, SyncEnterable["Lease"], instead=aiolock.Lease._instead):
    """One hold of a lock by a thread: its fence, its deadline, and the way to release it.

    As `aiolock.Lease`, for threads; any thread may use it. It is renewed by another thread while
    this one works. A loss cannot stop a thread: in a long piece of work, call `check` between the
    steps, or look at `lost`, and stop.

    Entered with ``with``, it is released at the end, as by ``with lock``::

        if lease := lock.try_acquire(timeout=2):
            with lease:
                ...
    """

    __slots__ = ("__weakref__", "_lease", "_portal")

    def __init__(self, portal: Portal, lease: aiolock.Lease) -> None:
        self._portal = portal
        self._lease = lease

    def __repr__(self) -> str:
        return self._portal.read(lambda: repr(self._lease))

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._lease.name

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of any earlier grant of this name.

        Send it along with what you write, and let the storage refuse a lower one than it has seen.
        Only that stops a thread that works on without the lock.
        """
        return self._lease.fence

    @property
    def state(self) -> aiolock.LeaseState:
        """`held`, `at_risk` (a renewal is not answered), `lost`, `released` or `detached`."""
        return self._portal.read(lambda: self._lease.state)

    @property
    def lost(self) -> Flag:
        """Set when the lease is lost; never set by a release."""
        return Flag(self._portal, self._portal.read(lambda: self._lease.lost), waits=False)

    @property
    def requested(self) -> Flag:
        """Set when a client asks for the lock with `Lock.request_release`."""
        return Flag(self._portal, self._portal.read(lambda: self._lease.requested), waits=True)

    def check(self) -> None:
        """`LeaseLost` if the lock is not ours any more, lost or released; no I/O, and no waiting.

        Call it between the steps of the work under the lock: a task would be cancelled there.
        """
        self._portal.check_process()
        if not self._lease._is_surely_ours():
            self._portal.read(self._lease._still_ours)

    def remaining(self) -> float:
        """Seconds for which it is certainly ours if nobody renews it; 0.0 once it has ended."""
        return self._portal.read(self._lease.remaining)

    def release(self) -> bool:
        """Release the lock; True if it was still ours. As `aiolock.Lease.release`.

        Idempotent. An interruption (Ctrl-C) does not stop it.
        """
        try:
            alive = self._portal.read(lambda: self._lease.state).is_alive
            if not alive and self._portal.ended:
                return self.state is not aiolock.LeaseState.LOST
            released = self._call(self._lease.release)
        except BaseException as error:
            if not isinstance(error, Exception):
                self._give_back()
            raise
        if alive:
            check_released(self)
        return released

    def release_nowait(self) -> None:
        """Release the lock without waiting for the answer; as `aiolock.Lease.release_nowait`.

        Any thread may do so, also one that must not wait.
        """
        alive = self.state.is_alive
        self._give_back()
        if alive:
            check_released(self)

    def extend(self, ttl: Seconds) -> None:
        """Let the lease end ``ttl`` seconds from now; as `aiolock.Lease.extend`."""
        self._call(lambda: self._lease.extend(ttl))

    def verify(self) -> bool:
        """Ask the store whether the lock is still ours; as `aiolock.Lease.verify`."""
        return self._call(self._lease.verify)

    def downgrade(self) -> None:
        """Turn a lease of `RWLock.write` into a reader's; as `aiolock.Lease.downgrade`."""
        self._call(self._lease.downgrade)

    def detach(self, *, ttl: Seconds = 60.0, label: str | None = None) -> LeaseToken:
        """Give up the lease without releasing the lock; the token by which another adopts it.

        As `aiolock.Lease.detach`. Interrupted (Ctrl-C), the lock is released.
        """
        taken = list[LeaseToken]()  # shared with the loop: the way back may be interrupted

        async def detach() -> None:
            taken.append(await self._lease.detach(ttl=ttl, label=label))

        async def undo(_: None) -> None:
            self._take_back(taken)

        try:
            caller(self._portal).call(detach, undo)
            return taken[0]
        except BaseException as error:
            if not isinstance(error, Exception):
                self._portal.soon(self._take_back, taken)
            raise

    def _take_back(self, tokens: list[LeaseToken]) -> None:
        for token in tokens:
            self._lease._take_back(token)

    @contextlib.contextmanager
    def handing_on(
        self, *, ttl: Seconds = 60.0, label: str | None = None
    ) -> Generator[LeaseToken, None, None]:
        """Detach the lease, for a body that passes its token on; if the body raises, release it.

        As `aiolock.Lease.handing_on`.
        """
        token = self.detach(ttl=ttl, label=label)
        try:
            yield token
        except BaseException:
            with contextlib.suppress(ClientClosed):
                self._portal.soon(self._take_back, [token])
            raise

    def _call(self, function: Callable[[], Awaitable[T]]) -> T:
        return caller(self._portal).call(function)

    @property
    def _entered(self) -> Bodies:
        return _BY_HAND

    def _enter(self, entry: Entry) -> Lease:
        try:
            refuse_in_transaction(self)
        except BaseException:  # nothing else will release it
            self._give_back()
            raise
        body: Body[aiolock.Lease] | None = None
        lease = self._lease
        try:
            body = Body(self._portal, lambda: lease)
            body.enter()
            entry.enters(self, body.visit())
            return self
        except BaseException as error:
            if body is not None:
                body.close()
            if not isinstance(error, Exception):  # interrupted: nothing else will release it
                self._give_back()
            raise

    def _give_back(self) -> None:
        with contextlib.suppress(ClientClosed):
            self._portal.soon(self._lease.release_nowait)


class MultiLease(Uncopyable, instead=aiolock.Lease._instead):
    """One hold of several locks by a thread; made by `MultiLock`. Lost when any lease is lost."""

    __slots__ = ("_leases", "_multi", "_portal")

    def __init__(self, portal: Portal, multi: aiolock.MultiLease) -> None:
        self._portal = portal
        self._multi = multi
        self._leases = {name: Lease(portal, lease) for name, lease in multi.leases.items()}

    def __repr__(self) -> str:
        return self._portal.read(lambda: repr(self._multi))

    if not TYPE_CHECKING:  # as of `aiolock.MultiLease`
        _not_handed_on = property(lambda self: self._multi._not_handed_on)
        detach = handing_on = aiolock.MultiLease.detach

    @property
    def leases(self) -> Mapping[str, Lease]:
        """The lease of each lock, by the lock's name; each has its own fence."""
        return MappingProxyType(self._leases)

    @property
    def state(self) -> aiolock.LeaseState:
        """The worst of the leases' states; as `aiolock.MultiLease.state`."""
        return self._portal.read(lambda: self._multi.state)

    @property
    def lost(self) -> Flag:
        """Set when any lease is lost; never set by a release."""
        return Flag(self._portal, self._multi.lost, waits=False)

    def check(self) -> None:
        """`LeaseLost` if any lease is not ours any more; as `Lease.check`."""
        for lease in self._leases.values():
            lease.check()

    def remaining(self) -> float:
        """Seconds for which all leases are certainly ours; 0.0 once one has ended."""
        return self._portal.read(self._multi.remaining)

    def release(self) -> bool:
        """Release all leases; True if all were still ours. As `Lease.release`."""
        try:
            alive = self.state.is_alive
            released = caller(self._portal).call(self._multi.release)
        except BaseException as error:
            if not isinstance(error, Exception):
                for lease in self._leases.values():
                    lease._give_back()
            raise
        if alive:
            check_released(self)
        return released

    def extend(self, ttl: Seconds) -> None:
        """Let each lease end ``ttl`` seconds from now; as `Lease.extend`."""
        caller(self._portal).call(lambda: self._multi.extend(ttl))

    def verify(self) -> bool:
        """Ask the store whether all leases are still ours; as `Lease.verify`."""
        return caller(self._portal).call(self._multi.verify)


class PathLease(MultiLease):
    """One hold of a node by a thread, with all that is below it; made by `PathLock`."""

    __slots__ = ("_path",)

    def __init__(self, portal: Portal, path: aiolock.PathLease) -> None:
        super().__init__(portal, path)
        self._path = path

    @property
    def name(self) -> str:
        """The path."""
        return self._path.name

    @property
    def fence(self) -> int:
        """The fencing token, one for the whole tree; as `aiolock.PathLease.fence`."""
        return self._path.fence


class Term(Uncopyable, instead=aiolock.Lease._instead):
    """One term of a leader, as its thread has it; made by `Election.campaign`."""

    __slots__ = ("_lease", "_term")

    def __init__(self, portal: Portal, term: aiolock.Term) -> None:
        self._term = term
        self._lease = Lease(portal, term.lease)

    def __repr__(self) -> str:
        return f"<Term {self.value!r} fence={self.fence} {self.state}>"

    @property
    def lease(self) -> Lease:
        """The lease of the lock that leadership is."""
        return self._lease

    @property
    def value(self) -> str:
        """The value that this leader campaigned with."""
        return self._term.value

    @property
    def fence(self) -> int:
        """The fencing token of the term: higher than that of any leader before."""
        return self._lease.fence

    @property
    def state(self) -> aiolock.LeaseState:
        """The state of its lease."""
        return self._lease.state

    @property
    def lost(self) -> Flag:
        """Set when leadership was lost; never set by resigning."""
        return self._lease.lost

    @property
    def requested(self) -> Flag:
        """Set when a client calls `Election.request_resign`."""
        return self._lease.requested

    def check(self) -> None:
        """`LeaseLost` if it does not lead any more; as `Lease.check`."""
        self._lease.check()

    def resign(self) -> bool:
        """Stop leading, while the body goes on; as `Lease.release`."""
        return self._lease.release()


def give_up(lease: Lease | MultiLease) -> None:
    """Release a lease that came too late for its thread. Called in the loop."""
    if isinstance(lease, Lease):
        lease._lease.release_nowait()
    else:
        for each in lease._multi.leases.values():
            each.release_nowait()
