"""A store that fails on purpose."""

from __future__ import annotations

import asyncio
import difflib
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any, Final, Literal, TypeVar

from aiolock import protocol
from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Event
from aiolock.store import Store
from aiolock.trees import MakeFence

Value = TypeVar("Value")

Operation = Literal[
    "acquire",
    "release",
    "report_handoff",
    "renew",
    "status",
    "snapshot",
    "finish",
    "request",
    "downgrade",
    "detach",
    "adopt",
    "discard",
    "resize",
    "post",
    "make_fence",
    "read",
    "break_",
    "open",
    "push",
]
"""The names of what can fail: each operation of a `Store`, its opening, and its pushes."""

_NAMES: Final[dict[type[protocol.Operation[Any]], Operation]] = {
    protocol.Acquire: "acquire",
    protocol.Release: "release",
    protocol.ReportHandoff: "report_handoff",
    protocol.Renew: "renew",
    protocol.ReadStatus: "status",
    protocol.ReadPage: "snapshot",
    protocol.Finish: "finish",
    protocol.RequestRelease: "request",
    protocol.Downgrade: "downgrade",
    protocol.Detach: "detach",
    protocol.Adopt: "adopt",
    protocol.Discard: "discard",
    protocol.Resize: "resize",
    protocol.Post: "post",
    MakeFence: "make_fence",
    protocol.ReadPosted: "read",
    protocol.Break: "break_",
}
_HELD: Final[tuple[Operation, ...]] = (*_NAMES.values(), "push")
_REFUSED: Final[tuple[Operation, ...]] = (*_NAMES.values(), "open")
_PUSHES: Final = (
    protocol.GrantPushed,
    protocol.GrantLost,
    protocol.AskAgain,
    protocol.ReleaseRequested,
    protocol.OrderUnknown,
)
"""The events that come from a server; the others are about the link to it."""

GIVES_UP: Final = 9.5
"""Seconds for which a `FaultyStore` holds an answer back at most: no `Store` hangs for ever."""


class FaultyStore:
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
        self._store = store
        self.features = store.features
        self._refused: dict[Operation, float] = {}
        self._lost: dict[Operation, float] = {}
        self._held: set[Operation] = set()
        self._back: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop | None = None

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
        """Deliver what was held back, in order, and cause no more faults.

        Any thread may call it, such as one whose other threads wait in `aiolock.sync`.
        """
        self._refused.clear()
        self._lost.clear()
        self._held.clear()
        loop = self._loop
        if loop is None or loop.is_closed() or loop is asyncio._get_running_loop():
            self._deliver_back()
        else:  # it does not notice what another thread delivers, and sleeps on
            loop.call_soon_threadsafe(self._deliver_back)

    # The store

    async def open(self, client: str, deliver: Deliver) -> None:
        """As the other store, unless refused."""
        self._loop = asyncio.get_running_loop()
        self.calls["open"] += 1
        if _due(self._refused, "open"):
            raise _refusal("open")
        await self._store.open(client, partial(self._deliver, deliver))

    async def aclose(self) -> None:
        """As the other store; what was held back is delivered."""
        self.resume()
        await self._store.aclose()

    def submit(self, operation: protocol.Operation[Value]) -> asyncio.Future[Value]:
        """As the other store, with the faults of this operation."""
        name = _NAMES[type(operation)]
        self.calls[name] += 1
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Value] = loop.create_future()
        if _due(self._refused, name):
            loop.call_soon(_refuse, future, name)
            return future
        lost = _due(self._lost, name)

        def answered(answer: asyncio.Future[Value]) -> None:
            if name in self._held:
                loop.call_later(GIVES_UP, _fail, future, f"{name}: no answer, on purpose")
            self._do(name, lambda: _pass_on(answer, future, name, lost=lost))

        self._store.submit(operation).add_done_callback(answered)
        return future

    def _deliver(self, deliver: Deliver, event: Event) -> None:
        if not isinstance(event, _PUSHES):
            deliver(event)
            return
        self.calls["push"] += 1
        if not _due(self._lost, "push"):
            self._do("push", partial(deliver, event))

    def _deliver_back(self) -> None:
        back, self._back = self._back, []
        for deliver in back:
            deliver()

    def _do(self, operation: Operation, deliver: Callable[[], None]) -> None:
        if operation in self._held:
            self._back.append(deliver)
        else:
            deliver()


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
