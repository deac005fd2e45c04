"""The replication barrier: everything that the server did before it has reached the replicas.

``WAIT`` blocks its connection, and only counts what that connection itself has written. So the
barrier has a connection of its own, on which it writes a key and waits until replicas have that:
then they also have everything that the server did before. One barrier is under way at a time, and
covers all answers that came before it began; later ones share the next.

A barrier is valid for one server, as long as that is the master, and its answer names the server
(see `Master`). It confirms no answer of another server.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any, Final, Literal

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import InvalidResponse

from aiolock.stores.redis._errors import Refusal, code_of
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._replies import Master
from aiolock.stores.redis._scripts import BARRIER, bulk, command
from aiolock.stores.redis._sentinel import Address

PATIENCE: Final = 1.0
"""Seconds to wait for the replicas, at most."""
KEPT: Final = 3_600_000
"""Milliseconds for which a barrier's key is kept: a full server accepts no new one."""
_SHORTEST: Final = 10
"""Milliseconds for which the server waits for the replicas at least: 0 would be for ever."""
_GRACE: Final = 0.15
"""Seconds, at most, to wait for the server's answer that they are late: it checks every 0.1 s."""
_ANSWER: Final = 2.0
"""Seconds after that until the connection is considered dead."""

Replicas = int | Literal["all"]
"""How many replicas to wait for; "all": as many as follow at that moment, at least one."""


class Outcome(Enum):
    """The outcome of a barrier for one answer."""

    CONFIRMED = "confirmed"
    """Enough replicas have it."""
    MISSED = "missed"
    """Its time is over, and it is unknown whether they will."""
    ELSEWHERE = "elsewhere"
    """Another server than the one of this barrier has answered it, or this one under an older
    history."""


class Waiting:
    """An answer of the server with this history that replicas must confirm."""

    __slots__ = ("_concluded", "_kept", "_timer", "history", "until")

    def __init__(self, history: str, within: float, concluded: Concluded) -> None:
        loop = asyncio.get_running_loop()
        self.history = history
        self._kept: dict[Waiting, None] = {}
        self.until = loop.time() + within
        self._concluded: Concluded | None = concluded
        late = within + min(_GRACE, within)
        self._timer = loop.call_later(late, self.conclude, Outcome.MISSED)

    def wait_in(self, kept: dict[Waiting, None]) -> None:
        """Be the last of ``kept``, until it is concluded or cancelled."""
        self._kept = kept
        kept[self] = None

    def conclude(self, outcome: Outcome) -> None:
        """Report the outcome, once."""
        concluded = self._concluded
        self.cancel()
        if concluded is not None:
            concluded(outcome)

    def cancel(self) -> None:
        """Stop waiting. Idempotent."""
        self._concluded = None
        self._timer.cancel()
        self._kept.pop(self, None)


Concluded = Callable[[Outcome], None]


