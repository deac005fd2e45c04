"""Work on all acquisitions of a name or of a client, in parts: the one way to go over them.

Such work is a *pass*: a generator that yields after each step how many units of work that was. All
passes of a client share what may be done in one iteration of the event loop (`PART`), and take
turns. A pass does its first part at once, if the iteration has any left; with some dozens of
acquisitions that is all of it.

Other events come between two parts. So a step relies on nothing that an earlier step has found, and
a pass that begins anew takes the place of the earlier one, from its first step on.

Timers that are set for each name or acquisition are here for the same reason: thousands of them may
be due at once, after a pause of the process.
"""

from __future__ import annotations

import asyncio
import math
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextvars import Context
from heapq import heapify, heappop, heappush
from itertools import count
from typing import Final, NamedTuple

PART: Final = 1000
"""Units of work in one iteration of the event loop. A unit is a look at one acquisition, for one
member: some two microseconds."""
ASKED: Final = 10
"""Units of work to ask a member, or to act on a vote."""
_FEW: Final = 100
"""So many cancelled timers are kept until they are due, whatever their share."""
_TIMERS: Final = "timers"
"""The pass over the timers that are due."""


class _Pass(NamedTuple):
    steps: Iterator[int]
    over: Callable[[], object]


class Timer:
    """Something to be done at a time, unless it is cancelled before."""

    __slots__ = ("_timers", "do", "when")

    def __init__(self, timers: Passes, when: float, do: Callable[[], object]) -> None:
        self._timers = timers
        self.when = when
        self.do: Callable[[], object] | None = do
        """None once it was cancelled or has begun."""

    def cancel(self) -> None:
        """Do nothing then. Idempotent."""
        if self.do is not None:
            self.do = None
            self._timers.was_cancelled()


class Passes:
    """The passes of one client, and the timers of its names and acquisitions."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._loop = asyncio.get_running_loop()
        self._left = PART
        """Units of work that may still be done in this iteration of the loop."""
        self._next: asyncio.Handle | None = None
        """The next iteration, if anything was done in this one."""
        self._under_way = OrderedDict[Hashable, _Pass]()
        self._works = False
        self._timers: list[tuple[float, int, Timer]] = []
        """A heap of timers by the time when each is due; the number in between is unique."""
        self._numbers = count()
        self._cancelled = 0
        """How many of the timers are cancelled."""
        self._alarm: asyncio.TimerHandle | None = None
        """Fires when the first timer is due."""
        self._alarm_at = math.inf
        self._closed = False

    # Passes

    def begin(
        self, what: Hashable, steps: Iterator[int], over: Callable[[], object] = lambda: None
    ) -> bool:
        """Begin a pass, in place of one of the same kind that is under way; whether it is over.

        ``over`` is called after the last step, or after one that has failed; not if the pass is
        ended, or another one takes its place.
        """
        if self._closed:
            return True
        self._under_way.pop(what, None)
        self._under_way[what] = _Pass(steps, over)
        if not self._works:  # otherwise it has its turn after the step that begins it
            self._do_part()
        return what not in self._under_way

    def end(self, what: Hashable) -> None:
        """Give a pass up, if it is under way."""
        self._under_way.pop(what, None)

    def is_under_way(self, what: Hashable) -> bool:
        """Whether steps of such a pass are left."""
        return what in self._under_way

    @property
    def idle(self) -> bool:
        """Whether no pass is under way."""
        return not self._under_way

    def _do_next_part(self) -> None:
        self._next, self._left = None, PART
        if self._under_way:
            self._do_part()

    def _do_part(self) -> None:
        """Do what may still be done in this iteration of the loop."""
        if self._next is None:
            self._next = self._loop.call_soon(self._do_next_part, context=Context())
        self._works = True
        try:
            while self._left > 0 and self._under_way:
                self._go_on(*next(iter(self._under_way.items())))
        finally:
            self._works = False

    def _go_on(self, what: Hashable, now: _Pass) -> None:
        """Go on with a pass until it is over, or until enough was done."""
        is_over = True
        try:
            for units in now.steps:
                self._left -= units
                if self._under_way.get(what) is not now:
                    return  # this step has ended it, or begun it anew
                if self._left <= 0:
                    self._under_way.move_to_end(what)
                    is_over = False
                    return
        finally:
            if is_over and self._under_way.get(what) is now:
                del self._under_way[what]
                now.over()

    # Timers

    def call_at(self, when: float, do: Callable[[], object]) -> Timer:
        """Do something at that time, by the client's clock."""
        timer = Timer(self, when, do)
        if not self._closed:
            heappush(self._timers, (when, next(self._numbers), timer))
            if when < self._alarm_at:
                self._set_alarm()
        return timer

    def was_cancelled(self) -> None:
        """One of the timers was cancelled: forget these before they are many."""
        self._cancelled += 1
        if not self._closed and self._cancelled > max(_FEW, len(self._timers) // 2):
            self._timers = [each for each in self._timers if each[2].do is not None]
            heapify(self._timers)
            self._cancelled = 0
            if not self._timers:
                self._set_alarm()

    def _set_alarm(self) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm, self._alarm_at = None, math.inf
        if self._timers:
            self._alarm_at = self._timers[0][0]
            left = max(0.0, self._alarm_at - self._time())
            self._alarm = self._loop.call_later(left, self._rings)

    def _rings(self) -> None:
        if self._time() < self._alarm_at:
            self._set_alarm()  # loops round
            return
        self._alarm, self._alarm_at = None, math.inf
        self.begin(_TIMERS, self._ring(), self._set_alarm)

    def _ring(self) -> Iterator[int]:
        while self._timers and self._timers[0][0] <= self._time():
            timer = heappop(self._timers)[2]
            do, timer.do = timer.do, None
            if do is None:
                self._cancelled -= 1
                yield 1
            else:
                do()
                yield ASKED

    def close(self) -> None:
        """Give up all passes and timers: nothing begins any more."""
        self._closed = True
        for handle in (self._next, self._alarm):
            if handle is not None:
                handle.cancel()
        self._next = self._alarm = None
        self._under_way.clear()

    def freeing(self) -> Iterator[int]:
        """Free the timers, part by part: it takes its time if there are many."""
        while self._timers:
            self._timers.pop()
            yield 1
