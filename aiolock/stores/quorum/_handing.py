"""Hand-offs within one client, without the members.

A waiter that has entered has the votes of a majority, and its client may let another of its own
waiters have the lock by these very votes. No member hears of that: for the members the votes still
belong to the first waiter, until the last waiter of this *run* has left. So the deadline stays as
it was, and news of the votes (renewed, taken away, lost) concerns the waiter that holds the lock
by then, the *bearer*.

* **The fences are known beforehand.** A majority of the votes has to stand, and their members have
  to know the next fence, before a waiter enters with it. So any later vote has a higher number,
  even if no message that is sent after this arrives.
* **No other client waits.** A majority has to have said so lately; else the votes are given back,
  and the members hand on. So a waiter that stands in line at a majority is not overtaken for longer
  than that.
* **A new waiter waits at its client** during a run, without a place in line, for a short while.
  Then its client asks the members for it; it asks them at once if another client waits, and before
  the votes are given back. The ticket is from when the waiter came, so its place is the one that it
  would have had.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator
from dataclasses import replace
from functools import partial
from typing import Final

from aiolock.store import WAS_HOLDER, Form, Granted, Inbox, Party, Queued, Status, Waiter
from aiolock.stores._member import GONE, SHARED
from aiolock.stores.quorum._answers import ASK_AGAIN
from aiolock.stores.quorum._council import Council
from aiolock.stores.quorum._marks import Marking
from aiolock.stores.quorum._standing import Line, Standing, lasts, lease_until

FRESH: Final = 0.01
"""Seconds for which "no other client waits" is relied on, from before that was asked."""
_AHEAD: Final = 64
"""How many fences the members know in advance."""
LAZY: Final = 0.05
"""Seconds for which a waiter may wait at its client, without a place in line."""
_SHARED: Final = 0.1
"""Seconds in which no hand-off is tried after a member has said that another client waits."""
_FAR: Final = 1.0
"""The same after the members have answered too late for a hand-off."""
_UNDECIDED: Final = 0.02
"""Seconds for which the next bearer may be undecided before the lock is released."""
_MARGIN: Final = 4
"""A hand-off needs at least a claim divided by this to be left of the deadline."""


class Handing(Marking):
    """The acquisitions of one client, among which it may hand locks on."""

    def __init__(self, council: Council, inbox: Inbox) -> None:
        super().__init__(council)
        self._inbox = inbox
        self._runs: dict[Waiter, Standing] = {}
        """Bearers after a hand-off, with the acquisition whose votes they have; and waiters that
        have come back, with the acquisition that has another number at the members."""

    def leave(self, standing: Standing, *, entered: bool) -> asyncio.Future[int]:
        """End an acquisition: release it at each member that was asked."""
        raise NotImplementedError

    def _abandon(self, standing: Standing, *, entered: bool) -> None:
        """End an acquisition without waiting for the members' answers."""
        raise NotImplementedError

    def _has(self, waiter: Waiter) -> Standing | None:
        """The acquisition that this waiter bears, or waits with."""
        standing = self._runs.get(waiter) if self._runs else None
        if standing is None:
            standing = self.standings.get(waiter)
            if standing is not None and standing.bearer != waiter:
                return None  # it has left, and another waiter has its votes
        return standing

    # Waiters that come during a run

    def _waits_here(self, line: Line, standing: Standing) -> bool:
        """Whether a newcomer waits here, behind a waiter that has entered; then it is set up."""
        if len(line.standings) == 1:
            return False
        first, now = next(iter(line.standings.values())), standing.called
        if not first.inside or not _alike(first, standing) or not standing.wait or standing.most:
            return False
        if now < line.shared_until or not self._is_alone(line, now):
            return False
        standing.local = standing.queued = True
        standing.tell(Queued(standing.stand.ticket, 2, ASK_AGAIN, int(now * 1e6)))
        if line.timer_of_locals is None:
            line.timer_of_locals = self._loop.call_later(LAZY, self._look_at_locals, line)
        return True

    def _look_at_locals(self, line: Line) -> None:
        line.timer_of_locals = None
        now = self._time()
        self._line_up(line, since=now - LAZY / 2)
        if any(each.local for each in line.standings.values()):
            line.timer_of_locals = self._loop.call_later(LAZY / 2, self._look_at_locals, line)

    def _line_up(self, line: Line, since: float = math.inf) -> None:
        """Ask the members for the waiters that have waited here since ``since``, or longer."""
        now = self._time()
        for standing in list(line.standings.values()):
            if standing.local and standing.called <= since:
                standing.local = False
                standing.ballot.aside = not self._council.decides
                if self._council.decides:
                    self._ask_all(standing, now)

    def _line_up_behind(self, standing: Standing) -> None:
        """The votes are to be given back: before that, those behind them have to stand in line."""
        line = self._lines.get(standing.stand.name)
        if line is not None and len(line.standings) > 1:
            self._line_up(line)

    # Handing on

    def _hand_on(self, standing: Standing) -> asyncio.Future[int] | None:
        """The bearer leaves: let the next waiter of this client have the lock, if it may.

        Returns the answer to the release; None if the votes are to be released.
        """
        line = self._lines.get(standing.stand.name)
        if line is None or len(line.standings) == 1 or standing.undecided is not None:
            return None
        now = self._time()
        if now < line.shared_until or self._next(line, standing) is None:
            return None
        standing.undecided = left = self._loop.create_future()
        self._ask_ahead(standing, now)
        self._decide(line, standing)
        if standing.undecided is left:
            self._loop.call_later(_UNDECIDED, partial(self._is_late, line, standing, left))
        return left

    def _next(self, line: Line, standing: Standing) -> Standing | None:
        """The next waiter of this client, if the lock can be handed on to it."""
        if not line.in_order:
            return None
        waiting = iter(line.standings.values())
        if next(waiting) is not standing:
            return None
        taker = next(waiting, None)
        if taker is None or not taker.waits or taker.idle or taker.ballot.aside:
            return None
        ready = taker.queued and taker.wait and not taker.is_waited_for
        return taker if ready and _alike(standing, taker) else None

    def _is_alone(self, line: Line, now: float) -> bool:
        since = now - FRESH
        return sum(asked >= since for asked in line.alone) >= self._council.quorum

    def _ask_ahead(self, standing: Standing, now: float) -> None:
        """In advance, make the next fences known, and ask whether another client waits."""
        ballot = standing.ballot
        if now - standing.ahead_at < FRESH / 3 and ballot.highest > ballot.fence + _AHEAD // 2:
            return
        standing.ahead_at = now
        for step in ballot.reserve(ballot.fence + _AHEAD):
            seat = self._seats[step.server]
            if seat.in_reach:
                heard = partial(self._reserved, standing, step.server, step.vote, step.fence, now)
                seat.asked()
                seat.member.reserve(standing.stand, step.vote, step.fence, heard)

    def _reserved(  # noqa: PLR0917  # which question, and its answer
        self,
        standing: Standing,
        server: int,
        number: int,
        fence: int,
        sent: float,
        answer: int | None,
        error: Exception | None,
    ) -> None:
        if error is None:
            now = self._seats[server].answered(sent)
            line = self._lines.get(standing.stand.name)
            if answer == GONE:
                standing.ballot.gone(server, number, now)
                if standing.inside:
                    self._ask_by(standing, server, now)
            else:
                standing.ballot.renewed(server, number, -math.inf, fence)
            if line is not None:
                self._heard_of_others(line, server, sent, now, answer)
                if standing.undecided is not None:
                    self._decide(line, standing)
        if not standing.over:
            self._look(standing)

    def _heard_of_others(
        self, line: Line, server: int, sent: float, now: float, answer: int | None
    ) -> None:
        if answer == SHARED:
            line.alone = [-math.inf] * len(line.alone)
            line.shared_until = now + _SHARED
            self._line_up(line)
        elif answer != GONE:
            line.alone[server] = max(line.alone[server], sent)

    def _is_late(self, line: Line, standing: Standing, left: asyncio.Future[int]) -> None:
        if standing.undecided is left:
            line.shared_until = self._time() + _FAR
            self._abandon(standing, entered=True)

    def _decide(self, line: Line, standing: Standing) -> None:
        """The bearer has left: let the next waiter have the lock once it is surely its turn."""
        now, ballot = self._time(), standing.ballot
        taker = self._next(line, standing)
        deadline = ballot.deadline or 0.0
        if (
            taker is None
            or now < line.shared_until
            or deadline - now < standing.claim / 1000 / _MARGIN
        ):
            self._abandon(standing, entered=True)
            return
        if not self._is_alone(line, now):
            return
        fence = ballot.hand_on(now)
        if not fence:
            return
        left, standing.undecided = standing.undecided, None
        waiter = taker.own
        self._runs.pop(standing.bearer, None)
        called = taker.called
        self._abandon(taker, entered=False)
        standing.bearer, self._runs[waiter] = waiter, standing
        standing.entered_at, standing.promised = now, deadline
        if left is not None and not left.done():
            left.set_result(WAS_HOLDER)
        self._push(standing, waiter, called, fence, deadline)

    def _push(
        self, standing: Standing, waiter: Waiter, called: float, fence: int, deadline: float
    ) -> None:
        """Tell a queued waiter that it has entered."""
        now = self._time()
        lease, since = lease_until(deadline, now, standing.ttl), now
        if lease < standing.claim:  # as for any pushed grant, no earlier than its question
            since = max(deadline - lasts(standing.claim), called)
            lease = lease_until(deadline, since, standing.claim)
        # Two µs earlier, for rounding: it must not seem to be ours for longer.
        when = max(int(since * 1e6) - 2, int(called * 1e6))
        stand = standing.stand
        self._inbox.granted(stand.name, waiter, stand.form, fence, lease, when)

    def _says_again(self, standing: Standing, ttl: int) -> Granted:
        """The answer to a waiter that asks after the lock was handed on to it: it has the lock."""
        deadline = standing.ballot.deadline or 0.0
        standing.promised = max(standing.promised, deadline)
        lease = lease_until(deadline, self._time(), ttl)
        return Granted(standing.ballot.fence, lease)

    # Questions of other clients

    def as_handed_on(self, status: Status) -> Generator[int, None, Status]:
        """A status, part by part, that shows the bearer in place of the waiter whose votes it has.

        A waiter that has come back has the number by which its client knows it.
        """

        def present(party: Party) -> Party:
            standing = self.standings.get(Waiter(party.client, party.seq))
            if standing is None:
                return party
            fence = standing.ballot.fence if party.fence and standing.inside else party.fence
            return replace(party, seq=standing.bearer.seq, fence=fence)

        holders, waiters = list[Party](), list[Party]()
        for shown, parties in ((holders, status.holders), (waiters, status.waiters)):
            for party in parties:
                shown.append(present(party))
                yield len(shown) % 4 == 0
        return replace(status, holders=tuple(holders), waiters=tuple(waiters))

    def fences(self) -> dict[int, Waiter]:
        """The fences that were handed on, with the waiter whose votes they rest on."""
        runs = self._runs.values()
        return {each.ballot.fence: each.stand.waiter for each in runs if each.inside}


def _alike(one: Standing, other: Standing) -> bool:
    """Whether one waiter may take over the votes of the other."""
    form: Form = one.stand.form
    same = form is other.stand.form or form == other.stand.form
    return same and form.plain and one.ttl == other.ttl
