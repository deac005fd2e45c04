"""A lease: the user's view of one acquisition that holds its lock.

An `Acquisition` belongs to the engine, and a `Lease` to the user: if the user drops every lease of
what is held, nothing can release it any more, and the engine does so (see `Lease.__del__`).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Final

from aiolock._engine.acquisition import Acquisition, without
from aiolock._engine.detaching import detach, take_back
from aiolock._engine.lease_state import ALIVE, LeaseState, LossReason
from aiolock._engine.policy import to_ms
from aiolock._engine.released import Released
from aiolock._engine.scope import PATIENCE, body_of
from aiolock._engine.watchdog import Watchdog
from aiolock._futures import failure_of
from aiolock._prompt import Prompt
from aiolock.copying import Uncopyable
from aiolock.entering import AsyncEnterable, Entered, Entry, current_task
from aiolock.errors import LeaseLost, StoreError, Unsupported
from aiolock.lease_token import LeaseToken
from aiolock.options import Seconds
from aiolock.protocol import WAS_ABSENT, WAS_QUEUED
from aiolock.validation import checked_label, checked_ttl

log = logging.getLogger("aiolock")

_BY_HAND: Final = Entered(current_task)
"""The bodies of leases that were entered by hand."""


class LostEvent(asyncio.Event):
    """Set when the lease is lost; ``await lease.lost`` is short for ``await lease.lost.wait()``."""

    def __await__(self) -> Generator[Any, None, bool]:
        return self.wait().__await__()


class Lease(
    Uncopyable,
    AsyncEnterable["Lease"],
    instead=(
        "it is one hold; pass the lease itself on, or to another process the name, or the token of"
        " detach()"
    ),
):
    """One hold of a lock: its fence, its deadline, and the way to release it.

    Made by `Lock.acquire`. All times are seconds. A lease ends once, by release or by loss, and
    never comes back; acquiring again gives another lease with a higher fence.

    Entered with ``async with``, it is released at the end, and its loss cancels the body, as by
    ``async with lock``::

        if lease := await lock.try_acquire(timeout=2):
            async with lease:
                ...
    """

    # Without `__init__`, because `acquire` makes one for each acquisition: see `lease_of`.
    _watchdog: Watchdog
    _hold: Acquisition
    _shares = False
    """Whether it was acquired as a shared lock. The hold may be exclusive all the same: a task that
    writes may acquire the read lock of a re-entrant `RWLock`, too."""
    _left_behind = _ended = False

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} fence={self.fence} {self.state} {self.remaining():.3f} s>"

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._hold.policy.name

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of any earlier grant of this name.

        Send it along with what you write, and let the storage refuse a lower one than it has seen.
        Only that, not the lock, stops a holder that was suspended and woke up too late.
        """
        return self._hold.fence

    @property
    def state(self) -> LeaseState:
        """`held`, `at_risk` (a renewal is not answered), `lost`, `released` or `detached`."""
        if not self._ended:
            self._watchdog.check(self._hold)
            return self._hold.state
        state = self._hold.state
        return LeaseState.RELEASED if state in ALIVE else state

    @property
    def lost(self) -> LostEvent:
        """An event, set when the lease is lost, never by a release. Await it, or its `wait`."""
        event = self._hold.lost
        if event is None:
            event = self._hold.lost = LostEvent()
            if self._hold.state is LeaseState.LOST:
                event.set()
        assert isinstance(event, LostEvent)
        return event

    @property
    def requested(self) -> asyncio.Event:
        """An event, set when a client asks for the lock with `Lock.request_release`.

        It is a request only: the holder may release the lock early, or keep it.
        """
        event = self._hold.requested
        if event is None:
            event = self._hold.requested = asyncio.Event()
            if self._hold.is_wanted:
                event.set()
        return event

    @property
    def _entered(self) -> Entered:
        return _BY_HAND

    async def _enter(self, entry: Entry) -> Lease:
        entry.enters(self, body_of(self, current_task(), cancels=self._hold.policy.cancels))
        return self

    def _lose_body(self) -> None:
        """Nothing can leave its body any more."""
        self._left_behind = True
        self.__class__ = LeaseWithoutBody  # pyright: ignore[reportAttributeAccessIssue]  # of the same layout

    def remaining(self) -> float:
        """Seconds for which it is certainly ours without a renewal; 0.0 once it has ended."""
        if self.state in ALIVE:
            return max(0.0, self._hold.deadline - self._watchdog.time())
        return 0.0

    async def release(self) -> bool:
        """Release the lock; in the same step, the store grants it to the next waiter.

        True if it was still ours. Idempotent: a second call returns the same and sends nothing.
        Waits for the store's answer, but never past the end of the lease; `StoreError` if there is
        none, or the store refuses. Then the release is sent again in the background, at first after
        a second, until the store answers or the lease has ended. A cancellation does not stop the
        release. A re-entrant lock is released only by the last of its releases.
        """
        released = self._give_back()
        if released is None:
            return self._hold.state is not LeaseState.LOST
        try:
            await self._answer(released)
        except asyncio.CancelledError:
            released.then(partial(self._watchdog.release_answered, self._hold))
            raise
        return self._is_released(released)

    def _answer(self, released: Released) -> Prompt:
        """Await this for the answer to a release: cancelling it does not stop that."""
        watchdog, deadline = self._watchdog, self._hold.deadline
        # Only needed if the lease ends before the store itself gives up on the command.
        if deadline - watchdog.time() < PATIENCE:
            watchdog.answer_deadlines.add(released, deadline)
        return released.wait(watchdog.loop)

    def _is_released(self, released: Released) -> bool:
        """Whether it was still ours when it was released, by the store's answer."""
        hold, watchdog = self._hold, self._watchdog
        if released in watchdog.answer_deadlines.pending:
            watchdog.answer_deadlines.remove(released)
        if (failure := released.failure) is not None:
            if isinstance(failure, StoreError):
                watchdog.release_failed(hold, failure)
            raise hold.policy.with_context(failure)
        was = released.was
        lost = was == WAS_ABSENT or was == WAS_QUEUED  # noqa: PLR1714  # no tuple for each release
        if lost and hold.state is LeaseState.RELEASED and not watchdog.handoff.was_unknown(hold):
            hold.state = LeaseState.LOST
            hold.reason = LossReason.REFUSED
            self.lost.set()
            watchdog.events.lost(hold, watchdog.time())
        return hold.state is not LeaseState.LOST

    def release_nowait(self) -> None:
        """Release the lock without waiting for the store's answer, as from a callback.

        Idempotent. Called in the event loop of its client. A release that is not answered is sent
        again, as by `release`. Whether the lock was still ours remains unknown.
        """
        if (released := self._give_back()) is not None:
            released.then(partial(self._watchdog.release_answered, self._hold))

    def _give_back(self) -> Released | None:
        """`release` without waiting; None if there is nothing to wait for."""
        hold, watchdog = self._hold, self._watchdog
        if asyncio._get_running_loop() is not watchdog.loop:  # nor in a fork
            watchdog.check_here()
        if not self._ended:
            self._ended = True
            hold.speaking -= 1
            hold.leases = () if hold.leases == (self,) else without(hold.leases, self)
        return None if hold.speaking else watchdog.release(hold)

    async def extend(self, ttl: Seconds) -> None:
        """Let the lease end ``ttl`` seconds from now, and make later renewals as long.

        The ttl may be shorter than before. `LeaseLost` when the lock is not ours any more,
        `StoreError` when that is unknown. After that, or when cancelled, the store may have carried
        it out, but renewals keep the old ttl.
        """
        lasting = checked_ttl(ttl)
        self._watchdog.limits.check_ttl(lasting)
        wanted = to_ms(lasting)
        self._still_ours()
        began = self._watchdog.time()
        if not await self._ask(self._watchdog.affordable(self._hold, wanted)):
            raise self._loss()
        self._still_ours()  # it may have ended before the answer came
        self._hold.ttl, self._hold.counts_from = wanted, began

    async def verify(self) -> bool:
        """Ask the store whether the lock is still ours: one round trip, changes nothing.

        True is valid for the moment in which the store answered. False means lost, and the body is
        cancelled as for any loss. `StoreError` when the store does not answer.
        """
        return self.state in ALIVE and await self._ask(0) and self.state in ALIVE

    async def downgrade(self) -> None:
        """Turn a lease of `RWLock.write` into that of a reader, without releasing it meanwhile.

        The readers that are next in the queue enter. The lease and its fence stay the same.
        `LeaseLost` when it is not ours any more. `StoreError` when it is unknown whether readers
        may have entered: then treat it as downgraded, or downgrade it again. A cancellation does
        not stop it. Once it is confirmed, a second call does nothing. `TypeError` for any other
        lease; `Unsupported` on a quorum, and then it is held as before.
        """
        hold = self._hold
        if not hold.policy.downgrades:
            raise TypeError(f"only a lease of RWLock.write() can be downgraded, not {self!r}")
        self._still_ours()
        self._watchdog.check_here()
        downgraded = hold.downgraded
        if downgraded is None or (downgraded.done() and downgraded.exception() is not None):
            # Before the answer: from the sending on, readers may enter at any moment.
            hold.shared = True
            downgraded = hold.downgraded = self._watchdog.downgrade(hold)
            downgraded.add_done_callback(self._undo_if_refused)
        # If two tasks await it, the cancellation of one must not cancel the other.
        await asyncio.wait([downgraded])
        with hold.policy.errors_named():
            was = downgraded.result()
        if was == WAS_ABSENT:
            self._watchdog.lose(hold, LossReason.REFUSED)
        self._still_ours()

    def _undo_if_refused(self, downgraded: asyncio.Future[int]) -> None:
        if isinstance(failure_of(downgraded), Unsupported):
            self._hold.shared = False  # the store has not carried it out

    async def detach(self, *, ttl: Seconds = 60.0, label: str | None = None) -> LeaseToken:
        """Give up the lease without releasing the lock; the token by which another adopts it.

        ::

            token = await lease.detach()
            await queue.put({"order": 42, "token": token})

        Whoever passes the token to `LockClient.adopt` gets the lock, under a higher fence, also in
        another process. Nobody else holds it in between, and waiters go on waiting. If nobody does
        within ``ttl`` seconds, the lock is free. Nobody renews it meanwhile.

        The lease ends here when this is called: its body must not go on with what the lock
        protects. Leaving the body then sends nothing. `TypeError` for a lease of an election or a
        periodic job; `Unsupported` on a quorum, and for a re-entrant lock that its owner has
        entered more than once: it is held as before then. `LeaseLost` when it is not ours any more.
        `StoreError` when the store does not answer: then nobody can adopt it, and it is released,
        as soon as the store answers again; so it is when this is cancelled.

        :param ttl: seconds until the lock is free if nobody adopts it.
        :param label: shown in `status` until then ("order 42, for the worker").
        """
        lasting, label = checked_ttl(ttl), checked_label("label", label)
        self._watchdog.limits.check_ttl(lasting)
        return await detach(self, to_ms(lasting), label)

    @asynccontextmanager
    async def handing_on(
        self, *, ttl: Seconds = 60.0, label: str | None = None
    ) -> AsyncGenerator[LeaseToken, None]:
        """Detach the lease, for a body that passes its token on; if the body raises, release it.

        ::

            async with lease.handing_on() as token:
                await queue.put({"order": 42, "token": token})

        The parameters and errors are those of `detach`. When the body raises, or is cancelled, the
        token is discarded without waiting for the store; if it was adopted already, it stays so.
        """
        token = await self.detach(ttl=ttl, label=label)
        try:
            yield token
        except BaseException:
            self._take_back(token)
            raise

    def _take_back(self, token: LeaseToken) -> None:
        """Discard a token of this lease, without waiting."""
        _ = take_back(self, token)

    async def _ask(self, ttl: int) -> bool:
        self._watchdog.check_here()
        # Cancelled, the store may have renewed it all the same: `Watchdog.ask` has lowered the
        # deadline so that it is right in both cases.
        with self._hold.policy.errors_named():
            (still,) = await self._watchdog.ask(self._hold, ttl)
        if not still and self._hold.state in ALIVE:
            policy = self._hold.policy
            text = f"the store cannot tell whether {policy.called} is still ours: ask again"
            if still is not None:  # see `LocalHandoff.in_doubt`
                text = f"the store has not heard yet that {policy.called} was handed off: ask again"
            raise policy.with_name(StoreError(text))
        return bool(still)

    def _is_surely_ours(self) -> bool:
        """Whether it has neither ended nor passed its deadline. Read-only: safe in any thread."""
        hold = self._hold
        return not self._ended and hold.state in ALIVE and self._watchdog.time() < hold.deadline

    def _still_ours(self) -> None:
        if self.state not in ALIVE:
            raise self._loss()

    def _loss(self) -> LeaseLost:
        """The error with the reason for the loss of this lease, or that it was released."""
        what = f"{self._hold.policy.called} (fence {self.fence})"
        if self._hold.state is LeaseState.LOST:
            reason = self._hold.reason
            why = reason.value if isinstance(reason, LossReason) else f"the store said {reason!r}"
            text = f"{what} was lost: {why}"
        else:
            text = f"the lease of {what} was {self._hold.state.value}"
            if self._hold.state in ALIVE:  # another lease of it is not
                text = f"this lease of {what} was released"
        error = self._hold.policy.with_name(LeaseLost(text))
        error.fence = self.fence
        error.closed = self._hold.reason is LossReason.CLOSED
        return error


