"""One look at all that is held or waited for: numbers of each lock, and of all."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from aiolock import Deadlock, Status

Key: TypeAlias = tuple[str, str]
"""The kind of a lock, and its name."""

_AT_A_TIME: Final = 500
"""Locks after which others have their turn: this runs in the event loop of an application."""


class Seen(NamedTuple):
    """One lock, as it was seen."""

    status: Status
    held: float
    """For how many seconds its first holder has had it; 0 where nobody has."""
    longest: float
    """For how many seconds the first of its waiters has waited; 0 where nobody waits."""
    dead: int
    """How many of its holders and waiters do not answer."""

    @property
    def key(self) -> Key:
        """What tells it from others."""
        return self.status.kind, self.status.name

    @property
    def waiting(self) -> int:
        """How many wait."""
        return len(self.status.waiters)


class Totals(NamedTuple):
    """Of all locks together."""

    locks: int = 0
    held: int = 0
    """How many hold something: the holders of all."""
    waiting: int = 0
    longest: float = 0.0
    """Seconds: the longest wait of all."""
    dead: int = 0


@dataclass(frozen=True, slots=True)
class Look:
    """What was seen, and whether that is still so."""

    version: int
    at: float
    """When the store answered, by the loop's clock."""
    took: float = 0.0
    """Seconds that it took to answer."""
    every: float = 0.0
    """Seconds until the next."""
    seen: Mapping[Key, Seen] = field(default_factory=dict[Key, Seen])
    totals: Totals = field(default_factory=Totals)
    deadlocks: tuple[Deadlock, ...] = ()
    error: str = ""
    """Why there was no answer this time: then all of this is old."""
    closed: bool = False
    """Whether the client is not open: then there is nothing to look at."""
    rendered: dict[object, bytes] = field(default_factory=dict[object, bytes])
    """What was made of it, for the next who wants the same."""

    @property
    def is_one(self) -> bool:
        """Whether anybody has looked at all."""
        return bool(self.every or self.error)


async def seen(statuses: Iterable[Status]) -> dict[Key, Seen]:
    """Each of them, with its numbers."""
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
    for waiter in status.waiters:  # not the first alone: a later one may have a higher priority
        longest = max(longest, status.now - waiter.since)
        dead += not waiter.alive
    return Seen(status, held, longest, dead)


def totals(locks: Iterable[Seen]) -> Totals:
    """Of all of them."""
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
    """Those of them whose waiters all still wait."""
    return tuple(each for each in deadlocks if _is_still(each, locks))


def _is_still(deadlock: Deadlock, locks: Mapping[Key, Seen]) -> bool:
    for blocked in deadlock.circle:
        lock = locks.get((blocked.kind, blocked.name))
        who = (blocked.waiter.client, blocked.waiter.seq)
        if lock is None or who not in {(each.client, each.seq) for each in lock.status.waiters}:
            return False
    return True
