"""Observers: events of acquisitions and leases, of the link to the store, and of deadlocks.

`aiolock.observe` has the observers that come with aiolock: a log, which is on by default, metrics
for Prometheus, and spans for OpenTelemetry. For one of your own, inherit from `Observer`::

    class Losses(aiolock.Observer):
        def lost(self, request, *, fence, held, reason, why, body):
            count(request.family)


    client = aiolock.connect(url, observer=Losses())
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Literal

from aiolock.protocol import Participant
from aiolock.text import plain

GaveUp = Literal["busy", "timeout", "cancelled", "full", "done", "store", "deadlock", "closed"]
"""Why an acquisition ended without a grant: a try found the lock taken (busy); its timeout passed;
its task was cancelled; ``max_waiters`` waited already (full); the work of a `once` was done; the
store did not answer, or refused; it would have waited for itself; its client was closed."""

Loss = Literal["expired", "refused", "broken", "max_hold", "closed", "other"]
"""How a lease was lost: it ended before a renewal was confirmed; the store no longer knew it
(refused); a client broke it; it was held for as long as ``max_hold`` allows; its client was closed;
or (other) in a way that only a later version knows."""

LostBody = Literal["cancelled", "in a thread", "goes on", "none"]
"""The fate of the body of a lost lease: it is cancelled; or it is not, because it runs in a thread,
which nothing stops (see `aiolock.sync`), or because its lock has ``on_lost="signal"``; or there is
none, for the lease was acquired without ``async with``, or has been released."""

Link = Literal["up", "down", "closed"]
"""The state of the connections to the store: up, down, or closed with the client."""


@dataclass(frozen=True, slots=True)
class LockRequest:
    """One acquisition, from request to release: all events about it have an equal object."""

    kind: str
    """``lock``, ``semaphore``, ``once``…: one of `LockClient.KINDS`."""
    name: str
    """The name of the lock. There may be millions, so it is no label for a metric."""
    family: str
    """A common name of such locks: the ``family`` given to `LockClient.lock`, or the template of
    `LockClient.locked`, or the name up to its first colon, with ``*`` for its digits."""
    client: str
    """The client's id."""
    seq: int
    """The acquisition's number among those of its client."""
    label: str
    """The ``label`` given to `Lock.acquire`, or the name of the task."""
    shared: bool = False
    """Whether it shares the lock: a reader, or permits of a semaphore."""
    share: str = ""
    """The ``share`` given to `LockClient.lock`; empty for none. There may be many."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """One waiter in a deadlock, and the holder or waiter that blocks it."""

    kind: str
    name: str
    """The name of the lock that it waits for."""
    waiter: Participant
    """The blocked waiter."""
    behind: Participant
    """The next in the cycle, which blocks it: it holds the lock, or is before it in the queue."""


@dataclass(frozen=True, slots=True)
class Deadlock:
    """Tasks, possibly of several processes, that wait for each other in a cycle.

    None of them can continue until one gives up: by its timeout, by being cancelled, or because a
    lock that it holds is broken. As a text, a deadlock has one line for each task.
    """

    cycle: tuple[Blocked, ...]
    """Each is blocked by the next one, and the last by the first."""

    def __str__(self) -> str:
        lines = [f"{len(self.cycle)} tasks wait for each other, and none of them can go on:"]
        if len(self.cycle) == 1:
            lines = ["a task waits for itself, and can never go on:"]
        for each in self.cycle:
            has = _has(each.behind)
            since = f"{datetime.fromtimestamp(each.waiter.since, UTC):%H:%M:%S} UTC"
            lines.append(
                f"  {who(each.waiter)} has waited since {since} for the {each.kind}"
                f" {each.name!r}: {who(each.behind)} {has}"
            )
        names = sorted({repr(each.name) for each in self.cycle})
        if len(names) > 1:
            lines.append(
                f"Take {', '.join(names)} in the same order everywhere (multilock() does)."
            )
        else:
            lines.append(f"Release {names[0]} before asking for it again.")
        return "\n".join(lines)


def _has(blocker: Participant) -> str:
    """The reason why this holder or waiter blocks another waiter."""
    if blocker.place:
        return "waits for it before"
    if blocker.permits:  # the waiter needs permits, of any of their holders
        permits = f"{blocker.permits} permit" + "s" * (blocker.permits > 1)
        return f"holds {permits} of it, and nobody else will release enough"
    if blocker.below:
        return "reads below it" if blocker.below == "reader" else "writes below it"
    return "reads it" if blocker.shared else "holds it"


def who(participant: Participant) -> str:
    """A holder or waiter, for people: its label and where it runs."""
    host, client = participant.host, participant.client
    where = f"{plain(host)}:{participant.pid}" if host else f"client {client}"
    label = participant.label
    if participant.detached:
        return f"a detached lease ({label!r})" if label else "a detached lease"
    return f"{label!r} ({where})" if label else f"{where}#{participant.seq}"


class Observer:
    """A base class whose methods are called when something happens. Override those that you want.

    A method that is not overridden costs nothing. The methods are called in the event loop, between
    the steps of an acquisition, so they must be short, and must not block. If one raises, that is
    logged, and changes nothing. One observer may serve several clients. Times are seconds.
    """

    slow_wait: float | None = None
    """Seconds of waiting after which `waits_long` is called; None for never."""
    slow_hold: float | None = None
    """Seconds of holding after which `holds_long` is called; None for never."""

    def waiting(self, request: LockRequest) -> None:
        """The lock was not free, so this acquisition is in the queue now."""

    def acquired(
        self,
        request: LockRequest,
        *,
        fence: int,
        waited: float,
        handed_on_by: LockRequest | None,
    ) -> None:
        """The lock was granted to this acquisition.

        ``handed_on_by``: the acquisition that held it directly before, if that is known, because it
        was of the same client. The lock was then handed off within the client.
        """

    def gave_up(self, request: LockRequest, *, waited: float, why: GaveUp) -> None:
        """The acquisition ended without a grant."""

    def released(self, request: LockRequest, *, fence: int, held: float) -> None:
        """The lease was released; the store has not confirmed it yet."""

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
        """The lease was lost: it was taken away, or has ended.

        ``why`` is the same as ``reason``, as a text for people. ``body`` is what becomes of the
        body. If the loss is only known from the answer to the release, this comes after `released`.
        """

    def waits_long(
        self, request: LockRequest, *, waited: float, holders: tuple[Participant, ...], others: int
    ) -> None:
        """The acquisition has waited for longer than `slow_wait`; ``holders`` have the lock.

        At most once a minute for each name, for the longest wait; ``others`` is how many other
        acquisitions of this client have waited too long as well.
        """

    def holds_long(self, request: LockRequest, *, fence: int, held: float) -> None:
        """The lease has been held for longer than `slow_hold`; called once for a lease."""

    def link(self, state: Link, error: Exception | None) -> None:
        """The connections to the store broke, with an error; or work again; or were closed.

        The error is a `StoreError`; its ``__cause__`` is the driver's error, if there is one.

        There is no event for the first opening. "Closed" is reported only if the connections were
        broken when the client was closed.
        """

    def deadlock(self, deadlock: Deadlock) -> None:
        """Tasks wait for each other, at least one of them of this client; once for each deadlock.

        The client of the task that closed the cycle always reports it. The clients of the others,
        which began to wait before and found no deadlock then, may not.
        """
