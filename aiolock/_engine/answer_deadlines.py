"""Answers that are awaited until a deadline each, with one timer for all of them.

An exit waits for the answer to its release, but not past the end of its lease: after that, the lock
is not ours in any case. Nearly all answers come long before, so one timer serves them all: a timer
for each would have to be made and cancelled for every release.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from aiolock._engine.released import Released
from aiolock._engine.timers import shared_timers
from aiolock.errors import StoreError

_TOGETHER: Final = 64
"""Answers that fail in one iteration of the event loop; others have a turn then."""


class AnswerDeadlines:
    """The answers that one client awaits. The caller removes each one that has arrived."""

    def __init__(self, time: Callable[[], float]) -> None:
        """``time`` is the clock of the deadlines."""
        self._time = time
        self._call_later = shared_timers()
        self.pending: dict[Released, float] = {}
        """The answers, and the deadline of each."""
        self._timer: asyncio.TimerHandle | None = None
        self.timer_at = math.inf
        """When the timer is due: who adds an answer with a later deadline needs no `add`."""

    def add(self, answer: Released, deadline: float) -> None:
        """Fail this answer at its deadline, unless it arrives before."""
        self.pending[answer] = deadline
        if deadline < self.timer_at:
            self._arm(deadline)

    def remove(self, answer: Released) -> None:
        """Stop watching this answer."""
        self.pending.pop(answer, None)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self.timer_at = deadline
        self._timer = self._call_later(max(0.0, deadline - self._time()), self._fail_overdue)

    def _fail_overdue(self) -> None:
        self._timer, self.timer_at = None, math.inf
        now = self._time()
        overdue = [answer for answer, deadline in self.pending.items() if deadline <= now]
        for answer in overdue[:_TOGETHER]:
            del self.pending[answer]
            if not answer.done():
                error = StoreError(
                    "the release was not confirmed before the lease ended; its end frees it"
                )
                error._under_way = True
                answer.set_exception(error)
        if self.pending:
            self._arm(min(self.pending.values()))

    def aclose(self) -> None:
        """Watch no answer any more."""
        self.pending.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self.timer_at = None, math.inf
