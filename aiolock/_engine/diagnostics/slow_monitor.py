"""Diagnostics of long waits and long holds: their labels, events for observers, deadlocks.

The monitor runs once a second while there is anything new, and not at all while nothing changes. So
an acquisition that ends soon costs only a check of whether the monitor is awake.

Each run reads only what began since the last one: acquisitions and holds are kept in the order in
which they began, so those that have become old are at the front. So a run does not take longer the
more there are that wait or hold already.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterator
from itertools import chain, takewhile
from typing import Any, Final, Generic, TypeVar, TypeVarTuple, Unpack
from weakref import WeakKeyDictionary

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.diagnostics.deadlock_search import find_deadlocks
from aiolock._engine.diagnostics.labels import Labels, PostedLabel, labelled
from aiolock._engine.diagnostics.wait_graph import BLOCKING
from aiolock._engine.timers import shared_timers
from aiolock._engine.watchdog import Watchdog
from aiolock._turns import in_parts
from aiolock.errors import StoreError
from aiolock.observer import Observer
from aiolock.protocol import ReadStatus, WaiterId
from aiolock.store import Store

Task = asyncio.Task[Any]
Item = TypeVar("Item")
Ts = TypeVarTuple("Ts")
Steps = Generator[int, None, None]
"""A part of a run: it yields how much work was done, see `in_parts`."""

_EVERY: Final = 1.0
"""Seconds between two runs; so an acquisition has a label after one to two seconds."""
_LABELLED: Final = 3.0
"""Seconds after which every waiter has a label, which the search for deadlocks needs."""
_REPORTED_AGAIN: Final = 60.0
"""Seconds after which long waits for the same name are reported again to an observer."""
_BEFORE_QUEUE: Final = (Phase.ASKING, Phase.GRANTED, Phase.CONFIRMING, Phase.RETURNING)
"""The phases of an acquisition that may still get into the queue, or into it again."""


class _Aging(Generic[Item]):
    """Items in the order in which they began, until each has reached an age of ``limit`` s."""

    def __init__(self, limit: float) -> None:
        self._limit = limit
        self._items = deque[tuple[float, Item]]()

    def add(self, began: float, item: Item) -> None:
        """Add an item that began then, not before the others."""
        self._items.append((began, item))

    def due(self, now: float) -> Iterator[Item]:
        """Remove and return the items that have reached the age."""
        while self._items and now - self._items[0][0] >= self._limit:
            yield self._items.popleft()[1]

    def first(self) -> tuple[float, Item] | None:
        """The oldest item, and when it reaches the age."""
        if not self._items:
            return None
        began, item = self._items[0]
        return began + self._limit, item

    def drop(self) -> None:
        """Remove the oldest item."""
        self._items.popleft()


class _Waits(_Aging[Acquisition]):
    """Acquisitions that are processed once they have waited for ``limit`` s, if they are queued."""

    def __init__(self, limit: float) -> None:
        super().__init__(limit)
        self._asking = list[Acquisition]()
        """Those that have reached the age and are not queued yet."""

    def queued(self, now: float) -> Generator[int, None, list[Acquisition]]:
        """Those that have reached the age, and are queued now."""
        asking, self._asking = self._asking, list[Acquisition]()
        found = list[Acquisition]()
        for acquisition in chain(asking, self.due(now)):
            yield 1
            if acquisition.phase is Phase.QUEUED:
                found.append(acquisition)
            elif acquisition.phase in _BEFORE_QUEUE:
                self._asking.append(acquisition)
        return found


class _SlowWaits:
    """The long waits that one observer wants."""

    def __init__(self, observer: Observer, limit: float) -> None:
        self.observer = observer
        self.waits = _Waits(limit)
        self._slow = dict[str, list[Acquisition]]()
        """By key, in the order in which they began."""
        self._reported = dict[str, float]()
        """When each key was reported, in that order."""

    def look(self, now: float) -> Generator[int, None, list[tuple[Acquisition, int]]]:
        """The longest wait of each name that is to be reported, and how many more there are."""
        news = dict[str, None]()
        for acquisition in (yield from self.waits.queued(now)):
            if acquisition.policy.kind in BLOCKING:
                self._slow.setdefault(acquisition.policy.key, []).append(acquisition)
                news[acquisition.policy.key] = None
        for key, at in list(self._reported.items()):
            if now - at < _REPORTED_AGAIN:
                break
            del self._reported[key]
            news[key] = None
        found = list[tuple[Acquisition, int]]()
        for key in news:
            # At most one report a minute for each name, or a crowded lock would flood the observer.
            if key in self._reported:
                continue
            still = list[Acquisition]()
            for acquisition in self._slow.pop(key, ()):
                yield 1
                if acquisition.phase is Phase.QUEUED:
                    still.append(acquisition)
            if still:
                self._slow[key] = still
                self._reported[key] = now
                found.append((still[0], len(still) - 1))
        return found


class _SlowHolds(_Aging[Acquisition]):
    """The long holds that one observer wants."""

    def __init__(self, observer: Observer, limit: float) -> None:
        super().__init__(limit)
        self.observer = observer


class SlowMonitor:
    """Observes the holds and acquisitions of one client that last."""

    def __init__(
        self,
        store: Store,
        client: str,
        watchdog: Watchdog,
        acquisitions: dict[int, Acquisition],
        *,
        deadlock_after: float | None,
    ) -> None:
        """``acquisitions`` has those of the client by number, in the order in which they began.

        ``deadlock_after``: seconds of waiting after which to search for deadlocks; None for never.
        """
        events = watchdog.events
        self._store = store
        self._client = client
        self._events = events
        self._holds = watchdog.holds
        self._owned = watchdog.owned
        self._acquisitions = acquisitions
        self._time = watchdog.time
        self._loop = asyncio.get_running_loop()
        self._call_later = shared_timers()
        self._labels = Labels(store, client, self.wake, self._lasts)
        self._tasks: WeakKeyDictionary[Task, int] = WeakKeyDictionary()
        self._last_task = 0
        self.awake = False
        """Whether it runs within a second; if not, call `wake` for a new acquisition."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._look_under_way: asyncio.Task[None] | None = None
        self._seen = 0
        """The highest number of an acquisition at the last run."""
        self._looked = -math.inf
        """When the last run was."""
        self._just_held = set[WaiterId]()
        """Holds that began at that very moment, and were processed in that run."""
        self._unlabelled = dict[int, None]()
        """The numbers of those that were there at the last run, and have no label yet."""
        self._slow_waits = list[_SlowWaits]()
        self._slow_holds = list[_SlowHolds]()
        for observer in events.observers:
            if observer.slow_wait is not None:
                self._slow_waits.append(_SlowWaits(observer, observer.slow_wait))
            if observer.slow_hold is not None:
                self._slow_holds.append(_SlowHolds(observer, observer.slow_hold))
        self._blocked: _Waits | None = None
        if deadlock_after is not None and events.wants_deadlocks:
            self._blocked = _Waits(max(_LABELLED, deadlock_after))
        self._suspected = list[Acquisition]()
        """Waiters for which deadlocks are to be searched for."""
        self._searching = False
        self._deadlocked = set[int]()
        """The numbers of the waiters in deadlocks that were reported."""
        self._under_way = set[asyncio.Task[None]]()

    def _lasts(self, seq: int) -> bool:
        return seq in self._acquisitions or WaiterId(self._client, seq) in self._holds

    def wake(self) -> None:
        """Run within a second: there is a new acquisition."""
        if self._closed:
            return
        self.awake = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_later(_EVERY, self._look)

    def publish_again(self) -> None:
        """Post all labels again: the store may have forgotten them."""
        self._labels.publish_again()
        if self._holds or self._acquisitions:
            self.wake()

    async def aclose(self) -> None:
        """Stop, and cancel the searches that are under way."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        under_way = set(self._under_way)
        for task in under_way:
            task.cancel()
        if under_way:
            await asyncio.wait(under_way)

    def _look(self) -> None:
        self._timer, self.awake = None, False
        if self._look_under_way is not None and not self._look_under_way.done():
            self.wake()  # the last run still takes its turns
            return
        self._look_under_way = self._start(in_parts, self._steps())

    def _steps(self) -> Steps:
        now = self._time()
        highest = yield from self._add_new(now)
        yield from self._labels.publish(highest)
        for waits in self._slow_waits:
            for acquisition, others in (yield from waits.look(now)):
                _ = self._start(self._report_wait, waits.observer, acquisition, others)
        for holds in self._slow_holds:
            for hold in holds.due(now):
                yield 1
                if self._is_held(hold) and hold.policy.kind in BLOCKING:
                    self._events.holds_long(holds.observer, hold, now)
        if self._blocked is not None:
            yield from self._look_for_deadlock(now, self._blocked)
        yield from self._sleep(now)

    def _sleep(self, now: float) -> Steps:
        """Plan the next run, if there is a reason for one."""
        for holds in self._slow_holds:
            while (first := holds.first()) is not None and not self._is_held(first[1]):
                yield 1
                holds.drop()
        if self._acquisitions or self._unlabelled:
            self.wake()
            return
        due = self._labels.due - self._loop.time()
        for holds in self._slow_holds:
            if (first := holds.first()) is not None:
                due = min(due, first[0] - now)
        if self._holds and due < math.inf and not self.awake:
            # `awake` stays false, so that a new acquisition wakes it earlier.
            self._timer = self._call_later(max(_EVERY, due), self._look)

    def _is_held(self, hold: Acquisition) -> bool:
        return self._holds.get(hold.waiter) is hold

    def _add_new(self, now: float) -> Generator[int, None, int]:
        """Label those that were there at the last run already, and add what is new.

        Returns the highest number of an acquisition. A label is made a run late, so that none is
        made for acquisitions that end at once, as most do.
        """
        for seq in list(self._unlabelled):
            yield 2
            self._set_label(seq)
        seen = self._seen
        acquisitions, holds = self._new_acquisitions(), self._new_holds(now)
        yield (len(acquisitions) + len(holds)) // 20
        for acquisition in reversed(acquisitions):
            yield 1
            self._is_new(acquisition.waiter.seq)
            for waits in self._slow_waits:
                waits.waits.add(acquisition.began, acquisition)
            if self._blocked is not None:
                self._blocked.add(acquisition.began, acquisition)
        for hold in reversed(holds):
            yield 1
            if hold.waiter.seq > seen:
                self._is_new(hold.waiter.seq)
            for slow in self._slow_holds:
                slow.add(hold.since, hold)
        return self._seen

    def _new_acquisitions(self) -> list[Acquisition]:
        """Acquisitions that began after the last run, the latest first."""
        found = list[Acquisition]()
        for acquisition in reversed(self._acquisitions.values()):
            if acquisition.waiter.seq <= self._seen:
                break
            found.append(acquisition)
        return found

    def _new_holds(self, now: float) -> list[Acquisition]:
        """Holds that began after the last run, the latest first."""
        found = list[Acquisition]()
        for hold in reversed(self._holds.values()):
            if hold.since < self._looked:
                break
            if hold.since > self._looked or hold.waiter not in self._just_held:
                found.append(hold)
        self._looked = now
        self._just_held = {hold.waiter for hold in takewhile(lambda hold: hold.since >= now, found)}
        return found

    def _set_label(self, seq: int) -> None:
        """Give the acquisition of this number a label, if it is queued or held."""
        acquisition, hold = (
            self._acquisitions.get(seq),
            self._holds.get(WaiterId(self._client, seq)),
        )
        if hold is not None:
            label = self._label(hold.owner, hold.label, still=False)
        elif acquisition is not None and acquisition.phase is Phase.QUEUED:
            label = self._label(
                acquisition.owner, acquisition.label, still=acquisition.stands_still
            )
        else:
            if acquisition is None:
                del self._unlabelled[seq]
            return
        self._labels.set_label(seq, label)
        del self._unlabelled[seq]

    def _is_new(self, seq: int) -> None:
        self._unlabelled[seq] = None
        self._seen = max(self._seen, seq)

    # Labels

    def _label(self, task: Task | None, label: str, *, still: bool) -> PostedLabel:
        number = 0  # unknown: the search for deadlocks assumes that such a task continues
        if task is not None:
            number = self._tasks.get(task, 0)
            if not number:
                self._last_task += 1
                number = self._tasks[task] = self._last_task
        return PostedLabel(number, still, self._events.label(label, task))

    # Long waits

    async def _report_wait(self, observer: Observer, acquisition: Acquisition, others: int) -> None:
        status = await self._store.submit(ReadStatus(acquisition.policy.key, waiters=False))
        (status,) = await labelled(self._store, [status])
        if acquisition.phase is Phase.QUEUED:  # it may have ended meanwhile
            self._events.waits_long(observer, acquisition, self._time(), status.holders, others)

    # Deadlocks

    def _look_for_deadlock(self, now: float, waits: _Waits) -> Steps:
        """Search once for each waiter that has waited so long and whose task holds something.

        A task that holds nothing blocks no other, so it is in no cycle. The task that closed a
        cycle has waited least, so when it searches, the cycle is complete and all of it has labels.
        If the store does not answer, the search is repeated.
        """
        for acquisition in (yield from waits.queued(now)):
            if acquisition.stands_still and acquisition.owner in self._owned:
                self._suspected.append(acquisition)
        if self._suspected and not self._searching:
            suspected, self._suspected = self._suspected, []
            still = list[Acquisition]()
            for acquisition in suspected:
                yield 1
                if acquisition.phase is Phase.QUEUED:
                    still.append(acquisition)
            self._deadlocked = {seq for seq in self._deadlocked if seq in self._acquisitions}
            if still:
                self._searching = True
                _ = self._start(self._report_deadlocks, still)

    async def _report_deadlocks(self, suspected: list[Acquisition]) -> None:
        try:
            for found in await find_deadlocks(self._store):
                waiters = [each.waiter for each in found.cycle]
                ours = {waiter.seq for waiter in waiters if waiter.client == self._client}
                if ours - self._deadlocked:
                    self._deadlocked |= ours
                    self._events.deadlock(found)
        except StoreError:
            self._suspected += suspected  # the answer is unknown: search again
            raise
        finally:
            self._searching = False

    def _start(
        self, work: Callable[[Unpack[Ts]], Coroutine[Any, Any, None]], *about: *Ts
    ) -> asyncio.Task[None]:
        """Do this in a task; if the store does not answer, nothing is reported."""

        async def do() -> None:
            with contextlib.suppress(StoreError):
                await work(*about)

        task = self._loop.create_task(do(), name="aiolock slow monitor")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task
