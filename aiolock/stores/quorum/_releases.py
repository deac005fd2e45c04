"""Releases that a member has not carried out: sent again until what they release has ended.

A release concerns each member for itself. The client is told what a majority has answered, and its
acquisition has ended by then. But a vote, or a place in line, stays at a member that refuses its
release or does not answer, and keeps other waiters out. So it is sent there again, ever less often,
and not for ever: a vote ends with its lease.
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
"""Seconds until one is sent again for the first time; each later pause of it is twice as long."""
_LONGEST_PAUSE: Final = 30.0
_SLACK: Final = 1.0
"""Seconds for a renewal that was on its way."""
_LONGEST: Final = 3600.0
"""Seconds after which to give up in any case: with a lease of days an operator must step in."""


class Release(NamedTuple):
    """The release of one ended acquisition at one member."""

    connection: MemberConnection
    request: VoteRequest
    highest: int
    entered: int
    at: float
    """When it was sent first; from then on it was outside."""
    lasts_for: float
    """For how many seconds from then its vote, or one that comes by then, may last."""
    again: int = 0
    """How often it was kept before. The pauses are its own: what fails for the first time must not
    wait as long as what has failed for an hour, its vote may have ended by then."""

    @property
    def pause(self) -> float:
        """Seconds until it is sent again."""
        return min(_LONGEST_PAUSE, _FIRST_PAUSE * 2.0**self.again)

    @property
    def until(self) -> float:
        """When the member has nothing of it any more."""
        return self.at + min(_LONGEST, self.lasts_for * 1.02 + _SLACK)


class Releases:
    """Those of one client, of all its acquisitions."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._loop = asyncio.get_running_loop()
        self._left: list[tuple[float, int, Release]] = []
        """When each is due, and the release: a heap, in which no two numbers are the same."""
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
        """Wait for the one that is due first."""
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
        if entered >= 0:  # else it was never inside, or has lost that
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
