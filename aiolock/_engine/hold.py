"""One grant as the client keeps it: who holds it, until when, and what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Protocol, TypeVar

from aiolock._engine.grant import Grant, lasts
from aiolock._engine.policy import Policy
from aiolock.observer import LockRequest
from aiolock.store import Waiter

Item = TypeVar("Item")

Owner = tuple[asyncio.Task[Any] | None, str]
"""The task that called `acquire`, and the key (see `Policy.key`) that it asked for."""


class LeaseState(StrEnum):
    """What is known of a lease."""

    HELD = "held"
    AT_RISK = "at_risk"
    """A renewal is not answered: still ours, but not for long unless one is."""
    LOST = "lost"
    RELEASED = "released"


ALIVE: Final = (LeaseState.HELD, LeaseState.AT_RISK)


class LossReason(Enum):
    """Why a lease was lost; the value is what its user is told."""

    EXPIRED = "its lease ended before the store confirmed a renewal"
    REFUSED = "the store does not know it any more: it ended, was broken, or the store was reset"
    BROKEN = "somebody broke it with break_()"
    MAX_HOLD = "it was held as long as max_hold allows"
    CLOSED = "its client was closed"

    @property
    def may_be_at_store(self) -> bool:
        """Whether it was lost by our own clock or will, and so may still be in the others' way."""
        return self in _OURS


_OURS: Final = (LossReason.EXPIRED, LossReason.MAX_HOLD, LossReason.CLOSED)


class Body(Protocol):
    """The body of an ``async with`` that relies on a hold."""

    task: asyncio.Task[Any] | None

    def cancel(self) -> None:
        """The hold is lost: end the body, unless it only wants to be told."""
        ...


class Handle(Protocol):
    """A lease that speaks for a hold; each acquisition of a re-entrant lock gives one more."""

    _shares: bool

    async def release(self) -> bool:
        """Give it back."""
        ...


class Hold:
    """One grant and what becomes of it. A lease, or several of a re-entrant lock, speak for it."""

    # Defaults on the class: most holds are released before any of these is written to.
    state = LeaseState.HELD
    reason: LossReason | str = ""
    """Why it was lost; a text is what the store of a later version says."""
    asking = False
    ceiling: tuple[float, float] | None = None
    """A deadline that answers to older questions cannot raise, and when that was asked for."""
    slot = -1
    lost: asyncio.Event | None = None
    wanted = False
    """Somebody has asked for it."""
    requested: asyncio.Event | None = None
    """Set when it is wanted, once anybody has looked at it."""
    bodies: tuple[Body, ...] = ()
    leases: tuple[Handle, ...] = ()
    """Those that the owner can still reach by name, with `Lock.release`."""
    speaking = 0
    """How many leases speak for it that have not ended."""
    since = 0.0
    """When the watchdog began to keep it."""
    label = ""
    """What its user calls it."""
    request: LockRequest | None = None
    """What observers know it as, once one was told of it."""
    where = ""
    """The line that acquired it, where that was looked up."""
    alarm: asyncio.TimerHandle | None = None
    began = 0.0
    """Where it is not renewed: from when on its lease is reckoned, not later than the grant."""
    released: asyncio.Future[int] | None = None
    """What the store answers, or answered, to its release."""
    heard = False
    """Somebody awaits that answer."""
    passed = False
    """Its release was not said to the store, but is to be reported (see `Runs`)."""
    finishes = False
    """It is released by `Store.finish`."""
    shared = False
    """It was downgraded; what was shared from the first has a policy that says so."""
    downgraded: asyncio.Future[int] | None = None
    """What the store answers, or answered, to its downgrading."""

    def __init__(
        self,
        policy: Policy,
        owner: Owner,
        waiter: Waiter,
        grant: Grant,
        *,
        ends: float | None,
        crossed: bool,
    ) -> None:
        self.policy = policy
        self.owner = owner
        self.waiter = waiter
        self.ttl = policy.lease
        self.fence, lease, self.deadline, self.unconfirmed = grant
        """The last: its present lease is a claim, which is to be confirmed once."""
        self.ends = ends
        """When ``max_hold`` is over."""
        if not policy.renew:
            self.began = self.deadline - lasts(lease)
        self.crossed = crossed
        """See `Attempt`."""


Owned = Mapping[asyncio.Task[Any] | None, Mapping[str, Hold]]
"""What each task holds, by key."""


def without(items: tuple[Item, ...], item: object) -> tuple[Item, ...]:
    """What is left when this one is taken out."""
    if len(items) == 1 and items[0] is item:
        return ()
    return tuple(each for each in items if each is not item)
