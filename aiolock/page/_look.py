"""One look at all that is held or waited for: the numbers of each lock, and totals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from aiolock import Deadlock, Status
from aiolock.page._pace import Pace

Key: TypeAlias = tuple[str, str]
"""The kind and the name of a lock."""


class Seen(NamedTuple):
    """One lock in a look."""

    status: Status
    held: float
    """Seconds for which its first holder has had it; 0 without a holder."""
    longest: float
    """Seconds for which one of its waiters has waited for longest; 0 without a waiter."""
    dead: int
    """The number of its holders and waiters that do not answer."""
    folded: str
    """The casefolded name, for searches."""

    @property
    def key(self) -> Key:
        """The kind and name."""
        return self.status.kind, self.status.name

    @property
    def waiting(self) -> int:
        """The number of waiters."""
        return len(self.status.waiters)


class Totals(NamedTuple):
    """The totals of all locks."""

    locks: int = 0
    held: int = 0
    """The number of holders of all locks."""
    waiting: int = 0
    longest: float = 0.0
    """The longest wait of all, in seconds."""
    dead: int = 0


class Rows(NamedTuple):
    """The locks on one page of the list that a viewer wants."""

    locks: Sequence[Seen]
    before: int
    """The number of locks on the pages before."""
    matching: int
    """The number of locks on all pages."""


class View(NamedTuple):
    """What such a viewer is sent of a look."""

    rows: Rows
    data: bytes


@dataclass(frozen=True, slots=True)
class Look:
    """The result of the last look, and whether it is still current."""

    version: int
    at: float
    """The time when the store answered, by the loop's clock."""
    took: float = 0.0
    """Seconds that the answer took."""
    every: float = 0.0
    """Seconds from the beginning of this look to that of the next."""
    seen: dict[Key, Seen] = field(default_factory=dict[Key, Seen])
    totals: Totals = field(default_factory=Totals)
    deadlocks: tuple[Deadlock, ...] = ()
    error: str = ""
    """The reason why there was no answer this time; then all the rest is old."""
    closed: bool = False
    """Whether the client is not open; then there is nothing to look at."""
    rendered: dict[object, View] = field(default_factory=dict[object, View])
    """Views rendered from it, for other viewers who want the same."""

    @property
    def is_one(self) -> bool:
        """Whether there was a look at all."""
        return bool(self.every or self.error)

    async def forget(self) -> None:
        """Free the locks, part by part: to free so many objects takes time as well."""
        pace = Pace()
        while self.seen:
            self.seen.popitem()
            await pace.step()


async def seen(statuses: Iterable[Status]) -> dict[Key, Seen]:
    """The locks of these statuses, with their numbers."""
    found, pace = dict[Key, Seen](), Pace()
    for status in statuses:
        one = await _seen(status, pace)
        found[one.key] = one
    return found


async def _seen(status: Status, pace: Pace) -> Seen:
    held = longest = 0.0
    dead = 0
    await pace.step()
    for holder in status.holders:
        await pace.step()
        held = max(held, status.now - holder.since)
        dead += not holder.alive
    for waiter in status.waiters:  # all, because a later one may have waited longer
        await pace.step()
        longest = max(longest, status.now - waiter.since)
        dead += not waiter.alive
    return Seen(status, held, longest, dead, status.name.casefold())


async def totals(locks: Iterable[Seen]) -> Totals:
    """The totals of these locks."""
    count = held = waiting = dead = 0
    longest = 0.0
    pace = Pace()
    for lock in locks:
        await pace.step()
        count += 1
        held += len(lock.status.holders)
        waiting += lock.waiting
        longest = max(longest, lock.longest)
        dead += lock.dead
    return Totals(count, held, waiting, longest, dead)


async def still(deadlocks: Sequence[Deadlock], locks: Mapping[Key, Seen]) -> tuple[Deadlock, ...]:
    """The deadlocks whose waiters all still wait."""
    wanted = {(each.kind, each.name) for deadlock in deadlocks for each in deadlock.cycle}
    pace, waiting = Pace(), set[tuple[Key, str, int]]()
    for key in wanted & locks.keys():
        for waiter in locks[key].status.waiters:
            await pace.step()
            waiting.add((key, waiter.client, waiter.seq))
    return tuple(
        deadlock
        for deadlock in deadlocks
        if all(
            ((each.kind, each.name), each.waiter.client, each.waiter.seq) in waiting
            for each in deadlock.cycle
        )
    )
