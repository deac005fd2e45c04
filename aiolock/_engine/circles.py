"""Deadlocks across processes: who waits for whom, over all locks, and which of them form a circle.

A task goes on once it has all that it waits for. So begin with those that wait for nothing, let
each of them release what it holds and leave the queues, see who can enter then, and so on: whoever
is left waits for somebody who is left, for ever. It is the reduction of Holt's graph (R. C. Holt,
"Some Deadlock Properties of Computer Systems", 1972): it holds for permits as for locks. Whose task
is not known is taken to go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from aiolock.observer import Blocked, Deadlock
from aiolock.store import Party, Status

KINDS: Final = ("lock", "semaphore", "once", "election")
"""Those that one waits for until somebody lets go."""


class _Task(NamedTuple):
    client: str
    number: int


class _Wait(NamedTuple):
    """One that waits, and what for."""

    status: Status
    waiter: Party


def circles(statuses: Sequence[Status]) -> list[Deadlock]:
    """Those who wait for each other: of each group that is stuck, one of the shortest circles."""
    waits = _waits(statuses)
    stuck = _stuck(waits)
    found, seen = list[Deadlock](), set[_Task]()
    for task in sorted(stuck):
        circle = [] if task in seen else _shortest_circle(task, waits, stuck)
        tasks = {_task(each.waiter) for each in circle}
        if tasks and not tasks & seen:
            found.append(Deadlock(tuple(circle)))
            seen |= tasks
    return found


def stuck_on(statuses: Sequence[Status]) -> set[tuple[str, str]]:
    """The kinds and names of what those wait for who cannot go on."""
    waits = _waits(statuses)
    stuck = _stuck(waits)
    return {(w.status.kind, w.status.name) for task in stuck for w in waits[task]}


def same(before: Sequence[Deadlock], now: Sequence[Deadlock]) -> list[Deadlock]:
    """Those of ``now`` that were there before: so all of it was true at one moment in between.

    The statuses of a snapshot are each of a moment of its own, so one alone proves nothing.
    """
    known = {_ways(each) for each in before}
    return [each for each in now if _ways(each) in known]


def _ways(deadlock: Deadlock) -> frozenset[tuple[str, str, str, int, str, int, int]]:
    """What makes it what it is, whichever of them comes first."""
    return frozenset(
        (
            each.kind,
            each.name,
            each.waiter.client,
            each.waiter.seq,
            each.behind.client,
            each.behind.seq,
            each.behind.fence,
        )
        for each in deadlock.circle
    )


def _task(party: Party) -> _Task:
    return _Task(party.client, party.task)


def _waits(statuses: Sequence[Status]) -> dict[_Task, list[_Wait]]:
    """What each task waits for, where it is known which task that is."""
    waits = dict[_Task, list[_Wait]]()
    for status in statuses:
        for waiter in status.waiters if status.kind in KINDS else ():
            if waiter.task:
                waits.setdefault(_task(waiter), []).append(_Wait(status, waiter))
    return waits


def _stuck(waits: dict[_Task, list[_Wait]]) -> set[_Task]:
    stuck = set(waits)
    while True:
        go_on = {
            task for task in stuck if all(not _in_the_way(wait, stuck) for wait in waits[task])
        }
        if not go_on:
            return stuck
        stuck -= go_on


def _in_the_way(wait: _Wait, stuck: set[_Task]) -> list[Party]:
    """Who of those that are stuck keeps this one from entering; nobody where it will enter."""
    status, waiter = wait
    holders = [each for each in status.holders if each.task and _task(each) in stuck]
    before = [
        each
        for each in status.waiters
        if each.place < waiter.place and each.task and _task(each) in stuck
    ]
    if waiter.permits and status.limit is not None:
        taken = sum(each.permits for each in holders)
        if taken + waiter.permits > status.limit:
            return holders
    else:
        excluding = [each for each in holders if not (waiter.shared and each.shared)]
        if excluding:
            return excluding
    # Nobody overtakes in the queue: whoever is stuck there is in the way, too.
    return before


def _shortest_circle(
    task: _Task, waits: dict[_Task, list[_Wait]], stuck: set[_Task]
) -> list[Blocked]:
    """From this task back to it, by the fewest of those who are in each other's way."""
    came_by = dict[_Task, Blocked | None]({task: None})
    look_at = [task]
    for each in look_at:
        for blocked in _blocked(waits[each], stuck):
            other = _task(blocked.behind)
            if other == task:
                return [*_back(each, came_by), blocked]
            if other not in came_by:
                came_by[other] = blocked
                look_at.append(other)
    return []


def _back(task: _Task, came_by: dict[_Task, Blocked | None]) -> list[Blocked]:
    path = list[Blocked]()
    step = came_by[task]
    while step is not None:
        path.append(step)
        step = came_by[_task(step.waiter)]
    return path[::-1]


def _blocked(waits: Sequence[_Wait], stuck: set[_Task]) -> Iterator[Blocked]:
    for wait in waits:
        for behind in _in_the_way(wait, stuck):
            yield Blocked(wait.status.kind, wait.status.name, wait.waiter, behind)
