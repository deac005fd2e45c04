"""One acquisition as a state machine: its phases, and every step from one to the next.

There is no I/O here, no clock and no task. The methods of `Acquisition` are events (an answer, a
push, a timeout) that change the phase. Their caller, `Acquirer`, looks at the phase and acts on it,
in a few lines for each phase::

               ┌──────────────── returned ────────────────┐
               ▼                                          │
    begin ─ ASKING ─ queued ─▶ QUEUED ─ push, answer ─▶ GRANTED ─ too late ─▶ RETURNING
               │  │               │                    ▲  │  │
               │  └── granted ────┼────────────────────┘  │  └─ a period ─▶ CONFIRMING
               │                  │                       │
               └── declined ──────┴─▶ DECLINED            └─ kept ─▶ HELD

While its task waits, an error can make it STOPPED; and from every phase that is not an end it can
be GIVEN_UP at once, as a cancelled task does.
"""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import Any, Final

from aiolock._engine import error_factories
from aiolock._engine.grant import ClockPair, Grant
from aiolock._engine.policy import Policy
from aiolock._futures import failure_of
from aiolock.errors import StoreError
from aiolock.observer import LockRequest
from aiolock.protocol import Answer, Busy, Differs, Done, Full, Granted, Queued, WaiterId, lasts


class Phase(Enum):
    """The phase of an acquisition, and with it what the store may have for it."""

    ASKING = "asking"
    """A question is out, and the acquisition is not known to be queued. The store may have a place
    or a grant for it, or nothing."""
    QUEUED = "queued"
    """It has a place in the queue and waits for the push. It may ask again meanwhile."""
    GRANTED = "granted"
    """The store granted the lock. The task has not run yet, so the grant may still be too late."""
    CONFIRMING = "confirming"
    """The grant of a periodic job is being renewed: its run never begins on a claim."""
    RETURNING = "returning"
    """The grant came too late: it is being released, and then the old place is asked for."""
    STOPPED = "stopped"
    """An error ended the waiting. Its place or grant at the store is still to be released."""
    HELD = "held"
    """The end: the watchdog keeps the grant."""
    DECLINED = "declined"
    """The end: the store refused (busy, full, done), and has nothing for it."""
    GIVEN_UP = "given up"
    """The end: its place or grant at the store, if any, was released."""

    steps: tuple[Phase, ...]
    """The phases that can follow this one: its row of `STEPS`."""


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
"""Every legal step. A phase without a next one is an end."""

for _phase, _steps in STEPS.items():
    _phase.steps = _steps


class Question:
    """One `Acquire`; an acquisition has at most one that is not answered."""

    __slots__ = ("answer", "outdated", "sent")

    def __init__(self, sent: float, answer: asyncio.Future[Answer]) -> None:
        self.sent = sent
        """The local time just before it was sent. Deadlines count from here: the store's lease
        begins when the store reads the question, which is later by an unknown time."""
        self.answer = answer
        self.outdated = False
        """Something happened after it was sent, so its answer may be too old: ask again."""


