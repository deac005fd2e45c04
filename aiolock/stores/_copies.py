"""Copies of a command that come late: until when each may act, by the server's own clock.

The first copy of a command that is sent again may still come after that, out of a proxy or a buffer
on the way. So what could take, prolong, count or queue anything says until when it may, and a
release until when there may be copies of what was written before it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

LATE_AFTER: Final = 5_000_000
"""Microseconds after which the server refuses a copy of a command: more than the pipe waits for a
reply, so that none is refused that is still waited for on its own connection."""
_FORGOTTEN: Final = 60.0
"""Seconds after which no network has a copy any more, should the server's clock be set back."""
_SAME_STAMP: Final = 0.1
"""Seconds for which one stamp is good: so much less than LATE_AFTER is left of the last one."""


class Copies:
    """What one client knows of the server's clock, and of the copies that may be about.

    ``encode`` makes a number an argument. 0 says that it may come at any time, or that there is no
    copy.
    """

    def __init__(self, time: Callable[[], float], encode: Callable[[int], bytes]) -> None:
        self._time = time
        self._encode = encode
        self._none = encode(0)
        # The server's clock less ours, in µs: at most, and at least.
        self._ahead: tuple[int, int] | None = None
        self._last_stamp = self._lost_stamp = 0
        self.stamp, self.stamp_until = self._none, 0.0
        """The last one, and until when it is used again."""
        self.about = False
        """Whether there may be copies of what was written before."""
        self.connected = False
        self._lost_at = 0.0
        self.clock_read = time()

    def read_clock(self, sent: float, stamp: int) -> None:
        """The server's clock was ``stamp``, in µs, at some time since ``sent``."""
        now = self.clock_read = self._time()
        self._ahead = stamp - int(sent * 1e6), stamp - int(now * 1e6)
        self.stamp_until = 0.0

    def not_after(self, now: float) -> bytes:
        """The argument that says until when the command is to be carried out."""
        if self._ahead is None:
            return self._none
        stamp = int(now * 1e6) + self._ahead[0] + LATE_AFTER
        self._last_stamp = max(self._last_stamp, stamp)
        self.stamp, self.stamp_until = self._encode(stamp), now + _SAME_STAMP
        return self.stamp

    def buried(self, _: float) -> bytes:
        """The argument of a release that says until when copies may come."""
        bury = self.bury()
        self.about = bury > 0
        return self._encode(bury)

    def bury(self) -> int:
        """The store's time (µs) until which copies may arrive of what was written before.

        0 where there are none: on a connection that lasts, all that was written before a release
        is carried out before it.
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
        """Copies of what is kept here may come to another server, and this be kept there again."""
        now = self._time()
        ahead = self._ahead[0] if self._ahead is not None else 0
        self._lost_at, self._lost_stamp = now, int(now * 1e6) + ahead + LATE_AFTER
        self.about = True

    def lost(self) -> None:
        """The connection was lost on which commands were written."""
        self.connected = False
        self._lost_at, self._lost_stamp = self._time(), self._last_stamp
        self.about = True
