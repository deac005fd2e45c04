"""The values of labels of all metrics, which must be few."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar, get_args

from aiolock.kinds import KINDS
from aiolock.observer import GaveUp, LockRequest, Loss

Made = TypeVar("Made")

Key = tuple[str, int]
"""The id of an acquisition: its client, and its number among those of that client."""

MOST: Final = 200
"""Families, of all kinds together, that have metrics of their own."""
OTHER: Final = "(other)"
"""The family of all later ones: a program has families that differ each time."""

BUCKETS: Final = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
"""Histogram buckets, in seconds: from a round trip to an outage."""

PASSES: Final = frozenset(name for name, kind in KINDS.items() if kind.passes)
"""Kinds that are waited for, but not held: a waiter that gets one goes on without it."""

FAILURES: Final[frozenset[GaveUp]] = frozenset({"timeout", "full", "store", "deadlock", "closed"})
"""Outcomes that are errors. A failed try, work that is done already, and a cancelled wait are none
of them."""

LOSSES: Final[tuple[Loss, ...]] = get_args(Loss)
"""The reasons of a loss."""


def key_of(request: LockRequest) -> Key:
    """The id of this acquisition."""
    return request.client, request.seq


class PerFamily(Generic[Made]):
    """Something for each kind and family: made once, and for `MOST` families at most."""

    def __init__(self, make: Callable[[str, str], Made]) -> None:
        """``make`` is called with the kind and the family."""
        self._make = make
        self._made = dict[tuple[str, str], Made]()
        self._lock = threading.Lock()  # clients may run in event loops of several threads

    def of(self, request: LockRequest) -> Made:
        """The one for the kind and family of this request."""
        known = self._made.get((request.kind, request.family))
        return self._new(request) if known is None else known

    def _new(self, request: LockRequest) -> Made:
        with self._lock:
            family = request.family if len(self._made) < MOST else OTHER
            each = request.kind, family
            if each not in self._made:
                self._made[each] = self._make(*each)
            return self._made[each]
