"""A grant, with the local time until which its lease certainly exists: the base of all deadlines.

Client and store have different clocks, and only their rates are assumed to be equal. So a lease is
always counted from a local time that is certainly before the store began it.
"""

from __future__ import annotations

from typing import NamedTuple


class Grant(NamedTuple):
    """The store's grant of a lock to one acquisition."""

    fence: int
    lease: int
    """The length of the lease in ms, counted from when the store made the grant."""
    deadline: float
    """The local time until which its lease has certainly not ended at the store."""
    claim: bool
    """Whether its lease is only a claim, which must be renewed once to become the full ttl."""


class ClockPair(NamedTuple):
    """The clocks at one answer: the local time before its question, and the store's time in it."""

    sent: float
    """Seconds."""
    store: int
    """Microseconds."""
