"""What an observer is told: of acquisitions, of leases, of the link to the store, of deadlocks.

`aiolock.observe` has those that come with aiolock: a log, which is on by default, metrics for
Prometheus, and spans for OpenTelemetry. Of your own is whatever inherits from `Observer`::

    class Losses(aiolock.Observer):
        def lost(self, request, *, fence, held, reason, why, body):
            count(request.family)


    client = aiolock.connect(url, observer=Losses())
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from aiolock.store import Party, plain

GaveUp = Literal["busy", "timeout", "cancelled", "full", "done", "store", "deadlock", "closed"]
"""Why somebody did not get it: it was only tried, and not free; its time was over; its task was
cancelled; as many waited as may; what was to be done once is done; the store did not say, or
refused; it would have waited for itself; its client was closed."""

Loss = Literal["expired", "refused", "broken", "max_hold", "closed", "other"]
"""How a lease was lost: it ended before a renewal was confirmed; the store does not know it any
more; somebody broke it; it was held for as long as ``max_hold`` allows; its client was closed; or
in a way of which only a later version knows."""

LostBody = Literal["cancelled", "goes on", "none"]
"""What becomes of the body of a lost lease: it is cancelled; or it is not, for its lock has
``on_lost="signal"``; or there is none, for the lease was acquired without ``async with``, or has
been released."""

Link = Literal["up", "down", "closed"]
"""What has become of the connections to the store. Closed, they are neither up nor down."""


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One acquisition, from the asking to the release: all that is told of it names the same."""

    kind: str
    """``lock``, ``semaphore``, ``once``…: one of `LockClient.KINDS`."""
    name: str
    """Of the lock. There may be millions of them: no label of a metric."""
    family: str
    """What such locks have in common: what `LockClient.lock` was given as ``family``, or the
    template of `LockClient.locked`, or the name up to its first colon, ``*`` for its digits."""
    client: str
    """The client's id."""
    seq: int
    """Its number among those of its client."""
    label: str
    """What `Lock.acquire` was given as ``label``, or the name of the task."""
    shared: bool = False
    """Whether it shares: a reader, or permits of a semaphore."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """One of those who wait for each other."""

    kind: str
    name: str
    """What it waits for."""
    waiter: Party
    """Who waits."""
    behind: Party
    """The next in the circle, which is in its way: it holds that, or waits for it before this."""


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Tasks, of whatever processes, that wait for each other: a circle, one line for each.

    None of them goes on until one gives up: by its timeout, by being cancelled, or because
    somebody breaks one of the locks that it holds.
    """

    circle: tuple[Blocked, ...]
    """Each is blocked by the next one, and the last by the first."""

    def __str__(self) -> str:
        lines = [f"{len(self.circle)} tasks wait for each other, and none of them can go on:"]
        if len(self.circle) == 1:
            lines = ["a task waits for itself, and can never go on:"]
        for each in self.circle:
            has = _has(each.behind)
            since = f"{datetime.fromtimestamp(each.waiter.since, UTC):%H:%M:%S} UTC"
            lines.append(
                f"  {who(each.waiter)} has waited since {since} for the {each.kind}"
                f" {each.name!r}: {who(each.behind)} {has}"
            )
        names = sorted({repr(each.name) for each in self.circle})
        if len(names) > 1:
            lines.append(
                f"Take {', '.join(names)} in the same order everywhere (multilock() does)."
            )
        else:
            lines.append(f"Release {names[0]} before asking for it again.")
        return "\n".join(lines)


def _has(party: Party) -> str:
    """Why it is in the way of somebody."""
    if party.place:
        return "waits for it before"
    if party.permits:  # who waits needs one of any of those that have them
        permits = f"{party.permits} permit" + "s" * (party.permits > 1)
        return f"holds {permits} of it, and nobody else will release enough"
    return "reads it" if party.shared else "holds it"


def who(party: Party) -> str:
    """A holder or waiter, for people: what it calls itself, and where it runs."""
    where = f"{plain(party.host)}:{party.pid}" if party.host else f"client {party.client}"
    return f"{party.label!r} ({where})" if party.label else f"{where}#{party.seq}"


class Observer:
    """Is told what happens, in the event loop, at once; does nothing: override what you want.

    What is not overridden costs nothing. The methods are called between the steps of an
    acquisition, so they must be short, and must not wait. What they raise is logged, and changes
    nothing. An observer may serve several clients. Times are seconds.
    """

    slow_wait: float | None = None
    """Seconds of waiting after which `waits_long` is called; None for never."""
    slow_hold: float | None = None
    """Seconds of holding after which `holds_long` is called; None for never."""

    def waiting(self, request: LockRequest) -> None:
        """It was not free, so this one stands in the queue now."""

    def acquired(
        self,
        request: LockRequest,
        *,
        fence: int,
        waited: float,
        handed_on_by: LockRequest | None,
    ) -> None:
        """It is ours.

        ``handed_on_by``: who had it directly before, where that was a task of the same client, and
        is known for sure.
        """

    def gave_up(self, request: LockRequest, *, waited: float, why: GaveUp) -> None:
        """It is not ours, and is not waited for any more."""

    def released(self, request: LockRequest, *, fence: int, held: float) -> None:
        """It was given back; the store is being told."""

    def lost(
        self,
        request: LockRequest,
        *,
        fence: int,
        held: float,
        reason: Loss,
        why: str,
        body: LostBody,
    ) -> None:
        """It was taken from us, or its lease has ended: ``body`` says what becomes of its body.

        ``why`` says the same as ``reason``, for people. Where only the answer to the release tells
        that it had been lost, this comes after `released`.
        """

    def waits_long(
        self, request: LockRequest, *, waited: float, holders: tuple[Party, ...], others: int
    ) -> None:
        """It has waited for longer than `slow_wait`, and ``holders`` have it.

        Told once a minute for each name, of the one that has waited longest; ``others`` of this
        client have waited too long as well.
        """

    def holds_long(self, request: LockRequest, *, fence: int, held: float) -> None:
        """It has held for longer than `slow_hold`: told once."""

    def link(self, state: Link, error: Exception | None) -> None:
        """The connections to the store broke, with an error; or are there again; or the client was
        closed while they were broken. Nothing is told of the first opening, nor of other closings.
        """

    def deadlock(self, deadlock: Deadlock) -> None:
        """Tasks wait for each other, one of this client among them: told once of each.

        Whoever closed the circle is told for sure. Who had waited before, and asked the store when
        there was none yet, may not be.
        """
