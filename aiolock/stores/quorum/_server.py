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

from collections import Counter
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Final

from aiolock.protocol import (
    KEEP_ALIVE,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    WAS_UNKNOWN,
    AskAgain,
    Form,
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
    SHARED,
    UNBOUNDED,
    UNDECIDED,
    Answer,
    DoneMarker,
    DoneRecord,
    InQueue,
    Kept,
    NotVoting,
    QueueIsFull,
    Refused,
    Voted,
    VoteInquired,
    VoteRequest,
)
from aiolock.stores.quorum._cast_votes import DONE, RESERVED, Vote
from aiolock.stores.quorum._live_queue import LiveQueue
from aiolock.stores.quorum._server_state import QuorumServerState
from aiolock.stores.quorum._step_context import ALL, Rest, StepContext
from aiolock.stores.quorum._vote_casting import VoteCasting

_NO_PLACE: Final = (0, Form(claim=0))
"""Of a waiter that has left the queue."""


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
        self._name, self._now, self._ms = name, now, now // 1000
        self._state = state
        self._not_voting = not_voting
        self._context = StepContext(name, now, in_parts=in_parts)
        self._queue = LiveQueue(state, listens)
        self._casting = VoteCasting(self._context, state, self._queue, not_voting)
        self.pushes, self.rest = self._context.pushes, self._context.rest
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
        self._queue.asker, self._casting.proposed = waiter.client, proposal
        said = self._without_a_vote(request, wait=wait)
        if said is not None:
            return said
        place = request.ticket, waiter
        # While votes whose lease has ended are left, nobody gets one: see `VoteCasting.reap`.
        fits = state.fits(form) and not self._context.is_over(state.first)
        if fits:
            head = self._queue.head()
            if head is None or place <= head:
                state.leave(waiter)
                return self._casting.cast(place, form, ttl, proposal)
        removed = stands = False
        if wait:
            if self._queue.is_full(waiter, most, self._now):
                full = QueueIsFull(len(state.queue), self._now)
                if state.shared:
                    self._casting.advance()  # dead waiters may have kept others from sharing
                return full
            removed = self._queue.enqueue(place, form)
            # Two waiters may each have some of the servers' votes. All servers ask for them in
            # favour of the lower ticket, so one of the two yields, and there is no deadlock.
            if not state.fits(form):
                self._inquire(waiter, iter(state.out))
        elif fits and self._context.in_parts and waiter not in state.waiting:
            # Those before it may be due in a later step, and would let it in. So it is in the queue
            # for this step.
            stands = True
            state.enqueue(place, form)
        # Dead waiters may have blocked those that would share.
        voted = self._casting.advance(asking=waiter) if fits or (removed and state.shared) else None
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
        self._queue.asker = waiter.client
        was_in_line = state.leave(waiter)
        self._casting.learn(highest)
        if tombstone_until:
            alive = {each: end for each, end in state.tombstones.items() if end > self._ms}
            state.tombstones = alive | {waiter: -(-tombstone_until // 1000)}
        vote = state.vote_of(waiter)
        # The waiter may have got a newer vote since: this release is about the older ones only.
        if vote is None or (upto != UNBOUNDED and vote.number > upto):
            if was_in_line and state.shared:
                self._casting.advance()  # it may have blocked waiters behind it
            missing = WAS_UNKNOWN if vote is None and self._not_voting else WAS_ABSENT
            return WAS_QUEUED if was_in_line else missing
        state.take(vote)
        lost = self._ms if entered == LOST else None
        if entered != OUTSIDE:
            self._casting.close(vote, lost=lost, entered=entered)
        if state.vote is None:
            self._casting.advance()
        return WAS_HOLDER

    def yield_vote(self, request: VoteRequest, number: int) -> Answer:
        """See `Member.yield_vote`."""
        state, waiter = self._state, request.waiter
        self._queue.asker = waiter.client
        vote = state.vote_of(waiter, number)
        if vote is None:
            return Refused(self._now)
        # In one step, so that no other can take the vote while the waiter is in neither place.
        state.take(vote)
        state.enqueue((request.ticket, waiter), request.form)
        return self._casting.advance(asking=waiter) or self._in_queue(
            waiter, request.form, wait=True
        )

    def renew(self, waiter: WaiterId, number: int, ttl: int, fence: int, *, entered: bool) -> bool:
        """See `Member.renew`."""
        vote = self._state.vote_of(waiter, number)
        if vote is None or vote.end <= self._ms:
            return False
        if ttl:
            self._state.prolong(vote, max(vote.end, self._ms + ttl))
            vote.unsure = vote.unsure and not entered
            self._casting.learn(fence, lasts=ttl)
        return True

    def reserve(self, waiter: WaiterId, number: int, fence: int) -> int:
        """See `Member.reserve`."""
        state, vote = self._state, self._state.vote_of(waiter, number)
        if vote is None or vote.end <= self._ms:
            return GONE
        # Learned before the answer: the client uses this fence without another message.
        self._casting.learn(fence, lasts=vote.end - self._ms)
        if len(state.queue) > LOOKED_AT:
            return SHARED
        own = all(each.client == waiter.client for _, each in state.queue)
        return ALONE if own else SHARED

    def take_away(self, waiter: WaiterId) -> int:
        """See `Member.take_away`."""
        vote = self._state.vote_of(waiter)
        if vote is None:
            return 0
        self._casting.end(vote, "broken", self._ms)
        if self._state.vote is None:
            self._casting.advance()
        return 1

    def request(self) -> int:
        """See `Member.request`."""
        votes, ms = self._state.out, self._ms
        self._request(iter(votes))
        asked = Counter(vote.waiter.client for vote in votes if vote.end > ms)
        del asked[RESERVED]
        return sum(number for client, number in asked.items() if self._queue.listens(client))

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
            self._casting.reap(ALL)
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
                self._casting.reap(self._context.part)
                self._casting.advance()
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
        self._casting.reap(self._context.part)
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
            self._queue.enqueue((request.ticket, request.waiter), form)
        return InQueue(KEEP_ALIVE, int(wait), self._now)

    def _inquire(self, asker: WaiterId | None, votes: Iterator[Vote]) -> None:
        """Ask for the votes of all waiters behind this one that do not share with it."""
        state = self._state
        if asker is None or asker not in state.waiting:
            return  # it has left meanwhile
        ticket, form = state.waiting[asker]
        place = ticket, asker
        for vote in islice(votes, self._context.part):
            if (
                place < vote.place
                and not vote.is_reserved
                and not (form.shared and vote.form.shared)
                and state.is_out(vote)
            ):
                self._context.push(vote.waiter, VoteInquired(self._name, vote.waiter, vote.number))
        if (left := next(votes, None)) is not None:
            self.rest.append(Rest("inquire", chain((left,), votes), asker=asker))

    def _request(self, votes: Iterator[Vote]) -> None:
        """Ask for the release of those of these votes that are still out."""
        for vote in islice(votes, self._context.part):
            if not vote.is_reserved and vote.end > self._ms and self._state.is_out(vote):
                self._context.push(
                    vote.waiter, ReleaseRequested(self._name, vote.waiter, vote.number)
                )
        if (left := next(votes, None)) is not None:
            self.rest.append(Rest("request", chain((left,), votes)))

    def _count(self, waiters: Iterator[WaiterId]) -> None:
        """Notify those of these waiters, if they still wait, whose count is reached."""
        state = self._state
        for waiter in islice(waiters, self._context.part):
            _, form = state.waiting.get(waiter, _NO_PLACE)
            if not form.counts or form.number > state.count:
                continue
            state.leave(waiter)
            if self._queue.listens(waiter.client):
                reached = GrantPushed(self._name, waiter, form, form.number, COUNTED, self._now)
                self._context.push(waiter, reached)
        if (left := next(waiters, None)) is not None:
            self.rest.append(Rest("count", waiters=chain((left,), waiters)))

    def _in_queue(self, waiter: WaiterId, form: Form, *, wait: bool) -> InQueue:
        state, first = self._state, self._state.first
        until = first.end - self._ms if first else 0
        if not wait:
            # It might get a vote, but for those before it, whose turn is in a later step.
            undecided = self._context.is_left and (self._context.is_over(first) or state.fits(form))
            return InQueue(UNDECIDED if undecided else until, 0, self._now)
        return InQueue(until, 1 if state.queue[0][1] == waiter else 2, self._now)
