"""One run in each period: a run begins once a majority has confirmed votes of one period.

After a run, each server that voted for it gives no vote until the end of the period in which it
gave that vote, by its own clock. So a run that was confirmed by votes of one period leaves a
majority closed for all of that period, and no other waiter gets a majority in it. A vote of an
earlier period, from a server that knew of no run, would leave only a minority closed: the next run
would begin a moment later.

Clocks differ, so at the turn of a period the votes of a waiter may be of two periods. The votes of
the earlier period are not renewed. If the others are no majority, nothing is confirmed: the grant
is given back, and asked for again.
"""

from __future__ import annotations

from collections import Counter

from aiolock.stores.quorum._standing import Standing


def of_one_period(standing: Standing) -> list[int]:
    """The servers whose votes are of the same period: the period with the most votes."""
    periods = {
        server: standing.given[server] // standing.stand.form.period
        for server, vote in enumerate(standing.ballot.votes)
        if vote is not None
    }
    if not periods:
        return []
    (most, _), *_ = Counter(periods.values()).most_common(1)
    return [server for server, period in periods.items() if period == most]
