"""Acquisitions leave the queues while no majority votes, and come back once one does.

Otherwise a waiter that reaches a minority would block the waiters of other clients there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._passes import ASKED
from aiolock.stores.quorum._questions import Questions
from aiolock.stores.quorum._releases import release_at

_VOTING: Final = "voting"
"""The pass that suspends acquisitions while no majority votes, and resumes them."""


class Suspension:
    """Whether the acquisitions of one client are suspended."""

    def __init__(
        self,
        common: Common,
        questions: Questions,
        answer: Callable[[QuorumAcquisition], object],
    ) -> None:
        """``answer`` answers the client, once enough is known."""
        self._membership, self._passes, self._table = common
        self._connections = common.membership.connections
        self._time = common.membership.time
        self._questions = questions
        self._answer = answer
        self._votes: tuple[bool, ...] = ()
        """Whether a majority votes, and each member, as the latest pass about that has seen it."""
        self._to_check = deque[QuorumAcquisition]()
        """What is left for that pass."""

    def voting_changed(self) -> None:
        """The number of members that vote may have changed."""
        votes = (self._membership.decides, *[each.votes for each in self._connections])
        if votes != self._votes:
            self._votes = votes
            left = self._to_check = deque(self._table.by_waiter.values())
            self._passes.begin(_VOTING, self._check_all(left), left.clear)

    def _check_all(self, left: deque[QuorumAcquisition]) -> Iterator[int]:
        acted = ASKED * (self._membership.size + 1)
        while left:
            acquisition = left.popleft()
            suspended = acquisition.vote_set.suspended
            self.check(acquisition)
            if suspended != acquisition.vote_set.suspended:
                yield acted
            elif suspended and acquisition.is_waited_for:
                # It came during an earlier such pass.
                self._questions.ask_again(acquisition, self._time())
                yield acted
            else:
                yield 1

    def is_checked_in_turn(self, acquisition: QuorumAcquisition) -> bool:
        """Whether others of its name are just being resumed: then so is this one, behind them."""
        others = len(self._table.queues[acquisition.request.name].acquisitions) > 1
        if not (others and self._passes.is_under_way(_VOTING)):
            return False
        acquisition.vote_set.suspended = True
        self._to_check.append(acquisition)
        return True

    def can_enter(self, acquisition: QuorumAcquisition) -> bool:
        """Whether a majority votes, as far as this acquisition knows."""
        refused, membership = acquisition.refused, self._membership
        if not refused or not membership.decides:
            return membership.decides
        votes = [each.votes and each.number not in refused for each in self._connections]
        return votes.count(True) >= membership.quorum

    def check(self, acquisition: QuorumAcquisition) -> None:
        """Suspend the acquisition while no majority votes, and resume it once one does."""
        if not acquisition.waits or acquisition.idle:
            return
        suspended = not self.can_enter(acquisition)
        if suspended and not acquisition.vote_set.suspended:
            self._suspend(acquisition)
        elif acquisition.vote_set.suspended and not suspended:
            self._resume(acquisition)

    def _suspend(self, acquisition: QuorumAcquisition) -> None:
        """No majority votes: leave the queues, so that no waiter of other clients is blocked."""
        for leave in acquisition.vote_set.suspend():
            if acquisition.asked[leave.server]:
                release_at(self._connections[leave.server], acquisition, leave.upto)
        self._questions.ask_again(acquisition, self._time())

    def _resume(self, acquisition: QuorumAcquisition) -> None:
        """A majority votes again, or may: ask all."""
        now = self._time()
        acquisition.vote_set.come_back()
        for server in range(self._membership.size):
            self._questions.ask(acquisition, server, now)
        self._answer(acquisition)
