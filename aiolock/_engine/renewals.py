"""The renewals of one lease, and what is certain of its end while some are not answered.

The deadline of a lease is the latest local time at which it certainly still exists at the store. It
must be right although answers may be lost, and although the store may carry out a renewal late or
twice. Most leases end before the first renewal, so only the others have `Renewals`.
"""

from __future__ import annotations

from aiolock.protocol import lasts


class Renewals:
    """The renewals of one lease, from the first on."""

    # Defaults on the class, because most of these are never written.
    asking = 0
    """The number of the watchdog's renewal that is not answered; 0 if there is none."""
    sent = 0
    """How many renewals were sent."""
    confirmed = 0
    """The number of the last renewal that the store has confirmed."""
    shortest = 0
    """The shortest ttl, in ms, of the renewals sent since all were confirmed; 0 if none was."""
    copies: tuple[int, float] | None = None
    """A ttl in ms and a time: until then, the store may carry out copies of renewals, with this ttl
    or more."""
    limits: tuple[tuple[int, float], ...] = ()
    """Pairs of a renewal's number and a deadline that holds until that renewal is confirmed.
    There is one for each renewal since an extension was sent that is not confirmed, except those
    whose deadline is not earlier than a later one's. If the store has shortened the lease, there is
    one for the next renewal: confirming an earlier one does not move the deadline."""

    def sends(self, ttl: int, now: float, *, extends: bool = False) -> None:
        """A renewal is sent, for ``ttl`` ms.

        While an extension is not answered, the store may carry out a shorter renewal after it. Then
        the answer to the extension does not say how long the lease is now.
        """
        self.sent += 1
        self.shortest = min(self.shortest or ttl, ttl)
        if extends or self.limits:
            deadline = now + lasts(ttl)
            before = [limit for limit in self.limits if limit[1] < deadline]
            self.limits = (*before, (self.sent, deadline))

    def shorten(self, until: float) -> None:
        """The lease is certain until then only; renewals sent before do not change that."""
        before = [limit for limit in self.limits if limit[1] < until]
        self.limits = (*before, (self.sent + 1, until))

    def may_come_twice(self, until: float) -> None:
        """A connection broke: unanswered renewals are sent again; copies may arrive until then."""
        if self.sent > self.confirmed:
            before = self.copies[0] if self.copies is not None else self.shortest
            self.copies = min(before, self.shortest), until

    def confirms(self, number: int, sent: float, ttl: int) -> tuple[float, bool] | None:
        """The store has carried out the renewal of this number, which was sent at ``sent``.

        The deadline from now on, and whether the lease must be renewed once more even if it is not
        renewed otherwise. None if the store has confirmed a later renewal already.
        """
        # Renewals may be answered in another order than they were sent. Counting the deadline from
        # an earlier one would be wrong where a later one was shorter.
        if number < self.confirmed:
            return None
        self.confirmed = number
        deadline, once_more = sent + lasts(ttl), False
        if self.copies is not None:
            shortest, until = self.copies
            if sent >= until:
                self.copies = None  # sent after the last copy, so none can shorten it any more
            elif shortest < ttl:
                # So it is renewed once more, after the copies, even with renew=False.
                deadline, once_more = sent + lasts(shortest), True
        if self.limits:
            self.limits = tuple([limit for limit in self.limits if limit[0] > number])
            deadline = min([deadline, *(end for _, end in self.limits)])
        if number == self.sent:
            self.shortest = 0
        return deadline, once_more
