"""Hand-offs within one client, without the members.

A waiter that has entered has the votes of a majority, and its client may let another of its own
waiters have the lock by these very votes. No message goes to the members: for them the votes still
belong to the first waiter, until the last waiter of this *run* has left. So the deadline stays as
it was, and every event about the votes (renewed, taken away, lost) concerns the waiter that holds
the lock by then, the *holder*.

* **The fences are known beforehand.** A majority of the votes has to be out, and their members have
  to know the next fence, before a waiter enters with it. So any later vote has a higher number,
  even if no message that is sent after this arrives.
* **No other client waits.** A majority has to have confirmed that within `FRESH`; otherwise the
  votes are given back, and the members grant the lock. So a waiter that is in the queues of a
  majority is not overtaken for longer than that.
* **A new waiter waits at its client** during a run, without a place in a queue, for a short while
  (`LAZY`). Then its client asks the members for it; it asks them at once if another client waits,
  and before the votes are given back. The ticket is from when the waiter came, so its place is the
  one that it would have had.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Generator, Iterator
from dataclasses import replace
from functools import partial
from typing import Final

from aiolock.protocol import (
    WAS_HOLDER,
    Deliver,
    Form,
    Granted,
    GrantPushed,
    Participant,
    Queued,
    Status,
    WaiterId,
    lasts,
)
from aiolock.stores._member import GONE, SHARED
from aiolock.stores.quorum._acquisition import NameQueue, QuorumAcquisition, lease_until
from aiolock.stores.quorum._answers import ASK_AGAIN
from aiolock.stores.quorum._counts import retrieve
from aiolock.stores.quorum._marks import Marking
from aiolock.stores.quorum._membership import Membership
from aiolock.stores.quorum._passes import ASKED

FRESH: Final = 0.01
"""Seconds for which "no other client waits" is relied on, from before that was asked."""
_AHEAD: Final = 64
"""How many fences are made known to the members in advance."""
LAZY: Final = 0.05
"""Seconds for which a waiter may wait at its client, without a place in a queue."""
_SHARED: Final = 0.1
"""Seconds in which no hand-off is tried after a member has reported that another client waits."""
_FAR: Final = 1.0
"""The same, after the members have answered too late for a hand-off."""
_UNDECIDED: Final = 0.02
"""Seconds for which the next holder may be undecided before the lock is released."""
_MARGIN: Final = 4
"""A hand-off needs at least this part of a claim until the deadline."""


class Handing(Marking):
    """The acquisitions of one client, among which it may hand locks off."""

    def __init__(self, membership: Membership, deliver: Deliver) -> None:
        super().__init__(membership)
        self._deliver = deliver
        self._runs: dict[WaiterId, QuorumAcquisition] = {}
        """The holders after a hand-off, each with the acquisition whose votes it has; and waiters
        that have come back, each with the acquisition that has another number at the members."""

    def leave(
        self, acquisition: QuorumAcquisition, *, entered: bool, lost: bool = False
    ) -> asyncio.Future[int]:
        """End an acquisition: release it at each member that was asked."""
        raise NotImplementedError

    def _abandon(
        self, acquisition: QuorumAcquisition, *, entered: bool, lost: bool = False
    ) -> None:
        """End an acquisition without waiting for the members' answers."""
        raise NotImplementedError

    def _has(self, waiter: WaiterId) -> QuorumAcquisition | None:
        """The acquisition by whose votes this waiter holds the lock, or with which it waits."""
        acquisition = self._runs.get(waiter) if self._runs else None
        if acquisition is None:
            acquisition = self.acquisitions.get(waiter)
            if acquisition is not None and acquisition.holder != waiter:
                return None  # it has left, and another waiter has its votes
        return acquisition

    # Waiters that come during a run

    def _waits_here(self, queue: NameQueue, acquisition: QuorumAcquisition) -> bool:
        """Whether a newcomer waits at this client, behind a waiter that has entered; if so, start
        that.
        """
        if len(queue.acquisitions) == 1:
            return False
        first, now = next(iter(queue.acquisitions.values())), acquisition.called
        if (
            not first.inside
            or not _alike(first, acquisition)
            or not acquisition.wait
            or acquisition.most
            or queue.leaving
        ):
            return False
        if now < queue.shared_until or not self._is_alone(queue, now):
            return False
        acquisition.queued = True
        queue.is_local(acquisition, local=True)
        acquisition.tell(Queued(acquisition.request.ticket, 2, ASK_AGAIN, int(now * 1e6)))
        if queue.timer_of_locals is None:
            self._look_at_locals_by(queue, now + LAZY)
        return True

    def _look_at_locals_by(self, queue: NameQueue, when: float) -> None:
        queue.timer_of_locals = self._passes.call_at(when, partial(self._look_at_locals, queue))

    def _look_at_locals(self, queue: NameQueue) -> None:
        queue.timer_of_locals = None
        now = self._time()
        self._enqueue(queue, since=now - LAZY / 2)
        if queue.locals:
            self._look_at_locals_by(queue, now + LAZY / 2)

    def _enqueue(self, queue: NameQueue, since: float = math.inf) -> bool:
        """Ask the members for the waiters that have waited here since ``since``, or longer.

        Returns whether that is done; the rest is done in parts.
        """
        queue.enqueued_since = max(queue.enqueued_since, since)
        if self._passes.is_under_way(queue.pass_of_locals):
            return False
        over = partial(self._is_enqueued, queue)
        return self._passes.begin(queue.pass_of_locals, self._enqueue_each(queue), over)

    def _enqueue_each(self, queue: NameQueue) -> Iterator[int]:
        while queue.locals:
            first = next(iter(queue.locals.values()))
            if first.called > queue.enqueued_since:
                return
            queue.is_local(first, local=False)
            first.vote_set.suspended = not self._membership.decides
            if self._membership.decides:
                self._ask_in_turn(first, self._time())
            yield self._membership.size * ASKED

    def _is_enqueued(self, queue: NameQueue) -> None:
        queue.enqueued_since = -math.inf
        leaving, queue.leaving = queue.leaving, {}
        for leave in leaving.values():
            leave()

    def _enqueue_locally(self, acquisition: QuorumAcquisition) -> None:
        """Queue the local waiters at the members, before the votes in front of them are
        given back.
        """
        queue = self._queues.get(acquisition.request.name)
        if queue is not None and queue.locals:
            self._enqueue(queue)

    def _leave_in_turn(
        self, acquisition: QuorumAcquisition, *, lost: bool = False
    ) -> asyncio.Future[int]:
        """The holder leaves: release its votes, once the local waiters are queued at the members.

        Another client's waiter that came later would get the lock before them otherwise.
        """
        queue = self._queues.get(acquisition.request.name)
        if queue is None or not queue.locals or self._enqueue(queue):
            return self.leave(acquisition, entered=True, lost=lost)
        left = acquisition.undecided
        if left is None:
            left = acquisition.undecided = self._loop.create_future()
        queue.leaving[acquisition] = partial(self._leave_late, acquisition, left, lost=lost)
        return left

    def _leave_late(
        self, acquisition: QuorumAcquisition, left: asyncio.Future[int], *, lost: bool
    ) -> None:
        if acquisition.undecided is left:  # else it was handed off after all, or has ended
            self._abandon(acquisition, entered=True, lost=lost)

    # Handing off

    def _hand_off(self, acquisition: QuorumAcquisition) -> asyncio.Future[int] | None:
        """The holder leaves: hand the lock off to the next waiter of this client, if that is
        allowed.

        Returns the answer to the release; None if the votes are to be released.
        """
        queue = self._queues.get(acquisition.request.name)
        if queue is None or len(queue.acquisitions) == 1 or acquisition.undecided is not None:
            return None
        now = self._time()
        if now < queue.shared_until or self._next(queue, acquisition) is None:
            return None
        acquisition.undecided = left = self._loop.create_future()
        self._ask_ahead(acquisition, now)
        self._decide(queue, acquisition)
        if acquisition.undecided is left:
            is_late = partial(self._is_late, queue, acquisition, left)
            self._passes.call_at(now + _UNDECIDED, is_late)
        return left

    def _next(self, queue: NameQueue, acquisition: QuorumAcquisition) -> QuorumAcquisition | None:
        """The next waiter of this client, if the lock can be handed off to it."""
        if not queue.in_order:
            return None
        waiting = iter(queue.acquisitions.values())
        if next(waiting) is not acquisition:
            return None
        target = next(waiting, None)
        if target is None or not target.waits or target.idle or target.vote_set.suspended:
            return None
        ready = target.queued and target.wait and not target.is_waited_for
        return target if ready and _alike(acquisition, target) else None

    def _is_alone(self, queue: NameQueue, now: float) -> bool:
        since = now - FRESH
        return sum(asked >= since for asked in queue.alone) >= self._membership.quorum

    def _ask_ahead(self, acquisition: QuorumAcquisition, now: float) -> None:
        """Ahead of a hand-off, make the next fences known, and ask whether another client waits."""
        vote_set = acquisition.vote_set
        if (
            now - acquisition.ahead_at < FRESH / 3
            and vote_set.highest > vote_set.fence + _AHEAD // 2
        ):
            return
        acquisition.ahead_at = now
        for step in vote_set.reserve(vote_set.fence + _AHEAD):
            connection = self._connections[step.server]
            if connection.in_reach:
                on_reply = partial(
                    self._reserved, acquisition, step.server, step.vote, step.fence, now
                )
                connection.asked()
                connection.member.reserve(acquisition.request, step.vote, step.fence, on_reply)

    def _reserved(  # noqa: PLR0917  # which question, and its answer
        self,
        acquisition: QuorumAcquisition,
        server: int,
        number: int,
        fence: int,
        sent: float,
        answer: int | None,
        error: Exception | None,
    ) -> None:
        if error is None:
            now = self._connections[server].answered(sent)
            queue = self._queues.get(acquisition.request.name)
            if answer == GONE:
                acquisition.vote_set.gone(server, number, now)
                if acquisition.inside:
                    self._ask_by(acquisition, server, now)
            else:
                acquisition.vote_set.renewed(server, number, -math.inf, fence)
            if queue is not None:
                self._heard_of_others(queue, server, sent, now, answer)
                if acquisition.undecided is not None:
                    self._decide(queue, acquisition)
        if not acquisition.over:
            self._look(acquisition)

    def _heard_of_others(
        self, queue: NameQueue, server: int, sent: float, now: float, answer: int | None
    ) -> None:
        if answer == SHARED:
            queue.alone = [-math.inf] * len(queue.alone)
            queue.shared_until = now + _SHARED
            self._enqueue(queue)
        elif answer != GONE:
            queue.alone[server] = max(queue.alone[server], sent)

    def _is_late(
        self, queue: NameQueue, acquisition: QuorumAcquisition, left: asyncio.Future[int]
    ) -> None:
        if acquisition.undecided is left:
            queue.shared_until = self._time() + _FAR
            self._leave_in_turn(acquisition).add_done_callback(retrieve)

    def _decide(self, queue: NameQueue, acquisition: QuorumAcquisition) -> None:
        """The holder has left: hand the lock off once it is certainly the next waiter's turn."""
        now, vote_set = self._time(), acquisition.vote_set
        target = self._next(queue, acquisition)
        deadline = vote_set.deadline or 0.0
        if (
            target is None
            or now < queue.shared_until
            or deadline - now < acquisition.claim / 1000 / _MARGIN
        ):
            self._leave_in_turn(acquisition).add_done_callback(retrieve)
            return
        if not self._is_alone(queue, now):
            return
        fence = vote_set.hand_off(now)
        if not fence:
            return
        left, acquisition.undecided = acquisition.undecided, None
        waiter = target.own
        self._runs.pop(acquisition.holder, None)
        called = target.called
        self._abandon(target, entered=False)
        acquisition.holder, self._runs[waiter] = waiter, acquisition
        acquisition.entered_at, acquisition.promised = now, deadline
        if left is not None and not left.done():
            left.set_result(WAS_HOLDER)
        self._push(acquisition, waiter, called, fence, deadline)

    def _push(
        self,
        acquisition: QuorumAcquisition,
        waiter: WaiterId,
        called: float,
        fence: int,
        deadline: float,
    ) -> None:
        """Tell a queued waiter that it has entered."""
        now = self._time()
        lease, since = lease_until(deadline, now, acquisition.ttl), now
        if lease < acquisition.claim:  # as of any pushed grant, no earlier than its question
            since = max(deadline - lasts(acquisition.claim), called)
            lease = lease_until(deadline, since, acquisition.claim)
        # Two µs earlier, for rounding: it must not seem to last longer.
        when = max(int(since * 1e6) - 2, int(called * 1e6))
        request = acquisition.request
        self._deliver(GrantPushed(request.name, waiter, request.form, fence, lease, when))

    def _repeated_answer(self, acquisition: QuorumAcquisition, ttl: int) -> Granted:
        """The answer to a waiter that asks after the lock was handed off to it: it has the lock."""
        deadline = acquisition.vote_set.deadline or 0.0
        acquisition.promised = max(acquisition.promised, deadline)
        lease = lease_until(deadline, self._time(), ttl)
        return Granted(acquisition.vote_set.fence, lease)

    # Questions of other clients

    def as_handed_off(self, status: Status) -> Generator[int, None, Status]:
        """A status, part by part, that shows the holder in place of the waiter whose votes it has.

        A waiter that has come back is shown with the number that its client uses.
        """

        def present(party: Participant) -> Participant:
            acquisition = self.acquisitions.get(WaiterId(party.client, party.seq))
            if acquisition is None:
                return party
            fence = (
                acquisition.vote_set.fence if party.fence and acquisition.inside else party.fence
            )
            return replace(party, seq=acquisition.holder.seq, fence=fence)

        holders, waiters = list[Participant](), list[Participant]()
        for shown, parties in ((holders, status.holders), (waiters, status.waiters)):
            for party in parties:
                shown.append(present(party))
                yield len(shown) % 4 == 0
        return replace(status, holders=tuple(holders), waiters=tuple(waiters))

    def fences(self, name: str) -> Generator[int, None, dict[int, WaiterId]]:
        """The fences that were handed off, with the waiter whose votes they rest on: part by
        part.
        """
        found, queue = dict[int, WaiterId](), self._queues.get(name)
        for number, each in enumerate(list(queue.acquisitions.values()) if queue else ()):
            if each.inside and each.holder != each.request.waiter:
                found[each.vote_set.fence] = each.request.waiter
            yield number % 8 == 0
        return found


def _alike(one: QuorumAcquisition, other: QuorumAcquisition) -> bool:
    """Whether one waiter may take over the votes of the other."""
    form: Form = one.request.form
    same = form is other.request.form or form == other.request.form
    return same and form.plain and one.ttl == other.ttl
