"""When waiters ask again without a push: pushes may be lost, and a dead holder sends none.

Each name has a `LocalQueue` of this client's waiters. Normally only the first of them asks, just
after the first lease at the store ends, so the load does not grow with the number of waiters.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from itertools import islice
from typing import Final

from aiolock import protocol
from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.timers import shared_timers
from aiolock.protocol import CLAIM, Queued, WaiterId

KEEP_ALIVE: Final = protocol.KEEP_ALIVE / 1000
"""Seconds after which every waiter asks again: the store deletes a queue that nobody uses."""
SOON: Final = 0.05
"""Seconds after which to ask when a waiter of ours has entered a shared lock: others hold it too,
and it is unknown whose lease ends first."""
_TOGETHER: Final = 64
"""Waiters that ask for their keep-alive together, in one iteration of the event loop."""
JUST_AFTER: Final = 0.003
"""Seconds past the end of a lease at which to ask: by then it has ended by the store's clock."""


class LocalQueue:
    """One client's waiters for one name. The first asks for all of them; the others ask rarely."""

    def __init__(self, ask_again: Callable[[Acquisition], None], time: Callable[[], float]) -> None:
        """``time`` is the clock of `Acquisition.last_asked`."""
        self._ask_again = ask_again
        self._time = time
        self._call_later = shared_timers()
        self._acquisitions: dict[WaiterId, Acquisition] = {}
        """In the order in which they were queued."""
        self._asked: dict[WaiterId, Acquisition] = {}
        """The same, in the order in which they last had an answer."""
        self.ask_at = math.inf
        """When the first asks again by itself."""
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf  # kept here: a handle of uvloop's does not always know it

    def queued(self, acquisition: Acquisition, answer: Queued) -> None:
        """The store answers that this waiter is queued, and when the first lease ends.

        The first in the queue asks when that lease ends: that is how the death of a holder is
        noticed. A waiter further back gets no push about grants to the waiters before it. The lease
        that it knows of may have been replaced by a claim, so it asks after a claim at the latest.
        """
        # With few calls, because every waiter comes this way.
        waiter = acquisition.waiter
        if waiter in self._acquisitions:
            is_first = next(iter(self._acquisitions)) == waiter
            del self._asked[waiter]
        else:
            is_first = not self._acquisitions
            self._acquisitions[waiter] = acquisition
        self._asked[waiter] = acquisition
        if answer.place == 1:
            until = min(answer.until, KEEP_ALIVE * 1000)
        else:
            until = min(answer.until, acquisition.policy.lease, CLAIM)
        if is_first:
            # Only an answer to the first may postpone its next question. Otherwise a stream of
            # newcomers could keep a waiter that lost its place from asking for ever.
            self.ask_at = math.inf
        self._ask_by(self._time() + until / 1000 + JUST_AFTER)

    @property
    def first(self) -> Acquisition:
        """The waiter that has waited longest."""
        return next(iter(self._acquisitions.values()))

    @property
    def first_without_grant(self) -> Acquisition | None:
        """The same, without those that were granted the lock and whose tasks have not run yet."""
        waiting = (each for each in self._acquisitions.values() if each.phase is Phase.QUEUED)
        return next(waiting, None)

    def leave(self, acquisition: Acquisition) -> bool:
        """The waiter does not wait any more; True if none is left."""
        waiter = acquisition.waiter
        if waiter in self._acquisitions:
            del self._acquisitions[waiter], self._asked[waiter]
            if not self._acquisitions:
                if self._timer is not None:
                    self._timer.cancel()
                return True
            # It may have been granted the lock after it gave up. The next one is then granted the
            # lock at the end of that claim at the latest.
            lease = acquisition.policy.lease
            ends = (min(CLAIM, lease)) / 1000
            shares = acquisition.policy.shared and not acquisition.policy.passes
            self._ask_by(self._time() + (min(SOON, ends) if shares else ends))
        return not self._acquisitions

    def _ask_by(self, when: float) -> None:
        """Let the first ask again at that time, unless it does so earlier."""
        self.ask_at = min(self.ask_at, when)
        # A timer that fires too early sets itself again: that is cheaper than making a new one.
        if self._timer is None or self._timer_at > self.ask_at:
            if self._timer is not None:
                self._timer.cancel()
            self._timer_at = self.ask_at
            self._timer = self._call_later(max(0.0, self.ask_at - self._time()), self._ask)

    def _ask(self) -> None:
        self._timer = None
        now = self._time()
        if now >= self.ask_at:
            if self.first.is_quiet:
                self._ask_again(self.first)
            some = list(islice(self._asked.values(), _TOGETHER))
            due = [
                acquisition for acquisition in some if now - acquisition.last_asked >= KEEP_ALIVE
            ]
            for acquisition in due:
                if acquisition.is_quiet:
                    self._ask_again(acquisition)
                # Its answer moves it to the end. If none comes, this does, and the others have a
                # turn.
                self._asked[acquisition.waiter] = self._asked.pop(acquisition.waiter)
            more = len(due) == _TOGETHER
            self.ask_at = now + (JUST_AFTER if more else CLAIM / 1000)
        self._ask_by(self.ask_at)
