"""What commands have left to tell other clients, until the server has told it.

A command that hands a lock on leaves that in its session, for the ``flush`` behind it to notify.
Where the flush fails it is sent again; where the session has ended, the server is asked to read
from its tables who is to be notified. Where that fails for good it is given up: then a backstop
asks, as it does for any push that is lost.
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
_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0)
"""Seconds before each further try. By the last, the claims that are to be told of have ended."""


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
        self._lost: dict[str, tuple[int, Value]] = {}
        """Names that were unflushed when their session ended: with the number of tries to notify
        again that have failed, and their keys."""
        self._trying = 0
        """How many calls to notify again have no answer yet."""
        self._numbers = itertools.count(1)
        self._sent = 0.0
        self._failures = 0
        """How often a flush has failed since one was answered, or was given up."""
        self._gave_up = False
        """Whether the last thing tried was given up: that is logged once."""
        self._next_flush: asyncio.TimerHandle | None = None
        self._next_try: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def failed(self) -> bool:
        """Whether the session may still have what a flush has failed to tell."""
        return bool(self._failures or self._gave_up)

    @property
    def pending(self) -> bool:
        """Whether anything is left to tell."""
        return bool(self._unflushed or self._lost or self._trying)

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
            self._failed(number, failure)
            return
        self._failures, self._gave_up = 0, False
        self._forget(number)

    def _forget(self, number: int) -> None:
        """Nothing is left to do about what that flush was to tell."""
        for name, (last, _) in [*self._unflushed.items()]:
            if last <= number:
                del self._unflushed[name]
        self._done()

    def _failed(self, number: int, failure: Failed) -> None:
        """Send it again, some times: what there is to tell is still in the session."""
        if is_one_of(failure, ELSEWHERE):
            self._drop(failure)
        elif self._next_flush is not None or not self._unflushed:
            pass  # it will be sent again, or there is nothing to tell
        elif self._failures == len(_PAUSES):
            self._failures = 0
            self._give_up(failure)
            self._forget(number)
        else:
            if not self._failures and not self._gave_up:
                log.warning(
                    "aiolock: PostgreSQL did not notify who was granted a lock, and is asked again:"
                    " %s",
                    failure,
                )
            self._next_flush = self._loop.call_later(_PAUSES[self._failures], self._flush_again)
            self._failures += 1

    def _give_up(self, why: BaseException) -> None:
        """The waiters that are to be told hear of their grants when they ask by themselves."""
        if not self._gave_up:
            self._gave_up = True
            log.warning(
                "aiolock: PostgreSQL was asked %d times to notify who was granted a lock, and did"
                " not. Until it does, a waiter of another client that is granted a lock learns of"
                " that only when the lease before its own would have ended, or after a minute: %s",
                len(_PAUSES) + 1,
                why,
            )

    def _flush_again(self) -> None:
        self._next_flush = None
        if self._wire is not None:
            self.flush(self._wire, {})

    def down(self) -> None:
        """The session has ended, and what it had to tell with it."""
        self._wire = None
        self._lost |= {name: (0, key) for name, (_, key) in self._unflushed.items()}
        self._unflushed.clear()
        self._failures = 0
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
        for name, (failures, key) in lost.items():
            self._trying += 1
            call = self._notify_again(name, key)
            call.add_done_callback(partial(self._tried, name, key, failures))

    def _tried(self, name: str, key: Value, failures: int, call: asyncio.Future[Any]) -> None:
        self._trying -= 1
        if (why := call.exception()) is None:
            self._gave_up = False
        elif self._closed:
            pass
        elif failures == len(_PAUSES):
            self._give_up(why)
        else:
            self._lost[name] = failures + 1, key
            if self._next_try is None:
                self._next_try = self._loop.call_later(_PAUSES[failures], self._try_lost)
        self._done()

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
