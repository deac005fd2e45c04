"""The time that an acquisition may take: the caller's timeout, or that for an answer."""

from __future__ import annotations

import asyncio
from typing import Final

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock.observer import GaveUp

_TURNS: Final = 3
"""Iterations of the event loop within which data that has arrived is read, is decoded, and reaches
its task."""


class TimedOut(Exception):
    """The caller's timeout ended the waiting."""


class TimeLimit:
    """Ends the waiting of an acquisition once its time has passed: cancel its ``timer`` before."""

    def __init__(
        self, acquisition: Acquisition, timeout: float, answer_timeout: float, since: float | None
    ) -> None:
        """``since``: when a multilock began, whose first locks have used a part of the timeout."""
        used = acquisition.began - since if since is not None and timeout else 0.0
        self.timeout = timeout
        self.name, self.given = "timeout", timeout
        if not timeout:
            self.name, self.given = "answer_timeout", answer_timeout
        self.left = max(0.0, self.given - used)
        # It had too little time for an answer, if the locks before have taken most of it.
        self._little = self.left < min(used, answer_timeout)
        self._loop = asyncio.get_running_loop()
        self.timer = self._loop.call_later(self.left, self._stop, acquisition, _TURNS)

    def reason(self, acquisition: Acquisition, broken: Exception | None) -> GaveUp:
        """The reason why it ends without a grant when the time has passed.

        A timeout is only reported as such if the store works: otherwise it is unknown whether
        another client holds the lock, and the caller gets a `StoreError`.
        """
        answers = acquisition.clocks is not None or (self._little and broken is None)
        return "timeout" if self.timeout and answers else "store"

    def _stop(self, acquisition: Acquisition, turns: int) -> None:
        """Stop the waiting, after an answer that has already arrived was processed.

        If the process was suspended or its loop blocked, the timer and the answer are due in the
        same iteration of the loop. The answer came first, so a few iterations are left for it.
        """
        if turns and acquisition.phase is Phase.ASKING:
            self._loop.call_soon(self._stop, acquisition, turns - 1)
        elif not acquisition.ended:
            acquisition.stop(TimedOut())
