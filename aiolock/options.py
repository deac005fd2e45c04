"""The types of arguments and options, for your functions that forward them.

`LockClient.lock` spells all options out, with their defaults and what they mean. A function that
takes some of them has ``**options: Unpack[...]`` of a class below, which type checkers resolve by
name.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final, Literal, TypedDict

__all__ = [
    "DEFAULT",
    "Default",
    "ElectionOptions",
    "LeaseOptions",
    "LockOptions",
    "MultiLockOptions",
    "OnLost",
    "RWLockOptions",
    "Seconds",
    "SemaphoreOptions",
]

Seconds = float | timedelta
"""A duration: a number of seconds, or a `datetime.timedelta`."""

OnLost = Literal["cancel", "signal"]
"""The effect of a loss: the body of ``async with`` is cancelled, or only `Lease.lost` is set."""


class Default:
    """The type of `DEFAULT`."""

    def __repr__(self) -> str:
        return "the lock's own"


DEFAULT: Final = Default()
"""The lock's own timeout: what `Lock.acquire` uses when none is given."""


class LeaseOptions(TypedDict, total=False):
    """Options of all kinds that are held by a lease."""

    ttl: Seconds | None
    """Seconds for which the store keeps a lease that nobody renews; the client's, if None."""
    timeout: Seconds | None
    """Seconds that `Lock.acquire` waits at most; None waits as long as it takes."""
    max_waiters: int | None
    """`QueueFull` at once when this many wait already."""
    max_hold: Seconds | None
    """Seconds after which the lease is no longer renewed, and so is lost."""
    on_lost: OnLost
    """``"cancel"`` cancels the body of ``async with``; ``"signal"`` only sets `Lease.lost`."""
    family: str | None
    """A common name of such locks, for metrics; the name up to its first colon, if None."""


class ElectionOptions(LeaseOptions, total=False):
    """Options of an election."""

    lock_delay: Seconds | None
    """Seconds without a grant after a holder has *lost* its lease."""


class MultiLockOptions(LeaseOptions, total=False):
    """Options of several locks as one."""

    renew: bool
    """Whether the lease is renewed while it is held."""


class SemaphoreOptions(MultiLockOptions, total=False):
    """Options of a semaphore."""

    min_hold: Seconds | None
    """Seconds from a grant until its permits are granted again."""
    lock_delay: Seconds | None
    """Seconds until permits are granted again after their holder has *lost* them."""


class RWLockOptions(SemaphoreOptions, total=False):
    """Options of a readers-writer lock."""

    reentrant: bool
    """Whether the task that holds the lock may acquire it again."""


class LockOptions(RWLockOptions, total=False):
    """Options of a lock: all options."""

    confirm: bool
    """Whether the exit of the body waits until the store has confirmed the release."""
    priority: int
    """From -9 to 9: waiters with a lower number come before those with a higher one."""
