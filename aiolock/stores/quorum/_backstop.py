"""What a client does now and then for all its waiters of a name, whatever the members push.

Votes that make no majority yet are renewed, and waiters ask again in case a push was lost.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from aiolock.stores._member import InQueue
from aiolock.stores.quorum._acquisition import KEEP_ALIVE, QuorumAcquisition
from aiolock.stores.quorum._connection import RETRY
from aiolock.stores.quorum._counts import unheard
from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._name_queue import NameQueue
from aiolock.stores.quorum._passes import ASKED
from aiolock.stores.quorum._questions import Questions
from aiolock.stores.quorum._renewals import Renewals


class Backstop:
    """The checks of one client's acquisitions at their times."""

    def __init__(
        self,
        membership: Membership,
        questions: Questions,
        renewals: Renewals,
        look: Callable[[QuorumAcquisition], object],
    ) -> None:
        """``look`` acts on the votes of an acquisition."""
        self._membership = membership
        self._connections = membership.connections
        self._time = membership.time
        self._questions = questions
        self._renewals = renewals
        self._look = look

    def check_each(self, queue: NameQueue) -> Iterator[int]:
        """A pass over the acquisitions of a name; it has itself called again when one is due."""
        following = math.inf
        for server, connection in enumerate(self._connections):
            first = True
            for acquisition in list(queue.acquisitions.values()):
                yield 1
                if acquisition.idle or acquisition.local or acquisition.vote_set.suspended:
                    continue
                if acquisition.over:
                    continue
                now, vote = self._time(), acquisition.vote_set.votes[server]
                if vote is not None:
                    over_at = vote.period.over_at
                    if acquisition.waits:
                        following = min(following, self._keep(acquisition, server, now))
                    elif over_at <= now:
                        self._look(acquisition)
                    else:
                        following = min(following, over_at)
                    yield ASKED
                    continue
                for_all = not first and isinstance(acquisition.said[server], InQueue)
                due = acquisition.ask_at[server] + (KEEP_ALIVE if for_all else 0.0)
                first = False
                if due > now:
                    following = min(following, due)
                elif connection.in_reach:  # else it is asked as soon as it is
                    self._questions.ask(acquisition, server, now)
                    following = min(following, now + RETRY)
                    yield ASKED
        queue.look_by(following)

    def _keep(self, acquisition: QuorumAcquisition, server: int, now: float) -> float:
        """Renew, in time, a vote of a waiter without a majority; returns when to look again."""
        vote, third = acquisition.vote_set.votes[server], acquisition.claim / 3000
        assert vote is not None
        renew_at = vote.deadline - 2 * third
        over_at = vote.period.over_at
        if vote.deadline <= now or over_at <= now:
            self._look(acquisition)  # it is given back
        elif (
            renew_at <= now
            and not acquisition.renewing[server]
            and self._membership.decides
            and self._connections[server].in_reach
        ):
            self._renewals.renew_vote(acquisition, server, acquisition.claim, 0, unheard)
        again = max(renew_at, now + third)
        return min(again, over_at) if over_at > now else again
