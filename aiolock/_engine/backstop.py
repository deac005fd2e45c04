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

KEEP_ALIVE_MS: Final = protocol.KEEP_ALIVE
KEEP_ALIVE: Final = KEEP_ALIVE_MS / 1000
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

    def __init__(
        self,
        ask_again: Callable[[Acquisition], None],
        time: Callable[[], float],
        on_idle: Callable[[], object],
    ) -> None:
        """``time`` is the clock of `Acquisition.last_asked`.

        ``on_idle`` is called some time after the last waiter has left: a timer is not cancelled
        for an empty queue, as the next waiter would have to make another.
        """
        self._on_idle = on_idle
        self._ask_again = ask_again
        self._time = time
        self._call_later = shared_timers()
        self.acquisitions: dict[WaiterId, Acquisition] = {}
        """In the order in which they were queued."""
        self.asked: dict[WaiterId, Acquisition] = {}
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
        if waiter in self.acquisitions:
            is_first = next(iter(self.acquisitions)) == waiter
            del self.asked[waiter]
        else:
            is_first = not self.acquisitions
            self.acquisitions[waiter] = acquisition
        self.asked[waiter] = acquisition
        until = answer.until
        most = KEEP_ALIVE_MS if answer.place == 1 else acquisition.policy.claim
        if until > most:
            until = most
        when = self._time() + until / 1000 + JUST_AFTER
        # Only an answer to the first may postpone its next question. Otherwise a stream of
        # newcomers could keep a waiter that lost its place from asking for ever.
        if is_first or when < self.ask_at:
            self.ask_at = when
            if self._timer is None or self._timer_at > when:
                self._arm()

    @property
    def first(self) -> Acquisition:
        """The waiter that has waited longest."""
        return next(iter(self.acquisitions.values()))

    @property
    def first_without_grant(self) -> Acquisition | None:
        """The same, without those that were granted the lock and whose tasks have not run yet."""
        waiting = (each for each in self.acquisitions.values() if each.phase is Phase.QUEUED)
        return next(waiting, None)

    def left(self, acquisition: Acquisition, now: float) -> None:
        """The waiter was removed, and others are left."""
        # It may have been granted the lock after it gave up. The next one is then granted the lock
        # at the end of that claim at the latest.
        policy = acquisition.policy
        ends = policy.claim / 1000
        if policy.shared and not policy.passes and ends > SOON:
            ends = SOON
        if now + ends < self.ask_at:
            self.ask_at = now + ends
            if self._timer is None or self._timer_at > self.ask_at:
                self._arm()

    def close(self) -> None:
        """Ask no more."""
        if self._timer is not None:
            self._timer.cancel()

    def _arm(self) -> None:
        # A timer that fires too early sets itself again: that is cheaper than making a new one.
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self.ask_at
        self._timer = self._call_later(max(0.0, self.ask_at - self._time()), self._ask)

    def _ask(self) -> None:
        self._timer = None
        if not self.acquisitions:
            self._on_idle()
            return
        now = self._time()
        if now >= self.ask_at:
            if self.first.is_quiet:
                self._ask_again(self.first)
            some = list(islice(self.asked.values(), _TOGETHER))
            due = [
                acquisition for acquisition in some if now - acquisition.last_asked >= KEEP_ALIVE
            ]
            for acquisition in due:
                if acquisition.is_quiet:
                    self._ask_again(acquisition)
                # Its answer moves it to the end. If none comes, this does, and the others have a
                # turn.
                self.asked[acquisition.waiter] = self.asked.pop(acquisition.waiter)
            more = len(due) == _TOGETHER
            self.ask_at = now + (JUST_AFTER if more else CLAIM / 1000)
        self._arm()
