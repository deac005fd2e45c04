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
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, islice
from typing import Final, Literal, NamedTuple

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
    UNDECIDED,
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
from aiolock.stores.quorum._cast_votes import CLOSED, DONE, RESERVED, SharedVotes, Vote

PART: Final = 16
"""The most votes that one step casts or ends, and the most parties that it notifies, if it works in
parts. They are few, as each has effects at a client, and several servers may be in one process."""
_ALL: Final = 1 << 60
"""More than there ever are of anything."""
_NO_PLACE: Final = (0, Form(claim=0))
"""Of a waiter that has left the queue."""


class Rest(NamedTuple):
    """The work that a step has left, since it would keep the event loop for too long.

    ``advance``: to end the leases that are over, and then to vote for the first waiters;
    ``request``: to ask for the release of these votes; ``inquire``: to inquire of these for
    `asker`; ``count``: to notify those of these waiters whose count is reached.
    """

    work: Literal["advance", "request", "inquire", "count"]
    votes: Iterator[Vote] = iter(())
    """Those that were out when the work began; some may be gone."""
    waiters: Iterator[WaiterId] = iter(())
    """Those that were in the queue then."""
    asker: WaiterId | None = None


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
        self.shared = SharedVotes()
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
        return list(self.shared) if self.vote is None else [self.vote]

    @property
    def first(self) -> Vote | None:
        """Of the votes that are out, that which ends first."""
        return self.shared.first if self.vote is None else self.vote

    @property
    def is_used(self) -> bool:
        """Whether a vote is out, or waiters are in the queue."""
        return self.first is not None or bool(self.queue)

    def is_out(self, vote: Vote) -> bool:
        return vote is self.vote or vote in self.shared

    def vote_of(self, waiter: WaiterId, number: int = 0) -> Vote | None:
        """The vote of this waiter; only the one of that number, unless it is 0."""
        if self.vote is None:
            votes = self.shared.of(waiter)
        else:
            votes = [self.vote] if self.vote.waiter == waiter else []
        return next((vote for vote in votes if number in {0, vote.number}), None)

    def put(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.add(vote)
        else:
            self.vote = vote

    def take(self, vote: Vote) -> None:
        if vote.form.shared:
            self.shared.remove(vote)
        else:
            self.vote = None

    def prolong(self, vote: Vote, end: int) -> None:
        """Move the end of its lease."""
        if vote.form.shared:
            self.shared.prolong(vote, end)
        else:
            vote.end = end

    def fits(self, form: Form) -> bool:
        """Whether a waiter of this form may have a vote beside those that are out."""
        return self.vote is None and (form.shared or not self.shared)

    def idle(self, ms: int) -> bool:
        """Whether nothing of this name has to be kept."""
        last_end = self.shared.last_end if self.vote is None else self.vote.end
        if last_end > ms or self.queue:
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

    def remove(self, gone: Iterable[WaiterId]) -> None:
        """Take these, which are in the queue, out of it; all at once, as there may be many."""
        before = len(self.waiting)
        for waiter in gone:
            del self.waiting[waiter]
        if len(self.waiting) < before:
            self.queue[:] = [place for place in self.queue if place[1] in self.waiting]


class QuorumServerStep:
    """One operation on the state of one name, at one moment.

    ``now`` is the server's clock, in µs; ``not_voting`` is for how many ms it does not vote, 0 if
    it does (see `NotVoting`). ``listens`` says whether a client is there. Afterwards `pushes` must
    be sent, in order. With ``in_parts``, what would take long is left to further steps: afterwards
    each `rest` must be carried out by `go_on`. The scripts do all in one step.
    """

    def __init__(
        self,
        name: str,
        state: QuorumServerState,
        now: int,
        listens: Callable[[str], bool],
        not_voting: int = 0,
        *,
        in_parts: bool = False,
    ) -> None:
        self._name = name
        self._state = state
        self._now = now
        self._ms = now // 1000
        self._listens = listens
        self._not_voting = not_voting
        self.pushes: list[tuple[str, MemberEvent]] = []
        """Each with the client that it is for."""
        self.rest: list[Rest] = []
        self._in_parts = in_parts
        self._part = PART if in_parts else _ALL
        """The most votes that it casts or ends, and the most parties that it notifies."""
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
        place = request.ticket, waiter
        # While votes whose lease has ended are left, nobody gets one: see `_reap`.
        fits = state.fits(form) and not self._is_over(state.first)
        if fits:
            head = self._head()
            if head is None or place <= head:
                state.leave(waiter)
                return self._cast(place, form, ttl, proposal)
        removed = stands = False
        if wait:
            full = self._full_queue(waiter, most)
            if full is not None:
                return full
            removed = self._enqueue(place, form)
            # Two waiters may each have some of the servers' votes. All servers ask for them in
            # favour of the lower ticket, so one of the two yields, and there is no deadlock.
            if not state.fits(form):
                self._inquire(waiter, iter(state.out))
        elif fits and self._in_parts and waiter not in state.waiting:
            # Those before it may be due in a later step, and would let it in. So it is in the queue
            # for this step.
            stands = True
            state.enqueue(place, form)
        # Dead waiters may have blocked those that would share.
        voted = self._advance(asking=waiter) if fits or (removed and state.shared) else None
        if stands:
            state.leave(waiter)
        return voted or self._in_queue(waiter, form, wait=wait)

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
        return self._advance(asking=waiter) or self._in_queue(waiter, request.form, wait=True)

    def renew(self, waiter: WaiterId, number: int, ttl: int, fence: int, *, entered: bool) -> bool:
        """See `Member.renew`."""
        vote = self._state.vote_of(waiter, number)
        if vote is None or vote.end <= self._ms:
            return False
        if ttl:
            self._state.prolong(vote, max(vote.end, self._ms + ttl))
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
        votes, ms = self._state.out, self._ms
        self._request(iter(votes))
        asked = Counter(vote.waiter.client for vote in votes if vote.end > ms)
        del asked[RESERVED]
        return sum(number for client, number in asked.items() if self._listens(client))

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
            self._reap(_ALL)
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
        state.vote = Vote(DONE, terms, number, 0, end, self._ms, unsure=False)
        waiting = [each for _, each in state.queue if state.waiting[each][1].once]
        state.remove(waiting)
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
        self._count(waiter for _, waiter in list(state.queue))
        return state.count

    def read(self) -> Kept:
        """See `Member.read`."""
        state = self._state
        return Kept(state.count, state.value, max(0, state.posted_until - self._ms))

    def go_on(self, rest: Rest) -> None:
        """Go on with what an earlier step has left; it may leave a `rest` again."""
        match rest.work:
            case "advance":
                self._reap(self._part)
                self._advance()
            case "request":
                self._request(rest.votes)
            case "inquire":
                self._inquire(rest.asker, rest.votes)
            case "count":
                self._count(rest.waiters)

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
        self._reap(self._part)
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

    def _inquire(self, asker: WaiterId | None, votes: Iterator[Vote]) -> None:
        """Ask for the votes of all waiters behind this one that do not share with it."""
        state = self._state
        if asker is None or asker not in state.waiting:
            return  # it has left meanwhile
        ticket, form = state.waiting[asker]
        place = ticket, asker
        for vote in islice(votes, self._part):
            if (
                place < vote.place
                and not vote.is_reserved
                and not (form.shared and vote.form.shared)
                and state.is_out(vote)
            ):
                self._push(vote.waiter, VoteInquired(self._name, vote.waiter, vote.number))
        if (left := next(votes, None)) is not None:
            self.rest.append(Rest("inquire", chain((left,), votes), asker=asker))

    def _request(self, votes: Iterator[Vote]) -> None:
        """Ask for the release of those of these votes that are still out."""
        for vote in islice(votes, self._part):
            if not vote.is_reserved and vote.end > self._ms and self._state.is_out(vote):
                self._push(vote.waiter, ReleaseRequested(self._name, vote.waiter, vote.number))
        if (left := next(votes, None)) is not None:
            self.rest.append(Rest("request", chain((left,), votes)))

    def _count(self, waiters: Iterator[WaiterId]) -> None:
        """Notify those of these waiters, if they still wait, whose count is reached."""
        state = self._state
        for waiter in islice(waiters, self._part):
            _, form = state.waiting.get(waiter, _NO_PLACE)
            if not form.counts or form.number > state.count:
                continue
            state.leave(waiter)
            if self._listens(waiter.client):
                reached = GrantPushed(self._name, waiter, form, form.number, COUNTED, self._now)
                self._push(waiter, reached)
        if (left := next(waiters, None)) is not None:
            self.rest.append(Rest("count", waiters=chain((left,), waiters)))

    def _is_over(self, vote: Vote | None) -> bool:
        return vote is not None and vote.end <= self._ms

    def _reap(self, most: int) -> None:
        """Remove votes whose lease has ended, and the waiters of their clients, which are stuck.

        If there are more than ``most``, the rest of this step goes on, and votes for nobody before
        the last of them is removed: a stuck client may be the first in the queue.
        """
        state, stuck, ended = self._state, set[str](), 0
        while ended < most and (vote := state.first) is not None and vote.end <= self._ms:
            ended += 1
            self._end(vote, "expired", vote.end)
            if vote.unsure or not vote.form.fixed:
                stuck.add(vote.waiter.client)
        if stuck:
            state.remove([each for _, each in state.queue if each.client in stuck])
        if self._is_over(state.first):
            self._leave()

    @property
    def _is_left(self) -> bool:
        """Whether the waiters at the head of the queue are left to another step."""
        return any(rest.work == "advance" for rest in self.rest)

    def _leave(self) -> None:
        """Leave the waiters at the head of the queue to another step."""
        if not self._is_left:
            self.rest.append(Rest("advance"))

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
        if not queue or self._is_there(queue[0][1].client):
            return queue[0] if queue else None
        clients = (waiter.client for _, waiter in queue)
        dead = next((at for at, each in enumerate(clients) if self._is_there(each)), len(queue))
        self._state.remove([waiter for _, waiter in queue[:dead]])
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

    def _in_queue(self, waiter: WaiterId, form: Form, *, wait: bool) -> InQueue:
        state, first = self._state, self._state.first
        until = first.end - self._ms if first else 0
        if not wait:
            # It might get a vote, but for those before it, whose turn is in a later step.
            undecided = self._is_left and (self._is_over(first) or state.fits(form))
            return InQueue(UNDECIDED if undecided else until, 0, self._now)
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
        ``asking``. After a part of them, the rest of this step goes on.
        """
        state, mine, cast = self._state, None, 0
        while not self._not_voting and (head := self._head()) is not None:
            _, waiter = head
            _, form = state.waiting[waiter]
            if not state.fits(form):
                break
            # Nor before all leases that are over have been ended: see `_reap`.
            unreaped = self._in_parts and self._is_over(state.first)
            if unreaped or (cast >= self._part and waiter != asking):
                self._leave()
                break
            cast += 1
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
        closed = Vote(CLOSED, terms, vote.number, 0, opens, vote.granted, unsure=False)
        state.put(closed)
        if state.queue:
            self._push(state.queue[0][1], AskAgain(self._name))
