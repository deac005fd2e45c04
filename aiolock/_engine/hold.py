"""One grant that this client keeps: its owner, its deadline, and its renewals.

A hold begins when an acquisition is granted and ends by release or loss. The watchdog renews it; a
`Lease` is the user's view of it. The deadline is the latest local time at which the lease certainly
still exists at the store. It must be right although answers may be lost, and although the store may
carry out a renewal late or twice: see `Hold.confirms`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from enum import Enum, StrEnum
from typing import Any, Final, Protocol, TypeVar
from weakref import ref

from aiolock._engine.grant import Grant
from aiolock._engine.policy import Policy
from aiolock.observer import LockRequest
from aiolock.protocol import WaiterId, lasts

Item = TypeVar("Item")

Owner = tuple[asyncio.Task[Any] | None, str]
"""The task that called `acquire`, and the key (see `Policy.key`) that it asked for."""


class LeaseState(StrEnum):
    """The state of a lease, as far as this client knows."""

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
    """The reason for a loss; the value is the text for the user."""

    EXPIRED = "its lease ended before the store confirmed a renewal"
    REFUSED = "the store does not know it any more: it ended, was broken, or the store was reset"
    BROKEN = "somebody broke it with break_()"
    MAX_HOLD = "it was held as long as max_hold allows"
    CLOSED = "its client was closed"

    @property
    def may_be_at_store(self) -> bool:
        """Whether the client ended it, and not the store, so that the store may still have it."""
        return self in _OURS


_OURS: Final = (LossReason.EXPIRED, LossReason.MAX_HOLD, LossReason.CLOSED)


class Body(Protocol):
    """The body of an ``async with`` that relies on a hold."""

    task: asyncio.Task[Any] | None

    def cancel(self) -> None:
        """The hold is lost: cancel the body, unless ``on_lost`` is "signal"."""
        ...


class Handle(Protocol):
    """A lease that refers to a hold; each acquisition of a re-entrant lock gives one more."""

    _shares: bool
    _left_behind: bool
    """It was entered, and its exit was garbage-collected, so nothing can leave its body."""

    async def release(self) -> bool:
        """Release it."""
        ...


class Hold:
    """One grant, to its end. One lease refers to it; several, if the lock is re-entrant."""

    # Defaults on the class, because most holds are released before any of these is written.
    state = LeaseState.HELD
    reason: LossReason | str = ""
    """The reason for its loss; a text if only a later version's store knows that reason."""
    asking = 0
    """The number of the watchdog's renewal that is not answered; 0 if there is none."""
    sent = 0
    """How many renewals were sent."""
    confirmed = 0
    """The number of the last renewal that the store has confirmed."""
    shortest = 0
    """The shortest ttl, in ms, of the renewals sent since all were confirmed; 0 if none was."""
    copies: tuple[int, float] | None = None
    """A ttl in ms and a time: until then, the store may carry out copies of renewals, with this ttl
    or more."""
    limits: tuple[tuple[int, float], ...] = ()
    """Pairs of a renewal's number and a deadline that holds until that renewal is confirmed.
    There is one for each renewal since an extension was sent that is not confirmed, except those
    whose deadline is not earlier than a later one's. If the store has shortened the lease, there is
    one for the next renewal: confirming an earlier one does not move the deadline."""
    slot = -1
    """Its slot of the watchdog's timer wheel; -1 if it has none."""
    lost: asyncio.Event | None = None
    wanted = False
    """Another client has asked for its release."""
    requested: asyncio.Event | None = None
    """Set when `wanted` is; made when it is first read."""
    bodies: tuple[ref[Body], ...] = ()
    """The bodies that rely on it. Weak references: a body belongs to the exit that ends it, and is
    to be collected with it."""
    leases: tuple[Handle, ...] = ()
    """The leases that the owner can release by name, with `Lock.release`."""
    speaking = 0
    """How many leases that refer to it have not ended."""
    since = 0.0
    """When the watchdog began to keep it."""
    label = ""
    """The label that its user gave it."""
    request: LockRequest | None = None
    """The acquisition as passed to observers; None before the first event."""
    where = ""
    """The line that acquired it, if that was looked up."""
    began = 0.0
    """Without renewal: the local time from which its lease counts, not later than the grant."""
    released: asyncio.Future[int] | None = None
    """The store's answer to its release."""
    handed_off = False
    """It was handed off: a report follows instead of a release (see `LocalHandoff`)."""
    finishes = False
    """It is released by `Finish`."""
    shared = False
    """It was downgraded. (A lock that was shared from the first has `Policy.shared`.)"""
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
        """The bodies that can still be left."""
        return [body for each in self.bodies if (body := each()) is not None]

    def sends(self, ttl: int, now: float, *, extends: bool = False) -> None:
        """A renewal is sent, for ``ttl`` ms.

        While an extension is not answered, the store may carry out a shorter renewal after it. Then
        the answer to the extension does not say how long the lease is now.
        """
        self.sent += 1
        self.shortest = min(self.shortest or ttl, ttl)
        if extends or self.limits:
            deadline = now + lasts(ttl)
            before = [limit for limit in self.limits if limit[1] < deadline]
            self.limits = (*before, (self.sent, deadline))

    def shorten(self, until: float) -> None:
        """Its lease is certain until then only; renewals sent before do not change that."""
        self.deadline = min(self.deadline, until)
        before = [limit for limit in self.limits if limit[1] < until]
        self.limits = (*before, (self.sent + 1, until))

    def may_come_twice(self, until: float) -> None:
        """A connection broke: unanswered renewals are sent again; copies may arrive until then."""
        if self.sent > self.confirmed:
            before = self.copies[0] if self.copies is not None else self.shortest
            self.copies = min(before, self.shortest), until

    def confirms(self, number: int, sent: float, ttl: int) -> bool:
        """The store has carried out the renewal of this number, which was sent at ``sent``.

        False if it has confirmed a later one already.
        """
        # Renewals may be answered in another order than they were sent. Counting the deadline from
        # an earlier one would be wrong where a later one was shorter.
        if number < self.confirmed:
            return False
        self.confirmed = number
        self.unconfirmed = False
        self.deadline = sent + lasts(ttl)
        if self.copies is not None:
            shortest, until = self.copies
            if sent >= until:
                self.copies = None  # sent after the last copy, so none can shorten it any more
            elif shortest < ttl:
                self.deadline = sent + lasts(shortest)
                # So it is renewed once more, after the copies, even with renew=False.
                self.unconfirmed = True
        if self.limits:
            self.limits = tuple([limit for limit in self.limits if limit[0] > number])
            self.deadline = min([self.deadline, *(deadline for _, deadline in self.limits)])
        if number == self.sent:
            self.shortest = 0
        return True


Owned = Mapping[asyncio.Task[Any] | None, Mapping[str, Hold]]
"""The holds of each task, by key."""
Holders = Mapping[str, Mapping[asyncio.Task[Any] | None, Hold]]
"""The same holds by key, and then by task."""


def without(items: tuple[Item, ...], item: object) -> tuple[Item, ...]:
    """The items without this one."""
    if len(items) == 1 and items[0] is item:
        return ()
    return tuple(each for each in items if each is not item)
