"""One run in a period: votes make a majority where all of them were given in the same one.

After a run each server that voted for it votes for nobody until the period is over in which it gave
that vote, by its own clock. So who runs with votes of one period leaves a majority closed for all
of it, and nobody else has a majority in it. With a vote of an earlier one, from a server that knew
of no run, it would leave a minority: a moment later the next would run.

Clocks differ, so at the turn of a period its votes may be of two. One that was given in an earlier
period than it is there is given back for another.
"""

from __future__ import annotations

from collections import Counter

from aiolock.stores.quorum._clock import Clocks
from aiolock.stores.quorum._standing import Standing
from aiolock.stores.quorum._votes import GiveWay


def is_in_one(standing: Standing) -> bool:
    """Whether a majority of its votes was given in one period."""
    periods = Counter(
        _period(standing, standing.given[server])
        for server, vote in enumerate(standing.ballot.votes)
        if vote is not None
    )
    return max(periods.values(), default=0) >= standing.ballot.quorum


def outdated(standing: Standing, clocks: Clocks, now: float) -> list[GiveWay]:
    """Its votes of periods that are certainly over where they were given; they are not ours now."""
    steps = list[GiveWay]()
    for server, vote in enumerate(standing.ballot.votes):
        present = clocks.at(server, now)
        if vote is None or present is None:
            continue
        if _period(standing, standing.given[server]) < _period(standing, present):
            standing.ballot.turned(server)
            steps.append(GiveWay(server, vote.number))
    return steps


def _period(standing: Standing, when: int) -> int:
    return when // standing.stand.form.period
