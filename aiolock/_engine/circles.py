"""Deadlocks across processes: which tasks wait for each other in a circle, over all locks.

A task goes on once it has all that it waits for. So begin with the tasks that wait for nothing, let
each of them release what it holds and leave the queues, see which waiters can enter then, and so
on: each task that is left waits for ever for another that is left. This is the reduction of Holt's
graph (R. C. Holt, "Some Deadlock Properties of Computer Systems", 1972): it holds for permits as
for locks. A party without a known task is assumed to go on.

Each task that is left is blocked by another one, so following these leads to a circle. All of it
takes time in proportion to the number of holders and waiters.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias

from aiolock.observer import Blocked, Deadlock
from aiolock.store import Party, Status

KINDS: Final = ("lock", "semaphore", "once", "election")
"""The kinds whose waiters wait until a holder releases."""


_Task: TypeAlias = tuple[str, int]
"""The id of its client, and its number among the tasks of that client."""


def _task(party: Party) -> _Task:
    return party.client, party.task


class _Wait:
    """One waiter, and what it waits for."""

    __slots__ = ("behind", "enters", "status", "waiter")

    def __init__(self, status: Status, waiter: Party) -> None:
        self.status = status
        self.waiter = waiter
        self.enters = False
        """Whether no stuck task blocks it."""
        self.behind: Sequence[Party] = ()
        """The parties that block it; waiters blocked by the same ones share one list."""


class _Name:
    """The holders of one name, and those of its waiters whose task is known."""

    def __init__(self, status: Status) -> None:
        self._limit = status.limit
        self._holders = status.holders
        self.queue = [_Wait(status, each) for each in status.waiters if each.task]
        """The waiters, in order."""
        self._first = 0
        """Before this index in the queue, no task is stuck."""
        self._alone = sum(not each.shared for each in self._holders)
        self._together = len(self._holders) - self._alone
        self._permits = sum(each.permits for each in self._holders)

    def parties(self) -> Iterable[Party]:
        """All holders and waiters."""
        yield from self._holders
        yield from (wait.waiter for wait in self.queue)

    def let_go(self, party: Party) -> None:
        """The task of this holder or waiter goes on."""
        if party.place:
            return  # `first` skips a waiter that goes on
        self._alone -= not party.shared
        self._together -= party.shared
        self._permits -= party.permits

    def first(self, stuck: Collection[_Task]) -> _Wait | None:
        """The first waiter in the queue whose task is stuck: no other overtakes it."""
        while self._first < len(self.queue):
            if _task(self.queue[self._first].waiter) in stuck:
                return self.queue[self._first]
            self._first += 1
        return None

    def is_open_to(self, waiter: Party) -> bool:
        """Whether the holders that are stuck let this waiter enter."""
        if self._counts(waiter):
            return not self._permits or self._permits + waiter.permits <= (self._limit or 0)
        return not self._alone and (waiter.shared or not self._together)

    def _counts(self, waiter: Party) -> bool:
        return bool(waiter.permits) and self._limit is not None

    def settle(self, stuck: Collection[_Task]) -> None:
        """Note which parties block each waiter, now that it is known which tasks are stuck."""
        holders = [each for each in self._holders if _task(each) in stuck]
        alone = [each for each in holders if not each.shared]
        first = list[Party]()
        for wait in self.queue:
            if _task(wait.waiter) not in stuck:
                continue
            if not wait.enters:
                shares = wait.waiter.shared and not self._counts(wait.waiter)
                is_open = self.is_open_to(wait.waiter)
                wait.behind = first if is_open else alone if shares else holders
            first = first or [wait.waiter]


class _Graph:
    """Which of some tasks are stuck, and what blocks each."""

    def __init__(self, statuses: Iterable[Status]) -> None:
        waited_for = (each for each in statuses if each.waiters and each.kind in KINDS)
        names = [_Name(status) for status in waited_for]
        self.waits = dict[_Task, list[_Wait]]()
        has = dict[_Task, list[tuple[_Name, Party]]]()
        for name in names:
            for wait in name.queue:
                self.waits.setdefault(_task(wait.waiter), []).append(wait)
            for party in name.parties():
                has.setdefault(_task(party), []).append((name, party))
        self.stuck = set(has)
        self._reduce(names, has)
        for name in names:
            name.settle(self.stuck)

    def _reduce(
        self, names: Iterable[_Name], has: Mapping[_Task, Sequence[tuple[_Name, Party]]]
    ) -> None:
        """Let all tasks go on that can; ``has`` is what each holds or waits for."""
        left = {task: len(self.waits.get(task, ())) for task in has}
        go_on = [task for task in has if not left[task]]
        look_at = list(names)
        while go_on or look_at:
            if go_on:
                task = go_on.pop()
                self.stuck.discard(task)
                for name, party in has[task]:
                    name.let_go(party)
                    look_at.append(name)
                continue
            name = look_at.pop()
            first = name.first(self.stuck)
            if first is not None and not first.enters and name.is_open_to(first.waiter):
                first.enters = True
                task = _task(first.waiter)
                left[task] -= 1
                if not left[task]:
                    go_on.append(task)

    def circles(self) -> Iterable[set[_Task]]:
        """Follow from each task to the first that blocks it, until one was seen before."""
        walks = dict[_Task, _Task]()
        for start in sorted(self.stuck):
            task, path = start, list[_Task]()
            while task not in walks:
                walks[task] = start
                path.append(task)
                task = next(_task(wait.behind[0]) for wait in self.waits[task] if wait.behind)
            if walks[task] == start:
                yield set(path[path.index(task) :])

    def _in_the_way_of(self, task: _Task) -> int:
        return max(len(wait.behind) for wait in self.waits[task])

    def shortest(self, among: Collection[_Task]) -> Deadlock:
        """The shortest circle from one of these tasks back to it, through others of them."""
        # The task with most parties in its way has most ways to choose from.
        start = min(among, key=lambda task: (-self._in_the_way_of(task), task))
        came_by = dict[_Task, Blocked]()
        followed = set[int]()
        look_at = [start]
        for task in look_at:
            for wait in self.waits[task]:
                if id(wait.behind) in followed:
                    continue
                followed.add(id(wait.behind))
                for behind in wait.behind:
                    other = _task(behind)
                    if other in among and other not in came_by:
                        status = wait.status
                        came_by[other] = Blocked(status.kind, status.name, wait.waiter, behind)
                        look_at.append(other)
            if start in came_by:
                break
        circle = [came_by[start]]
        while (task := _task(circle[-1].waiter)) != start:
            circle.append(came_by[task])
        return Deadlock(tuple(reversed(circle)))


def circles(statuses: Iterable[Status]) -> list[Deadlock]:
    """The deadlocks: circles that have no task in common."""
    graph = _Graph(statuses)
    found = [graph.shortest(tasks) for tasks in graph.circles()]
    return sorted(found, key=lambda deadlock: _task(deadlock.circle[0].waiter))


def stuck_on(statuses: Iterable[Status]) -> set[tuple[str, str]]:
    """The kinds and names that stuck tasks wait for."""
    graph = _Graph(statuses)
    waits = (wait for task in graph.stuck for wait in graph.waits[task])
    return {(wait.status.kind, wait.status.name) for wait in waits}


def lasting(before: Iterable[Status], now: Iterable[Status]) -> list[Status]:
    """The part of ``now`` that was also there before: all of it was true at one moment in between.

    Each status of a snapshot is true of its own moment, so one snapshot alone proves nothing.
    """
    known: Mapping[tuple[str, str], set[tuple[str, int, int]]] = {
        (each.kind, each.name): {_grant(party) for party in (*each.holders, *each.waiters)}
        for each in before
    }

    def lasts(parties: Iterable[Party], among: Collection[tuple[str, int, int]]) -> list[Party]:
        return [each for each in parties if _grant(each) in among]

    found = list[Status]()
    for each in now:
        among = known.get((each.kind, each.name), set())
        holders, waiters = lasts(each.holders, among), lasts(each.waiters, among)
        found.append(replace(each, holders=tuple(holders), waiters=tuple(waiters)))
    return found


def _grant(party: Party) -> tuple[str, int, int]:
    return party.client, party.seq, party.fence
