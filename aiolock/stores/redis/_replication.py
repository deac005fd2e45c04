"""The masters of a replicated store: those of its connections, and what a barrier confirms.

A barrier holds for one master, and so does each answer. In a fail-over, one connection may have the
new master while another still has the old one. So the master of each connection is tracked, by its
replication history.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool

from aiolock.errors import StoreError
from aiolock.stores.redis._barrier import KEPT, Barrier, Outcome, Replicas
from aiolock.stores.redis._companion import OnMessage
from aiolock.stores.redis._errors import Place, Refusal, code_of, store_error
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._replies import Master
from aiolock.stores.redis._scripts import BARRIER, bulk, command
from aiolock.stores.redis._wire import Wire

OPENING: Final = 3.0
"""Seconds to wait for the replicas when a client opens: one may have come just now."""
_ELSEWHERE: Final = "our connections lead to different masters, so a fail-over is under way"
_HISTORY: Final = re.compile(rb"master_replid:(\w+)")


class MasterOfPushes:
    """The master to which the subscription leads: see `Companion`."""

    def __init__(self) -> None:
        self.history = ""
        """The history of the master whose pushes come here; empty while unknown."""
        self.speaks = False
        """Whether the push that is delivered now came here, not by the command connection."""
        self._asked = False
        """Whether the next message is the answer to who is the master."""

    def connected(self, wire: Wire) -> None:
        self._asked = True
        wire.write(command("INFO", "replication"), at_once=False)

    def disconnected(self) -> None:
        self.history = ""

    def received(self, message: Any, pass_on: OnMessage) -> None:
        if isinstance(message, bytes):
            found = _HISTORY.search(message)
            self.history = found[1].decode() if found else ""
            self._asked = False
            return
        if self._asked and isinstance(message, Refusal) and code_of(message) == "NOPERM":
            message = Refusal(f"NOWAIT {message}")
        self.speaks = True
        try:
            pass_on(message)
        finally:
            self.speaks = False


class Replication:
    """One opening's masters, and its barrier."""

    def __init__(
        self,
        pool: ConnectionPool,
        names: Names,
        client: str,
        replicas: Replicas,
        *,
        drop_pushes: Callable[[Exception], None],
    ) -> None:
        """``drop_pushes`` gives the connection of the subscription up."""
        self._place = Place.of(pool, names.prefix)
        self._key = names.barrier(client)
        self._replicas: Replicas = replicas
        self._drop_pushes = drop_pushes
        self.barrier = Barrier(pool, self._key, replicas)
        self.pushes = MasterOfPushes()
        self.history = ""
        """The history of the master that answers commands now; empty while that is not known."""
        self.losses = 0
        """How often the command connection was lost."""
        self._reading = self._closed = False
        self._pipe: Pipeline | None = None

    def make_pipe(self, *args: Any, on_lost: Callable[[Exception], None], **more: Any) -> Pipeline:
        """The command connection, of which the master is tracked."""

        def is_lost(reason: Exception) -> None:
            self.lost()
            on_lost(reason)

        more["on_regained"] = self.again
        self._pipe = Pipeline(*args, on_lost=is_lost, **more)
        return self._pipe

    async def open(self) -> None:
        """Check that there are as many replicas, and that the user may wait for them."""
        master = await self._ask_who_is_master()
        self.history = master.history
        least = 1 if self._replicas == "all" else self._replicas
        if not master.history:
            raise StoreError(
                f"the server at {self._place.address} has no master_replid"
                " in `INFO replication`, by which a fail-over is noticed: leave replicas out"
            )
        if master.following < least:
            raise StoreError(self._too_few(master.following))
        await self.barrier.open()
        outcome = asyncio.get_running_loop().create_future()
        waiting = self.barrier.wait(self.history, OPENING, outcome.set_result)
        try:
            if await outcome is not Outcome.CONFIRMED:
                raise self.unconfirmed(outcome.result(), OPENING)
        finally:
            waiting.cancel()

    def forget(self) -> asyncio.Future[Master]:
        """Let the server forget the barrier's key."""
        # By this connection: the barrier's own may be blocked until replicas answer.
        self._closed = True
        return self._call(1)

    @property
    def push_history(self) -> str:
        """The history of the master that has sent the push which is delivered now."""
        return self.pushes.history if self.pushes.speaks else self.history

    # The master of the command connection

    def lost(self) -> None:
        """The command connection broke."""
        self.losses += 1
        self.history = ""

    def again(self) -> None:
        """Find out the master of this connection before anything else is answered on it."""
        self._reading = False
        self.differ()

    def differ(self) -> None:
        """The connections may have different masters: find out the command connection's."""
        if not self._reading:
            self._reading = True
            told = self._ask_who_is_master()
            told.add_done_callback(partial(self._told_who_is_master, self.losses))

    def _ask_who_is_master(self) -> asyncio.Future[Master]:
        return self._call(KEPT)

    def _call(self, kept: int) -> asyncio.Future[Master]:
        assert self._pipe is not None
        return self._pipe.call(BARRIER, 3, b"".join(map(bulk, (1, self._key, kept))))

    def _told_who_is_master(self, losses: int, told: asyncio.Future[Master]) -> None:
        failed = told.cancelled() or told.exception() is not None
        if losses != self.losses:
            return  # the answer came by a connection that is gone; it was asked for again
        self._reading = False
        if failed or self._closed:
            return
        history = self.history = told.result().history
        elsewhere = ConnectionError(_ELSEWHERE)
        if self.barrier.history not in ("", history):
            self.barrier.drop(elsewhere)
        if self.pushes.history not in ("", history):
            self._drop_pushes(elsewhere)

    # Errors when replicas are missing

    def _too_few(self, following: int) -> str:
        if self._replicas == "all":
            return (
                f"Redis at {self._place.address} has no replica that follows it, and"
                ' replicas="all" waits for all there are: connect one, or leave replicas out'
            )
        return (
            f"{following} of {self._replicas} replicas follow Redis at {self._place.address}:"
            f" connect the others (see `INFO replication`), or ask for fewer than"
            f" replicas={self._replicas}"
        )

    def unconfirmed(self, outcome: Outcome, within: float) -> StoreError:
        """The error when replicas did not confirm something ``within`` this many seconds."""
        barrier = self.barrier
        if isinstance(barrier.error, Refusal):
            return store_error(barrier.error, self._place)
        confirmed = barrier.confirmed
        if outcome is Outcome.ELSEWHERE:
            confirmed = 0
            why = _ELSEWHERE
        elif barrier.error is not None:
            why = f"there is no connection on which to wait for them: {barrier.error}"
        else:
            why = "see whether they run and keep up with it (`INFO replication`)"
        error = StoreError(
            f"{confirmed} of {barrier.wanted} replicas confirmed it within {within:.2g} s"
            f" at Redis at {self._place.address}: {why}"
        )
        error.__cause__ = barrier.error
        return error
