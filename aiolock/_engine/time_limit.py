"""The time that an acquisition may take: the caller's timeout, or that for an answer."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Final

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.timers import shared_timers
from aiolock.observer import GaveUp

_TURNS: Final = 3
"""Iterations of the event loop within which data that has arrived is read, is decoded, and reaches
its task."""
_LENGTHS: Final = 16
"""Different lengths whose limits share a timer each; any other limit has a timer of its own."""
_EARLY: Final = 0.001
"""Seconds that a timer may come early, by the clock of its loop."""
_TOGETHER: Final = 64
"""Limits that end in one iteration of the event loop; others have a turn then."""


class TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class TimeLimit:
    """Ends the waiting of an acquisition once its time has passed: call `end` before."""

    line: _Line | None = None
    due: float
    """When it ends, by the clock of the loop."""

    def __init__(
        self, acquisition: Acquisition, timeout: float, answer_timeout: float, since: float | None
    ) -> None:
        """``since``: when a multilock began, whose first locks have used a part of the timeout."""
        self.acquisition, self.timeout = acquisition, timeout
        self.name, self.given = "timeout", timeout
        if not timeout:
            self.name, self.given = "answer_timeout", answer_timeout
        self.left, self._little = self.given, False
        if since is not None and timeout:
            used = acquisition.began - since
            self.left = max(0.0, timeout - used)
            # It had too little time for an answer, if the locks before have taken most of it.
            self._little = self.left < min(used, answer_timeout)

    def end(self) -> None:
        """Nothing is to be stopped any more. Idempotent."""
        line = self.line
        if line is not None and self in line.limits:
            del line.limits[self]
            if line.on_idle is None:
                line.close()

    def reason(self, acquisition: Acquisition, broken: Exception | None) -> GaveUp:
        """The reason why it ends without a grant when the time has passed.

        A timeout is only reported as such if the store works: otherwise it is unknown whether
        another client holds the lock, and the caller gets a `StoreError`.
        """
        answers = acquisition.clocks is not None or (self._little and broken is None)
        return "timeout" if self.timeout and answers else "store"


class TimeLimits:
    """The limits of one client. Those of one length end in the order in which they begin.

    So one timer serves them all, and is not cancelled with one of them: a timer for each would have
    to be made and cancelled for every acquisition.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lines: dict[float, _Line] = {}

    def begin(self, limit: TimeLimit) -> None:
        """Its time begins."""
        length = limit.left
        line = self._lines[length] if length in self._lines else self._line(length)  # no call
        limit.line, limit.due = line, self._loop.time() + length
        line.limits[limit] = None
        if not line.armed:
            line.arm(length)

    def _line(self, length: float) -> _Line:
        if len(self._lines) >= _LENGTHS:
            return _Line(self._loop, None)
        line = self._lines[length] = _Line(self._loop, partial(self._lines.pop, length, None))
        return line

    def close(self) -> None:
        """Leave no timer of lengths without a limit."""
        for line in self._lines.values():
            line.close()
        self._lines.clear()


class _Line:
    """The limits of one length, in order."""

    def __init__(
        self, loop: asyncio.AbstractEventLoop, on_idle: Callable[[], object] | None
    ) -> None:
        """``on_idle`` is called when its timer has left no limit.

        Without it, the line is for one limit, with which its timer ends.
        """
        self._loop, self.on_idle = loop, on_idle
        self._call_later = shared_timers()
        self._timer: asyncio.Handle | None = None
        self.limits: dict[TimeLimit, None] = {}
        """Those that have not ended, in their order."""
        self.armed = False
        """Whether its timer runs."""

    def arm(self, pause: float) -> None:
        """Look at the first one after so many seconds."""
        self.armed = True
        self._timer = self._call_later(pause, self._end_due)

    def _end_due(self) -> None:
        now, self.armed = self._loop.time(), False
        due = [each for each in islice(self.limits, _TOGETHER) if each.due <= now + _EARLY]
        for limit in due:
            del self.limits[limit]
            self._stop(limit, _TURNS)
        if self.limits:
            self.arm(max(0.0, next(iter(self.limits)).due - now))
        elif self.on_idle is not None:
            self.on_idle()

    def _stop(self, limit: TimeLimit, turns: int) -> None:
        """Stop the waiting, after an answer that has already arrived was processed.

        If the process was suspended or its loop blocked, the timer and the answer are due in the
        same iteration of the loop. The answer came first, so a few iterations are left for it.
        """
        acquisition = limit.acquisition
        if turns and acquisition.phase is Phase.ASKING:
            self._loop.call_soon(self._stop, limit, turns - 1)
        elif not acquisition.ended:
            acquisition.stop(TimedOut())

    def close(self) -> None:
        """Stop its timer."""
        if self._timer is not None:
            self._timer.cancel()
        self.armed = False
