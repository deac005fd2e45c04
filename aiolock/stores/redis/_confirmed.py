"""The answer to an operation, resolved once replicas have it, too."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.protocol import Operation, Queued
from aiolock.stores.redis._barrier import Outcome, Waiting
from aiolock.stores.redis._outbox import COMMAND_TIMEOUT
from aiolock.stores.redis._replication import Replication

Ask = Callable[[Any], asyncio.Future[Any]]
"""A function that submits an operation."""


class Confirmed(Prompt):
    """The future of an operation, of which replicas must confirm the answer."""

    _waiting: Waiting | None = None
    _losses = -1
    _until = 0.0
    _limit: asyncio.TimerHandle | None = None
    """Ends the time for an operation that was started again."""

    def __init__(  # what it takes to submit an operation once more
        self,
        replication: Replication,
        operation: Operation[Any],
        ask: Ask,
        matters: Callable[[Any], object],
        within: float,
        *,
        failed: Callable[[Any, StoreError], None] | None = None,
        ask_again: Ask | None = None,
    ) -> None:
        """``matters``: whether an answer must be confirmed.

        ``ask_again`` is called if the master has changed, or the connection broke, before the
        confirmation, within the time of a command. ``failed`` gets an answer that was not
        confirmed. Without these, that is an error, and the caller asks again.
        """
        self._time = asyncio.get_running_loop().time
        self._began = self._time()
        super().__init__()
        self._replication = replication
        self._operation = operation
        self._ask_again = ask_again
        self._matters = matters
        self._within = within
        self._failed = failed
        self._start(ask)

    def _start_again(self, ask: Ask) -> None:
        if self._limit is None:
            limit = self._began + COMMAND_TIMEOUT
            self._limit = asyncio.get_running_loop().call_at(limit, self._give_up)
            self.add_done_callback(self._limitless)
        self._start(ask)

    def _limitless(self, _: asyncio.Future[Any]) -> None:
        assert self._limit is not None
        self._limit.cancel()

    def _give_up(self) -> None:
        self._answer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        if not self.done():
            self.set_exception(self._replication.unconfirmed(Outcome.MISSED, self._within))

    def _start(self, ask: Ask) -> None:
        self._answer = ask(self._operation)
        self._answer.add_done_callback(self._answered)

    def _answered(self, answer: asyncio.Future[Any]) -> None:
        if answer.cancelled():
            super().cancel()
            return
        error = answer.exception()
        if self.done():
            return
        if error is not None:
            self.set_exception(error)
        elif not self._matters(answer.result()):
            self.resolve(_without_before(answer.result()))
        else:
            now, replication = self._time(), self._replication
            if self._losses != replication.losses:  # after a break, the full time again
                self._losses, self._until = replication.losses, now + self._within
            left = max(0.0, self._until - now)
            self._waiting = replication.barrier.wait(replication.history, left, self._concluded)

    def _concluded(self, outcome: Outcome) -> None:
        if self.done():
            return
        if outcome is Outcome.CONFIRMED:
            self.resolve(self._answer.result())
            return
        lost = self._losses != self._replication.losses
        elsewhere = outcome is Outcome.ELSEWHERE
        if elsewhere:
            self._replication.differ()
        ask_again = self._ask_again
        if ask_again is not None and (lost or (elsewhere and self._time() < self._until)):
            self._start_again(ask_again)
            return
        error = self._replication.unconfirmed(outcome, self._within)
        if self._failed is not None:
            self._failed(self._answer.result(), error)
        if not self.done():
            self.set_exception(error)

    def cancel(self, msg: Any | None = None) -> bool:
        """As of any future; the store may then drop the operation (see `Store`)."""
        self._answer.cancel()
        if self._waiting is not None:
            self._waiting.cancel()
        return super().cancel(msg)


def _without_before(answer: Any) -> Any:
    """The answer without ``before``: with it, the client would hand the lock off by itself.

    The next body would then begin before replicas know of its grant. (See `ReportHandoff`.)
    """
    if isinstance(answer, Queued) and answer.before is not None:
        return answer._replace(before=None)
    return answer
