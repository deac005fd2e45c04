"""A grant as the client sees it, and until when its lease is certainly still ours."""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """The store has given the lock to one acquisition."""

    fence: int
    lease: int
    """Milliseconds, from when the store made the grant."""
    deadline: float
    """The local time until which its lease has certainly not ended at the store."""
    claim: bool
    """Its lease is only a claim, to be confirmed once."""


class ClockPair(NamedTuple):
    """One answer: the local time before its question was sent, and the store's clock in it."""

    sent: float
    """Seconds."""
    store: int
    """Microseconds."""


def lasts(lease: int) -> float:
    """For how many seconds a lease of so many ms is certainly ours, from before it was asked for.

    A hundredth is left for clocks that do not run alike, as in Redlock, and 2 ms for rounding.
    """
    return lease * 0.00099 - 0.002
