"""Descriptions of what threads wait for without holding anything: events, latches, barriers."""

from __future__ import annotations

import aiolock
from aiolock.copying import CopiedAsItself
from aiolock.options import DEFAULT, Default, Seconds
from aiolock.protocol import Status
from aiolock.sync._body import Opened
from aiolock.sync.transactions import refuse_in_transaction


class Event(CopiedAsItself):
    """Something that happens once, in any process: as `aiolock.Event`, for threads."""

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
        """Set the event: all that wait for it go on; as `aiolock.Event.set`."""
        refuse_in_transaction(self, "it would be set")
        self._client.call(self._event.set)

    def is_set(self) -> bool:
        """Whether it has happened and the store still remembers it: one round trip."""
        return self._client.call(self._event.is_set)

    def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Return once it is set; `AcquireTimeout` when that did not happen in ``timeout`` seconds.

        Other errors are those of `Lock.acquire`. Interrupted (Ctrl-C), it waits no more.
        """
        self._client.call(lambda: self._event.wait(timeout), waits=True)

    def status(self) -> Status:
        """The waiters of the event; as `Lock.status`."""
        return self._client.call(self._event.status)


class Latch(CopiedAsItself):
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
        """The number of counts that open the latch."""
        return self._latch.count

    def count_down(self, token: str | None = None) -> int:
        """Count once; returns the number still missing. As `aiolock.Latch.count_down`."""
        refuse_in_transaction(self, "it would be counted down")
        return self._client.call(lambda: self._latch.count_down(token))

    def missing(self) -> int:
        """The number of counts still missing: one round trip; `StoreError` if unknown."""
        return self._client.call(self._latch.missing)

    def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Return once it is open; `AcquireTimeout` when it did not open in ``timeout`` seconds.

        Other errors are those of `Lock.acquire`; also `LimitMismatch`.
        """
        self._client.call(lambda: self._latch.wait(timeout), waits=True)

    def status(self) -> Status:
        """The waiters of the latch; as `Lock.status`."""
        return self._client.call(self._latch.status)


class Barrier(CopiedAsItself):
    """Lets a number of parties go on together, again and again: as `aiolock.Barrier`."""

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
        """The number of parties that go on together."""
        return self._barrier.parties

    def wait(self, timeout: Seconds | Default | None = DEFAULT) -> None:
        """Wait for the others; `AcquireTimeout` when they did not come in ``timeout`` seconds.

        Other errors are those of `Lock.acquire`; also `LimitMismatch`. Interrupted (Ctrl-C), this
        party has left, though the others may just have gone on with it.
        """
        self._client.call(lambda: self._barrier.wait(timeout), waits=True)

    def status(self) -> Status:
        """The parties that wait for the others; as `Lock.status`."""
        return self._client.call(self._barrier.status)
