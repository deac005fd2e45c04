"""The votes of one server that are out. No operation here looks at all of them."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Final

from aiolock.protocol import Form, WaiterId

RESERVED: Final = "-"
"""The reserved owner of a vote that keeps a name closed for a while."""
CLOSED: Final = WaiterId(RESERVED, 0)
DONE: Final = WaiterId(RESERVED, 1)
"""The reserved owner of a done marker."""


@dataclass(slots=True, eq=False)
class Vote:
    """A vote that is out."""

    waiter: WaiterId
    form: Form
    number: int
    ticket: int
    end: int
    """The end of the lease, in ms; see `QuorumServerState.prolong`."""
    granted: int
    """The time of the vote, in ms."""
    unsure: bool = True
    """Its client has not confirmed that the waiter is inside."""

    @property
    def is_reserved(self) -> bool:
        return self.waiter.client == RESERVED

    @property
    def marks(self) -> bool:
        """Whether it is a done marker."""
        return self.waiter == DONE

    @property
    def place(self) -> tuple[int, WaiterId]:
        """The place that its waiter would have in the queue."""
        return self.ticket, self.waiter


class SharedVotes:
    """The votes that are out to waiters that share, in the order of their ends.

    Of those that end at the same time, that which was added first comes first.
    """

    __slots__ = ("_added", "_by_waiter", "_ends", "_numbers")

    def __init__(self) -> None:
        self._numbers = count()
        self._added = dict[Vote, int]()
        self._ends = list[tuple[int, int, Vote]]()
        self._by_waiter = dict[WaiterId, list[Vote]]()
        """Those that are not reserved: there may be many of the reserved owner."""

    def __len__(self) -> int:
        return len(self._ends)

    def __iter__(self) -> Iterator[Vote]:
        return (vote for _, _, vote in self._ends)

    def __contains__(self, vote: Vote) -> bool:
        return vote in self._added

    def of(self, waiter: WaiterId) -> Sequence[Vote]:
        """The votes of this waiter, in order: one at most, unless it waits for a count as well."""
        votes = self._by_waiter.get(waiter, ())
        return votes if len(votes) <= 1 else sorted(votes, key=self._order)

    def _order(self, vote: Vote) -> tuple[int, int]:
        return vote.end, self._added[vote]

    @property
    def first(self) -> Vote | None:
        """The vote that ends first."""
        return self._ends[0][2] if self._ends else None

    @property
    def last_end(self) -> int:
        """When the last of them ends, in ms; 0 if there is none."""
        return self._ends[-1][0] if self._ends else 0

    def add(self, vote: Vote) -> None:
        number = self._added[vote] = next(self._numbers)
        insort(self._ends, (vote.end, number, vote))
        if not vote.is_reserved:
            self._by_waiter.setdefault(vote.waiter, []).append(vote)

    def remove(self, vote: Vote) -> None:
        number = self._added.pop(vote)
        del self._ends[bisect_left(self._ends, (vote.end, number, vote))]
        if not vote.is_reserved:
            of_waiter = self._by_waiter[vote.waiter]
            of_waiter.remove(vote)
            if not of_waiter:
                del self._by_waiter[vote.waiter]

    def prolong(self, vote: Vote, end: int) -> None:
        """Move the end of its lease."""
        number = self._added[vote]
        del self._ends[bisect_left(self._ends, (vote.end, number, vote))]
        vote.end = end
        insort(self._ends, (end, number, vote))
