"""Releases that failed: they are sent again, but not for ever.

Each of them ends something that would block other waiters: a place in the queue, or a grant until
its lease ends. After that time nothing is left to release. Sending a release again is safe, because
it names one waiter or one grant, and no later waiter has the same id.
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from aiolock._engine.timers import shared_timers
from aiolock._turns import Backlog
from aiolock.backoff import Backoff
from aiolock.errors import StoreError
from aiolock.protocol import Discard, Form, Release, WaiterId
from aiolock.store import Store

FIRST_PAUSE: Final = 1.0
"""Seconds until it is sent again for the first time; later pauses are longer."""
LONGEST_PAUSE: Final = 30.0
_TOGETHER: Final = 64
"""Releases that are sent again in one iteration of the event loop; others have a turn then."""
_SLACK: Final = 60.0
"""Seconds for which to go on after the lease would have ended."""
LONGEST: Final = 3600.0
"""Seconds after which to give up in any case: with a lease of days an operator must step in."""


class Releases:
    """The failed releases of one client; all of them are retried together, with growing pauses."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._loop = asyncio.get_running_loop()
        self._call_later = shared_timers()
        self._left: dict[Release | Discard, float] = {}
        """The time until which each release is tried."""
        self._backoff = Backoff(FIRST_PAUSE, LONGEST_PAUSE)
        self._timer: asyncio.TimerHandle | None = None
        self._closed = False
        self._again = Backlog(self._send_again, most=_TOGETHER)

    def __len__(self) -> int:
        return len(self._left)

    def release(
        self, key: str, waiter: WaiterId, form: Form, ttl: int, *, fence: int = 0
    ) -> asyncio.Future[int]:
        """Release what was never entered; ``ttl`` is that of the lease, in ms."""
        return self.send(Release(key, waiter, form, fence, entered=False), ttl)

    def send(self, release: Release | Discard, ttl: int) -> asyncio.Future[int]:
        """Send this release, of a lease of so many ms, until it is answered."""
        return self._send(release, self._until(ttl))

    def again(self, release: Release, ttl: int, failure: StoreError) -> None:
        """This release has failed: send it again."""
        self._failed(release, self._until(ttl), failure)

    def _until(self, ttl: int) -> float:
        return self._loop.time() + min(LONGEST, ttl / 1000 + _SLACK)

    def _send(self, release: Release | Discard, until: float) -> asyncio.Future[int]:
        released = self._store.submit(release)
        released.add_done_callback(partial(self._released, release, until))
        return released

    def _released(
        self, release: Release | Discard, until: float, released: asyncio.Future[int]
    ) -> None:
        if released.cancelled():
            return
        failure = released.exception()
        if failure is None:
            self._backoff.reset()
        elif isinstance(failure, StoreError):
            self._failed(release, until, failure)
        # Any other failure is a bug of ours or of the store: it would fail for ever.

    def _failed(self, release: Release | Discard, until: float, failure: StoreError) -> None:
        # One that is under way may still be answered, so it is not sent a second time.
        if not failure._under_way and self._loop.time() < until and not self._closed:
            self._left[release] = until
            if self._timer is None:
                self._timer = self._call_later(self._backoff.pause(), self._try_again)

    def _try_again(self) -> None:
        self._timer = None
        left, self._left = self._left, {}
        self._again.add(left.items())

    def _send_again(self, left: tuple[Release | Discard, float]) -> None:
        _ = self._send(*left)

    async def aclose(self) -> None:
        """Try once more, and no more after that."""
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
            self._try_again()
        await self._again.done()