class Barrier:
    """The barriers of one client, on a connection that is dialled again when it breaks."""

    def __init__(self, pool: ConnectionPool, key: str, replicas: Replicas) -> None:
        self._link = Link(pool, on_reply=self._received, on_up=self._begin, on_down=self._down)
        self._request = BARRIER.call_in_full(3) + b"".join(map(bulk, (1, key, KEPT)))
        self._forget = command("PEXPIRE", key, 1)
        self._replicas = replicas
        self._loop = asyncio.get_running_loop()
        self._arrived: dict[Waiting, None] = {}
        """The answers that the next barrier will cover."""
        self._covered: dict[Waiting, None] | None = None
        """The answers that the barrier under way covers; None if there is none."""
        self._master: Master | None = None
        """The master of the barrier under way, once it has answered."""
        self._overdue: asyncio.TimerHandle | None = None
        self._ended = self._loop.time()
        self._closed = False
        self.history = ""
        """The history of the server at the last barrier on this connection; empty before one."""
        self.confirmed = 0
        """How many replicas confirmed the last barrier."""
        self.wanted = 1 if replicas == "all" else replicas
        """How many had to confirm it."""
        self.error: Exception | None = None
        """The reason why there is no connection; None while there is one."""

    async def open(self) -> None:
        """Connect; raises what redis-py raises."""
        await self._link.open()

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""
        self._link.follow(address)

    def drop(self, reason: Exception) -> None:
        """Give this connection up; waiting answers are covered by a barrier on the next one."""
        self._link.drop(reason)

    def wait(self, history: str, within: float, concluded: Concluded) -> Waiting:
        """Have a barrier cover the answers of a server with this history up to now.

        ``concluded`` gets the outcome, once, ``within`` this many seconds, unless the returned
        waiting is cancelled.
        """
        waiting = Waiting(history, within, concluded)
        if self._closed:
            self._loop.call_soon(waiting.conclude, Outcome.MISSED)
            return waiting
        waiting.wait_in(self._arrived)
        if self._covered is None:
            self._begin()
        return waiting

    def beat(self, silence: float) -> None:
        """Check the connection, unless a barrier ended on it less than ``silence`` seconds ago."""
        if self._covered is None and self._loop.time() - self._ended >= silence:
            self._begin(even_for_nobody=True)

    def _begin(self, *, even_for_nobody: bool = False) -> None:
        wire, covered = self._link.wire, self._arrived
        if wire is None or not (covered or even_for_nobody):
            return
        self._covered, self._arrived = covered, {}
        self._master, self.confirmed = None, 0
        # It lasts as long as the longest of them: if it began anew for each short one, it would
        # never end while replicas are somewhat behind. Each waiting ends in its own time.
        left = max([each.until for each in covered], default=self._loop.time() + PATIENCE)
        wait = max(_SHORTEST, int((left - self._loop.time()) * 1000))
        wire.write(self._request + command("WAIT", self.wanted, wait), at_once=True)
        self._overdue = self._loop.call_later(wait / 1000 + _ANSWER, self._no_answer)

    def _no_answer(self) -> None:
        self.drop(TimeoutError("the server does not answer WAIT"))

    def _received(self, reply: Any) -> None:
        if isinstance(reply, Refusal):
            self._refused(reply)
        elif self._covered is None:
            self.drop(InvalidResponse(f"nobody asked for {reply!r}"))
        elif self._master is None:
            try:
                master: Master = BARRIER.decode(reply)
            except (TypeError, ValueError, AttributeError):
                self.drop(InvalidResponse(f"not an answer of aiolock's: {reply!r}"))
            else:
                self._master = master
                self._check_replicas(master)
        else:
            self._passed(self._covered, self._master, int(reply))

    def _refused(self, refusal: Refusal) -> None:
        if code_of(refusal) in ("NOWAIT", "NOPERM"):
            self.drop(Refusal(f"NOWAIT {refusal}"))
            self._give_up()  # that does not change soon
        else:
            self.drop(refusal)

    def _give_up(self) -> None:
        for waiting in (*(self._covered or ()), *self._arrived):
            waiting.conclude(Outcome.MISSED)

    def _check_replicas(self, master: Master) -> None:
        """If "all" are awaited and fewer follow by now, begin again with those."""
        if self._replicas == "all" and max(1, master.following) < self.wanted:
            self.wanted = max(1, master.following)
            self._link.proved()
            self.drop(ConnectionError("a replica has left"))  # nothing else ends a WAIT

    def _passed(self, covered: dict[Waiting, None], master: Master, confirmed: int) -> None:
        """So many replicas have what this server had done when the barrier began."""
        self._end()
        self.error = None
        self.history, self.confirmed = master.history, confirmed
        if self._replicas == "all":
            self.wanted = max(1, master.following)
        now, left = self._loop.time(), list[Waiting]()
        for waiting in list(covered):
            if waiting.history != master.history:
                waiting.conclude(Outcome.ELSEWHERE)
            elif confirmed >= self.wanted:
                self._link.proved()
                waiting.conclude(Outcome.CONFIRMED)
            elif now >= waiting.until:
                waiting.conclude(Outcome.MISSED)
            else:
                left.append(waiting)
        self._requeue(left)
        if self._arrived and self._covered is None:
            self._begin()

    def _requeue(self, older: Iterable[Waiting]) -> None:
        """The next barrier must cover these as well."""
        both, self._arrived = [*older, *self._arrived], {}
        for waiting in both:
            waiting.wait_in(self._arrived)

    def _end(self) -> None:
        self._covered = None
        self._ended = self._loop.time()
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _down(self, reason: Exception) -> None:
        self.error, self.confirmed, self.history = reason, 0, ""
        if self._covered is not None:
            self._requeue(self._covered)
            self._end()

    async def aclose(self) -> None:
        """Confirm nothing any more, and disconnect. Idempotent."""
        self._closed = True
        self._give_up()
        if self._covered is None and self._link.wire is not None:  # else WAIT blocks it unread
            self._link.wire.write(self._forget, at_once=True)
        self._end()
        await self._link.aclose()
