"""What commands have left to tell other clients, until the server has told it.

A command that hands a lock on leaves that in its session, for the ``flush`` behind it to notify.
Where the flush fails it is sent again; where the session has ended, the server is asked to read
from its tables who is to be notified. Else nobody would hear of a free lock before a backstop asks.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from aiolock.stores.postgres._codec import Value
from aiolock.stores.postgres._errors import ELSEWHERE, Failed, is_one_of
from aiolock.stores.postgres._wire import Answer, Wire

log = logging.getLogger("aiolock")

TELLS: Final = frozenset({"release", "downgrade", "resize", "post"})
"""Behind these comes a flush: what they tell other clients is sent in a transaction of its own.
What others tell cannot be read from the tables afterwards: it is sent with their own."""
FLUSHED: Final = TELLS | {"beat"}
_FIRST_PAUSE: Final = 0.05
_LONGEST_PAUSE: Final = 1.0
"""Seconds after which to try once more what has failed more than once."""


class Notices:
    """Those of one client."""

    def __init__(
        self,
        *,
        drop: Callable[[Exception], None],
        notify_again: Callable[[str, Value], asyncio.Future[Any]],
        done: Callable[[], None],
    ) -> None:
        """``drop`` ends a connection that is of no use any more; ``notify_again`` calls the
        function of that name; ``done`` is called when a flush was answered.
        """
        self._drop = drop
        self._notify_again = notify_again
        self._done = done
        self._loop = asyncio.get_running_loop()
        self._wire: Wire | None = None
        self._unflushed: dict[str, tuple[int, Value]] = {}
        """Names of which this session may have something to tell: with the number of the flush
        behind the last command, which has no answer yet, and their keys."""
        self._lost: dict[str, Value] = {}
        """Names and keys of those that were unflushed when their session ended."""
        self._numbers = itertools.count(1)
        self._sent = 0.0
        self._pause = 0.0
        self._next_flush: asyncio.TimerHandle | None = None
        self._next_try: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def pending(self) -> bool:
        """Whether anything is left to tell."""
        return bool(self._unflushed or self._lost)

    def unanswered(self, now: float) -> float:
        """For how many seconds a flush has had no answer."""
        return now - self._sent if self._unflushed and self._next_flush is None else 0.0

    def flush(self, wire: Wire, keys: Mapping[str, Value]) -> None:
        """Send what the commands about these names leave to tell, and all that was left before."""
        self._wire = wire
        number, self._sent = next(self._numbers), self._loop.time()
        for name, key in keys.items():
            self._unflushed[name] = number, key
        wire.send([("flush", ())], partial(self._answered, number))

    def _answered(self, number: int, answers: list[Answer]) -> None:
        if isinstance(failure := answers[0], Failed):
            self._failed(failure)
            return
        self._pause = 0.0
        for name, (last, _) in [*self._unflushed.items()]:
            if last <= number:
                del self._unflushed[name]
        self._done()

    def _failed(self, failure: Failed) -> None:
        """Send it again: what there is to tell is still in the session."""
        if is_one_of(failure, ELSEWHERE):
            self._drop(failure)
        elif self._next_flush is None:
            if not self._pause:
                log.warning(
                    "aiolock: PostgreSQL did not notify who was granted a lock, and is asked again"
                    " until it does: %s",
                    failure,
                )
            self._next_flush = self._loop.call_later(self._pause, self._flush_again)
            self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))

    def _flush_again(self) -> None:
        self._next_flush = None
        if self._wire is not None:
            self.flush(self._wire, {})

    def down(self) -> None:
        """The session has ended, and what it had to tell with it."""
        self._wire = None
        self._lost |= {name: key for name, (_, key) in self._unflushed.items()}
        self._unflushed.clear()
        self._pause = 0.0
        self._stop_timers()

    def up(self) -> None:
        """There is another one, to which the commands without an answer go first.

        One of them may have been carried out by its first copy alone: to be seen behind the second.
        """
        if self._lost:
            log.warning(
                "aiolock: the connection to PostgreSQL broke before it had notified who was granted"
                " a lock, and is asked to do so now, for %d names",
                len(self._lost),
            )
        self._try_lost()

    def _try_lost(self) -> None:
        self._next_try = None
        lost, self._lost = self._lost, {}
        for name, key in lost.items():
            call = self._notify_again(name, key)
            call.add_done_callback(partial(self._tried, name, key))

    def _tried(self, name: str, key: Value, call: asyncio.Future[Any]) -> None:
        if call.exception() is not None and not self._closed:
            self._lost[name] = key
            if self._next_try is None:
                self._next_try = self._loop.call_later(_LONGEST_PAUSE, self._try_lost)

    def close(self) -> None:
        """Tell nothing more. Idempotent."""
        self.down()
        self._lost.clear()
        self._closed = True

    def _stop_timers(self) -> None:
        for timer in (self._next_flush, self._next_try):
            if timer is not None:
                timer.cancel()
        self._next_flush = self._next_try = None
