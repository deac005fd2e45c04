"""One acquisition as a state machine: its phases, and every step from one to the next.

There is no I/O here, no clock and no task. The methods of `Attempt` say what has happened ("the
store answers", "a push arrives", "its time is over") and change the phase; whoever calls them looks
at the phase and does what it asks for. That is `Acquirer`, a few lines for each phase::

               ┌──────────────── returned ────────────────┐
               ▼                                          │
    begin ─ ASKING ─ queued ─▶ QUEUED ─ push, answer ─▶ GRANTED ─ too late ─▶ RETURNING
               │  │               │                    ▲  │  │
               │  └── granted ────┼────────────────────┘  │  └─ a period ─▶ CONFIRMING
               │                  │                       │
               └── declined ──────┴─▶ DECLINED            └─ kept ─▶ HELD

From wherever its task waits it can be STOPPED, by an error; and whatever has not ended can be
GIVEN_UP at once, which is what a cancelled task does.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Final

from aiolock._engine import refusals
from aiolock._engine.grant import ClockPair, Grant, lasts
from aiolock._engine.policy import Policy
from aiolock.errors import StoreError
from aiolock.observer import LockRequest
from aiolock.store import Answer, Busy, Differs, Done, Full, Granted, Queued, Waiter


class Phase(Enum):
    """Where an acquisition stands. Each says what the store may have of it."""

    ASKING = "asking"
    """A question is out, and it is not known to be queued. The store may have anything of it: a
    place, a grant, or nothing."""
    QUEUED = "queued"
    """It has a place in the queue and waits for the push. It may ask again meanwhile."""
    GRANTED = "granted"
    """The store gave it the lock. Its task has not run yet, so it may still be too late."""
    CONFIRMING = "confirming"
    """A periodic run, which does not begin on a claim: its grant is being renewed."""
    RETURNING = "returning"
    """It was too late: the grant is being released, and then it asks for its old place."""
    STOPPED = "stopped"
    """An error ended the waiting. What the store has of it is still to be released."""
    HELD = "held"
    """The end: the watchdog keeps the grant."""
    DECLINED = "declined"
    """The end: the store said no (busy, full, done) and has nothing of it."""
    GIVEN_UP = "given up"
    """The end: what the store may have of it was released."""

    steps: tuple[Phase, ...]
    """Where it can go from here: its row of `STEPS`."""


STEPS: Final[dict[Phase, tuple[Phase, ...]]] = {
    Phase.ASKING: (Phase.GRANTED, Phase.QUEUED, Phase.DECLINED, Phase.STOPPED, Phase.GIVEN_UP),
    Phase.QUEUED: (Phase.GRANTED, Phase.DECLINED, Phase.STOPPED, Phase.GIVEN_UP),
    Phase.GRANTED: (Phase.HELD, Phase.RETURNING, Phase.CONFIRMING, Phase.GIVEN_UP),
    Phase.CONFIRMING: (Phase.GRANTED, Phase.RETURNING, Phase.STOPPED, Phase.GIVEN_UP),
    Phase.RETURNING: (Phase.ASKING, Phase.STOPPED, Phase.GIVEN_UP),
    Phase.STOPPED: (Phase.GIVEN_UP,),
    Phase.HELD: (),
    Phase.DECLINED: (),
    Phase.GIVEN_UP: (),
}
"""Every legal step. The ends are those that lead nowhere."""

for _phase, _steps in STEPS.items():
    _phase.steps = _steps


class Question:
    """One `Store.acquire`; an acquisition has at most one that is out."""

    __slots__ = ("answer", "outdated", "sent")

    def __init__(self, sent: float, answer: asyncio.Future[Answer]) -> None:
        self.sent = sent
        """When, before it was sent: deadlines are reckoned from here."""
        self.answer = answer
        self.outdated = False
        """Something has happened since that its answer may not know of: ask once more after it."""


class Attempt:
    """One acquisition that is under way: its phase, and what is known of it."""

    # Defaults on the class: a lock that is free is held before most of these are written to.
    phase = Phase.ASKING
    question: Question | None = None
    """The question that is out."""
    ticket = 0
    """Its place, once it was queued."""
    clocks: ClockPair | None = None
    """Of the last answer that it is queued; None until the first."""
    overtaken: Grant | None = None
    """ASKING: of a push that overtook the answer, which comes over another connection."""
    grant: Grant | None = None
    """GRANTED, and after it."""
    declined: Busy | Full | Done | None = None
    """DECLINED: how the store said no."""
    stopped: Exception | None = None
    """Why its waiting is to end. A grant that is there by then comes first, if not too late."""
    void = 0
    """Grants up to this fence are not to be entered: taken away, or given back as too late."""
    wanted = 0
    """Somebody asks whoever has the grant of this fence to let go."""
    crossed = False
    """A question was out when it was granted by a push, or was sent twice. A copy that comes late
    may take a place in the queue again: what ends it releases whatever the waiter is by then."""
    failing_since: float | None = None
    """QUEUED: when the first of the questions failed that have failed since one was answered."""
    retry: asyncio.TimerHandle | None = None
    """QUEUED: when it asks again, after a question that failed."""
    waits_for: asyncio.Future[Any] | None = None
    """What its task awaits."""
    behind: Waiter | None = None
    """QUEUED: who stands directly before it, of its own client; None where that is not known."""
    patient = False
    """It waits for as long as it takes."""
    stands_still = False
    """QUEUED: its owner itself waits for it, and does nothing else meanwhile."""
    label = ""
    """What its user calls it."""
    request: LockRequest | None = None
    """What observers know it as, once one was told of it."""
    handed_on_by: LockRequest | None = None
    """GRANTED: who had it directly before, where that is known, and observers know that one."""

    def __init__(
        self, waiter: Waiter, policy: Policy, owner: asyncio.Task[Any] | None, began: float
    ) -> None:
        self.waiter = waiter
        self.policy = policy
        self.owner = owner
        self.began = self.last_asked = began

    def __repr__(self) -> str:
        return f"<Attempt {self.waiter} {self.phase.value}>"

    def _go(self, phase: Phase) -> None:
        assert phase in self.phase.steps, f"{self!r} cannot become {phase.value}"
        self.phase = phase

    @property
    def blocked(self) -> asyncio.Task[Any] | None:
        """QUEUED: the task that waits, where that is its owner, for as long as it takes."""
        return self.owner if self.patient and self.stands_still else None

    @property
    def ended(self) -> bool:
        """Whether nothing can happen to it any more."""
        return not self.phase.steps

    # Questions

    def asks(self, question: Question) -> None:
        """A question is sent: the first one, or another while it stands in the queue."""
        assert self.question is None, "one question at a time"
        assert self.phase in (Phase.ASKING, Phase.QUEUED), self
        self.question = question
        self.last_asked = question.sent

    def sends_again(self) -> None:
        """The connection broke: the question that is out, if any, may be sent twice."""
        if self.question is not None:
            self.crossed = True

    def has_news(self) -> bool:
        """Something happened that the store knows more of; whether to ask now.

        While a question is out that is remembered with it: its answer may be older. In the other
        phases the next question comes by itself, or there is none.
        """
        if self.question is not None:
            self.question.outdated = True
            return False
        return self.phase is Phase.QUEUED

    def answers(self, question: Question, answer: Answer) -> bool:
        """The store answers; False where that comes too late to matter."""
        if question is not self.question:
            return False  # nobody waits for it any more
        self.question = None
        if self.phase is not Phase.ASKING and self.phase is not Phase.QUEUED:
            return False  # a push was quicker
        if isinstance(answer, Granted):
            fence, lease, _, claim = answer
            deadline = question.sent + lasts(lease)
            claim = claim or lease < self.policy.lease
            self._granted(Grant(fence, lease, deadline, claim))
        elif isinstance(answer, Queued):
            self._queued(question.sent, answer)
        elif isinstance(answer, Differs):
            # No plain no: it may have a place.
            self.stopped = refusals.mismatch(self.policy, answer)
            self._go(Phase.STOPPED)
        else:
            self.declined = answer
            self._go(Phase.DECLINED)
        return True

    def _queued(self, sent: float, answer: Queued) -> None:
        self.ticket = answer.ticket
        self.clocks = ClockPair(sent, answer.now)
        self.failing_since = None
        if self.phase is Phase.ASKING:
            self._go(Phase.QUEUED)
            if self.overtaken is not None:
                self._granted(self.overtaken)

    def fails(self, question: Question) -> bool:
        """Nobody knows the answer to a question; whether that matters."""
        if question is not self.question:
            return False
        self.question = None
        return self.phase is Phase.QUEUED

    def withdraws(self) -> None:
        """Nobody waits for the answer to the question that is out.

        It must not be sent again by itself after the release that follows.
        """
        if self.question is not None:
            self.question.answer.cancel()
            self.question = None

    # Pushes

    def pushed(self, fence: int, lease: int, granted: int, now: float) -> bool:
        """A push says that the lock is ours, since ``granted`` by the store's clock, in µs.

        False where its task need not be woken.
        """
        if fence <= self.void or self.phase not in (Phase.ASKING, Phase.QUEUED):
            return False  # the question or the release that follows finds it
        grant = Grant(fence, lease, self._deadline(lease, granted, now), claim=True)
        if self.phase is Phase.ASKING:
            self.overtaken = grant
            return False
        if self.question is not None:
            self.crossed = True
        self._granted(grant)
        return True

    def _deadline(self, lease: int, granted: int, now: float) -> float:
        """Until when a pushed lease is certainly ours, by two clocks that only need to run alike.

        The grant was made before the push arrived. And it was made ``granted - clocks.store`` after
        an answer of the store, whose question had been sent at ``clocks.sent`` or later.
        """
        clocks = self.clocks
        latest = self.began
        if clocks is not None:
            latest = clocks.sent + (granted - clocks.store) / 1e6
        return min(latest, now) + lasts(lease)

    def _granted(self, grant: Grant) -> None:
        self.grant = grant
        self._go(Phase.GRANTED)

    @property
    def waits(self) -> bool:
        """Whether its task waits in the queue, and nothing has come of that yet."""
        return self.phase is Phase.QUEUED and not (self.waits_for is None or self.waits_for.done())

    def passed(self, grant: Grant) -> None:
        """Its own client hands it the lock, on behalf of the store. It `waits`."""
        assert self.waits_for is not None
        self._granted(grant)
        self.waits_for.set_result(None)

    def taken_away(self, fence: int) -> None:
        """The grant of this fence is not ours any more, though it may still be on its way."""
        self.void = max(self.void, fence)

    # What its task does with the grant

    def accepts(self, now: float) -> bool:
        """Whether its grant can be entered.

        Not where the process was stopped, or its loop blocked, while the push or the answer lay in
        its socket: the lease may have ended, and somebody else may have the lock. Whoever only
        passes (a latch, a barrier) goes on without the lock, so to that one it does not matter.
        """
        grant = self.grant
        assert grant is not None
        return self.policy.passes or (now < grant.deadline and grant.fence > self.void)

    @property
    def must_confirm(self) -> bool:
        """Whether its grant has to be confirmed before it is entered.

        A period is used up by a grant that was confirmed, and by no other. So a run of a periodic
        job does not begin on the claim alone, as other bodies do: were its process stopped before
        the confirmation, nobody could tell whether it has begun.
        """
        assert self.grant is not None
        return self.policy.every is not None and self.grant.claim

    def confirms(self) -> Grant:
        """Its grant is to be renewed now."""
        self._go(Phase.CONFIRMING)
        assert self.grant is not None
        return self.grant

    def confirmed(self, deadline: float) -> None:
        """It was renewed, for the whole ttl."""
        assert self.grant is not None
        self._granted(Grant(self.grant.fence, self.policy.lease, deadline, claim=False))

    def gives_back(self) -> int:
        """Its grant was too late, and is to be released; the fence of that."""
        assert self.grant is not None
        self._go(Phase.RETURNING)
        self.taken_away(self.grant.fence)
        self.withdraws()
        return self.grant.fence

    def returned(self) -> None:
        """The store has answered the release, so it cannot take the old grant for a new one."""
        self._go(Phase.ASKING)
        self.overtaken = self.grant = None

    def kept(self) -> None:
        """The watchdog keeps the grant from now on."""
        self._go(Phase.HELD)

    # The end

    def stop(self, error: Exception) -> None:
        """End its waiting with an error, unless what it waits for has come."""
        self.stopped = error
        future = self.waits_for
        if future is not None and not future.done() and Phase.STOPPED in self.phase.steps:
            self._go(Phase.STOPPED)
            future.set_exception(error)

    def gives_up(self) -> bool:
        """Nobody wants the lock any more; whether the store may have something of it."""
        if self.ended:
            return False
        self._go(Phase.GIVEN_UP)
        known = self.clocks is not None or self.grant is not None
        question = self.question
        refused = not known and question is not None and _was_refused(question.answer)
        self.withdraws()
        return not refused


def _was_refused(answer: asyncio.Future[Any]) -> bool:
    """Whether the store has certainly not carried out what it was asked."""
    if not answer.done() or answer.cancelled():
        return False
    error = answer.exception()
    return isinstance(error, StoreError) and error.refused
