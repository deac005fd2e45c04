"""One acquisition, from the call to the release: one object, with a table of its steps.

It is in turn the waiter, the grant, and what the client keeps of the grant while it holds the lock.
There is no I/O here, no clock and no task. The methods of `Acquisition` are events (an answer, a
push, a timeout) that change the phase. While it is acquired, their caller, `Acquirer`, looks at the
phase and acts on it, in a few lines for each phase; once it is held, the watchdog renews it, and a
`Lease` is the user's view of it::

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
from collections.abc import Mapping
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar
from weakref import ref

from aiolock._engine import error_factories
from aiolock._engine.lease_state import LeaseState, LossReason
from aiolock._engine.policy import Policy
from aiolock._engine.released import Released
from aiolock._engine.renewals import Renewals
from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.observer import LockRequest
from aiolock.protocol import (
    Answer,
    Busy,
    Differs,
    Done,
    Full,
    Granted,
    Queued,
    WaiterId,
    lasts,
    new,
)
from aiolock.store import Submitted

if TYPE_CHECKING:
    from aiolock._engine.backstop import LocalQueue
    from aiolock._engine.lease import Lease
    from aiolock._engine.rate_queue import RateQueue
    from aiolock._engine.scope import Scope
    from aiolock._engine.waiters import Waiters

Item = TypeVar("Item")


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


class ClockPair(NamedTuple):
    """The clocks at one answer: the local time before its question, and the store's time in it."""

    sent: float
    """Seconds."""
    store: int
    """Microseconds."""


