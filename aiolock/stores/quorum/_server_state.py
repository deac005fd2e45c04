"""The state of one name at a server that votes: its votes, its queue, and what it remembers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection

from aiolock.protocol import Form, WaiterId
from aiolock.stores.quorum._cast_votes import SharedVotes, Vote


class QuorumServerState:
    """The state of one name."""

    __slots__ = (
        "count",
        "last",
        "last_until",
        "posted_until",
        "queue",
        "shared",
        "tombstones",
        "value",
        "vote",
        "waiting",
    )

    def __init__(self) -> None:
        self.vote: Vote | None = None
        """The vote that is out to an exclusive waiter, or to a reserved owner."""
        self.shared = SharedVotes()
        """The votes that are out to waiters that share, if `vote` is None."""
        self.queue: list[tuple[int, WaiterId]] = []
        """Tickets and waiters, in order."""
        self.waiting: dict[WaiterId, tuple[int, Form]] = {}
        """The same, by waiter."""
        self.last = 0
        """The highest number known here, until `last_until` (ms)."""
        self.last_until = 0
        self.tombstones: dict[WaiterId, int] = {}
        """Waiters that gave up, and until when (ms) copies of their requests may arrive."""
        self.count = 0
        self.value = ""
        """The posted value, until `posted_until` (ms)."""
        self.posted_until = 0

    @property
    def out(self) -> list[Vote]:
        """All votes that are out, in the order of their ends."""
        return list(self.shared) if self.vote is None else [self.vote]

    @property
    def first(self) -> Vote | None:
        """Of the votes that are out, that which ends first."""
        return self.shared.first if self.vote is None else self.vote

    @property
    def is_used(self) -> bool:
        """Whether a vote is out, or waiters are in the queue."""
        return self.first is not None or bool(self.queue)

    def is_out(self, vote: Vote) -> bool:
        return vote is self.vote or vote in self.shared

    def vote_of(self, waiter: WaiterId, number: int = 0) -> Vote | None:
        """The vote of this waiter; only the one of that number, unless it is 0."""
        if self.vote is None:
            votes = self.shared.of(waiter)
        else:
            votes = [self.vote] if self.vote.waiter == waiter else []
        return next((vote for vote in votes if number in {0, vote.number}), None)

    def put(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.add(vote)
        else:
            self.vote = vote

    def take(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.remove(vote)
        else:
            self.vote = None

    def prolong(self, vote: Vote, end: int) -> None:
        """Move the end of its lease."""
        if vote.form.shared:
            self.shared.prolong(vote, end)
        else:
            vote.end = end

    def fits(self, form: Form) -> bool:
        """Whether a waiter of this form may have a vote beside those that are out."""
        return self.vote is None and (form.shared or not self.shared)

    def idle(self, ms: int) -> bool:
        """Whether nothing of this name has to be kept."""
        last_end = self.shared.last_end if self.vote is None else self.vote.end
        if last_end > ms or self.queue:
            return False
        if self.posted_until > ms:
            return False
        return self.last_until <= ms and all(end <= ms for end in self.tombstones.values())

    def enqueue(self, request: tuple[int, WaiterId], form: Form) -> None:
        ticket, waiter = request
        if waiter not in self.waiting:
            self.waiting[waiter] = ticket, form
            insort(self.queue, request)

    def leave(self, waiter: WaiterId) -> bool:
        if waiter not in self.waiting:
            return False
        ticket, _ = self.waiting.pop(waiter)
        del self.queue[bisect_left(self.queue, (ticket, waiter))]
        return True

    def remove(self, gone: Collection[WaiterId]) -> None:
        """Take these, which are in the queue, out of it; all at once, as there may be many."""
        if len(gone) == len(self.queue):
            self.waiting.clear()
            self.queue.clear()
        elif gone:
            for waiter in gone:
                del self.waiting[waiter]
            self.queue[:] = [place for place in self.queue if place[1] in self.waiting]

    def remove_first(self, count: int) -> None:
        """Take so many waiters out of the queue, from its head on."""
        for _, waiter in self.queue[:count]:
            del self.waiting[waiter]
        del self.queue[:count]
