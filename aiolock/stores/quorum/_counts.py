"""The answers of several members to one command, until a majority has answered."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from aiolock._prompt import Prompt
from aiolock.protocol import WAS_ABSENT, WAS_HOLDER, WAS_UNKNOWN
from aiolock.stores.quorum._acquisition import QuorumAcquisition

Concluded = Callable[[bool | None], None]
"""A function that gets the majority's answer to a renewal; None if unknown."""


class Tally:
    """The answers to a release."""

    def __init__(
        self, quorum: int, was: int, held: int, *, lost: bool = False, at_once: bool = False
    ) -> None:
        """``held`` votes were counted; ``lost``: they have ended by the client's deadline.

        ``at_once``: the waiting task continues in the call that brings the last answer.
        """
        self.future = Prompt(loop=asyncio.get_running_loop())
        self._at_once = at_once
        self._majority = self._quorum = quorum
        self._was = was
        self._held, self._lost = held, lost
        self._asked = self._heard = self._failed = 0
        self._present = self._absent = self._unsure = 0

    def expect(self, asked: int) -> None:
        """Expect so many answers: a majority is enough, or all if fewer members were asked."""
        self._asked = asked
        self._quorum = min(self._quorum, asked)
        if not asked:
            self._conclude(self._was)

    def heard_of(self, was: int | None, error: Exception | None) -> None:
        """A member whose vote was counted has answered."""
        if error is None:
            self._present += was == WAS_HOLDER
            self._absent += was == WAS_ABSENT
            self._unsure += was == WAS_UNKNOWN
        self.on_reply(was, error)

    def on_reply(self, was: int | None, error: Exception | None) -> None:
        """A member has answered."""
        if error is None:
            self._heard += 1
            if self._heard == self._quorum:
                self._conclude(self._verdict())
        else:
            self._failed += 1
            if self._failed > self._asked - self._quorum and not self.future.done():
                self.future.set_exception(error)

    def _verdict(self) -> int:
        """The state before the release, or unknown if a majority of its votes may have been lost.

        Until the deadline a vote counts unless its server misses it; after it, only if found.
        """
        if self._was != WAS_HOLDER:
            return self._was
        stood = self._present if self._lost else self._held - self._absent - self._unsure
        if stood >= self._majority:
            return self._was
        return WAS_ABSENT if self._held - self._absent < self._majority else WAS_UNKNOWN

    def _conclude(self, was: int) -> None:
        if self.future.done():
            return
        if self._at_once:
            self.future.resolve(was)
        else:
            self.future.set_result(was)


class Renewing:
    """The answers to a renewal of all votes of an acquisition that has entered."""

    def __init__(
        self,
        acquisition: QuorumAcquisition,
        servers: list[int],
        ttl: int,
        until: float,
        concluded: Concluded,
    ) -> None:
        self.ttl = ttl
        """The requested lease, in ms; 0 to ask only whether the votes are still out."""
        self._until = until
        self._acquisition = acquisition
        self._asked = set(servers)
        first = acquisition.vote_set.votes[servers[0]] if servers else None
        self._period = None if first is None else first.period.number
        self._pending = len(servers)
        self._renewed = 0
        self._concluded: Concluded | None = concluded

    def takes_in(self, server: int) -> bool:
        """Whether the vote that came just now is to be renewed as well: others may not answer."""
        if self._concluded is None or server in self._asked:
            return False
        if not self._acquisition.vote_set.counts_with(self._period, server):
            return False
        self._asked.add(server)
        self._pending += 1
        return True

    def on_reply(self, still: Any, error: Exception | None) -> None:
        """A member has answered; the vote set was updated before this."""
        self._pending -= 1
        if error is None and still:
            self._renewed += 1
        self.look()

    def look(self) -> None:
        """Conclude once a majority has given the same answer, or no more answers are to come."""
        if self._concluded is None:
            return  # it may be about votes that were given back since
        votes, quorum = self._acquisition.vote_set.votes, self._acquisition.vote_set.quorum
        if self._renewed >= quorum and self._lasts():
            if self.ttl:
                self._acquisition.vote_set.confirm()
                self._acquisition.promised = max(self._acquisition.promised, self._until)
            self._conclude(True)  # noqa: FBT003  # what is known
        elif self._acquisition.over or sum(vote is None for vote in votes) > len(votes) - quorum:
            self._conclude(False)  # noqa: FBT003
        elif not self._pending:
            self._conclude(None)

    def _lasts(self) -> bool:
        """Whether a majority lasts for as long as was asked: a renewed vote may be lost since."""
        deadline = self._acquisition.vote_set.deadline
        return not self.ttl or (deadline is not None and deadline >= self._until)

    def give_back(self) -> None:
        """The votes are given back: later answers are not about the next time that it enters."""
        self._conclude(False)  # noqa: FBT003

    def _conclude(self, still: bool | None) -> None:  # noqa: FBT001
        concluded, self._concluded = self._concluded, None
        if concluded is not None:
            concluded(still)


def unheard(_: Any, __: Exception | None) -> None:
    """No task waits for this answer."""
