"""The values of labels of all metrics, which must be few."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Final, Generic, TypeVar, get_args

from aiolock.kinds import KINDS
from aiolock.observer import GaveUp, LockRequest, Loss
from aiolock.validation import as_label

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

_log = logging.getLogger("aiolock")

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


class ShareLabels:
    """The labels of shares in metrics, by a function of the program's: few have one of their own.

    An acquisition has the same from its first event to its last, or what began under one label
    would not end under it. If the function raises, its shares are counted as others.
    """

    def __init__(self, label: Callable[[str], object] | None) -> None:
        """`TypeError` for what is no function; None labels no share."""
        if label is not None and not callable(label):
            raise TypeError(f"share_label must be a function of a share, or None, not {label!r}")
        self._label = label
        self._given = dict[Key, str]()
        """Those of acquisitions that have had an event, and will have more."""
        self._failed = False

    def __bool__(self) -> bool:
        return self._label is not None

    def of(self, request: LockRequest, *, ends: bool) -> str:
        """The label of this acquisition, empty for none; ``ends``: this is its last event."""
        if self._label is None or not request.share:
            return ""
        key = key_of(request)
        label = self._given.pop(key, None)
        if label is None:
            label = self._labelled(self._label, request.share)
        if not ends:
            self._given[key] = label
        return label

    def _labelled(self, label: Callable[[str], object], share: str) -> str:
        try:
            return as_label(str(label(share)))
        except Exception:  # noqa: BLE001  # the other metrics of this event matter more
            if not self._failed:
                self._failed = True
                _log.exception(
                    "aiolock: share_label raised, so that share is counted as %s; that is not"
                    " logged again",
                    OTHER,
                )
            return OTHER
