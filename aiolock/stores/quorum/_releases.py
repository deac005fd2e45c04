"""Releases that a member has not carried out: sent again until what they release has ended.

A release concerns each member for itself. The client is told what a majority has answered, and its
acquisition has ended by then. But a vote, or a place in line, stays at a member that refuses its
release or does not answer, and keeps other waiters out. So it is sent there again, ever less often,
and not for ever: a vote ends with its lease.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from aiolock.stores._member import UNBOUNDED, Stand
from aiolock.stores.quorum._seat import Seat

_FIRST_PAUSE: Final = 1.0
"""Seconds until they are sent again for the first time; later pauses are longer."""
_LONGEST_PAUSE: Final = 30.0
_SLACK: Final = 1.0
"""Seconds for a renewal that was on its way."""
_LONGEST: Final = 3600.0
"""Seconds after which to give up in any case: with a lease of days an operator must step in."""


class Release(NamedTuple):
    """The release of one ended acquisition at one member."""

    seat: Seat
    stand: Stand
    highest: int
    entered: int
    at: float
    """When it was sent first; from then on it was outside."""
    lasts_for: float
    """For how many seconds from then its vote, or one that comes by then, may last."""

    @property
    def until(self) -> float:
        """When the member has nothing of it any more."""
        return self.at + min(_LONGEST, self.lasts_for * 1.02 + _SLACK)


class Releases:
    """Those of one client, of all its acquisitions."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._loop = asyncio.get_running_loop()
        self._left: list[Release] = []
        self._pause = _FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._left)

    def keep(self, release: Release) -> None:
        """It has failed: send it again after a while."""
        if self._closed:
            return
        self._left.append(release)
        if self._timer is None:
            self._timer = self._loop.call_later(self._pause, self._send_again)
            self._pause = min(_LONGEST_PAUSE, 2 * self._pause)

    def _send_again(self) -> None:
        self._timer = None
        left, self._left = self._left, []
        for release in left:
            if self._time() >= release.until:
                continue
            if release.seat.in_reach:
                self._send(release)
            else:
                self.keep(release)

    def _send(self, release: Release) -> None:
        seat, stand, highest, entered, at, _ = release
        if entered >= 0:  # else it was never inside, or has lost that
            entered += int((self._time() - at) * 1000)
        heard = partial(self._answered, release)
        seat.asked()
        seat.member.release(stand, highest, UNBOUNDED, entered=entered, heard=heard)

    def _answered(self, release: Release, _: int | None, error: Exception | None) -> None:
        if error is None:
            self._pause = _FIRST_PAUSE
        else:
            self.keep(release)

    def close(self) -> None:
        """Send them once more, and no more after that."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._send_again()
