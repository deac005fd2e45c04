"""A client's questions to the members about its acquisitions, and their answers.

If a member has to be asked for all acquisitions of a name, or of the client, that is done in parts
(see `_passes`), in the order in which they came. Nobody overtakes another waiter of this client
meanwhile: a newcomer is asked for behind those of its name that are still to be asked for.
"""

from __future__ import annotations

import asyncio
import math
from collections import deque
from collections.abc import Iterator
from functools import partial
from typing import Any, Final

from aiolock.errors import StoreError
from aiolock.protocol import PRIORITY, WaiterId, lasts
from aiolock.stores._member import (
    OUTSIDE,
    Answer,
    DoneMarker,
    InQueue,
    NotVoting,
    OnReply,
    QueueIsFull,
    Refused,
    Voted,
)
from aiolock.stores.quorum._acquisition import (
    JUST_AFTER,
    KEEP_ALIVE,
    NameQueue,
    QuorumAcquisition,
)
from aiolock.stores.quorum._connection import RETRY
from aiolock.stores.quorum._counts import unheard
from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._passes import ASKED, Passes
from aiolock.stores.quorum._periods import ENDLESS, UNKNOWN, Period, period_of
from aiolock.stores.quorum._votes import Phase, YieldVote

SOON: Final = 0.02
"""Seconds until a member is asked again where a vote that was to be given back had ended."""
_VOTING: Final = "voting"
"""The pass that suspends acquisitions while no majority votes, and resumes them."""


