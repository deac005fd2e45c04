"""One grant as the client keeps it: who holds it, until when, and what is known of it."""

from __future__ import annotations

import asyncio
from enum import StrEnum
from typing import Any, Final, Protocol

from aiolock._policy import Policy

Owner = tuple[asyncio.Task[Any] | None, str]
"""The task that called `acquire`, and the key (see `Policy.key`) that it asked for."""


def lasts(lease: int) -> float:
    """For how many seconds a lease of so many ms is certainly ours, from before it was asked for.

    A hundredth is left for clocks that do not run alike, as in Redlock, and 2 ms for rounding.
    """
    return lease * 0.00099 - 0.002


class LeaseState(StrEnum):
    """What is known of a lease."""

    HELD = "held"
    AT_RISK = "at_risk"
    """A renewal is not answered: still ours, but not for long unless one is."""
    LOST = "lost"
    RELEASED = "released"


ALIVE: Final = (LeaseState.HELD, LeaseState.AT_RISK)


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
    reason = ""
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
    where = ""
    """The line that acquired it, where that was looked up."""
    alarm: asyncio.TimerHandle | None = None
    began = 0.0
    """Where it is not renewed: from when on its lease is reckoned, not later than the grant."""
    released: asyncio.Future[int] | None = None
    """What the store answers, or answered, to its release."""
    heard = False
    """Somebody awaits that answer."""
    shared = False
    """It was downgraded; what was shared from the first has a policy that says so."""
    downgraded: asyncio.Future[int] | None = None
    """What the store answers, or answered, to its downgrading."""

    def __init__(
        self,
        policy: Policy,
        owner: Owner,
        waiter: str,
        *,
        ttl: int,
        fence: int,
        lease: int,
        deadline: float,
        ends: float | None,
        loose: bool,
        claim: bool,
    ) -> None:
        self.policy = policy
        self.owner = owner
        self.waiter = waiter
        self.ttl = ttl
        self.fence = fence
        self.deadline = deadline
        self.ends = ends
        """When ``max_hold`` is over."""
        self.unconfirmed = claim
        """Its present lease is the claim of a pushed grant, which is to be confirmed once."""
        if not policy.renew:
            self.began = deadline - lasts(lease)
        self.loose = loose
        """A question was still under way when it was granted (see `WaitingRoom`)."""
