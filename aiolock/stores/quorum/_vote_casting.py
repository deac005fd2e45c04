"""How a server casts votes, and ends them: what a step does to the votes of a name."""

from __future__ import annotations

from aiolock.protocol import PRIORITY, AskAgain, Form, GrantLost, GrantPushed, WaiterId
from aiolock.stores._delays import opens_at
from aiolock.stores._member import REMEMBERED, Voted
from aiolock.stores.quorum._cast_votes import CLOSED, Vote
from aiolock.stores.quorum._live_queue import LiveQueue
from aiolock.stores.quorum._server_state import QuorumServerState
from aiolock.stores.quorum._step_context import StepContext


class VoteCasting:
    """The votes of one name, in one step."""

    __slots__ = ("_context", "_ms", "_name", "_not_voting", "_now", "_queue", "_state", "proposed")

    def __init__(
        self, context: StepContext, state: QuorumServerState, queue: LiveQueue, not_voting: int
    ) -> None:
        self._context = context
        self._name, self._now, self._ms = context.name, context.now, context.ms
        self._state = state
        self._queue = queue
        self._not_voting = not_voting
        self.proposed = 0
        """The number that the asking client proposes for its own vote."""

    def reap(self, most: int) -> None:
        """Remove votes whose lease has ended, and the waiters of their clients, which are stuck.

        If there are more than ``most``, the rest of this step goes on, and votes for nobody before
        the last of them is removed: a stuck client may be the first in the queue.
        """
        state, stuck, ended = self._state, set[str](), 0
        while ended < most and (vote := state.first) is not None and vote.end <= self._ms:
            ended += 1
            self.end(vote, "expired", vote.end)
            if vote.unsure or not vote.form.fixed:
                stuck.add(vote.waiter.client)
        if stuck:
            state.remove([each for _, each in state.queue if each.client in stuck])
        if self._context.is_over(state.first):
            self._context.leave()

    def advance(self, *, asking: WaiterId | None = None) -> Voted | None:
        """Vote for the first waiters in the queue while they fit; returns the vote of
        ``asking``. After a part of them, the rest of this step goes on.
        """
        state, mine, cast = self._state, None, 0
        while not self._not_voting and (head := self._queue.head()) is not None:
            _, waiter = head
            _, form = state.waiting[waiter]
            if not state.fits(form):
                break
            # Nor before all leases that are over have been ended: see `reap`.
            unreaped = self._context.in_parts and self._context.is_over(state.first)
            if unreaped or (cast >= self._context.part and waiter != asking):
                self._context.leave()
                break
            cast += 1
            state.leave(waiter)
            voted = self.cast(head, form, form.claim, 0)
            if waiter == asking:
                mine = voted
            else:
                number, claim = voted.number, form.claim
                granting = GrantPushed(self._name, waiter, form, number, claim, self._now)
                self._context.push(waiter, granting)
            if not form.shared:
                break  # no other waiter fits beside it
        return mine

    def end(self, vote: Vote, reason: str, lost: int) -> None:
        """A vote was lost."""
        self._state.take(vote)
        if not vote.is_reserved:
            lost_grant = GrantLost(self._name, vote.waiter, vote.number, reason)
            self._context.push(vote.waiter, lost_grant)
            self.close(vote, lost=lost)

    def cast(self, place: tuple[int, WaiterId], form: Form, lease: int, proposal: int) -> Voted:
        """Vote for this waiter; without a proposal, under the next number."""
        state, (ticket, waiter) = self._state, place
        # The last number is forgotten if the name was not used for long. Then the ticket, which is
        # a time as well, or the proposal of the asking client takes its place: the higher one. Not
        # the clock of this server: all servers would have to follow it.
        least = proposal or max(ticket - form.priority * PRIORITY, self.proposed)
        number = state.last + 1 if state.last and not proposal else max(state.last + 1, least)
        self.learn(number, lasts=lease)
        state.put(Vote(waiter, form, number, ticket, self._ms + lease, self._ms))
        return Voted(number, lease, self._now)

    def learn(self, number: int, lasts: int = 0) -> None:
        """Later numbers are above this one."""
        state = self._state
        if number:
            state.last = max(state.last, number)
            state.last_until = max(state.last_until, self._ms + lasts + REMEMBERED)

    def close(self, vote: Vote, *, lost: int | None = None, entered: int = 0) -> None:
        """Keep the name closed for as long as the terms of an ended vote demand.

        If the vote was shared, only waiters that do not share are kept out.
        """
        form, state = vote.form, self._state
        if not form.closes:
            return
        confirmed = lost is None or not vote.unsure
        opens = opens_at(form, vote.granted, lost, confirmed=confirmed)
        if lost is None and form.after_grant:
            # The waiter entered later than it got this vote.
            opens = max(opens, self._ms - entered + form.after_grant)
        if opens <= self._ms:
            return
        terms = Form(claim=0, fixed=True, shared=form.shared)
        closed = Vote(CLOSED, terms, vote.number, 0, opens, vote.granted, unsure=False)
        state.put(closed)
        if state.queue:
            self._context.push(state.queue[0][1], AskAgain(self._name))
