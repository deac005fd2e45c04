"""The search for a cycle that a task closes when it begins to wait: see `deadlock`."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Generator, Mapping
from contextvars import Context
from typing import Final, NamedTuple

from aiolock._engine.acquisition import Acquisition, Holders
from aiolock._engine.diagnostics.deadlock import SUSPICIOUS, Task, log
from aiolock._engine.policy import Policy
from aiolock.errors import WouldDeadlock
from aiolock.protocol import Rule

_AT_ONCE: Final = 64
"""Holders that are looked at before a task begins to wait; at the others, while it waits."""
_PART: Final = 500
"""Holders that are looked at in one iteration of the event loop, in all searches together."""
_SHOWN: Final = 10
"""Tasks of a cycle that an error names; there may be thousands."""

_ADVICE: Final = (
    "Take the locks in the same order everywhere (multilock() does), or give them a timeout="
)


class _Edge(NamedTuple):
    """A task that waits, and one that holds what it waits for."""

    waiting: Task
    acquisition: Acquisition
    holder: Task
    hold: Acquisition


class Searches:
    """The searches of one client for cycles, each of which begins when a task begins to wait.

    A few holders are looked at in that very call. With thousands of them, the search goes on while
    the task waits, in parts. Others wait, enter and leave meanwhile, but the cycle that this task
    has closed stays: so it is found. And what is found counts only if all of it is so at that
    moment: else the search begins again.
    """

    def __init__(self, holders: Holders, blocked: Mapping[Task, Acquisition]) -> None:
        """``blocked`` has what each task waits for itself, without a timeout."""
        self.holders = holders
        self.blocked = blocked
        self.loop = asyncio.get_running_loop()
        self._left = deque[Search]()
        """Those that go on in the next iterations of the event loop, in order."""
        self._planned = False

    def begin(self, acquisition: Acquisition, task: Task) -> Search:
        """Search for a cycle that this task would close; the search must be ended.

        `WouldDeadlock` if it is found at once that the task would wait for itself.
        """
        search = Search(self, acquisition, task)
        if not search.go_on(_AT_ONCE):
            self.add(search)
        return search

    def add(self, search: Search) -> None:
        """Go on with a search in the next iterations."""
        self._left.append(search)
        self._plan()

    def _plan(self) -> None:
        if self._left and not self._planned:
            self._planned = True
            self.loop.call_soon(self._go_on, context=Context())

    def _go_on(self) -> None:
        self._planned, left = False, _PART
        try:
            while self._left and left:
                search = self._left.popleft()
                try:
                    left = search.go_on(left)
                except WouldDeadlock as error:
                    search.acquisition.stop(error)
                if not left:
                    self._left.appendleft(search)
        finally:
            self._plan()


class Search:
    """The search for a cycle that one task closes when it begins to wait."""

    def __init__(self, searches: Searches, acquisition: Acquisition, task: Task) -> None:
        self.acquisition = acquisition
        self._searches = searches
        self._task = task
        self._steps: Generator[None] | None = self._look()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def is_possible(self) -> bool:
        """Whether the task may wait for itself, which is logged later."""
        return self._timer is not None

    def go_on(self, most: int) -> int:
        """Look at so many holders; how many of these are left when it is over, 0 if it is not."""
        steps = self._steps or iter(())
        while most:
            try:
                next(steps)
            except StopIteration:
                self._steps = None
                return most
            most -= 1
        return 0

    def end(self) -> None:
        """Look for nothing more, and log nothing. Idempotent."""
        self._steps = None
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> Generator[None]:
        # First the wider search: as a rule it finds no cycle either, and then it is the only one.
        if not (yield from self._cycle(certain=False)):
            return
        if cycle := (yield from self._cycle(certain=True)):
            raise self.acquisition.policy.with_name(
                WouldDeadlock(
                    f"{cycle}: none of them could go on, unless an asyncio.timeout() or wait_for()"
                    f" ends one of these waits, which cannot be seen here. {_ADVICE}"
                )
            )
        self._timer = self._searches.loop.call_later(SUSPICIOUS, self._look_again)

    def _look_again(self) -> None:
        self._timer, self._steps = None, self._warn()
        self._searches.add(self)

    def _warn(self) -> Generator[None]:
        """Log that a task may wait for itself, if it still does."""
        if cycle := (yield from self._cycle(certain=False)):
            log.warning(
                "aiolock: %s: none of them can go on, unless a task to which one of these leases"
                " was passed on releases it, or an asyncio.timeout() or wait_for() ends one of"
                " these waits. %s",
                cycle,
                _ADVICE,
            )

    def _cycle(self, *, certain: bool) -> Generator[None, None, str]:
        """The text of a cycle; empty if there is none. ``certain``: only holds in bodies count."""
        while path := (yield from self._path(certain=certain)):
            if all(self._is_so(edge, certain=certain) for edge in path):
                return _in_words(path, certain=certain)
            if self._blocked(self._task) is not self.acquisition:
                break
        return ""

    def _path(self, *, certain: bool) -> Generator[None, None, list[_Edge]]:
        """The edges from this task back to itself; none if it does not wait for itself."""
        # Follow from the wanted lock to the tasks that hold it, and on to those that hold what each
        # of these waits for, until one of them is this task. The other direction, from what this
        # task holds, has as many ways as there are waiters.
        task, holders = self._task, self._searches.holders
        edges = dict[Task, _Edge]()
        seen = set[tuple[str, bool]]()
        look_at = deque([(task, self.acquisition)])
        while look_at:
            yield
            waiting, acquisition = look_at.popleft()
            policy = acquisition.policy
            if policy.rule is not Rule.ALWAYS or (policy.key, policy.shared) in seen:
                continue
            seen.add((policy.key, policy.shared))
            for holder, hold in tuple(holders.get(policy.key, {}).items()):
                yield
                if holder is None or holder is waiting or holder in edges:
                    continue
                blocked = self._blocked(holder)
                if blocked is None:
                    continue
                edge = _Edge(waiting, acquisition, holder, hold)
                if not self._counts(edge, certain=certain):
                    continue
                edges[holder] = edge
                if holder is task:
                    path = [edge]
                    while path[-1].waiting is not task:
                        path.append(edges[path[-1].waiting])
                    return path[::-1]
                look_at.append((holder, blocked))
        return []

    def _blocked(self, task: Task) -> Acquisition | None:
        """What the task waits for; None if it does not, or has been woken and goes on."""
        acquisition = self._searches.blocked.get(task)
        return acquisition if acquisition is not None and acquisition.waits else None

    def _is_so(self, edge: _Edge, *, certain: bool) -> bool:
        """Whether this task waits now, and for that holder."""
        hold = self._searches.holders.get(edge.acquisition.policy.key, {}).get(edge.holder)
        waits = self._blocked(edge.waiting) is edge.acquisition
        return waits and hold is edge.hold and self._counts(edge, certain=certain)

    def _counts(self, edge: _Edge, *, certain: bool) -> bool:
        """Whether the holder blocks the task; ``certain``: and no other task releases its hold."""
        if certain and not _is_inside(edge.holder, edge.hold):
            return False
        return _excludes(edge.hold, edge.acquisition.policy)


def _is_inside(task: Task, hold: Acquisition) -> bool:
    """Whether the task itself is in a body of this hold, so no other task releases the hold."""
    return any(body.task is task for body in hold.inside)


def _excludes(hold: Acquisition, wanted: Policy) -> bool:
    """Whether the wanted lock is not granted before this hold is released."""
    policy = hold.policy
    of_several = (policy.rule, wanted.rule) != (Rule.ALWAYS, Rule.ALWAYS)
    if of_several or not policy.renew or policy.max_hold is not None:
        return False  # one of several permits, or a lease that ends by itself
    return not (wanted.shared and (hold.shared or policy.shared))


def _in_words(path: list[_Edge], *, certain: bool) -> str:
    (task, acquisition, holder, _), *others = path
    steps = [
        f"task {each.waiting.get_name()!r} for {each.acquisition.policy.name!r}"
        f" of {each.holder.get_name()!r}"
        for each in others[:_SHOWN]
    ]
    if len(others) > _SHOWN:
        steps.append(f"so on for {len(others) - _SHOWN} more tasks, up to {task.get_name()!r},")
    waits = "would wait" if certain else "waits"
    return (
        f"task {task.get_name()!r} {waits} for {acquisition.policy.called} of"
        f" {holder.get_name()!r}, while {', and '.join(steps)} waits"
    )
