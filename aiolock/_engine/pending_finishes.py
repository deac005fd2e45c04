"""Finishes that fail: sent again while the lease lasts.

The work is done then, so somebody does it once more if the store does not get to know. A store may
refuse for a moment: it loads its data, its primary has changed, its memory is full. To send a
finish again is safe, and says more than the first copy: it is answered as that one was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from aiolock._engine.hold import Hold
from aiolock._engine.releases import FIRST_PAUSE, LONGEST, LONGEST_PAUSE
from aiolock._engine.timers import shared_timers
from aiolock.errors import StoreError
from aiolock.store import WAS_ABSENT, Store

_PATIENCE: Final = 9.0
"""Seconds after which the caller is told of a failure. The finish is sent again all the same."""


class _Finish:
    """One of them: what is sent each time, and who awaits it."""

    def __init__(self, hold: Hold, remember: int, now: float) -> None:
        self.hold = hold
        self.remember = remember
        self.began = now
        self.ends = min(hold.deadline, now + LONGEST)
        """After that, another client may do the work."""
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.failure: BaseException | None = None
        """What the last try failed by."""

    def tell(self) -> None:
        """Tell the caller of the failure, once."""
        if not self.answer.done():
            assert self.failure is not None
            self.answer.set_exception(self.failure)
            self.answer.exception()  # no bug to be logged, if nobody awaits it any more


class PendingFinishes:
    """The finishes of one client that have failed so far."""

    def __init__(self, store: Store, time: Callable[[], float]) -> None:
        """``time`` is the clock of the deadlines."""
        self._store = store
        self._time = time
        self._call_later = shared_timers()
        self._failed: dict[_Finish, asyncio.TimerHandle] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._failed)

    def finish(self, hold: Hold, remember: int) -> asyncio.Future[int]:
        """Finish a hold, and try that until its lease ends; ``remember`` is in ms.

        The answer is a `StoreError` after nine seconds of failures, or at the end of the lease.
        """
        finish = _Finish(hold, remember, self._time())
        self._send(finish)
        return finish.answer

    def _send(self, finish: _Finish) -> None:
        self._failed.pop(finish, None)
        hold = finish.hold
        sent = self._store.finish(
            hold.policy.key, hold.waiter, hold.policy.form, hold.fence, finish.remember
        )
        sent.add_done_callback(partial(self._answered, finish))

    def _answered(self, finish: _Finish, sent: asyncio.Future[int]) -> None:
        if sent.cancelled():
            finish.answer.cancel()
        elif (failure := sent.exception()) is not None:
            finish.failure = failure
            if not isinstance(failure, StoreError) or not self._tries_again(finish):
                finish.tell()
        elif finish.failure is not None and sent.result() == WAS_ABSENT:
            finish.tell()  # an earlier copy may have been carried out, and be forgotten
        elif not finish.answer.done():
            finish.answer.set_result(sent.result())

    def _tries_again(self, finish: _Finish) -> bool:
        """Whether there is another try of which the caller may hear."""
        now = self._time()
        pause = min(LONGEST_PAUSE, max(FIRST_PAUSE, (now - finish.began) / 2))
        if self._closed or now + pause >= finish.ends:
            return False
        self._failed[finish] = self._call_later(pause, self._send, finish)
        return now + pause < finish.began + _PATIENCE

    def aclose(self) -> None:
        """Try once more, and no more after that."""
        self._closed = True
        for finish, timer in list(self._failed.items()):
            timer.cancel()
            self._send(finish)
