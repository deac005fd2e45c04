"""A grant as the client sees it, with the time until which its lease is certainly still ours."""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """The lock as the store has granted it to one acquisition."""

    fence: int
    lease: int
    """The length of the lease in ms, counted from when the store made the grant."""
    deadline: float
    """The local time until which its lease has certainly not ended at the store."""
    claim: bool
    """Whether its lease is only a claim, to be confirmed once."""


class ClockPair(NamedTuple):
    """The clocks at one answer: the local time before its question, and the store's time in it."""

    sent: float
    """Seconds."""
    store: int
    """Microseconds."""


def lasts(lease: int) -> float:
    """Seconds for which such a lease (ms) is certainly ours, counted from before it was asked for.

    A hundredth is left for clocks that run at different speeds, as in Redlock, and 2 ms for
    rounding.
    """
    return lease * 0.00099 - 0.002
