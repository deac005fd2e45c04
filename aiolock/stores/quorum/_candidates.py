"""All acquisitions of one client: the effects of votes, and the answers to the client.

This is where the parts meet. The client asks (`acquire`, `renew`, `release`), members answer and
push (`granted`, `inquired`, `vote_lost`), and after each of these `_look` lets the acquisition's
`VoteSet` decide the next steps.
"""

from __future__ import annotations

import asyncio
import itertools
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from functools import partial
from typing import Final

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.protocol import (
    PRIORITY,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    AskAgain,
    Busy,
    Deliver,
    Done,
    Form,
    Full,
    GrantLost,
    LeaseShortened,
    Queued,
    ReleaseRequested,
    Renewal,
    WaiterId,
    lasts,
)
from aiolock.stores._member import LOST, OUTSIDE, UNBOUNDED, OnReply, QueueIsFull, VoteRequest
from aiolock.stores.quorum._acquisition import NameQueue, QuorumAcquisition, lease_until
from aiolock.stores.quorum._answers import Patience, denied, granted, is_due
from aiolock.stores.quorum._connection import MemberConnection
from aiolock.stores.quorum._counts import Concluded, Renewing, Tally, retrieve, unheard
from aiolock.stores.quorum._handing import Handing
from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._passes import ASKED
from aiolock.stores.quorum._releases import Release, Releases
from aiolock.stores.quorum._votes import Enter, Phase, QueryDone, Raise, YieldVote

_LATELY: Final = 1.0
"""Seconds after a release in which a push about its waiter may have been sent before it."""
_COME_BACK: Final = 1 << 40
"""Numbers from here on are for waiters that have come back: no client has as many acquisitions."""
_LOOKED: Final = 3
"""Units of work to look at the votes of an acquisition that has none, or no news."""
_FEW: Final = 2
"""With up to so many acquisitions, the task of each continues in the call that brings its votes."""


