"""One client's time with the database, from opening to closing: two threads, and their watch.

One thread carries out the operations, the other listens. The event loop makes sure that no caller
waits for a server that has stopped answering.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from aiolock._futures import retrieve
from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Operation, Queued, Reconnected
from aiolock.stores._effects import Push
from aiolock.stores._link_state import LinkState
from aiolock.stores._operations import Fetch, Part
from aiolock.stores._outcomes import CarriedOut
from aiolock.stores._worker import Worker
from aiolock.stores.mysql._database import Database
from aiolock.stores.mysql._errors import is_misconfigured, store_error
from aiolock.stores.mysql._listener import Listener
from aiolock.stores.mysql._read import Read
from aiolock.stores.mysql._settings import Settings
from aiolock.text import one_line

HEARTBEAT: Final = 10.0
"""Seconds after which a client checks whether the others still see it as alive."""
SWEEP: Final = 60.0
"""Seconds between two sweeps, which remove expired rows of all clients."""
_SOON: Final = 0.02
"""Seconds until the next sweep, at least, while there is more to remove."""
_REST: Final = 3
"""The pause after a sweep, as a multiple of its duration: the client's operations come first."""
_WITHOUT: Final = 1.0
"""Seconds after which it tries to connect again: it counts as dead meanwhile."""
_WATCH: Final = 0.25
_LONGEST: Final = 8.0
"""Seconds after which a connection is ended whose answer is still missing."""
_GIVES_UP: Final = 9.0
"""Seconds after which each operation fails, even if the thread is stuck."""
_REMOVE_AFTER: Final = 0.5
"""Seconds after which delivered pushes are removed, if there is nothing else to do."""


