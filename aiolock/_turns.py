"""Long work in parts: after each part, the other tasks of the event loop have a turn.

All work that grows with the number of locks, waiters or leases is done in this way, so it never
blocks the loop for longer than a few milliseconds, however many there are.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterable
from contextvars import Context
from typing import Any, Final, Generic, TypeVar
from weakref import WeakKeyDictionary

Item = TypeVar("Item")
Value = TypeVar("Value")

PART: Final = 200
"""Units of work in one iteration of an event loop, for all clients together. A unit takes some ten
microseconds: one holder or waiter of a status, for example."""
_FREED: Final = PART // 8
"""Units of work to free so many objects."""


class Turns:
    """The budget of one event loop for long work: `PART` units in each iteration."""

    def __init__(self) -> None:
        # No reference to the loop: `_of_loops` would keep it for ever.
        self._left = PART

    async def take(self, units: int = 1) -> None:
        """Return when so much work may be done: at once, unless the iteration's budget is spent."""
        while self._left <= 0:  # noqa: ASYNC110  # an iteration of the loop, and nothing else
            await asyncio.sleep(0)
        if self._left == PART:
            asyncio.get_running_loop().call_soon(self._begin, context=Context())
        self._left -= units

    def _begin(self) -> None:
        self._left = PART


_of_loops: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]()


def turns() -> Turns:
    """The turns of the running loop."""
    loop = asyncio.get_running_loop()
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = Turns()
    return found


async def in_parts(steps: Generator[int, None, Value]) -> Value:
    """Run a generator to its end; it yields after each step how many units that was."""
    take = turns().take
    while True:
        try:
            units = next(steps)
        except StopIteration as end:
            value: Value = end.value
            return value
        await take(units)


def at_once(steps: Generator[int, None, Value]) -> Value:
    """The same without a pause, for a thread of its own or for a few."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            value: Value = end.value
            return value


async def clear_in_parts(items: list[Any]) -> None:
    """Empty a list, part by part: freeing many objects at once would block the loop as well."""
    while items:
        await turns().take(_FREED)
        del items[-PART:]


class Backlog(Generic[Item]):
    """A queue of items that are processed a number at a time, in each iteration of the loop."""

    def __init__(self, do: Callable[[Item], object], *, most: int) -> None:
        """Call ``do`` with each item, for ``most`` items in one iteration."""
        self._do = do
        self._most = most
        self._call_soon = asyncio.get_running_loop().call_soon
        self._left = OrderedDict[Item, None]()
        self._planned = False

    def add(self, items: Iterable[Item]) -> None:
        """Add items, to be processed after those added before; those still there, only once."""
        self._left.update(dict.fromkeys(items))
        if not self._planned:
            self._process_part()

    def _process_part(self) -> None:
        # Planned even if nothing is left after this part: items that are added before the next
        # iteration belong to that one, so that no iteration processes more than one part.
        self._planned = bool(self._left)
        if self._planned:
            self._call_soon(self._process_part, context=Context())
        for _ in range(self._most):
            if not self._left:
                return
            self._do(self._left.popitem(last=False)[0])

    def clear(self) -> None:
        """Drop the items that are left."""
        self._left.clear()

    async def done(self) -> None:
        """Return when all items were processed; if cancelled, the rest is processed at once."""
        try:
            while self._left:  # noqa: ASYNC110  # an iteration of the loop, and nothing else
                await asyncio.sleep(0)
        finally:
            while self._left:
                self._do(self._left.popitem(last=False)[0])
