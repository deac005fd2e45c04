"""Long work in parts: the other tasks of the event loop have a turn after each of them.

Work that grows with the number of locks, waiters or leases is done under this. So the loop is never
kept for longer than a few milliseconds, however many there are.
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
"""Units of work that are done in one iteration of an event loop, by all clients there. A unit takes
some ten microseconds: one party of a status, for example."""
_FREED: Final = PART // 8
"""Units of work to free so many objects."""


class Turns:
    """The long work of one event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._call_soon = loop.call_soon
        self._left = PART

    async def take(self, units: int = 1) -> None:
        """Return when so much work may be done; at once, unless much was done in this iteration."""
        while self._left <= 0:  # noqa: ASYNC110  # an iteration of the loop, and nothing else
            await asyncio.sleep(0)
        if self._left == PART:
            self._call_soon(self._begin, context=Context())
        self._left -= units

    def _begin(self) -> None:
        self._left = PART


_of_loops: Final = WeakKeyDictionary[asyncio.AbstractEventLoop, Turns]()


def turns() -> Turns:
    """The turns of the running loop."""
    loop = asyncio.get_running_loop()
    found = _of_loops.get(loop)
    if found is None:
        found = _of_loops[loop] = Turns(loop)
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


async def let_go(items: list[Any]) -> None:
    """Empty a list, part by part: to free what is in it takes time as well."""
    while items:
        await turns().take(_FREED)
        del items[-PART:]


class Backlog(Generic[Item]):
    """Does something for each of many, some in this iteration of the loop and so on."""

    def __init__(self, do: Callable[[Item], object], *, most: int) -> None:
        """``most``: for how many in one iteration."""
        self._do = do
        self._most = most
        self._call_soon = asyncio.get_running_loop().call_soon
        self._left = OrderedDict[Item, None]()
        self._planned = False

    def add(self, items: Iterable[Item]) -> None:
        """Do it for these as well, after all that were added before; once for each."""
        self._left.update(dict.fromkeys(items))
        if not self._planned:
            self._some()

    def _some(self) -> None:
        # Planned also if none is left then: what is added until then is done there.
        self._planned = bool(self._left)
        if self._planned:
            self._call_soon(self._some, context=Context())
        for _ in range(self._most):
            if not self._left:
                return
            self._do(self._left.popitem(last=False)[0])

    def clear(self) -> None:
        """Do it for nobody else."""
        self._left.clear()

    async def done(self) -> None:
        """Return when it was done for all; cancelled, it is done for the others at once."""
        try:
            while self._left:  # noqa: ASYNC110  # an iteration of the loop, and nothing else
                await asyncio.sleep(0)
        finally:
            while self._left:
                self._do(self._left.popitem(last=False)[0])
