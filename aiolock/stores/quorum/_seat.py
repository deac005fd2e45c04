"""One member as a client has it: whether it can be asked, whether it votes, and what it pushes."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Final, Protocol

from aiolock.errors import QuorumMismatch, StoreError
from aiolock.store import Form, Waiter
from aiolock.stores._member import Charter, Enrolled, Member, Memory, Unfit

log = logging.getLogger("aiolock")

OUT_AFTER: Final = 0.25
"""Seconds without an answer that is due, after which nothing new is asked of a member."""
_FAR: Final = 4
"""So many round trips, where that is longer: a member may be far away."""
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0


class Host(Protocol):
    """What a seat tells of its member, by its number."""

    def joined(self, seat: Seat) -> None:
        """It was joined, or that has failed."""

    def enrolled(self, seat: Seat, enrolled: Enrolled) -> None:
        """It has said what it is."""

    def reach_changed(self, seat: Seat) -> None:
        """It can be asked, or no more."""

    def ask_there(self, server: int) -> None:
        """Whatever it has pushed lately may be lost."""

    def granted(self, server: int, waiter: Waiter, number: int, lease: int, now: int) -> None:
        """It has voted for this waiter."""

    def foreign(self, server: int, name: str, waiter: Waiter, form: Form) -> None:
        """It has voted for a waiter that is over."""

    def knows(self, waiter: Waiter) -> bool:
        """Whether this waiter is not over."""
        ...

    def inquired(self, server: int, waiter: Waiter, number: int) -> None:
        """It wants this vote back, if that is not needed."""

    def vote_lost(self, server: int, name: str, waiter: Waiter, number: int, reason: str) -> None:
        """It has taken this vote away."""

    def closed(self, name: str) -> None:
        """It votes for nobody for a while."""

    def requested(self, waiter: Waiter) -> None:
        """Somebody asks this waiter to let go."""


class Seat:
    """One member; it is the `MemberInbox` of that."""

    def __init__(self, number: int, member: Member, host: Host, time: Callable[[], float]) -> None:
        self.number = number
        self.member = member
        self._host = host
        self._time = time
        self._loop = asyncio.get_running_loop()
        self.is_joined = False
        self.tried = False
        """Whether it was tried to join it."""
        self.error: Exception | None = None
        """Why it could not be joined, or why its link is down."""
        self.unfit: Exception | None = None
        """Why it is no member, whatever it answers."""
        self._down = False
        self._overdue = False
        self.run = ""
        self.unknown = False
        """It knows of no quorum, so it is to be told whether it ever did."""
        self.silent_until = 0.0
        """Until when it does not vote, by our clock."""
        self._enrolling = False
        self._round_trip = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._joining: asyncio.Task[None] | None = None
        self._closed = False

    @property
    def in_reach(self) -> bool:
        """Whether it can be asked."""
        able = self.is_joined and self.unfit is None
        return able and not self._down and not self._overdue

    @property
    def why(self) -> str:
        """Why it is not in reach, for people."""
        error = self.unfit or self.error
        if error is not None:
            return str(error) or type(error).__name__
        return "no answer yet" if not self.is_joined else "does not answer"

    # Joining and leaving

    def join(self, client: str, charter: Charter) -> None:
        """Join it, now or as soon as that can be."""
        self._joining = asyncio.create_task(self._join(client, charter), name="aiolock join")

    async def _join(self, client: str, charter: Charter) -> None:
        pause = _FIRST_PAUSE
        # Ends by the flag, too: cancellation alone can get lost in a driver (cpython gh-86296).
        while not self._closed:
            try:
                await self.member.join(client, self, charter)
            except StoreError as error:
                self.tried, self.error = True, error
                if isinstance(error, QuorumMismatch | Unfit):
                    self.unfit = error
                self._host.joined(self)
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # jitter
                pause = min(_LONGEST_PAUSE, 2 * pause)
                self.unfit = None
            else:
                self.tried = self.is_joined = True
                self.error = None
                self._host.joined(self)
                return

    async def leave(self, patience: float) -> None:
        """Let go of it; Idempotent."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        if self._joining is not None and not self._joining.done():
            self._joining.cancel()
            await asyncio.wait([self._joining])
        if self.is_joined:
            await self.member.leave(patience if self.in_reach else 0.0)

    # Whether it answers

    def asked(self) -> None:
        """Something was asked of it just now: see that it answers."""
        if self._timer is None:
            self._timer = self._loop.call_later(self._patience, self._look)

    @property
    def _patience(self) -> float:
        return max(OUT_AFTER, _FAR * self._round_trip)

    def answered(self, sent: float) -> float:
        """It has answered what was asked at that time; the time now."""
        now = self._time()
        took = now - sent
        # Of the last ones the quickest, nearly: a pause is no distance.
        self._round_trip = min(took, self._round_trip * 1.1 + 0.001) if self._round_trip else took
        if self._overdue:
            self._look_again()
        return now

    def _look(self) -> None:
        self._timer = None
        waits = self.member.waits_for()
        if waits > 0.0 or self._overdue:
            late = waits >= self._patience * 0.99
            rest = self._patience if late else self._patience - waits
            self._timer = self._loop.call_later(max(0.01, rest), self._look)
            self._set_overdue(late)

    def _look_again(self) -> None:
        self._set_overdue(self.member.waits_for() >= self._patience)

    def _set_overdue(self, late: bool) -> None:  # noqa: FBT001  # what it is named for
        if late != self._overdue:
            self._overdue = late
            self._host.reach_changed(self)

    # Enrolment

    def enrolled(self, enrolled: Enrolled) -> None:
        """See `MemberInbox`."""
        self._enrolling = False
        self.unknown = enrolled.left < 0
        if enrolled.left > 0:
            log.warning(
                "aiolock: %s does not vote for %.0f s: it was started, or emptied, a short while"
                " ago, and may have forgotten its votes",
                self.member.address,
                enrolled.left / 1000,
            )
        self.silent(enrolled.left)
        self._host.enrolled(self, enrolled)

    def enrol(self, memory: Memory) -> None:
        """Tell it of what it is a member once more, unless that is under way."""
        if not self._enrolling:
            self._enrolling = memory is Memory.UNSAID
            self.unknown = False
            self.member.enrol(memory)

    def silent(self, left: int) -> float:
        """It does not vote for so many ms; until when, by our clock."""
        self.silent_until = self._time() + max(0, left) * 0.00102 + 0.003 if left else 0.0
        return self.silent_until

    # What comes unasked

    def granted(  # noqa: PLR0917  # see `Inbox`
        self, name: str, waiter: Waiter, form: Form, fence: int, lease: int, now: int
    ) -> None:
        """See `MemberInbox`."""
        if self._host.knows(waiter):
            self._host.granted(self.number, waiter, fence, lease, now)
        else:
            self._host.foreign(self.number, name, waiter, form)

    def inquired(self, name: str, waiter: Waiter, number: int) -> None:
        """See `MemberInbox`."""
        self._host.inquired(self.number, waiter, number)

    def lost(self, name: str, waiter: Waiter, fence: int, reason: str) -> None:
        """See `Inbox`."""
        self._host.vote_lost(self.number, name, waiter, fence, reason)

    def done(self, name: str) -> None:
        """See `Inbox`."""
        self._host.closed(name)

    def requested(self, name: str, waiter: Waiter, fence: int) -> None:
        """See `Inbox`."""
        self._host.requested(waiter)

    def void(self, name: str, waiter: Waiter) -> None:
        """No member says this: nobody is told who stands before it."""

    def unconfirmed(
        self, name: str, waiter: Waiter, form: Form, fence: int, error: Exception
    ) -> None:
        """No member says this: it waits for no replica."""

    def reconnected(self) -> None:
        """See `Inbox`."""
        self._host.ask_there(self.number)

    def link(self, error: Exception | None) -> None:
        """See `Inbox`."""
        self.error = error
        if isinstance(error, QuorumMismatch | Unfit):
            log.error("aiolock: %s", error)
        if (error is not None) != self._down:
            self._down = error is not None
            self._host.reach_changed(self)

    def beat(self) -> None:
        """Nobody asks instead."""
