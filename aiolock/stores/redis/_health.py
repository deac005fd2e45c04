"""The heartbeat: both connections to a server are checked, and that both lead to one server."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from aiolock._futures import retrieve
from aiolock.protocol import Deliver, Heartbeat
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._presence import FORGET_CLIENT, Presence
from aiolock.stores.redis._protocol import AGAIN, mismatch
from aiolock.stores.redis._replies import Opened, Present
from aiolock.stores.redis._scripts import OPEN, PRESENCE
from aiolock.stores.redis._subscription import Subscription

HEARTBEAT: Final = 10.0
"""Seconds of silence on either connection, after which both are checked."""
HEARTBEAT_TIMEOUT: Final = 4.0
"""Seconds for the heartbeat's push to arrive."""
CLOCK: Final = 60.0
"""Seconds after which the server's clock is read again, however busy the connections are."""


class HealthCheck:
    """Checks the two connections of a session while it is open."""

    def __init__(
        self, pipe: Pipeline, subscription: Subscription, presence: Presence, deliver: Deliver
    ) -> None:
        self._pipe = pipe
        self._subscription = subscription
        self._says = presence
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._introduced = self._marked = self._loop.time()
        self.beating = False
        """The next request of a waiter serves as the heartbeat, too."""
        self.counted: bool | None = None
        """Whether our listener is counted; None until that was checked."""
        self.others: tuple[int, ...] = ()
        """The protocols of other clients here, if they are not ours."""
        self._uncounted = False
        """The subscription was not counted, and so was dialled again."""
        self._stopped = False
        self._timer: asyncio.TimerHandle | None = None
        self._hearing: asyncio.TimerHandle | None = None
        """Checks, after a heartbeat, whether its push has arrived."""

    def start(self) -> None:
        """Check the connections from now on."""
        self._timer = self._loop.call_later(HEARTBEAT, self.beat)

    def stop(self) -> None:
        """Check nothing any more. Idempotent."""
        self._stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def presence(self) -> asyncio.Future[Present]:
        """Count our listeners, and push to ourselves."""
        self._marked = self._loop.time()
        return self._pipe.call(PRESENCE, *self._says.present())

    def introduce(self) -> asyncio.Future[Opened]:
        """Write our host and process."""
        self._introduced = self._loop.time()
        # In full, so that a user without a right to EVAL fails now, not after a SCRIPT FLUSH.
        return self._pipe.call(OPEN, *self._says.introduction(), in_full=True)

    def beat(self) -> None:
        """Check both connections if either was silent: the reply proves one, the push both."""
        now = self._loop.time()
        if now - self._introduced > FORGET_CLIENT / 2000:
            self._introduced = now
            if self._says.is_home:
                self.introduce().add_done_callback(retrieve)
        silent = min(self._pipe.quiet_since, self._subscription.heard)
        due = min(silent + HEARTBEAT, self._pipe.copies.clock_read + CLOCK)
        if now < due:
            self._timer = self._loop.call_at(due, self.beat)
            return
        self._timer = self._loop.call_later(HEARTBEAT, self.beat)
        self.beating = True
        if now - self._marked < AGAIN:
            self._deliver(Heartbeat())
        if self.beating:  # no request has served as the heartbeat
            self.beating = False
            self.ask_whether_counted()
        # Counted from now, not from the reply: both connections may be dead.
        self._hearing = self._loop.call_later(HEARTBEAT_TIMEOUT, self._check_heard, now)

    def ask_whether_counted(self) -> None:
        """Check that the server of the commands counts our listener."""
        if not self._stopped:
            self.presence().add_done_callback(partial(self._beaten, self._subscription.since))

    def _beaten(self, since: float | None, present: asyncio.Future[Present]) -> None:
        if present.cancelled():
            return
        if (failure := present.exception()) is not None:
            # The pipe deals with its own connection. A server that refuses it pushes nothing.
            if isinstance(failure.__cause__, Refusal) and self._hearing is not None:
                self._hearing.cancel()
            return
        if self._stopped:
            return
        self.others = present.result().others
        if (error := mismatch(self.others)) is not None:
            # The key of protocols was lost, and others came. They also refuse our next connection.
            self._pipe.drop(error)
            return
        # The count proves nothing if the subscription was not there, or was renewed meanwhile.
        stayed = since is not None and since == self._subscription.since
        if stayed:
            self._on_count(present.result().heard)

    def _on_count(self, heard: int) -> None:
        """The server of the commands has counted the listeners of our channel."""
        if heard > 0 or not self.counted:
            self._uncounted = False
            self._subscription.proved()
        elif not self._uncounted:
            self._uncounted = True
            self._subscription.drop(ConnectionError("the server has lost our subscription"))
        else:
            # It was dialled again, so the address leads to another server than the commands'.
            self._uncounted = False
            self._pipe.drop(ConnectionError("our pushes come from another server"))

    def _check_heard(self, sent: float) -> None:
        if not self._stopped and self._subscription.heard < sent:
            self._subscription.drop(TimeoutError("no push for a heartbeat"))
