"""What lasts longer than usual gets a label at the store, and observers are told of it.

It looks once a second while there is anything new, and not at all while nothing changes. So an
acquisition that ends soon costs nothing but a check of whether the lookout is awake.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final
from weakref import WeakKeyDictionary

from aiolock._engine.acquisition import Attempt, Phase
from aiolock._engine.circles import KINDS
from aiolock._engine.labels import Labels, Said, labelled
from aiolock._engine.search import find_deadlocks
from aiolock._engine.timers import shared_timers
from aiolock._engine.watchdog import Watchdog
from aiolock.errors import StoreError
from aiolock.observer import Observer
from aiolock.store import Store, Waiter

Task = asyncio.Task[Any]

_EVERY: Final = 1.0
"""Seconds between two looks; so an acquisition is shown after one to two seconds."""
_LABELLED: Final = 3.0
"""Seconds after which every waiter has a label, which the search for deadlocks needs."""
_TOLD_AGAIN: Final = 60.0
"""Seconds for which an observer is not told again of long waits for the same name."""


class Lookout:
    """Watches all holds and acquisitions of one client."""

    def __init__(
        self,
        store: Store,
        client: str,
        watchdog: Watchdog,
        attempts: Mapping[str, Mapping[Waiter, Attempt]],
        *,
        deadlock_after: float | None,
    ) -> None:
        """``deadlock_after``: seconds of waiting after which to look for one; None for never."""
        events = watchdog.events
        self._store = store
        self._client = client
        self._events = events
        self._holds = watchdog.holds
        self._owned = watchdog.owned
        self._attempts = attempts
        self._time = watchdog.time
        self._loop = asyncio.get_running_loop()
        self._call_later = shared_timers()
        self._deadlock_after = None
        if deadlock_after is not None and events.wants_deadlocks:
            self._deadlock_after = max(_LABELLED, deadlock_after)
        self._labels = Labels(store, client, self.wake)
        self._tasks: WeakKeyDictionary[Task, int] = WeakKeyDictionary()
        self._last_task = 0
        self.awake = False
        """Whether it looks within a second; if not, call `wake` for a new acquisition."""
        self._closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._seen = 0
        """The highest number of an acquisition at the last look."""
        self._told = dict[tuple[Observer, str], float]()
        self._held_long = dict[Observer, set[Waiter]]()
        self._suspected = set[int]()
        """The numbers of the waiters that deadlocks were searched for."""
        self._searching = False
        self._deadlocked = set[int]()
        """The numbers of the waiters in deadlocks that observers were told of."""
        self._asking = set[asyncio.Task[None]]()

    def wake(self) -> None:
        """There is a new acquisition."""
        if self._closed:
            return
        self.awake = True
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._call_later(_EVERY, self._look)

    def forgotten(self) -> None:
        """The store may have forgotten the labels."""
        self._labels.forgotten()
        if self._holds or self._attempts:
            self.wake()

    async def aclose(self) -> None:
        """Look no more, and ask the store nothing more."""
        if self._timer is not None:
            self._timer.cancel()
        self._closed = True
        asking = set(self._asking)
        for task in asking:
            task.cancel()
        if asking:
            await asyncio.wait(asking)

    def _look(self) -> None:
        self._timer, self.awake = None, False
        now = self._time()
        waiting = [each for known in self._attempts.values() for each in known.values()]
        highest = self._say(waiting)
        for observer in self._events.observers:
            if observer.slow_wait is not None:
                self._look_at_waits(observer, observer.slow_wait, waiting, now)
            if observer.slow_hold is not None:
                self._look_at_holds(observer, observer.slow_hold, now)
        if self._deadlock_after is not None:
            self._look_for_deadlock(waiting, now, self._deadlock_after)
        self._sleep(waiting, now)
        self._seen = highest

    def _sleep(self, waiting: Iterable[Attempt], now: float) -> None:
        """Plan the next look, if there is a reason for one."""
        if waiting or any(waiter.seq > self._seen for waiter in self._holds):
            self.wake()
            return
        due = self._labels.due - self._loop.time()
        for observer in self._events.observers:
            if observer.slow_hold is not None:
                told = self._held_long.get(observer, set())
                rest = [hold.since for waiter, hold in self._holds.items() if waiter not in told]
                if rest:
                    due = min(due, min(rest) + observer.slow_hold - now)
        if self._holds and due < math.inf:
            # It stays asleep, so a new acquisition wakes it earlier.
            self._timer = self._call_later(max(_EVERY, due), self._look)

    # Labels

    def _say(self, waiting: Sequence[Attempt]) -> int:
        """Post the labels of those that were there at the last look; the highest number."""
        said = dict[int, Said]()
        lasting = list[int]()
        for attempt in waiting:
            seq = attempt.waiter.seq
            lasting.append(seq)
            if seq <= self._seen and attempt.phase is Phase.QUEUED and not self._labels.knows(seq):
                said[seq] = self._said(attempt.owner, attempt.label, still=attempt.stands_still)
        for (_, seq), hold in self._holds.items():
            lasting.append(seq)
            if seq <= self._seen and not self._labels.knows(seq):
                said[seq] = self._said(hold.owner[0], hold.label, still=False)
        self._labels.put_up(said, lasting)
        return max(lasting, default=self._seen)

    def _said(self, task: Task | None, label: str, *, still: bool) -> Said:
        number = 0
        if task is not None:
            number = self._tasks.get(task, 0)
            if not number:
                self._last_task += 1
                number = self._tasks[task] = self._last_task
        return Said(number, still, self._events.label(label, task))

    # What lasts too long

    def _look_at_waits(
        self, observer: Observer, limit: float, waiting: Sequence[Attempt], now: float
    ) -> None:
        slow = dict[str, list[Attempt]]()
        for attempt in waiting:
            kind = attempt.policy.kind
            if attempt.phase is Phase.QUEUED and kind in KINDS and now - attempt.began >= limit:
                slow.setdefault(attempt.policy.key, []).append(attempt)
        for told in [told for told, at in self._told.items() if now - at >= _TOLD_AGAIN]:
            del self._told[told]
        for key, attempts in slow.items():
            # A further wait for the same name is no news within a minute.
            if (observer, key) not in self._told:
                self._told[observer, key] = now
                longest = min(attempts, key=lambda attempt: attempt.began)
                self._ask(self._tell_of_wait(observer, longest, len(attempts) - 1))

    async def _tell_of_wait(self, observer: Observer, attempt: Attempt, others: int) -> None:
        status = await self._store.status(attempt.policy.key, waiters=False)
        (status,) = await labelled(self._store, [status])
        if attempt.phase is Phase.QUEUED:  # it may have ended meanwhile
            self._events.waits_long(observer, attempt, self._time(), status.holders, others)

    def _look_at_holds(self, observer: Observer, limit: float, now: float) -> None:
        before = self._held_long.get(observer, set())
        told = set[Waiter]()
        for waiter, hold in list(self._holds.items()):
            if now - hold.since >= limit:
                told.add(waiter)
                if waiter not in before and hold.policy.kind in KINDS:
                    self._events.holds_long(observer, hold, now)
        self._held_long[observer] = told

    # Deadlocks

    def _look_for_deadlock(self, waiting: Sequence[Attempt], now: float, limit: float) -> None:
        """Search once for each waiter that has waited so long and whose task holds something.

        A task that holds nothing blocks no other. The task that closed a circle has waited least,
        so when it searches, the circle is complete. If the store does not answer, it searches once
        more.
        """
        blocked = {
            attempt.waiter.seq
            for attempt in waiting
            if attempt.stands_still
            and now - attempt.began >= limit
            and attempt.owner in self._owned
        }
        self._deadlocked &= blocked
        if blocked - self._suspected and not self._searching:
            self._searching = True
            self._ask(self._tell_of_deadlocks())
            self._suspected = blocked

    async def _tell_of_deadlocks(self) -> None:
        try:
            for found in await find_deadlocks(self._store):
                parties = [each.waiter for each in found.circle]
                ours = {party.seq for party in parties if party.client == self._client}
                if ours - self._deadlocked:
                    self._deadlocked |= ours
                    self._events.deadlock(found)
        except StoreError:
            self._suspected.clear()  # the answer is unknown: search again
            raise
        finally:
            self._searching = False

    def _ask(self, question: Coroutine[Any, Any, None]) -> None:
        """Run a question to the store in a task; without an answer, observers are not told."""

        async def ask() -> None:
            with contextlib.suppress(StoreError):
                await question

        task = self._loop.create_task(ask(), name="aiolock lookout")
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)