class LeaseWithoutBody(Lease):
    """A lease that was acquired by call: nothing ends it if it is dropped.

    A class of its own, because a finalizer costs each lease of a body as well.
    """

    def __del__(self) -> None:
        if self._ended or not hasattr(self, "_hold") or self._hold.state not in ALIVE:
            return  # it has ended, or has not begun
        self._hold.speaking -= 1
        if not self._hold.speaking:
            self._watchdog.forgotten.unreachable(self._hold)


LeaseWithoutBody.__name__ = LeaseWithoutBody.__qualname__ = Lease.__name__  # what users know


def lease_of(
    lease_type: type[Lease], watchdog: Watchdog, hold: Acquisition, *, shares: bool
) -> Lease:
    """One more lease of this hold."""
    lease = lease_type()
    lease._watchdog, lease._hold, lease._shares = watchdog, hold, shares
    hold.leases += (lease,)
    hold.speaking += 1
    return lease


def not_entered(watchdog: Watchdog, hold: Acquisition, lease: Lease | None) -> None:
    """Release what could not be entered: the lease, or the hold if there is no lease of it.

    A hold of a re-entrant lock may have other leases: it is kept for those.
    """
    if lease is not None:
        lease.release_nowait()
    elif not hold.speaking:
        watchdog.abandon(hold)
