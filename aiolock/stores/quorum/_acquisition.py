"""One acquisition at all members: its votes, the answers, and when to ask again."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from aiolock import protocol
from aiolock._prompt import Prompt
from aiolock.protocol import CLAIM, WaiterId
from aiolock.stores._member import Answer, InQueue, VoteRequest
from aiolock.stores.quorum._votes import Phase, VoteSet

KEEP_ALIVE: Final = protocol.KEEP_ALIVE / 1000
"""Seconds after which every waiter asks again, so that a queue in use does not expire."""
JUST_AFTER: Final = 0.003
"""Seconds to wait past the end of a lease: it must have ended by the member's clock."""


def lease_until(deadline: float, since: float, most: int) -> int:
    """The longest lease (ms) from ``since`` that ends by ``deadline`` as a client computes it."""
    return max(0, min(most, int((deadline - since + 0.002) / 0.00099 + 1e-6)))


class QuorumAcquisition:
    """One acquisition."""

    __slots__ = (
        "admitted",
        "ahead_at",
        "answers",
        "arrived",
        "ask_at",
        "asked",
        "asking",
        "called",
        "entered_at",
        "holder",
        "idle",
        "last_answer",
        "local",
        "mark",
        "most",
        "own",
        "promised",
        "queued",
        "recalled_at",
        "refused",
        "renewing",
        "request",
        "said",
        "sent",
        "ttl",
        "undecided",
        "vote_set",
        "wait",
    )

    def __init__(  # the request
        self,
        request: VoteRequest,
        ttl: int,
        servers: int,
        *,
        wait: bool,
        most: int,
        own: WaiterId | None = None,
        counts: list[int] | None = None,
    ) -> None:
        self.request = request
        self.own = own or request.waiter
        """The waiter in the numbering of its client. At the members it has another number if it has
        come back after it was released for good: a late copy of that release must not find it."""
        self.ttl = ttl
        self.wait = wait
        self.most = most
        self.admitted = False
        """It has a place in a queue, so `max_waiters` does not apply to it any more."""
        form = request.form
        self.vote_set = VoteSet(servers, once=form.once, periodic=form.period > 0, counts=counts)
        self.asked = [False] * servers
        """Whether the member was ever asked, so that it has to be sent a release."""
        self.arrived = [False] * servers
        """Whether the member may have a vote or a place of it: not while each question
        was refused."""
        self.asking = [False] * servers
        """Whether a question to the member has no answer yet."""
        self.sent = [0.0] * servers
        """The time of the first question to the member: it has given this waiter no vote before."""
        self.last_answer: list[tuple[float, int, int] | None] = [None] * servers
        """The time at which the last answered question was sent, the member's clock in the answer,
        and the number of that clock: see `MemberConnection.clock`."""
        self.said: list[Answer | Exception | None] = [None] * servers
        """The member's last answer, if that was no vote."""
        self.ask_at = [math.inf] * servers
        """The time to ask the member again, if nothing else causes a question."""
        self.refused = dict[int, Exception]()
        """By member: the error with which it has answered, for a while. That may concern this name
        alone, so it counts for this acquisition only."""
        self.renewing = [False] * servers
        self.answers: list[Prompt] = []
        """The answers that its client waits for: several if it has asked several times."""
        self.called = 0.0
        """The time of its client's question."""
        self.queued = False
        """Its client was answered `Queued`, so its grant is pushed, even if a question is open."""
        self.entered_at = 0.0
        self.promised = 0.0
        """The latest deadline that its client may have, since it has entered."""
        self.ahead_at = -math.inf
        """The time of the last `Member.reserve`, which asks whether the lock may be handed off."""
        self.holder = self.own
        """The holder of the lock by these votes: after a hand-off, another waiter of this
        client."""
        self.undecided: asyncio.Future[int] | None = None
        """The answer to the release of its holder, while the next one is undecided."""
        self.local = False
        """It is in no queue of a member, but waits at its client behind a waiter that has
        entered."""
        self.idle = False
        """It gave its votes back, and its client has not asked again."""
        self.mark: tuple[int, float] | None = None
        """The known done marker, if its work is done: the fence, and until when it lasts."""
        self.recalled_at = -math.inf
        """The time of the last `Member.query_done`."""

    @property
    def waits(self) -> bool:
        """Whether it may still enter."""
        return self.vote_set.phase is Phase.WAITING

    @property
    def inside(self) -> bool:
        """Whether it has entered."""
        return self.vote_set.phase is Phase.ENTERED

    @property
    def over(self) -> bool:
        """Whether it has ended."""
        return self.vote_set.phase is Phase.OVER

    @property
    def is_waited_for(self) -> bool:
        """Whether its client waits for an answer."""
        answers = self.answers
        if len(answers) == 1:  # nearly always
            return not answers[0].done()
        return any(not answer.done() for answer in answers)

    def knows(self, fence: int, until: float) -> None:
        """A member has reported a done marker: see `aiolock.stores.quorum._done_markers`."""
        if self.mark is None or self.mark[1] < until:
            self.mark = fence, until

    def tell(self, answer: object, *, at_once: bool = False) -> None:
        """Answer its client; ``at_once``: the waiting task goes on in this very call."""
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
        return self.request.form.claim

    def began(self, server: int, now: int, clock: int, received: float) -> float:
        """An upper bound for the local time at which a pushed vote was given: at ``now``, by that
        clock of the member.

        It was given before the push came. It also came so long after an answer of the member as the
        member's clock says, and the question of that answer had been sent by then. Without such an
        answer only the first question is certain to be earlier: the push may have been on its way
        when a later question was sent, or when an earlier vote was given back.
        """
        last_answer = self.last_answer[server]
        latest = (
            self.sent[server]
            if last_answer is None or last_answer[2] != clock
            else last_answer[0] + (now - last_answer[1]) / 1e6
        )
        return min(latest, received)

    def is_queued(  # where, and the answer
        self, server: int, answer: InQueue, clock: int, sent: float, now: float
    ) -> float:
        """Another waiter has the vote of that member; returns when to ask again.

        The waiter that is next asks when that lease ends: so a dead holder is noticed. A waiter
        further back gets no push about hand-offs before it, so it asks often enough to learn of
        each claim before that claim ends.
        """
        self.said[server], self.last_answer[server] = answer, (sent, answer.now, clock)
        until = answer.until if answer.place == 1 else min(answer.until, self.claim, CLAIM)
        self.ask_at[server] = now + min(until / 1000, KEEP_ALIVE) + JUST_AFTER
        return self.ask_at[server]