class Candidates(Handing):
    """The open acquisitions, of all names."""

    def __init__(self, membership: Membership, deliver: Deliver) -> None:
        super().__init__(membership, deliver)
        self.votes = [0] * membership.size
        """By member: how many votes of it are out to this client."""
        self._last_tickets: dict[int, int] = {}
        """The last ticket for each priority."""
        self._patience = Patience(membership, self._passes)
        self._releases = Releases(self._time, self._passes)
        self._renewals = dict[WaiterId, Renewing]()
        """The latest renewal of each waiter that has entered."""
        self._newest = 0
        """The highest number of any waiter so far: a lower one is no newcomer."""
        self._come_back = itertools.count(_COME_BACK)
        self._left = OrderedDict[WaiterId, float]()
        """The waiters that were released within `_LATELY`, or not long before, and when."""

    # Requests of the client

    def acquire(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        most: int,
    ) -> Prompt:
        """See `Acquire`."""
        now, answer = self._time(), Prompt(loop=self._loop)
        acquisition = self._has(waiter)
        if acquisition is None:
            request = VoteRequest(
                name, self._named(waiter), form, ticket or self._ticket(form, now)
            )
            most = 0 if ticket else most
            acquisition = QuorumAcquisition(
                *(request, ttl, self._membership.size),
                wait=wait,
                most=most,
                own=waiter,
                counts=self.votes,
            )
            self._begin(acquisition, answer, now)
            return answer
        if acquisition.own != waiter:
            answer.set_result(self._repeated_answer(acquisition, ttl))
            return answer
        self._queues[name].is_local(acquisition, local=False)
        if acquisition.idle:
            acquisition.idle = acquisition.queued = False
            if self._can_enter(acquisition) and not self._is_checked_in_turn(acquisition):
                acquisition.vote_set.come_back()
        self._is_asked(acquisition, answer, now)
        if acquisition.inside:
            self._loop.call_soon(self._answer, acquisition)
        self._ask_again(acquisition, now)
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
        self.acquisitions[waiter] = acquisition
        if acquisition.own != waiter:
            self._runs[acquisition.own] = acquisition
        queue = self._queues.get(name)
        if queue is None:
            queue = NameQueue(self._look_after, self._membership.size, self._passes)
            self._queues[name] = queue
        in_order = queue.join(acquisition)
        self._is_asked(acquisition, answer, now)
        if not self._membership.decides:
            acquisition.vote_set.suspended = True
            self._ask_again(acquisition, now)
        elif not (in_order and self._waits_here(queue, acquisition)):
            self._ask_in_turn(acquisition, now)

    def _is_asked(self, acquisition: QuorumAcquisition, answer: Prompt, now: float) -> None:
        if not acquisition.is_waited_for:
            acquisition.called = now  # of several questions, the first counts
            acquisition.answers.clear()
        acquisition.answers.append(answer)
        self._patience.wait_for(answer, now)

    def _ticket(self, form: Form, now: float) -> int:
        """A newcomer's ticket: behind all earlier ones of its priority."""
        last = self._last_tickets.get(form.priority, 0)
        ticket = max(self._membership.clocks.now(now) + form.priority * PRIORITY, last + 1)
        self._last_tickets[form.priority] = ticket
        return ticket

    # Pushes of the members

    def granted(self, server: int, waiter: WaiterId, number: int, lease: int, now: int) -> None:
        """A member has voted for a waiter in its queue."""
        acquisition = self.acquisitions[waiter]
        acquisition.arrived[server] = True
        clock = self._connections[server].clock
        began = acquisition.began(server, now, clock, self._time())
        self._voted(acquisition, server, number, began + lasts(lease), now)
        if not acquisition.inside:
            self._look(acquisition)

    def foreign(self, server: int, name: str, waiter: WaiterId, form: Form) -> None:
        """A member has voted for a waiter that has ended: the release is missing there, or
        forgotten.
        """
        if self._left.get(waiter, -math.inf) >= self._time() - _LATELY:
            return  # its release has arrived by now, or will
        member = self._connections[server].member
        request = VoteRequest(name, waiter, form, 0)
        member.release(request, 0, UNBOUNDED, entered=OUTSIDE, on_reply=unheard)

    def inquired(self, server: int, waiter: WaiterId, number: int) -> None:
        """A waiter with a lower ticket needs this vote."""
        acquisition = self.acquisitions.get(waiter)
        if acquisition is not None:
            acquisition.vote_set.inquired(server, number)
            self._look(acquisition)

    def may_be_inquired(self, server: int) -> None:
        """Pushes of that member may be lost, so it may have inquired.

        An acquisition without a majority gives its vote back there. If no other comes before it,
        the member votes for it once more, in the same step.
        """
        self._passes.begin(("inquired", server), self._inquire(server))

    def _inquire(self, server: int) -> Iterator[int]:
        for acquisition in list(self.acquisitions.values()):
            vote, counts = acquisition.vote_set.votes[server], acquisition.request.form.counts
            if vote is not None and acquisition.waits and acquisition.wait and not counts:
                acquisition.vote_set.inquired(server, vote.number)
                self._look(acquisition)
                yield ASKED
            else:
                yield 1

    def vote_lost(self, server: int, name: str, waiter: WaiterId, number: int, reason: str) -> None:
        """A vote was taken away."""
        now = self._time()
        acquisition = self.acquisitions.get(waiter)
        if acquisition is not None:
            acquisition.vote_set.gone(server, number, now)
            self._ask_by(acquisition, server, now)
            self._look(acquisition, reason)
        queue = self._queues.get(name)
        if queue is not None and reason == "expired":
            # The member considered this client stuck, so all its waiters have left the queue.
            left = queue.to_ask[server] = deque(queue.acquisitions.values())
            steps = self._ask_for_all(left, server, of_client=False)
            self._passes.begin(queue.pass_there(server), steps, left.clear)

    def closed(self, name: str) -> None:
        """A member gives no votes for a while: the first waiter asks for how long."""
        if name in self._queues:
            self._deliver(AskAgain(name))

    def requested(self, waiter: WaiterId) -> None:
        """A client asks this waiter to release the lock; several members push that."""
        acquisition = self.acquisitions.get(waiter)
        if acquisition is not None and acquisition.inside:
            self._deliver(
                ReleaseRequested(
                    acquisition.request.name, acquisition.holder, acquisition.vote_set.fence
                )
            )

    # Members in reach

    def forget_clock(self, server: int) -> None:
        """The server was restarted or replaced: earlier answers tell nothing of its clock."""
        self._connections[server].clock += 1

    def ask_there(self, server: int) -> None:
        """Ask that member for all waiters without a vote there: a push may be lost, or they did not
        ask before.
        """
        left = self._to_ask[server] = deque(self.acquisitions.values())
        steps = self._ask_for_all(left, server, of_client=True)
        self._passes.begin(("ask", server), steps, left.clear)

    def out_of_reach(self) -> None:
        """A member does not answer, but a majority does: do not wait for that member."""
        self._passes.begin("look", self._look_at_all())

    def _look_at_all(self) -> Iterator[int]:
        for acquisition in list(self.acquisitions.values()):
            if not acquisition.over:
                self._look(acquisition)
            yield _LOOKED

    # The effects of votes

    def _look(self, acquisition: QuorumAcquisition, reason: str = "expired") -> None:
        if acquisition.waits:
            if acquisition.mark is not None:
                self._mark_votes(acquisition)
            steps = acquisition.vote_set.look(self._time(), self._reaches)
            if acquisition.request.form.once and QueryDone() not in steps:
                acquisition.recalled_at = -math.inf  # the answers to come were asked for too soon
            for step in steps:
                if isinstance(step, Enter):
                    self._enter(acquisition, step.fence)
                    return
                if isinstance(step, QueryDone):
                    self._query_done(acquisition)
                    continue
                if isinstance(step, Raise):
                    self._renew(acquisition, step.server, acquisition.claim, step.fence, unheard)
                else:
                    self._yield_vote(acquisition, step)
            if acquisition.vote_set.has_votes and not is_due(acquisition, self._connections):
                queue = self._queues[acquisition.request.name]
                queue.look_by(self._time() + acquisition.claim / 3000)
            self._answer(acquisition)
        elif acquisition.inside:
            self._look_inside(acquisition, reason)

    def _reaches(self, server: int) -> bool:
        return self._connections[server].in_reach

    def _look_inside(self, acquisition: QuorumAcquisition, reason: str) -> None:
        for step in acquisition.vote_set.look(self._time()):
            assert isinstance(step, YieldVote), "it is inside already"
            self._yield_vote(acquisition, step)
        deadline = acquisition.vote_set.deadline
        if deadline is not None and deadline >= acquisition.promised:
            return
        name = acquisition.request.name
        waiter, fence = acquisition.holder, acquisition.vote_set.fence
        if deadline is None:
            # The remaining votes are no majority, and no later vote replaces one that was counted.
            self._abandon(acquisition, entered=True)
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
        self._prolong(acquisition, deadline, now)
        if acquisition.is_waited_for:
            acquisition.tell(granted(acquisition, deadline), at_once=len(self.acquisitions) <= _FEW)
            if not acquisition.queued or acquisition.over:
                return
        self._push(acquisition, acquisition.own, acquisition.called, fence, deadline)

    def _answer(self, acquisition: QuorumAcquisition) -> None:
        if acquisition.over or acquisition.idle:
            return
        if not acquisition.is_waited_for:
            once = acquisition.request.form.once
            if once and isinstance(denied(acquisition, self._connections), Done):
                self._deliver(
                    AskAgain(acquisition.request.name)
                )  # the client asks, and gets the answer
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
                self._write_back(acquisition)
            if isinstance(answer, Busy | Full | Done):
                self._abandon(acquisition, entered=False)

    def _ask_the_full(self, acquisition: QuorumAcquisition) -> None:
        """Ask the members whose queue was full: others have given the waiter a place."""
        for server, said in enumerate(acquisition.said):
            if isinstance(said, QueueIsFull):
                self._ask(acquisition, server, self._time())

    # Renewing

    def renew_all(
        self,
        renewals: Sequence[Renewal],
        concluded: Callable[[int, bool | None], None],
        sent: Callable[[], object],
    ) -> None:
        """See `Renew`; each is concluded by its number, and all of them are sent in parts."""
        self._passes.begin(object(), self._renew_each(renewals, concluded), sent)

    def _renew_each(
        self, renewals: Sequence[Renewal], concluded: Callable[[int, bool | None], None]
    ) -> Iterator[int]:
        for number, (_, waiter, _, fence, ttl) in enumerate(renewals):
            self.renew(waiter, fence, ttl, partial(concluded, number))
            yield ASKED * self._membership.size

    def renew(self, waiter: WaiterId, fence: int, ttl: int, concluded: Concluded) -> None:
        """One renewal of `Renew`: True, False, or None for unknown."""
        acquisition = self._has(waiter)
        if acquisition is None or not acquisition.inside or acquisition.vote_set.fence != fence:
            concluded(False)  # noqa: FBT003  # what is known
            return
        if acquisition.request.form.counts:
            concluded(True)  # noqa: FBT003  # it was counted, and stays so
            return
        held = acquisition.vote_set.together  # a run begins once a majority has confirmed these
        servers = [server for server in held if self._connections[server].in_reach]
        until = self._time() + lasts(ttl)
        renewing = self._renewals[acquisition.request.waiter] = Renewing(
            acquisition, servers, ttl, until, concluded
        )
        for server in servers:
            self._renew(acquisition, server, ttl, fence, renewing.on_reply, entered=True)
        renewing.look()

    def _voted(
        self,
        acquisition: QuorumAcquisition,
        server: int,
        number: int,
        deadline: float,
        given: int | None,
    ) -> None:
        super()._voted(acquisition, server, number, deadline, given)
        renewing = self._renewals.get(acquisition.request.waiter)
        if renewing is not None and renewing.takes_in(server):
            fence, on_reply = acquisition.vote_set.fence, renewing.on_reply
            self._renew(acquisition, server, renewing.ttl, fence, on_reply, entered=True)
        elif acquisition.inside:
            self._prolong(acquisition, acquisition.vote_set.deadline or 0.0, self._time())

    def _prolong(self, acquisition: QuorumAcquisition, deadline: float, now: float) -> None:
        """Renew the votes that end long before the deadline of the others, up to that.

        A vote that is pushed lasts for a claim. The holder may not be due to renew before that is
        over, and then that server would consider it stuck. This does not report that it is inside:
        its client may still find that it is too late.
        """
        vote_set, form = acquisition.vote_set, acquisition.request.form
        if form.period or form.counts:  # a run is confirmed before it begins
            return
        soon = deadline - form.claim / 3000
        for server, vote in enumerate(vote_set.votes):
            if vote is None or vote.deadline >= soon:
                continue
            lease = lease_until(deadline, now, self._membership.config.longest)
            if lease and self._connections[server].in_reach:
                self._renew(acquisition, server, lease, vote_set.fence, unheard)

    # The end

    def release(
        self, name: str, waiter: WaiterId, form: Form, fence: int, *, entered: bool, lost: bool
    ) -> asyncio.Future[int]:
        """See `Release`."""
        acquisition = self._has(waiter)
        mine = (
            acquisition is not None and acquisition.inside and acquisition.vote_set.fence == fence
        )
        if fence and not mine:
            return self._at_once(WAS_ABSENT)
        if acquisition is None and waiter in self.acquisitions:
            return self._at_once(WAS_ABSENT)  # it has left, and another waiter has its votes
        if fence and entered and acquisition is not None:
            handed = self._hand_off(acquisition)
            return self._leave_in_turn(acquisition, lost=lost) if handed is None else handed
        if acquisition is None:
            request = VoteRequest(name, waiter, form, 0)
            acquisition = QuorumAcquisition(
                request, form.claim, self._membership.size, wait=False, most=0
            )
            acquisition.asked = [connection.is_joined for connection in self._connections]
            return self.leave(acquisition, entered=False, again=False)
        if fence and not entered and acquisition.holder == acquisition.own:
            return self._give_back(acquisition)
        return self.leave(acquisition, entered=entered, lost=lost)

    def _give_back(self, acquisition: QuorumAcquisition) -> asyncio.Future[int]:
        """It was entered too late: the client asks again, with the same ticket."""
        tally = Tally(self._membership.quorum, WAS_HOLDER, self._membership.size)
        acquisition.idle = True
        renewing = self._renewals.pop(acquisition.request.waiter, None)
        if renewing is not None:
            renewing.give_back()
        self._enqueue_locally(acquisition)
        leaves = [
            each for each in acquisition.vote_set.give_back() if acquisition.asked[each.server]
        ]
        tally.expect(len(leaves))
        for each in leaves:
            self._release_at(acquisition, each.server, each.upto, tally.on_reply)
        return tally.future

    def leave(
        self,
        acquisition: QuorumAcquisition,
        *,
        entered: bool,
        lost: bool = False,
        again: bool = True,
    ) -> asyncio.Future[int]:
        """End an acquisition in any state: release it at each member that was asked.

        ``again``: a release that fails is sent again, if the member may have a vote or a place of
        it.
        """
        vote_set, inside = acquisition.vote_set, acquisition.inside
        if acquisition.local:
            self._end(acquisition)
            return self._at_once(WAS_QUEUED)
        if inside:
            was = WAS_HOLDER
            self._enqueue_locally(acquisition)
        else:
            was = WAS_QUEUED if any(acquisition.said) or vote_set.has_votes else WAS_ABSENT
        self._end(acquisition)
        left, acquisition.undecided = acquisition.undecided, None
        request, now = acquisition.request, self._time()
        servers = acquisition.asked.count(True)  # how many were asked
        if not servers:
            return self._at_once(WAS_ABSENT)
        deadline = vote_set.deadline
        ended = deadline is None or deadline <= now
        held = len(vote_set.votes) - vote_set.votes.count(None)
        at_once = len(self.acquisitions) <= _FEW
        tally = Tally(self._membership.quorum, was, held, lost=ended, at_once=at_once)
        tally.expect(servers)
        since = OUTSIDE
        if inside and entered:
            inside_for = max(0, int((now - acquisition.entered_at) * 1000))
            since = LOST if lost or ended else inside_for
        highest = vote_set.highest
        for connection, asked, vote in zip(
            self._connections, acquisition.asked, vote_set.votes, strict=True
        ):
            if not asked:
                continue
            server = connection.number
            counts = vote is not None and not request.form.counts
            on_reply = tally.heard_of if counts else tally.on_reply
            nothing = not (acquisition.arrived[server] or acquisition.asking[server])
            if again and not nothing:
                on_reply = partial(self._released, acquisition, connection, since, now, on_reply)
            connection.asked()
            connection.member.release(request, highest, UNBOUNDED, entered=since, on_reply=on_reply)
        if left is not None:
            tally.future.add_done_callback(partial(_pass_to, left))
        return tally.future

    def _released(  # noqa: PLR0917  # which release, and its answer
        self,
        acquisition: QuorumAcquisition,
        connection: MemberConnection,
        since: int,
        at: float,
        on_reply: OnReply,
        was: int | None,
        error: Exception | None,
    ) -> None:
        if error is not None:
            lasts_for, vote = acquisition.ttl / 1000, acquisition.vote_set.votes[connection.number]
            if vote is not None:
                lasts_for = max(lasts_for, vote.deadline - at)
            highest = acquisition.vote_set.highest
            self._releases.keep(
                Release(connection, acquisition.request, highest, since, at, lasts_for)
            )
            # A vote for it is to be released at once.
            self._left.pop(acquisition.request.waiter, None)
        on_reply(was, error)

    def _end(self, acquisition: QuorumAcquisition) -> None:
        acquisition.vote_set.leave()
        request = acquisition.request
        if not acquisition.local:
            self._remember(request.waiter, self._time())
        self.acquisitions.pop(request.waiter, None)
        self._renewals.pop(request.waiter, None)
        if acquisition.holder != request.waiter:
            self._runs.pop(acquisition.holder, None)
        queue = self._queues.get(request.name)
        if queue is not None and queue.leave(acquisition):
            del self._queues[request.name]
        if acquisition.answers:
            acquisition.tell(Busy(0))  # it was released before it was answered

    def _remember(self, waiter: WaiterId, now: float) -> None:
        """Remember that a waiter was released, and forget two that were released long ago."""
        left = self._left
        left.pop(waiter, None)
        left[waiter] = now
        for _ in range(2):
            if next(iter(left.values())) < now - _LATELY:
                left.popitem(last=False)

    def _abandon(
        self, acquisition: QuorumAcquisition, *, entered: bool, lost: bool = False
    ) -> None:
        """End an acquisition without waiting for the members' answers."""
        self.leave(acquisition, entered=entered, lost=lost).add_done_callback(retrieve)

    def _at_once(self, was: int) -> asyncio.Future[int]:
        future: asyncio.Future[int] = self._loop.create_future()
        self._loop.call_soon(_resolve, future, was)
        return future

    def closing(self) -> Generator[int, None, None]:
        """End all, part by part: later answers of members have no effect from the first step on.

        Undecided hand-offs are released. Everything else ends at the members because this client
        stops listening.
        """
        self._passes.close()
        left, queues = list(self.acquisitions.values()), list(self._queues.values())
        # Before any release, which would queue those behind it at the members.
        self.acquisitions.clear()
        self._queues.clear()
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
        for finish in list(self._finishing.values()):
            self._settle_last(finish)
            yield ASKED
        for acquisition in undecided:
            self._abandon(acquisition, entered=True)
            yield ASKED
        left.reverse()
        while left:
            left.pop().tell(StoreError("the client was closed"))
            yield ASKED
        yield from self._releases.closing()
        yield from self._patience.closing()
        yield from self._passes.freeing()


def _pass_to(left: asyncio.Future[int], released: asyncio.Future[int]) -> None:
    if left.done() or released.cancelled():
        left.cancel()
    elif (error := released.exception()) is not None:
        left.set_exception(error)
    else:
        left.set_result(released.result())


def _resolve(future: asyncio.Future[int], was: int) -> None:
    if not future.done():
        future.set_result(was)
