"""Holds that were forgotten: no task can release them any more.

A lease that was acquired by call is released by its user. If the user drops it, the engine warns,
and releases the lock; so it does for a body whose exit was garbage-collected.
"""

from __future__ import annotations

import asyncio
import contextlib
import warnings
from typing import TYPE_CHECKING, Any

from aiolock._dropped import DroppedLease, on_dropped
from aiolock._engine.acquisition import Acquisition, without
from aiolock._engine.lease_state import ALIVE

if TYPE_CHECKING:
    from aiolock._engine.lease import Lease
    from aiolock._engine.watchdog import Watchdog


class Forgotten:
    """Watches the holds of one client that nothing but a lease, or a task, can release."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog

    def watch(self, hold: Acquisition) -> None:
        """When the hold's owner task ends, keep the hold only while its user has a lease of it.

        The task can release it by name, so it is not forgotten before: see `unreachable`.
        """
        task = hold.owner
        if task is None:
            self._disown(hold)
            return
        watched = self._watchdog.watched.get(task)
        if watched is None:
            task.add_done_callback(self._owner_ended)  # one callback for all holds of the task
            watched = self._watchdog.watched[task] = {}
        watched[hold] = None

    def unwatch(self, hold: Acquisition) -> None:
        """Its owner's end is of no interest any more."""
        task = hold.owner
        watched = self._watchdog.watched.get(task) if task is not None else None
        if task is None or watched is None:
            return
        watched.pop(hold, None)
        if not watched:
            del self._watchdog.watched[task]
            task.remove_done_callback(self._owner_ended)

    def _owner_ended(self, task: asyncio.Task[Any]) -> None:
        for hold in self._watchdog.watched.pop(task, {}):
            self._disown(hold)

    def _disown(self, hold: Acquisition) -> None:
        self._watchdog.remove_owned(hold)
        hold.owner = None
        hold.leases = ()  # this may be the last reference to a lease

    def left_behind(self, hold: Acquisition, lease: Lease) -> None:
        """A body's exit was garbage-collected: treat its lease as one that was acquired by call.

        Called by the garbage collector, in any thread.
        """
        if self._watchdog.is_here:
            with contextlib.suppress(RuntimeError):  # the loop is closed
                self._watchdog.loop.call_soon_threadsafe(self._left_behind, hold, lease)

    def _left_behind(self, hold: Acquisition, lease: Lease) -> None:
        hold.bodies = tuple([each for each in hold.bodies if each() is not None])
        if self._watchdog.closing is not None:
            self._watchdog.closing.set()
        if hold.state not in ALIVE or lease not in hold.leases:
            return
        lease._lose_body()
        if hold.policy.released_by_name:
            self.watch(hold)
        else:  # such a kind has no release by name, so only its user's own reference counts
            hold.leases = without(hold.leases, lease)

    def unreachable(self, hold: Acquisition) -> None:
        """Its last lease was garbage-collected without a release: warn, and release it.

        Called by the garbage collector, in any thread.
        """
        if not self._watchdog.is_here:
            return  # in a fork, the hold is still the parent's
        where = f", acquired at {hold.where}" if hold.where else ""
        more = "" if where else " (python -X dev says where it was acquired)"
        what = "is released"
        try:
            self._watchdog.loop.call_soon_threadsafe(self._watchdog.abandon, hold)
        except RuntimeError:  # the loop is closed, so the release cannot be sent
            what = "is held until its lease ends"
        self.was_dropped(hold)
        # The warning comes last, because with -W error it raises.
        warnings.warn(
            f"{hold.policy.called} (fence {hold.fence}) was held by a lease that nobody can release"
            f" any more{where}, so it {what}: use `async with`, or call release(){more}",
            ResourceWarning,
            stacklevel=3,
            source=self,
        )

    def was_dropped(self, hold: Acquisition) -> None:
        """Call `on_dropped` for a hold whose release was forgotten. In any thread."""
        policy = hold.policy
        for callback in list(on_dropped):
            callback(DroppedLease(hold.waiter.client, policy.kind, policy.name, hold.fence))
