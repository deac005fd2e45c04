"""One server that votes, as a pure state machine: no I/O, no clock, no event loop.

Members in this process run this code, and the Redis scripts are tested against it. Read it beside
``redis/lua/quorum/*.lua``: each method of `QuorumServerStep` is the script of the same name.

A server is a fair queue whose grants are votes; `aiolock.stores.quorum._votes` says what follows
from the votes of several servers. The differences from `aiolock.stores.machine` serve that. A
waiter brings its ticket, so that the queues of all servers have one order. A vote has a number that
only grows, and every message about a vote names it. A waiter that yields its vote goes back to the
queue, and gets a new number even if it is first. A server that may have forgotten its votes gives
none for a while.

There is one vote out, or there are several to waiters that share, as with the grants of a single
server: a reader waits behind a waiting writer, and readers next to each other in the queue get
votes together. If a waiter comes before waiters with votes, and does not share with them, the
server inquires of all of them.

Work that is done once leaves a *done marker* in place of its vote: as long as it is remembered,
that is a vote with a reserved owner, so a server never has both a marker and a vote out. See
`aiolock.stores.quorum._done_markers` for what follows. A waiter for a count needs no vote and
blocks no other waiter: it is notified when the count is reached.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from aiolock.protocol import (
    CHECKS_IF_FULL,
    KEEP_ALIVE,
    LOOKERS,
    PRIORITY,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    WAS_UNKNOWN,
    AskAgain,
    Form,
    GrantLost,
    GrantPushed,
    ReleaseRequested,
    WaiterId,
)
from aiolock.stores._member import (
    ALONE,
    COUNTED,
    GONE,
    LOOKED_AT,
    LOST,
    OUTSIDE,
    REMEMBERED,
    SHARED,
    UNBOUNDED,
    Answer,
    DoneMarker,
    DoneRecord,
    InQueue,
    Kept,
    MemberEvent,
    NotVoting,
    QueueIsFull,
    Refused,
    Voted,
    VoteInquired,
    VoteRequest,
)
from aiolock.stores.machine import checked, looks_for_dead

RESERVED: Final = "-"
"""The reserved owner of a vote that keeps a name closed for a while."""
_CLOSED: Final = WaiterId(RESERVED, 0)
_DONE: Final = WaiterId(RESERVED, 1)
"""The reserved owner of a done marker."""


@dataclass(slots=True)
class Vote:
    """A vote that is out."""

    waiter: WaiterId
    form: Form
    number: int
    ticket: int
    end: int
    """The end of the lease, in ms."""
    granted: int
    """The time of the vote, in ms."""
    unsure: bool = True
    """Its client has not confirmed that the waiter is inside."""

    @property
    def is_reserved(self) -> bool:
        return self.waiter.client == RESERVED

    @property
    def marks(self) -> bool:
        """Whether it is a done marker."""
        return self.waiter == _DONE

    @property
    def place(self) -> tuple[int, WaiterId]:
        """The place that its waiter would have in the queue."""
        return self.ticket, self.waiter


class QuorumServerState:
    """The state of one name."""

    __slots__ = (
        "count",
        "last",
        "last_until",
        "posted_until",
        "queue",
        "shared",
        "tombstones",
        "value",
        "vote",
        "waiting",
    )

    def __init__(self) -> None:
        self.vote: Vote | None = None
        """The vote that is out to an exclusive waiter, or to a reserved owner."""
        self.shared: list[Vote] = []
        """The votes that are out to waiters that share, if `vote` is None."""
        self.queue: list[tuple[int, WaiterId]] = []
        """Tickets and waiters, in order."""
        self.waiting: dict[WaiterId, tuple[int, Form]] = {}
        """The same, by waiter."""
        self.last = 0
        """The highest number known here, until `last_until` (ms)."""
        self.last_until = 0
        self.tombstones: dict[WaiterId, int] = {}
        """Waiters that gave up, and until when (ms) copies of their requests may arrive."""
        self.count = 0
        self.value = ""
        """The posted value, until `posted_until` (ms)."""
        self.posted_until = 0

    @property
    def out(self) -> list[Vote]:
        """All votes that are out, in the order of their ends."""
        if self.vote is not None:
            return [self.vote]
        return sorted(self.shared, key=lambda vote: vote.end)

    def vote_of(self, waiter: WaiterId, number: int = 0) -> Vote | None:
        """The vote of this waiter; only the one of that number, unless it is 0."""
        mine = [vote for vote in self.out if vote.waiter == waiter]
        return next((vote for vote in mine if number in {0, vote.number}), None)

    def put(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.append(vote)
        else:
            self.vote = vote

    def take(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.remove(vote)
        else:
            self.vote = None

    def fits(self, form: Form) -> bool:
        """Whether a waiter of this form may have a vote beside those that are out."""
        return self.vote is None and (form.shared or not self.shared)

    def idle(self, ms: int) -> bool:
        """Whether nothing of this name has to be kept."""
        if any(vote.end > ms for vote in self.out) or self.queue:
            return False
        if self.posted_until > ms:
            return False
        return self.last_until <= ms and all(end <= ms for end in self.tombstones.values())

    def enqueue(self, request: tuple[int, WaiterId], form: Form) -> None:
        ticket, waiter = request
        if waiter not in self.waiting:
            self.waiting[waiter] = ticket, form
            insort(self.queue, request)

    def leave(self, waiter: WaiterId) -> bool:
        if waiter not in self.waiting:
            return False
        ticket, _ = self.waiting.pop(waiter)
        del self.queue[bisect_left(self.queue, (ticket, waiter))]
        return True


class QuorumServerStep:
    """One operation on the state of one name, at one moment.

    ``now`` is the server's clock, in µs; ``not_voting`` is for how many ms it does not vote, 0 if
    it does (see `NotVoting`). ``listens`` says whether a client is there. Afterwards `pushes` must
    be sent, in order.
    """

    def __init__(
        self,
        name: str,
        state: QuorumServerState,
        now: int,
        listens: Callable[[str], bool],
        not_voting: int = 0,
    ) -> None:
        self._name = name
        self._state = state
        self._now = now
        self._ms = now // 1000
        self._listens = listens
        self._not_voting = not_voting
        self.pushes: list[tuple[str, MemberEvent]] = []
        """Each with the client that it is for."""
        self._asker = ""
        self._proposed = 0
        """The number that the asking client proposes for its own vote."""
        if state.last_until <= self._ms:
            state.last = 0
        if state.posted_until <= self._ms:
            state.count, state.value = 0, ""

    # The operations

    def vote(
        self, request: VoteRequest, ttl: int, proposal: int, *, wait: bool, most: int
    ) -> Answer:
        """See `Member.vote`."""
        state, waiter, form = self._state, request.waiter, request.form
        self._asker, self._proposed = waiter.client, proposal
        said = self._without_a_vote(request, wait=wait)
        if said is not None:
            return said
        place, fits = (request.ticket, waiter), state.fits(form)
        if fits:
            head = self._head()
            if head is None or place <= head:
                state.leave(waiter)
                return self._cast(place, form, ttl, proposal)
        removed = False
        if wait:
            full = self._full_queue(waiter, most)
            if full is not None:
                return full
            removed = self._enqueue(place, form)
            # Two waiters may each have some of the servers' votes. All servers ask for them in
            # favour of the lower ticket, so one of the two yields, and there is no deadlock.
            if not fits:
                self._inquire(place, form)
        # Dead waiters may have blocked those that would share.
        voted = self._advance(asking=waiter) if fits or (removed and state.shared) else None
        return voted or self._in_queue(waiter, wait=wait)

    def release(
        self, waiter: WaiterId, highest: int, upto: int, *, entered: int, tombstone_until: int = 0
    ) -> int:
        """See `Member.release`; ``tombstone_until``: until when (µs) copies of its requests may
        arrive.
        """
        state = self._state
        self._asker = waiter.client
        was_in_line = state.leave(waiter)
        self._learn(highest)
        if tombstone_until:
            alive = {each: end for each, end in state.tombstones.items() if end > self._ms}
            state.tombstones = alive | {waiter: -(-tombstone_until // 1000)}
        vote = state.vote_of(waiter)
        # The waiter may have got a newer vote since: this release is about the older ones only.
        if vote is None or (upto != UNBOUNDED and vote.number > upto):
            if was_in_line and state.shared:
                self._advance()  # it may have blocked waiters behind it
            missing = WAS_UNKNOWN if vote is None and self._not_voting else WAS_ABSENT
            return WAS_QUEUED if was_in_line else missing
        state.take(vote)
        lost = self._ms if entered == LOST else None
        if entered != OUTSIDE:
            self._close(vote, lost=lost, entered=entered)
        if state.vote is None:
            self._advance()
        return WAS_HOLDER

    def yield_vote(self, request: VoteRequest, number: int) -> Answer:
        """See `Member.yield_vote`."""
        state, waiter = self._state, request.waiter
        self._asker = waiter.client
        vote = state.vote_of(waiter, number)
        if vote is None:
            return Refused(self._now)
        # In one step, so that no other can take the vote while the waiter is in neither place.
        state.take(vote)
        state.enqueue((request.ticket, waiter), request.form)
        return self._advance(asking=waiter) or self._in_queue(waiter, wait=True)

    def renew(self, waiter: WaiterId, number: int, ttl: int, fence: int, *, entered: bool) -> bool:
        """See `Member.renew`."""
        vote = self._state.vote_of(waiter, number)
        if vote is None or vote.end <= self._ms:
            return False
        if ttl:
            vote.end = max(vote.end, self._ms + ttl)
            vote.unsure = vote.unsure and not entered
            self._learn(fence, lasts=ttl)
        return True

    def reserve(self, waiter: WaiterId, number: int, fence: int) -> int:
        """See `Member.reserve`."""
        state, vote = self._state, self._state.vote_of(waiter, number)
        if vote is None or vote.end <= self._ms:
            return GONE
        # Learned before the answer: the client uses this fence without another message.
        self._learn(fence, lasts=vote.end - self._ms)
        if len(state.queue) > LOOKED_AT:
            return SHARED
        own = all(each.client == waiter.client for _, each in state.queue)
        return ALONE if own else SHARED

    def take_away(self, waiter: WaiterId) -> int:
        """See `Member.take_away`."""
        vote = self._state.vote_of(waiter)
        if vote is None:
            return 0
        self._end(vote, "broken", self._ms)
        if self._state.vote is None:
            self._advance()
        return 1

    def request(self) -> int:
        """See `Member.request`."""
        asked = [vote for vote in self._state.out if not vote.is_reserved and vote.end > self._ms]
        for vote in asked:
            self._push(vote.waiter, ReleaseRequested(self._name, vote.waiter, vote.number))
        return sum(self._listens(vote.waiter.client) for vote in asked)

    def finish(self, waiter: WaiterId, fence: int, remember: int, until: int) -> int:
        """See `Member.finish`."""
        state, vote = self._state, self._state.vote
        known = vote if vote is not None and vote.marks and vote.end > self._ms else None
        if not remember:
            return int(known is not None and known.number == fence)
        if vote is not None and vote.end > self._ms:
            if not vote.is_reserved and vote.waiter != waiter:
                return 0
        elif state.shared or (vote is not None and vote.waiter != waiter):
            self._reap()
            if state.shared:
                return 0
            vote = state.vote  # the name may be closed for a while now
        end = min(self._ms + remember, until or self._ms + remember)
        if end <= self._ms:
            return int(known is not None)
        state.leave(waiter)
        if vote is not None and vote.is_reserved:
            end = max(end, vote.end)
        number = fence if known is None else max(fence, known.number)
        terms = Form(claim=0, fixed=True, once=True)
        state.vote = Vote(_DONE, terms, number, 0, end, self._ms, unsure=False)
        waiting = [each for _, each in state.queue if state.waiting[each][1].once]
        for each in waiting:
            state.leave(each)
        for client in dict.fromkeys(each.client for each in waiting):
            self.pushes.append((client, AskAgain(self._name)))
        return 1

    def query_done(self, forgot: int) -> DoneRecord:
        """See `Member.query_done`; ``forgot``: how long ago the server lost its memory."""
        vote = self._state.vote
        if vote is None or not vote.marks or vote.end <= self._ms:
            return DoneRecord(0, 0, forgot, self._now)
        return DoneRecord(vote.number, vote.end - self._ms, forgot, self._now)

    def post(self, count: int, value: str, remember: int) -> int:
        """See `Member.post`."""
        state = self._state
        if value and count >= state.count:
            state.value = value
        state.count = max(state.count, count)
        state.posted_until = max(state.posted_until, self._ms + remember)
        for _, waiter in list(state.queue):
            form = state.waiting[waiter][1]
            if not form.counts or form.number > state.count:
                continue
            state.leave(waiter)
            if self._listens(waiter.client):
                reached = GrantPushed(self._name, waiter, form, form.number, COUNTED, self._now)
                self._push(waiter, reached)
        return state.count

    def read(self) -> Kept:
        """See `Member.read`."""
        state = self._state
        return Kept(state.count, state.value, max(0, state.posted_until - self._ms))

    # The steps of the operations

    def _without_a_vote(self, request: VoteRequest, *, wait: bool) -> Answer | None:
        """The answer if the waiter gets no vote, or has one already; None otherwise."""
        state, (_, waiter, form, _) = self._state, request
        if self._not_voting:
            return NotVoting(self._not_voting, self._now)
        if state.tombstones.get(waiter, 0) > self._ms:
            return Refused(self._now)
        if form.counts:
            return self._counted(request, wait=wait)
        self._reap()
        vote = state.vote_of(waiter)
        if vote is not None:
            return Voted(vote.number, vote.end - self._ms, self._now)
        vote = state.vote
        if form.once and vote is not None and vote.marks:
            state.leave(waiter)
            return DoneMarker(vote.number, vote.end - self._ms, self._now)
        return None

    def _counted(self, request: VoteRequest, *, wait: bool) -> Answer:
        """The answer to a waiter for a count: reached, or it waits in the queue for a push."""
        state, form = self._state, request.form
        if state.count >= form.number:
            state.leave(request.waiter)
            return Voted(form.number, COUNTED, self._now)
        if wait:
            self._enqueue((request.ticket, request.waiter), form)
        return InQueue(KEEP_ALIVE, int(wait), self._now)

    def _inquire(self, place: tuple[int, WaiterId], form: Form) -> None:
        """Ask for the votes of all waiters behind this one that do not share with it."""
        for vote in self._state.out:
            if (
                place < vote.place
                and not vote.is_reserved
                and not (form.shared and vote.form.shared)
            ):
                self._push(vote.waiter, VoteInquired(self._name, vote.waiter, vote.number))

    def _reap(self) -> None:
        """Remove votes whose lease has ended, and the waiters of their clients, which are stuck."""
        state, stuck = self._state, set[str]()
        for vote in state.out:
            if vote.end <= self._ms:
                self._end(vote, "expired", vote.end)
                if vote.unsure or not vote.form.fixed:
                    stuck.add(vote.waiter.client)
        for _, waiter in list(state.queue) if stuck else ():
            if waiter.client in stuck:
                state.leave(waiter)

    def _end(self, vote: Vote, reason: str, lost: int) -> None:
        """A vote was lost."""
        self._state.take(vote)
        if not vote.is_reserved:
            self._push(vote.waiter, GrantLost(self._name, vote.waiter, vote.number, reason))
            self._close(vote, lost=lost)

    def _head(self) -> tuple[int, WaiterId] | None:
        """The first live waiter; dead waiters before it are removed."""
        # Dead waiters are skipped in this very step: they cost nothing.
        queue = self._state.queue
        while queue and not self._is_there(queue[0][1].client):
            self._state.leave(queue[0][1])
        return queue[0] if queue else None

    def _push(self, waiter: WaiterId, event: MemberEvent) -> None:
        self.pushes.append((waiter.client, event))

    def _is_there(self, client: str) -> bool:
        return client == self._asker or self._listens(client)

    def _full_queue(self, waiter: WaiterId, most: int) -> QueueIsFull | None:
        """The answer if ``most`` other waiters are in the queue; dead ones do not count."""
        state = self._state
        if 0 < most <= len(state.queue) and waiter not in state.waiting:
            self._remove_dead(checked(self._now, len(state.queue), CHECKS_IF_FULL))
            if most <= len(state.queue):
                full = QueueIsFull(len(state.queue), self._now)
                if state.shared:
                    self._advance()  # dead waiters may have kept others from sharing
                return full
        return None

    def _enqueue(self, place: tuple[int, WaiterId], form: Form) -> bool:
        """Put it in the queue; returns whether dead waiters were removed, see `looks_for_dead`."""
        state, (ticket, waiter) = self._state, place
        is_new = waiter not in state.waiting
        state.enqueue(place, form)
        looks = is_new and looks_for_dead(ticket, state.queue)
        return looks and self._remove_dead(checked(ticket // LOOKERS, len(state.queue)))

    def _remove_dead(self, places: range) -> bool:
        """Remove the waiters of dead clients at these places; whether there were any."""
        state, before = self._state, len(self._state.queue)
        for _, waiter in state.queue[places.start : places.stop]:
            if not self._is_there(waiter.client):
                state.leave(waiter)
        return len(state.queue) < before

    def _in_queue(self, waiter: WaiterId, *, wait: bool) -> InQueue:
        state, out = self._state, self._state.out
        until = out[0].end - self._ms if out else 0
        if not wait:
            return InQueue(until, 0, self._now)
        return InQueue(until, 1 if state.queue[0][1] == waiter else 2, self._now)

    def _cast(self, place: tuple[int, WaiterId], form: Form, lease: int, proposal: int) -> Voted:
        """Vote for this waiter; without a proposal, under the next number."""
        state, (ticket, waiter) = self._state, place
        # The last number is forgotten if the name was not used for long. Then the ticket, which is
        # a time as well, or the proposal of the asking client takes its place: the higher one. Not
        # the clock of this server: all servers would have to follow it.
        least = proposal or max(ticket - form.priority * PRIORITY, self._proposed)
        number = state.last + 1 if state.last and not proposal else max(state.last + 1, least)
        self._learn(number, lasts=lease)
        state.put(Vote(waiter, form, number, ticket, self._ms + lease, self._ms))
        return Voted(number, lease, self._now)

    def _learn(self, number: int, lasts: int = 0) -> None:
        """Later numbers are above this one."""
        state = self._state
        if number:
            state.last = max(state.last, number)
            state.last_until = max(state.last_until, self._ms + lasts + REMEMBERED)

    def _advance(self, *, asking: WaiterId | None = None) -> Voted | None:
        """Vote for the first waiters in the queue while they fit; returns the vote of
        ``asking``.
        """
        state, mine = self._state, None
        while not self._not_voting and (head := self._head()) is not None:
            _, waiter = head
            _, form = state.waiting[waiter]
            if not state.fits(form):
                break
            state.leave(waiter)
            voted = self._cast(head, form, form.claim, 0)
            if waiter == asking:
                mine = voted
            else:
                granting = GrantPushed(
                    *(self._name, waiter, form, voted.number, form.claim), self._now
                )
                self._push(waiter, granting)
            if not form.shared:
                break  # no other waiter fits beside it
        return mine

    def _close(self, vote: Vote, *, lost: int | None = None, entered: int = 0) -> None:
        """Keep the name closed for as long as the terms of an ended vote demand.

        If the vote was shared, only waiters that do not share are kept out.
        """
        form, state = vote.form, self._state
        if not form.closes:
            return
        opens = form.opens(vote.granted, lost, confirmed=lost is None or not vote.unsure)
        if lost is None and form.after_grant:
            # The waiter entered later than it got this vote.
            opens = max(opens, self._ms - entered + form.after_grant)
        if opens <= self._ms:
            return
        terms = Form(claim=0, fixed=True, shared=form.shared)
        closed = Vote(_CLOSED, terms, vote.number, 0, opens, vote.granted, unsure=False)
        state.put(closed)
        if state.queue:
            self._push(state.queue[0][1], AskAgain(self._name))
