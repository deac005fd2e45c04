"""One client's time with the file, from opening to closing.

A thread of its own works on the file; the event loop listens for notifications. The session closes
and removes all that it has made, even if the loop is closed before the client.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import sqlite3
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from aiolock._futures import retrieve
from aiolock.backoff import Backoff
from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Operation, Reconnected
from aiolock.stores._effects import Push
from aiolock.stores._operations import Fetch, Part
from aiolock.stores._outcomes import CarriedOut
from aiolock.stores._worker import Worker
from aiolock.stores.sqlite._connection import BUSY
from aiolock.stores.sqlite._database import Database
from aiolock.stores.sqlite._failures import failure
from aiolock.stores.sqlite._notifier import Notifier
from aiolock.stores.sqlite._presence import Presence

HEARTBEAT: Final = 1.0
"""Seconds after which a client checks whether the others still see it, and have the same file."""
SWEEP: Final = 60.0
"""Seconds between two sweeps, which remove expired rows of all clients."""
_SOON: Final = 0.02
"""Seconds until the next sweep, at least, while there is more to remove."""
_REST: Final = 3
"""The pause after a sweep, as a multiple of its duration: operations of all come first."""
_FETCH_AGAIN: Final = 0.1
"""Seconds after which it first retries to fetch its pushes; later retries come after longer."""


class Session:
    """One client, from opening to closing."""

    def __init__(self, path: Path, prefix: str, client: str, deliver: Deliver) -> None:
        # Resolve the path: one file has one directory of clients, by whatever path it is reached.
        given, self._path = path, Path(os.path.realpath(path))
        path = self._path
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._worker = Worker("sqlite", self, deliver)
        self._presence = Presence(path.with_name(f"{path.name}.clients"), client)
        self._database = Database(
            *(path, prefix, client, self._presence, given),
            lost=self._lose,
            replaced=lambda: self._worker.say(self._come_back),
        )
        self._look_at = self._sweep_at = 0.0
        self._heard: Notifier | None = None
        """The notifier that the loop listens to."""
        self._coming_back: asyncio.Task[None] | None = None
        self._fetching = self._fetch_again = False
        self._backoff = Backoff(_FETCH_AGAIN, HEARTBEAT)
        self._is_open = False

    @property
    def protocol(self) -> int:
        """The newest protocol of those that have used the locks."""
        return self._database.protocol

    # In the event loop

    async def open(self) -> None:
        """Open the file; `StoreError` says why it cannot be used.

        A cancellation ends the call at once; the thread ends by itself.
        """
        try:
            await self._worker.begin()
            await self._listen()
        except BaseException:
            self.stop()
            raise
        self._is_open = True

    def stop(self) -> None:
        """End, once all earlier operations are carried out. Idempotent."""
        self._is_open = False
        if self._coming_back is not None:
            self._coming_back.cancel()
        if self._heard is not None:
            self._heard.ignore()
        self._worker.stop()

    async def ended(self) -> None:
        """Return when it has ended."""
        await self._worker.ended()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Start the operation; the future of its answer."""
        return self._worker.submit(operation)

    async def _listen(self) -> None:
        """Listen to the notifier that the others use now."""
        *old, notifier = self._presence.notifiers
        if notifier is self._heard:
            return
        if self._heard is not None:
            self._heard.ignore()
        self._heard = notifier
        del self._presence.notifiers[: len(old)]
        for each in old:
            each.close()
        await notifier.listen(self._notified)

    def _notified(self) -> None:
        """Fetch the pushes that others have left."""
        # One that came during a fetch may have been left after what that has read.
        self._fetch_again = self._fetching
        if self._is_open and not self._fetching:
            self._fetching = True
            self.submit(Fetch()).add_done_callback(self._fetched)

    def _fetched(self, done: asyncio.Future[Any]) -> None:
        self._fetching = False
        if done.cancelled() or done.exception() is None:
            self._backoff.reset()
            if self._fetch_again:
                self._notified()
        else:
            self._loop.call_later(self._backoff.pause(), self._notified)

    def _come_back(self) -> None:
        """The client may have counted as dead, or the file is another one."""
        if self._is_open:
            self._coming_back = self._loop.create_task(self._listen())
            self._coming_back.add_done_callback(retrieve)
            self._deliver(Reconnected())

    # In the thread

    @property
    def rest(self) -> float:
        """Seconds after which `look_after` is called."""
        if self._database.more:
            return max(0.0, self._sweep_at - time.monotonic())
        return HEARTBEAT

    def begin(self) -> None:
        """Open the file, and become visible to others."""
        self._database.open()
        with self._database.no_fork():
            self._presence.enter()
        self._look_at = time.monotonic() + HEARTBEAT

    def carry_out(self, parts: Sequence[Part], _: float) -> CarriedOut:
        """Carry them out."""
        return self._database.carry_out(parts)

    def look_after(self) -> None:
        """Check, at intervals, whether others see this client as alive; sweep."""
        now = time.monotonic()
        with contextlib.suppress(OSError):  # retried the next time
            if now >= self._look_at:
                self._look_at = now + HEARTBEAT
                self._look()
                self._database.look()
            if now >= self._sweep_at:
                self._sweep_at = now + SWEEP
                with self._database.no_fork():
                    self._presence.clean_up()
                self._worker.tell(self._database.sweep())
                if self._database.more:
                    swept = time.monotonic()
                    self._sweep_at = swept + max(_SOON, _REST * (swept - now))

    def _look(self) -> None:
        """Check whether the others still see this client: its files may have been removed."""
        if not self._presence.is_there():
            with self._database.no_fork():
                self._presence.enter()
            self._worker.say(self._come_back)

    def _lose(self, lost: Iterable[Sequence[Push]]) -> None:
        """Report these losses to the client; returns when it has them."""
        with contextlib.suppress(sqlite3.Error):  # it finds the others lost when it renews them
            for some in lost:
                self._worker.tell(some)
        if not self._worker.wait_for_loop(BUSY):
            raise StoreError(
                f"the file {self._path} was removed or replaced, and the event loop that is to know"
                f" it has stood still for {BUSY:g} s"
            )

    def end(self) -> None:
        """Leave, and close the file."""
        with contextlib.suppress(OSError), self._database.no_fork():
            self._presence.leave()  # the others remove what is left
        self._database.close()

    def failure(self, error: BaseException) -> StoreError:
        """The error that the caller gets."""
        return failure(self._path, error)
