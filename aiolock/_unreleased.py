"""Releases of waiters that have given up and were not heard: sent again, but not for ever.

What such a waiter has at the store, if anything, is in the way of others: a place in the queue
until its turn comes, or a grant until its lease ends. After that nothing is left to release.
"""

from __future__ import annotations

import asyncio
import math
from functools import partial
from typing import Final, NamedTuple

from aiolock.errors import StoreError
from aiolock.store import Store

FIRST_PAUSE: Final = 1.0
"""Seconds until it is sent again for the first time; then it takes ever longer."""
_LONGEST_PAUSE: Final = 30.0
_SLACK: Final = 60.0
"""Seconds for which to go on after the lease of such a waiter would have ended."""
_LONGEST: Final = 3600.0
"""Seconds after which to give up in any case: with a lease of days an operator had better look."""


class _Left(NamedTuple):
    key: str
    ttl: int
    until: float


class Unreleased:
    """What one client has to release still; all of it is tried together, less and less often."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._left: dict[str, _Left] = {}
        self._pause = FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False

    def __len__(self) -> int:
        return len(self._left)

    def watch(
        self,
        released: asyncio.Future[int],
        key: str,
        waiter: str,
        ttl: int,
        until: float = math.inf,
    ) -> None:
        """See that this release is heard; ``ttl`` is that of the waiter's lease, in ms."""
        released.add_done_callback(partial(self._released, key, waiter, ttl, until))

    def _released(
        self, key: str, waiter: str, ttl: int, until: float, released: asyncio.Future[int]
    ) -> None:
        if released.cancelled():
            return
        failure = released.exception()
        if failure is None:
            self._pause = FIRST_PAUSE
            return
        now = self._loop.time()
        until = min(until, now + min(_LONGEST, ttl / 1000 + _SLACK))
        # What fails otherwise is a fault of ours, or of the store's: it would fail for ever.
        if isinstance(failure, StoreError) and now < until and not self._closed:
            self._left[waiter] = _Left(key, ttl, until)
            if self._timer is None:
                self._timer = self._loop.call_later(self._pause, self._try_again)
                self._pause = min(_LONGEST_PAUSE, 2 * self._pause)

    def _try_again(self) -> None:
        self._timer = None
        left, self._left = self._left, {}
        for waiter, (key, ttl, until) in left.items():
            released = self._store.release(key, waiter, 0, entered=False)
            self.watch(released, key, waiter, ttl, until)

    def aclose(self) -> None:
        """Try once more, and no more after that."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._try_again()
