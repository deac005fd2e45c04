"""The wait-for graph of a whole store: finds cycles of tasks, of any processes, over all locks.

Input are statuses of names, output are `Deadlock` objects; there is no I/O here. A task continues
once it has all that it waits for. So start with the tasks that wait for nothing, let each of them
release what it holds and leave the queues, see which waiters can enter then, and repeat: each task
that is left waits for ever for another that is left. This is the reduction of a resource graph
(R. C. Holt, "Some Deadlock Properties of Computer Systems", 1972): it is valid for permits as for
locks, where a cycle in the graph alone proves nothing. A holder or waiter without a known task is
assumed to continue.

Each task that is left is blocked by another one that is left, so following these leads to a cycle.
The time for all of it grows with the number of holders and waiters, so it is done in parts (see
`Turns`).
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final, TypeAlias, TypeVar

from aiolock.kinds import KINDS
from aiolock.observer import Blocked, Deadlock
from aiolock.protocol import Participant, Status

BLOCKING: Final = frozenset(name for name, kind in KINDS.items() if kind.blocks)
"""The kinds whose waiters wait until a holder releases."""


Value = TypeVar("Value")

Parts: TypeAlias = Generator[int, None, Value]
"""Work that is done in parts; it yields the units of each part, and returns the result."""

_Task: TypeAlias = tuple[str, int]
"""The id of the task's client, and the task's number at that client."""


def _task(participant: Participant) -> _Task:
    return participant.client, participant.task


class _Wait:
    """One waiter, and the participants that block it."""

    __slots__ = ("blockers", "enters", "status", "waiter")

    def __init__(self, status: Status, waiter: Participant) -> None:
        self.status = status
        self.waiter = waiter
        self.enters = False
        """Whether no stuck task blocks it."""
        self.blockers: Sequence[Participant] = ()
        """The holders or waiters that block it. Waiters that are blocked by the same ones share one
        list, so that all lists together stay small."""


class _Queue:
    """Waiters in order, and where the first is whose task is stuck."""

    __slots__ = ("_first", "waits")

    def __init__(self) -> None:
        self.waits = list[_Wait]()
        self._first = 0
        """Before this index, no task is stuck."""

    def first(self, stuck: Collection[_Task]) -> _Wait | None:
        """The first waiter whose task is stuck."""
        while self._first < len(self.waits):
            if _task(self.waits[self._first].waiter) in stuck:
                return self.waits[self._first]
            self._first += 1
        return None


class _Name:
    """The holders of one name, and those of its waiters whose task is known."""

    def __init__(self, status: Status) -> None:
        self._limit = status.limit
        self._holders = status.holders
        self._queue = _Queue()
        """The waiters, in order."""
        self._shares = dict[str, _Queue]()
        """The waiters of each share, if there are any."""
        # Of the holders that are stuck: how many are exclusive and shared, and all their permits.
        self._exclusive = self._shared = self._permits = 0
        # Of a path: how many are writers below the node, and how many read all of it.
        self._writers = self._readers = 0
        self._is_path = status.kind == "path"

    def fill(
        self, status: Status, graph: _Graph, has: dict[_Task, list[tuple[_Name, Participant]]]
    ) -> Parts[None]:
        """Add its holders and waiters: here, to the graph, and to what each task ``has``."""
        for holder in self._holders:
            self._exclusive += not holder.shared
            self._shared += holder.shared
            self._permits += holder.permits
            self._writers += holder.below == "writer"
            self._readers += holder.shared and not holder.below
            has.setdefault(_task(holder), []).append((self, holder))
            yield 1
        for waiter in status.waiters:
            if waiter.task:
                wait = _Wait(status, waiter)
                self._queue.waits.append(wait)
                if waiter.share:
                    self._shares.setdefault(waiter.share, _Queue()).waits.append(wait)
                graph.waits.setdefault(_task(waiter), []).append(wait)
                has.setdefault(_task(waiter), []).append((self, waiter))
            yield 1

    def remove(self, participant: Participant) -> None:
        """The task of this holder or waiter continues."""
        if participant.place:
            return  # a waiter: `first` skips those whose task is not stuck
        self._exclusive -= not participant.shared
        self._shared -= participant.shared
        self._permits -= participant.permits
        self._writers -= participant.below == "writer"
        self._readers -= participant.shared and not participant.below

    def next(self, stuck: Collection[_Task]) -> Iterator[_Wait]:
        """The waiters that may be next, of those whose tasks are stuck.

        It is the first in the queue: no other overtakes it. But if it has a share, it may be the
        first of any share: which one, only the store knows.
        """
        first = self._queue.first(stuck)
        shared = first is not None and first.waiter.share
        for queue in self._shares.values() if shared else (self._queue,):
            wait = queue.first(stuck)
            if wait is not None:
                yield wait

    def admits(self, waiter: Participant) -> bool:
        """Whether this waiter can enter beside the holders that are stuck."""
        if self._needs_permits(waiter):
            return not self._permits or self._permits + waiter.permits <= (self._limit or 0)
        if self._is_path and waiter.shared and waiter.below != "reader":
            others = self._readers if waiter.below else self._writers
            return not self._exclusive and not others
        return not self._exclusive and (waiter.shared or not self._shared)

    def _needs_permits(self, waiter: Participant) -> bool:
        return bool(waiter.permits) and self._limit is not None

    def settle(self, stuck: Collection[_Task]) -> Parts[None]:
        """Set the blockers of each waiter, now that it is known which tasks are stuck."""
        holders, exclusive = list[Participant](), list[Participant]()
        first = dict[str, list[Participant]]()
        for each in self._holders:
            yield 1
            if _task(each) in stuck:
                holders.append(each)
                if not each.shared:
                    exclusive.append(each)
        for wait in self._queue.waits:
            yield 1
            if _task(wait.waiter) not in stuck:
                continue
            if not wait.enters:
                # Where the holders leave room for it, the first waiter of its share blocks it, or
                # the first in the queue. Otherwise the holders do; of a shared lock, only the
                # exclusive ones.
                shares = wait.waiter.shared and not self._needs_permits(wait.waiter)
                shares = shares and (not self._is_path or wait.waiter.below == "reader")
                fits = self.admits(wait.waiter)
                before = first.get(wait.waiter.share) or first.get("", [])
                wait.blockers = before if fits else exclusive if shares else holders
            for share in {"", wait.waiter.share}:
                first.setdefault(share, [wait.waiter])


class _Graph:
    """The tasks that hold or wait for something, which of them are stuck, and what blocks each."""

    def __init__(self) -> None:
        self.waits = dict[_Task, list[_Wait]]()
        self.stuck = dict[_Task, None]()

    def build(self, statuses: Iterable[Status]) -> Parts[None]:
        """Add these statuses, and find out which tasks are stuck."""
        names = list[_Name]()
        has = dict[_Task, list[tuple[_Name, Participant]]]()
        for status in statuses:
            if status.waiters and status.kind in BLOCKING:
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
        """Remove all tasks that can continue; ``has`` is what each task holds or waits for."""
        waits_left, free = dict[_Task, int](), list[_Task]()
        for task in has:
            waits_left[task] = len(self.waits.get(task, ()))
            if not waits_left[task]:
                free.append(task)
            yield 1
        look_at = list(names)
        while free or look_at:
            yield 1
            if free:
                task = free.pop()
                self.stuck.pop(task, None)
                for name, participant in has[task]:
                    name.remove(participant)
                    look_at.append(name)
                    yield 1
                continue
            name = look_at.pop()
            for wait in name.next(self.stuck):
                yield 1
                if wait.enters or not name.admits(wait.waiter):
                    continue
                wait.enters = True
                task = _task(wait.waiter)
                waits_left[task] -= 1
                if not waits_left[task]:
                    free.append(task)

    def cycles(self) -> Parts[list[set[_Task]]]:
        """The tasks of each cycle: follow each task to its first blocker, until one was seen."""
        found = list[set[_Task]]()
        walks = dict[_Task, _Task]()
        for start in self.stuck:
            task, path = start, list[_Task]()
            while task not in walks:
                yield 1
                walks[task] = start
                path.append(task)
                task = next(_task(wait.blockers[0]) for wait in self.waits[task] if wait.blockers)
            # Seen in this walk, it closes a cycle. Seen in an earlier one, that one has found it.
            if walks[task] == start:
                found.append(set(path[path.index(task) :]))
        return found

    def _blocker_count(self, task: _Task) -> int:
        return max(len(wait.blockers) for wait in self.waits[task])

    def shortest(self, among: Collection[_Task]) -> Parts[Deadlock]:
        """The shortest cycle from one of these tasks back to it, through others of them."""
        # The task with most blockers has most ways to choose from.
        first: tuple[int, _Task] | None = None
        for task in among:
            yield 1
            rank = -self._blocker_count(task), task
            first = rank if first is None or rank < first else first
        assert first is not None, "a cycle has tasks"
        _, start = first
        came_by = dict[_Task, Blocked]()
        # By identity: lists of blockers are shared, and each is followed once.
        followed = set[int]()
        look_at = [start]
        for task in look_at:
            for wait in self.waits[task]:
                if id(wait.blockers) in followed:
                    continue
                followed.add(id(wait.blockers))
                for blocker in wait.blockers:
                    yield 1
                    other = _task(blocker)
                    if other in among and other not in came_by:
                        status = wait.status
                        came_by[other] = Blocked(status.kind, status.name, wait.waiter, blocker)
                        look_at.append(other)
            if start in came_by:
                break
        cycle = [came_by[start]]
        while (task := _task(cycle[-1].waiter)) != start:
            cycle.append(came_by[task])
        return Deadlock(tuple(reversed(cycle)))


def cycles(statuses: Iterable[Status]) -> Parts[list[Deadlock]]:
    """The deadlocks: one cycle for each set of tasks that wait for each other."""
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
    """The part of ``now`` that is also in ``before``: all of it was true at one moment in between.

    Each status of a snapshot is of its own moment, so a cycle in one snapshot proves nothing.
    """
    wanted = {(each.kind, each.name): set[tuple[str, int, int]]() for each in now}
    for each in before:
        yield 1
        among = wanted.get((each.kind, each.name))
        if among is not None:
            for participant in (*each.holders, *each.waiters):
                among.add(_grant(participant))
                yield 1
    found = list[Status]()
    for each in now:
        among = wanted[each.kind, each.name]
        holders, waiters = list[Participant](), list[Participant]()
        for participants, kept in ((each.holders, holders), (each.waiters, waiters)):
            for participant in participants:
                yield 1
                if _grant(participant) in among:
                    kept.append(participant)
        found.append(replace(each, holders=tuple(holders), waiters=tuple(waiters)))
    return found


def _grant(participant: Participant) -> tuple[str, int, int]:
    return participant.client, participant.seq, participant.fence
