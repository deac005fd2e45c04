"""The classes of the fixtures: the server, its clock, a client, and clients of other processes."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from typing import Final, TypeVar

import pytest

import aiolock
from aiolock.kinds import KINDS
from aiolock.protocol import (
    CLAIM,
    Acquire,
    AskAgain,
    Deliver,
    Event,
    Form,
    Granted,
    Operation,
    ReadStatus,
    Release,
    WaiterId,
)
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import DroppedLease, FaultyStore

Value = TypeVar("Value")

_FORM: Final = Form(CLAIM)
"""The form of the waiters of other processes."""

_OTHERS: Final = "others"
"""The client that `Others` represents."""


class Clock:
    """The server's clock: it runs by itself, and a test can move it forward."""

    def __init__(self) -> None:
        self._monotonic = time.monotonic  # which a test may freeze, together with `time.time`
        self._ahead = time.time() - self._monotonic()
        self._moved: list[Callable[[], None]] = []

    def __call__(self) -> float:
        return self._monotonic() + self._ahead

    def advance(self, seconds: float) -> None:
        """Let ``seconds`` pass for the server.

        Leases that have ended by then are lost, like those of a holder that is cut off, and their
        locks are granted to the next waiters. The holder is notified in the next turn of its
        event loop. The library's own timers (timeouts, renewals) keep to the event loop's clock.
        """
        if seconds < 0:
            raise ValueError(f"a server's clock does not run back: {seconds}")
        self._ahead += seconds
        for moved in self._moved:
            moved()

    def call_when_moved(self, moved: Callable[[], None]) -> None:
        """Have ``moved`` called after each `advance`."""
        self._moved.append(moved)


class Server(MemoryServer):
    """A `MemoryServer` whose clients may be in several event loops, of several threads."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock, call_soon=_at_once)
        self._guard = threading.RLock()
        self._loops = dict[str, asyncio.AbstractEventLoop]()
        clock.call_when_moved(self._moved)
        super().listen(_OTHERS, lambda _: None)  # so they are alive, for a status

    def __repr__(self) -> str:
        return "<aiolock_server>"

    def listen(self, client: str, deliver: Deliver) -> None:
        """Have what is sent to this client delivered in the event loop in which it listens."""
        loop = self._loops[client] = asyncio.get_running_loop()

        def deliver_there(event: Event) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(deliver, event)

        super().listen(client, deliver_there)

    def run(self, operation: Operation[Value], copies_until: int = 0) -> Value:
        """Carry it out, one thread at a time."""
        with self._guard:
            return super().run(operation, copies_until)

    def _moved(self) -> None:
        self._reap()
        with self._guard:
            for name in self.names():
                for client in [*self._loops]:  # its waiters would ask at the end of the lease
                    self.push(client, AskAgain(name))

    def _reap(self) -> None:
        with self._guard:
            for name in self.names():
                self.reap(name)

    def check_nothing_held(self, dropped: Iterable[DroppedLease]) -> None:
        """Fail if a lock is held or waited for, or if one of its leases was dropped.

        Done work and a closed name do not count.
        """
        if forgotten := [each.name for each in dropped if each.client in self._loops]:
            pytest.fail(
                f"the test has dropped leases without releasing them: {', '.join(forgotten)}"
            )
        self._reap()
        seen = [self.run(ReadStatus(name)) for name in sorted(self.names())]
        if left := [status.name for status in seen if status.holders or status.waiters]:
            pytest.fail(f"the test has left locks held or waited for: {', '.join(left)}")


def _at_once(call: Callable[..., object], *given: object) -> None:
    """There may be no event loop to call it soon, and another thread may be next."""
    call(*given)


class Others:
    """A client of another process that holds the locks the test wants to be busy.

    It does not renew its leases: once `Clock.advance` goes beyond a ttl, that lease is lost.
    """

    def __init__(self, server: Server) -> None:
        self._server = server
        self._numbers = itertools.count(1)
        self._held: dict[str, tuple[WaiterId, int]] = {}

    @contextmanager
    def hold(
        self, name: str, *, kind: str = "lock", ttl: float = 30.0
    ) -> Generator[int, None, None]:
        """Hold a lock in a ``with``, whose value is the fence; ``kind``: `LockClient.KINDS`."""
        fence = self.take(name, kind=kind, ttl=ttl)
        try:
            yield fence
        finally:
            self.release(name, kind=kind)

    def take(self, name: str, *, kind: str = "lock", ttl: float = 30.0) -> int:
        """Hold a lock until `release` or the end of the test; returns the fence."""
        key, waiter = _key(kind, name), WaiterId(_OTHERS, next(self._numbers))
        answer = self._server.run(Acquire(key, waiter, _FORM, int(ttl * 1000), wait=False))
        if not isinstance(answer, Granted):
            pytest.fail(f"{key} is held already")
        self._held[key] = (waiter, answer.fence)
        return answer.fence

    def release(self, name: str, *, kind: str = "lock") -> None:
        """Release a lock, which goes to the next waiter; no effect once its lease has ended."""
        key = _key(kind, name)
        held = self._held.pop(key, None)
        if held is not None:
            waiter, fence = held
            self._server.run(Release(key, waiter, _FORM, fence))

    def release_all(self) -> None:
        """Release all locks."""
        for key in list(self._held):
            kind, _, name = key.partition(":")
            self.release(name, kind=kind)


def _key(kind: str, name: str) -> str:
    """The name at the server; `ValueError` for a kind that no lock of the program can have."""
    if kind not in KINDS:
        raise ValueError(f"kind must be one of {', '.join(KINDS)}, not {kind!r}")
    return f"{kind}:{name}"


def faulty(server: Server) -> FaultyStore:
    """A link to ``server`` that fails on demand."""
    return FaultyStore(MemoryStore(server))


def client_of(store: FaultyStore) -> aiolock.LockClient:
    """A client that opens itself at its first use."""
    client = aiolock.LockClient(store)
    client._engine.opens_itself = True
    return client


def closed(client: aiolock.LockClient) -> None:
    """Close a client whose event loop is closed or closing, so nothing in it can be awaited.

    The server's check reports the leases that were left held; the garbage collector must not report
    them once more, in a later test.
    """
    client._engine.forget()
