"""The bucket of a rate limit: when tokens are there, and who got some of them (see `Rate`).

A waiter that gets tokens holds nothing: it is no holder, and there is no release. Nobody tells the
queue that it can go on, so each waiter is told, with its place, when its tokens will be there
(`Queued.until`). It asks then, and *whoever asks, all whose tokens are there get them*, by a push.
So the clients need no clock in common, and it does not matter which of them is alive.

A waiter that leaves without its tokens lets all behind it come earlier than they were told. Then
the first in the queue is notified, and so is each that becomes the first, up to the last that
waited at that moment.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Final

from aiolock._rate import Rate
from aiolock.protocol import KEEP_ALIVE, WaiterId

_REMOVED: Final = 2
"""Grants that are forgotten with each new one, if their time has passed."""


class Bucket:
    """The bucket of one name."""

    __slots__ = ("full_at", "granted", "outdated", "told")

    def __init__(self) -> None:
        self.full_at = 0
        """When the bucket is full again (µs), if nobody takes any more."""
        self.granted: dict[WaiterId, int] = {}
        """Who got tokens, and until when that is remembered (ms): a waiter that asks again, since
        it missed the push or the answer, gets no others."""
        self.outdated = 0
        """The ticket up to which waiters were told a later time than that of their tokens."""
        self.told = 0
        """The ticket of the waiter that was last notified for that reason."""

    # Each client of a store without a clock takes what is there by its own: so they take at most
    # what comes in the time by which two clocks differ (`Step`: ``slack``) beyond the rate. To wait
    # until tokens are there by every clock would cost a bucket that is filled in less time than
    # that all of its tokens.

    def see(self, rate: Rate, now: int, slack: int) -> None:
        """Take note of the time: if the clock was set back, the bucket is empty now, at the worst.

        That must be kept: otherwise it would be empty at each moment, until the clock has caught up
        with where it was. ``slack``: another client's clock may be ahead of this one.
        """
        self.full_at = min(self.full_at, now + slack + rate.tolerance)

    def full(self, now: int) -> int:
        """When it is full again (µs); now, if it is full."""
        return max(self.full_at, now)

    def due(self, rate: Rate, number: int, before: int, now: int) -> int:
        """When so many tokens are there, after ``before`` others were taken (µs)."""
        if number > rate.burst:  # since a resize
            return now + KEEP_ALIVE * 1000
        return self.full(now) + (before + number) * rate.interval - rate.tolerance

    def take(self, rate: Rate, number: int, now: int) -> int:
        """Take tokens that are there; the µs until the bucket is full again, at least 1."""
        self.full_at = self.full(now) + number * rate.interval
        return self.full_at - now

    def resize(self, before: Rate, rate: Rate, now: int) -> None:
        """As many tokens are missing as before; all, if there were more."""
        missing = (self.full(now) - now) / before.interval
        self.full_at = now + min(math.ceil(missing * rate.interval), rate.tolerance)

    def remember(self, waiter: WaiterId, until: int, past: int) -> None:
        """Remember a grant, and forget some of those that need not be remembered any more."""
        for other in list(_first(self.granted, _REMOVED)):
            if self.granted[other] <= past:
                del self.granted[other]
        self.granted[waiter] = until


def _first(items: Iterable[WaiterId], most: int) -> Iterable[WaiterId]:
    return (item for item, _ in zip(items, range(most), strict=False))
