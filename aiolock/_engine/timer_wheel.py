"""When to look after each hold: holds that are due at about the same time come together."""

from __future__ import annotations

import asyncio
import heapq
from collections.abc import Callable, Sequence
from itertools import count, islice
from typing import Final

from aiolock._engine.hold import Hold
from aiolock._engine.timers import shared_timers

_SLOTS: Final = 20
"""Slots per second: holds that are due in one slot are looked after together."""
_YOUNG: Final = 0.1
"""Seconds after which a hold gets a slot, unless it has ended by then, as most have."""
_FINE: Final = 64
"""The precision of a slot: this part of the time until then. So there are few slots, however long
the leases are, and a renewal is early by that part at most."""


_MOST: Final = 256
"""Holds that are looked after in one iteration of the event loop; others have a turn then."""


class TimerWheel:
    """Slots of holds by their due time; adding and removing cost the same for 1 hold or 10,000."""

    def __init__(
        self,
        time: Callable[[], float],
        look_after: Callable[[Sequence[Hold], float], None],
        *,
        longest: float,
    ) -> None:
        """``look_after`` gets the holds that are due and the time, by the clock ``time``.

        The clock is read every ``longest`` seconds at least, because it may jump.
        """
        self._time = time
        self._look_after = look_after
        self._longest = longest
        self._call_later = shared_timers()
        self._slots: dict[int, dict[Hold, None]] = {}
        # The numbers of the slots in use. Slots that have become empty may still be among them.
        self._order: list[int] = []
        self._ordered: set[int] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._timer_slot = 0
        # Holds that have just begun, and when to look after them. Most are removed before that.
        self._young: dict[Hold, float] = {}
        # Holds for which their slot is too early, and when to look after them.
        self._alarms: dict[Hold, float] = {}
        self._alarm_order: list[tuple[float, int, Hold]] = []
        self._alarm_timer: asyncio.TimerHandle | None = None
        self._alarm_at = 0.0
        self._numbers = count()
        self._growing = 0  # how many of them, of the first, are to get a slot now
        self._young_timer: asyncio.TimerHandle | None = None

    def schedule(self, hold: Hold, when: float, now: float) -> None:
        """Look after a hold at ``when`` or slightly earlier; this replaces an earlier plan."""
        self.forget(hold)
        slot, current = int(when * _SLOTS), int(now * _SLOTS)
        if slot <= current:
            # That slot has begun, which would be much too early.
            self._set_alarm(hold, when, now)
            return
        ahead = slot - current
        if ahead > _FINE:
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

    def take_in(self, hold: Hold, when: float, now: float) -> None:
        """`schedule` for a hold that has just begun."""
        if when - now < 2 * _YOUNG:
            self.schedule(hold, when, now)
            return
        self._young[hold] = when
        if self._young_timer is None:
            self._young_timer = self._call_later(_YOUNG, self._grown_up)

    def _grown_up(self) -> None:
        """Give a slot to the holds that have lasted so long."""
        self._young_timer = None
        now = self._time()
        self._growing = self._growing or len(self._young)
        some = list(islice(self._young.items(), min(self._growing, _MOST)))
        for hold, when in some:
            self.schedule(hold, when, now)  # which takes it out of these
        self._growing = self._growing - len(some) if self._young else 0
        if self._young:
            pause = 0 if self._growing else _YOUNG
            self._young_timer = self._call_later(pause, self._grown_up)

    def forget(self, hold: Hold) -> None:
        """Do not look after this hold any more."""
        if hold in self._young:
            del self._young[hold]
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
        """Stop: look after no hold any more."""
        for timer in (self._timer, self._young_timer, self._alarm_timer):
            if timer is not None:
                timer.cancel()

    def _arm(self, slot: int, now: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_slot = slot
        ahead = min(self._longest, max(0.0, slot / _SLOTS - now))
        self._timer = self._call_later(ahead, self._turn)

    def _turn(self) -> None:
        self._timer = None
        now = self._time()
        due: list[Hold] = []
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
                self._look_after(due, now)
        finally:
            # Rescheduling during the turn may have set the timer later than other slots need it.
            while self._order and self._order[0] not in self._slots:
                self._pop()
            if self._order:
                self._arm(self._order[0], now)

    def _pop(self) -> int:
        slot = heapq.heappop(self._order)
        self._ordered.discard(slot)
        return slot

    # Holds that are due within the present slot: few, unless the leases of many end together

    def _set_alarm(self, hold: Hold, when: float, now: float) -> None:
        self._alarms[hold] = when
        heapq.heappush(self._alarm_order, (when, next(self._numbers), hold))
        if self._alarm_timer is None or when < self._alarm_at:
            self._arm_alarm(when, now)

    def _arm_alarm(self, when: float, now: float) -> None:
        if self._alarm_timer is not None:
            self._alarm_timer.cancel()
        self._alarm_at = when
        self._alarm_timer = self._call_later(max(0.0, when - now), self._ring)

    def _ring(self) -> None:
        self._alarm_timer = None
        now = self._time()
        order, due = self._alarm_order, list[Hold]()
        # The timer may come a little early, by the loop's own clock.
        until = max(now, self._alarm_at)
        while order and order[0][0] <= until and len(due) < _MOST:
            when, _, hold = heapq.heappop(order)
            if self._alarms.get(hold) == when:  # else it is due at another time, or not at all
                del self._alarms[hold]
                due.append(hold)
        try:
            self._look_after(due, now)
        finally:
            if order:
                self._arm_alarm(order[0][0], now)
