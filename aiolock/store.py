"""What the author of a store reads: the protocol, its messages and their invariants.

A store keeps, for each name, the *holders* (grants, each with the end of its lease), the *queue*
(waiters, each with a ticket) and the last *fence*. Each operation below is one atomic step at the
store, and each is idempotent: carried out twice, it leaves and answers what it does once.

Times on the wire are whole numbers: leases in milliseconds, the store's clock in microseconds.
Only the store's clock decides who holds; a client only ever subtracts two of its readings.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol, runtime_checkable

CLAIM = 10_000
"""The longest first lease of a pushed grant, in ms: what one stuck waiter costs the others."""


class WaiterId(NamedTuple):
    """What a store must know of a waiter, written into its id as ``<mode>:<client>:<seq>``.

    The mode is ``x`` (exclusive), then ``b`` where pushes cannot be counted (so that nobody takes
    a count of 0 for dead), then ``f`` where the lease is not renewed (so that its end does not
    mean that its client is stuck), then ``o`` where it wants something done that is done once
    (see `Store.finish`), then the claim in ms, then the `terms` on which its grant ends.
    """

    blind: bool
    fixed: bool
    claim: int
    client: str
    seq: int
    terms: str = ""
    """For how long nobody enters after it, however it ends: see `opens`."""
    once: bool = False

    def __str__(self) -> str:
        flags = "b" * self.blind + "f" * self.fixed + "o" * self.once
        return f"x{flags}{self.claim}{self.terms}:{self.client}:{self.seq}"

    @classmethod
    def parse(cls, text: str) -> WaiterId:
        """The waiter of this id."""
        found = _WAITER.fullmatch(text)
        if found is None:
            raise ValueError(f"not the id of a waiter: {text!r}")
        blind, fixed, once, claim, terms, client, seq = found.groups()
        return cls(
            bool(blind), bool(fixed), int(claim), client, int(seq), terms=terms, once=bool(once)
        )

    def opens(self, granted: int, lost: int | None) -> int:
        """When somebody may enter after its grant, in ms of the store's clock; 0 for at once.

        The grant was made at ``granted``, and lost, where it was, at ``lost``. Each of the terms
        is a letter and a number of ms: ``+`` so long after a loss, ``~`` so long after the grant,
        ``@`` until the end of that period, of so many ms since 1970, in which it was granted.
        """
        opens = 0
        for kind, number in _TERM.findall(self.terms):
            ms = int(number)
            if kind == "+":
                opens = max(opens, 0 if lost is None else lost + ms)
            else:
                opens = max(opens, granted + ms if kind == "~" else (granted // ms + 1) * ms)
        return opens


_TERM: Final = re.compile(r"([+~@])(\d+)")
_WAITER: Final = re.compile(r"x(b?)(f?)(o?)(\d+)((?:[+~@]\d+)*):([^:]+):(\d+)")

NOBODY = "-"
"""The client that holds a lock which is closed: its grant ends like any other, but is nobody's."""


class Granted(NamedTuple):
    """The lock is the waiter's: for ``lease`` ms from ``now`` (µs, the store's clock) on.

    ``displaced``: it asked with a ticket, but stood in the queue no more. What took it out may
    have taken out its client's other waiters for this name.
    """

    fence: int
    lease: int
    now: int
    displaced: bool = False


class Queued(NamedTuple):
    """The waiter stands in the queue; ``place`` 1 is next; ``until`` the first lease ends, ms.

    ``displaced`` is as in `Granted`.
    """

    ticket: int
    place: int
    until: int
    now: int
    displaced: bool = False


class Busy(NamedTuple):
    """The lock is taken and the waiter did not want to wait; ``until`` the first lease ends, ms."""

    until: int


class Full(NamedTuple):
    """``waiters`` stand in the queue, which is as many as were allowed."""

    waiters: int


class Done(NamedTuple):
    """What the waiter wants done is done, and will be remembered for ``until`` ms."""

    until: int


Answer = Granted | Queued | Busy | Full | Done

WAS_ABSENT, WAS_HOLDER, WAS_QUEUED, WAS_UNKNOWN = 0, 1, 2, 3
"""What `Store.release` found the waiter to be.

`WAS_UNKNOWN`: absent, but the release had been sent before and its reply was lost, so that may
have been its own doing.
"""


class Renewal(NamedTuple):
    """One line of a `Store.renew`; a ttl of 0 asks only whether the grant still holds."""

    name: str
    waiter: str
    fence: int
    ttl: int


