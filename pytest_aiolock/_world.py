"""What the fixtures give: a server of several loops, its clock, somebody else, a client."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

import pytest

import aiolock
from aiolock._engine.engine import Engine, State
from aiolock._engine.hold import LeaseState, LossReason
from aiolock._engine.library import check_asyncio
from aiolock.store import CLAIM, Form, Granted, Inbox, Waiter
from aiolock.stores.machine import Step
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore

Value = TypeVar("Value")


class Clock:
    """The server's clock: it runs, and is moved forward by whoever tests."""

    def __init__(self) -> None:
        self._ahead = time.time() - time.monotonic()
        self._moved: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return time.monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass for the server.

        Leases that have ended by then are lost, as those of a holder that is cut off, and go to
        the next in line. The holder is told in the next turn of its event loop. What the library
        itself waits for (a timeout, a renewal) runs by the event loop's clock, and is as before.
        """
        if seconds < 0:
            raise ValueError(f"a server's clock does not run back: {seconds}")
        self._ahead += seconds
        for moved in self._moved:
            moved()

    def call_when_moved(self, moved: Callable[[], None]) -> None:
        """Have it called after each `advance`."""
        self._moved.append(moved)


class Server(MemoryServer):
    """A `MemoryServer` whose clients may be in several event loops, of several threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self._guard = threading.RLock()
        self._loops = dict[str, asyncio.AbstractEventLoop]()
        clock.call_when_moved(self._reap)

    def __repr__(self) -> str:
        return "<aiolock_server>"

    def listen(self, client: str, inbox: Inbox) -> None:
        """Remember in which loop it does."""
        self._loops[client] = asyncio.get_running_loop()
        super().listen(client, inbox)

    def push(self, client: str, deliver: Callable[[Inbox], None]) -> None:
        """Send to a client in its own loop."""
        inbox = self._inboxes.get(client)
        if inbox is not None and not self._loops[client].is_closed():
            self._loops[client].call_soon_threadsafe(deliver, inbox)

    def _sure(self, name: str, operation: Callable[[Step], Value]) -> Value:
        with self._guard:
            return super()._sure(name, operation)

    def _reap(self) -> None:
        for name in self.names():
            self._sure(name, Step.reap)

    def check_nothing_held(self) -> None:
        """Fail where something is held or waited for; what is done, or closed, is nobody's."""
        self._reap()
        seen = [self.status(name) for name in sorted(self.names())]
        if left := [status.name for status in seen if status.holders or status.waiters]:
            pytest.fail(f"the test has left locks held or waited for: {', '.join(left)}")


class Others:
    """Somebody else, of another process: holds what the test wants to be busy.

    Nobody renews it: when `Clock.advance` goes beyond its ttl it has crashed.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._held: dict[str, tuple[Waiter, int]] = {}

    @contextmanager
    def hold(
        self, name: str, *, kind: str = "lock", ttl: float = 30.0
    ) -> Generator[int, None, None]:
        """Hold it, in a ``with``, whose value is the fence; ``kind``: `LockClient.KINDS`."""
        fence = self.take(name, kind=kind, ttl=ttl)
        try:
            yield fence
        finally:
            self.release(name, kind=kind)

    def take(self, name: str, *, kind: str = "lock", ttl: float = 30.0) -> int:
        """Hold it until `release`, or the end of the test; its fence."""
        key, waiter = f"{kind}:{name}", Waiter("others", next(self._numbers))
        answer = self._server.acquire(
            key, waiter, Form(CLAIM), int(ttl * 1000), ticket=0, wait=False, max_waiters=0
        )
        if not isinstance(answer, Granted):
            pytest.fail(f"{key} is held by somebody already")
        self._held[key] = (waiter, answer.fence)
        return answer.fence

    def release(self, name: str, *, kind: str = "lock") -> None:
        """Give it back, and it goes to the next who waits; nothing where its lease has ended."""
        held = self._held.pop(f"{kind}:{name}", None)
        if held is not None:
            self._server.release(f"{kind}:{name}", *held)

    def release_all(self) -> None:
        """Give everything back."""
        for key in list(self._held):
            kind, _, name = key.partition(":")
            self.release(name, kind=kind)


class _OpensItself(Engine):
    """Of a client that no fixture can open: it does not know yet in which loop the test runs."""

    def check(self) -> None:
        """Open it, where it is used first; that of a store in memory takes no waiting."""
        if self.state is State.NEW:
            check_asyncio()
            self.begin()
            opening = self.open()
            try:
                opening.send(None)
            except StopIteration:
                pass
            else:
                opening.close()
                raise AssertionError("a store in memory opens at once")
        super().check()


def faulty(server: Server) -> FaultyStore:
    """A link to it that fails when told to."""
    return FaultyStore(MemoryStore(server))


def client_of(store: FaultyStore) -> aiolock.LockClient:
    """A client that opens itself."""
    client = aiolock.LockClient(store)
    made = client._engine
    client._engine = _OpensItself(
        store, made._observers, label=made._label, deadlock_after=made._deadlock_after
    )
    return client


def closed(client: aiolock.LockClient) -> None:
    """Its loop is gone, or goes: nothing of it is left that could be closed."""
    engine = client._engine
    if engine.state is State.OPEN:
        # What was left held is told by the server: not once more by the garbage collector, in
        # whichever test comes next.
        for hold in engine.watchdog.holds.values():
            hold.state, hold.reason = LeaseState.LOST, LossReason.CLOSED
    engine.state = State.CLOSED