class Acquisition:
    """One acquisition: its phase, and what is known of it. A task may make it again and again."""

    # Defaults on the class, because a lock that is acquired and released at once writes only a few
    # of these attributes.
    phase = Phase.ASKING
    label = ""
    """The label that its user gave it."""
    request: LockRequest | None = None
    """The acquisition as passed to observers; None before the first event."""
    crossed = False
    """A question and a push crossed, or a question was sent twice. The store may read that question
    after it made the grant, even after the release of the grant, and queue the waiter again. So the
    last release names the waiter, not the grant: it removes all that the store has for it."""
    wanted = 0
    """Another client asks the holder of the grant with this fence to release it."""

    # While it waits

    question: Submitted | None = None
    """Its question, an `Acquire`, while the store's answer is not here yet. There is one question
    at a time; the acquisition is the receiver of its answer."""
    failure: Exception | None = None
    """ASKING: why its question has failed."""
    asked_by: Waiters
    """Acts on the answers."""
    outdated = False
    """Something happened after the question was sent, so its answer may be too old: ask again."""
    ticket = 0
    """Its place in the queue, once it was queued."""
    clocks: ClockPair | None = None
    """The clocks of the last answer that it is queued; None until the first."""
    overtaken: tuple[int, int, float] | None = None
    """ASKING: the fence, lease and deadline of a push that arrived, over the other connection,
    before the answer."""
    declined: Busy | Full | Done | None = None
    """DECLINED: the answer by which the store refused."""
    stopped: Exception | None = None
    """The error that ends its waiting. A grant that is already there has precedence, if in time."""
    stale_fence = 0
    """Grants up to this fence must not be entered: they were taken away, or returned too late."""
    limit: tuple[int, float] | None = None
    """A fence and a deadline: the store has shortened the lease of that grant."""
    failing_since: float | None = None
    """QUEUED: when a question first failed since the last answer."""
    waits_for: Prompt
    """The future that its task awaits; the first is made with the first question."""
    queue: LocalQueue | RateQueue | None = None
    """The client's waiters for its name, once it was queued and as long as it waits."""
    local_queue: type[RateQueue] | None = None
    """The class of `queue`, if it is another than `LocalQueue`."""
    behind: WaiterId | None = None
    """QUEUED: the waiter or holder of its own client directly before it; None if not known."""
    patient = True
    """It has no timeout."""
    stands_still = True
    """Its owner task awaits it, and so does nothing else meanwhile. If another task awaits it, the
    owner may do something else, such as to release the lock that blocks it."""
    lineage: tuple[ref[asyncio.Task[Any]], ref[asyncio.Task[Any]] | None] | None = None
    """Its owner, and the parent of that if it has used aiolock too: see `deadlock`."""
    reported = False
    """It was reported to observers that it waits."""

    # The grant

    fence = 0
    """The fence of its grant; 0 before it has one."""
    granted_for = 0
    """The length of the lease in ms, counted from when the store made the grant."""
    deadline = 0.0
    """The local time until which its lease has certainly not ended at the store.

    Client and store have different clocks, and only their rates are assumed to be equal. So a lease
    is always counted from a local time that is certainly before the store began it."""
    unconfirmed = False
    """Whether its lease is only a claim, which must be renewed once to become the full ttl."""
    next: Acquisition | None = None
    """GRANTED: the one that is to continue after it: see `LocalHandoff`."""
    handed_off_by: LockRequest | None = None
    """GRANTED: the acquisition of this client that held the lock directly before, for observers."""

    # While it is held

    state = LeaseState.HELD
    reason: LossReason | str = ""
    """The reason for its loss; a text if only a later version's store knows that reason."""
    renewals: Renewals | None = None
    """Its renewals, from the first on."""
    slot = -1
    """Its slot of the watchdog's timer wheel; -1 if it has none."""
    since = 0.0
    """When the watchdog began to keep it."""
    ends: float | None = None
    """When ``max_hold`` has passed, by the local clock; None for no such limit."""
    counts_from = 0.0
    """Without renewal: the local time from which its lease counts, not later than the grant."""
    bodies: tuple[ref[Scope], ...] = ()
    """The bodies that rely on it. Weak references: a body belongs to the exit that ends it, and is
    to be collected with it."""
    leases: tuple[Lease, ...] = ()
    """The leases that the owner can release by name, with `Lock.release`."""
    speaking = 0
    """How many leases that refer to it have not ended."""
    lost: asyncio.Event | None = None
    requested: asyncio.Event | None = None
    """Set when its release is asked for (see `wanted`); made when it is first read."""
    where = ""
    """The line that acquired it, if that was looked up."""
    released: Released | None = None
    """The store's answer to its release."""
    handed_to: Acquisition | None = None
    """The one that got the lock from it, until that is reported."""
    handed_off = False
    """It was handed off: a report follows instead of a release (see `LocalHandoff`)."""
    finishes = False
    """It is released by `Finish`."""
    shared = False
    """It was downgraded. (A lock that was shared from the first has `Policy.shared`.)"""
    downgraded: asyncio.Future[int] | None = None
    """The store's answer to its downgrading."""

    # Without `__init__`: `acquire` makes one for each acquisition, and sets these by itself.
    waiter: WaiterId
    policy: Policy
    owner: asyncio.Task[Any] | None
    """The task that called `acquire`; None once that has ended, and only a lease is left."""
    began: float
    last_asked: float
    """The local time just before the last question was sent. Deadlines count from here: the store's
    lease begins when the store reads the question, later by an unknown time."""
    ttl = 0
    """The length of its renewals, in ms, once it was extended: see `renews_for`."""

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
    def parent(self) -> asyncio.Task[Any] | None:
        """The parent of its owner, if that is known and has not ended."""
        known = None if self.lineage is None else self.lineage[1]
        return None if known is None else known()

    @property
    def is_quiet(self) -> bool:
        """Whether no question is under way, and none that failed is to be repeated."""
        return self.question is None and self.failing_since is None

    @property
    def ended(self) -> bool:
        """Whether it is not acquired any more: it was, or was not, or was given up."""
        return not self.phase.steps

    # Questions, of whose answers it is the receiver (see `store.Receiver`)

    def done(self) -> bool:
        """Whether it awaits no answer."""
        return self.question is None

    def resolve(self, answer: Answer, /) -> None:
        """The store answers its question."""
        self.question = None
        # Without calls what nearly all answers are: a grant at once.
        if type(answer) is Granted and self.phase is Phase.ASKING and not self.outdated:
            fence, lease, displaced, claim = answer
            policy = self.policy
            if lease == policy.lease and not (displaced or claim) and self.limit is None:
                self.fence, self.granted_for, self.unconfirmed = fence, lease, False
                self.deadline = self.last_asked + policy.lasts
                self.phase = Phase.GRANTED
                self.waits_for.resolve(None)
                return
        if type(answer) is Queued and self.phase is Phase.ASKING and self.overtaken is None:
            newcomer = not self.ticket
            self.ticket, self.failing_since, self.phase = answer.ticket, None, Phase.QUEUED
            before, self.clocks = self.clocks, new(ClockPair, (self.last_asked, answer.now))
            self.asked_by.queued(self, answer, before, newcomer=newcomer, first=True)
        else:
            self.asked_by.answered(self, answer)

    def set_exception(self, failure: Exception, /) -> None:
        """Its question has failed."""
        self.question, self.failure = None, failure
        self.asked_by.unanswered(self, failure)

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
            self.outdated = True
            return False
        return self.phase is Phase.QUEUED

    def answers(self, answer: Answer) -> bool:
        """The store answers; False if that comes too late to matter."""
        if self.phase is not Phase.ASKING and self.phase is not Phase.QUEUED:
            return False  # a push arrived before it
        if type(answer) is Granted:  # cheaper than `isinstance`
            fence, lease, _, claim = answer
            claim = claim or lease < self.policy.lease
            self._granted(fence, lease, self.last_asked + lasts(lease), claim=claim)
        elif type(answer) is Queued:
            self._queued(answer)
        elif isinstance(answer, Differs):
            # Not DECLINED: the store may still have a place for it.
            self.stopped = error_factories.mismatch(self.policy, answer)
            self._go(Phase.STOPPED)
        elif not (isinstance(answer, Busy) and answer.until < 0):  # otherwise it asks again
            assert isinstance(answer, Busy | Full | Done)
            self.declined = answer
            self._go(Phase.DECLINED)
        return True

    def _queued(self, answer: Queued) -> None:
        self.ticket = answer.ticket
        self.clocks = new(ClockPair, (self.last_asked, answer.now))
        self.failing_since = None
        if self.phase is Phase.ASKING:
            self.phase = Phase.QUEUED
            if self.overtaken is not None:
                # Used only now, because until this answer the task awaited the answer, not a push.
                fence, lease, deadline = self.overtaken
                self._granted(fence, lease, deadline, claim=True)

    def withdraws(self) -> None:
        """The answer to the question under way is no longer wanted.

        It is cancelled, so that the store does not send it again, on a new connection, after the
        release that follows: it would queue the waiter again.
        """
        if self.question is not None:
            self.question.cancel()
            self.question = None

    # Pushes

    def pushed(self, fence: int, lease: int, granted: int, now: float) -> bool:
        """A push granted the lock, at ``granted`` by the store's clock, in µs.

        True if its task must be woken.
        """
        if fence <= self.stale_fence or self.phase not in (Phase.ASKING, Phase.QUEUED):
            return False  # the question or release that follows finds the grant at the store
        deadline = self._deadline(lease, granted, now)
        if self.phase is Phase.ASKING:
            # Two connections keep no order between them: the answer "queued" is still to come.
            self.overtaken = fence, lease, deadline
            return False
        if self.question is not None:
            self.crossed = True
        self._granted(fence, lease, deadline, claim=True)
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

    def _granted(self, fence: int, lease: int, deadline: float, *, claim: bool) -> None:
        self.fence, self.granted_for = fence, lease
        self.deadline, self.unconfirmed = deadline, claim
        assert Phase.GRANTED in self.phase.steps, self  # as `_go`, without a call
        self.phase = Phase.GRANTED
        if self.limit is not None:
            self._limit(*self.limit)

    def shortened(self, fence: int, until: float) -> None:
        """The lease of this grant is certain until then only. The grant may still be on its way."""
        self.limit = fence, until
        self._limit(fence, until)

    def _limit(self, fence: int, until: float) -> None:
        if fence == self.fence:
            self.deadline = min(self.deadline, until)

    @property
    def waits(self) -> bool:
        """Whether its task waits in the queue, and has not been woken."""
        return self.phase is Phase.QUEUED and not self.waits_for.done()

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
        assert self.fence
        return self.policy.passes or (now < self.deadline and self.fence > self.stale_fence)

    @property
    def must_confirm(self) -> bool:
        """Whether its grant must be confirmed before it is entered.

        The store counts a period as used when the grant is confirmed. If a run of a periodic job
        began on the claim, as other bodies do, and its process died before the confirmation, the
        store would let the same period begin again.
        """
        assert self.fence
        return self.policy.every is not None and self.unconfirmed

    def confirms(self) -> None:
        """Its grant is to be renewed now, before it is entered."""
        self._go(Phase.CONFIRMING)

    def confirmed(self, deadline: float) -> None:
        """Its grant was renewed, for the whole ttl."""
        self._granted(self.fence, self.policy.lease, deadline, claim=False)

    def gives_back(self) -> int:
        """Its grant came too late and is to be released; returns the fence of that grant."""
        assert self.fence
        self._go(Phase.RETURNING)
        self.taken_away(self.fence)
        self.withdraws()
        return self.fence

    def returned(self) -> None:
        """The store has answered the release, so its next grant is certainly a new one."""
        self._go(Phase.ASKING)
        self.overtaken, self.fence = None, 0

    # The end of the waiting

    def stop(self, error: Exception) -> None:
        """End its waiting with an error, unless it has been woken already."""
        self.stopped = error
        if not self.waits_for.done() and Phase.STOPPED in self.phase.steps:
            self._go(Phase.STOPPED)
            self.waits_for.set_exception(error)

    def gives_up(self) -> bool:
        """The lock is not wanted any more; True if a release must be sent."""
        if self.ended:
            return False
        self._go(Phase.GIVEN_UP)
        # No release is needed if the only question was certainly not carried out.
        known = self.clocks is not None or self.fence or self.question is not None
        self.withdraws()
        failure = self.failure
        return bool(known) or not (isinstance(failure, StoreError) and failure.refused)

    # While it is held

    @property
    def inside(self) -> list[Scope]:
        """The bodies that can still be left."""
        return [body for each in self.bodies if (body := each()) is not None]

    @property
    def renews_for(self) -> int:
        """The length of its renewals, in ms."""
        return self.ttl or self.policy.lease

    @property
    def is_wanted(self) -> bool:
        """Whether another client has asked for its release."""
        return self.wanted == self.fence

    @property
    def is_limited(self) -> bool:
        """Whether the answer to a renewal is due without which its lease is not certain."""
        return self.renewals is not None and bool(self.renewals.limits)

    def renews(self, ttl: int, now: float, *, extends: bool = False) -> int:
        """A renewal is sent, for ``ttl`` ms; returns its number."""
        if self.renewals is None:
            self.renewals = Renewals()
        self.renewals.sends(ttl, now, extends=extends)
        return self.renewals.sent

    def renewed(self, number: int, sent: float, ttl: int) -> bool:
        """The store has carried out the renewal of this number, which was sent at ``sent``.

        False if it has confirmed a later one already.
        """
        assert self.renewals is not None
        certain = self.renewals.confirms(number, sent, ttl)
        if certain is not None:
            self.deadline, self.unconfirmed = certain
        return certain is not None

    def shorten(self, until: float) -> None:
        """Its lease is certain until then only; renewals sent before do not change that."""
        self.deadline = min(self.deadline, until)
        if self.renewals is None:
            self.renewals = Renewals()
        self.renewals.shorten(until)


Owned = Mapping[asyncio.Task[Any] | None, Mapping[str, Acquisition]]
"""What each task holds, by key."""
Holders = Mapping[str, Mapping[asyncio.Task[Any] | None, Acquisition]]
"""The same by key, and then by task."""


def without(items: tuple[Item, ...], item: object) -> tuple[Item, ...]:
    """The items without this one."""
    if len(items) == 1 and items[0] is item:
        return ()
    return tuple(each for each in items if each is not item)
