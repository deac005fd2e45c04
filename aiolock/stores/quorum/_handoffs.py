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
* **A new waiter waits at its client** during a run, without a place in a queue, for a short while:
  see `_local_waiters`.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from functools import partial
from typing import Final

from aiolock._futures import retrieve
from aiolock.protocol import WAS_HOLDER, Deliver
from aiolock.stores._member import GONE, SHARED
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._answers import pushed
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._endings import Endings
from aiolock.stores.quorum._local_waiters import LocalWaiters, are_alike
from aiolock.stores.quorum._name_queue import FRESH, NameQueue

_AHEAD: Final = 64
"""How many fences are made known to the members in advance."""
_SHARED: Final = 0.1
"""Seconds in which no hand-off is tried after a member has reported that another client waits."""
_FAR: Final = 1.0
"""The same, after the members have answered too late for a hand-off."""
_UNDECIDED: Final = 0.02
"""Seconds for which the next holder may be undecided before the lock is released."""
_MARGIN: Final = 4
"""A hand-off needs at least this part of a claim until the deadline."""


class LocalHandoffs:
    """The hand-offs among the waiters of one client."""

    def __init__(  # its parts, and the receivers of what happens
        self,
        common: Common,
        *,
        local_waiters: LocalWaiters,
        endings: Endings,
        look: Callable[[QuorumAcquisition], object],
        deliver: Deliver,
    ) -> None:
        """``look`` acts on the votes of an acquisition."""
        membership, self._passes, self._table = common
        self._connections = membership.connections
        self._time = membership.time
        self._loop = asyncio.get_running_loop()
        self._local_waiters = local_waiters
        self._endings = endings
        self._look = look
        self._deliver = deliver

    def hand_off(self, acquisition: QuorumAcquisition) -> asyncio.Future[int] | None:
        """The holder leaves: hand the lock off to the next waiter of this client, if that is
        allowed.

        Returns the answer to the release; None if the votes are to be released.
        """
        queue = self._table.queues.get(acquisition.request.name)
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
        return target if ready and are_alike(acquisition, target) else None

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
            queue = self._table.queues.get(acquisition.request.name)
            if answer == GONE:
                acquisition.vote_set.gone(server, number, now)
                if acquisition.inside:
                    self._table.ask_by(acquisition, server, now)
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
            self._local_waiters.enqueue(queue)
        elif answer != GONE:
            queue.alone[server] = max(queue.alone[server], sent)

    def _is_late(
        self, queue: NameQueue, acquisition: QuorumAcquisition, left: asyncio.Future[int]
    ) -> None:
        if acquisition.undecided is left:
            queue.shared_until = self._time() + _FAR
            self._endings.leave_in_turn(acquisition).add_done_callback(retrieve)

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
            self._endings.leave_in_turn(acquisition).add_done_callback(retrieve)
            return
        if not queue.is_alone(now):
            return
        fence = vote_set.hand_off(now)
        if not fence:
            return
        left, acquisition.undecided = acquisition.undecided, None
        waiter = target.own
        self._table.by_holder.pop(acquisition.holder, None)
        called = target.called
        self._endings.abandon(target, entered=False)
        acquisition.holder, self._table.by_holder[waiter] = waiter, acquisition
        acquisition.entered_at, acquisition.promised = now, deadline
        if left is not None and not left.done():
            left.set_result(WAS_HOLDER)
        self._deliver(pushed(acquisition, waiter, called, fence, deadline, self._time()))
