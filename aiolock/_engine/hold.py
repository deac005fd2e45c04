"""One grant as the client keeps it: its owner, its deadline, and what is known of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Protocol, TypeVar
from weakref import ref

from aiolock._engine.grant import Grant, lasts
from aiolock._engine.policy import Policy
from aiolock.observer import LockRequest
from aiolock.store import WaiterId

Item = TypeVar("Item")

Owner = tuple[asyncio.Task[Any] | None, str]
"""The task that called `acquire`, and the key (see `Policy.key`) that it asked for."""


class LeaseState(StrEnum):
    """The state of a lease, as far as it is known here."""

    HELD = "held"
    AT_RISK = "at_risk"
    """A renewal has no answer yet: still ours, but lost at its deadline unless one succeeds."""
    LOST = "lost"
    RELEASED = "released"

    @property
    def is_alive(self) -> bool:
        """Whether the lock is ours, as far as it is known here: `held` or `at_risk`."""
        return self in ALIVE


ALIVE: Final = (LeaseState.HELD, LeaseState.AT_RISK)


class LossReason(Enum):
    """Why a lease was lost; the value is the text that its user is told."""

    EXPIRED = "its lease ended before the store confirmed a renewal"
    REFUSED = "the store does not know it any more: it ended, was broken, or the store was reset"
    BROKEN = "somebody broke it with break_()"
    MAX_HOLD = "it was held as long as max_hold allows"
    CLOSED = "its client was closed"

    @property
    def may_be_at_store(self) -> bool:
        """Whether the client ended it by its own clock or will, so the store may still have it."""
        return self in _OURS


_OURS: Final = (LossReason.EXPIRED, LossReason.MAX_HOLD, LossReason.CLOSED)


class Body(Protocol):
    """The body of an ``async with`` that relies on a hold."""

    task: asyncio.Task[Any] | None

    def cancel(self) -> None:
        """The hold is lost: end the body, unless it only wants to be told."""
        ...


class Handle(Protocol):
    """A lease that refers to a hold; each acquisition of a re-entrant lock gives one more."""

    _shares: bool
    _left_behind: bool
    """It was entered, and nobody can leave its body."""

    async def release(self) -> bool:
        """Release it."""
        ...


class Hold:
    """One grant and what becomes of it. One lease refers to it, several for a re-entrant lock."""

    # Defaults on the class: most holds are released before any of these is written.
    state = LeaseState.HELD
    reason: LossReason | str = ""
    """Why it was lost; a text is a reason that only a later version's store knows."""
    asking = 0
    """The number of the watchdog's renewal that is not answered; 0 if there is none."""
    sent = 0
    """How many renewals were sent."""
    confirmed = 0
    """The number of the last of them that the store has confirmed."""
    shortest = 0
    """The shortest ttl, in ms, of those sent since all were confirmed; 0 if none was."""
    copies: tuple[int, float] | None = None
    """Copies of renewals may still be carried out, with this ttl at least, until that time."""
    limits: tuple[tuple[int, float], ...] = ()
    """While an extension is not confirmed: the numbers of the renewals since, and which deadlines
    they give; without those that give no less than a later one. Also, if the store has shortened
    it: the number of the next renewal, and the deadline that no earlier one moves."""
    slot = -1
    lost: asyncio.Event | None = None
    wanted = False
    """Another client has asked for its release."""
    requested: asyncio.Event | None = None
    """Set when `wanted` is; made when it is first looked at."""
    bodies: tuple[ref[Body], ...] = ()
    """The bodies that rely on it. Each belongs to its exit, so it ends if nobody can leave it."""
    leases: tuple[Handle, ...] = ()
    """The leases that the owner can still reach by name, with `Lock.release`."""
    speaking = 0
    """How many leases that refer to it have not ended."""
    since = 0.0
    """When the watchdog began to keep it."""
    label = ""
    """The label that its user gave it."""
    request: LockRequest | None = None
    """The acquisition as observers know it; None before they were told of it."""
    where = ""
    """The line that acquired it, if that was looked up."""
    began = 0.0
    """Without renewal: the local time from which its lease counts, not later than the grant."""
    released: asyncio.Future[int] | None = None
    """The store's answer to its release."""
    handed_off = False
    """Its release was not sent to the store; a report follows instead (see `LocalHandoff`)."""
    finishes = False
    """It is released by `Store.finish`."""
    shared = False
    """It was downgraded. (A lock that was shared from the first has a policy that says so.)"""
    downgraded: asyncio.Future[int] | None = None
    """The store's answer to its downgrading."""

    def __init__(
        self,
        policy: Policy,
        owner: Owner,
        waiter: WaiterId,
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
        """The last: whether its present lease is a claim, which must be confirmed once."""
        self.ends = ends
        """When ``max_hold`` has passed, by the local clock; None for no such limit."""
        if not policy.renew:
            self.began = self.deadline - lasts(lease)
        self.crossed = crossed
        """See `Acquisition`."""

    @property
    def inside(self) -> list[Body]:
        """The bodies that somebody can leave."""
        return [body for each in self.bodies if (body := each()) is not None]

    def sends(self, ttl: int, now: float, *, extends: bool = False) -> None:
        """A renewal is sent, for ``ttl`` ms.

        While an extension is not answered, another renewal may give less, and be carried out after
        it: then an answer to the first does not say how long the lease is now.
        """
        self.sent += 1
        self.shortest = min(self.shortest or ttl, ttl)
        if extends or self.limits:
            deadline = now + lasts(ttl)
            before = [limit for limit in self.limits if limit[1] < deadline]
            self.limits = (*before, (self.sent, deadline))

    def shorten(self, until: float) -> None:
        """It is only certain until then, and no renewal that was sent already changes that."""
        self.deadline = min(self.deadline, until)
        before = [limit for limit in self.limits if limit[1] < until]
        self.limits = (*before, (self.sent + 1, until))

    def may_come_twice(self, until: float) -> None:
        """A connection broke: what has no answer is sent again, and copies come until then."""
        if self.sent > self.confirmed:
            before = self.copies[0] if self.copies is not None else self.shortest
            self.copies = min(before, self.shortest), until

    def confirms(self, number: int, sent: float, ttl: int) -> bool:
        """The store has carried out the renewal of this number, which was sent at ``sent``.

        False if it has confirmed a later one already.
        """
        if number < self.confirmed:
            return False
        self.confirmed = number
        self.unconfirmed = False
        self.deadline = sent + lasts(ttl)
        if self.copies is not None:
            shortest, until = self.copies
            if sent >= until:
                self.copies = None
            elif shortest < ttl:
                self.deadline = sent + lasts(shortest)
                # Confirmed again once no copies come, also if it is not renewed otherwise.
                self.unconfirmed = True
        if self.limits:
            self.limits = tuple([limit for limit in self.limits if limit[0] > number])
            self.deadline = min([self.deadline, *(deadline for _, deadline in self.limits)])
        if number == self.sent:
            self.shortest = 0
        return True


Owned = Mapping[asyncio.Task[Any] | None, Mapping[str, Hold]]
"""The holds of each task, by key."""


def without(items: tuple[Item, ...], item: object) -> tuple[Item, ...]:
    """The items without this one."""
    if len(items) == 1 and items[0] is item:
        return ()
    return tuple(each for each in items if each is not item)
