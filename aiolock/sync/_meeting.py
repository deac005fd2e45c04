"""Descriptions of what threads wait for and then go on, without holding anything."""

from __future__ import annotations

import aiolock
from aiolock._engine.policy import Seconds
from aiolock._locks.lock import DEFAULT, Default
from aiolock.store import Status
from aiolock.sync._body import Opened


class Event:
    """Something that happens once, in whichever process: as `aiolock.Event`, for threads."""

    __slots__ = ("_client", "_event")

    def __init__(self, client: Opened, event: aiolock.Event) -> None:
        self._client = client
        self._event = event

    def __repr__(self) -> str:
        return repr(self._event)

    @property
    def name(self) -> str:
        """The event's name."""
        return self._event.name

    def set(self) -> None:
        """Let all go on that wait for it; as `aiolock.Event.set`."""
        self._client.call(self._event.set)

    def is_set(self) -> bool:
        """Whether it has happened, as far as is remembered: one round trip."""
        return self._client.call(self._event.is_set)

    def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Return once it is set; `AcquireTimeout` when that did not happen in ``timeout`` seconds.

        Other errors are those of `Lock.acquire`. Interrupted (Ctrl-C), it waits no more.
        """
        self._client.call(lambda: self._event.wait(timeout), waits=True)

    def status(self) -> Status:
        """Who waits for it; as `Lock.status`."""
        return self._client.call(self._event.status)


class Latch:
    """Opens once it was counted down often enough: as `aiolock.Latch`, for threads."""

    __slots__ = ("_client", "_latch")

    def __init__(self, client: Opened, latch: aiolock.Latch) -> None:
        self._client = client
        self._latch = latch

    def __repr__(self) -> str:
        return repr(self._latch)

    @property
    def name(self) -> str:
        """The latch's name."""
        return self._latch.name

    @property
    def count(self) -> int:
        """How often it is to be counted down."""
        return self._latch.count

    def count_down(self, token: str | None = None) -> int:
        """Count one; how many are missing still. As `aiolock.Latch.count_down`."""
        return self._client.call(lambda: self._latch.count_down(token))

    def missing(self) -> int:
        """How many are missing still: one round trip; `StoreError` when nobody knows."""
        return self._client.call(self._latch.missing)

    def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Return once it is open; `AcquireTimeout` when it did not open in ``timeout`` seconds.

        Other errors are those of `Lock.acquire`; also `LimitMismatch`.
        """
        self._client.call(lambda: self._latch.wait(timeout), waits=True)

    def status(self) -> Status:
        """Who waits for it; as `Lock.status`."""
        return self._client.call(self._latch.status)


class Barrier:
    """Lets so many parties through at once, again and again: as `aiolock.Barrier`, for threads."""

    __slots__ = ("_barrier", "_client")

    def __init__(self, client: Opened, barrier: aiolock.Barrier) -> None:
        self._client = client
        self._barrier = barrier

    def __repr__(self) -> str:
        return repr(self._barrier)

    @property
    def name(self) -> str:
        """The barrier's name."""
        return self._barrier.name

    @property
    def parties(self) -> int:
        """How many go on together."""
        return self._barrier.parties

    def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Wait for the others; `AcquireTimeout` when they were not here in ``timeout`` seconds.

        Other errors are those of `Lock.acquire`; also `LimitMismatch`. Interrupted (Ctrl-C), this
        party is not here any more, though the others may just have gone on with it.
        """
        self._client.call(lambda: self._barrier.wait(timeout), waits=True)

    def status(self) -> Status:
        """Who is here and waits for the others; as `Lock.status`."""
        return self._client.call(self._barrier.status)
