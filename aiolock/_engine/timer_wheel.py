"""A timer wheel for holds: holds that are due at about the same time are processed together.

Time is divided into slots of 50 ms, and one timer of the event loop serves the next slot in use.
Most holds end long before a renewal is due, so a new hold is only put into a slot after a while.
"""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Final

from aiolock._engine.acquisition import Acquisition
from aiolock._engine.timers import shared_timers

_SLOTS: Final = 20
"""Slots per second: holds that are due in one slot are processed together."""
_YOUNG: Final = 0.1
"""Seconds after which a new hold gets a slot, unless it has ended by then, as most have."""
SOON: Final = 2 * _YOUNG
"""Seconds: a hold that is due within that gets its slot at once."""
_FINE: Final = 64
"""The precision of a slot, as this part of the time until then. So there are few slots, however
long the leases are, and a renewal is early by that part at most."""


_MOST: Final = 256
"""Holds that are processed in one iteration of the event loop; others have a turn then."""


class TimerWheel:
    """Slots of holds by their due time; adding and removing cost the same for 1 hold or 10,000."""

    def __init__(
        self,
        time: Callable[[], float],
        process: Callable[[Sequence[Acquisition], float], None],
        first_due: Callable[[Acquisition], float],
        *,
        longest: float,
    ) -> None:
        """``process`` is called with the holds that are due and the time, by the clock ``time``.

        ``first_due`` returns when one of the young is due.

        The clock is read every ``longest`` seconds at least: while the machine is suspended, it
        goes on and the event loop's timers do not.
        """
        self._time = time
        self._process, self._first_due = process, first_due
        self._longest = longest
        self._call_later = shared_timers()
        self._slots: dict[int, dict[Acquisition, None]] = {}
        # The numbers of the slots in use. Slots that have become empty may still be among them.
        self._order: list[int] = []
        self._ordered: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        self.young: dict[Acquisition, None] = {}
        """New holds without a slot: none is due before `SOON` has passed. Whoever adds one calls
        `promote_soon`, unless it `promotes` already."""
        self.promotes = False
        # Holds that are due within the present slot, and when: see `_set_alarm`.
        self._alarms: dict[Acquisition, float] = {}
        self._alarm_order: list[tuple[float, int, Acquisition]] = []
        self._alarm_timer: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._numbers = count()
        self._promoting = 0  # how many of the young, the oldest first, are to get a slot now
        self._young_timer: asyncio.TimerHandle | None = None

    def schedule(self, hold: Acquisition, when: float, now: float) -> None:
        """Process a hold at ``when`` or slightly earlier; this replaces an earlier plan for it."""
        self.forget(hold)
        slot, current = int(when * _SLOTS), int(now * _SLOTS)
        if slot <= current:
            # That slot has begun, so the hold would be processed at once, which is too early.
            self._set_alarm(hold, when, now)
            return
        ahead = slot - current
        if ahead > _FINE:  # round down to a coarser slot, which more holds share
            slot -= slot % (1 << (ahead // _FINE).bit_length() - 1)
        hold.slot = slot
        due = self._slots.get(slot)
        if due is None:
            due = self._slots[slot] = {}
            if slot not in self._ordered:
                self._ordered.add(slot)
                heapq.heappush(self._order, slot)
            if self._timer is None or slot < self._timer_slot:
                self._arm(slot, now)
        due[hold] = None

    def promote_soon(self) -> None:
        """Give slots to the young after a while."""
        self.promotes = True
        self._young_timer = self._call_later(_YOUNG, self._promote)

    def _promote(self) -> None:
        """Give slots to the new holds that have lasted until now."""
        self.promotes = False
        now = self._time()
        self._promoting = self._promoting or len(self.young)
        some = list(islice(self.young, min(self._promoting, _MOST)))
        for hold in some:
            self.schedule(hold, self._first_due(hold), now)  # which removes it from the young
        self._promoting = self._promoting - len(some) if self.young else 0
        if self.young:
            pause = 0 if self._promoting else _YOUNG
            self.promotes = True
            self._young_timer = self._call_later(pause, self._promote)

    def forget(self, hold: Acquisition) -> None:
        """Do not process this hold any more."""
        if hold in self.young:
            del self.young[hold]
            return
        if self._alarms:
            self._alarms.pop(hold, None)
        due = self._slots.get(hold.slot)
        if due is not None:
            due.pop(hold, None)
            if not due:
                del self._slots[hold.slot]
        hold.slot = -1

    def aclose(self) -> None:
        """Stop all timers."""
        for timer in (self._timer, self._young_timer, self._alarm_timer):
            if timer is not None:
                timer.cancel()

    def _arm(self, slot: int, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        ahead = min(self._longest, max(0.0, slot / _SLOTS - now))
        self._timer = self._call_later(ahead, self._on_timer)

    def _on_timer(self) -> None:
        self._timer = None
        now = self._time()
        due: list[Acquisition] = []
        try:
            while self._order and self._order[0] / _SLOTS <= now and len(due) < _MOST:
                slot = self._slots.get(self._order[0], {})
                some = list(islice(slot, _MOST - len(due)))
                due += some
                for hold in some:
                    del slot[hold]
                    hold.slot = -1
                if not slot:
                    self._slots.pop(self._pop(), None)
            if due:
                self._process(due, now)
        finally:
            # Holds that were rescheduled just now may have set the timer for a later slot than the
            # first one in use.
            while self._order and self._order[0] not in self._slots:
                self._pop()
            if self._order:
                self._arm(self._order[0], now)

    def _pop(self) -> int:
        slot = heapq.heappop(self._order)
        self._ordered.discard(slot)
        return slot

    # Alarms: holds that are due within the present slot, in exact order. There are few of them,
    # unless many leases end together.

    def _set_alarm(self, hold: Acquisition, when: float, now: float) -> None:
        self._alarms[hold] = when
        heapq.heappush(self._alarm_order, (when, next(self._numbers), hold))
        if self._alarm_timer is None or when < self._alarm_at:
            self._arm_alarm(when, now)

    def _arm_alarm(self, when: float, now: float) -> None:
        if self._alarm_timer is not None:
            self._alarm_timer.cancel()
        self._alarm_at = when
        self._alarm_timer = self._call_later(max(0.0, when - now), self._on_alarm)

    def _on_alarm(self) -> None:
        self._alarm_timer = None
        now = self._time()
        order, due = self._alarm_order, list[Acquisition]()
        # The timer may come a little early, by the loop's own clock.
        until = max(now, self._alarm_at)
        while order and order[0][0] <= until and len(due) < _MOST:
            when, _, hold = heapq.heappop(order)
            if self._alarms.get(hold) == when:  # else it is due at another time, or not at all
                del self._alarms[hold]
                due.append(hold)
        try:
            self._process(due, now)
        finally:
            if order:
                self._arm_alarm(order[0][0], now)
