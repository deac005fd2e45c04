"""The history of the last minutes."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Mapping
from itertools import chain
from typing import Final, NamedTuple

from aiolock.page._limits import Limits
from aiolock.page._look import Key, Seen, Totals
from aiolock.page._pace import Pace, parts

_DENSITY: Final = 5.0
"""Seconds between two remembered lengths of a queue."""
_LATELY: Final = 10.0
"""The seconds, at least, that count as "lately"."""
_WITHIN: Final = 6
"""The time that this is compared with, as a multiple of it."""
_FIRST: Final = 3
"""The first third of that time counts as "at first"."""
_GROWN: Final = 3
"""The growth that is reported, at least."""


class Point(NamedTuple):
    """The totals at one moment."""

    at: float
    held: int
    waiting: int
    longest: float


class Length(NamedTuple):
    """The number of waiters of one lock at one moment."""

    at: float
    waiting: int


class History:
    """Totals, and the longest queues; bounded, and forgotten in time."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._points = deque[Point](maxlen=2 * int(limits.history))
        self._queues = dict[Key, deque[Length]]()

    async def add(self, at: float, totals: Totals, locks: Mapping[Key, Seen]) -> None:
        """Add the totals and locks of one moment."""
        self._points.append(Point(at, totals.held, totals.waiting, totals.longest))
        while self._points[0].at < at - self._limits.history:
            self._points.popleft()
        pace, longest = Pace(), list[Seen]()
        for part in parts(lock for lock in locks.values() if lock.waiting):
            some = chain(longest, part)
            longest = heapq.nlargest(self._limits.tracked, some, key=lambda lock: lock.waiting)
            await pace.step(len(part))
        for lock in longest:
            # It goes to the end: the queues at the front have been short for longest.
            most = int(self._limits.history / _DENSITY)
            queue = self._queues.pop(lock.key, None) or deque[Length](maxlen=most)
            self._queues[lock.key] = queue
        for key in list(self._queues)[: -2 * self._limits.tracked]:
            del self._queues[key]
        for key, queue in list(self._queues.items()):
            if not queue or at - queue[-1].at >= _DENSITY:
                queue.append(Length(at, locks[key].waiting if key in locks else 0))
            if not any(length.waiting for length in queue):
                del self._queues[key]

    def since(self, at: float) -> list[Point]:
        """The totals after that moment."""
        return [point for point in self._points if point.at > at]

    def queue(self, key: Key) -> list[Length]:
        """The lengths of this lock's queue, since it was among the longest."""
        return list(self._queues.get(key, ()))

    def growth(self, key: Key, now: float, every: float) -> int:
        """The growth of its queue within a minute; 0 if it only goes up and down.

        That is, from its greatest length at first to its smallest length lately.
        """
        lately = max(_LATELY, 2 * every)
        queue = [
            length for length in self._queues.get(key, ()) if length.at >= now - _WITHIN * lately
        ]
        if not queue or now - queue[0].at < 2 * lately:
            return 0
        first = queue[0].at + (now - queue[0].at) / _FIRST
        old = [length.waiting for length in queue if length.at <= first]
        new = [length.waiting for length in queue if length.at >= now - lately]
        grown = min(new) - max(old) if new else 0
        return grown if grown >= _GROWN else 0