class Acquisition:
    """One acquisition that is under way: its phase, and what is known of it."""

    # Defaults on the class, because acquiring a free lock writes only a few of these attributes.
    phase = Phase.ASKING
    question: Question | None = None
    """The question that is not answered yet."""
    ticket = 0
    """Its place in the queue, once it was queued."""
    clocks: ClockPair | None = None
    """The clocks of the last answer that it is queued; None until the first."""
    overtaken: Grant | None = None
    """ASKING: the grant of a push that arrived, over the other connection, before the answer."""
    grant: Grant | None = None
    """From GRANTED on: the grant."""
    declined: Busy | Full | Done | None = None
    """DECLINED: the answer by which the store refused."""
    stopped: Exception | None = None
    """The error that ends its waiting. A grant that is already there has precedence, if in time."""
    stale_fence = 0
    """Grants up to this fence must not be entered: they were taken away, or returned too late."""
    limit: tuple[int, float] | None = None
    """A fence and a deadline: the store has shortened the lease of that grant."""
    wanted = 0
    """Another client asks the holder of the grant with this fence to release it."""
    crossed = False
    """A question and a push crossed, or a question was sent twice. The store may read that question
    after it made the grant, even after the release of the grant, and queue the waiter again. So the
    last release names the waiter, not the grant: it removes all that the store has for it."""
    failing_since: float | None = None
    """QUEUED: when a question first failed since the last answer."""
    waits_for: asyncio.Future[Any] | None = None
    """The future that its task awaits."""
    behind: WaiterId | None = None
    """QUEUED: the waiter or holder of its own client directly before it; None if not known."""
    patient = False
    """It has no timeout."""
    stands_still = False
    """QUEUED: its owner task awaits it, and so does nothing else meanwhile."""
    label = ""
    """The label that its user gave it."""
    request: LockRequest | None = None
    """The acquisition as passed to observers; None before the first event."""
    handed_off_by: LockRequest | None = None
    """GRANTED: the acquisition of this client that held the lock directly before, for observers."""

    def __init__(
        self, waiter: WaiterId, policy: Policy, owner: asyncio.Task[Any] | None, began: float
    ) -> None:
        self.waiter = waiter
        self.policy = policy
        self.owner = owner
        self.began = self.last_asked = began

    def __repr__(self) -> str:
        return f"<Acquisition {self.waiter} {self.phase.value}>"

    def _go(self, phase: Phase) -> None:
        assert phase in self.phase.steps, f"{self!r} cannot become {phase.value}"
        self.phase = phase

    @property
    def blocked(self) -> asyncio.Task[Any] | None:
        """QUEUED: the task that waits, if it is the owner itself, without a timeout."""
        return self.owner if self.patient and self.stands_still else None

    @property
    def is_quiet(self) -> bool:
        """Whether no question is under way, and none that failed is to be repeated."""
        return self.question is None and self.failing_since is None

    @property
    def ended(self) -> bool:
        """Whether nothing more can happen to it."""
        return not self.phase.steps

    # Questions

    def asks(self, question: Question) -> None:
        """A question is sent: the first one, or a later one from the queue."""
        assert self.question is None, "one question at a time"
        assert self.phase in (Phase.ASKING, Phase.QUEUED), self
        self.question = question
        self.last_asked = question.sent

    def sends_again(self) -> None:
        """The connection broke: the question under way, if any, may be sent twice."""
        if self.question is not None:
            self.crossed = True

    def has_news(self) -> bool:
        """Its state at the store may have changed; True if it must ask now.

        If a question is under way, its answer may be older than the change, so it is marked as
        outdated instead: the next question follows its answer. In phases other than QUEUED, a
        question follows anyway, or none is needed.
        """
        if self.question is not None:
            self.question.outdated = True
            return False
        return self.phase is Phase.QUEUED

    def answers(self, question: Question, answer: Answer) -> bool:
        """The store answers; False if that comes too late to matter."""
        if question is not self.question:
            return False  # the question was withdrawn
        self.question = None
        if self.phase is not Phase.ASKING and self.phase is not Phase.QUEUED:
            return False  # a push arrived before it
        if isinstance(answer, Granted):
            fence, lease, _, claim = answer
            deadline = question.sent + lasts(lease)
            claim = claim or lease < self.policy.lease
            self._granted(Grant(fence, lease, deadline, claim))
        elif isinstance(answer, Queued):
            self._queued(question.sent, answer)
        elif isinstance(answer, Differs):
            # Not DECLINED: the store may still have a place for it.
            self.stopped = error_factories.mismatch(self.policy, answer)
            self._go(Phase.STOPPED)
        elif not (isinstance(answer, Busy) and answer.until < 0):  # otherwise it asks again
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
                # Used only now, because until this answer the task awaited the answer, not a push.
                self._granted(self.overtaken)

    def fails(self, question: Question) -> bool:
        """A question failed, so its answer is unknown; True if that matters."""
        if question is not self.question:
            return False
        self.question = None
        return self.phase is Phase.QUEUED

    def withdraws(self) -> None:
        """The answer to the question under way is no longer wanted.

        It is cancelled, so that the store does not send it again, on a new connection, after the
        release that follows: it would queue the waiter again.
        """
        if self.question is not None:
            self.question.answer.cancel()
            self.question = None

    # Pushes

    def pushed(self, fence: int, lease: int, granted: int, now: float) -> bool:
        """A push granted the lock, at ``granted`` by the store's clock, in µs.

        True if its task must be woken.
        """
        if fence <= self.stale_fence or self.phase not in (Phase.ASKING, Phase.QUEUED):
            return False  # the question or release that follows finds the grant at the store
        grant = Grant(fence, lease, self._deadline(lease, granted, now), claim=True)
        if self.phase is Phase.ASKING:
            # Two connections keep no order between them: the answer "queued" is still to come.
            self.overtaken = grant
            return False
        if self.question is not None:
            self.crossed = True
        self._granted(grant)
        return True

    def _deadline(self, lease: int, granted: int, now: float) -> float:
        """The time until which a pushed lease is certainly ours, if both clocks run at one speed.

        Two bounds for the local time of the grant are known, and the earlier one is used. The grant
        was made before the push arrived, which was ``now`` at the latest. And by the store's clock
        it was made ``granted - clocks.store`` after an earlier answer, which the store gave after
        ``clocks.sent``. The second bound finds a push that lay in the socket while the process was
        suspended. It compares each clock only with itself, so the two need not agree.
        """
        clocks = self.clocks
        latest = self.began  # no answer yet: nothing was sent before this
        if clocks is not None:
            latest = clocks.sent + (granted - clocks.store) / 1e6
        return min(latest, now) + lasts(lease)

    def _granted(self, grant: Grant) -> None:
        self.grant = grant
        self._go(Phase.GRANTED)
        self._limit()

    def shortened(self, fence: int, until: float) -> None:
        """The lease of this grant is certain until then only. The grant may still be on its way."""
        self.limit = fence, until
        self._limit()

    def _limit(self) -> None:
        grant, limit = self.grant, self.limit
        if grant is not None and limit is not None and grant.fence == limit[0]:
            self.grant = grant._replace(deadline=min(grant.deadline, limit[1]))

    @property
    def waits(self) -> bool:
        """Whether its task waits in the queue, and has not been woken."""
        return self.phase is Phase.QUEUED and not (self.waits_for is None or self.waits_for.done())

    def handed_off(self, grant: Grant) -> None:
        """Its own client hands it the lock, before the store does. The acquisition `waits`."""
        assert self.waits_for is not None
        self._granted(grant)
        self.waits_for.set_result(None)

    def taken_away(self, fence: int) -> None:
        """The grant of this fence is not ours any more. It may still be on its way."""
        self.stale_fence = max(self.stale_fence, fence)

    # The grant, in its task

    def accepts(self, now: float) -> bool:
        """Whether its grant can be entered.

        It cannot if its lease may have ended while the push or the answer lay in the socket of a
        process that was suspended or blocked: another client may have the lock now. A waiter of a
        latch, event or barrier goes on without holding anything, so it accepts any grant.
        """
        grant = self.grant
        assert grant is not None
        return self.policy.passes or (now < grant.deadline and grant.fence > self.stale_fence)

    @property
    def must_confirm(self) -> bool:
        """Whether its grant must be confirmed before it is entered.

        The store counts a period as used when the grant is confirmed. If a run of a periodic job
        began on the claim, as other bodies do, and its process died before the confirmation, the
        store would let the same period begin again.
        """
        assert self.grant is not None
        return self.policy.every is not None and self.grant.claim

    def confirms(self) -> Grant:
        """Its grant is to be renewed now."""
        self._go(Phase.CONFIRMING)
        assert self.grant is not None
        return self.grant

    def confirmed(self, deadline: float) -> None:
        """Its grant was renewed, for the whole ttl."""
        assert self.grant is not None
        self._granted(Grant(self.grant.fence, self.policy.lease, deadline, claim=False))

    def gives_back(self) -> int:
        """Its grant came too late and is to be released; returns the fence of that grant."""
        assert self.grant is not None
        self._go(Phase.RETURNING)
        self.taken_away(self.grant.fence)
        self.withdraws()
        return self.grant.fence

    def returned(self) -> None:
        """The store has answered the release, so its next grant is certainly a new one."""
        self._go(Phase.ASKING)
        self.overtaken = self.grant = None

    def kept(self) -> None:
        """The watchdog renews the grant from now on."""
        self._go(Phase.HELD)

    # The end

    def stop(self, error: Exception) -> None:
        """End its waiting with an error, unless it has been woken already."""
        self.stopped = error
        future = self.waits_for
        if future is not None and not future.done() and Phase.STOPPED in self.phase.steps:
            self._go(Phase.STOPPED)
            future.set_exception(error)

    def gives_up(self) -> bool:
        """The lock is not wanted any more; True if a release must be sent."""
        if self.ended:
            return False
        self._go(Phase.GIVEN_UP)
        # No release is needed if the only question was certainly not carried out.
        known = self.clocks is not None or self.grant is not None
        question = self.question
        refused = not known and question is not None and _was_refused(question.answer)
        self.withdraws()
        return not refused


def _was_refused(answer: asyncio.Future[Any]) -> bool:
    """Whether the store has certainly not carried out this question."""
    error = failure_of(answer) if answer.done() else None
    return isinstance(error, StoreError) and error.refused
