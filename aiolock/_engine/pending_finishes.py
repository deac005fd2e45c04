"""Finishes that failed: they are sent again while the lease lasts.

A finish makes the store remember that the work of a `once` is done. If it gets lost, another client
does the work again. A store may refuse it for a moment only: while it loads its data, after its
primary has changed, while its memory is full. Sending a finish again is safe: the store gives the
same answer to each copy.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Final

from aiolock._engine.acquisition import Acquisition
from aiolock._engine.releases import FIRST_PAUSE, LONGEST, LONGEST_PAUSE
from aiolock._engine.timers import shared_timers
from aiolock.errors import StoreError
from aiolock.protocol import WAS_ABSENT, Finish
from aiolock.store import Store

_PATIENCE: Final = 9.0
"""Seconds of failures after which the caller gets the error. The finish is still sent again."""


class _Finish:
    """One finish: the command that is sent each time, and the future that its caller awaits."""

    def __init__(self, hold: Acquisition, remember: int, now: float) -> None:
        self.hold = hold
        self.remember = remember
        self.began = now
        self.ends = min(hold.deadline, now + LONGEST)
        """After that, another client may do the work, so the finish must not come later."""
        self.answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.failure: BaseException | None = None
        """The error of the last try."""

    def fail(self) -> None:
        """Give the caller the error, once."""
        if not self.answer.done():
            assert self.failure is not None
            self.answer.set_exception(self.failure)
            self.answer.exception()  # asyncio must not log it if nobody awaits it any more


class PendingFinishes:
    """The finishes of one client, and the retries of those that failed."""

    def __init__(self, store: Store, time: Callable[[], float]) -> None:
        """``time`` is the clock of the deadlines."""
        self._store = store
        self._time = time
        self._call_later = shared_timers()
        self._failed: dict[_Finish, asyncio.TimerHandle] = {}
        self._closed = False

    def __len__(self) -> int:
        return len(self._failed)

    def finish(self, hold: Acquisition, remember: int) -> asyncio.Future[int]:
        """Finish a hold, and try that until its lease ends; ``remember`` is in ms.

        The answer is a `StoreError` after nine seconds of failures, or at the end of the lease.
        """
        finish = _Finish(hold, remember, self._time())
        self._send(finish)
        return finish.answer

    def _send(self, finish: _Finish) -> None:
        self._failed.pop(finish, None)
        hold = finish.hold
        sent = self._store.submit(
            Finish(hold.policy.key, hold.waiter, hold.policy.form, hold.fence, finish.remember)
        )
        sent.add_done_callback(partial(self._answered, finish))

    def _answered(self, finish: _Finish, sent: asyncio.Future[int]) -> None:
        if sent.cancelled():
            finish.answer.cancel()
        elif (failure := sent.exception()) is not None:
            finish.failure = failure
            if not isinstance(failure, StoreError) or not self._tries_again(finish):
                finish.fail()
        elif finish.failure is not None and sent.result() == WAS_ABSENT:
            # An earlier copy may have been carried out and forgotten since: the outcome is unknown.
            finish.fail()
        elif not finish.answer.done():
            finish.answer.set_result(sent.result())

    def _tries_again(self, finish: _Finish) -> bool:
        """Try again if there is time; whether the caller may still get the answer to that try."""
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
