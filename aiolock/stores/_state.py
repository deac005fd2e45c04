"""The state of one name: its holders, its queue, and its numbers."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import Final

from aiolock.protocol import A_MINUTE, PRIORITY, Before, Form, WaiterId
from aiolock.stores._bucket import Bucket
from aiolock.stores._holders import Holders

_LEAST: Final = WaiterId("", 0)
"""It would be before every waiter with the same ticket."""


class NameState:
    """The state of one name."""

    __slots__ = (
        "bucket",
        "count",
        "declared",
        "holders",
        "limit",
        "queue",
        "resized",
        "tokens",
        "tombstones",
        "until",
        "value",
        "waiting",
    )

    def __init__(self) -> None:
        self.holders = Holders()
        self.queue: list[tuple[int, WaiterId]] = []
        """Tickets and waiters, in order."""
        self.waiting: dict[WaiterId, tuple[int, Form]] = {}
        """The same, by waiter."""
        self.tombstones: dict[WaiterId, int] = {}
        """Waiters that gave up, and until when (ms) copies of their requests may arrive: such a
        copy must not queue the waiter again, or be granted."""
        self.resized: dict[str, tuple[int, int]] = {}
        """For each token, the number of permits before, and until when (ms) that is remembered."""
        # The numbers below are remembered until `until` (ms), and as long as there is a holder.
        self.until = 0
        self.bucket: Bucket | None = None
        """That of a rate limit."""
        self.limit: int | None = None
        """The number of permits, or the number that was declared."""
        self.declared = 0
        """A second number that may be declared since a `resize`."""
        self.count = 0
        self.tokens: set[str] = set()
        self.value = ""

    @property
    def open(self) -> bool:
        """Whether every holder shares the lock, or there is none."""
        return self.holders.open

    @property
    def idle(self) -> bool:
        """Whether nothing about this name need be kept."""
        if self.holders or self.queue or self.tombstones or self.resized:
            return False
        return self.limit is None and not self.count and not self.value

    @property
    def over(self) -> int:
        """The time (ms) by which all leases, delays and numbers end, if nothing changes."""
        ends = [holder.end + holder.form.closes for holder in self.holders.values()]
        return max(self.until, *ends, 0, 0)

    def place(self, waiter: WaiterId) -> int:
        return bisect_left(self.queue, (self.waiting[waiter][0], waiter)) + 1

    def enqueue(self, ticket: int, waiter: WaiterId, form: Form) -> None:
        self.waiting[waiter] = ticket, form
        insort(self.queue, (ticket, waiter))
        if form.share:
            self.holders.made_shares().join(ticket, waiter, form)

    def dequeue(self, waiter: WaiterId) -> bool:
        if waiter not in self.waiting:
            return False
        del self.queue[self.place(waiter) - 1]
        ticket, form = self.waiting.pop(waiter)
        if form.share:
            self.holders.made_shares().leave(ticket, waiter, form)
        return True

    def next(self, at: int) -> tuple[int, WaiterId]:
        """The waiter that is next, with its ticket, if nobody before this place is.

        It is the one at that place if that has no share. Else it is one of the same priority.
        """
        place = self.queue[at]
        form = self.waiting[place[1]][1]
        return self.holders.made_shares().next(form.priority) if form.share else place

    def number(self, form: Form) -> int:
        """How many waiters there are of those that count for `Acquire.max_waiters`."""
        return len(self.holders.made_shares().queue(form) if form.share else self.queue)

    def new_ticket(self, form: Form, now: int) -> int:
        """The ticket of a newcomer: behind its priority's last, even if the clock was set back."""
        ticket, queue = now + form.priority * PRIORITY, self.queue
        before = bisect_left(queue, (ticket + PRIORITY // 2, _LEAST)) - 1
        return max(ticket, queue[before][0] + 1) if before >= 0 else ticket

    def before(self, waiter: WaiterId, form: Form) -> Before | None:
        """The waiter or holder directly before a newcomer, if it is of the same client."""
        # Only behind one exclusive holder, and at the tail: anywhere else the client could not tell
        # what a release would do, so it must leave the hand-off to the store.
        if form.shared or form.share or self.open or self.queue[-1][1] != waiter:
            return None
        if len(self.queue) > 1:
            before = Before(self.queue[-2][1], 0)
            share = self.waiting[before.waiter][1].share
        else:
            grant, holder = next(iter(self.holders.items()))
            before, share = Before(*grant), holder.form.share
        if share:
            return None
        return before if before.waiter.client == waiter.client else None

    def rank(self, behind: int | None) -> int:
        """How many waiters have no higher ticket than this; 0 for None."""
        return 0 if behind is None else bisect_left(self.queue, (behind + 1, _LEAST))

    def remove(self, goes: Callable[[WaiterId], bool], places: range) -> list[WaiterId]:
        """Take these out of the queue, of those at these places, and return them."""
        part = self.queue[places.start : places.stop]
        gone = [waiter for _, waiter in part if goes(waiter)]
        for waiter in gone:
            ticket, form = self.waiting.pop(waiter)
            if form.share:
                self.holders.made_shares().leave(ticket, waiter, form)
        if gone:
            left = [place for place in part if place[1] in self.waiting]
            self.queue[places.start : places.stop] = left
        return gone

    def keep(self, until: int) -> None:
        """Remember the numbers until then, at least."""
        self.until = max(self.until, until)

    def permits(self, declared: int, ms: int) -> int:
        """The number of permits; the declared one becomes it, at this time, if there is none."""
        if self.limit is None:
            self.limit = declared
            self.keep(ms + A_MINUTE)
        return self.limit

    def differs(self, declared: int, ms: int) -> bool:
        """Whether the store has another number than this."""
        return self.permits(declared, ms) != declared != self.declared

    def leave_tombstone(self, waiter: WaiterId, until: int, past: int) -> None:
        """Leave a tombstone, for as long as copies of the waiter's requests may still arrive."""
        alive = {each: end for each, end in self.tombstones.items() if end > past}
        self.tombstones = alive | {waiter: until}
        self.keep(until)

    def forget(self) -> None:
        """Forget all numbers: they were kept for long enough."""
        self.limit = self.bucket = None
        self.declared = self.count = self.until = 0
        self.value = ""
        self.tokens.clear()
        self.tombstones.clear()
        self.resized.clear()
