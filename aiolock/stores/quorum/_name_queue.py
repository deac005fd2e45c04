"""One client's acquisitions of one name, and when they are looked after."""

from __future__ import annotations

import math
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from typing import Final

from aiolock.protocol import WaiterId
from aiolock.stores.quorum._acquisition import QuorumAcquisition
from aiolock.stores.quorum._passes import Passes, Timer

FRESH: Final = 0.01
"""Seconds for which "no other client waits" is relied on, from before that was asked."""


class NameQueue:
    """One client's acquisitions of one name; the first of them asks for all."""

    def __init__(
        self, due: Callable[[NameQueue], Iterator[int]], servers: int, passes: Passes
    ) -> None:
        """``due`` is the pass over all of them that is made now and then: see `look_by`."""
        self._due = due
        self._passes = passes
        self.alone = [-math.inf] * servers
        """The time of the question to which a member last answered `ALONE`."""
        self.shared_until = -math.inf
        """Until then no hand-off is tried: another client waits, or the members are too slow."""
        self.in_order = True
        """Whether each acquisition came behind all that were there."""
        self.last = -(1 << 62)
        """The ticket of the last one."""
        self.acquisitions: dict[WaiterId, QuorumAcquisition] = {}
        self.locals = OrderedDict[WaiterId, QuorumAcquisition]()
        """Those in no queue of a member, which wait at this client."""
        self.timer_of_locals: Timer | None = None
        self.enqueued_since = -math.inf
        """Locals that have waited since then, or longer, are queued at the members just now."""
        self.leaving = dict[QuorumAcquisition, Callable[[], object]]()
        """What is done once these locals are queued there."""
        self.to_ask: list[deque[QuorumAcquisition] | None] = [None] * servers
        """By member: the acquisitions that are still to be asked for, if all are asked for anew."""
        self._timer: Timer | None = None
        """For the next pass."""
        self._look_at = math.inf
        """The time of the next pass."""

    def join(self, acquisition: QuorumAcquisition) -> bool:
        """Add a new acquisition; returns whether each has come behind all that were there."""
        ticket = acquisition.request.ticket
        self.in_order = self.in_order and ticket > self.last
        self.last = max(self.last, ticket)
        self.acquisitions[acquisition.request.waiter] = acquisition
        return self.in_order

    def leave(self, acquisition: QuorumAcquisition) -> bool:
        """Remove an ended acquisition; returns whether none is left."""
        self.acquisitions.pop(acquisition.request.waiter, None)
        if acquisition.local:
            self.locals.pop(acquisition.request.waiter, None)
        if self.acquisitions:
            return False
        if self._timer or self.timer_of_locals or not self._passes.idle:
            self.close()
        return True

    def is_alone(self, now: float) -> bool:
        """Whether a majority of the members has confirmed lately that no other client waits."""
        since = now - FRESH
        return sum(asked >= since for asked in self.alone) > len(self.alone) // 2

    def is_local(self, acquisition: QuorumAcquisition, *, local: bool) -> None:
        """Whether the acquisition waits at this client, or is in the queues of members."""
        acquisition.local = local
        if local:
            self.locals[acquisition.request.waiter] = acquisition
        else:
            self.locals.pop(acquisition.request.waiter, None)

    def close(self) -> None:
        """Stop the timers, and the passes under way: no acquisition is left, or counts."""
        for timer in (self._timer, self.timer_of_locals):
            if timer is not None:
                timer.cancel()
        self._timer = self.timer_of_locals = None
        self._look_at = math.inf
        for each in (self, self.pass_of_locals, *map(self.pass_there, range(len(self.to_ask)))):
            self._passes.end(each)
        self.acquisitions.clear()
        self.locals.clear()

    @property
    def pass_of_locals(self) -> tuple[NameQueue, str]:
        """The pass in which locals are queued at the members."""
        return self, "locals"

    def pass_there(self, server: int) -> tuple[NameQueue, int]:
        """The pass in which that member is asked for all of them."""
        return self, server

    def look_by(self, when: float) -> None:
        """Check by that time which acquisitions have to ask again."""
        if when < self._look_at:
            self._look_at = when
            if not self._passes.is_under_way(self):  # else as soon as that is over
                self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._look_at < math.inf:
            self._timer = self._passes.call_at(self._look_at, self._look)

    def _look(self) -> None:
        self._timer, self._look_at = None, math.inf
        self._passes.begin(self, self._due(self), self._set_timer)
