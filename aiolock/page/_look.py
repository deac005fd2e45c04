"""One look at all that is held or waited for: the numbers of each lock, and totals."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aiolock import Deadlock, Status

Key: TypeAlias = tuple[str, str]
"""The kind and the name of a lock."""

_AT_A_TIME: Final = 500
"""Locks after which other tasks have a turn: this runs in an application's event loop."""


class Seen(NamedTuple):
    """One lock, as it was seen."""

    status: Status
    held: float
    """Seconds for which its first holder has had it; 0 without a holder."""
    longest: float
    """Seconds for which one of its waiters has waited for longest; 0 without a waiter."""
    dead: int
    """How many of its holders and waiters do not answer."""

    @property
    def key(self) -> Key:
        """Its kind and name."""
        return self.status.kind, self.status.name

    @property
    def waiting(self) -> int:
        """How many wait."""
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


@dataclass(frozen=True, slots=True)
class Look:
    """The result of the last look, and whether it is still current."""

    version: int
    at: float
    """When the store answered, by the loop's clock."""
    took: float = 0.0
    """Seconds that the answer took."""
    every: float = 0.0
    """Seconds until the next look."""
    seen: Mapping[Key, Seen] = field(default_factory=dict[Key, Seen])
    totals: Totals = field(default_factory=Totals)
    deadlocks: tuple[Deadlock, ...] = ()
    error: str = ""
    """Why there was no answer this time; then all the rest is old."""
    closed: bool = False
    """Whether the client is not open; then there is nothing to look at."""
    rendered: dict[object, bytes] = field(default_factory=dict[object, bytes])
    """Views rendered from it, for other viewers who want the same."""

    @property
    def is_one(self) -> bool:
        """Whether the store was looked at at all."""
        return bool(self.every or self.error)


async def seen(statuses: Iterable[Status]) -> dict[Key, Seen]:
    """The locks of these statuses, with their numbers."""
    found = dict[Key, Seen]()
    for status in statuses:
        one = _seen(status)
        found[one.key] = one
        if not len(found) % _AT_A_TIME:
            await asyncio.sleep(0)
    return found


def _seen(status: Status) -> Seen:
    held = longest = 0.0
    dead = 0
    for holder in status.holders:
        held = max(held, status.now - holder.since)
        dead += not holder.alive
    for waiter in status.waiters:  # all, because a later one may have waited longer
        longest = max(longest, status.now - waiter.since)
        dead += not waiter.alive
    return Seen(status, held, longest, dead)


def totals(locks: Iterable[Seen]) -> Totals:
    """The totals of these locks."""
    count = held = waiting = dead = 0
    longest = 0.0
    for lock in locks:
        count += 1
        held += len(lock.status.holders)
        waiting += lock.waiting
        longest = max(longest, lock.longest)
        dead += lock.dead
    return Totals(count, held, waiting, longest, dead)


def still(deadlocks: Sequence[Deadlock], locks: Mapping[Key, Seen]) -> tuple[Deadlock, ...]:
    """The deadlocks whose waiters all still wait."""
    return tuple(each for each in deadlocks if _is_still(each, locks))


def _is_still(deadlock: Deadlock, locks: Mapping[Key, Seen]) -> bool:
    for blocked in deadlock.circle:
        lock = locks.get((blocked.kind, blocked.name))
        who = (blocked.waiter.client, blocked.waiter.seq)
        if lock is None or who not in {(each.client, each.seq) for each in lock.status.waiters}:
            return False
    return True
