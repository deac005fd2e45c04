"""The protocol as a pure state machine: no I/O, no clock, no event loop.

From the state of one name, an operation, the store's clock and the set of listening clients follow
the answer, the new state, and the pushes: `Step.run`. It is the reference for every store: the
memory store runs this very code, SQLite and MySQL run it in a transaction, and the Redis scripts
and PostgreSQL functions are tested against it. Read `Step` beside ``redis/lua/*.lua``: each method
that takes an operation is the script of the same name.

What holds after every step: an exclusive holder is alone; a fence is higher than all earlier ones
of its name, including those that a client may have given by local hand-offs; and a step that ends a
grant also grants the lock to the next waiters that fit, so it is never free and wanted without an
owner. Where that would make a step too long, another step goes on: a client that gets `AskAgain`
asks, or the store itself carries out the `Rest` of the step.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple, Protocol, TypeVar

from aiolock import protocol
from aiolock._rate import Rate, is_rate, rate_of
from aiolock.protocol import (
    FEW,
    LOOKED_AHEAD,
    MAX_AHEAD,
    PRIORITY,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Acquire,
    Adopt,
    Answer,
    AskAgain,
    Before,
    Break,
    Busy,
    Detach,
    Differs,
    Discard,
    Done,
    Downgrade,
    Finish,
    Form,
    Full,
    Granted,
    GrantLost,
    GrantPushed,
    Operation,
    OrderUnknown,
    Participant,
    Post,
    Posted,
    Queued,
    ReadPosted,
    ReadStatus,
    Release,
    ReleaseRequested,
    Renew,
    Renewal,
    ReportHandoff,
    RequestRelease,
    Resize,
    Rule,
    Status,
    WaiterId,
    detached,
)
from aiolock.stores._bucket import Bucket
from aiolock.stores._holders import FOREVER, RESERVED, Grant, Holder, Holders, Session, opens_at
from aiolock.stores._shares import Waiting, placed
from aiolock.trees import MANY, ONE, MakeFence

Value = TypeVar("Value")

_IN_STEPS: Final = (Rule.ALWAYS, Rule.PERMITS, Rule.RATE, Rule.ALIKE)
"""The rules of waiters that enter in several steps, if they are many."""
_ALL: Final = 1 << 60
"""More waiters than a queue ever has."""

_CLOSED: Final = WaiterId(RESERVED, 0)
"""The reserved holder of a lock that stays closed for a while."""
_DONE: Final = WaiterId(RESERVED, 1)
"""The reserved holder of a lock whose work is done, for as long as that is remembered."""


NameEvent = GrantPushed | GrantLost | AskAgain | ReleaseRequested | OrderUnknown
"""The events that follow from an operation on a name; the others are of a connection."""


class Push(NamedTuple):
    """An event, and the client that it is for."""

    client: str
    event: NameEvent


Work = Literal["advance", "count", "stuck", "once", "request"]
"""What a step has left to the next one.

