"""All acquisitions of one client: its requests, and the effects of votes.

The parts are put together here. The client asks, members answer (`_questions`, `_renewals`) and
push (`_pushes`), and after each of these `_look` lets the acquisition's `VoteSet` decide the next
steps.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections.abc import Generator, Iterator
from typing import Final

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.protocol import (
    WAS_ABSENT,
    Acquire,
    AskAgain,
    Busy,
    Deliver,
    Done,
    Full,
    GrantLost,
    LeaseShortened,
    Queued,
    Release,
    WaiterId,
)
from aiolock.stores._member import QueueIsFull, VoteRequest
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._answers import (
    Patience,
    denied,
    granted,
    granted_again,
    is_due,
    pushed,
)
from aiolock.stores.quorum._backstop import Backstop
from aiolock.stores.quorum._clock import Tickets
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._counts import unheard
from aiolock.stores.quorum._done_markers import DoneMarkers
from aiolock.stores.quorum._endings import Endings
from aiolock.stores.quorum._finishes import Finishes
from aiolock.stores.quorum._handoffs import LocalHandoffs
from aiolock.stores.quorum._in_turn import InTurn
from aiolock.stores.quorum._local_waiters import LocalWaiters
from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._name_queue import NameQueue
from aiolock.stores.quorum._passes import ASKED, Passes
from aiolock.stores.quorum._pushes import Pushes
from aiolock.stores.quorum._questions import Questions
from aiolock.stores.quorum._renewals import Renewals
from aiolock.stores.quorum._suspension import Suspension
from aiolock.stores.quorum._table import FEW, AcquisitionTable
from aiolock.stores.quorum._votes import Enter, Phase, QueryDone, Raise, YieldVote

_COME_BACK: Final = 1 << 40
"""Numbers from here on are for waiters that have come back: no client has as many acquisitions."""
_LOOKED: Final = 3
"""Units of work to look at the votes of an acquisition that has none, or no news."""


class QuorumAcquisitions:
    """The acquisitions of one client, from its opening to its close."""

    def __init__(self, membership: Membership, deliver: Deliver) -> None:
        self._membership = membership
        self._connections = membership.connections
        self._time = membership.time
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._tickets = Tickets(membership.clocks)
        self._newest = 0
        """The highest number of any waiter so far: a lower one is no newcomer."""
        self._come_back = itertools.count(_COME_BACK)
        self.table = table = AcquisitionTable(membership.size)
        self._passes = passes = Passes(membership.time)
        self._patience = Patience(membership, passes)
        common = Common(membership, passes, table)
        self.renewals = renewals = Renewals(common, self._look)
        self._questions = questions = Questions(
            common,
            renewals,
            look=self._look,
            answer=self._answer,
            refusals_changed=self._refusals_changed,
        )
        self.suspension = Suspension(common, questions, self._answer)
        self.in_turn = InTurn(
            common,
            questions=questions,
            suspension=self.suspension,
            look=self._look,
        )
        self._backstop = Backstop(membership, questions, renewals, self._look)
        self._local_waiters = LocalWaiters(common, self.in_turn.ask)
        self._endings = Endings(common, renewals, self._local_waiters)
        self._handoffs = LocalHandoffs(
            common,
            local_waiters=self._local_waiters,
            endings=self._endings,
            look=self._look,
            deliver=deliver,
        )
        self._done_markers = DoneMarkers(common, self._look)
        self.finishes = Finishes(common, self._endings)
        self.pushes = Pushes(
            common,
            questions=questions,
            in_turn=self.in_turn,
            endings=self._endings,
            look=self._look,
            deliver=deliver,
        )

    def _refusals_changed(self, acquisition: QuorumAcquisition) -> None:
        self.suspension.check(acquisition)

    # Requests of the client

    def acquire(self, operation: Acquire) -> Prompt:
        """See `Acquire`."""
        waiter, ticket = operation.waiter, operation.ticket
        now, answer = self._time(), Prompt(loop=self._loop)
        acquisition = self.table.find(waiter)
        if acquisition is None:
            form = operation.form
            request = VoteRequest(
                operation.name,
                self._named(waiter),
                form,
                ticket or self._tickets.next(form.priority, now),
            )
            acquisition = QuorumAcquisition(
                *(request, operation.ttl, self._membership.size),
                wait=operation.wait,
                most=0 if ticket else operation.max_waiters,
                own=waiter,
                counts=self.table.votes,
            )
            self._begin(acquisition, answer, now)
            return answer
        if acquisition.own != waiter:
            answer.set_result(granted_again(acquisition, operation.ttl, self._time()))
            return answer
        self.table.queues[operation.name].is_local(acquisition, local=False)
        if acquisition.idle:
            acquisition.idle = acquisition.queued = False
            if self.suspension.can_enter(acquisition) and not self.suspension.is_checked_in_turn(
                acquisition
            ):
                acquisition.vote_set.come_back()
        self._is_asked(acquisition, answer, now)
        if acquisition.inside:
            self._loop.call_soon(self._answer, acquisition)
        self._questions.ask_again(acquisition, now)
        return answer

    def _named(self, waiter: WaiterId) -> WaiterId:
        """Its id at the members: another one, if its first acquisition was released for good."""
        if waiter.seq > self._newest:
            self._newest = waiter.seq
            return waiter
        return WaiterId(waiter.client, next(self._come_back))

    def _begin(self, acquisition: QuorumAcquisition, answer: Prompt, now: float) -> None:
        """Start a newcomer: ask all members, unless it waits at this client."""
        name, waiter = acquisition.request.name, acquisition.request.waiter
        self.table.by_waiter[waiter] = acquisition
        if acquisition.own != waiter:
            self.table.by_holder[acquisition.own] = acquisition
        queue = self.table.queues.get(name)
        if queue is None:
            queue = NameQueue(self._backstop.check_each, self._membership.size, self._passes)
            self.table.queues[name] = queue
        in_order = queue.join(acquisition)
        self._is_asked(acquisition, answer, now)
        if not self._membership.decides:
            acquisition.vote_set.suspended = True
            self._questions.ask_again(acquisition, now)
        elif not (in_order and self._local_waiters.wait_here(queue, acquisition)):
            self.in_turn.ask(acquisition, now)

    def _is_asked(self, acquisition: QuorumAcquisition, answer: Prompt, now: float) -> None:
        if not acquisition.is_waited_for:
            acquisition.called = now  # of several questions, the first counts
            acquisition.answers.clear()
        acquisition.answers.append(answer)
        self._patience.wait_for(answer, now)

    # Members in reach

    def out_of_reach(self) -> None:
        """A member does not answer, but a majority does: do not wait for that member."""
        self._passes.begin("look", self._look_at_all())

    def _look_at_all(self) -> Iterator[int]:
        for acquisition in list(self.table.by_waiter.values()):
            if not acquisition.over:
                self._look(acquisition)
            yield _LOOKED

    # The effects of votes

    def _look(self, acquisition: QuorumAcquisition, reason: str = "expired") -> None:
        if acquisition.waits:
            if acquisition.mark is not None:
                self._done_markers.mark_votes(acquisition)
            steps = acquisition.vote_set.look(self._time(), self._reaches)
            if acquisition.request.form.once and QueryDone() not in steps:
                acquisition.recalled_at = -math.inf  # the answers to come were asked for too soon
            for step in steps:
                if isinstance(step, Enter):
                    self._enter(acquisition, step.fence)
                    return
                if isinstance(step, QueryDone):
                    self._done_markers.query_done(acquisition)
                    continue
                if isinstance(step, Raise):
                    self.renewals.renew_vote(
                        acquisition, step.server, acquisition.claim, step.fence, unheard
                    )
                else:
                    self._questions.yield_vote(acquisition, step)
            if acquisition.vote_set.has_votes and not is_due(acquisition, self._connections):
                queue = self.table.queues[acquisition.request.name]
                queue.look_by(self._time() + acquisition.claim / 3000)
            self._answer(acquisition)
        elif acquisition.inside:
            self._look_inside(acquisition, reason)

    def _reaches(self, server: int) -> bool:
        return self._connections[server].in_reach

    def _look_inside(self, acquisition: QuorumAcquisition, reason: str) -> None:
        for step in acquisition.vote_set.look(self._time()):
            assert isinstance(step, YieldVote), "it is inside already"
            self._questions.yield_vote(acquisition, step)
        deadline = acquisition.vote_set.deadline
        if deadline is not None and deadline >= acquisition.promised:
            return
        name = acquisition.request.name
        waiter, fence = acquisition.holder, acquisition.vote_set.fence
        if deadline is None:
            # The remaining votes are no majority, and no later vote replaces one that was counted.
            self._endings.abandon(acquisition, entered=True)
            self._deliver(GrantLost(name, waiter, fence, reason))
        else:
            # Now, and not at that deadline: a timer may fire late, if the loop is blocked.
            acquisition.promised = deadline
            self._deliver(LeaseShortened(name, waiter, fence, deadline))

    def _enter(self, acquisition: QuorumAcquisition, fence: int) -> None:
        """The waiter has entered: report that by the answer that is due, or by a push."""
        now, deadline = self._time(), acquisition.vote_set.deadline
        assert deadline is not None
        acquisition.entered_at, acquisition.promised = now, deadline
        self.renewals.prolong(acquisition, deadline, now)
        if acquisition.is_waited_for:
            acquisition.tell(
                granted(acquisition, deadline), at_once=len(self.table.by_waiter) <= FEW
            )
            if not acquisition.queued or acquisition.over:
                return
        called, now = acquisition.called, self._time()
        self._deliver(pushed(acquisition, acquisition.own, called, fence, deadline, now))

    def _answer(self, acquisition: QuorumAcquisition) -> None:
        if acquisition.over or acquisition.idle:
            return
        if not acquisition.is_waited_for:
            once = acquisition.request.form.once
            if once and isinstance(denied(acquisition, self._connections), Done):
                # The client asks, and gets the answer.
                self._deliver(AskAgain(acquisition.request.name))
            return
        if acquisition.inside:
            deadline = acquisition.vote_set.deadline or 0.0
            acquisition.promised = max(acquisition.promised, deadline)
            acquisition.tell(granted(acquisition, deadline))
        elif (answer := denied(acquisition, self._connections)) is not None:
            if isinstance(answer, Queued):
                acquisition.queued = acquisition.admitted = True
                self._ask_the_full(acquisition)
            acquisition.tell(answer)
            if isinstance(answer, Done):
                self._done_markers.write_back(acquisition)
            if isinstance(answer, Busy | Full | Done):
                self._endings.abandon(acquisition, entered=False)

    def _ask_the_full(self, acquisition: QuorumAcquisition) -> None:
        """Ask the members whose queue was full: others have given the waiter a place."""
        for server, said in enumerate(acquisition.said):
            if isinstance(said, QueueIsFull):
                self._questions.ask(acquisition, server, self._time())

    # The end

    def release(self, operation: Release) -> asyncio.Future[int]:
        """See `Release`."""
        waiter, fence, entered = operation.waiter, operation.fence, operation.entered
        acquisition = self.table.find(waiter)
        if acquisition is None and not fence and waiter not in self.table.by_waiter:
            return self._endings.release_unknown(operation.name, waiter, operation.form)
        if acquisition is None:  # it has ended, or has left, and another waiter has its votes
            return self._endings.at_once(WAS_ABSENT)
        if fence and not (acquisition.inside and acquisition.vote_set.fence == fence):
            return self._endings.at_once(WAS_ABSENT)
        if fence and entered:
            handed = self._handoffs.hand_off(acquisition)
            leave_in_turn = self._endings.leave_in_turn
            return leave_in_turn(acquisition, lost=operation.lost) if handed is None else handed
        if fence and acquisition.holder == acquisition.own:
            return self._endings.give_back(acquisition)
        return self._endings.leave(acquisition, entered=entered, lost=operation.lost)

    def closing(self) -> Generator[int, None, None]:
        """End all, part by part: later answers of members have no effect from the first step on.

        Undecided hand-offs are released. Everything else ends at the members because this client
        stops listening.
        """
        self._passes.close()
        left, queues = list(self.table.by_waiter.values()), list(self.table.queues.values())
        # Before any release, which would queue those behind it at the members.
        self.table.by_waiter.clear()
        self.table.queues.clear()
        undecided = list[QuorumAcquisition]()
        for acquisition in left:
            if acquisition.undecided is None:
                acquisition.vote_set.phase = Phase.OVER
            else:
                undecided.append(acquisition)
        yield 0
        queues.reverse()
        while queues:  # emptied, for it takes its time as well to free them
            queues.pop().close()
            yield 2
        yield from self.finishes.closing()
        for acquisition in undecided:
            self._endings.abandon(acquisition, entered=True)
            yield ASKED
        left.reverse()
        while left:
            left.pop().tell(StoreError("the client was closed"))
            yield ASKED
        yield from self._endings.closing()
        yield from self._patience.closing()
        yield from self._passes.freeing()
