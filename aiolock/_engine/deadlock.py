"""Tasks of one client that wait for each other: found before they wait for ever.

An error is raised only for a cycle of tasks in which each waits itself, without a ``timeout``, for
a lock that the next one holds in a body and whose lease does not end by itself. An
`asyncio.timeout` around one of the waits cannot be seen from a task, so a wait in a cycle needs the
lock's own ``timeout``.
A lease without a body may have been passed on to another task, which releases it. And if a child
task waits for a lock of its parent, the parent may wait for the child. Neither is certain, so both
are only logged.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final
from weakref import ref

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.hold import Hold, Owned
from aiolock._engine.policy import Policy
from aiolock.errors import WouldDeadlock
from aiolock.store import Rule, WaiterId

log = logging.getLogger("aiolock")

Task = asyncio.Task[Any]

SUSPICIOUS: Final = 1.0
"""Seconds for which a task waits in what may be a deadlock until that is logged."""

_CURE: Final = (
    "Take the locks in the same order everywhere (multilock() does), or give them a timeout="
)

_lineage: ContextVar[tuple[ref[Task], ref[Task] | None] | None] = ContextVar(
    "aiolock task", default=None
)
"""The task that used aiolock last in this context, and the one before it. A new task inherits the
context of the task that creates it, so that one is taken for its parent."""


def remember(task: Task | None) -> None:
    """Make this task known to the tasks that it creates."""
    known = _lineage.get()
    if task is not None and (known is None or known[0]() is not task):
        _lineage.set((ref(task), None if known is None else known[0]))


def parent() -> Task | None:
    """The parent of the current task, which has called `remember`; None if it has none."""
    known = _lineage.get()
    return None if known is None or known[1] is None else known[1]()


def check(
    acquisition: Acquisition,
    task: Task,
    owned: Owned,
    acquisitions: Mapping[str, Mapping[WaiterId, Acquisition]],
) -> bool:
    """`WouldDeadlock` if this task would wait for itself, by way of other tasks of this process.

    ``owned`` is what each task holds, ``acquisitions`` are the waiters, by key. True if it may wait
    for itself: then `warn_of_cycle` is due.
    """
    wanted = acquisition.policy
    # First with what is not certain: as a rule there is no circle, and one search tells.
    if not _cycle(wanted, task, owned, acquisitions, certain=False):
        return False
    if cycle := _cycle(wanted, task, owned, acquisitions, certain=True):
        raise wanted.with_name(
            WouldDeadlock(
                f"{cycle}: none of them could go on, unless an asyncio.timeout() or wait_for()"
                f" ends one of these waits, which cannot be seen here. {_CURE}"
            )
        )
    return True


def _cycle(
    wanted: Policy,
    task: Task,
    owned: Owned,
    acquisitions: Mapping[str, Mapping[WaiterId, Acquisition]],
    *,
    certain: bool,
) -> str:
    """The circle in words; empty if there is none. ``certain``: only what is held in bodies."""
    if wanted.rule is not Rule.ALWAYS:
        return ""
    # Follow from what this task holds to the tasks that wait for it, and on to what those hold,
    # until one of them holds the wanted lock.
    found: dict[Task, tuple[Task, str]] = {}
    look_at = [task]
    while look_at:
        holder = look_at.pop()
        for key, hold in owned.get(holder, {}).items():
            if certain and not _is_inside(holder, hold):
                continue
            for waiting in acquisitions.get(key, {}).values():
                other = waiting.blocked
                # Who holds nothing has nobody waiting for it: of many waiters, that is most.
                if other is None or other not in owned or other in found or other is task:
                    continue
                if not _excludes(hold, waiting.policy):
                    continue
                found[other] = (holder, key)
                theirs = owned[other].get(wanted.key)
                if (
                    theirs is not None
                    and _excludes(theirs, wanted)
                    and (_is_inside(other, theirs) or not certain)
                ):
                    waits = "would wait" if certain else "waits"
                    return f"task {task.get_name()!r} {waits} {_in_words(other, wanted, found)}"
                look_at.append(other)
    return ""


def _is_inside(task: Task, hold: Hold) -> bool:
    """Whether the task itself is in a body of this hold, so that no other task releases it."""
    return any(body.task is task for body in hold.inside)


def _excludes(hold: Hold, wanted: Policy) -> bool:
    """Whether the wanted lock is not granted before this hold is released."""
    policy = hold.policy
    of_several = (policy.rule, wanted.rule) != (Rule.ALWAYS, Rule.ALWAYS)
    if of_several or not policy.renew or policy.max_hold is not None:
        return False  # one of several permits, or a lease that ends by itself
    return not (wanted.shared and (hold.shared or policy.shared))


def _in_words(last: Task, wanted: Policy, found: Mapping[Task, tuple[Task, str]]) -> str:
    steps: list[str] = []
    other = last
    while other in found:
        holder, key = found[other]
        steps.append(
            f"task {other.get_name()!r} for {key.partition(':')[2]!r} of {holder.get_name()!r}"
        )
        other = holder
    return f"for {wanted.called} of {last.get_name()!r}, while {', and '.join(steps)} waits"


def warn_of_cycle(
    acquisition: Acquisition,
    task: Task,
    owned: Owned,
    acquisitions: Mapping[str, Mapping[WaiterId, Acquisition]],
) -> None:
    """Log that a task may wait for itself, if it still does."""
    cycle = _cycle(acquisition.policy, task, owned, acquisitions, certain=False)
    if cycle and acquisition.phase is Phase.QUEUED:
        log.warning(
            "aiolock: %s: none of them can go on, unless a task to which one of these leases was"
            " passed on releases it, or an asyncio.timeout() or wait_for() ends one of these waits."
            " %s",
            cycle,
            _CURE,
        )


class Children:
    """Tasks that wait for one lock of their parent: one warning is for all of them."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self._time = time
        self._timer: asyncio.TimerHandle | None = None
        self._told = False
        self._waiting = dict[Acquisition, Task]()

    def add(self, acquisition: Acquisition, task: Task, holder: Task) -> None:
        """One more of them waits."""
        self._waiting[acquisition] = task
        if self._timer is None and not self._told:
            self._timer = self._loop.call_later(SUSPICIOUS, self._look, holder)

    def remove(self, acquisition: Acquisition) -> bool:
        """One of them does not wait any more; whether it was the last one."""
        self._waiting.pop(acquisition, None)
        if self._waiting:
            return False
        if self._timer is not None:
            self._timer.cancel()
        return True

    def _look(self, holder: Task) -> None:
        self._timer = None
        # The first one has waited longest; the one that set the timer may have gone.
        first = next(iter(self._waiting))
        rest = first.began + SUSPICIOUS - self._time()
        if rest > 0:
            self._timer = self._loop.call_later(rest, self._look, holder)
            return
        self._told = True
        warn_of_parent(first, self._waiting[first], holder, len(self._waiting) - 1)


def warn_of_parent(acquisition: Acquisition, task: Task, holder: Task, others: int) -> None:
    """Log that a child waits for its parent, and that so many others do."""
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
