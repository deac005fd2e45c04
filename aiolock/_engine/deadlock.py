"""Tasks of one client that wait for each other: found before they wait for ever.

Only a cycle is an error of tasks each of which waits by itself, without a ``timeout``, for a lock
that the next one holds, and whose lease does not end by itself. Whether it waits in the body of an
`asyncio.timeout`, nobody can know: what cancels a task is not to be seen in it. So whoever wants to
wait in a circle for a while gives the lock the timeout. That a child task waits
for a lock of its parent, which may wait for the child, cannot be known for sure: the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any, Final
from weakref import ref

from aiolock._engine.acquisition import Attempt, Phase
from aiolock._engine.hold import Hold, Owned
from aiolock._engine.policy import Policy
from aiolock.errors import WouldDeadlock
from aiolock.store import Rule, Waiter

log = logging.getLogger("aiolock")

Task = asyncio.Task[Any]

SUSPICIOUS: Final = 1.0
"""Seconds for which a child task waits for a lock of its parent until the log says so."""

_lineage: ContextVar[tuple[ref[Task], ref[Task] | None] | None] = ContextVar(
    "aiolock task", default=None
)
"""The task that used aiolock last in this context, and the one before it. A task that is created
inherits the context of the one that creates it: its parent, for us."""


def remember(task: Task | None) -> None:
    """Let the tasks that this one creates know of it."""
    known = _lineage.get()
    if task is not None and (known is None or known[0]() is not task):
        _lineage.set((ref(task), None if known is None else known[0]))


def parent() -> Task | None:
    """The parent of the current task, which has been remembered; None where there is none."""
    known = _lineage.get()
    return None if known is None or known[1] is None else known[1]()


def check(
    attempt: Attempt,
    task: Task,
    owned: Owned,
    attempts: Mapping[str, Mapping[Waiter, Attempt]],
) -> None:
    """`WouldDeadlock` where this task would wait for itself, by way of others of this process.

    ``owned`` is what each task holds, ``attempts`` who waits, by key.
    """
    wanted = attempt.policy
    if wanted.rule is not Rule.ALWAYS:
        return
    # From what this task holds to those who wait for it, and to what those hold: until one of them
    # holds what is wanted.
    found: dict[Task, tuple[Task, str]] = {}
    look_at = [task]
    while look_at:
        holder = look_at.pop()
        for key, hold in owned.get(holder, {}).items():
            for other in _blocked(attempts.get(key, {}).values(), hold):
                if other in found or other is task:
                    continue
                if other not in owned:
                    continue  # nobody waits for it
                found[other] = (holder, key)
                theirs = owned[other].get(wanted.key)
                if theirs is not None and _excludes(theirs, wanted):
                    raise wanted.about(WouldDeadlock(_cycle(task, other, wanted, found)))
                look_at.append(other)


def _blocked(attempts: Iterable[Attempt], hold: Hold) -> Iterable[Task]:
    """Those who wait until this hold ends, however long it takes."""
    for attempt in attempts:
        if attempt.blocked is not None and _excludes(hold, attempt.policy):
            yield attempt.blocked


def _excludes(hold: Hold, wanted: Policy) -> bool:
    """Whether nobody gets this before that is released."""
    policy = hold.policy
    of_several = (policy.rule, wanted.rule) != (Rule.ALWAYS, Rule.ALWAYS)
    if of_several or not policy.renew or policy.max_hold is not None:
        return False  # one of several permits, or a lease that ends by itself
    return not (wanted.shared and (hold.shared or policy.shared))


def _cycle(task: Task, last: Task, wanted: Policy, found: Mapping[Task, tuple[Task, str]]) -> str:
    steps: list[str] = []
    other = last
    while other is not task:
        holder, key = found[other]
        steps.append(
            f"task {other.get_name()!r} for {key.partition(':')[2]!r} of {holder.get_name()!r}"
        )
        other = holder
    return (
        f"task {task.get_name()!r} would wait for {wanted.called} of {last.get_name()!r}, while"
        f" {', and '.join(steps)} waits: none of them could go on, unless an asyncio.timeout() or"
        " wait_for() ends one of these waits, which cannot be seen here. Take the locks in the same"
        " order everywhere (multilock() does), or give them a timeout="
    )


def warn_of_parent(attempt: Attempt, task: Task, holder: Task) -> None:
    """Say that a child waits for its parent, if it still does."""
    if attempt.phase is Phase.QUEUED:
        log.warning(
            "aiolock: task %r waits for %s, which its parent task %r holds. If that one waits for"
            " its child, neither can go on: a child task is another owner, also of a re-entrant"
            " lock. Let the parent pass its lease on, or release it first",
            task.get_name(),
            attempt.policy.called,
            holder.get_name(),
        )
