"""The retry window: until when a copy of a command may act, by the server's own clock.

When a command was sent again, its first copy may still arrive, from a proxy or a buffer on the way.
By then its waiter may have given up. So each command that could take, prolong, count or queue
anything carries the time until which it may act; and a release carries the time until which copies
of earlier commands may arrive, for which the server keeps a tombstone of that waiter.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LATE_AFTER: Final = 5_000_000
"""Microseconds after which the server refuses a copy of a command: longer than the pipe waits for a
reply, so no command is refused while its reply is awaited on its own connection."""
_FORGOTTEN: Final = 60.0
"""Seconds after which no network has a copy left, in case the server's clock is set back."""
_SAME_STAMP: Final = 0.1
"""Seconds for which one stamp is reused: the last of its commands has so much less time left."""


class RetryWindow:
    """One client's estimate of the server's clock, and whether late copies may still arrive.

    ``encode`` makes a number an argument. The number 0 means "at any time" for a command, and "no
    copies" for a release.
    """

    def __init__(self, time: Callable[[], float], encode: Callable[[int], bytes]) -> None:
        self._time = time
        self._encode = encode
        self._none = encode(0)
        # The server's clock minus ours, in µs: upper and lower bound.
        self._ahead: tuple[int, int] | None = None
        self._last_stamp = self._lost_stamp = 0
        self.stamp, self.stamp_until = self._none, 0.0
        """The last stamp, and until when it is reused."""
        self.copies_may_arrive = False
        """Whether copies of earlier commands may still arrive."""
        self.connected = False
        self._lost_at = 0.0
        self.clock_read = time()

    def read_clock(self, sent: float, stamp: int) -> None:
        """The server's clock was ``stamp`` (µs) at some moment since ``sent``."""
        now = self.clock_read = self._time()
        self._ahead = stamp - int(sent * 1e6), stamp - int(now * 1e6)
        self.stamp_until = 0.0

    def not_after(self, now: float) -> bytes:
        """The argument with the time until which the command may be carried out."""
        if self._ahead is None:
            return self._none
        stamp = int(now * 1e6) + self._ahead[0] + LATE_AFTER
        self._last_stamp = max(self._last_stamp, stamp)
        self.stamp, self.stamp_until = self._encode(stamp), now + _SAME_STAMP
        return self.stamp

    def tombstone(self, _: float) -> bytes:
        """The argument of a release, with the time until which copies may arrive."""
        tombstone_until = self.tombstone_until()
        self.copies_may_arrive = tombstone_until > 0
        return self._encode(tombstone_until)

    def tombstone_until(self) -> int:
        """The store's time (µs) until which copies of earlier commands may arrive.

        0 if there can be none: on a connection that lasts, all commands before a release are
        carried out before it.
        """
        if self._ahead is None:
            return 0
        now = self._time()
        most, least = self._ahead
        if self.connected:
            lost = now - self._lost_at < _FORGOTTEN and self._lost_stamp > now * 1e6 + least
            if not lost:
                return 0
        return max(int(now * 1e6) + most + LATE_AFTER, self._last_stamp)

    def elsewhere(self) -> None:
        """The keys may move: copies may reach another server, and the keys may come back here."""
        now = self._time()
        ahead = self._ahead[0] if self._ahead is not None else 0
        self._lost_at, self._lost_stamp = now, int(now * 1e6) + ahead + LATE_AFTER
        self.copies_may_arrive = True

    def lost(self) -> None:
        """The connection was lost on which commands were written."""
        self.connected = False
        self._lost_at, self._lost_stamp = self._time(), self._last_stamp
        self.copies_may_arrive = True
