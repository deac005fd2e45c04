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

from aiolock._engine.lease_state import LeaseState
from aiolock._engine.released import Released
from aiolock._prompt import Prompt
from aiolock.copying import Uncopyable
from aiolock.entering import AnyEnterable, Entry
from aiolock.errors import ClientClosed, LeaseLost, StoreError
from aiolock.protocol import WAS_ABSENT, WAS_HOLDER

if TYPE_CHECKING:
    from aiolock._engine.lease import Lease

log = logging.getLogger("aiolock")

PATIENCE: Final = 9.5
"""Seconds after which a store gives up on a command by itself (see `Store`)."""
_TURNS: Final = 2
"""Iterations of the loop within which a cancelled anyio scope cancels its task again."""


class Scope(Uncopyable):
    """The body of an ``async with``: a lease, and the task to cancel when it is lost.

    It cancels the task that entered, and at the exit takes back that one cancellation and raises
    `LeaseLost` instead. A cancellation from outside, even at the same moment, stays a cancellation.
    """

    # Without `__init__`, because `Lock` makes one for each of its bodies, and sets these by itself.
    lease: Lease
    task: asyncio.Task[Any] | None
    before = 0
    """Cancellations of its task that are older than this body: not ours."""
    cancels = True
    """Whether a loss cancels the body."""
    alone: tuple[ref[Scope], ...] | None = None
    """The bodies of what is held, as they are as long as this is the only one."""
    _cancelled = False

    def _is_nested(self) -> bool:
        """Whether the same task entered another body before, and a loss cancels that.

        If bodies of a re-entrant lock are nested in one task, cancelling the outermost is enough.
        """
        for body in self.lease._hold.inside:
            if body.task is self.task and body.cancels:
                return body is not self
        return False

    def cancel(self) -> None:
        """The lease is lost: cancel the body, if the lock's ``on_lost`` says so."""
        if self.task is not None and self.cancels and not self._is_nested():
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
        self.before = 0 if task is None else task.cancelling()

    async def close(self, error: BaseException | None) -> None:  # noqa: C901, PLR0912  # flat, as `acquire`
        """Leave the body: release the lock, and raise `LeaseLost` if the lease was lost.

        The body's own exception and a `CancelledError` are never replaced: after one of them, the
        release is sent but not awaited, so its failure is only logged. It is not awaited either
        without ``confirm``.
        """
        lease = self.lease
        hold, watchdog = lease._hold, lease._watchdog
        # First, so that a loss that is noticed below does not cancel a body that has ended.
        if hold.bodies is self.alone:  # as it is, unless bodies overlap
            hold.bodies = ()
        else:
            hold.bodies = tuple([each for each in hold.bodies if each() is not self])
        self.alone = None
        if (
            error is not None
            or self._cancelled
            or lease._ended
            or hold.speaking > 1
            or not hold.policy.confirm
            or asyncio._get_running_loop() is not watchdog.loop
        ):
            await self._close(error)
            return
        # As `Lease.release`, without a coroutine of its own, and with few calls.
        lease._ended, hold.speaking, hold.leases = True, 0, ()
        try:
            released = watchdog.release(hold)
            if released is not None:
                if released.was is None and released.failure is None:
                    deadline, answers = hold.deadline, watchdog.answer_deadlines
                    if deadline >= answers.timer_at:
                        answers.pending[released] = deadline
                    elif deadline - watchdog.time() < PATIENCE:
                        answers.add(released, deadline)
                    if released.prompt is None:
                        released.prompt = prompt = Prompt(loop=watchdog.loop)
                    else:  # it was released by another, as while its client closes
                        prompt = released.wait(watchdog.loop)
                    try:
                        await prompt
                    except asyncio.CancelledError:
                        released.then(partial(watchdog.release_answered, hold))
                        raise
                    if released in answers.pending:
                        del answers.pending[released]
                if released.was != WAS_HOLDER:
                    lease._is_released(released)
        except StoreError as failure:
            self._log(failure)
        finally:
            if watchdog.closing is not None:
                watchdog.closing.set()
        if hold.state is LeaseState.LOST and self.cancels:
            raise lease._loss()

    async def _close(self, error: BaseException | None) -> None:
        """`close` after an error or a loss, without ``confirm``, or beside other leases."""
        lease, hold, watchdog = self.lease, self.lease._hold, self.lease._watchdog
        if lease._ended or hold.speaking > 1:  # otherwise the release checks it
            watchdog.check(hold)
        try:
            if error is None and not self._cancelled and hold.policy.confirm:
                await lease.release()
            elif (released := lease._give_back()) is not None:
                released.then(self._log_unconfirmed)
        except StoreError as failure:
            self._log(failure)
        except ClientClosed as failure:
            if error is None:
                raise
            self._log(failure)
        finally:
            if watchdog.closing is not None:
                watchdog.closing.set()
        ours = await self._take_back(error) if self._cancelled else False
        if hold.state is LeaseState.LOST and self.cancels:
            self._raise_loss(error, ours=ours)

    def _raise_loss(self, error: BaseException | None, *, ours: bool) -> None:
        """It was lost; ``ours``: the body has ended with our own cancellation."""
        loss = self.lease._loss()
        if error is None or ours:
            raise loss from error
        if not isinstance(error, asyncio.CancelledError | LeaseLost):
            error.add_note(f"aiolock: meanwhile {loss}")

    async def _take_back(self, error: BaseException | None) -> bool:
        """Undo our own cancellation; True if ``error`` came from it alone."""
        assert self.task is not None
        alone = self.task.uncancel() <= self.before
        if not isinstance(error, asyncio.CancelledError):
            try:
                # The body ended before our cancellation arrived. Before Python 3.13 it would arrive
                # at the next await, outside of the body: let it arrive here.
                await asyncio.sleep(0)
            except asyncio.CancelledError:
                if self.task.cancelling() > self.before:
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

    def _log_unconfirmed(self, released: Released) -> None:
        self.lease._watchdog.release_answered(self.lease._hold, released)
        if released.failure is not None:
            self._log(released.failure)
        elif released.was == WAS_ABSENT and not self.lease._watchdog.handoff.was_unknown(
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


def body_of(lease: Lease, task: asyncio.Task[Any] | None, *, cancels: bool) -> Scope:
    """The body of this lease, in that task; ``cancels``: whether a loss cancels it."""
    body = Scope()
    body.lease, body.cancels = lease, cancels
    body.move_to(task)
    # If it is collected before it is closed, nothing can leave it any more.
    lease._hold.bodies += (ref(body, partial(collected, lease)),)
    return body


def enter(entry: Entry, of: AnyEnterable[Any], cancels: bool, lease: Lease) -> None:  # noqa: FBT001  # for `partial`
    """The body of this lease begins, in the task that has acquired it: ``async with of``."""
    entry.enters(of, body_of(lease, lease._hold.owner, cancels=cancels))


def collected(lease: Lease, _: ref[Scope]) -> None:
    """The body of this lease was garbage-collected, in any thread."""
    if not lease._ended:
        lease._watchdog.forgotten.left_behind(lease._hold, lease)
