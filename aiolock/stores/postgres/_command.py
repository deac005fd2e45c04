"""One call of a function, until it is answered, on whatever connections it is sent."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

from aiolock._prompt import Prompt
from aiolock.stores.postgres._calls import Call
from aiolock.stores.postgres._wire import size

_ALONE: Final = frozenset({"renew", "status", "snapshot", "sweep", "beat", "go_on"})
"""Functions about several names, or that may take long."""

_numbers: Final = itertools.count()


class Command:
    """A command, as a pipeline handles it."""

    again = 0
    """The number of times it was sent again because it came too late."""
    times = 0
    """The number of copies that may have been carried out."""
    pause = 0.05
    """Seconds until it is called again, if it is deferred."""

    def __init__(
        self, call: Call, future: Prompt, now: float, stamp: Callable[[float], bytes] | None
    ) -> None:
        """``stamp`` makes one more argument for each copy, by the time at which that is sent."""
        self.function, self.name, self.arguments, self.decode, self.must_run, *_ = call
        self.future = future
        self.size = size(self.function, self.arguments)
        self.born = self.sent = now
        self.number = next(_numbers)
        """The place in the order in which commands were asked for."""
        self.alone = self.function in _ALONE
        """Whether it has a transaction of its own."""
        self.stamp = stamp

    @property
    def wanted(self) -> bool:
        """Whether it is to be carried out."""
        return self.must_run or not self.future.done()
