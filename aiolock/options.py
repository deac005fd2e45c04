"""The types of arguments and options, for your functions that forward them.

`LockClient.lock` spells all options out, with their defaults and what they mean. A function that
takes some of them has ``**options: Unpack[...]`` of a class below, which type checkers resolve by
name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, Required, TypedDict

from aiolock.observer import Observer

__all__ = [
    "DEFAULT",
    "BarrierOptions",
    "ConnectOptions",
    "Default",
    "ElectionOptions",
    "EventOptions",
    "GroupOptions",
    "LatchOptions",
    "LeaseOptions",
    "LockOptions",
    "Mode",
    "MultiLockOptions",
    "OnLost",
    "OnMembershipLost",
    "OnceOptions",
    "PathLockOptions",
    "PeriodicOptions",
    "RWLockOptions",
    "RateLimitOptions",
    "Seconds",
    "SemaphoreOptions",
]

Seconds = float | timedelta
"""A duration: a number of seconds, or a `datetime.timedelta`."""

Mode = Literal["exclusive", "shared"]
"""Whether a node of a tree is taken alone, or beside others that share it."""

OnLost = Literal["cancel", "signal"]
"""The effect of a loss: the body of ``async with`` is cancelled, or only `Lease.lost` is set."""

OnMembershipLost = Literal["cancel", "signal", "rejoin"]
"""The effect of the loss of a membership: as `OnLost`, or the client joins the group again."""


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


class _NodeOptions(MultiLockOptions, total=False):
    """Those of a path lock that a lock has, too."""

    reentrant: bool
    """Whether the task that holds the lock may acquire it again."""


class PathLockOptions(_NodeOptions, total=False):
    """Options of a node of a tree, with all that is below it."""

    mode: Mode
    """``"exclusive"``, or ``"shared"`` with all others that share the node, or what is below it."""


class _ShareOptions(TypedDict, total=False):
    """Options of what tenants share fairly."""

    share: str | None
    """Who waits, as a tenant: waiters take turns by their shares."""
    weight: float
    """The part of that share, beside others: from 0.01 to 100."""


class _DelayOptions(MultiLockOptions, total=False):
    """Options of what is closed for a while after a grant."""

    min_hold: Seconds | None
    """Seconds from a grant until the next grant; of a semaphore, of these permits."""
    lock_delay: Seconds | None
    """Seconds without a grant after a holder has *lost* its lease; of a semaphore, of its permits.
    """


class SemaphoreOptions(_ShareOptions, _DelayOptions, total=False):
    """Options of a semaphore."""


class RWLockOptions(_DelayOptions, total=False):
    """Options of a readers-writer lock."""

    reentrant: bool
    """Whether the task that holds the lock may acquire it again."""


class LockOptions(_ShareOptions, RWLockOptions, total=False):
    """Options of a lock: all options."""

    confirm: bool
    """Whether the exit of the body waits until the store has confirmed the release."""
    priority: int
    """From -9 to 9: waiters with a lower number come before those with a higher one."""


class BarrierOptions(TypedDict, total=False):
    """Options of a barrier."""

    timeout: Seconds | None
    """Seconds that a task waits at most; None waits as long as it takes."""
    max_waiters: int | None
    """`QueueFull` at once when this many wait already."""


class EventOptions(BarrierOptions, total=False):
    """Options of an event."""

    remember: Seconds
    """Seconds for which the store remembers it after it was last set; at least a minute."""


class LatchOptions(BarrierOptions, total=False):
    """Options of a latch."""

    remember: Seconds
    """Seconds for which the store remembers it after the last count; at least a minute."""


class GroupOptions(TypedDict, total=False):
    """Options of a group."""

    data: Mapping[str, Any] | None
    """What the member says about itself: a dict that JSON can hold, of 4096 bytes at most."""
    ttl: Seconds | None
    """Seconds after which a member that is stopped or cut off is gone; 10, if None."""
    timeout: Seconds | None
    """Seconds that joining may take; None waits as long as it takes."""
    on_lost: OnMembershipLost
    """The effect of the loss of the membership."""


class RateLimitOptions(BarrierOptions, total=False):
    """Options of a rate limit."""

    per: Required[Seconds]
    """The seconds in which ``limit`` tokens come."""
    burst: int | None
    """The most tokens at once, after a pause; ``limit``, if None."""
    priority: int
    """From -9 to 9: waiters with a lower number come before those with a higher one."""
    share: str | None
    """Who waits, as a tenant: waiters take turns by their shares."""
    weight: float
    """The part of that share, beside others: from 0.01 to 100."""
    family: str | None
    """A common name of such rate limits, for metrics; the name up to its first colon, if None."""


class PeriodicOptions(TypedDict, total=False):
    """Options of a job that runs once in each period."""

    every: Required[Seconds]
    """The length of a period in seconds."""
    min_hold: Seconds | None
    """Seconds from the beginning of a run until the next run."""
    max_hold: Seconds | None
    """Seconds after which a run is cancelled."""
    ttl: Seconds | None
    """Seconds after which the death of an instance in its run is noticed."""


class OnceOptions(TypedDict, total=False):
    """Options of work that is done once."""

    remember: Required[Seconds]
    """Seconds for which the store remembers that the work is done."""
    ttl: Seconds | None
    """Seconds after which the death of a client that does the work is noticed."""
    wait: bool
    """Whether callers that come while the work is being done wait for the outcome."""
    timeout: Seconds | None
    """Seconds that they wait at most; None waits as long as it takes."""


class ConnectOptions(TypedDict, total=False):
    """Options of a client: see `connect`."""

    prefix: str
    """What stands before every key."""
    ttl: Seconds | None
    """Seconds: the ttl of locks that are given none; None is 30, or as many as the store keeps."""
    label: str | None
    """What this program is, for people."""
    observer: Observer | Sequence[Observer]
    """Told what happens."""
    deadlock_after: Seconds | None
    """Seconds of waiting after which the client looks for a deadlock; None turns that off."""
    replicas: int | Literal["all"] | None
    """How many replicas of the server must have a grant before its body begins."""
    longest_ttl: Seconds | None
    """For a quorum: seconds of the longest ttl allowed."""
    durable: bool
    """For a quorum: whether its servers forget nothing in a restart."""
    answer_timeout: Seconds
    """Seconds for the store's answer to an acquisition that does not wait for the lock."""
