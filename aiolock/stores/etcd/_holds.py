"""The holds of this client, as it knows them: what each lives with, and until when it was renewed.

A lease of etcd's is that of many holds. So one that the client does not renew any more would live
on with the others: it is noted here when each has to end, and then it is ended by this client.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from typing import Final, NamedTuple

from aiolock._turns import Backlog
from aiolock.protocol import Form, WaiterId
from aiolock.stores.etcd._lease import OwnLease

REFRESH: Final = 6 * 3600.0
"""Seconds after which a hold is renewed in its document, which is then kept for longer."""
_AGAIN: Final = 1.0
"""Seconds after which it is tried again to end a hold that was not renewed in time."""
_TOGETHER: Final = 32
"""Holds that are ended in one iteration of the event loop; others have a turn then."""
_SOONEST: Final = 0.001
_LATEST: Final = 60.0
"""Seconds until the next look at all holds, at least and at most."""


class Grant(NamedTuple):
    """One grant of this client."""

    name: str
    waiter: WaiterId
    fence: int


class Hold:
    """A hold of this client, or a claim."""

    __slots__ = ("form", "grant", "lease", "ttl", "until", "written")

    def __init__(
        self, grant: Grant, form: Form, lease: OwnLease | None, ttl: int, until: float
    ) -> None:
        self.grant, self.form = grant, form
        self.lease = lease
        """What it lives with; None for a claim, or if that is not certain."""
        self.ttl = ttl
        self.until = until
        """When it has to end if it is not renewed, by the loop's clock."""
        self.written = until
        """When its document was last written for it, or a little later."""


class Holds:
    """Those of one client, by name and waiter."""

    def __init__(self, end: Callable[[Hold], None]) -> None:
        """``end`` ends a hold that has not been renewed in time."""
        self._loop = asyncio.get_running_loop()
        self._end = end
        self._overdue = Backlog(self._end_overdue, most=_TOGETHER)
        self._holds = dict[tuple[str, WaiterId], Hold]()
        self._timer: asyncio.TimerHandle | None = None
        self._looks_at = math.inf

    def __len__(self) -> int:
        return len(self._holds)

    def begin(self, grant: Grant, form: Form, lease: OwnLease | None, ttl: int) -> None:
        """It was granted, or renewed in its document, for ``ttl`` ms from now."""
        until = self._loop.time() + ttl / 1000
        self._holds[grant.name, grant.waiter] = Hold(grant, form, lease, ttl, until)
        self._look_at(until)

    def find(self, name: str, waiter: WaiterId, fence: int) -> Hold | None:
        """The hold with this fence, if it is known."""
        hold = self._holds.get((name, waiter))
        return hold if hold is not None and hold.grant.fence == fence else None

    def forget(self, name: str, waiter: WaiterId, fence: int = 0) -> None:
        """It has ended; a ``fence`` of 0 means any."""
        hold = self._holds.get((name, waiter))
        if hold is not None and fence in (0, hold.grant.fence):
            del self._holds[name, waiter]

    def ends(self, name: str, waiter: WaiterId) -> None:
        """It is about to be ended: if it is renewed nevertheless, then in its document."""
        hold = self._holds.get((name, waiter))
        if hold is not None:
            hold.lease = None

    def doubt(self) -> None:
        """Some may have been broken unheard: each is renewed in its document next time."""
        for hold in self._holds.values():
            hold.lease = None

    def _look_at(self, when: float) -> None:
        if when < self._looks_at:
            if self._timer is not None:
                self._timer.cancel()
            self._looks_at = when
            self._timer = self._loop.call_at(when, self._look)

    def _look(self) -> None:
        now = self._loop.time()
        overdue = [hold for hold in self._holds.values() if hold.until <= now]
        for hold in overdue:
            hold.lease, hold.until = None, now + _AGAIN  # in case that fails
        self._overdue.add(overdue)
        self._looks_at, self._timer = math.inf, None
        if self._holds:
            first = min(hold.until for hold in self._holds.values())
            self._look_at(min(max(first, now + _SOONEST), now + _LATEST))

    def _end_overdue(self, hold: Hold) -> None:
        # It may have ended, or been renewed in its document, since it was found.
        if self._holds.get((hold.grant.name, hold.grant.waiter)) is hold:
            self._end(hold)

    def stop(self) -> None:
        """Forget all."""
        self._holds.clear()
        self._overdue.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._looks_at = math.inf
