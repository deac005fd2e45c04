"""Deadlocks across processes: which tasks wait for each other in a circle, over all locks.

A task goes on once it has all that it waits for. So begin with the tasks that wait for nothing, let
each of them release what it holds and leave the queues, see which waiters can enter then, and so
on: each task that is left waits for ever for another that is left. This is the reduction of Holt's
graph (R. C. Holt, "Some Deadlock Properties of Computer Systems", 1972): it holds for permits as
for locks. A party without a known task is assumed to go on.

Each task that is left is blocked by another one, so following these leads to a circle. All of it
takes time in proportion to the number of holders and waiters, so it is done in parts (see `Turns`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from aiolock.observer import Blocked, Deadlock
from aiolock.store import Participant, Status

KINDS: Final = ("lock", "semaphore", "once", "election")
"""The kinds whose waiters wait until a holder releases."""


Value = TypeVar("Value")

Parts: TypeAlias = Generator[int, None, Value]
"""Work that is done in parts; it yields the units of each part, and returns the result."""

_Task: TypeAlias = tuple[str, int]
"""The id of its client, and its number among the tasks of that client."""


def _task(party: Participant) -> _Task:
    return party.client, party.task


class _Wait:
    """One waiter, and what it waits for."""

    __slots__ = ("behind", "enters", "status", "waiter")

    def __init__(self, status: Status, waiter: Participant) -> None:
        self.status = status
        self.waiter = waiter
        self.enters = False
        """Whether no stuck task blocks it."""
        self.behind: Sequence[Participant] = ()
        """The parties that block it; waiters blocked by the same ones share one list."""


class _Name:
    """The holders of one name, and those of its waiters whose task is known."""

    def __init__(self, status: Status) -> None:
        self._limit = status.limit
        self._holders = status.holders
        self.queue = list[_Wait]()
        """The waiters, in order."""
        self._first = 0
        """Before this index in the queue, no task is stuck."""
        self._alone = self._together = self._permits = 0

    def fill(
        self, status: Status, graph: _Graph, has: dict[_Task, list[tuple[_Name, Participant]]]
    ) -> Parts[None]:
        """Note who holds it and who waits, here and in what each task ``has``."""
        for holder in self._holders:
            self._alone += not holder.shared
            self._together += holder.shared
            self._permits += holder.permits
            has.setdefault(_task(holder), []).append((self, holder))
            yield 1
        for waiter in status.waiters:
            if waiter.task:
                wait = _Wait(status, waiter)
                self.queue.append(wait)
                graph.waits.setdefault(_task(waiter), []).append(wait)
                has.setdefault(_task(waiter), []).append((self, waiter))
            yield 1

    def let_go(self, party: Participant) -> None:
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

    def is_open_to(self, waiter: Participant) -> bool:
        """Whether the holders that are stuck let this waiter enter."""
        if self._counts(waiter):
            return not self._permits or self._permits + waiter.permits <= (self._limit or 0)
        return not self._alone and (waiter.shared or not self._together)

    def _counts(self, waiter: Participant) -> bool:
        return bool(waiter.permits) and self._limit is not None

    def settle(self, stuck: Collection[_Task]) -> Parts[None]:
        """Note which parties block each waiter, now that it is known which tasks are stuck."""
        holders, alone, first = list[Participant](), list[Participant](), list[Participant]()
        for each in self._holders:
            yield 1
            if _task(each) in stuck:
                holders.append(each)
                if not each.shared:
                    alone.append(each)
        for wait in self.queue:
            yield 1
            if _task(wait.waiter) not in stuck:
                continue
            if not wait.enters:
                shares = wait.waiter.shared and not self._counts(wait.waiter)
                is_open = self.is_open_to(wait.waiter)
                wait.behind = first if is_open else alone if shares else holders
            first = first or [wait.waiter]


class _Graph:
    """Which of some tasks are stuck, and what blocks each."""

    def __init__(self) -> None:
        self.waits = dict[_Task, list[_Wait]]()
        self.stuck = dict[_Task, None]()

    def build(self, statuses: Iterable[Status]) -> Parts[None]:
        """Take these statuses in, and find out who is stuck."""
        names = list[_Name]()
        has = dict[_Task, list[tuple[_Name, Participant]]]()
        for status in statuses:
            if status.waiters and status.kind in KINDS:
                names.append(_Name(status))
                yield from names[-1].fill(status, self, has)
            yield 1
        self.stuck = dict.fromkeys(has)
        yield from self._reduce(names, has)
        for name in names:
            yield from name.settle(self.stuck)

    def _reduce(
        self, names: Iterable[_Name], has: Mapping[_Task, Sequence[tuple[_Name, Participant]]]
    ) -> Parts[None]:
        """Let all tasks go on that can; ``has`` is what each holds or waits for."""
        left, go_on = dict[_Task, int](), list[_Task]()
        for task in has:
            left[task] = len(self.waits.get(task, ()))
            if not left[task]:
                go_on.append(task)
            yield 1
        look_at = list(names)
        while go_on or look_at:
            yield 1
            if go_on:
                task = go_on.pop()
                self.stuck.pop(task, None)
                for name, party in has[task]:
                    name.let_go(party)
                    look_at.append(name)
                    yield 1
                continue
            name = look_at.pop()
            first = name.first(self.stuck)
            if first is not None and not first.enters and name.is_open_to(first.waiter):
                first.enters = True
                task = _task(first.waiter)
                left[task] -= 1
                if not left[task]:
                    go_on.append(task)

    def cycles(self) -> Parts[list[set[_Task]]]:
        """Follow from each task to the first that blocks it, until one was seen before."""
        found = list[set[_Task]]()
        walks = dict[_Task, _Task]()
        for start in self.stuck:
            task, path = start, list[_Task]()
            while task not in walks:
                yield 1
                walks[task] = start
                path.append(task)
                task = next(_task(wait.behind[0]) for wait in self.waits[task] if wait.behind)
            if walks[task] == start:
                found.append(set(path[path.index(task) :]))
        return found

    def _in_the_way_of(self, task: _Task) -> int:
        return max(len(wait.behind) for wait in self.waits[task])

    def shortest(self, among: Collection[_Task]) -> Parts[Deadlock]:
        """The shortest circle from one of these tasks back to it, through others of them."""
        # The task with most parties in its way has most ways to choose from.
        first: tuple[int, _Task] | None = None
        for task in among:
            yield 1
            way = -self._in_the_way_of(task), task
            first = way if first is None or way < first else first
        assert first is not None, "a circle has tasks"
        _, start = first
        came_by = dict[_Task, Blocked]()
        followed = set[int]()
        look_at = [start]
        for task in look_at:
            for wait in self.waits[task]:
                if id(wait.behind) in followed:
                    continue
                followed.add(id(wait.behind))
                for behind in wait.behind:
                    yield 1
                    other = _task(behind)
                    if other in among and other not in came_by:
                        status = wait.status
                        came_by[other] = Blocked(status.kind, status.name, wait.waiter, behind)
                        look_at.append(other)
            if start in came_by:
                break
        cycle = [came_by[start]]
        while (task := _task(cycle[-1].waiter)) != start:
            cycle.append(came_by[task])
        return Deadlock(tuple(reversed(cycle)))


def cycles(statuses: Iterable[Status]) -> Parts[list[Deadlock]]:
    """The deadlocks: circles that have no task in common."""
    graph, found = _Graph(), list[Deadlock]()
    yield from graph.build(statuses)
    for tasks in (yield from graph.cycles()):
        found.append((yield from graph.shortest(tasks)))
    return sorted(found, key=lambda deadlock: _task(deadlock.cycle[0].waiter))


def stuck_on(statuses: Iterable[Status]) -> Parts[set[tuple[str, str]]]:
    """The kinds and names that stuck tasks wait for."""
    graph, names = _Graph(), set[tuple[str, str]]()
    yield from graph.build(statuses)
    for task in graph.stuck:
        for wait in graph.waits[task]:
            names.add((wait.status.kind, wait.status.name))
            yield 1
    return names


def lasting(before: Iterable[Status], now: Iterable[Status]) -> Parts[list[Status]]:
    """The part of ``now`` that was also there before: all of it was true at one moment in between.

    Each status of a snapshot is true of its own moment, so one snapshot alone proves nothing.
    """
    wanted = {(each.kind, each.name): set[tuple[str, int, int]]() for each in now}
    for each in before:
        yield 1
        among = wanted.get((each.kind, each.name))
        if among is not None:
            for party in (*each.holders, *each.waiters):
                among.add(_grant(party))
                yield 1
    found = list[Status]()
    for each in now:
        among = wanted[each.kind, each.name]
        holders, waiters = list[Participant](), list[Participant]()
        for parties, lasts in ((each.holders, holders), (each.waiters, waiters)):
            for party in parties:
                yield 1
                if _grant(party) in among:
                    lasts.append(party)
        found.append(replace(each, holders=tuple(holders), waiters=tuple(waiters)))
    return found


def _grant(party: Participant) -> tuple[str, int, int]:
    return party.client, party.seq, party.fence
