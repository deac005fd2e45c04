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
    """Something for each kind, family and share: made once, and for `MOST` of them at most."""

    def __init__(self, make: Callable[[str, str, str], Made]) -> None:
        """``make`` is called with the kind, the family, and the share, or empty."""
        self._make = make
        self._made = dict[tuple[str, str, str], Made]()
        self._lock = threading.Lock()  # clients may run in event loops of several threads

    def of(self, request: LockRequest, share: str = "") -> Made:
        """The one for the kind and family of this request, and this label of its share."""
        known = self._made.get((request.kind, request.family, share))
        return self._new(request, share) if known is None else known

    def _new(self, request: LockRequest, share: str) -> Made:
        with self._lock:
            each = request.kind, request.family, share
            if each not in self._made and len(self._made) >= MOST:
                each = request.kind, OTHER, share and OTHER
            if each not in self._made:
                self._made[each] = self._make(*each)
            return self._made[each]


ShareLabel = Callable[[str], str]
"""The label of a share in metrics: few shares have one of their own."""


def checked_share_label(given: object) -> ShareLabel | None:
    """The ``share_label`` of an observer; `TypeError` if it is none."""
    if given is None:
        return None
    if not callable(given):
        raise TypeError(f"share_label must be a function of a share, or None, not {given!r}")
    label: Callable[[str], object] = given
    return lambda share: str(label(share))
