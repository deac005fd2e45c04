"""Handing on within one client: hand-offs that are not the members'.

Whoever has entered has the votes of a majority, and its client may let another of its own waiters
have the lock by these very votes. No member hears of that: to them the votes are still those of the
one that was voted for, until the last of this *run* has left. So the deadline stays what it was,
and what is said of the votes (renewed, taken away, lost) is of whoever has it by then.

* **The fences are known beforehand.** A majority of the votes has to stand, and their members to
  know the next fence, before anybody enters with it. So whoever is voted for later has a higher
  one, though nothing arrives that is sent after this.
* **Nobody else waits.** A majority has to have said so lately; else the votes are given back, and
  the members hand on. So whoever stands in line at a majority is overtaken for no longer than that.
* **Who comes meanwhile waits here,** without a place in line, for a short while: then it is told to
  the members, as it is at once where somebody else waits, and before the votes are given back. It
  has its ticket from when it came, so its place is the one that it would have had.
"""

from __future__ import annotations

import asyncio
import math
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
"""Seconds for which it is relied on that nobody else waits, from before that was asked."""
_AHEAD: Final = 64
"""Fences that are known before somebody has them."""
LAZY: Final = 0.05
"""Seconds for which a waiter stands in no line, at most."""
_SHARED: Final = 0.1
"""Seconds for which it is not tried again, where somebody else waits."""
_FAR: Final = 1.0
"""… or where the members answer too late for that."""
_UNDECIDED: Final = 0.02
"""Seconds for which a lock is nobody's, at most, before it is released."""
_MARGIN: Final = 4
"""It is handed on only while more than this part of a claim is left."""


class Handing(Marking):
    """The acquisitions of one client, by which it may hand locks on among them."""

    def __init__(self, council: Council, inbox: Inbox) -> None:
        super().__init__(council)
        self._inbox = inbox
        self._runs: dict[Waiter, Standing] = {}
        """By whom it was handed on to: what has the votes."""

    def leave(self, standing: Standing, *, entered: bool) -> asyncio.Future[int]:
        """It is over: released wherever it was asked for."""
        raise NotImplementedError

    def _abandon(self, standing: Standing, *, entered: bool) -> None:
        """It is over, and nobody waits for what the members say to that."""
        raise NotImplementedError

    def _has(self, waiter: Waiter) -> Standing | None:
        """What this waiter has, or waits with."""
        standing = self._runs.get(waiter) if self._runs else None
        if standing is None:
            standing = self.standings.get(waiter)
            if standing is not None and standing.bearer != waiter:
                return None  # it has left, and another has its votes
        return standing

    # Who comes meanwhile

    def _waits_here(self, line: Line, standing: Standing) -> bool:
        """Whether a newcomer waits behind one of its own client; and then it does."""
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
        """Let those stand in line that have waited here since then, at least."""
        now = self._time()
        for standing in list(line.standings.values()):
            if standing.local and standing.called <= since:
                standing.local = False
                standing.ballot.aside = not self._council.able
                if self._council.able:
                    self._ask_all(standing, now)

    def _line_up_behind(self, standing: Standing) -> None:
        """It is given back: who waits here behind it is to stand in line before that."""
        line = self._lines.get(standing.stand.name)
        if line is not None and len(line.standings) > 1:
            self._line_up(line)

    # Handing on

    def _hand_on(self, standing: Standing) -> asyncio.Future[int] | None:
        """Its bearer leaves: let the next of its client have it, where that may be.

        What the release will answer; None where it is to be released.
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
        """Whose turn it is of this client's, where it can be handed on to that one."""
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
        """Have the next fences known, and hear whether somebody else waits, before that is due."""
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
        """Nobody has it: the next has, once that is one of ours for sure."""
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
        waiter = taker.stand.waiter
        self._runs.pop(standing.bearer, None)
        called = taker.called
        self._abandon(taker, entered=False)
        standing.bearer, self._runs[waiter] = waiter, standing
        standing.entered_at = now
        if left is not None and not left.done():
            left.set_result(WAS_HOLDER)
        self._push(standing, waiter, called, fence, deadline)

    def _push(
        self, standing: Standing, waiter: Waiter, called: float, fence: int, deadline: float
    ) -> None:
        """Tell who has entered, that was queued before."""
        now = self._time()
        lease, since = lease_until(deadline, now, standing.ttl), now
        if lease < standing.claim:  # as of any grant that is pushed, after its question
            since = max(deadline - lasts(standing.claim), called)
            lease = lease_until(deadline, since, standing.claim)
        # Two µs earlier, for rounding: it must not seem to be ours for longer.
        when = max(int(since * 1e6) - 2, int(called * 1e6))
        stand = standing.stand
        self._inbox.granted(stand.name, waiter, stand.form, fence, lease, when)

    def _says_again(self, standing: Standing, ttl: int) -> Granted:
        """To one that asks though it was handed on to it: it has it."""
        lease = lease_until(standing.ballot.deadline or 0.0, self._time(), ttl)
        return Granted(standing.ballot.fence, lease)

    # What others ask

    def as_handed_on(self, status: Status) -> Status:
        """A status, with who of this client has it by the votes of another."""

        def present(party: Party) -> Party:
            standing = self.standings.get(Waiter(party.client, party.seq))
            if standing is None or not standing.inside:
                return party
            return replace(party, seq=standing.bearer.seq, fence=standing.ballot.fence)

        return replace(status, holders=tuple(map(present, status.holders)))

    def fences(self) -> dict[int, Waiter]:
        """Of what was handed on: by whose votes."""
        return {each.ballot.fence: each.stand.waiter for each in self._runs.values()}


def _alike(one: Standing, other: Standing) -> bool:
    """Whether one may have what the other has."""
    form: Form = one.stand.form
    same = form is other.stand.form or form == other.stand.form
    return same and form.plain and one.ttl == other.ttl
