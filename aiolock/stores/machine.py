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

Beside it is what can be read alone: what a name has (`_state`, with `_holders` and `_shares`), the
tokens of a rate limit (`_tokens`), for how long a lock stays closed (`_delays`), who looks for dead
waiters (`_dead_waiters`), what `status` shows (`_view`), the sessions that some stores have
(`_sessions`), and what follows from a step (`_effects`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, Final, TypeVar

from aiolock import protocol
from aiolock._rate import is_rate
from aiolock.protocol import (
    MAX_AHEAD,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Acquire,
    Adopt,
    Answer,
    AskAgain,
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
from aiolock.stores._dead_waiters import checked, looks_for_dead
from aiolock.stores._delays import closing
from aiolock.stores._effects import NameEvent, Push, Rest
from aiolock.stores._holders import RESERVED, Grant, Holder
from aiolock.stores._sessions import FOREVER, Session, Sessions
from aiolock.stores._shares import Waiting
from aiolock.stores._state import NameState
from aiolock.stores._tokens import Tokens, client_to_tell, moved_up
from aiolock.stores._view import View
from aiolock.trees import MakeFence, are_alike

Value = TypeVar("Value")

_IN_STEPS: Final = (Rule.ALWAYS, Rule.PERMITS, Rule.RATE, Rule.ALIKE)
"""The rules of waiters that enter in several steps, if they are many."""
_ALL: Final = 1 << 60
"""More waiters than a queue ever has."""

_DONE: Final = WaiterId(RESERVED, 1)
"""The reserved holder of a lock whose work is done, for as long as that is remembered."""


def _unknown(_: str) -> tuple[str, int]:
    return "", 0


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

    # How a step begins; most end like that, too.
    rest: Rest | None = None
    _asker = ""
    """The client that is being answered: it is alive, since it has just asked, listening or not."""
    _copies_until = 0
    _front = _ALL
    """How many waiters are in front of those that the rest of this step is about."""
    _passing = 0
    """How many more waiters of a full group enter."""
    _reaped = False
    """Whether this step has found and removed leases that have ended."""

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
        self._listens = listens
        self._metadata = metadata
        self.fence = fence
        self.pushes: list[Push] = []
        self._in_parts = in_parts
        self._part = protocol.PART if in_parts else _ALL
        """The most waiters of the queue that it looks at."""
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
        if copies_until:
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
            state.leave_tombstone(waiter, -(-self._copies_until // 1000), self._past)
        # One step for release, timeout and cancellation: it decides alone whether the waiter gave
        # up before or after its grant.
        if not fence:
            if state.dequeue(waiter):
                if state.queue and state.open:
                    moved_up(state)
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
        before = state.permits(declared, self._ms)
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
            self._tokens.resize(before, limit)
        self._advance()
        return before

    def post(self, asked: Post) -> int:
        """See `Post`."""
        state = self._state
        if asked.declared and state.differs(asked.declared, self._ms):
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
        return self.view.status(asked)

    @property
    def view(self) -> View:
        """The state, as a status shows it."""
        name, state, now, past = self._name, self._state, self._now, self._past
        return View(name, state, now, past, listens=self._listens, metadata=self._metadata)

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
    def _tokens(self) -> Tokens:
        """The tokens of this name, which is a rate limit."""
        return Tokens(self._state, self._now, self._past, self._slack)

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
            if state.differs(form.declared, self._ms):
                return Differs(state.limit or 0)
            if form.rule is Rule.RATE and (granted := self._tokens.got(waiter, form)):
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
                at_once = self.rest is not None
                return self._tokens.answer(
                    waiter, form, wait=wait, displaced=displaced, at_once=at_once
                )
            until = 0 if self.rest else protocol.KEEP_ALIVE
        else:
            until = self._left(first) if first.session else max(0, first.end - self._past)
        if wait:
            ticket, _ = state.waiting[waiter]
            before = state.before(waiter, form) if newcomer else None
            return Queued(ticket, state.place(waiter), until, self._now, displaced, before)
        if not until:
            return Busy(-1)
        if first is None or first.is_reserved:
            return Busy(until)
        return Busy(until, replace(self.view.holder(first), alive=True))

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
        is_new, ticket = not ticket, ticket or state.new_ticket(form, self._now)
        state.enqueue(ticket, waiter, form)
        # The client behind it may rely on its own waiter or holder being directly before it.
        for _, behind in state.queue[state.place(waiter) :][:1]:
            if behind.client != waiter.client:
                self._push(behind.client, OrderUnknown(self._name, behind))
        if is_new and looks_for_dead(ticket, state.queue):
            self._remove_dead(checked(ticket // protocol.LOOKERS, len(state.queue)))
        return True

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
                moved_up(state)
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
            told = client_to_tell(state.bucket, state, asking)
            if told is not None:
                self._ask_again(told)
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
            return self._tokens.take(waiter, form)
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
            return state.holders.permits + form.number <= state.permits(form.declared, self._ms)
        if form.rule is Rule.RATE:
            return self._tokens.are_due(form)
        if form.rule is Rule.ALIKE:
            return are_alike(form.number, state.holders.permits)
        return True

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

        ``entered``: the client has reported that the grant was entered.
        """
        if not holder.form.closes:
            return False
        closed = closing(holder, lost, self._now, self._past, entered=entered)
        if closed is None:
            return False
        self._state.holders.add(closed)
        self._state.keep(closed.end + protocol.A_MINUTE)
        if self._state.queue:
            self._ask_again(self._state.queue[0][1].client)
        return True

    def _end(self, holder: Holder) -> None:
        """Its grant was lost. Its client may have handed the lock off locally, under
        higher fences.
        """
        self.fence = max(self.fence, holder.grant.fence + MAX_AHEAD)

    def _remove_dead(self, places: range) -> None:
        if self._state.remove(lambda waiter: not self._is_there(waiter.client), places):
            moved_up(self._state)

    def _remove_dead_of(self, share: Sequence[Waiting], places: range) -> None:
        """Remove the dead waiters of a share, of those at these places in it."""
        for _, waiter, _ in share[places.start : places.stop]:
            if not self._is_there(waiter.client):
                self._state.dequeue(waiter)
                moved_up(self._state)

    def _is_there(self, client: str) -> bool:
        return client == self._asker or self._listens(client)


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
