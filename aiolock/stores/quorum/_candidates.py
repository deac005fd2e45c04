"""All acquisitions of one client: what follows from their votes, and what the client is told."""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import deque
from functools import partial
from typing import Final

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.store import (
    PRIORITY,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Busy,
    Done,
    Form,
    Full,
    Inbox,
    Queued,
    Waiter,
)
from aiolock.stores._member import LOST, OUTSIDE, UNBOUNDED, Crowded, Heard, Stand
from aiolock.stores.quorum._answers import Patience, denied, granted, is_due
from aiolock.stores.quorum._council import Council
from aiolock.stores.quorum._counts import Concluded, Renewing, Tally, unheard
from aiolock.stores.quorum._handing import Handing
from aiolock.stores.quorum._releases import Release, Releases
from aiolock.stores.quorum._seat import Seat
from aiolock.stores.quorum._standing import Line, Standing, lasts, lease_until
from aiolock.stores.quorum._votes import Enter, GiveWay, Raise, Recall

_LATELY: Final = 1.0
"""Seconds after a release in which a push about its waiter may have been sent before it."""
_COME_BACK: Final = 1 << 40
"""Numbers from here on are of waiters that have come back: no client counts as far as that."""
_FEW: Final = 2
"""With up to so many acquisitions, each goes on in the very call that brings its votes."""