@dataclass(frozen=True, slots=True)
class Party:
    """One holder or waiter, as `Lock.status` shows it."""

    client: str
    """The client's id: 96 random bits."""
    host: str
    """The machine the client runs on; empty where the store has forgotten."""
    pid: int
    """The client's process; 0 where the store has forgotten."""
    since: float
    """When it was granted, or began to wait: Unix time in seconds, by the store's clock."""
    place: int
    """0 for a holder; 1 for the waiter that is next, and so on."""
    fence: int = 0
    """A holder's fencing token; 0 for a waiter."""
    remaining: float = 0.0
    """Seconds until a holder's lease ends if nobody renews it; 0 for a waiter."""


@dataclass(frozen=True, slots=True)
class Status:
    """Who holds a lock and who waits for it, in order, at one moment."""

    name: str
    holders: tuple[Party, ...]
    waiters: tuple[Party, ...]
    closed: float = 0.0
    """For how many seconds nobody may enter though nobody holds it: ``min_hold``, ``lock_delay``,
    or the rest of a period."""


class Inbox(Protocol):
    """Where a store delivers what comes unasked: called in the client's loop, never awaited."""

    def granted(self, name: str, waiter: str, fence: int, lease: int, now: int) -> None:
        """The lock was handed to this waiter, at ``now`` (µs, store), for ``lease`` ms."""

    def lost(self, name: str, waiter: str, fence: int, reason: str) -> None:
        """This grant was taken away (``expired`` or ``broken``).

        Where it had expired, the client's waiters for ``name`` have left the queue as well.
        """

    def done(self, name: str) -> None:
        """What those who wait for ``name`` wanted done once is done; they have left the queue."""

    def requested(self, name: str, waiter: str, fence: int) -> None:
        """Somebody asks whoever has this grant to let go, when it can."""

    def reconnected(self) -> None:
        """Pushes may have been missed: whoever waits must ask again."""


@runtime_checkable
class Store(Protocol):
    """A place to keep locks.

    The seven operations are *started by the call* and return a future of the running loop: the
    command is under way whether or not anybody awaits it, and commands about one waiter are
    carried out in the order in which they were called. A future's exception is a `StoreError`.

    Whoever cancels the future of an `acquire` calls `release` next, so the store may then drop
    the command as long as it keeps that order. Every other command is carried out whatever
    becomes of its future. No future stays open for ever: a store gives up in 9.5 seconds at most.
    """

    async def open(self, client: str, inbox: Inbox) -> bool:
        """Connect, and listen for what comes for ``client``; `StoreError` when it cannot.

        Returns whether the store can count who listens (see `WaiterId`).
        """
        ...

    async def aclose(self) -> None:
        """Wait for what is under way, then disconnect. Idempotent; raises nothing."""
        ...

    def acquire(
        self, name: str, waiter: str, ttl: int, *, ticket: int, wait: bool, max_waiters: int
    ) -> asyncio.Future[Answer]:
        """Take the lock for ``ttl`` ms if nobody holds it or waits for it, else queue.

        ``ticket`` is the waiter's old place, 0 for a newcomer; ``max_waiters`` 0 is no limit. A
        waiter that is a holder already gets its grant again, one that is queued its place.
        """
        ...

    def release(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        """Remove the waiter from the holders or the queue, and hand the lock on if it held it.

        With a ``fence`` it speaks of that grant alone; with 0 of whatever the waiter is now.
        Answers one of `WAS_ABSENT`, `WAS_HOLDER`, `WAS_QUEUED` and `WAS_UNKNOWN`.
        """
        ...

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        """For each: still a holder, and then its lease ends ``ttl`` ms from now."""
        ...

    def status(self, name: str) -> asyncio.Future[Status]:
        """Who holds the lock and who waits for it; changes nothing."""
        ...

    def finish(self, name: str, waiter: str, fence: int, keep: int) -> asyncio.Future[int]:
        """End this grant: what it was for is done, which is remembered for ``keep`` ms.

        Every waiter that wants it done once (``o``) leaves the queue, its client is told, and
        whoever asks later gets `Done`. Answers as `release`: `WAS_HOLDER`, also for a second time.
        """
        ...

    def request(self, name: str) -> asyncio.Future[int]:
        """Ask who holds the lock to let go, when they can; how many were told. Changes nothing."""
        ...

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """Take the lock from these grants, tell them, hand it on; how many of them held it."""
        ...