class Asking:
    """The acquisitions of one client, for all names; `Candidates` decides what its votes mean."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._connections = membership.connections
        self._clocks = membership.clocks
        self._time = membership.time
        self._loop = asyncio.get_running_loop()
        self.acquisitions: dict[WaiterId, QuorumAcquisition] = {}
        self._queues: dict[str, NameQueue] = {}
        self._passes = Passes(membership.time)
        self._seen = 0
        """The highest number of any vote that this client got."""
        self._votes: tuple[bool, ...] = ()
        """Whether a majority votes, and each member, as the latest pass about that has seen it."""
        self._to_check = deque[QuorumAcquisition]()
        """What is left for that pass."""
        self._to_ask = [deque[QuorumAcquisition]() for _ in membership.connections]
        """By member: what is left of a pass that asks it for all acquisitions of the client."""

    def _look(self, acquisition: QuorumAcquisition, reason: str = "expired") -> None:
        """Act on the votes; ``reason``: why a vote was taken away, if one was."""
        raise NotImplementedError

    def _answer(self, acquisition: QuorumAcquisition) -> None:
        """Answer the client, once enough is known."""
        raise NotImplementedError

    def _ask(self, acquisition: QuorumAcquisition, server: int, now: float) -> None:
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
            self._ask_by(acquisition, server, connection.silent_until)
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

    def _ask_in_turn(self, acquisition: QuorumAcquisition, now: float) -> None:
        """Ask all members for one that has no place there yet."""
        if self._passes.idle:
            self._ask_all(acquisition, now)
        elif not self._is_checked_in_turn(acquisition):
            for server in range(self._membership.size):
                if not self._is_asked_in_turn(acquisition, server, of_client=True):
                    self._ask(acquisition, server, now)

    def _is_checked_in_turn(self, acquisition: QuorumAcquisition) -> bool:
        """Whether others of its name are just being resumed: then so is this one, behind them."""
        others = len(self._queues[acquisition.request.name].acquisitions) > 1
        if not (others and self._passes.is_under_way(_VOTING)):
            return False
        acquisition.vote_set.suspended = True
        self._to_check.append(acquisition)
        return True

    def _is_asked_in_turn(
        self, acquisition: QuorumAcquisition, server: int, *, of_client: bool = False
    ) -> bool:
        """Whether that member is just being asked for all of its name: then for this one as well,
        behind them. ``of_client``: also if it is asked for all of this client.
        """
        queue = self._queues[acquisition.request.name]
        left = queue.to_ask[server]
        if not left and of_client and len(queue.acquisitions) > 1:
            left = self._to_ask[server]
        if not left:
            return False
        left.append(acquisition)
        return True

    def _ask_all(self, acquisition: QuorumAcquisition, now: float) -> None:
        """Ask for all votes of a newcomer: as `_ask` does for a waiter that has not asked yet."""
        request, proposal = acquisition.request, self._proposal(acquisition, now)
        asking, asked, sent = acquisition.asking, acquisition.asked, acquisition.sent
        ttl, wait, most, on_reply = acquisition.ttl, acquisition.wait, acquisition.most, self._heard
        for server, connection in enumerate(self._connections):
            if not connection.in_reach or connection.silent_until > now:
                self._ask(acquisition, server, now)
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
                self._check_majority(acquisition)
        elif acquisition.waits and self._connections[server].in_reach:
            # If it is out of reach, the error is not an answer of the member.
            acquisition.refused[server] = error
            self._check_majority(acquisition)
            may_vote = partial(self._may_vote, acquisition, server, error)
            self._passes.call_at(self._time() + RETRY, may_vote)

    def _may_vote(self, acquisition: QuorumAcquisition, server: int, error: Exception) -> None:
        """Whether the member may vote after a refusal; if that is unknown, ask it."""
        if acquisition.refused.get(server) is error:
            del acquisition.refused[server]
            self._check_majority(acquisition)

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
                self._ask_by(acquisition, server, self._time() + RETRY)
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
                self._voted(acquisition, server, answer.number, sent + lasts(answer.lease), given)
            else:  # it was to be given back, and the member has not heard of that
                self._yield_vote(acquisition, YieldVote(server, answer.number))
            if vote_set.phase is Phase.ENTERED:
                return  # one more changes nothing
        elif isinstance(answer, InQueue):
            when = acquisition.is_queued(server, answer, connection.clock, sent, now)
            self._queues[acquisition.request.name].look_by(when)
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
        self._ask_by(acquisition, server, when)

    def _ask_by(self, acquisition: QuorumAcquisition, server: int, when: float) -> None:
        if isinstance(acquisition.said[server], InQueue):
            acquisition.said[server] = None  # it may have no place there, so it asks again
        acquisition.ask_at[server] = when
        queue = self._queues.get(acquisition.request.name)
        if queue is not None:
            queue.look_by(when)

    def _voted(  # where, which, and until when
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
            self._release_at(acquisition, server, leave.upto, unheard)

    def _period(self, acquisition: QuorumAcquisition, given: int | None, now: float) -> Period:
        """The period of a vote; once that is over, the waiter has to look after the vote."""
        every = acquisition.request.form.period
        if not every:
            return ENDLESS
        period = UNKNOWN if given is None else period_of(given, every, now)
        self._queues[acquisition.request.name].look_by(period.over_at)
        return period

    def _yield_vote(self, acquisition: QuorumAcquisition, step: YieldVote) -> None:
        server = step.server
        if not acquisition.wait:
            self._release_at(acquisition, server, step.vote, unheard)
            acquisition.said[server] = InQueue(0, 0, 0)  # others come first, or it is too early
            return
        sent = self._time()
        connection = self._connections[server]
        connection.asked()
        on_reply = partial(self._answered, acquisition, server, sent)
        acquisition.asking[server] = True
        connection.member.yield_vote(acquisition.request, step.vote, on_reply)

    # Whether a majority votes

    def voting_changed(self) -> None:
        """The number of members that vote may have changed."""
        votes = (self._membership.decides, *[each.votes for each in self._connections])
        if votes != self._votes:
            self._votes = votes
            left = self._to_check = deque(self.acquisitions.values())
            self._passes.begin(_VOTING, self._check_all(left), left.clear)

    def _check_all(self, left: deque[QuorumAcquisition]) -> Iterator[int]:
        acted = ASKED * (self._membership.size + 1)
        while left:
            acquisition = left.popleft()
            suspended = acquisition.vote_set.suspended
            self._check_majority(acquisition)
            if suspended != acquisition.vote_set.suspended:
                yield acted
            elif suspended and acquisition.is_waited_for:
                self._ask_again(acquisition, self._time())  # it came during an earlier such pass
                yield acted
            else:
                yield 1

    def _ask_for_all(
        self, left: deque[QuorumAcquisition], server: int, *, of_client: bool
    ) -> Iterator[int]:
        """Ask that member for these, of one name or of all."""
        while left:
            acquisition = left.popleft()
            if acquisition.over or (of_client and self._is_asked_in_turn(acquisition, server)):
                yield 1
                continue
            was_asking = acquisition.asking[server]
            self._ask(acquisition, server, self._time())
            if acquisition.vote_set.stuck:
                self._look(acquisition)  # the member may need the fence
            yield ASKED if acquisition.asking[server] and not was_asking else 1

    def _can_enter(self, acquisition: QuorumAcquisition) -> bool:
        """Whether a majority votes, as far as this acquisition knows."""
        refused, membership = acquisition.refused, self._membership
        if not refused or not membership.decides:
            return membership.decides
        votes = [each.votes and each.number not in refused for each in self._connections]
        return votes.count(True) >= membership.quorum

    def _check_majority(self, acquisition: QuorumAcquisition) -> None:
        """Suspend the acquisition while no majority votes, and resume it once one does."""
        if not acquisition.waits or acquisition.idle:
            return
        suspended = not self._can_enter(acquisition)
        if suspended and not acquisition.vote_set.suspended:
            self._suspend(acquisition)
        elif acquisition.vote_set.suspended and not suspended:
            self._resume(acquisition)

    def _suspend(self, acquisition: QuorumAcquisition) -> None:
        """No majority votes: leave the queues, so that no waiter of other clients is blocked."""
        for leave in acquisition.vote_set.suspend():
            if acquisition.asked[leave.server]:
                self._release_at(acquisition, leave.server, leave.upto, unheard)
        self._ask_again(acquisition, self._time())

    def _resume(self, acquisition: QuorumAcquisition) -> None:
        """A majority votes again, or may: ask all."""
        now = self._time()
        acquisition.vote_set.come_back()
        for server in range(self._membership.size):
            self._ask(acquisition, server, now)
        self._answer(acquisition)

    def _ask_again(self, acquisition: QuorumAcquisition, now: float) -> None:
        acquisition.said = [None] * self._membership.size  # earlier answers may not hold any more
        for server in range(self._membership.size):
            self._ask(acquisition, server, now)

    # The votes of an acquisition

    def _renew(  # which vote, and with what
        self,
        acquisition: QuorumAcquisition,
        server: int,
        ttl: int,
        fence: int,
        on_reply: OnReply,
        *,
        entered: bool = False,
    ) -> None:
        """Renew one vote, and make this fence known; ``entered``: the waiter is inside."""
        vote, connection, sent = (
            acquisition.vote_set.votes[server],
            self._connections[server],
            self._time(),
        )
        assert vote is not None
        number = vote.number
        acquisition.renewing[server] = True

        def renewed(still: Any, error: Exception | None) -> None:
            acquisition.renewing[server] = False
            if error is not None:
                on_reply(still, error)
                # Not at once: a server that refuses would be asked as often as it can answer.
                unanswered = partial(self._unanswered, acquisition, server, number)
                self._passes.call_at(self._time() + RETRY, unanswered)
                return
            now = connection.answered(sent)
            if still:
                until = sent + lasts(ttl) if ttl else 0.0
                acquisition.vote_set.renewed(server, number, until, fence)
            else:
                acquisition.vote_set.gone(server, number, now)
                if not acquisition.over:
                    self._ask_by(acquisition, server, now)
            on_reply(still, error)
            if not acquisition.over:
                self._look(acquisition)

        connection.asked()
        connection.member.renew(
            acquisition.request, number, ttl, fence, entered=entered, on_reply=renewed
        )

    def _unanswered(self, acquisition: QuorumAcquisition, server: int, number: int) -> None:
        if not acquisition.over:
            acquisition.vote_set.unanswered(server, number)
            self._look(acquisition)

    def _release_at(
        self,
        acquisition: QuorumAcquisition,
        server: int,
        upto: int,
        on_reply: OnReply,
    ) -> None:
        member = self._connections[server].member
        highest = acquisition.vote_set.highest
        member.release(acquisition.request, highest, upto, entered=OUTSIDE, on_reply=on_reply)

    # Timers

    def _look_after(self, queue: NameQueue) -> Iterator[int]:
        """Renew the votes that make no majority yet, and ask again in case a push was lost."""
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
                    self._ask(acquisition, server, now)
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
            self._renew(acquisition, server, acquisition.claim, 0, unheard)
        again = max(renew_at, now + third)
        return min(again, over_at) if over_at > now else again
