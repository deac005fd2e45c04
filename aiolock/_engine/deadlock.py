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
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from typing import Any, Final
from weakref import ref

from aiolock._engine.acquisition import Acquisition, Phase
from aiolock._engine.hold import Hold, Holders
from aiolock._engine.policy import Policy
from aiolock.errors import WouldDeadlock
from aiolock.protocol import Rule

log = logging.getLogger("aiolock")

Task = asyncio.Task[Any]

SUSPICIOUS: Final = 1.0
"""Seconds of waiting after which a possible deadlock is logged."""

_ADVICE: Final = (
    "Take the locks in the same order everywhere (multilock() does), or give them a timeout="
)

_lineage: ContextVar[tuple[ref[Task], ref[Task] | None] | None] = ContextVar(
    "aiolock task", default=None
)
"""The task that used aiolock last in this context, and the one before it. A new task inherits the
context of the task that creates it, so if the two differ, the second is taken for the parent of the
first."""


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
    acquisition: Acquisition, task: Task, holders: Holders, blocked: Mapping[Task, Acquisition]
) -> bool:
    """`WouldDeadlock` if this task would wait for itself, by way of other tasks of this process.

    ``blocked`` has what each task waits for itself, without a timeout. True if it may wait for
    itself: then the caller logs that later, by `warn_of_cycle`.
    """
    wanted = acquisition.policy
    # First the wider search: as a rule it finds no cycle either, and then it is the only one.
    if not _cycle(wanted, task, holders, blocked, certain=False):
        return False
    if cycle := _cycle(wanted, task, holders, blocked, certain=True):
        raise wanted.with_name(
            WouldDeadlock(
                f"{cycle}: none of them could go on, unless an asyncio.timeout() or wait_for()"
                f" ends one of these waits, which cannot be seen here. {_ADVICE}"
            )
        )
    return True


def _cycle(
    wanted: Policy,
    task: Task,
    holders: Holders,
    blocked: Mapping[Task, Acquisition],
    *,
    certain: bool,
) -> str:
    """The text of a cycle; empty if there is none. ``certain``: only holds in bodies count."""
    if wanted.rule is not Rule.ALWAYS:
        return ""
    # Follow from the wanted lock to the tasks that hold it, and on to those that hold what each of
    # these waits for, until one of them is this task. The other direction, from what this task
    # holds, has as many ways as there are waiters.
    waits_for_it: dict[Task, Task] = {}
    look_at = [(task, wanted)]
    while look_at:
        waiting, policy = look_at.pop()
        for holder, hold in holders.get(policy.key, {}).items():
            if holder is None or holder is waiting or holder in waits_for_it:
                continue
            if holder is not task and holder not in blocked:
                continue
            if certain and not _is_inside(holder, hold):
                continue
            if not _excludes(hold, policy):
                continue
            if holder is task:
                waits = "would wait" if certain else "waits"
                path = _in_words(waiting, task, wanted, waits_for_it, blocked)
                return f"task {task.get_name()!r} {waits} {path}"
            waits_for_it[holder] = waiting
            look_at.append((holder, blocked[holder].policy))
    return ""


def _is_inside(task: Task, hold: Hold) -> bool:
    """Whether the task itself is in a body of this hold, so no other task releases the hold."""
    return any(body.task is task for body in hold.inside)


def _excludes(hold: Hold, wanted: Policy) -> bool:
    """Whether the wanted lock is not granted before this hold is released."""
    policy = hold.policy
    of_several = (policy.rule, wanted.rule) != (Rule.ALWAYS, Rule.ALWAYS)
    if of_several or not policy.renew or policy.max_hold is not None:
        return False  # one of several permits, or a lease that ends by itself
    return not (wanted.shared and (hold.shared or policy.shared))


def _in_words(
    last: Task,
    task: Task,
    wanted: Policy,
    waits_for_it: Mapping[Task, Task],
    blocked: Mapping[Task, Acquisition],
) -> str:
    steps: list[str] = []
    holder, other = task, last
    while other is not task:
        name = blocked[other].policy.name
        steps.append(f"task {other.get_name()!r} for {name!r} of {holder.get_name()!r}")
        holder, other = other, waits_for_it[other]
    steps.reverse()
    return f"for {wanted.called} of {holder.get_name()!r}, while {', and '.join(steps)} waits"


def warn_of_cycle(
    acquisition: Acquisition, task: Task, holders: Holders, blocked: Mapping[Task, Acquisition]
) -> None:
    """Log that a task may wait for itself, if it still does."""
    cycle = _cycle(acquisition.policy, task, holders, blocked, certain=False)
    if cycle and acquisition.phase is Phase.QUEUED:
        log.warning(
            "aiolock: %s: none of them can go on, unless a task to which one of these leases was"
            " passed on releases it, or an asyncio.timeout() or wait_for() ends one of these waits."
            " %s",
            cycle,
            _ADVICE,
        )


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
