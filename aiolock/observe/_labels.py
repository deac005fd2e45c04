"""What metrics of any kind have in common: the values of their labels, of which there are few."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar, get_args

from aiolock.observer import GaveUp, LockRequest, Loss

Made = TypeVar("Made")

Key = tuple[str, int]
"""One acquisition: its client, and its number among those of that client."""

MOST: Final = 200
"""Families, of all kinds together, that have metrics of their own."""
OTHER: Final = "(other)"
"""The family of all that come later: somebody has put what differs each time into it."""

BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Seconds: from a round trip to what an operator is called for."""

PASSES: Final = frozenset({"latch", "event", "barrier"})
"""The kinds that are waited for, and not held: who gets one goes on without it."""

FAILURES: Final[frozenset[GaveUp]] = frozenset({"timeout", "full", "store", "deadlock", "closed"})
"""What is an error. Not to get what was only tried, or is done, or is not wanted any more, is
none."""

LOSSES: Final[tuple[Loss, ...]] = get_args(Loss)
"""The reasons of a loss."""


def key_of(request: LockRequest) -> Key:
    """What tells this acquisition from all others."""
    return request.client, request.seq


class PerFamily(Generic[Made]):
    """Something for each kind and family: made once, and not for more than `MOST`."""

    def __init__(self, make: Callable[[str, str], Made]) -> None:
        """``make`` is called with the kind and the family."""
        self._make = make
        self._made = dict[tuple[str, str], Made]()
        self._lock = threading.Lock()  # clients may run in event loops of several threads

    def of(self, request: LockRequest) -> Made:
        """That of its kind and family."""
        known = self._made.get((request.kind, request.family))
        return self._new(request) if known is None else known

    def _new(self, request: LockRequest) -> Made:
        with self._lock:
            family = request.family if len(self._made) < MOST else OTHER
            each = request.kind, family
            if each not in self._made:
                self._made[each] = self._make(*each)
            return self._made[each]
