"""Releases that a member has not carried out: sent again until what they release has ended.

Each member needs its own release. The client gets the answer of a majority, and its acquisition has
ended by then. But a vote, or a place in the queue, stays at a member that refuses its release or
does not answer, and blocks other waiters. So it is sent there again, with growing pauses, until the
vote must have ended with its lease.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from aiolock.stores._member import OUTSIDE, UNBOUNDED, OnReply, VoteRequest
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._counts import unheard
from aiolock.stores.quorum._passes import ASKED, Passes

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

    def __init__(self, time: Callable[[], float], passes: Passes) -> None:
        self._time = time
        self._passes = passes
        self._left = OrderedDict[int, Release]()
        """Those to be sent again, by numbers in the order in which they have failed."""
        self._numbers = itertools.count()
        self._closed = False

    def __len__(self) -> int:
        return len(self._left)

    def keep(self, release: Release) -> None:
        """It has failed: send it again after a while."""
        if self._closed:
            return
        number = next(self._numbers)
        self._left[number] = release._replace(again=release.again + 1)
        when = self._time() + release.pause
        self._passes.call_at(when, partial(self._send_again, number))

    def _send_again(self, number: int) -> None:
        release = self._left.pop(number)
        if self._time() >= release.until:
            return
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

    def closing(self) -> Iterator[int]:
        """Send them once more, and no more after that: part by part."""
        self._closed = True
        while self._left:
            self._send_again(next(iter(self._left)))
            yield ASKED


def release_at(
    connection: MemberConnection,
    acquisition: QuorumAcquisition,
    upto: int,
    on_reply: OnReply = unheard,
) -> None:
    """Release a waiter at one member, and its vote there if its number is not above ``upto``."""
    highest = acquisition.vote_set.highest
    connection.member.release(
        acquisition.request, highest, upto, entered=OUTSIDE, on_reply=on_reply
    )
