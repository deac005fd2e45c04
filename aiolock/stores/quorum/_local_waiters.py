"""Waiters that wait at their client, in no queue of a member: see `_handoffs`.

A newcomer waits at its client while another waiter of the client is inside, for a short while
(`LAZY`). Then its client asks the members for it; it asks them at once if another client waits, and
before the votes are given back. The ticket is from when the waiter came, so its place is the one
that it would have had.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final

from aiolock.protocol import Form, Queued
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._answers import ASK_AGAIN
from aiolock.stores.quorum._common import Common
from aiolock.stores.quorum._name_queue import NameQueue
from aiolock.stores.quorum._passes import ASKED

LAZY: Final = 0.05
"""Seconds for which a waiter may wait at its client, without a place in a queue."""


class LocalWaiters:
    """The waiters of one client that are in no queue of a member."""

    def __init__(self, common: Common, ask: Callable[[QuorumAcquisition, float], object]) -> None:
        """``ask`` asks all members for a waiter, behind those that came before it."""
        self._membership, self._passes, self._table = common
        self._time = common.membership.time
        self._ask = ask

    def wait_here(self, queue: NameQueue, acquisition: QuorumAcquisition) -> bool:
        """Let a newcomer wait at this client, behind a waiter that has entered, if it may; returns
        whether it does.
        """
        if len(queue.acquisitions) == 1:
            return False
        first, now = next(iter(queue.acquisitions.values())), acquisition.called
        if (
            not first.inside
            or not are_alike(first, acquisition)
            or not acquisition.wait
            or acquisition.most
            or queue.leaving
        ):
            return False
        if now < queue.shared_until or not queue.is_alone(now):
            return False
        acquisition.queued = True
        queue.is_local(acquisition, local=True)
        acquisition.tell(Queued(acquisition.request.ticket, 2, ASK_AGAIN, int(now * 1e6)))
        if queue.timer_of_locals is None:
            self._look_by(queue, now + LAZY)
        return True

    def _look_by(self, queue: NameQueue, when: float) -> None:
        queue.timer_of_locals = self._passes.call_at(when, partial(self._look, queue))

    def _look(self, queue: NameQueue) -> None:
        queue.timer_of_locals = None
        now = self._time()
        self.enqueue(queue, since=now - LAZY / 2)
        if queue.locals:
            self._look_by(queue, now + LAZY / 2)

    def enqueue(self, queue: NameQueue, since: float = math.inf) -> bool:
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
                self._ask(first, self._time())
            yield self._membership.size * ASKED

    def _is_enqueued(self, queue: NameQueue) -> None:
        queue.enqueued_since = -math.inf
        leaving, queue.leaving = queue.leaving, {}
        for leave in leaving.values():
            leave()

    def enqueue_behind(self, acquisition: QuorumAcquisition) -> None:
        """Queue the local waiters at the members, before the votes in front of them are
        given back.
        """
        queue = self._table.queues.get(acquisition.request.name)
        if queue is not None and queue.locals:
            self.enqueue(queue)


def are_alike(one: QuorumAcquisition, other: QuorumAcquisition) -> bool:
    """Whether one waiter may take over the votes of the other."""
    form: Form = one.request.form
    same = form is other.request.form or form == other.request.form
    return same and form.plain and one.ttl == other.ttl
