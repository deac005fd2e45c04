"""Measures for how long something keeps the event loop: the stretches between turns of a task.

A stretch is one iteration of the loop: all callbacks that were ready run in it, one after the
other, and no other task has a turn before its end. It is measured in processor time of the thread,
so a busy machine hardly makes it longer. But other processes empty the caches of the processor, and
garbage is looked for now and then, whoever is at work. So what measures this is marked with
`alone`: it runs without both.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, cast

LONGEST: Final = 0.010
"""Seconds for which the library may keep the loop."""
_TRIES: Final = 3


class Stretches:
    """The longest stretch so far, and the callback that took the most of any."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._before = time.thread_time()
        self._beat = self._loop.call_soon(self._on_turn)
        self.longest = 0.0
        self.callback = 0.0
        """The longest time of one callback; 0 where the loop's callbacks cannot be timed."""
        self.culprit = ""
        self.callbacks = 0
        """How many callbacks the longest stretch had."""
        self.within = 0.0
        """The time that they took, all together: the rest is the loop's own work."""
        self._ran = (0, 0.0)
        self._over = False

    def _on_turn(self) -> None:
        now = time.thread_time()
        if now - self._before > self.longest:
            self.longest = now - self._before
            self.callbacks, self.within = self._ran
        self._ran = (0, 0.0)
        self._before = now
        self._beat = self._loop.call_soon(self._on_turn)

    def ran(self, handle: asyncio.Handle, took: float) -> None:
        """A callback has taken so long."""
        self._ran = (self._ran[0] + 1, self._ran[1] + took)
        if took > self.callback and not self._over:
            before = time.thread_time()
            self.callback, self.culprit = took, repr(handle)
            self._before += time.thread_time() - before  # it may be of a long answer

    def end(self) -> None:
        """Count what runs now, and no more after that."""
        self.longest = max(self.longest, time.thread_time() - self._before)
        self._over = True
        self._beat.cancel()

    def __str__(self) -> str:
        stretch = f"{self.longest * 1000:.1f} ms"
        if self.callbacks:
            stretch += f" ({self.within * 1000:.1f} ms of it in {self.callbacks} callbacks)"
        if self.culprit:
            stretch += f", and {self.callback * 1000:.1f} ms by {self.culprit}"
        return stretch


@contextmanager
def measured() -> Generator[Stretches]:
    """Measure the stretches of the running loop while the body runs."""
    run: Callable[[asyncio.Handle], None] = asyncio.Handle._run
    assert not gc.isenabled(), "mark the test with `alone`"
    stretches = Stretches()

    def timed(handle: asyncio.Handle) -> None:
        before = time.thread_time()
        run(handle)
        stretches.ran(handle, time.thread_time() - before)

    handles = cast("Any", asyncio.Handle)  # what is set here is no public method
    handles._run = timed  # uvloop goes past it
    try:
        yield stretches
    finally:
        handles._run = run
        stretches.end()


async def check_short(
    operation: Callable[[], Awaitable[Any]], before: Callable[[], Awaitable[Any]] | None = None
) -> None:
    """Fail if the operation keeps the loop for too long, each of three times that it is done.

    What takes so long by itself does so each time; a cache that another process has emptied does
    not. ``before`` is done before each time, and not measured.
    """
    found = list[Stretches]()
    for _ in range(_TRIES):
        if before is not None:
            await before()
        with measured() as stretches:
            done = await operation()
        if stretches.longest <= LONGEST:
            return
        found.append(stretches)
        del done  # what it returned is the test's to free
    raise AssertionError("the loop was kept for " + "; ".join(map(str, found)))