class Session:
    """One client, from opening to closing."""

    def __init__(self, settings: Settings, prefix: str, client: str, deliver: Deliver) -> None:
        self._settings = settings
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._worker = Worker("mysql", self, deliver)
        self._links = LinkState(deliver, is_misconfigured)
        self._read = Read()
        self._database = Database(
            *(settings, prefix, client, self._read),
            lost=partial(self._worker.say, self._links.down, "commands"),
            back=partial(self._worker.say, self._come_back, "commands"),
        )
        self._listener = Listener(
            *(settings, prefix, client, self._read),
            on_pushes=self._on_pushes,
            lost=partial(self._worker.say, self._check_commands),
            failing=partial(self._worker.say, self._links.failing, "listening"),
            back=partial(self._worker.say, self._come_back, "listening"),
        )
        self._look_at = self._sweep_at = 0.0
        self._swept = time.monotonic()
        self._sweeps_soon = False
        """Whether the last sweep may have left more to remove."""
        self._under_way = dict[asyncio.Future[Any], float]()
        """The operations that are not answered, and since when."""
        self._watch: asyncio.TimerHandle | None = None
        self._removing = False
        self._seeing: asyncio.Future[Any] | None = None
        """The operation that shows whether the command connection is up: one at a time."""
        self._is_open = False

    @property
    def protocol(self) -> int:
        """The newest protocol of those that have used the locks."""
        return self._database.protocol

    # In the event loop

    async def open(self) -> None:
        """Connect; `StoreError` says why that fails.

        A cancellation ends the call at once; the threads end by themselves.
        """
        try:
            async with asyncio.timeout(_GIVES_UP):
                await self._worker.begin()
        except BaseException as error:
            self.stop()
            self._database.link.break_()
            self._listener.drop()
            if isinstance(error, TimeoutError):
                raise self._gave_up() from error
            raise
        self._is_open = self._links.observed = True

    def stop(self) -> None:
        """End, once all earlier operations are carried out. Idempotent."""
        self._is_open = self._links.observed = False
        self._worker.stop()

    async def ended(self) -> None:
        """Return when it has ended; a thread that the network blocks for longer is left alone."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_GIVES_UP):
                await self._worker.ended()
        if self._watch is not None:
            self._watch.cancel()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Start the operation; the future of its answer."""
        future = self._worker.submit(operation)
        self._under_way[future] = time.monotonic()
        future.add_done_callback(self._is_done)
        if self._watch is None:
            self._watch = self._loop.call_later(_WATCH, self._keep_watch)
        return future

    def _is_done(self, future: asyncio.Future[Any]) -> None:
        del self._under_way[future]
        answered = not future.cancelled() and future.exception() is None
        if answered and isinstance(future.result(), Queued):
            self._listener.poll_soon()

    def _keep_watch(self) -> None:
        """Make sure that no caller waits for a server that does not answer.

        An operation waits for earlier ones, as long as these are carried out.
        """
        now, progressed = time.monotonic(), self._worker.progressed
        oldest = max(next(iter(self._under_way.values()), now), progressed)
        if now - oldest > _LONGEST:
            self._database.link.break_()
            self._listener.drop()
        if now - progressed > _GIVES_UP:
            for future, since in list(self._under_way.items()):
                if now - since <= _GIVES_UP:
                    break
                if not future.done():
                    future.set_exception(self._gave_up())
        again = self._under_way
        self._watch = self._loop.call_later(_WATCH, self._keep_watch) if again else None

    def _gave_up(self) -> StoreError:
        why, text = self._links.reason, f"MySQL at {self._settings.where} does not answer"
        if why is None:
            return StoreError(text)
        error = StoreError(f"{text} (the link to it is broken: {one_line(why)})")
        error.__cause__, error.misconfigured = why.__cause__ or why, why.misconfigured
        return error

    def _come_back(self, which: str) -> None:
        """There is another connection: the client may have counted as dead."""
        self._links.up(which)
        if self._is_open:
            self._deliver(Reconnected())

    def _check_commands(self, reason: Exception | None) -> None:
        """The listener has lost its connection: after a restart, the other is lost, too.

        Then the client soon counts as dead. Without a ``reason`` the command connection itself may
        be gone.
        """
        if reason is not None:
            self._links.down("listening", reason)
        if self._is_open and (self._seeing is None or self._seeing.done()):
            self._seeing = self.submit(Fetch())
            self._seeing.add_done_callback(retrieve)

    def _remove_soon(self) -> None:
        """Remove delivered pushes, unless another transaction has done that by then."""
        if not self._removing:
            self._removing = True
            self._loop.call_later(_REMOVE_AFTER, self._remove)

    def _remove(self) -> None:
        self._removing = False
        if self._is_open and self._read.to_remove():
            self.submit(Fetch()).add_done_callback(retrieve)

    # In the threads

    def _on_pushes(self, pushes: Sequence[Push]) -> None:
        self._worker.tell(pushes)
        self._worker.say(self._remove_soon)

    @property
    def rest(self) -> float:
        """Seconds after which `look_after` is called."""
        if not self._database.link.is_up:
            return min(_WITHOUT, HEARTBEAT)
        if self._sweeps_soon:
            return max(0.0, self._sweep_at - time.monotonic())
        return HEARTBEAT

    def begin(self) -> None:
        """Connect, and listen."""
        self._database.open()
        self._listener.open(self._database.link)
        now = time.monotonic()
        self._look_at = now + HEARTBEAT
        self._swept = now
        self._sweep_at = now + random.uniform(0, SWEEP)  # not all at once  # noqa: S311

    def carry_out(self, parts: Sequence[Part], since: float) -> CarriedOut:
        """Carry them out."""
        return self._database.carry_out(parts, since)

    def look_after(self) -> None:
        """Check, at intervals, whether others see this client as alive; sweep."""
        if not self._is_open:
            return  # closing must not wait for a server that does not answer
        now = time.monotonic()
        if now >= self._look_at:
            self._database.beat()
            self._look_at = now + HEARTBEAT
        if now >= self._sweep_at:
            self._swept = now
            self._sweeps_soon = self._database.sweep()
            swept = time.monotonic()
            soon = max(_SOON, _REST * (swept - now))
            self._sweep_at = swept + (soon if self._sweeps_soon else SWEEP)
        if not self._database.link.is_up:
            self._look_at = min(self._look_at, now + _WITHOUT)

    def end(self) -> None:
        """Disconnect."""
        # With this probability, clients that are open only for a moment do their share of sweeps.
        if random.random() * SWEEP < time.monotonic() - self._swept:  # noqa: S311
            self._database.sweep()
        self._database.close()
        self._listener.stop()

    def failure(self, error: BaseException) -> StoreError:
        """The error that the caller gets."""
        return store_error(error, self._settings, self._database.link.account, refused=True)
