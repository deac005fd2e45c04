"""What all locks of one client share: its store, its acquisitions, its watchdog; open or not."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Sequence
from dataclasses import replace
from enum import Enum
from typing import Any

from aiolock._engine.acquirer import Acquirer
from aiolock._engine.entered import Entered
from aiolock._engine.events import Events
from aiolock._engine.labels import labelled
from aiolock._engine.library import check_not_trio
from aiolock._engine.limits import Limits
from aiolock._engine.lookout import Lookout
from aiolock._engine.policy import Policy
from aiolock._engine.runs import Runs
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog
from aiolock.errors import ClientClosed
from aiolock.observer import Observer
from aiolock.store import Status, Store


class State(Enum):
    """What becomes of a client. The value is why it cannot be used then."""

    NEW = "is not open yet: use `async with`, or await its open()"
    OPENING = "is being opened: await its open()"
    OPEN = ""
    CLOSING = "is being closed"
    CLOSED = "was closed: open it again, with `async with` or its open()"


class Engine:
    """One client, from one opening to its close, and then to the next."""

    watchdog: Watchdog
    runs: Runs
    lookout: Lookout
    waiters: Waiters
    acquirer: Acquirer
    _loop: asyncio.AbstractEventLoop

    def __init__(
        self,
        store: Store,
        observers: Sequence[Observer] = (),
        *,
        label: str = "",
        deadlock_after: float | None = None,
    ) -> None:
        self.store = store
        self.limits = Limits(store)
        self._observers = observers
        self._label = label
        self._deadlock_after = deadlock_after
        self.state = State.NEW
        self.client = _new_client()
        self._pid = os.getpid()
        self.entered = Entered()

    def begin(self) -> None:
        """Belong to the event loop that runs; `open` comes next.

        Nothing that was sent before the last closing must be taken for what is sent now, so
        another opening is another client to the store. So is each fork of the process that it was
        made in, where it was not opened yet.
        """
        if self.state is State.CLOSED or self._pid != os.getpid():
            self.client = _new_client()
        self.state = State.OPENING
        self._loop = asyncio.get_running_loop()
        self.watchdog = Watchdog(self.store, Events(self._observers, self._label), self.limits)
        self.runs = self.watchdog.runs
        self.waiters = Waiters(self.watchdog)
        self.lookout = Lookout(
            self.runs,
            self.client,
            self.watchdog,
            self.waiters.attempts,
            deadlock_after=self._deadlock_after,
        )
        self.waiters.on_reconnect.add(self.lookout.forgotten)
        self.acquirer = Acquirer(self.waiters, self.watchdog, self.lookout, self.client)

    async def open(self) -> None:
        """Connect; `StoreError` when the store cannot be reached or used."""
        try:
            await self.store.open(self.client, self.waiters)
        except BaseException:
            self.state = State.CLOSED  # a lifespan may try again
            raise
        self.state = State.OPEN

    @property
    def is_open(self) -> bool:
        """Whether it can be used, from where it was opened."""
        return self.state is State.OPEN

    @property
    def loop_is_gone(self) -> bool:
        """The event loop in which it was opened has been closed, and with it all that was open."""
        return self._loop.is_closed()

    def check(self) -> None:
        """`ClientClosed` unless the client is open, in this process and this event loop.

        Under trio a `RuntimeError`, whatever the client is: there it can be of no use.
        """
        if self.state is not State.OPEN:
            check_not_trio()
            raise ClientClosed(f"this client {self.state.value}")
        self.watchdog.check_here()

    async def status(self, policy: Policy, *, waiters: bool = True) -> Status:
        """What the store knows of it, under the name that its user gave it.

        Without ``waiters`` only who holds it, and not what that one calls itself.
        """
        self.check()
        with policy.errors_named():
            status = await self.runs.status(policy.key, waiters=waiters)
        if waiters:
            (status,) = await labelled(self.runs, [status])
        return replace(status, kind=policy.kind, name=policy.name)

    async def aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Give up what waits, give back what is held, wait for both, disconnect."""
        self.state = State.CLOSING
        try:
            self.acquirer.close()
            await self.lookout.aclose()
            await self.watchdog.aclose(caller)
        finally:
            try:
                await self.store.aclose()
            finally:
                self.watchdog.events.link("closed")
                self.watchdog.overdue.aclose()  # until then an exit ends no later than its lease
                self.state = State.CLOSED


def _new_client() -> str:
    return secrets.token_urlsafe(12)  # 96 bits, and no ":" in it
