"""A client's questions to the members about its acquisitions, and their answers."""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Any, Final

from aiolock.errors import StoreError
from aiolock.store import PRIORITY, Waiter
from aiolock.stores._member import (
    OUTSIDE,
    Answer,
    Crowded,
    Heard,
    InLine,
    Marked,
    Refused,
    Silent,
    Voted,
)
from aiolock.stores.quorum._council import Council
from aiolock.stores.quorum._counts import unheard
from aiolock.stores.quorum._periods import ENDLESS, UNKNOWN, Period, period_of
from aiolock.stores.quorum._seat import RETRY
from aiolock.stores.quorum._standing import (
    JUST_AFTER,
    KEEP_ALIVE,
    Line,
    Standing,
    lasts,
)
from aiolock.stores.quorum._votes import GiveWay, Phase

SOON: Final = 0.02
"""Seconds until it is asked again if a vote that was to be given back does not stand any more."""


class Asking:
    """The acquisitions of one client, for all names; `Candidates` decides what its votes mean."""

    def __init__(self, council: Council) -> None:
        self._council = council
        self._seats = council.seats
        self._clocks = council.clocks
        self._time = council.time
        self._loop = asyncio.get_running_loop()
        self.standings: dict[Waiter, Standing] = {}
        self._lines: dict[str, Line] = {}
        self._seen = 0
        """The highest number of any vote that this client got."""

    def _look(self, standing: Standing, reason: str = "expired") -> None:
        """Act on the votes; ``reason`` says why a vote was taken away, if one was."""
        raise NotImplementedError

    def _answer(self, standing: Standing) -> None:
        """Tell the client what is known, once that is enough."""
        raise NotImplementedError

    def _ask(self, standing: Standing, server: int, now: float) -> None:
        """Ask the member for a vote, unless there is one, or a question for it is out."""
        ballot, seat = standing.ballot, self._seats[server]
        if standing.asking[server] or ballot.votes[server] is not None:
            return
        if standing.idle or standing.local or standing.over or not seat.in_reach:
            return
        if ballot.aside:
            standing.said[server] = standing.refused.get(server) or Silent(1, 0)  # as it would say
            self._loop.call_soon(self._answer, standing)
            return
        wait = standing.wait or standing.inside
        if not wait and standing.asked[server]:
            return  # once: it does not stand in line
        if seat.silent_until > now:
            standing.said[server] = Silent(1, 0)
            ballot.forgotten(server)
            self._ask_by(standing, server, seat.silent_until)
            self._loop.call_soon(self._answer, standing)
            return
        new = not standing.asked[server]
        if isinstance(standing.said[server], Crowded) and not any(standing.asking):
            # All have answered, and too few say "crowded": the waiter gets a place there as well.
            standing.admitted = True
        standing.asking[server] = standing.asked[server] = True
        standing.said[server] = None
        if new:
            standing.sent[server] = now
        standing.ask_at[server] = math.inf
        proposal = ballot.least(server) if standing.inside else self._proposal(standing, now)
        seat.asked()
        seat.member.vote(
            *(standing.stand, standing.ttl, proposal),
            wait=wait,
            most=0 if standing.inside or standing.admitted else standing.most,
            new=new,
            heard=partial(self._heard, standing, server, now),
        )

    def _ask_all(self, standing: Standing, now: float) -> None:
        """Ask for all votes of a newcomer: as `_ask` does for a waiter that has not asked yet."""
        stand, proposal = standing.stand, self._proposal(standing, now)
        asking, asked, sent = standing.asking, standing.asked, standing.sent
        ttl, wait, most, heard = standing.ttl, standing.wait, standing.most, self._heard
        for server, seat in enumerate(self._seats):
            if not seat.in_reach or seat.silent_until > now:
                self._ask(standing, server, now)
                continue
            asking[server] = asked[server] = True
            sent[server] = now
            seat.asked()
            told = partial(heard, standing, server, now)
            seat.member.vote(stand, ttl, proposal, wait=wait, most=most, new=True, heard=told)

    def _proposal(self, standing: Standing, now: float) -> int:
        """The number that is proposed for a vote: above all fences that were ever given out.

        It matters where the members have forgotten their last numbers. The ticket alone is too low
        then: it may be of a time before the last fences, if the waiter has waited through that.
        """
        asked = standing.stand.ticket - standing.stand.form.priority * PRIORITY
        return max(asked, self._clocks.now(now), self._seen + 1)

    def _heard(  # which question, and its answer
        self,
        standing: Standing,
        server: int,
        sent: float,
        answer: Answer | None,
        error: Exception | None,
    ) -> None:
        """A member has answered a question for a vote, or the question has failed."""
        self._answered(standing, server, sent, answer, error)
        if error is None:
            if standing.refused.pop(server, None) is not None:
                self._weigh(standing)
        elif standing.waits and self._seats[server].in_reach:  # else it is no answer of the member
            standing.refused[server] = error
            self._weigh(standing)
            self._loop.call_later(RETRY, self._may_vote, standing, server, error)

    def _may_vote(self, standing: Standing, server: int, error: Exception) -> None:
        """The member has refused a while ago; if it has to be asked whether it still does, ask."""
        if standing.refused.get(server) is error:
            del standing.refused[server]
            self._weigh(standing)

    def _answered(  # which question, and its answer
        self,
        standing: Standing,
        server: int,
        sent: float,
        answer: Answer | None,
        error: Exception | None,
    ) -> None:
        """The same, or a member has answered a waiter that gives way."""
        standing.asking[server] = False
        if not (isinstance(error, StoreError) and error.refused):
            standing.arrived[server] = True
        if answer is None:
            if not standing.over:
                standing.said[server] = error
                self._ask_by(standing, server, self._time() + RETRY)
                self._look(standing)
            return
        seat = self._seats[server]
        now = seat.answered(sent)
        self._clocks.heard(server, answer.now, now)
        ballot = standing.ballot
        if ballot.phase is Phase.OVER:
            return  # what releases it goes behind what had asked
        if isinstance(answer, Voted):
            if standing.stand.form.counts or ballot.may_count(server, answer.number):
                at_once = answer.lease in {standing.ttl, standing.claim}  # else some time ago
                given = answer.now if at_once else None
                self._voted(standing, server, answer.number, sent + lasts(answer.lease), given)
            else:  # it was to be given back, and the member has not heard of that
                self._give_way(standing, GiveWay(server, answer.number))
            if ballot.phase is Phase.ENTERED:
                return  # one more changes nothing
        elif isinstance(answer, InLine):
            when = standing.stands_in_line(server, answer, sent, now)
            self._lines[standing.stand.name].look_by(when, now)
            if not ballot.has_votes and not standing.stand.form.once:
                self._answer(standing)
                return
        else:
            self._not_now(standing, server, sent, answer)
        self._look(standing)

    def _not_now(
        self,
        standing: Standing,
        server: int,
        sent: float,
        answer: Silent | Crowded | Refused | Marked,
    ) -> None:
        """A member gives no vote and no place in line: it is asked again in a while."""
        now = self._time()
        standing.said[server] = answer
        when = now + (SOON if isinstance(answer, Refused) else RETRY)
        if isinstance(answer, Silent):
            standing.ballot.forgotten(server)
            seat = self._seats[server]
            when = seat.silent(answer.left) or when
            if answer.left < 0:
                seat.forgot()
        elif isinstance(answer, Marked):
            standing.knows(answer.number, sent + answer.left / 1000)
            when = now + answer.left / 1000 + JUST_AFTER
        self._ask_by(standing, server, when)

    def _ask_by(self, standing: Standing, server: int, when: float) -> None:
        if isinstance(standing.said[server], InLine):
            standing.said[server] = None  # it may have no place there, so it asks for itself
        standing.ask_at[server] = when
        line = self._lines.get(standing.stand.name)
        if line is not None:
            line.look_by(when, self._time())

    def _voted(  # where, which, and until when
        self, standing: Standing, server: int, number: int, deadline: float, given: int | None
    ) -> None:
        """A vote was given at ``given``, in µs of the member's clock; None if that is not known."""
        if standing.stand.form.counts:
            standing.ballot.counted(server, number, deadline)
            return
        self._seen = max(self._seen, number)
        now = self._time()
        standing.ballot.expire(now)
        period = self._period(standing, given, now)
        leave = standing.ballot.voted(server, number, deadline, period)
        if leave is not None:
            self._release_at(standing, server, leave.upto, unheard)

    def _period(self, standing: Standing, given: int | None, now: float) -> Period:
        """The period of a vote; once that is over, the waiter has to look after the vote."""
        every = standing.stand.form.period
        if not every:
            return ENDLESS
        period = UNKNOWN if given is None else period_of(given, every, now)
        self._lines[standing.stand.name].look_by(period.over_at, now)
        return period

    def _give_way(self, standing: Standing, step: GiveWay) -> None:
        server = step.server
        if not standing.wait:
            self._release_at(standing, server, step.vote, unheard)
            standing.said[server] = InLine(0, 0, 0)  # others come first, or it comes too early
            return
        sent = self._time()
        seat = self._seats[server]
        seat.asked()
        heard = partial(self._answered, standing, server, sent)
        standing.asking[server] = True
        seat.member.give_way(standing.stand, step.vote, heard)

    # Whether a majority votes

    def voting_changed(self) -> None:
        """Members have begun to vote, or ceased to."""
        for standing in list(self.standings.values()):
            self._weigh(standing)

    def _can_enter(self, standing: Standing) -> bool:
        """Whether a majority votes, as far as this acquisition knows."""
        refused, council = standing.refused, self._council
        if not refused or not council.decides:
            return council.decides
        votes = [seat.votes and seat.number not in refused for seat in self._seats]
        return votes.count(True) >= council.quorum

    def _weigh(self, standing: Standing) -> None:
        """Stand aside if no majority votes, and come back once one does."""
        if not standing.waits or standing.idle:
            return
        aside = not self._can_enter(standing)
        if aside and not standing.ballot.aside:
            self._step_aside(standing)
        elif standing.ballot.aside and not aside:
            self._join_again(standing)

    def _step_aside(self, standing: Standing) -> None:
        """No majority votes: leave the lines, so that no waiter of others is blocked."""
        for leave in standing.ballot.step_aside():
            if standing.asked[leave.server]:
                self._release_at(standing, leave.server, leave.upto, unheard)
        self._ask_again(standing, self._time())

    def _join_again(self, standing: Standing) -> None:
        """A majority votes again, or may: ask all."""
        now = self._time()
        standing.ballot.come_back()
        for server in range(self._council.size):
            self._ask(standing, server, now)
        self._answer(standing)

    def _ask_again(self, standing: Standing, now: float) -> None:
        standing.said = [None] * self._council.size  # what was said before may not hold any more
        for server in range(self._council.size):
            self._ask(standing, server, now)

    # Votes that there are

    def _renew(  # which vote, and with what
        self,
        standing: Standing,
        server: int,
        ttl: int,
        fence: int,
        heard: Heard,
        *,
        entered: bool = False,
    ) -> None:
        """Renew one vote, and tell the member this fence; ``entered``: also that it is inside."""
        vote, seat, sent = standing.ballot.votes[server], self._seats[server], self._time()
        assert vote is not None
        number = vote.number
        standing.renewing[server] = True

        def renewed(still: Any, error: Exception | None) -> None:
            standing.renewing[server] = False
            if error is not None:
                heard(still, error)
                # Not at once: a server that refuses would be asked as often as it can answer.
                self._loop.call_later(RETRY, self._unanswered, standing, server, number)
                return
            now = seat.answered(sent)
            if still:
                until = sent + lasts(ttl) if ttl else 0.0
                standing.ballot.renewed(server, number, until, fence)
            else:
                standing.ballot.gone(server, number, now)
                if not standing.over:
                    self._ask_by(standing, server, now)
            heard(still, error)
            if not standing.over:
                self._look(standing)

        seat.asked()
        seat.member.renew(standing.stand, number, ttl, fence, entered=entered, heard=renewed)

    def _unanswered(self, standing: Standing, server: int, number: int) -> None:
        if not standing.over:
            standing.ballot.unanswered(server, number)
            self._look(standing)

    def _release_at(
        self,
        standing: Standing,
        server: int,
        upto: int,
        heard: Heard,
    ) -> None:
        member = self._seats[server].member
        highest = standing.ballot.highest
        member.release(standing.stand, highest, upto, entered=OUTSIDE, heard=heard)

    # What is due by the clock

    def _look_after(self, line: Line) -> None:
        """Renew the votes that make no majority yet, and ask again in case a push was lost."""
        now, following = self._time(), math.inf
        for server, seat in enumerate(self._seats):
            first = True
            for standing in list(line.standings.values()):
                if standing.idle or standing.local or standing.ballot.aside:
                    continue
                vote = standing.ballot.votes[server]
                if vote is not None:
                    over_at = vote.period.over_at
                    if standing.waits:
                        following = min(following, self._keep(standing, server, now))
                    elif over_at <= now:
                        self._look(standing)
                    else:
                        following = min(following, over_at)
                    continue
                for_all = not first and isinstance(standing.said[server], InLine)
                due = standing.ask_at[server] + (KEEP_ALIVE if for_all else 0.0)
                first = False
                if due > now:
                    following = min(following, due)
                elif seat.in_reach:  # else it is asked as soon as it is
                    self._ask(standing, server, now)
                    following = min(following, now + RETRY)
        if following < math.inf:
            line.look_by(following, now)

    def _keep(self, standing: Standing, server: int, now: float) -> float:
        """Renew, in time, a vote of a waiter without a majority; returns when to look again."""
        vote, third = standing.ballot.votes[server], standing.claim / 3000
        assert vote is not None
        renew_at = vote.deadline - 2 * third
        over_at = vote.period.over_at
        if vote.deadline <= now or over_at <= now:
            self._look(standing)  # it is given back
        elif (
            renew_at <= now
            and not standing.renewing[server]
            and self._council.decides
            and self._seats[server].in_reach
        ):
            self._renew(standing, server, standing.claim, 0, unheard)
        again = max(renew_at, now + third)
        return min(again, over_at) if over_at > now else again
