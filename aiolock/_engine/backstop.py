"""Pushes may be lost, and a dead holder sends none: when whoever waits asks again by itself."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from aiolock._engine.acquisition import Attempt
from aiolock.store import CLAIM, Queued, Waiter

KEEP_ALIVE: Final = 60.0
"""Seconds after which every waiter asks again, so that a queue that still lives does not expire."""
SOON: Final = 0.05
"""Seconds after which to ask where one of those who share has entered: the others hold it too, and
it is not known when the first of their leases ends."""
JUST_AFTER: Final = 0.003
"""Seconds past the end of a lease at which to ask: it must have ended by the store's clock."""


class LocalQueue:
    """One client's waiters for one name. The first asks for all of them: for the others, rarely."""

    def __init__(self, ask_again: Callable[[Attempt], None], time: Callable[[], float]) -> None:
        """``time`` is the clock of `Attempt.last_asked`."""
        self._ask_again = ask_again
        self._time = time
        self._call_later = asyncio.get_running_loop().call_later
        self._attempts: dict[Waiter, Attempt] = {}
        self.ask_at = math.inf
        """When the first asks again by itself."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # kept here: a handle of uvloop's does not always know

    def queued(self, attempt: Attempt, answer: Queued) -> None:
        """The store said where the waiter stands, and when the first lease ends.

        Who is next asks when that lease ends: that is how a dead holder is noticed. Whoever is
        further back may not hear of hand-offs before it, so it asks often enough to learn of each
        claim before that ends.
        """
        self._attempts[attempt.waiter] = attempt
        until = (
            answer.until if answer.place == 1 else min(answer.until, attempt.policy.lease, CLAIM)
        )
        if next(iter(self._attempts)) == attempt.waiter:
            # Only what is known of the first may put its question off: a stream of newcomers must
            # not keep one from asking whose place has got lost.
            self.ask_at = math.inf
        self._ask_by(self._time() + min(until / 1000, KEEP_ALIVE) + JUST_AFTER)

    @property
    def first(self) -> Attempt:
        """Who has waited longest of those who wait."""
        return next(iter(self._attempts.values()))

    def leave(self, attempt: Attempt) -> bool:
        """The waiter waits no more; whether nobody is left."""
        if self._attempts.pop(attempt.waiter, None) is not None and self._attempts:
            # The lock may be its by now; should we not hear what becomes of it: its claim ends.
            ends = min(attempt.policy.lease, CLAIM) / 1000
            shares = attempt.policy.shared and not attempt.policy.passes
            self._ask_by(self._time() + (min(SOON, ends) if shares else ends))
        if not self._attempts and self._timer is not None:
            self._timer.cancel()
        return not self._attempts

    def _ask_by(self, when: float) -> None:
        """Let the first ask again at that time, if it would not before."""
        self.ask_at = min(self.ask_at, when)
        # A timer that comes too early sees that and sets itself again: cheaper than a new one.
        if self._timer is None or self._timer_at > self.ask_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self.ask_at
            self._timer = self._call_later(max(0.0, self.ask_at - self._time()), self._ask)

    def _ask(self) -> None:
        self._timer = None
        now = self._time()
        if now >= self.ask_at:
            for place, attempt in enumerate(self._attempts.values()):
                due = place == 0 or now - attempt.last_asked >= KEEP_ALIVE
                if due and attempt.question is None:
                    self._ask_again(attempt)
            self.ask_at = now + CLAIM / 1000
        self._ask_by(self.ask_at)
