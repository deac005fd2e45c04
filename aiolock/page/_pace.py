"""Long work in parts: the page works in an application's event loop, which has other things to do.

Work that grows with the number of locks, or of those that wait for one, is done under this.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final, TypeVar

Item = TypeVar("Item")

PART: Final = 200
"""Units of work after which other tasks have a turn. A unit takes a few microseconds."""


class Pace:
    """The pace of one piece of work."""

    def __init__(self) -> None:
        self._done = 0

    async def step(self, units: int = 1) -> None:
        """Count units of work that were done; if that is enough for now, let other tasks run."""
        self._done += units
        if self._done >= PART:
            self._done = 0
            await asyncio.sleep(0)


def parts(items: Iterable[Item]) -> Iterator[list[Item]]:
    """The items in lists that can be processed between two turns."""
    left = iter(items)
    while part := list(islice(left, PART)):
        yield part
