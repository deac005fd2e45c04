"""Pauses between tries."""

from __future__ import annotations

import random


class Backoff:
    """The pauses between tries: each is twice as long as the one before, up to the longest.

    With ``jitter`` each is shortened by up to a half, at random, so that clients that failed
    together do not try again together.
    """

    def __init__(self, first: float, longest: float, *, jitter: bool = False) -> None:
        """``first`` and ``longest`` in seconds."""
        self._first = self._next = first
        self._longest = longest
        self._jitter = jitter

    def pause(self) -> float:
        """The seconds to wait before the next try."""
        pause, self._next = self._next, min(self._longest, 2 * self._next)
        return pause * random.uniform(0.5, 1.0) if self._jitter else pause  # noqa: S311  # jitter

    def reset(self) -> None:
        """Begin again at the first pause: a try has succeeded."""
        self._next = self._first
