"""Which votes count together for a run of a period."""

from __future__ import annotations

import pytest

from aiolock.store import Form, Waiter
from aiolock.stores._member import Stand
from aiolock.stores.quorum._periods import of_one_period
from aiolock.stores.quorum._standing import Standing

MINUTE = 60_000


@pytest.mark.parametrize(
    ("given", "counted"),
    [
        ([1, 1, 1], [0, 1, 2]),
        ([1, 0, 1], [0, 2]),  # the vote of the period before does not confirm a run of this one
        ([0, 1, 0], [0, 2]),
        ([1, 1, None], [0, 1]),
        ([None, None, None], []),
    ],
)
def test_votes_of_one_period(given: list[int | None], counted: list[int]) -> None:
    """A run is confirmed by the votes of the period in which most of its votes were given."""
    form = Form(claim=3000, period=MINUTE)
    standing = Standing(Stand("a", Waiter("c", 1), form, 1), 9, 3, wait=True, most=0)
    for server, period in enumerate(given):
        if period is not None:
            standing.ballot.voted(server, 7, 9.0)
            standing.given[server] = period * MINUTE + 5
    assert of_one_period(standing) == counted
