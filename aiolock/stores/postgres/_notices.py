"""Pushes that commands have left for other clients, until the server has sent them.

A command that hands a lock off leaves the push in its session, for the ``flush`` behind it to send.
If the flush fails, it is sent again. If the session has ended, the server is asked to find the
clients to notify in its tables. If that keeps failing, it is given up: then the waiters ask by
themselves, as after any lost push.
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
"""Functions with a flush behind them: their pushes are sent in a transaction of its own. Pushes of
other functions cannot be restored from the tables, so they are sent in the same transaction."""
_PAUSES: Final = (0.0, 0.05, 0.1, 0.2, 0.4, 0.8, 1.0, 1.0, 1.0, 1.0)
"""Seconds before each further try. By the last, the claims in question have ended."""


class Notices:
    """The pending pushes of one client."""

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
        """Names for which this session may have pushes: with the number of the flush behind the
        last command, which has no answer yet, and their keys."""
        self._lost: dict[str, tuple[int, Value]] = {}
        """Names that were unflushed when their session ended: with the number of tries to notify
        again that have failed, and their keys."""
        self._trying = 0
        """The number of calls to notify again that have no answer yet."""
        self._numbers = itertools.count(1)
        self._sent = 0.0
        self._failures = 0
        """The number of failed flushes since one was answered, or was given up."""
        self._gave_up = False
        """Whether the last thing tried was given up: that is logged once."""
        self._next_flush: asyncio.TimerHandle | None = None
        self._next_try: asyncio.TimerHandle | None = None
        self._closed = False

    @property
    def failed(self) -> bool:
        """Whether the session may still have pushes that a flush failed to send."""
        return bool(self._failures or self._gave_up)

    @property
    def pending(self) -> bool:
        """Whether any push is left to send."""
        return bool(self._unflushed or self._lost or self._trying)

    def unanswered(self, now: float) -> float:
        """The seconds for which a flush has had no answer."""
        return now - self._sent if self._unflushed and self._next_flush is None else 0.0

    def flush(self, wire: Wire, keys: Mapping[str, Value]) -> None:
        """Send the pushes of the commands about these names, and all that were left before."""
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
        """Nothing is left to do about the pushes of that flush."""
        for name, (last, _) in [*self._unflushed.items()]:
            if last <= number:
                del self._unflushed[name]
        self._done()

    def _failed(self, number: int, failure: Failed) -> None:
        """Send it again, a limited number of times: the pushes are still in the session."""
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
        """The waiters find their grants when they ask by themselves."""
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
        """The session has ended, and its unsent pushes with it."""
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
        """Send nothing more. Idempotent."""
        self.down()
        self._lost.clear()
        self._closed = True

    def _stop_timers(self) -> None:
        for timer in (self._next_flush, self._next_try):
            if timer is not None:
                timer.cancel()
        self._next_flush = self._next_try = None