class Candidates(Handing):
    """The open acquisitions, of all names."""

    def __init__(self, council: Council, inbox: Inbox) -> None:
        super().__init__(council, inbox)
        self._last_tickets: dict[int, int] = {}
        """The last ticket for each priority."""
        self._patience = Patience(council)
        self._releases = Releases(self._time)
        self._renewals = dict[Waiter, Renewing]()
        """The last renewal of each waiter that has entered."""
        self._newest = 0
        """The highest number of a waiter that has asked: a lower one has asked before."""
        self._come_back = itertools.count(_COME_BACK)
        self._left: set[Waiter] = set()
        """The waiters that were released lately."""
        self._left_at: deque[tuple[float, Waiter]] = deque()
        """When each of these waiters was released, in order."""

    # What a client asks

    def acquire(
        self,
        name: str,
        waiter: Waiter,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        most: int,
    ) -> Prompt:
        """See `Store.acquire`."""
        now, answer = self._time(), Prompt(loop=self._loop)
        standing = self._has(waiter)
        if standing is None:
            stand = Stand(name, self._named(waiter), form, ticket or self._ticket(form, now))
            most = 0 if ticket else most
            standing = Standing(stand, ttl, self._council.size, wait=wait, most=most, own=waiter)
            self._begin(standing, answer, now)
            return answer
        if standing.own != waiter:
            answer.set_result(self._says_again(standing, ttl))
            return answer
        standing.local = False
        if standing.idle:
            standing.idle = standing.queued = False
            if self._can_enter(standing):
                standing.ballot.come_back()
        self._is_asked(standing, answer, now)
        if standing.inside:
            self._loop.call_soon(self._answer, standing)
        self._ask_again(standing, now)
        return answer

    def _named(self, waiter: Waiter) -> Waiter:
        """What the members call it. Its first acquisition may have been released for good."""
        if waiter.seq > self._newest:
            self._newest = waiter.seq
            return waiter
        return Waiter(waiter.client, next(self._come_back))

    def _begin(self, standing: Standing, answer: Prompt, now: float) -> None:
        """A newcomer asks all members, unless it waits at this client."""
        name, waiter = standing.stand.name, standing.stand.waiter
        self.standings[waiter] = standing
        if standing.own != waiter:
            self._runs[standing.own] = standing
        line = self._lines.get(name)
        if line is None:
            line = self._lines[name] = Line(self._look_after, self._council.size)
        in_order = line.join(standing)
        self._is_asked(standing, answer, now)
        if not self._council.decides:
            standing.ballot.aside = True
            self._ask_again(standing, now)
        elif not (in_order and self._waits_here(line, standing)):
            self._ask_all(standing, now)

    def _is_asked(self, standing: Standing, answer: Prompt, now: float) -> None:
        if not standing.is_waited_for:
            standing.called = now  # of several questions the first counts
            standing.answers.clear()
        standing.answers.append(answer)
        self._patience.wait_for(answer, now)

    def _ticket(self, form: Form, now: float) -> int:
        """A newcomer's ticket: behind all earlier ones of its priority."""
        last = self._last_tickets.get(form.priority, 0)
        ticket = max(self._council.clocks.now(now) + form.priority * PRIORITY, last + 1)
        self._last_tickets[form.priority] = ticket
        return ticket

    # What the members push

    def granted(self, server: int, waiter: Waiter, number: int, lease: int, now: int) -> None:
        """A member has voted for a waiter that stood in line."""
        standing = self.standings[waiter]
        standing.arrived[server] = True
        began = standing.began(server, now, self._time())
        self._voted(standing, server, number, began + lasts(lease), now)
        if not standing.inside:
            self._look(standing)

    def foreign(self, server: int, name: str, waiter: Waiter, form: Form) -> None:
        """A member has voted for an ended waiter: it has not heard of the end, or forgot it."""
        self._forget(self._time())
        if waiter in self._left:
            return  # its release was not there yet, and is by now, or will be
        member = self._seats[server].member
        stand = Stand(name, waiter, form, 0)
        member.release(stand, 0, UNBOUNDED, entered=OUTSIDE, heard=unheard)

    def inquired(self, server: int, waiter: Waiter, number: int) -> None:
        """A waiter with a lower ticket wants this vote."""
        standing = self.standings.get(waiter)
        if standing is not None:
            standing.ballot.inquired(server, number)
            self._look(standing)

    def may_be_inquired(self, server: int) -> None:
        """Pushes of that member may be lost, so it may have inquired.

        Who is short of a majority gives its vote back there. If nobody comes before it, the member
        votes for it once more, in the same step.
        """
        for standing in list(self.standings.values()):
            vote, counts = standing.ballot.votes[server], standing.stand.form.counts
            if vote is not None and standing.waits and standing.wait and not counts:
                standing.ballot.inquired(server, vote.number)
                self._look(standing)

    def vote_lost(self, server: int, name: str, waiter: Waiter, number: int, reason: str) -> None:
        """A vote was taken away."""
        now = self._time()
        standing = self.standings.get(waiter)
        if standing is not None:
            standing.ballot.gone(server, number, now)
            self._ask_by(standing, server, now)
            self._look(standing, reason)
        line = self._lines.get(name)
        if line is not None and reason == "expired":
            # The member took this client for stuck, so all its waiters have left the line.
            for other in list(line.standings.values()):
                self._ask(other, server, now)

    def closed(self, name: str) -> None:
        """A member gives no votes for a while: the first waiter asks for how long."""
        if name in self._lines:
            self._inbox.done(name)

    def requested(self, waiter: Waiter) -> None:
        """A client asks this waiter to let go; several members push that."""
        standing = self.standings.get(waiter)
        if standing is not None and standing.inside:
            self._inbox.requested(standing.stand.name, standing.bearer, standing.ballot.fence)

    # Members in reach

    def forget_clock(self, server: int) -> None:
        """The server was restarted or replaced, so what is known of its clock is void."""
        for standing in self.standings.values():
            standing.heard[server] = None

    def ask_there(self, server: int) -> None:
        """All waiters without a vote there ask: a push may be lost, or they did not ask before."""
        now = self._time()
        for standing in list(self.standings.values()):
            self._ask(standing, server, now)
            if standing.ballot.stuck:
                self._look(standing)  # it may have to tell the fence there

    def out_of_reach(self) -> None:
        """A member does not answer, and a majority does: no waiter waits for its answer."""
        for standing in list(self.standings.values()):
            if not standing.over:
                self._look(standing)

    # What follows from the votes

    def _look(self, standing: Standing, reason: str = "expired") -> None:
        if standing.waits:
            if standing.mark is not None:
                self._mark_votes(standing)
            steps = standing.ballot.look(self._time(), self._reaches)
            if standing.stand.form.once and Recall() not in steps:
                standing.recalled_at = -math.inf  # the answers to come were asked for too soon
            for step in steps:
                if isinstance(step, Enter):
                    self._enter(standing, step.fence)
                    return
                if isinstance(step, Recall):
                    self._recall(standing)
                    continue
                if isinstance(step, Raise):
                    self._renew(standing, step.server, standing.claim, step.fence, unheard)
                else:
                    self._give_way(standing, step)
            if standing.ballot.has_votes and not is_due(standing, self._seats):
                line = self._lines[standing.stand.name]
                line.look_by(self._time() + standing.claim / 3000, self._time())
            self._answer(standing)
        elif standing.inside:
            self._look_inside(standing, reason)

    def _reaches(self, server: int) -> bool:
        return self._seats[server].in_reach

    def _look_inside(self, standing: Standing, reason: str) -> None:
        for step in standing.ballot.look(self._time()):
            assert isinstance(step, GiveWay), "it is inside already"
            self._give_way(standing, step)
        deadline = standing.ballot.deadline
        if deadline is not None and deadline >= standing.promised:
            return
        name, waiter, fence = standing.stand.name, standing.bearer, standing.ballot.fence
        if deadline is None:
            # The votes left are no majority, and no later vote replaces one that was counted.
            self._abandon(standing, entered=True)
            self._inbox.lost(name, waiter, fence, reason)
        else:
            # Said now, and not when it is over: a timer may fire late, if the loop is blocked.
            standing.promised = deadline
            self._inbox.shortened(name, waiter, fence, deadline)

    def _enter(self, standing: Standing, fence: int) -> None:
        """The waiter has entered: tell its client, by the answer that is due or by a push."""
        now, deadline = self._time(), standing.ballot.deadline
        assert deadline is not None
        standing.entered_at, standing.promised = now, deadline
        self._prolong(standing, deadline, now)
        if standing.is_waited_for:
            standing.tell(granted(standing, deadline), at_once=len(self.standings) <= _FEW)
            if not standing.queued or standing.over:
                return
        self._push(standing, standing.own, standing.called, fence, deadline)

    def _answer(self, standing: Standing) -> None:
        if standing.over or standing.idle:
            return
        if not standing.is_waited_for:
            once = standing.stand.form.once
            if once and isinstance(denied(standing, self._seats), Done):
                self._inbox.done(standing.stand.name)  # the client asks, and gets the answer
            return
        if standing.inside:
            deadline = standing.ballot.deadline or 0.0
            standing.promised = max(standing.promised, deadline)
            standing.tell(granted(standing, deadline))
        elif (answer := denied(standing, self._seats)) is not None:
            if isinstance(answer, Queued):
                standing.queued = standing.admitted = True
                self._ask_the_crowded(standing)
            standing.tell(answer)
            if isinstance(answer, Done):
                self._write_back(standing)
            if isinstance(answer, Busy | Full | Done):
                self._abandon(standing, entered=False)

    def _ask_the_crowded(self, standing: Standing) -> None:
        """Ask the members that had no place: other members have let the waiter stand in line."""
        for server, said in enumerate(standing.said):
            if isinstance(said, Crowded):
                self._ask(standing, server, self._time())

    # Renewing

    def renew(self, waiter: Waiter, fence: int, ttl: int, concluded: Concluded) -> None:
        """One renewal of `Store.renew`: True, False, or None if nobody knows."""
        standing = self._has(waiter)
        if standing is None or not standing.inside or standing.ballot.fence != fence:
            concluded(False)  # noqa: FBT003  # what is known
            return
        if standing.stand.form.counts:
            concluded(True)  # noqa: FBT003  # it was counted, and stays so
            return
        held = standing.ballot.together  # a run begins once a majority has confirmed these
        servers = [server for server in held if self._seats[server].in_reach]
        until = self._time() + lasts(ttl)
        renewing = self._renewals[standing.stand.waiter] = Renewing(
            standing, servers, ttl, until, concluded
        )
        for server in servers:
            self._renew(standing, server, ttl, fence, renewing.heard, entered=True)
        renewing.look()

    def _voted(
        self, standing: Standing, server: int, number: int, deadline: float, given: int | None
    ) -> None:
        super()._voted(standing, server, number, deadline, given)
        renewing = self._renewals.get(standing.stand.waiter)
        if renewing is not None and renewing.takes_in(server):
            fence, heard = standing.ballot.fence, renewing.heard
            self._renew(standing, server, renewing.ttl, fence, heard, entered=True)
        elif standing.inside:
            self._prolong(standing, standing.ballot.deadline or 0.0, self._time())

    def _prolong(self, standing: Standing, deadline: float, now: float) -> None:
        """Renew the votes that end long before the deadline of the others, up to that.

        A vote that is pushed lasts for a claim. The holder may not be due to renew before that is
        over, and then its server would take it for stuck. That it is inside is not said by this:
        its client may still find that it is too late.
        """
        ballot, form = standing.ballot, standing.stand.form
        if form.period or form.counts:  # a run is confirmed before it begins
            return
        soon = deadline - form.claim / 3000
        for server, vote in enumerate(ballot.votes):
            if vote is None or vote.deadline >= soon:
                continue
            lease = lease_until(deadline, now, self._council.charter.longest)
            if lease and self._seats[server].in_reach:
                self._renew(standing, server, lease, ballot.fence, unheard)

    # The end

    def release(
        self, name: str, waiter: Waiter, form: Form, fence: int, *, entered: bool, lost: bool
    ) -> asyncio.Future[int]:
        """See `Store.release`."""
        standing = self._has(waiter)
        mine = standing is not None and standing.inside and standing.ballot.fence == fence
        if fence and not mine:
            return self._at_once(WAS_ABSENT)
        if standing is None and waiter in self.standings:
            return self._at_once(WAS_ABSENT)  # it has left, and another waiter has its votes
        if fence and entered and standing is not None:
            handed = self._hand_on(standing)
            if handed is not None:
                return handed
        if standing is None:
            stand = Stand(name, waiter, form, 0)
            standing = Standing(stand, form.claim, self._council.size, wait=False, most=0)
            standing.asked = [seat.is_joined for seat in self._seats]
            return self.leave(standing, entered=False, again=False)
        if fence and not entered and standing.bearer == standing.own:
            return self._give_back(standing)
        return self.leave(standing, entered=entered, lost=lost)

    def _give_back(self, standing: Standing) -> asyncio.Future[int]:
        """It was entered too late: the client asks again, with the same ticket."""
        tally = Tally(self._council.quorum, WAS_HOLDER, self._council.size)
        standing.idle = True
        renewing = self._renewals.pop(standing.stand.waiter, None)
        if renewing is not None:
            renewing.give_back()
        self._line_up_behind(standing)
        leaves = [each for each in standing.ballot.give_back() if standing.asked[each.server]]
        tally.expect(len(leaves))
        for each in leaves:
            self._release_at(standing, each.server, each.upto, tally.heard)
        return tally.future

    def leave(
        self, standing: Standing, *, entered: bool, lost: bool = False, again: bool = True
    ) -> asyncio.Future[int]:
        """End an acquisition: release it at each member that was asked, in whatever state.

        ``again``: a release that fails is sent again, where the member may have anything of it.
        """
        ballot, inside = standing.ballot, standing.inside
        if standing.local:
            self._end(standing)
            return self._at_once(WAS_QUEUED)
        if inside:
            was = WAS_HOLDER
            self._line_up_behind(standing)
        else:
            was = WAS_QUEUED if any(standing.said) or ballot.has_votes else WAS_ABSENT
        self._end(standing)
        left, standing.undecided = standing.undecided, None
        stand, now = standing.stand, self._time()
        servers = standing.asked.count(True)  # how many were asked
        if not servers:
            return self._at_once(WAS_ABSENT)
        deadline = ballot.deadline
        ended = deadline is None or deadline <= now
        held = len(ballot.votes) - ballot.votes.count(None)
        at_once = len(self.standings) <= _FEW
        tally = Tally(self._council.quorum, was, held, lost=ended, at_once=at_once)
        tally.expect(servers)
        since = OUTSIDE
        if inside and entered:
            inside_for = max(0, int((now - standing.entered_at) * 1000))
            since = LOST if lost or ended else inside_for
        highest = ballot.highest
        for seat, asked, vote in zip(self._seats, standing.asked, ballot.votes, strict=True):
            if not asked:
                continue
            server = seat.number
            counts = vote is not None and not stand.form.counts
            heard = tally.heard_of if counts else tally.heard
            nothing = not (standing.arrived[server] or standing.asking[server])
            if again and not nothing:
                heard = partial(self._released, standing, seat, since, now, heard)
            seat.asked()
            seat.member.release(stand, highest, UNBOUNDED, entered=since, heard=heard)
        if left is not None:
            tally.future.add_done_callback(partial(_pass_to, left))
        return tally.future

    def _released(  # noqa: PLR0917  # which release, and its answer
        self,
        standing: Standing,
        seat: Seat,
        since: int,
        at: float,
        heard: Heard,
        was: int | None,
        error: Exception | None,
    ) -> None:
        if error is not None:
            lasts_for, vote = standing.ttl / 1000, standing.ballot.votes[seat.number]
            if vote is not None:
                lasts_for = max(lasts_for, vote.deadline - at)
            highest = standing.ballot.highest
            self._releases.keep(Release(seat, standing.stand, highest, since, at, lasts_for))
            self._left.discard(standing.stand.waiter)  # a vote for it is to be released at once
        heard(was, error)

    def _end(self, standing: Standing) -> None:
        standing.ballot.leave()
        stand = standing.stand
        if not standing.local:
            self._remember(stand.waiter, self._time())
        self.standings.pop(stand.waiter, None)
        self._renewals.pop(stand.waiter, None)
        if standing.bearer != stand.waiter:
            self._runs.pop(standing.bearer, None)
        line = self._lines.get(stand.name)
        if line is not None and line.leave(standing):
            del self._lines[stand.name]
        if standing.answers:
            standing.tell(Busy(0))  # it was released before it was answered

    def _remember(self, waiter: Waiter, now: float) -> None:
        """Remember that a waiter was released, and forget those that were released long ago."""
        self._left.add(waiter)
        self._left_at.append((now, waiter))
        self._forget(now)

    def _forget(self, now: float) -> None:
        left_at = self._left_at
        while left_at and left_at[0][0] < now - _LATELY:
            self._left.discard(left_at.popleft()[1])

    def _abandon(self, standing: Standing, *, entered: bool) -> None:
        """End an acquisition without waiting for the members' answers."""
        self.leave(standing, entered=entered).add_done_callback(_retrieve)

    def _at_once(self, was: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        self._loop.call_soon(_resolve, future, was)
        return future

    def close(self) -> None:
        """End all, and stop all timers: what members still answer has no consequences.

        What is undecided is released. Of all else the members hear that this client has gone.
        """
        standings, lines = list(self.standings.values()), list(self._lines.values())
        # Before any release: it would have those behind it stand in line.
        self.standings.clear()
        self._lines.clear()
        for line in lines:
            line.close()
        self._settle_all()
        for standing in standings:
            if standing.undecided is not None:
                self._abandon(standing, entered=True)
            else:
                standing.ballot.leave()
                standing.tell(StoreError("the client was closed"))
        self._releases.close()
        self._patience.close()


def _retrieve(future: asyncio.Future[int]) -> None:
    if not future.cancelled():
        future.exception()


def _pass_to(left: asyncio.Future[int], released: asyncio.Future[int]) -> None:
    if left.done() or released.cancelled():
        left.cancel()
    elif (error := released.exception()) is not None:
        left.set_exception(error)
    else:
        left.set_result(released.result())


def _resolve(future: asyncio.Future[int], was: int) -> None:
    if not future.done():
        future.set_result(was)