``advance``: to grant the lock to the waiters at the head; ``count``: the same, for a count that was
raised, to those behind the waiters that were passed over; ``stuck``: to remove the waiters of
clients whose leases have ended, and then to grant the lock; ``once``: to remove the waiters whose
work is done; ``request``: to ask the holders with higher fences to release it.
"""


class Rest(NamedTuple):
    """The work that a step has left, since it would block other clients for too long.

    Whoever carries out the step does this next, in a step of its own: see `Step.go_on`. If that
    never comes, because this process ends, then the next step of anyone goes on with the head of
    the queue.
    """

    work: Work
    behind: int | None = None
    """The ticket up to which the queue was looked at, or for ``request`` the fence; None if it
    begins at the head."""
    ended: tuple[Grant, ...] = ()
    """For ``stuck``: a grant of each of those clients."""


class NameState:
    """The state of one name."""

    __slots__ = (
        "bucket",
        "count",
        "declared",
        "holders",
        "limit",
        "queue",
        "resized",
        "tokens",
        "tombstones",
        "until",
        "value",
        "waiting",
    )

    def __init__(self) -> None:
        self.holders = Holders()
        self.queue: list[tuple[int, WaiterId]] = []
        """Tickets and waiters, in order."""
        self.waiting: dict[WaiterId, tuple[int, Form]] = {}
        """The same, by waiter."""
        self.tombstones: dict[WaiterId, int] = {}
        """Waiters that gave up, and until when (ms) copies of their requests may arrive: such a
        copy must not queue the waiter again, or be granted."""
        self.resized: dict[str, tuple[int, int]] = {}
        """For each token, the number of permits before, and until when (ms) that is remembered."""
        # The numbers below are remembered until `until` (ms), and as long as there is a holder.
        self.until = 0
        self.bucket: Bucket | None = None
        """That of a rate limit."""
        self.limit: int | None = None
        """The number of permits, or the number that was declared."""
        self.declared = 0
        """A second number that may be declared since a `resize`."""
        self.count = 0
        self.tokens: set[str] = set()
        self.value = ""

    @property
    def open(self) -> bool:
        """Whether every holder shares the lock, or there is none."""
        return self.holders.open

    @property
    def idle(self) -> bool:
        """Whether nothing about this name need be kept."""
        if self.holders or self.queue or self.tombstones or self.resized:
            return False
        return self.limit is None and not self.count and not self.value

    @property
    def over(self) -> int:
        """The time (ms) by which all leases, delays and numbers end, if nothing changes."""
        ends = [holder.end + holder.form.closes for holder in self.holders.values()]
        return max(self.until, *ends, 0, 0)

    def place(self, waiter: WaiterId) -> int:
        return bisect_left(self.queue, (self.waiting[waiter][0], waiter)) + 1

    def enqueue(self, ticket: int, waiter: WaiterId, form: Form) -> None:
        self.waiting[waiter] = ticket, form
        insort(self.queue, (ticket, waiter))
        if form.share:
            self.holders.made_shares().join(ticket, waiter, form)

    def dequeue(self, waiter: WaiterId) -> bool:
        if waiter not in self.waiting:
            return False
        del self.queue[self.place(waiter) - 1]
        ticket, form = self.waiting.pop(waiter)
        if form.share:
            self.holders.made_shares().leave(ticket, waiter, form)
        return True

    def next(self, at: int) -> tuple[int, WaiterId]:
        """The waiter that is next, with its ticket, if nobody before this place is.

        It is the one at that place if that has no share. Else it is one of the same priority.
        """
        place = self.queue[at]
        form = self.waiting[place[1]][1]
        return self.holders.made_shares().next(form.priority) if form.share else place

    def number(self, form: Form) -> int:
        """How many waiters there are of those that count for `Acquire.max_waiters`."""
        return len(self.holders.made_shares().queue(form) if form.share else self.queue)

    def rank(self, behind: int | None) -> int:
        """How many waiters have no higher ticket than this; 0 for None."""
        return 0 if behind is None else bisect_right(self.queue, behind, key=_ticket)

    def remove(self, goes: Callable[[WaiterId], bool], places: range) -> list[WaiterId]:
        """Take these out of the queue, of those at these places, and return them."""
        part = self.queue[places.start : places.stop]
        gone = [waiter for _, waiter in part if goes(waiter)]
        for waiter in gone:
            ticket, form = self.waiting.pop(waiter)
            if form.share:
                self.holders.made_shares().leave(ticket, waiter, form)
        if gone:
            left = [place for place in part if place[1] in self.waiting]
            self.queue[places.start : places.stop] = left
        return gone

    def keep(self, until: int) -> None:
        """Remember the numbers until then, at least."""
        self.until = max(self.until, until)

    def forget(self) -> None:
        """Forget all numbers: they were kept for long enough."""
        self.limit = self.bucket = None
        self.declared = self.count = self.until = 0
        self.value = ""
        self.tokens.clear()
        self.tombstones.clear()
        self.resized.clear()


def _ticket(place: tuple[int, WaiterId]) -> int:
    return place[0]


def looks_for_dead(ticket: int, queue: Sequence[tuple[int, WaiterId]]) -> bool:
    """Whether a newcomer with this ticket, which is in the queue, removes dead waiters.

    Otherwise a dead waiter would stay until it came to the head: where a lock is held for long, the
    queue would grow with each client that dies. A queue that moves does not need this. The choice
    is pseudo-random, and alike in all stores: a ticket is a time, so the microsecond decides. A
    newcomer checks four waiters on average at most, however many there are, see `checked`; and
    apart from the first two hundred, there are seldom more dead waiters than living ones.
    """
    return ticket % protocol.LOOKERS == 0 and ticket - queue[0][0] >= protocol.STANDS_STILL


def checked(number: int, waiters: int, most: int = protocol.CHECKS) -> range:
    """The places of those that are checked for dead ones: all of them, or so many side by side.

    The number decides which. Each place has the same chance, the first and the last, too.
    """
    if waiters <= most:
        return range(waiters)
    first = number % (waiters + most - 1) - most + 1
    return range(max(first, 0), min(first + most, waiters))


def _unknown(_: str) -> tuple[str, int]:
    return "", 0


class Sessions(Protocol):
    """The sessions of a store's clients, as far as the store knows them when a step is run.

    A store that has sessions, such as keys with a lease of the database's own, needs no clock for
    the holds that live with them, and no write to renew those.
    """

    def is_alive(self, session: Session) -> bool:
        """Whether it has not ended. A hold that lives with it ends with it."""
        ...

    def session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        """The session that a hold of this client will live with; empty: it ends by the clock.

        It is this client's own hold, of ``ttl`` ms, unless it is a ``claim``: the first lease of a
        pushed grant. A `Form.fixed` hold is not renewed, so it needs a session that is not kept
        alive, or the clock.
        """
        ...


class Step:
    """One operation on the state of ``name``, at one moment.

    ``now`` is the store's clock, in µs. ``listens`` says whether a client is alive, as far as the
    store can tell. ``fence`` is the last one that was made. Afterwards `pushes` must be sent, in
    order, and `fence` is the new last one. ``metadata`` gives the host and the process of a client,
    for `status`. With ``in_parts``, what would take long is left to further steps: afterwards
    `rest` must be carried out by `go_on`, if it is not None.

    A store without a clock has only those of its clients. Then ``slack`` is by how many µs the
    clocks of two of them may differ, and ``now`` is that of the client which runs the step. The
    client that holds a lease relies on it until its end by its own clock; for others, it ends when
    it has ended by every clock.

    With ``sessions``, a hold may live with a session of its client. Then it ends when that has
    ended, by no clock, and it need not be saved again when it is renewed. Nobody knows when that
    will be: what is said to be left of it is its ttl.
    """

    def __init__(
        self,
        name: str,
        state: NameState,
        now: int,
        listens: Callable[[str], bool],
        fence: int = 0,
        *,
        metadata: Callable[[str], tuple[str, int]] = _unknown,
        in_parts: bool = False,
        slack: int = 0,
        sessions: Sessions | None = None,
    ) -> None:
        self._name = name
        self._state = state
        self._now = now
        self._ms = now // 1000
        self._slack = slack
        self._past = self._ms if not slack else (now - slack) // 1000
        """What ends by now is over by the clock of every client (ms)."""
        self._copies_until = 0
        self._listens = listens
        self._metadata = metadata
        self.fence = fence
        self.pushes: list[Push] = []
        self.rest: Rest | None = None
        self._in_parts = in_parts
        self._part = protocol.PART if in_parts else _ALL
        """The most waiters of the queue that it looks at."""
        self._front = _ALL
        """How many waiters are in front of those that the rest of this step is about."""
        self._asker = ""
        """The client that is being answered: it is alive, since it has just asked, listening or
        not."""
        self._passing = 0
        """How many more waiters of a full group enter."""
        self._reaped = False
        """Whether this step has found and removed leases that have ended."""
        self._sessions = sessions
        if sessions is not None and state.holders.sessions:
            self._end_sessions(sessions)
        if state.until and state.until <= self._past and not state.holders.sessions:
            state.forget()

    def run(self, operation: Operation[Value], copies_until: int = 0) -> Value:
        """Carry out an operation; its answer. A `ReadPage` is none of one name.

        ``copies_until``: until when (store, µs) copies of it may arrive, and of what its waiter has
        asked for before; 0: there are none.
        """
        self._copies_until = copies_until
        answer: Value = _METHODS[type(operation)](self, operation)
        return answer

    # The operations

    def acquire(self, asked: Acquire) -> Answer:
        """See `Acquire`."""
        state, waiter, form, ttl = self._state, asked.waiter, asked.form, asked.ttl
        ticket, wait = asked.ticket, asked.wait
        self._asker = waiter.client
        known = self._known(waiter, form)
        if known is not None:
            return known
        displaced = ticket > 0 and waiter not in state.waiting
        # No waiter overtakes: while others wait, a waiter enters only by `_advance`, in its turn.
        if self._enters(waiter, form, wait=wait):
            state.dequeue(waiter)
            if self._passing:
                self._advance()  # grants the others of its group, which came before it
            return Granted(self._grant(waiter, form, ttl), ttl, displaced)
        newcomer = wait and not ticket and waiter not in state.waiting
        newcomer = newcomer and not (state.open or self._reaped)  # if nothing ended in this step
        if wait and not self._enqueue(waiter, form, ticket, asked.max_waiters):
            full = Full(state.number(form))
            if state.open and not form.counts:  # without the dead, others may fit
                self._advance()
            return full
        fence = 0
        if state.open and not form.counts:
            fence = self._advance(asking=waiter, ttl=ttl)
            if not fence and not wait and not state.queue and self._fits(form):
                fence = self._grant(waiter, form, ttl)  # all waiters were dead
        if fence:
            return Granted(fence, ttl, displaced)
        return self._taken(waiter, form, wait=wait, displaced=displaced, newcomer=newcomer)

    def report_handoff(self, passed: ReportHandoff) -> int:
        """See `ReportHandoff`."""
        state, form = self._state, passed.form
        grant = Grant(passed.target, passed.fence)
        # Absent: either a first copy of this report was carried out, or the source's lease has
        # ended and the lock may be another's by now.
        source = state.holders.remove(Grant(passed.source, passed.source_fence))
        if source is None:
            return WAS_HOLDER if grant in state.holders else WAS_ABSENT
        session = source.session
        # The client has relied on that one since the hand-off, so it is not the claim's own.
        if session and not self._session_for(passed.target.client, form, form.claim, claim=True):
            session = ""
        end = FOREVER + form.claim if session else self._ms + form.claim
        state.holders.add(Holder(grant, form, end, shared=False, claim=True, session=session))
        self.fence = max(self.fence, passed.fence)
        for waiter in passed.via:
            state.dequeue(waiter)
        return WAS_HOLDER

    def release(self, asked: Release | Discard) -> int:
        """See `Release`."""
        state, waiter, fence = self._state, asked.waiter, asked.fence
        self._asker = waiter.client
        # First of all, and in whatever state the waiter is: outdated requests may still arrive.
        if self._copies_until:
            self._leave_tombstone(waiter, -(-self._copies_until // 1000))
        # One step for release, timeout and cancellation: it decides alone whether the waiter gave
        # up before or after its grant.
        if not fence:
            if state.dequeue(waiter):
                if state.queue and state.open:
                    self._moved_up()
                    self._advance()
                return WAS_QUEUED
            held = state.holders.of(waiter)
            fence = 0 if held is None else held.grant.fence
        holder = state.holders.remove(Grant(waiter, fence))
        if holder is None:
            return WAS_ABSENT
        if holder.session:
            self._keep_numbers()
        # A lease that has ended was lost, although its holder could still release it.
        ended = min(holder.end, self._ms) if asked.lost or holder.end <= self._past else None
        # Closed for exclusive waiters only, the lock may still have room for shared ones.
        exclusive = not holder.shared
        if not (asked.entered and self._close(holder, lost=ended, entered=True) and exclusive):
            self._advance()
        return WAS_HOLDER

    def renew(self, asked: Renew) -> list[bool | None]:
        """See `Renew`; all of them are of this name."""
        return [self.renew_one(renewal) for renewal in asked.renewals]

    def renew_one(self, renewal: Renewal) -> bool:
        """One grant of `Renew`."""
        ttl = renewal.ttl
        holder = self._state.holders.get(Grant(renewal.waiter, renewal.fence))
        # An ended lease is not revived, even if no other was granted since: by its own deadline,
        # the client has given up the lock already.
        if holder is None or holder.end <= self._past:
            return False
        if ttl:
            session = self._session_for(holder.client, holder.form, ttl, claim=False)
            if not session:
                self._state.holders.prolong(holder, self._ms + ttl)
                self._state.keep(holder.end + protocol.A_MINUTE + holder.form.closes)
            elif holder.session != session or holder.end != FOREVER + ttl:
                self._state.holders.prolong(holder, FOREVER + ttl, session)
            holder.claim = False
        return True

    def finish(self, asked: Finish) -> int:
        """See `Finish`."""
        state = self._state
        done = Grant(_DONE, asked.fence)
        if state.holders.remove(Grant(asked.waiter, asked.fence)) is None:
            return WAS_HOLDER if done in state.holders else WAS_ABSENT
        # A late copy gets the answer `Done` for as long as that is remembered: so that must be
        # until the last copy at least.
        end = max(self._ms + asked.remember, -(-self._copies_until // 1000))
        form = Form(claim=0, fixed=True, once=True)
        state.holders.add(Holder(done, form, end, shared=False))
        self._dismiss(None)
        return WAS_HOLDER

    def go_on(self, rest: Rest) -> None:
        """Go on with what an earlier step has left; it may leave a `rest` again."""
        match rest.work:
            case "once":
                self._dismiss(rest.behind)
            case "stuck":
                removed = self._remove_stuck(rest.ended, rest.behind)
                # Some of them may have come back before they were removed: they ask once more.
                for grant in rest.ended:
                    client = grant.waiter.client
                    if client in removed:
                        self._push(client, GrantLost(self._name, *grant, "expired"))
                self._advance()
            case "request":
                self._request(rest.behind or 0)
            case "advance" | "count":
                self._advance(counted=rest.work == "count", behind=rest.behind)

    def detach(self, asked: Detach) -> int:
        """See `Detach`."""
        held = self._state.holders
        token = Grant(detached(asked.key), asked.fence)
        if token in held:
            return WAS_HOLDER
        if self._gave_up(token.waiter):  # discarded before this copy came
            return WAS_ABSENT
        holder = held.get(Grant(asked.waiter, asked.fence))
        if holder is None or holder.end <= self._past:
            return WAS_ABSENT
        held.remove(holder.grant)
        form, shared, end = replace(holder.form, fixed=True), holder.shared, self._ms + asked.ttl
        # By the clock, as nobody renews it, and the session of its client may end.
        held.add(Holder(token, form, end, shared=shared))
        self._state.keep(end + protocol.A_MINUTE + form.closes)
        return WAS_HOLDER

    def adopt(self, asked: Adopt) -> Granted | None:
        """See `Adopt`."""
        held, waiter, form, ttl = self._state.holders, asked.waiter, asked.form, asked.ttl
        if self._gave_up(waiter):
            return None
        own = held.of(waiter)
        if own is not None:  # asked again
            return Granted(own.grant.fence, self._left(own)) if own.end > self._past else None
        token = held.get(Grant(detached(asked.key), asked.fence))
        if token is None or token.end <= self._past:
            return None
        held.remove(token.grant)
        # Not by `_grant`: nobody waited for it.
        self.fence = max(self.fence + 1, asked.fence + 1, self._now)
        session = self._session_for(waiter.client, form, ttl, claim=False)
        end = FOREVER + ttl if session else self._ms + ttl
        grant = Grant(waiter, self.fence)
        held.add(Holder(grant, form, end, shared=token.shared, session=session))
        self._state.keep(self._ms + ttl + protocol.A_MINUTE + form.closes)
        return Granted(self.fence, ttl)

    def request(self, _: RequestRelease) -> int:
        """See `RequestRelease`."""
        self._request(0)
        return sum(self._listens(grant.waiter.client) for grant in self._held_behind(0))

    def break_(self, asked: Break) -> int:
        """See `Break`."""
        holders = self._state.holders
        found = map(holders.with_fence, dict.fromkeys(asked.fences))
        broken = [holder for holder in found if holder is not None]
        for holder in broken:
            holders.remove(holder.grant)
            if holder.session:
                self._keep_numbers()
            self._end(holder)
            if holder.has_client:
                self._push(holder.client, GrantLost(self._name, *holder.grant, "broken"))
            self._close(holder, lost=self._ms)
        if broken:
            self._advance()
        return len(broken)

    def downgrade(self, asked: Downgrade) -> int:
        """See `Downgrade`."""
        holder = self._state.holders.get(Grant(asked.waiter, asked.fence))
        if holder is None:
            return WAS_ABSENT
        if not holder.shared:
            if holder.end <= self._past:
                return WAS_ABSENT
            holder.shared = True
            self._advance()
        return WAS_HOLDER

    def resize(self, asked: Resize) -> int:
        """See `Resize`."""
        state, declared, limit, token = self._state, asked.declared, asked.limit, asked.token
        if token in state.resized and state.resized[token][1] > self._past:
            return state.resized[token][0]
        before = self._permits(declared)
        if token:
            until = -(-(self._copies_until or self._now) // 1000) + protocol.RESIZED
            alive = {each: known for each, known in state.resized.items() if known[1] > self._past}
            state.resized = alive | {token: (before, until)}
            state.keep(until)
        other = before if declared == limit else declared
        if other != limit:
            state.declared = other
        state.limit = limit
        state.keep(self._ms + asked.remember)
        if is_rate(limit):
            bucket = state.bucket = state.bucket or Bucket()
            bucket.see(rate_of(before), self._now, self._slack)
            bucket.resize(rate_of(before), rate_of(limit), self._now)
            self._moved_up()
        self._advance()
        return before

    def post(self, asked: Post) -> int:
        """See `Post`."""
        state = self._state
        if asked.declared and self._differs(asked.declared):
            return -(state.limit or 0)
        before = state.count
        if asked.value and asked.count >= before:
            state.value = asked.value
        state.count = max(state.count, asked.count)
        if asked.token and asked.token not in state.tokens:
            state.tokens.add(asked.token)
            state.count += 1
        state.keep(self._ms + asked.remember)
        self._advance(counted=state.count > before)
        return state.count

    def make_fence(self, _: MakeFence) -> int:
        """See `MakeFence`."""
        self.fence = max(self.fence + 1, self._now)
        return self.fence

    def read(self, _: ReadPosted) -> Posted:
        """See `ReadPosted`."""
        return Posted(self._state.count, self._state.value)

    def status(self, asked: ReadStatus) -> Status:
        """See `ReadStatus`."""
        held = self._state.holders
        if asked.waiters:
            return self.status_of(self.holders(held), self.waiters(self._state.queue))
        few, passed = list[Grant](), 0
        for grant, holder in held.items():
            if len(few) == FEW:
                break
            passed += 1
            if holder.end > self._past:
                few.append(grant)
        found = self.status_of(self.holders(few), ())
        return replace(found, more_holders=len(held) - passed)

    def holders(self, grants: Iterable[Grant]) -> list[Participant]:
        """The holders of these grants, as far as they are held, for a status; also
        reserved ones.
        """
        held = self._state.holders
        here = (held[grant] for grant in grants if grant in held)
        return [self._holder(holder) for holder in here if holder.end > self._past]

    def waiters(self, queue: Iterable[tuple[int, WaiterId]], first: int = 1) -> list[Participant]:
        """The waiters among these, for a status; the first of them has the place ``first``."""
        waiting = self._state.waiting
        here = ((ticket, waiter) for ticket, waiter in queue if waiter in waiting)
        return [
            self._waiter(waiter, ticket, place)
            for place, (ticket, waiter) in enumerate(here, start=first)
        ]

    def status_of(self, held: Iterable[Participant], waiting: Iterable[Participant]) -> Status:
        """The status with these holders, in any order, and these waiters in order.

        A waiter may be in both: it was granted the lock after the waiters were read.
        """
        closed, holders = 0.0, list[Participant]()
        for party in held:
            if party.client == RESERVED:
                closed = max(closed, party.remaining)
            else:
                holders.append(party)
        holders.sort(key=lambda party: party.fence)
        return Status(
            *(self._name, tuple(holders), _behind(holders, waiting), closed, self._state.limit),
            now=self._now / 1e6,
        )

    def reap(self, asking: WaiterId | None = None) -> None:
        """End leases that are over, but not too many at once; `acquire` does so by itself.

        That of the waiter which is asking is one of them. If there are more, that waiter is told to
        ask again, by the answer, and the first waiter by a push: each goes on with them.
        """
        state, ended = self._state, list[Holder]()
        own = None if asking is None else state.holders.of(asking)
        if own is not None and own.end <= self._past:
            state.holders.remove(own.grant)
            ended.append(own)
        ended += state.holders.take_ended(self._past, protocol.GRANTS - len(ended))
        self._reaped = bool(ended)
        stuck = dict[str, Grant]()
        for holder in ended:
            self._end(holder)
            if holder.has_client:
                self._push(holder.client, GrantLost(self._name, *holder.grant, "expired"))
            self._close(holder, lost=holder.end + self._slack // 1000)
            # A claim must be confirmed, whether or not the lease is renewed afterwards.
            if holder.claim or not holder.form.fixed:
                stuck.setdefault(holder.client, holder.grant)
        # So a stuck client costs one claim, and not one for each of its waiters. If it was only
        # slow, the push makes them ask again, with their old tickets.
        if stuck:
            self._remove_stuck(tuple(stuck.values()), None)
        if self._more_ended and state.queue and state.queue[0][1] != asking:
            self._ask_again(state.queue[0][1].client)

    @property
    def _more_ended(self) -> bool:
        """Whether another lease has ended: a step ends only so many."""
        first = self._state.holders.first
        return first is not None and first.end <= self._past

    def _left(self, holder: Holder) -> int:
        """How much of its lease is left, in ms, for the client that holds it."""
        return holder.end - FOREVER if holder.session else max(0, holder.end - self._ms)

    def _session_for(self, client: str, form: Form, ttl: int, *, claim: bool) -> str:
        if self._sessions is None:
            return ""
        return self._sessions.session_for(client, form, ttl, claim=claim)

    def _end_sessions(self, sessions: Sessions) -> None:
        """Let the lease of each hold end whose session has ended."""
        held = self._state.holders
        ended = {session for session in held.sessions if not sessions.is_alive(session)}
        if ended:
            for holder in held.values():
                if holder.session and Session(holder.client, holder.session) in ended:
                    held.prolong(holder, self._past)
            self._keep_numbers()

    def _keep_numbers(self) -> None:
        """Remember the numbers, if any, for a while after a hold that lived with a session."""
        if self._state.until:
            self._state.keep(self._ms + protocol.A_MINUTE)

    # Parts of the operations

    def _push(self, client: str, event: NameEvent) -> None:
        self.pushes.append(Push(client, event))

    def _ask_again(self, client: str) -> None:
        self.pushes.append(Push(client, AskAgain(self._name)))

    def _known(self, waiter: WaiterId, form: Form) -> Answer | None:
        """The answer if the waiter gave up, declares another number, holds already, or its work is
        done.
        """
        state = self._state
        if self._gave_up(waiter):
            return Busy(0)
        if form.declared:
            if self._differs(form.declared):
                return Differs(state.limit or 0)
            if form.rule is Rule.RATE and (granted := self._got_tokens(waiter, form)):
                return granted
        if self._more_ended:
            self.reap(waiter)
        if holder := state.holders.of(waiter):
            if self._reaped:
                self._advance()  # the ended leases may have blocked other waiters
            return Granted(holder.grant.fence, self._left(holder), claim=holder.claim)
        if form.once and (done := state.holders.of(_DONE)):
            state.dequeue(waiter)  # if `finish` has not come to it yet
            return Done(self._left(done))
        return None

    def _gave_up(self, waiter: WaiterId) -> bool:
        return self._state.tombstones.get(waiter, 0) > self._past

    def _enters(self, waiter: WaiterId, form: Form, *, wait: bool) -> bool:
        """Whether it enters at once; past the queue if it blocks no other waiter."""
        state = self._state
        completes = form.rule is Rule.GROUP and not wait and waiter not in state.waiting
        past = form.counts or completes or not state.queue
        return past and self._fits(form)

    def _taken(
        self, waiter: WaiterId, form: Form, *, wait: bool, displaced: bool, newcomer: bool
    ) -> Answer:
        state = self._state
        first = state.holders.first
        if first is None:
            if form.rule is Rule.RATE:
                return self._not_yet(waiter, form, wait=wait, displaced=displaced)
            until = 0 if self.rest else protocol.KEEP_ALIVE
        else:
            until = self._left(first) if first.session else max(0, first.end - self._past)
        if wait:
            ticket, _ = state.waiting[waiter]
            before = self._before(waiter, form) if newcomer else None
            return Queued(ticket, state.place(waiter), until, self._now, displaced, before)
        if not until:
            return Busy(-1)
        if first is None or first.is_reserved:
            return Busy(until)
        return Busy(until, replace(self._holder(first), alive=True))

    def _before(self, waiter: WaiterId, form: Form) -> Before | None:
        """The waiter or holder directly before a newcomer, if it is of the same client."""
        state = self._state
        # Only behind one exclusive holder, and at the tail: anywhere else the client could not tell
        # what a release would do, so it must leave the hand-off to the store.
        if form.shared or form.share or state.open or state.queue[-1][1] != waiter:
            return None
        if len(state.queue) > 1:
            before = Before(state.queue[-2][1], 0)
            share = state.waiting[before.waiter][1].share
        else:
            grant, holder = next(iter(state.holders.items()))
            before, share = Before(*grant), holder.form.share
        if share:
            return None
        return before if before.waiter.client == waiter.client else None

    def _enqueue(self, waiter: WaiterId, form: Form, ticket: int, max_waiters: int) -> bool:
        """Put it at its old place, or at the tail; False if ``max_waiters`` are there already."""
        state = self._state
        if waiter in state.waiting:
            return True
        if not ticket and 0 < max_waiters <= state.number(form):
            places = checked(self._now, state.number(form), protocol.CHECKS_IF_FULL)
            if form.share:
                self._remove_dead_of(state.holders.made_shares().queue(form), places)
            else:
                self._remove_dead(places)
            if max_waiters <= state.number(form):
                return False
        is_new, ticket = not ticket, ticket or self._ticket(form)
        state.enqueue(ticket, waiter, form)
        # The client behind it may rely on its own waiter or holder being directly before it.
        for _, behind in state.queue[state.place(waiter) :][:1]:
            if behind.client != waiter.client:
                self._push(behind.client, OrderUnknown(self._name, behind))
        if is_new and looks_for_dead(ticket, state.queue):
            self._remove_dead(checked(ticket // protocol.LOOKERS, len(state.queue)))
        return True

    def _ticket(self, form: Form) -> int:
        """The ticket of a newcomer: behind its priority's last, even if the clock was set back."""
        ticket, queue = self._now + form.priority * PRIORITY, self._state.queue
        before = bisect_left(queue, ticket + PRIORITY // 2, key=lambda place: place[0]) - 1
        return max(ticket, queue[before][0] + 1) if before >= 0 else ticket

    def _advance(  # noqa: C901, PLR0912  # one loop, whose order is that of the script
        self,
        *,
        asking: WaiterId | None = None,
        ttl: int = 0,
        counted: bool = False,
        behind: int | None = None,
    ) -> int:
        """Grant the lock from the head of the queue while waiters fit; the fence of ``asking``.

        With ``counted``, waiters for a count that is still too low are passed over; so were those
        up to the ticket ``behind``. After `GRANTS` grants, the next waiter's client is asked to ask
        again, and that step goes on. (If the push is lost, the clients ask by themselves, as after
        any lost push.) For a count, where each that asks enters, and no other, it is the rest of
        this step that goes on; so it is after many dead waiters. A group enters as a whole.
        """
        state, mine, granted, looked = self._state, 0, 0, 0
        over: list[tuple[int, WaiterId, Form]] = []
        at = state.rank(behind)
        while at < len(state.queue):
            ticket, head = state.queue[at] if state.holders.shares is None else state.next(at)
            _, form = state.waiting[head]
            if looked >= min(self._part, self._front) and not self._passing:
                self._leave_rest(counted=counted, behind=behind)
                break
            looked += 1
            enough = granted >= protocol.GRANTS and head != asking
            if form.share and self._waits_on(head, form, enough=enough):
                break
            state.dequeue(head)
            # Its client is gone, so it is skipped: a dead waiter costs nothing.
            if not self._is_there(head.client):
                self._moved_up()
                continue
            if not self._fits(form):
                over.append((ticket, head, form))
                if counted and form.counts and not form.declared:
                    behind = ticket
                    continue
                break
            if enough and self._is_enough(form):
                over.append((ticket, head, form))
                if form.counts:
                    self._leave_rest(counted=counted, behind=behind)
                else:
                    self._ask_again(head.client)
                break
            granted += 1
            if head == asking:
                mine = self._grant(head, form, ttl)
            else:
                # Whether a push is acted on is unknown. So its first lease is only the claim, which
                # the client's first renewal turns into the full ttl.
                fence = self._grant(head, form, form.claim, claim=True)
                granting = GrantPushed(self._name, head, form, fence, form.claim, self._now)
                self._push(head.client, granting)
            permits = form.rule is Rule.PERMITS
            all_taken = permits and state.holders.permits >= (state.limit or 0)
            if not form.shared or all_taken:
                break  # no other fits beside it
        # They keep their places: they did not fit, or their turn is in the next step.
        for each in over:
            state.enqueue(*each)
        self._passing = 0
        if state.bucket is not None:
            self._tell_first(state.bucket, asking)
        return mine

    def _waits_on(self, head: WaiterId, form: Form, *, enough: bool) -> bool:
        """Whether this waiter, which has a share and is next, is to wait on.

        It is not taken out and put back, as one without a share is: the start of its share depends
        on when it came.
        """
        if self._front < _ALL:
            return True  # a waiter that is to be removed first may be next
        if not self._is_there(head.client):
            return False
        fits = self._fits(form)
        if fits and enough:
            self._ask_again(head.client)
        return enough or not fits

    def _is_enough(self, form: Form) -> bool:
        """Whether such waiters enter in several steps, if they are many."""
        return form.rule in _IN_STEPS or (form.counts and self._in_parts)

    def _request(self, behind: int) -> None:
        """Ask holders with higher fences to release the lock, not too many in one step."""
        asked = 0
        for grant in self._held_behind(behind):
            if asked == self._part:
                self.rest = Rest("request", behind)
                break
            self._push(grant.waiter.client, ReleaseRequested(self._name, *grant))
            asked, behind = asked + 1, grant.fence

    def _held_behind(self, fence: int) -> Iterator[Grant]:
        """The grants that are held, with higher fences; in their order, as they were added."""
        for grant, holder in self._state.holders.items():
            if grant.fence > fence and holder.end > self._past and holder.has_client:
                yield grant

    def _leave_rest(self, *, counted: bool, behind: int | None) -> None:
        """Leave the rest of the waiters to another step, unless there is a rest already."""
        self.rest = self.rest or Rest("count" if counted else "advance", behind)

    def _remove_stuck(self, ended: tuple[Grant, ...], behind: int | None) -> set[str]:
        """Remove waiters of the clients of these grants from the queue; the clients of these."""
        clients = {grant.waiter.client for grant in ended}
        gone, behind = self._remove_part(lambda each: each.client in clients, behind)
        if behind is not None:
            self.rest = Rest("stuck", behind, ended)
            self._front = self._state.rank(behind)
        return {waiter.client for waiter in gone}

    def _dismiss(self, behind: int | None) -> None:
        """Remove waiters whose work is done from the queue, and tell their clients."""
        waiting = self._state.waiting
        gone, behind = self._remove_part(lambda each: waiting[each][1].once, behind)
        for client in dict.fromkeys(each.client for each in gone):
            self._ask_again(client)
        if behind is not None:
            self.rest = Rest("once", behind)

    def _remove_part(
        self, goes: Callable[[WaiterId], bool], behind: int | None
    ) -> tuple[list[WaiterId], int | None]:
        """Remove these among the waiters behind that ticket, as many as a step looks at.

        Returns the last ticket among those that it has looked at, too; None if there are no others.
        """
        state = self._state
        start = state.rank(behind)
        places = range(start, min(start + self._part, len(state.queue)))
        behind = None
        if places.stop < len(state.queue):
            last = state.queue[places.stop - 1][0]
            behind = last if state.queue[-1][0] > last else None
        return state.remove(goes, places), behind

    def _grant(self, waiter: WaiterId, form: Form, lease: int, *, claim: bool = False) -> int:
        if form.share and self._state.holders.shares is not None:
            self._state.holders.shares.charge(form)
        if form.shared and form.rule is Rule.RATE:
            return self._take(waiter, form)
        # The clock lets fences grow even if the last one was forgotten, or lost in a fail-over; the
        # "+ 1", even if the clock was set back.
        self.fence = max(self.fence + 1, self._now)
        grant, until = Grant(waiter, self.fence), self._ms + lease
        session = ""
        if self._sessions is not None:
            session = self._session_for(waiter.client, form, lease, claim=claim)
        end = FOREVER + lease if session else until
        self._state.holders.add(
            Holder(grant, form, end, shared=form.shared, claim=claim, session=session)
        )
        if form.shared:
            self._state.keep(until + protocol.A_MINUTE + form.closes)
        return self.fence

    def _fits(self, form: Form) -> bool:  # noqa: PLR0911  # a table of the rules
        """Whether such a waiter, which is not in the queue now, may enter beside the holders."""
        state = self._state
        if not state.open or not (form.shared or not state.holders):
            return False  # an exclusive waiter enters alone
        if form.rule is Rule.GROUP:
            return self._is_full(form.number - 1)
        if form.rule is Rule.COUNT:
            return state.count >= form.number
        if form.rule is Rule.PERMITS:
            return state.holders.permits + form.number <= self._permits(form.declared)
        if form.rule is Rule.RATE:
            return self._due(form, 0) <= self._now
        if form.rule is Rule.ALIKE:  # the sum is of 1s, or of `MANY`s
            alike = state.holders.permits
            return alike < MANY - 1 if form.number == ONE else alike % MANY == 0
        return True

    # Of a rate limit

    def _bucket(self, form: Form) -> tuple[Bucket, Rate]:
        bucket = self._state.bucket
        if bucket is None:
            bucket = self._state.bucket = Bucket()
        rate = rate_of(self._permits(form.declared))
        bucket.see(rate, self._now, self._slack)
        return bucket, rate

    def _got_tokens(self, waiter: WaiterId, form: Form) -> Granted | None:
        """The grant of a waiter that got its tokens before, as long as that is remembered."""
        bucket, _ = self._bucket(form)
        if bucket.granted.get(waiter, 0) <= self._past:
            return None
        return Granted(max(bucket.full(self._now) - self._now, 1), form.claim)

    def _take(self, waiter: WaiterId, form: Form) -> int:
        """Give it its tokens, which are there; see `Rule.RATE` for the number that it gets."""
        (bucket, rate), until = self._bucket(form), self._ms + form.claim
        left = bucket.take(rate, form.number, self._now)
        bucket.remember(waiter, until, self._past)
        self._state.keep(max(bucket.full_at // 1000 + 1, until) + protocol.A_MINUTE)
        return left

    def _due(self, form: Form, before: int) -> int:
        """When its tokens are there, after ``before`` others were taken (µs)."""
        bucket, rate = self._bucket(form)
        return bucket.due(rate, form.number, before, self._now)

    def _not_yet(self, waiter: WaiterId, form: Form, *, wait: bool, displaced: bool) -> Answer:
        """The answer with the time at which its tokens are there, if all before it take theirs."""
        state = self._state
        rank = state.place(waiter) - 1 if waiter in state.waiting else len(state.queue)
        ahead = [state.waiting[each][1].number for _, each in state.queue[:LOOKED_AHEAD][:rank]]
        due = self._due(form, sum(ahead) + rank - len(ahead))
        _, first = state.next(0) if wait else (0, waiter)
        if wait and state.waiting[first][1].share and first.client == waiter.client:
            due = self._due(state.waiting[first][1], 0)  # its client asks for the one that is next
        left = 0 if self.rest else max(due - self._now, 1)
        if not wait:
            return Busy(left or -1)
        ticket, _ = state.waiting[waiter]
        return Queued(ticket, rank + 1, -(-left // 1000), self._now, displaced)

    def _moved_up(self) -> None:
        """Waiters of a rate limit come earlier than they were told: some before them have left."""
        state = self._state
        if state.bucket is not None and state.queue:
            state.bucket.outdated = state.queue[-1][0]

    def _tell_first(self, bucket: Bucket, asking: WaiterId | None) -> None:
        """Let the first waiter ask, if it was told a later time than that of its tokens.

        With a share, whoever is next may have been told any time; an answer to its client says it.
        """
        state = self._state
        if state.queue:
            ticket, first = state.next(0)
            if state.waiting[first][1].share:
                of_it = asking is not None and asking.client == first.client
                answered = of_it and asking in state.waiting
                outdated = True
            else:
                answered, outdated = first == asking, ticket <= bucket.outdated
            if outdated and bucket.told != ticket and not answered:
                bucket.told = ticket
                self._ask_again(first.client)

    def _is_full(self, others: int) -> bool:
        """Whether ``others`` more of its group are in the queue, or the group is passing now."""
        if self._passing:
            self._passing -= 1
            return True
        if len(self._state.queue) >= others:
            self._remove_dead(range(len(self._state.queue)))
        if len(self._state.queue) < others:
            return False
        self._passing = others
        return True

    def _close(self, holder: Holder, *, lost: int | None, entered: bool = False) -> bool:
        """Keep the lock closed for as long as the form of an ended grant demands; True if closed.

        A reserved holder keeps others out. Its lease ends like any other, and it is shared if the
        ended grant was. ``entered``: the client has reported that the grant was entered.
        """
        form, fence = holder.form, holder.grant.fence
        if not form.closes:
            return False
        granted = min(fence, self._now) // 1000
        # Else a claim may have been entered, or not.
        unsure = holder.claim and not entered
        opens = opens_at(form, granted, lost, confirmed=not unsure)
        if opens <= self._past:
            return False
        closed = Grant(_CLOSED, fence)
        terms = Form(
            claim=0,
            shared=holder.shared,
            rule=form.rule,
            number=form.number,
            declared=form.declared,
            fixed=True,
        )
        self._state.holders.add(Holder(closed, terms, opens, shared=holder.shared))
        self._state.keep(opens + protocol.A_MINUTE)
        if self._state.queue:
            self._ask_again(self._state.queue[0][1].client)
        return True

    def _end(self, holder: Holder) -> None:
        """Its grant was lost. Its client may have handed the lock off locally, under
        higher fences.
        """
        self.fence = max(self.fence, holder.grant.fence + MAX_AHEAD)

    def _leave_tombstone(self, waiter: WaiterId, until: int) -> None:
        """Leave a tombstone, for as long as copies of the waiter's requests may still arrive."""
        state = self._state
        alive = {each: end for each, end in state.tombstones.items() if end > self._past}
        state.tombstones = alive | {waiter: until}
        state.keep(until)

    def _remove_dead(self, places: range) -> None:
        self._state.remove(lambda waiter: not self._is_there(waiter.client), places)

    def _remove_dead_of(self, share: Sequence[Waiting], places: range) -> None:
        """Remove the dead waiters of a share, of those at these places in it."""
        for _, waiter, _ in share[places.start : places.stop]:
            if not self._is_there(waiter.client):
                self._state.dequeue(waiter)

    def _is_there(self, client: str) -> bool:
        return client == self._asker or self._listens(client)

    def _permits(self, declared: int) -> int:
        """The number of permits; the declared one becomes it if there is none yet."""
        if self._state.limit is None:
            self._state.limit = declared
            self._state.keep(self._ms + protocol.A_MINUTE)
        return self._state.limit

    def _differs(self, declared: int) -> bool:
        """Whether the store has another number than this."""
        return self._permits(declared) != declared != self._state.declared

    # What `status` shows

    def _holder(self, holder: Holder) -> Participant:
        waiter, fence = holder.grant
        ends = holder.end - (FOREVER if holder.session else self._now / 1000)
        left = max(ends, 0) / 1000
        return self._participant(
            *(waiter, holder.form, fence / 1e6),
            fence=fence,
            remaining=left,
            shared=holder.shared,
        )

    def _waiter(self, waiter: WaiterId, ticket: int, place: int) -> Participant:
        _, form = self._state.waiting[waiter]
        since = (ticket - form.priority * PRIORITY) / 1e6
        return self._participant(waiter, form, since, place=place, shared=form.shared)

    def _participant(
        self,
        waiter: WaiterId,
        form: Form,
        since: float,
        *,
        shared: bool,
        place: int = 0,
        fence: int = 0,
        remaining: float = 0.0,
    ) -> Participant:
        host, pid = self._metadata(waiter.client)
        return Participant(
            client=waiter.client,
            host=host,
            pid=pid,
            since=since,
            place=place,
            fence=fence,
            remaining=remaining,
            shared=shared,
            permits=form.permits,
            seq=waiter.seq,
            alive=self._listens(waiter.client),
            share=form.share,
            weight=form.weight / 1000,
        )


def _behind(
    holders: Iterable[Participant], waiting: Iterable[Participant]
) -> tuple[Participant, ...]:
    """The waiters that are not holders by now, each at its place."""
    held = {(party.client, party.seq) for party in holders}
    return tuple(placed(party for party in waiting if (party.client, party.seq) not in held))


_METHODS: Final[dict[type[Operation[Any]], Callable[[Step, Any], Any]]] = {
    Acquire: Step.acquire,
    Release: Step.release,
    ReportHandoff: Step.report_handoff,
    Renew: Step.renew,
    ReadStatus: Step.status,
    Finish: Step.finish,
    RequestRelease: Step.request,
    Downgrade: Step.downgrade,
    Detach: Step.detach,
    Adopt: Step.adopt,
    Discard: Step.release,
    Resize: Step.resize,
    Post: Step.post,
    MakeFence: Step.make_fence,
    ReadPosted: Step.read,
    Break: Step.break_,
}
"""What each operation does."""
