"""A lease: one hold of a lock as its user has it, and the body that ends when it is lost."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Generator
from typing import Any, Final, TypeVar

from aiolock._hold import ALIVE, Hold, LeaseState
from aiolock._keeper import Keeper, retrieve
from aiolock._policy import Policy, Seconds, checked_ttl, to_ms
from aiolock.errors import ClientClosed, LeaseLost, StoreError
from aiolock.store import WAS_ABSENT, WAS_QUEUED

log = logging.getLogger("aiolock")

Item = TypeVar("Item")

_REASONS: Final = {
    "expired": "its lease ended before the store confirmed a renewal",
    "refused": "the store does not know it any more: it ended, was broken, or the store was reset",
    "broken": "somebody broke it with break_()",
    "max_hold": "it was held as long as max_hold allows",
    "closed": "its client was closed",
}


_PATIENCE: Final = 9.5
"""A store gives up on a command by itself after so many seconds (see `Store`)."""


class LostEvent(asyncio.Event):
    """Set when the lease is lost; ``await lease.lost`` is short for ``await lease.lost.wait()``."""

    def __await__(self) -> Generator[Any, None, bool]:
        return self.wait().__await__()


class Lease:
    """One hold of a lock: its proof, its deadline, and the way to give it back.

    Made by `Lock.acquire`. All times are seconds. A lease ends once, by release or by loss, and
    never comes back; acquiring again gives another lease with a higher fence.
    """

    __slots__ = ("__weakref__", "_ended", "_hold", "_keeper", "_shares")

    def __init__(self, keeper: Keeper, hold: Hold, *, shares: bool) -> None:
        self._keeper = keeper
        self._hold = hold
        self._shares = shares
        """Whether it was asked for to share the lock: to read, where its task may write, too."""
        hold.leases += (self,)
        hold.speaking += 1
        self._ended = False

    def __del__(self) -> None:
        if getattr(self, "_ended", True) or self._hold.state not in ALIVE:
            return  # as where it could not even be made
        self._hold.speaking -= 1
        if not self._hold.speaking:
            self._keeper.unreachable(self._hold)

    def __repr__(self) -> str:
        return f"<Lease {self.name!r} fence={self.fence} {self.state} {self.remaining():.3f} s>"

    @property
    def name(self) -> str:
        """The name of the lock."""
        return self._hold.policy.name

    @property
    def fence(self) -> int:
        """The fencing token: higher than that of any grant of this name before.

        Send it along with what you write, and let the storage refuse a lower one than it has
        seen. That, not the lock, is what stops a holder that was stopped and woke up too late.
        """
        return self._hold.fence

    @property
    def state(self) -> LeaseState:
        """`held`, `at_risk` (a renewal is not answered), `lost` or `released`."""
        if not self._ended:
            self._keeper.check(self._hold)
            return self._hold.state
        lost = self._hold.state is LeaseState.LOST
        return LeaseState.LOST if lost else LeaseState.RELEASED

    @property
    def lost(self) -> LostEvent:
        """An event, set when the lease is lost; never set by a release. Await it, or its `wait`."""
        event = self._hold.lost
        if event is None:
            event = self._hold.lost = LostEvent()
            if self._hold.state is LeaseState.LOST:
                event.set()
        assert isinstance(event, LostEvent)
        return event

    @property
    def requested(self) -> asyncio.Event:
        """An event, set when somebody asks for the lock with `Lock.request_release`.

        It is only a wish: whoever holds the lock may let go early, or go on.
        """
        event = self._hold.requested
        if event is None:
            event = self._hold.requested = asyncio.Event()
            if self._hold.wanted:
                event.set()
        return event

    def remaining(self) -> float:
        """For how many seconds it is certainly ours if nobody renews it; 0.0 once it has ended."""
        if self.state in ALIVE:
            return max(0.0, self._hold.deadline - self._keeper.time())
        return 0.0

    async def release(self) -> bool:
        """Give the lock back, and it goes to the next waiter in the same step of the store.

        Says whether it was still ours. Idempotent: again, it says the same and sends nothing.
        Waits for the store's answer, but never past the end of the lease; `StoreError` when there
        is none, or the store refuses. Then it is sent again by itself, at first after a second,
        until it is answered or the lease has ended. Cancelled, the release goes on all the same.
        Of a re-entrant lock only the last release gives it back.
        """
        released = self._give_back()
        if released is None:
            return self._hold.state is not LeaseState.LOST
        if self._hold.heard:
            # Another task awaits it: should that be cancelled, this one is not.
            await asyncio.wait([released])
            if released.cancelled():
                return True
        elif not released.done():
            self._hold.heard = True
            deadline = self._hold.deadline
            if deadline - self._keeper.time() < _PATIENCE:
                overdue = self._keeper.overdue
                overdue.add(released, deadline)
                try:
                    await released
                finally:
                    overdue.remove(released)
            else:
                await released
        elif released.cancelled():
            return True  # it was ours when the release that was cancelled had been sent
        if (
            released.result() in (WAS_ABSENT, WAS_QUEUED)
            and self._hold.state is LeaseState.RELEASED
        ):
            self._hold.state = LeaseState.LOST
            self._hold.reason = "refused"
            self.lost.set()
        return self._hold.state is not LeaseState.LOST

    def _give_back(self) -> asyncio.Future[int] | None:
        """`release` without waiting: what it would wait for, or None when there is nothing."""
        hold = self._hold
        self._keeper.check_here()
        if not self._ended:
            self._ended = True
            hold.speaking -= 1
            hold.leases = _without(hold.leases, self)
        return None if hold.speaking else self._keeper.release(hold)

    async def extend(self, ttl: Seconds) -> None:
        """Let the lease end ``ttl`` seconds from now, and every renewal from now on last as long.

        A shorter ttl than before is fine. `LeaseLost` when the lock is not ours any more,
        `StoreError` when nobody knows (the lease then is as it was), also when cancelled.
        """
        wanted = to_ms(checked_ttl(ttl))
        self._still_ours()
        if not await self._ask(self._keeper.affordable(self._hold, wanted)):
            raise self._loss()
        self._hold.ttl = wanted

    async def verify(self) -> bool:
        """Ask the store whether the lock is still ours: one round trip, changes nothing.

        True is true of the moment in which the store answered. False means lost, and the body is
        cancelled as for any loss. `StoreError` when the store does not answer.
        """
        return self.state in ALIVE and await self._ask(0)

    async def downgrade(self) -> None:
        """Go on as a reader, with a lease of `RWLock.write`, without letting go meanwhile.

        The readers who are next in line enter. The lease stays as it is, and so does its fence.
        `LeaseLost` when it is not ours any more; `StoreError` when nobody knows whether readers
        may have entered, and then it is to be taken for downgraded, or downgraded again. Cancelled,
        it is carried out all the same. Where it was confirmed, a second time does nothing.
        `TypeError` for a lease of anything else.
        """
        hold = self._hold
        if not hold.policy.downgrades:
            raise TypeError(f"only a lease of RWLock.write() can be downgraded, not {self!r}")
        self._still_ours()
        self._keeper.check_here()
        downgraded = hold.downgraded
        if downgraded is None or (downgraded.done() and downgraded.exception() is not None):
            hold.shared = True
            downgraded = hold.downgraded = self._keeper.downgrade(hold)
        # Should two tasks await it, the cancellation of one is not the other's.
        await asyncio.wait([downgraded])
        if downgraded.result() == WAS_ABSENT:
            self._keeper.lose(hold, "refused")
        self._still_ours()

    async def _ask(self, ttl: int) -> bool:
        self._keeper.check_here()
        # Cancelled here it may have been carried out, which the keeper has reckoned with.
        (still,) = await self._keeper.ask(self._hold, ttl)
        return still

    def _still_ours(self) -> None:
        if self.state not in ALIVE:
            raise self._loss()

    def _loss(self) -> LeaseLost:
        """The error that says how this lease was lost, or that it was released."""
        what = f"{self._hold.policy.called} (fence {self.fence})"
        if self._hold.state is LeaseState.LOST:
            # A reason that we do not know is a later version's.
            reason = _REASONS.get(self._hold.reason, f"the store said {self._hold.reason!r}")
            text = f"{what} was lost: {reason}"
        else:
            text = f"the lease of {what} was released"
        error = self._hold.policy.about(LeaseLost(text))
        error.fence = self.fence
        return error


def leased(keeper: Keeper, hold: Hold, policy: Policy) -> Lease:
    """A lease that speaks for a hold; nothing is left of either if there cannot be one."""
    try:
        return Lease(keeper, hold, shares=policy.shared)
    except BaseException:
        if not hold.speaking:
            keeper.abandon(hold)
        raise


def give_back(lease: Lease) -> None:
    """Release without waiting; what is not heard is sent again (see `Unreleased`)."""
    if (released := lease._give_back()) is not None:
        released.add_done_callback(retrieve)


def _without(items: tuple[Item, ...], item: object) -> tuple[Item, ...]:
    if len(items) == 1 and items[0] is item:
        return ()
    return tuple(each for each in items if each is not item)


class Scope:
    """The body of an ``async with``: a lease, and the task to cancel when it is lost.

    Works as `asyncio.timeout` does: it cancels the task that entered, and at the exit takes that
    one cancellation back and raises `LeaseLost` instead. A cancellation from outside, of the same
    moment or not, stays one.
    """

    __slots__ = ("_before", "_cancelled", "_inner", "lease", "task")

    def __init__(self, lease: Lease, task: asyncio.Task[Any] | None) -> None:
        self.lease = lease
        self.task = task
        self._before = task.cancelling() if task else 0
        self._cancelled = False
        hold = lease._hold
        # Of bodies within each other, of a re-entrant lock, the outermost ends them all.
        self._inner = hold.bodies != () and any(body.task is task for body in hold.bodies)
        hold.bodies += (self,)

    def cancel(self) -> None:
        """The lease is lost: cancel the body, if that is what it wants."""
        if (
            self.task is not None
            and self.lease._hold.policy.on_lost == "cancel"
            and not self._inner
        ):
            self._cancelled = True
            if not self.task.cancel(f"{self.lease._hold.policy.called} was lost"):
                # As when `wait_for` of Python 3.11 entered it, in a task of its own.
                log.warning(
                    "aiolock: %r was lost, but the task that entered its body has ended, so nobody"
                    " could be cancelled: enter it in the task that runs the body",
                    self.lease.name,
                )

    async def close(self, error: BaseException | None) -> None:
        """Leave the body: give the lock back, and raise `LeaseLost` where that is the truth.

        The body's own exception and a `CancelledError` are never replaced: after one, the release
        is sent but not waited for, so there is nothing that could.
        """
        lease, hold = self.lease, self.lease._hold
        lease._keeper.check(hold)
        hold.bodies = _without(hold.bodies, self)
        try:
            if error is None and not self._cancelled:
                await lease.release()
            elif (released := lease._give_back()) is not None:
                released.add_done_callback(self._log_unconfirmed)
        except StoreError as failure:
            self._log(failure)
        except ClientClosed as failure:
            if error is None:
                raise
            self._log(failure)
        lease._keeper.left()
        ours = await self._take_back(error) if self._cancelled else False
        if hold.state is LeaseState.LOST and hold.policy.on_lost == "cancel":
            if error is None or ours:
                raise lease._loss() from error
            if not isinstance(error, asyncio.CancelledError | LeaseLost):
                error.add_note(f"aiolock: meanwhile {lease._loss()}")

    async def _take_back(self, error: BaseException | None) -> bool:
        """Undo our cancellation; whether ``error`` is it, and nobody else's."""
        assert self.task is not None
        alone = self.task.uncancel() <= self._before
        if not isinstance(error, asyncio.CancelledError):
            try:
                # The body ended before it arrived. Before Python 3.13 it would strike at the next
                # await, outside of the body: let it strike here.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self.task.cancelling() > self._before:
                    raise
            return False
        return alone

    def _log_unconfirmed(self, released: asyncio.Future[int]) -> None:
        if not released.cancelled() and (failure := released.exception()):
            self._log(failure)

    def _log(self, failure: BaseException) -> None:
        log.warning(
            "aiolock: the release of %r was not confirmed, and goes on until its lease ends: %s",
            self.lease.name,
            failure,
        )
