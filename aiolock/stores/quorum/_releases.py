"""Releases that a member has not carried out: sent again until what they release has ended.

Each member needs its own release. The client gets the answer of a majority, and its acquisition has
ended by then. But a vote, or a place in the queue, stays at a member that refuses its release or
does not answer, and blocks other waiters. So it is sent there again, with growing pauses, until the
vote must have ended with its lease.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from aiolock.stores._member import UNBOUNDED, VoteRequest
from aiolock.stores.quorum._connection import MemberConnection

_FIRST_PAUSE: Final = 1.0
"""Seconds until a release is sent again for the first time; each later pause is twice as long."""
_LONGEST_PAUSE: Final = 30.0
_SLACK: Final = 1.0
"""Seconds added for a renewal that was on its way."""
_LONGEST: Final = 3600.0
"""Seconds after which it is given up in any case: with a lease of days an operator must step in."""


class Release(NamedTuple):
    """The release of one ended acquisition at one member."""

    connection: MemberConnection
    request: VoteRequest
    highest: int
    entered: int
    at: float
    """The time of the first release; from then on it was outside."""
    lasts_for: float
    """The seconds from then for which its vote, or one that is on its way, may last."""
    again: int = 0
    """The number of failed attempts. Each release has its own pauses: one that fails for the first
    time must not wait as long as one that has failed for an hour."""

    @property
    def pause(self) -> float:
        """Seconds until it is sent again."""
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self.again)

    @property
    def until(self) -> float:
        """The time by which the member has nothing of it any more."""
        return self.at + min(_LONGEST, self.lasts_for * 1.02 + _SLACK)


class Releases:
    """The pending releases of one client, of all its acquisitions."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._loop = asyncio.get_running_loop()
        self._left: list[tuple[float, int, Release]] = []
        """A heap of releases by the time when each is due; the number in between is unique."""
        self._numbers = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = 0.0
        self._closed = False

    def __len__(self) -> int:
        return len(self._left)

    def keep(self, release: Release) -> None:
        """It has failed: send it again after a while."""
        if self._closed:
            return
        due, after = self._time() + release.pause, release._replace(again=release.again + 1)
        heapq.heappush(self._left, (due, next(self._numbers), after))
        self._wait()

    def _wait(self) -> None:
        """Wait for the release that is due first."""
        if not self._left:
            return
        due = self._left[0][0]
        if self._timer is not None:
            if self._timer_at <= due:
                return
            self._timer.cancel()
        self._timer_at = due
        self._timer = self._loop.call_later(max(0.0, due - self._time()), self._look)

    def _look(self) -> None:
        self._timer, now, due = None, self._time(), list[Release]()
        while self._left and self._left[0][0] <= now:
            due.append(heapq.heappop(self._left)[2])
        self._send_again(due)
        self._wait()

    def _send_again(self, releases: list[Release]) -> None:
        for release in releases:
            if self._time() >= release.until:
                continue
            if release.connection.in_reach:
                self._send(release)
            else:
                self.keep(release)

    def _send(self, release: Release) -> None:
        connection, at, entered = release.connection, release.at, release.entered
        if entered >= 0:  # otherwise it was never inside, or was lost
            entered += int((self._time() - at) * 1000)
        on_reply = partial(self._answered, release)
        connection.asked()
        connection.member.release(
            release.request, release.highest, UNBOUNDED, entered=entered, on_reply=on_reply
        )

    def _answered(self, release: Release, _: int | None, error: Exception | None) -> None:
        if error is not None:
            self.keep(release)

    def close(self) -> None:
        """Send them once more, and no more after that."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        left, self._left = self._left, []
        self._send_again([release for _, _, release in left])
