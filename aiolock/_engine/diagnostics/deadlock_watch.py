"""Looks for deadlocks within one client, when a task begins to wait that may close a cycle."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

from aiolock._engine.acquisition import Acquisition
from aiolock._engine.diagnostics import deadlock
from aiolock._engine.diagnostics.deadlock_cycles import Searches
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog


class DeadlockWatch:
    """The searches of one client, and the tasks that wait for a lock of their parent."""

    def __init__(self, waiters: Waiters, watchdog: Watchdog) -> None:
        self._waiters = waiters
        self._watchdog = watchdog
        self._time = watchdog.time
        self.children = dict[tuple[asyncio.Task[Any], str], deadlock.Children]()
        """Tasks that wait for a lock of their parent task, by parent and key."""

    @cached_property
    def searches(self) -> Searches:
        """Made for the first: nothing else needs to know which tasks hold a key."""
        return Searches(self._watchdog.index(), self._waiters.index())

    def look(
        self,
        acquisition: Acquisition,
        task: asyncio.Task[Any],
        stops: list[Callable[[], None]],
    ) -> None:
        """`WouldDeadlock` if a deadlock is certain.

        ``stops`` gets calls for when the task waits no more: then nothing is looked for or logged.
        """
        waited_for, owned = self._waiters.acquisitions.keys(), self._watchdog.owned
        # Another task also holds something, and one waits for something that this task holds.
        if len(owned) > 1 and task in owned and not waited_for.isdisjoint(owned[task].keys()):
            search = self.searches.begin(acquisition, task)
            stops.append(search.end)
            if search.is_possible:
                return
        parent = acquisition.parent
        if parent is None or acquisition.policy.key not in owned.get(parent, {}):
            return
        key = parent, acquisition.policy.key
        children = self.children.get(key)
        if children is None:
            children = self.children[key] = deadlock.Children(self._time)
        stops.append(partial(self._remove_child, acquisition, key))
        children.add(acquisition, task, parent)

    def _remove_child(self, acquisition: Acquisition, key: tuple[asyncio.Task[Any], str]) -> None:
        if self.children[key].remove(acquisition):
            del self.children[key]
