"""One run in each period: a client runs by a majority of votes that were given in one period.

After a run, each server that voted for it gives no vote until the end of the period in which it
gave that vote, by its own clock. So a run by votes of one period leaves a majority closed for all
of that period, and no other waiter gets a majority in it. A vote of an earlier period, from a
server that knew of no run, would leave only a minority closed: the next run would begin a moment
later.

Clocks differ, so at the turn of a period the votes of a waiter may be of two periods. Then it
enters with neither. It gives a vote back once the period of that vote is over at its server, and
gets the next one there by the same command. So it keeps its place in the queue, and its turn.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple


class Period(NamedTuple):
    """The period in which a server gave a vote."""

    number: int | None
    """Only votes with the same number count together; None: unknown, so with no other vote."""
    over_at: float
    """The local time by which that period is certainly over at the server."""


ENDLESS: Final = Period(0, math.inf)
"""The period of all votes for a lock without periods."""
UNKNOWN: Final = Period(None, -math.inf)
"""The period of a vote of unknown age."""


def period_of(given: int, period: int, received: float) -> Period:
    """The period, of so many ms, of a vote that was given at ``given`` (µs, the server's clock).

    The vote arrived at ``received``, so the server's clock had come as far by then.
    """
    number, since = divmod(given, period * 1000)
    return Period(number, received + (period * 1000 - since) / 1e6)
