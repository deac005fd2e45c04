"""Deadlocks between tasks of one client: found without I/O, when a task begins to wait.

An error is raised only for a cycle of tasks in which each waits itself, without a ``timeout``, for
a lock that the next one holds in a body and whose lease does not end by itself. An
`asyncio.timeout` around one of the waits cannot be seen from a task, so a wait in a cycle needs the
lock's own ``timeout``.

Two other cases are possible deadlocks, and are only logged. A lease without a body may have been
given to another task, which releases it. And if a child task waits for a lock of its parent, it is
unknown whether the parent waits for the child. Deadlocks across clients: see `wait_graph`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Final
from weakref import ref

from aiolock._engine.acquisition import Acquisition

log = logging.getLogger("aiolock")

Task = asyncio.Task[Any]

SUSPICIOUS: Final = 1.0
"""Seconds of waiting after which a possible deadlock is logged."""

lineage: ContextVar[tuple[ref[Task], ref[Task] | None] | None] = ContextVar(
    "aiolock task", default=None
)
"""The task that used aiolock last in this context, and the one before it. A new task inherits the
context of the task that creates it, so if the two differ, the second is taken for the parent of the
first."""


def remember(task: Task | None) -> ref[Task] | None:
    """Make this task known to the tasks that it creates; returns its own parent, if it has one."""
    known = lineage.get()
    if task is not None and (known is None or known[0]() is not task):
        known = ref(task), None if known is None else known[0]
        lineage.set(known)
    return None if known is None else known[1]


class Children:
    """Tasks that wait for one lock of their parent; one warning is logged for all of them."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = time
        self._timer: asyncio.TimerHandle | None = None
        self._warned = False
        self._waiting = dict[Acquisition, Task]()

    def add(self, acquisition: Acquisition, task: Task, holder: Task) -> None:
        """Add a task that waits."""
        self._waiting[acquisition] = task
        if self._timer is None and not self._warned:
            self._timer = self._loop.call_later(SUSPICIOUS, self._warn_if_due, holder)

    def remove(self, acquisition: Acquisition) -> bool:
        """A task does not wait any more; returns whether it was the last one."""
        self._waiting.pop(acquisition, None)
        if self._waiting:
            return False
        if self._timer is not None:
            self._timer.cancel()
        return True

    def _warn_if_due(self, holder: Task) -> None:
        self._timer = None
        # The first one has waited longest. The one that started the timer may have ended.
        first = next(iter(self._waiting))
        rest = first.began + SUSPICIOUS - self._time()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._warn_if_due, holder)
            return
        self._warned = True
        warn_of_parent(first, self._waiting[first], holder, len(self._waiting) - 1)


def warn_of_parent(acquisition: Acquisition, task: Task, holder: Task, others: int) -> None:
    """Log that a child waits for a lock of its parent, as do so many others."""
    more = f" and {others} more task{'s' * (others > 1)}" if others else ""
    log.warning(
        "aiolock: task %r%s wait%s for %s, which the parent task %r holds. If that one waits for a"
        " child, neither can go on: a child task is another owner, also of a re-entrant lock. Let"
        " the parent pass its lease on, or release it first",
        task.get_name(),
        more,
        "" if others else "s",
        acquisition.policy.called,
        holder.get_name(),
    )
