"""A client's questions to the members about its acquisitions, and their answers."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from aiolock.errors import StoreError
from aiolock.protocol import PRIORITY, lasts
from aiolock.stores._member import (
    Answer,
    DoneMarker,
    InQueue,
    NotVoting,
    QueueIsFull,
    Refused,
    Voted,
)
from aiolock.stores.quorum._acquisition import JUST_AFTER, QuorumAcquisition
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._connection import RETRY
from aiolock.stores.quorum._periods import ENDLESS, UNKNOWN, Period, period_of
from aiolock.stores.quorum._releases import release_at
from aiolock.stores.quorum._renewals import Renewals
from aiolock.stores.quorum._votes import Phase, YieldVote

SOON: Final = 0.02
"""Seconds until a member is asked again where a vote that was to be given back had ended."""


class Questions:
    """The questions of one client to single members, each about one acquisition."""

    def __init__(  # its parts, and the receivers of answers
        self,
        common: Common,
        renewals: Renewals,
        *,
        look: Callable[[QuorumAcquisition], object],
        answer: Callable[[QuorumAcquisition], object],
        refusals_changed: Callable[[QuorumAcquisition], object],
    ) -> None:
        """``look`` acts on the votes of an acquisition, and ``answer`` answers its client, once
        enough is known. ``refusals_changed``: a member has refused to vote for it, or may vote for
        it again.
        """
        membership, self._passes, self._table = common
        self._connections = membership.connections
        self._clocks = membership.clocks
        self._time = membership.time
        self._loop = asyncio.get_running_loop()
        self._renewals = renewals
        self._look = look
        self._answer = answer
        self._refusals_changed = refusals_changed
        self._seen = 0
        """The highest number of any vote that this client got."""

    def ask(self, acquisition: QuorumAcquisition, server: int, now: float) -> None:
        """Ask the member for a vote, unless there is one, or a question has no answer yet."""
        vote_set, connection = acquisition.vote_set, self._connections[server]
        if acquisition.asking[server] or vote_set.votes[server] is not None:
            return
        if acquisition.idle or acquisition.local or acquisition.over or not connection.in_reach:
            return
        if vote_set.suspended:
            # As the member would answer.
            acquisition.said[server] = acquisition.refused.get(server) or NotVoting(1, 0)
            self._loop.call_soon(self._answer, acquisition)
            return
        wait = acquisition.wait or acquisition.inside
        if not wait and acquisition.asked[server]:
            return  # once: it is not queued there
        if connection.silent_until > now:
            acquisition.said[server] = NotVoting(1, 0)
            vote_set.forgotten(server)
            self._table.ask_by(acquisition, server, connection.silent_until)
            self._loop.call_soon(self._answer, acquisition)
            return
        new = not acquisition.asked[server]
        if isinstance(acquisition.said[server], QueueIsFull) and not any(acquisition.asking):
            # All have answered, and too few of them have a full queue: the waiter gets a place in
            # those as well.
            acquisition.admitted = True
        acquisition.asking[server] = acquisition.asked[server] = True
        acquisition.said[server] = None
        if new:
            acquisition.sent[server] = now
        acquisition.ask_at[server] = math.inf
        proposal = (
            vote_set.least(server) if acquisition.inside else self._proposal(acquisition, now)
        )
        connection.asked()
        connection.member.vote(
            *(acquisition.request, acquisition.ttl, proposal),
            wait=wait,
            most=0 if acquisition.inside or acquisition.admitted else acquisition.most,
            new=new,
            on_reply=partial(self._heard, acquisition, server, now),
        )

    def ask_all(self, acquisition: QuorumAcquisition, now: float) -> None:
        """Ask for all votes of a newcomer: as `ask` does for a waiter that has not asked yet."""
        request, proposal = acquisition.request, self._proposal(acquisition, now)
        asking, asked, sent = acquisition.asking, acquisition.asked, acquisition.sent
        ttl, wait, most, on_reply = acquisition.ttl, acquisition.wait, acquisition.most, self._heard
        for server, connection in enumerate(self._connections):
            if not connection.in_reach or connection.silent_until > now:
                self.ask(acquisition, server, now)
                continue
            asking[server] = asked[server] = True
            sent[server] = now
            connection.asked()
            told = partial(on_reply, acquisition, server, now)
            connection.member.vote(
                request, ttl, proposal, wait=wait, most=most, new=True, on_reply=told
            )

    def _proposal(self, acquisition: QuorumAcquisition, now: float) -> int:
        """The number that is proposed for a vote: above all fences that were ever given out.

        It matters where the members have forgotten their last numbers. The ticket alone is too low
        then: it may be of a time before the last fences, if the waiter has waited through that.
        """
        asked = acquisition.request.ticket - acquisition.request.form.priority * PRIORITY
        return max(asked, self._clocks.now(now), self._seen + 1)

    def _heard(  # which question, and its answer
        self,
        acquisition: QuorumAcquisition,
        server: int,
        sent: float,
        answer: Answer | None,
        error: Exception | None,
    ) -> None:
        """A member has answered a question for a vote, or the question has failed."""
        self._answered(acquisition, server, sent, answer, error)
        if error is None:
            if acquisition.refused.pop(server, None) is not None:
                self._refusals_changed(acquisition)
        elif acquisition.waits and self._connections[server].in_reach:
            # If it is out of reach, the error is not an answer of the member.
            acquisition.refused[server] = error
            self._refusals_changed(acquisition)
            may_vote = partial(self._may_vote, acquisition, server, error)
            self._passes.call_at(self._time() + RETRY, may_vote)

    def _may_vote(self, acquisition: QuorumAcquisition, server: int, error: Exception) -> None:
        """Whether the member may vote after a refusal; if that is unknown, ask it."""
        if acquisition.refused.get(server) is error:
            del acquisition.refused[server]
            self._refusals_changed(acquisition)

    def _answered(  # which question, and its answer
        self,
        acquisition: QuorumAcquisition,
        server: int,
        sent: float,
        answer: Answer | None,
        error: Exception | None,
    ) -> None:
        """A member has answered a request for a vote, or `Member.yield_vote`."""
        acquisition.asking[server] = False
        if not (isinstance(error, StoreError) and error.refused):
            acquisition.arrived[server] = True
        if answer is None:
            if not acquisition.over:
                acquisition.said[server] = error
                self._table.ask_by(acquisition, server, self._time() + RETRY)
                self._look(acquisition)
            return
        connection = self._connections[server]
        now = connection.answered(sent)
        self._clocks.learn(server, answer.now, now)
        vote_set = acquisition.vote_set
        if vote_set.phase is Phase.OVER:
            return  # its release was sent behind that question
        if isinstance(answer, Voted):
            if acquisition.request.form.counts or vote_set.may_count(server, answer.number):
                at_once = answer.lease in {acquisition.ttl, acquisition.claim}  # else some time ago
                given = answer.now if at_once else None
                self.voted(acquisition, server, answer.number, sent + lasts(answer.lease), given)
            else:  # it was to be given back, and the member has not heard of that
                self.yield_vote(acquisition, YieldVote(server, answer.number))
            if vote_set.phase is Phase.ENTERED:
                return  # one more changes nothing
        elif isinstance(answer, InQueue):
            when = acquisition.is_queued(server, answer, connection.clock, sent, now)
            self._table.queues[acquisition.request.name].look_by(when)
            if not vote_set.has_votes and not acquisition.request.form.once:
                self._answer(acquisition)
                return
        else:
            self._not_now(acquisition, server, sent, answer)
        self._look(acquisition)

    def _not_now(
        self,
        acquisition: QuorumAcquisition,
        server: int,
        sent: float,
        answer: NotVoting | QueueIsFull | Refused | DoneMarker,
    ) -> None:
        """A member gives no vote and no place in its queue: it is asked again in a while."""
        now = self._time()
        acquisition.said[server] = answer
        when = now + (SOON if isinstance(answer, Refused) else RETRY)
        if isinstance(answer, NotVoting):
            acquisition.vote_set.forgotten(server)
            connection = self._connections[server]
            when = connection.not_voting(answer.left) or when
            if answer.left < 0:
                connection.forgot()
        elif isinstance(answer, DoneMarker):
            acquisition.knows(answer.number, sent + answer.left / 1000)
            when = now + answer.left / 1000 + JUST_AFTER
        self._table.ask_by(acquisition, server, when)

    def voted(  # where, which, and until when
        self,
        acquisition: QuorumAcquisition,
        server: int,
        number: int,
        deadline: float,
        given: int | None,
    ) -> None:
        """A vote was given at ``given``, in µs of the member's clock; None if that is not known."""
        if acquisition.request.form.counts:
            acquisition.vote_set.counted(server, number, deadline)
            return
        self._seen = max(self._seen, number)
        now = self._time()
        acquisition.vote_set.expire(now)
        period = self._period(acquisition, given, now)
        leave = acquisition.vote_set.voted(server, number, deadline, period)
        if leave is not None:
            release_at(self._connections[server], acquisition, leave.upto)
        self._renewals.voted(acquisition, server)

    def _period(self, acquisition: QuorumAcquisition, given: int | None, now: float) -> Period:
        """The period of a vote; once that is over, the waiter has to look after the vote."""
        every = acquisition.request.form.period
        if not every:
            return ENDLESS
        period = UNKNOWN if given is None else period_of(given, every, now)
        self._table.queues[acquisition.request.name].look_by(period.over_at)
        return period

    def yield_vote(self, acquisition: QuorumAcquisition, step: YieldVote) -> None:
        """Give a vote back, and join the queue there again."""
        server = step.server
        if not acquisition.wait:
            release_at(self._connections[server], acquisition, step.vote)
            acquisition.said[server] = InQueue(0, 0, 0)  # others come first, or it is too early
            return
        sent = self._time()
        connection = self._connections[server]
        connection.asked()
        on_reply = partial(self._answered, acquisition, server, sent)
        acquisition.asking[server] = True
        connection.member.yield_vote(acquisition.request, step.vote, on_reply)

    def ask_again(self, acquisition: QuorumAcquisition, now: float) -> None:
        """Ask all members: earlier answers may not hold any more."""
        acquisition.said = [None] * len(self._connections)
        for server in range(len(self._connections)):
            self.ask(acquisition, server, now)
