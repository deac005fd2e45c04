"""A store that fails on purpose."""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Callable
from typing import Final, Literal, TypeVar, get_args

from aiolock.errors import StoreError
from aiolock.store import Form, Inbox, Relay, Store, WaiterId
from aiolock.store import Operation as _Called

Value = TypeVar("Value")

Operation = _Called | Literal["open", "push"]
"""The names of what can fail: each operation of a `Store`, and its pushes to the client."""

_HELD: Final[tuple[Operation, ...]] = (*get_args(_Called), "push")
_REFUSED: Final[tuple[Operation, ...]] = (*get_args(_Called), "open")

GIVES_UP: Final = 9.5
"""Seconds for which a `FaultyStore` holds an answer back at most: no `Store` hangs for ever."""


class FaultyStore(Relay):
    """A store that fails on purpose, around one that works: ``connect(FaultyStore(store))``.

    Until told otherwise it does what the other store does, and counts. It is one client's link, so
    its faults concern that client only::

        faulty = FaultyStore(MemoryStore(server))
        async with aiolock.connect(faulty) as client:
            faulty.lose("release")  # carried out, but the client will not know
            ...
            assert faulty.calls["release"] == 1
    """

    def __init__(self, store: Store) -> None:
        self.calls: Counter[Operation] = Counter()
        """How often each operation was called, and how many pushes came."""
        super().__init__(store)
        self._refused: dict[Operation, float] = {}
        self._lost: dict[Operation, float] = {}
        self._held: set[Operation] = set()
        self._back: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop

    def __repr__(self) -> str:
        return f"<FaultyStore round {self._store!r}>"

    # The faults

    def refuse(self, operation: Operation, times: float = 1) -> None:
        """Make the next ``times`` calls (`math.inf`: all) fail with `StoreError`, not carried out.

        The error's ``refused`` is true. A push cannot be refused; `lose` it. `ValueError` for any
        other name.
        """
        _check(operation, _REFUSED)
        self._refused[operation] = times

    def lose(self, operation: Operation, times: float = 1) -> None:
        """Let the next ``times`` calls be carried out, but lose their answers: `StoreError`.

        A lost push is simply not delivered. `ValueError` for any other name, as ``"open"``.
        """
        _check(operation, _HELD)
        self._lost[operation] = times

    def hold(self, *operations: Operation) -> None:
        """Hold back every answer of these operations (of all, if none is named) until `resume`.

        They are carried out. An answer that is held back for 9.5 seconds becomes a `StoreError`, as
        with a store that hangs. `ValueError` for any other name, as ``"open"``.
        """
        for operation in operations:
            _check(operation, _HELD)
        self._held.update(operations or _HELD)

    def resume(self) -> None:
        """Deliver what was held back, in order, and cause no more faults."""
        self._refused.clear()
        self._lost.clear()
        self._held.clear()
        back, self._back = self._back, []
        for deliver in back:
            deliver()

    # The store

    async def open(self, client: str, inbox: Inbox) -> None:
        """As the other store, unless refused."""
        self._loop = asyncio.get_running_loop()
        self.calls["open"] += 1
        if _due(self._refused, "open"):
            raise _refusal("open")
        await self._store.open(client, _FaultyInbox(self, inbox))

    async def aclose(self) -> None:
        """As the other store; what was held back is delivered."""
        self.resume()
        await self._store.aclose()

    def _call(
        self, operation: Operation, start: Callable[[], asyncio.Future[Value]]
    ) -> asyncio.Future[Value]:
        self.calls[operation] += 1
        future: asyncio.Future[Value] = self._loop.create_future()
        if _due(self._refused, operation):
            self._loop.call_soon(_refuse, future, operation)
            return future
        lost = _due(self._lost, operation)

        def answered(answer: asyncio.Future[Value]) -> None:
            if operation in self._held:
                self._loop.call_later(
                    GIVES_UP, _fail, future, f"{operation}: no answer, on purpose"
                )
            self._deliver(operation, lambda: _pass_on(answer, future, operation, lost=lost))

        start().add_done_callback(answered)
        return future

    def _push(self, deliver: Callable[[], None]) -> None:
        self.calls["push"] += 1
        if not _due(self._lost, "push"):
            self._deliver("push", deliver)

    def _deliver(self, operation: Operation, deliver: Callable[[], None]) -> None:
        if operation in self._held:
            self._back.append(deliver)
        else:
            deliver()


class _FaultyInbox:
    """The inbox of the store behind a `FaultyStore`."""

    def __init__(self, faulty: FaultyStore, inbox: Inbox) -> None:
        self._push = faulty._push
        self._inbox = inbox

    def granted(  # noqa: PLR0917  # an Inbox's
        self, name: str, waiter: WaiterId, form: Form, fence: int, lease: int, now: int
    ) -> None:
        self._push(lambda: self._inbox.granted(name, waiter, form, fence, lease, now))

    def lost(self, name: str, waiter: WaiterId, fence: int, reason: str) -> None:
        self._push(lambda: self._inbox.lost(name, waiter, fence, reason))

    def done(self, name: str) -> None:
        self._push(lambda: self._inbox.done(name))

    def requested(self, name: str, waiter: WaiterId, fence: int) -> None:
        self._push(lambda: self._inbox.requested(name, waiter, fence))

    def order_unknown(self, name: str, waiter: WaiterId) -> None:
        self._push(lambda: self._inbox.order_unknown(name, waiter))

    def shortened(self, name: str, waiter: WaiterId, fence: int, until: float) -> None:
        self._inbox.shortened(name, waiter, fence, until)

    def unconfirmed(
        self, name: str, waiter: WaiterId, form: Form, fence: int, error: Exception
    ) -> None:
        self._inbox.unconfirmed(name, waiter, form, fence, error)

    def reconnected(self) -> None:
        self._inbox.reconnected()

    def link(self, error: Exception | None) -> None:
        self._inbox.link(error)

    def beat(self) -> None:
        self._inbox.beat()


def _check(operation: str, possible: tuple[Operation, ...]) -> None:
    """`ValueError` for an operation to which this cannot be done: the fault would never come."""
    if operation not in possible:
        near = difflib.get_close_matches(operation, possible, 1)
        meant = f": did you mean {near[0]!r}?" if near else ""
        raise ValueError(f"{operation!r} is none of {', '.join(map(repr, possible))}{meant}")


def _due(faults: dict[Operation, float], operation: Operation) -> bool:
    left = faults.get(operation, 0)
    faults[operation] = left - 1
    return left > 0


def _refusal(operation: Operation) -> StoreError:
    error = StoreError(f"{operation} was refused on purpose")
    error.refused = True
    return error


def _refuse(future: asyncio.Future[Value], operation: Operation) -> None:
    if not future.done():
        future.set_exception(_refusal(operation))


def _fail(future: asyncio.Future[Value], why: str) -> None:
    if not future.done():
        future.set_exception(StoreError(why))


def _pass_on(
    answer: asyncio.Future[Value],
    future: asyncio.Future[Value],
    operation: Operation,
    *,
    lost: bool,
) -> None:
    error = answer.exception()
    if future.done():
        return
    if error is not None:
        future.set_exception(error)
    elif lost:
        _fail(future, f"the answer to {operation} was lost on purpose")
    else:
        future.set_result(answer.result())
