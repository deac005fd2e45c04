"""The body of an ``async with``: a loss cancels it, and its exit raises `LeaseLost`.

The difficult part is to tell our own cancellation from one that came from outside, and to take back
exactly our own. See `asyncio.timeout`, which solves the same problem in the same way.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any, Final
from weakref import ref

from aiolock._engine.acquisition import Body, without
from aiolock._engine.lease_state import LeaseState
from aiolock.copying import Uncopyable
from aiolock.errors import ClientClosed, LeaseLost, StoreError
from aiolock.protocol import WAS_ABSENT

if TYPE_CHECKING:
    from aiolock._engine.lease import Lease

log = logging.getLogger("aiolock")

_TURNS: Final = 2
"""Iterations of the loop within which a cancelled anyio scope cancels its task again."""


class Scope(Uncopyable):
    """The body of an ``async with``: a lease, and the task to cancel when it is lost.

    It cancels the task that entered, and at the exit takes back that one cancellation and raises
    `LeaseLost` instead. A cancellation from outside, even at the same moment, stays a cancellation.
    """

    __slots__ = ("__weakref__", "_before", "_cancelled", "_cancels", "_own", "lease", "task")

    def __init__(self, lease: Lease, task: asyncio.Task[Any] | None, *, cancels: bool) -> None:
        """``cancels``: whether a loss cancels the body."""
        self.lease = lease
        self.task = task
        # Cancellations of this task that are older than this body: not ours.
        self._before = task.cancelling() if task else 0
        self._cancelled = False
        self._cancels = cancels
        self._own: ref[Body] = ref(self)
        lease._hold.bodies += (self._own,)

    def __del__(self) -> None:
        try:
            lease = self.lease
        except AttributeError:  # __init__ has failed
            return
        if not lease._ended:
            lease._watchdog.left_behind(lease._hold, lease)

    def _is_nested(self) -> bool:
        """Whether the same task entered another body before, and a loss cancels that.

        If bodies of a re-entrant lock are nested in one task, cancelling the outermost is enough.
        """
        for body in self.lease._hold.inside:
            if isinstance(body, Scope) and body.task is self.task and body._cancels:
                return body is not self
        return False

    def cancel(self) -> None:
        """The lease is lost: cancel the body, if the lock's ``on_lost`` says so."""
        if self.task is not None and self._cancels and not self._is_nested():
            self._cancelled = True
            if not self.task.cancel(f"{self.lease._hold.policy.called} was lost"):
                # For example, `wait_for` of Python 3.11 enters it in a task of its own.
                log.warning(
                    "aiolock: %r was lost, but the task that entered its body has ended, so nobody"
                    " could be cancelled: enter it in the task that runs the body",
                    self.lease.name,
                )

    def move_to(self, task: asyncio.Task[Any] | None) -> None:
        """The body continues in ``task``: a loss cancels that task, and it closes the body."""
        self.task = task
        self._before = task.cancelling() if task else 0

    async def close(self, error: BaseException | None) -> None:  # noqa: C901  # flat, as `acquire`
        """Leave the body: release the lock, and raise `LeaseLost` if the lease was lost.

        The body's own exception and a `CancelledError` are never replaced: after one of them, the
        release is sent but not awaited, so its failure is only logged. It is not awaited either
        without ``confirm``.
        """
        lease, hold = self.lease, self.lease._hold
        # First, so that a loss that is noticed below does not cancel a body that has ended.
        hold.bodies = () if hold.bodies == (self._own,) else without(hold.bodies, self._own)
        if lease._ended or hold.speaking > 1:  # otherwise the release checks it
            lease._watchdog.check(hold)
        try:
            if error is None and not self._cancelled and hold.policy.confirm:
                released = lease._give_back()
                if released is not None:  # as in `Lease.release`, without a coroutine of its own
                    try:
                        await lease._answer(released)
                    except asyncio.CancelledError:
                        released.add_done_callback(partial(lease._watchdog.release_answered, hold))
                        raise
                    lease._is_released(released)
            elif (released := lease._give_back()) is not None:
                released.add_done_callback(self._log_unconfirmed)
        except StoreError as failure:
            self._log(failure)
        except ClientClosed as failure:
            if error is None:
                raise
            self._log(failure)
        finally:
            lease._watchdog.body_ended()
        ours = await self._take_back(error) if self._cancelled else False
        if hold.state is LeaseState.LOST and self._cancels:
            if error is None or ours:
                raise lease._loss() from error
            if not isinstance(error, asyncio.CancelledError | LeaseLost):
                error.add_note(f"aiolock: meanwhile {lease._loss()}")

    async def _take_back(self, error: BaseException | None) -> bool:
        """Undo our own cancellation; True if ``error`` came from it alone."""
        assert self.task is not None
        alone = self.task.uncancel() <= self._before
        if not isinstance(error, asyncio.CancelledError):
            try:
                # The body ended before our cancellation arrived. Before Python 3.13 it would arrive
                # at the next await, outside of the body: let it arrive here.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self.task.cancelling() > self._before:
                    raise
            return False
        if not alone:
            # The task was cancelled from outside, too, and `error` may be our cancellation only,
            # because a task group re-raises just one. A cancelled anyio scope does not take back
            # a cancellation that is not its own. But it cancels again in every iteration of the
            # loop, so its own cancellation arrives here.
            for _ in range(_TURNS):
                await asyncio.sleep(0)
        return alone

    def _log_unconfirmed(self, released: asyncio.Future[int]) -> None:
        self.lease._watchdog.release_answered(self.lease._hold, released)
        if released.cancelled():
            return
        if failure := released.exception():
            self._log(failure)
        elif released.result() == WAS_ABSENT and not self.lease._watchdog.handoff.was_unknown(
            self.lease._hold
        ):
            log.warning("aiolock: %r had been lost before it was released", self.lease.name)

    def _log(self, failure: BaseException) -> None:
        log.warning(
            "aiolock: the %s of %r was not confirmed, and goes on until its lease ends: %s",
            "finish" if self.lease._hold.finishes else "release",
            self.lease.name,
            failure,
        )
