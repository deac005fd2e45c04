"""Answers that are awaited until a deadline each, with one timer for all of them.

Each release is awaited until its lease ends, and is nearly always answered long before that. A
timer for each would be made and cancelled at every hand-off.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Any, Final

from aiolock._engine.timers import shared_timers
from aiolock.errors import StoreError

_TOGETHER: Final = 64
"""Answers that fail in one iteration of the event loop; others have a turn then."""


class AnswerDeadlines:
    """The answers that one client awaits. The caller removes those that have come."""

    def __init__(self, time: Callable[[], float]) -> None:
        """``time`` is the clock of the deadlines."""
        self._time = time
        self._call_later = shared_timers()
        self._deadlines: dict[asyncio.Future[Any], float] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def add(self, answer: asyncio.Future[Any], deadline: float) -> None:
        """Fail this answer at its deadline, unless it comes before that."""
        self._deadlines[answer] = deadline
        if deadline < self._timer_at:
            self._arm(deadline)

    def remove(self, answer: asyncio.Future[Any]) -> None:
        """The answer is not awaited any more."""
        self._deadlines.pop(answer, None)

    def _arm(self, deadline: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = deadline
        self._timer = self._call_later(max(0.0, deadline - self._time()), self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        now = self._time()
        over = [answer for answer, deadline in self._deadlines.items() if deadline <= now]
        for answer in over[:_TOGETHER]:
            del self._deadlines[answer]
            if not answer.done():
                error = StoreError(
                    "the release was not confirmed before the lease ended; its end frees it"
                )
                error._under_way = True
                answer.set_exception(error)
        if self._deadlines:
            self._arm(min(self._deadlines.values()))

    def aclose(self) -> None:
        """Await nothing any more."""
        self._deadlines.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer, self._timer_at = None, math.inf
