"""The engine of one client: its state, and the parts that all its locks share.

`LockClient` makes one engine. Each opening of the client makes new parts for it (watchdog, waiters,
acquirer), bound to the event loop that opened it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any, Final, TypeVar

from aiolock._engine.acquirer import Acquirer
from aiolock._engine.closing import close_holds
from aiolock._engine.diagnostics.events import Events
from aiolock._engine.diagnostics.labels import labelled
from aiolock._engine.diagnostics.slow_monitor import SlowMonitor
from aiolock._engine.lease_state import LossReason
from aiolock._engine.limits import Limits
from aiolock._engine.local_handoff import LocalHandoff
from aiolock._engine.policy import Policy
from aiolock._engine.waiters import Waiters
from aiolock._engine.watchdog import Watchdog
from aiolock._rate import shown
from aiolock.async_library import check_asyncio, check_not_trio
from aiolock.copying import Uncopyable
from aiolock.entering import Entered, current_task
from aiolock.errors import ClientClosed
from aiolock.observer import Observer
from aiolock.protocol import Operation, ReadStatus, Status
from aiolock.status import named
from aiolock.store import ServerStatus, Store

Value = TypeVar("Value")

ANSWER_TIMEOUT: Final = 1.0
"""Seconds for the store's answer to an acquisition that does not wait, by default."""


_NOWHERE: Final = object()
"""No event loop: neither that of the caller, nor none at all."""


class State(Enum):
    """The state of a client. The value is the reason why it cannot be used in that state."""

    NEW = "is not open yet: use `async with`, or await its open()"
    OPENING = "is being opened: await its open()"
    OPEN = ""
    CLOSING = "is being closed"
    CLOSED = "was closed: open it again, with `async with` or its open()"


class Engine(Uncopyable):
    """The engine of one client, over all its openings and closings."""

    watchdog: Watchdog
    handoff: LocalHandoff
    slow_monitor: SlowMonitor
    waiters: Waiters
    acquirer: Acquirer
    _loop: asyncio.AbstractEventLoop
    here: object
    """The event loop in which it is open; a running loop that is another needs `check`."""
    on_close: set[Callable[[], None]]
    """Called when it begins to close: by each something is given up that is under way here."""

    def __init__(
        self,
        store: Store,
        observers: Callable[[], Sequence[Observer]] = tuple,
        *,
        label: str = "",
        deadlock_after: float | None = None,
        answer_timeout: float = ANSWER_TIMEOUT,
    ) -> None:
        self.store = store
        self.limits = Limits(store)
        self._observers = observers
        self._label = label
        self._deadlock_after = deadlock_after
        self._answer_timeout = answer_timeout
        self.state = State.NEW
        self.opens_itself = False
        """Whether the first use opens it, for a store that does not wait in `Store.open`."""
        self.client = _new_client()
        self._pid = os.getpid()
        self.entered = Entered(current_task)

    @property
    def state(self) -> State:
        """Whether it is open."""
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.here = self._loop if state is State.OPEN else _NOWHERE

    def begin(self) -> None:
        """Bind to the running event loop; `open` comes next.

        A message sent before the last closing must not be taken for a new one, so each opening is a
        new client to the store. So is a client that was made before a fork and is opened after it.
        """
        observers = self._observers()
        if self.state is State.CLOSED or self._pid != os.getpid():
            self.client = _new_client()
        if self.state is State.CLOSED:
            # Bodies of an earlier opening may still run, and release their leases. Those belong to
            # the old client id, so the store must not receive these releases from the new one.
            self.handoff.end()
        self.state = State.OPENING
        self._loop, self.on_close = asyncio.get_running_loop(), set()
        self.watchdog = Watchdog(self.store, Events(observers, self._label), self.limits)
        self.handoff = self.watchdog.handoff
        self.waiters = Waiters(self.watchdog)
        self.slow_monitor = SlowMonitor(
            self.handoff,
            self.client,
            self.watchdog,
            self.waiters.by_age,
            deadlock_after=self._deadlock_after,
        )
        self.waiters.on_reconnect.add(self.slow_monitor.publish_again)
        self.acquirer = Acquirer(
            self.waiters,
            self.watchdog,
            self.slow_monitor,
            self.client,
            answer_timeout=self._answer_timeout,
            servers=self.servers,
        )

    async def open(self) -> None:
        """Connect; `StoreError` when the store cannot be reached or used."""
        try:
            await self.handoff.open(self.client, self.waiters.deliver)
        except BaseException:
            self.state = State.CLOSED  # a lifespan may try again
            raise
        self.state = State.OPEN

    def _open_now(self) -> None:
        check_asyncio()
        self.begin()
        opening = self.open()
        try:
            opening.send(None)
        except StopIteration:
            return
        opening.close()
        raise AssertionError("a store that opens without waiting was to be opened")

    def forget(self) -> None:
        """Close it without any I/O: nothing can be awaited in its event loop, which has ended.

        What it holds stays at the store until the leases end, and counts as lost here.
        """
        if self.state is State.OPEN:
            for hold in self.watchdog.holds.values():
                self.watchdog.lose(hold, LossReason.CLOSED)
        self.state = State.CLOSED

    def servers(self) -> list[ServerStatus]:
        """The state of each server of a quorum; empty for any other store. No I/O."""
        return [*self.store.features.servers()]

    @property
    def is_open(self) -> bool:
        """Whether the client can be used, from the process and the loop that opened it."""
        return self.state is State.OPEN

    @property
    def loop_is_gone(self) -> bool:
        """Whether the loop that opened it was closed, and all connections with it."""
        return self._loop.is_closed()

    def check(self) -> None:
        """`ClientClosed` unless the client is open, in this process and this event loop.

        Under trio it raises `RuntimeError`, whatever the client's state.
        """
        if self.state is State.NEW and self.opens_itself:
            self._open_now()
        if self.state is not State.OPEN:
            check_not_trio()
            closed = self.state in (State.CLOSING, State.CLOSED)
            raise ClientClosed(f"this client {self.state.value}", closed=closed)
        self.watchdog.check_here()

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        """Start an operation, behind all that this client has to report about its name."""
        return self.handoff.submit(operation)

    async def status(self, policy: Policy, *, waiters: bool = True) -> Status:
        """The status of a lock at the store, under the name that its user gave it.

        Without ``waiters`` it has a few holders only, without their labels: see `ReadStatus`.
        """
        self.check()
        with policy.errors_named():
            status = await self.handoff.submit(ReadStatus(policy.key, waiters=waiters))
        if waiters:
            (status,) = await labelled(self.handoff, [status])
        return shown(named(status, policy.kind, policy.name))

    async def aclose(self, caller: asyncio.Task[Any] | None) -> None:
        """Give up all waiters, release all holds, wait for both, disconnect."""
        self.state = State.CLOSING
        for give_up in list(self.on_close):
            give_up()
        try:
            await self.acquirer.aclose()
            await self.slow_monitor.aclose()
            await close_holds(self.watchdog, caller)
        finally:
            try:
                await self.handoff.aclose()
            finally:
                self.watchdog.events.link("closed")
                # Last, because while the store closes, an exit may still wait for the answer to its
                # release, and must not wait past the end of its lease.
                self.watchdog.answer_deadlines.aclose()
                self.state = State.CLOSED


def _new_client() -> str:
    return secrets.token_urlsafe(12)  # 96 bits, and no ":" in it
