"""When waiters for tokens ask again: nobody releases any, so each asks when its own are there.

One question is enough for all whose tokens are there, of all clients: the others get theirs by a
push. A waiter whose push was lost asks for itself, somewhat later.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Final, NamedTuple

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.backstop import JUST_AFTER, KEEP_ALIVE, SOON
from aiolock._engine.timers import shared_timers
from aiolock.protocol import CLAIM, Queued, WaiterId

_TOGETHER: Final = 64
"""Waiters that are looked at in one iteration of the event loop."""


class Told(NamedTuple):
    """What a waiter knows, by the client's clock."""

    asks: float
    """When it asks."""
    expected: float
    """When its tokens are there, if all before it take theirs."""


class RateQueue:
    """One client's waiters for the tokens of one name; used as a `LocalQueue`."""

    def __init__(
        self,
        ask_again: Callable[[Acquisition], None],
        time: Callable[[], float],
        on_idle: Callable[[], object],
    ) -> None:
        """As that of `LocalQueue`."""
        self._on_idle = on_idle
        self._ask_again = ask_again
        self._time = time
        self._call_later = shared_timers()
        self.acquisitions: dict[WaiterId, Acquisition] = {}
        """In the order in which they were queued."""
        self.asked: dict[WaiterId, Told] = {}
        self._times: list[tuple[float, WaiterId]] = []
        """A heap of the times at which waiters ask; those that `asked` does not have are void."""
        self.ask_at = math.inf
        """When the next of them asks."""
        self._timer: asyncio.TimerHandle | None = None

    def queued(self, acquisition: Acquisition, answer: Queued) -> None:
        """The store answers that this waiter is queued, and when its tokens are there."""
        if not self.acquisitions:
            self._times.clear()
        waiter, now = acquisition.waiter, self._time()
        self.acquisitions[waiter] = acquisition
        expected = now + answer.until / 1000
        # Not later than the keep-alive: the store deletes a queue that nobody uses.
        self._asks(waiter, Told(min(expected + JUST_AFTER, now + KEEP_ALIVE), expected))
        self._arm()

    def _asks(self, waiter: WaiterId, told: Told) -> None:
        self.asked[waiter] = told
        heappush(self._times, (told.asks, waiter))

    def expected(self, waiter: WaiterId) -> float:
        """Seconds until its tokens are there, as far as it knows."""
        return max(0.0, self.asked[waiter].expected - self._time())

    @property
    def first(self) -> Acquisition:
        """The waiter that has waited longest."""
        return next(iter(self.acquisitions.values()))

    @property
    def first_without_grant(self) -> Acquisition | None:
        """The same, without those that have their tokens, and whose tasks have not run yet."""
        waiting = (each for each in self.acquisitions.values() if each.phase is Phase.QUEUED)
        return next(waiting, None)

    def left(self, acquisition: Acquisition, now: float) -> None:
        """The waiter was removed, and others are left: each has a time of its own."""

    def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        """Let the timer run until the first of the times."""
        first = self._times[0][0] if self._times else math.inf
        if first < self.ask_at or self._timer is None:
            self.close()
            self.ask_at = first
            self._timer = self._call_later(max(0.0, first - self._time()), self._ask)

    def _ask(self) -> None:
        self._timer, self.ask_at = None, math.inf
        if not self.acquisitions:
            self._times.clear()
            self._on_idle()
            return
        now, looked, asks = self._time(), 0, False
        while self._times and self._times[0][0] <= now and looked < _TOGETHER:
            looked += 1
            asks_at, waiter = heappop(self._times)
            told = self.asked.get(waiter)
            if told is None or told.asks != asks_at:
                continue
            # The others get their tokens by a push, as a rule before their turn here comes again.
            self._asks(waiter, told._replace(asks=now + (SOON if asks else CLAIM / 1000)))
            acquisition = self.acquisitions[waiter]
            if not asks and acquisition.is_quiet:
                asks = True
                self._ask_again(acquisition)
        if self._times:
            self._arm()
