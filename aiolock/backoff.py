"""Pauses between tries."""

from __future__ import annotations

import random


class Backoff:
    """The pauses between tries: each is twice as long as the one before, up to the longest.

    With ``jitter`` each is shortened by up to a half, at random, so that clients that failed
    together do not try again together. With ``at_once`` there is no pause before the first try.
    """

    def __init__(
        self, first: float, longest: float, *, jitter: bool = False, at_once: bool = False
    ) -> None:
        """``first`` and ``longest`` in seconds."""
        self._first, self._longest = first, longest
        self._jitter = jitter
        self._begin = 0.0 if at_once else first
        self.next = self._begin
        """The next pause in seconds, before jitter."""

    def pause(self) -> float:
        """The seconds to wait before the next try."""
        pause, self.next = self.next, min(self._longest, max(self._first, 2 * self.next))
        return pause * random.uniform(0.5, 1.0) if self._jitter else pause  # noqa: S311  # jitter

    def reset(self) -> None:
        """Begin again at the first pause: a try has succeeded."""
        self.next = self._begin
