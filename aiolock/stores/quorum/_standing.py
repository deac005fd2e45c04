"""One acquisition at all members: its votes, what each has said, and when to ask it again."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final

from aiolock._prompt import Prompt
from aiolock.store import CLAIM, Waiter
from aiolock.stores._member import Answer, InLine, Stand
from aiolock.stores.quorum._votes import Ballot, Phase

KEEP_ALIVE: Final = 60.0
"""Seconds after which everybody asks again, so that a line that still lives does not expire."""
JUST_AFTER: Final = 0.003
"""Seconds past the end of a lease at which to ask: it must have ended by the member's clock."""


def lasts(lease: int) -> float:
    """For how many seconds a lease of so many ms is certainly ours: as the engine reckons it."""
    return lease * 0.00099 - 0.002


def lease_until(deadline: float, since: float, most: int) -> int:
    """The longest lease, in ms, of which a client that had it since then makes no more of it."""
    return max(0, min(most, int((deadline - since + 0.002) / 0.00099 + 1e-6)))


class Standing:
    """One acquisition."""

    __slots__ = (
        "admitted",
        "ahead_at",
        "answers",
        "ask_at",
        "asked",
        "asking",
        "ballot",
        "bearer",
        "called",
        "entered_at",
        "given",
        "heard",
        "idle",
        "local",
        "mark",
        "most",
        "queued",
        "recalled_at",
        "renewing",
        "said",
        "sent",
        "stand",
        "ttl",
        "undecided",
        "wait",
    )

    def __init__(self, stand: Stand, ttl: int, servers: int, *, wait: bool, most: int) -> None:
        self.stand = stand
        self.ttl = ttl
        self.wait = wait
        self.most = most
        self.admitted = False
        """It waits, however many others do."""
        self.ballot = Ballot(servers, once=stand.form.once)
        self.asked = [False] * servers
        """Whether it was ever asked there, so that it is to be released there."""
        self.asking = [False] * servers
        """Whether a question is under way."""
        self.sent = [0.0] * servers
        """When it was asked last."""
        self.heard: list[tuple[float, int] | None] = [None] * servers
        """When that was asked which was answered last, and the member's clock then."""
        self.given = [0] * servers
        """When the vote was given that it has, by the member's clock, in ms; or before that."""
        self.said: list[Answer | Exception | None] = [None] * servers
        """What it was told last, where that was no vote."""
        self.ask_at = [math.inf] * servers
        """When to ask there again by itself."""
        self.renewing = [False] * servers
        self.answers: list[Prompt] = []
        """What its client waits for: more than one where it has asked more than once."""
        self.called = 0.0
        """When its client asked."""
        self.queued = False
        """Its client knows that it waits, so its grant is pushed, whatever is asked meanwhile."""
        self.entered_at = 0.0
        self.ahead_at = -math.inf
        """When the members were asked last whether it may be handed on."""
        self.bearer = stand.waiter
        """Who has it by these votes: another of the same client, where it was handed on."""
        self.undecided: asyncio.Future[int] | None = None
        """Its bearer has left, and waits for this; it is not known yet who is next."""
        self.local = False
        """It stands in no line, but behind one that has entered, and is of its own client."""
        self.idle = False
        """It gave back what it had, and its client has not asked again."""
        self.mark: tuple[int, float] | None = None
        """Who has done what it wants done once, by the fence, and until when that is known."""
        self.recalled_at = -math.inf
        """When the members were asked last whether that is done."""

    @property
    def waits(self) -> bool:
        """Whether it may still enter."""
        return self.ballot.phase is Phase.WAITING

    @property
    def inside(self) -> bool:
        """Whether it has entered."""
        return self.ballot.phase is Phase.ENTERED

    @property
    def over(self) -> bool:
        """Whether nothing can come of it any more."""
        return self.ballot.phase is Phase.OVER

    @property
    def is_waited_for(self) -> bool:
        """Whether its client waits for an answer."""
        answers = self.answers
        if len(answers) == 1:  # nearly always
            return not answers[0].done()
        return any(not answer.done() for answer in answers)

    def knows(self, fence: int, until: float) -> None:
        """It has heard of a mark: see `aiolock.stores.quorum._marks`."""
        if self.mark is None or self.mark[1] < until:
            self.mark = fence, until

    def tell(self, answer: object, *, at_once: bool = False) -> None:
        """Its client is answered; ``at_once``: its task goes on in this very call."""
        answers, self.answers = self.answers, []
        for each in answers:
            if each.done():
                continue
            if isinstance(answer, Exception):
                each.set_exception(answer)
            elif at_once:
                each.resolve(answer)
            else:
                each.set_result(answer)

    @property
    def claim(self) -> int:
        """The lease that a vote has until it has entered, in ms."""
        return self.stand.form.claim

    def began(self, server: int, now: int, received: float) -> float:
        """When a vote was given that is pushed, at the latest: at ``now``, by the member's clock.

        It was given before the push came. And so long after an answer of the member, whose question
        had been sent by then.
        """
        heard = self.heard[server]
        latest = self.sent[server] if heard is None else heard[0] + (now - heard[1]) / 1e6
        return min(latest, received)

    def stands_in_line(self, server: int, answer: InLine, sent: float, now: float) -> float:
        """Another has the vote there; when to ask again.

        Who is next asks when that lease ends: that is how a dead holder is noticed. Whoever is
        further back may not hear of hand-offs before it, so it asks often enough to learn of each
        claim before that ends.
        """
        self.said[server], self.heard[server] = answer, (sent, answer.now)
        until = answer.until if answer.place == 1 else min(answer.until, self.claim, CLAIM)
        self.ask_at[server] = now + min(until / 1000, KEEP_ALIVE) + JUST_AFTER
        return self.ask_at[server]


class Line:
    """One client's acquisitions of one name; the first asks for all of them."""

    def __init__(self, due: Callable[[Line], None], servers: int) -> None:
        self._due = due
        self.alone = [-math.inf] * servers
        """When each member was asked that said last that no other client stands in line there."""
        self.shared_until = -math.inf
        """Before that it is not tried to hand it on: others wait."""
        self.in_order = True
        """Whether each has come behind all that were there."""
        self.last = -(1 << 62)
        """The ticket of the last one."""
        self.timer_of_locals: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self.standings: dict[Waiter, Standing] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf

    def join(self, standing: Standing) -> bool:
        """It is new; whether each has come behind all that were there."""
        ticket = standing.stand.ticket
        self.in_order = self.in_order and ticket > self.last
        self.last = max(self.last, ticket)
        self.standings[standing.stand.waiter] = standing
        return self.in_order

    def leave(self, standing: Standing) -> bool:
        """It is over; whether nobody is left."""
        self.standings.pop(standing.stand.waiter, None)
        if not self.standings and (self._timer or self.timer_of_locals):
            self.close()
        return not self.standings

    def close(self) -> None:
        """Nobody is left."""
        for timer in (self._timer, self.timer_of_locals):
            if timer is not None:
                timer.cancel()
        self._timer = self.timer_of_locals = None
        self._timer_at = math.inf

    def look_by(self, when: float, now: float) -> None:
        """See by then who is to ask again."""
        if when < self._timer_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = when
            self._timer = self._loop.call_later(max(0.0, when - now), self._look)

    def _look(self) -> None:
        self._timer, self._timer_at = None, math.inf
        self._due(self)
