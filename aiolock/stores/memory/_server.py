"""A lock server in this process: the states of all names, and who listens."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from functools import partial
from itertools import islice
from typing import Any, Final, TypeVar
from weakref import ref

from aiolock._clock import clock as clock_of
from aiolock.protocol import Deliver, Event, Operation, ReadPage, Renew, Renewal
from aiolock.stores._effects import Rest
from aiolock.stores._operations import Fetch
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.memory._queue import OperationQueue
from aiolock.stores.memory._reading import Reading

Value = TypeVar("Value")

_SWEPT: Final = 2
"""Names that are checked, to be forgotten, for each new one."""


class MemoryServer:
    """The state of a lock store; each operation on it is one step.

    ``connect(server)`` gives a client of it; clients of one server exclude each other like those of
    one Redis. ``clock`` gives the server's time in Unix seconds, so that tests can control it. The
    default is a clock that cannot be set back, or the event loop's if that has a time of its own.
    ``call_soon`` calls what is due next; the default is that of the running event loop.
    """

    def __init__(
        self,
        clock: Callable[[], float] | None = None,
        *,
        call_soon: Callable[..., object] | None = None,
    ) -> None:
        self._clock = clock or self._own_clock
        self._call_soon = call_soon
        # A server belongs to no loop, and that of a URL would keep one that it refers to for ever.
        self._loop: ref[asyncio.AbstractEventLoop] | None = None
        self._elapsed: Callable[[], float] | None = None
        """The clock of that loop; None if it is the time of the loop itself."""
        self._epoch: float | None = None
        self._states = OrderedDict[str, NameState]()
        self._reading = Reading(self._states, self._step)
        self._fence = 0
        self._listeners: dict[str, Deliver] = {}
        self.pushed = 0
        """How many pushes it has sent."""
        self._queue: ref[OperationQueue[Operation[Any]]] | None = None

    def operation_queue(self) -> OperationQueue[Operation[Any]]:
        """The queue of all clients in the running loop: they are served in one order."""
        loop = asyncio.get_running_loop()
        queue = None if self._queue is None else self._queue()
        if queue is None or queue.loop is not loop:
            queue = OperationQueue[Operation[Any]](self, loop)
            self._queue = ref(queue)
        return queue

    def now(self) -> int:
        """The server's clock, in microseconds."""
        return int(self._clock() * 1_000_000)

    def _own_clock(self) -> float:
        loop = asyncio.get_running_loop()
        if self._loop is None or self._loop() is not loop:
            clock = clock_of(loop)
            self._loop, self._elapsed = ref(loop), None if clock == loop.time else clock
        elapsed = loop.time() if self._elapsed is None else self._elapsed()
        if self._epoch is None:
            self._epoch = time.time() - elapsed
        return self._epoch + elapsed

    def listen(self, client: str, deliver: Deliver) -> None:
        self._listeners[client] = deliver

    def leave(self, client: str) -> None:
        """Remove a client that was closed, or died: it does not listen any more."""
        self._listeners.pop(client, None)

    def listens(self, client: str) -> bool:
        """Whether the client listens."""
        return client in self._listeners

    def push(self, client: str, event: Event) -> None:
        """Send an event to a client, if it listens."""
        deliver = self._listeners.get(client)
        if deliver is not None:
            self.pushed += 1
            call_soon = self._call_soon or asyncio.get_running_loop().call_soon
            call_soon(deliver, event)

    def later(self, call: Callable[[], None]) -> None:
        """Call this soon, after all that is due now."""
        call_soon = self._call_soon or asyncio.get_running_loop().call_soon
        call_soon(call)

    def run(self, operation: Operation[Value], copies_until: int = 0) -> Value:
        """Carry out an operation; its answer. ``copies_until`` is as in `Step.run`."""
        name = operation.name
        if not name:
            answer: Value = self._run_without_name(operation)
            return answer
        state, now = self._states.get(name), self.now()
        if state is None:
            self._sweep(now)
            state = self._states[name] = NameState()
        step = self._step_at(now, name, state)
        answer = step.run(operation, copies_until)
        self._done(name, state, step)
        return answer

    def reads_in_parts(self, operation: Operation[Any]) -> Generator[int, None, Any] | None:
        """The answer, part by part, to an operation that reads much; None for any other.

        The generator yields, before each part, how many units of work that is.
        """
        return self._reading.of(operation)

    def reap(self, name: str) -> None:
        """End the leases of this name that are over, as any operation on it does."""
        if (state := self._states.get(name)) is not None:
            step = self._step(name, state)
            step.reap()
            self._done(name, state, step)

    def names(self) -> list[str]:
        """Every name that is held or waited for; none once all is released."""
        return [name for name, state in self._states.items() if state.holders or state.queue]

    def _run_without_name(self, operation: Operation[Any]) -> Any:
        match operation:
            case Renew(renewals):
                return [self._renew(renewal) for renewal in renewals]
            case ReadPage(start):
                return _at_once(self._reading.page(start))
            case Fetch():
                return None
            case _:
                raise TypeError(f"no store has {operation!r}")

    def _renew(self, renewal: Renewal) -> bool:
        name = renewal.name
        state = self._states.get(name)
        if state is None:
            return False
        step = self._step(name, state)
        renewed = step.renew_one(renewal)
        self._done(name, state, step)
        return renewed

    def _step(self, name: str, state: NameState) -> Step:
        return self._step_at(self.now(), name, state)

    def _step_at(self, now: int, name: str, state: NameState) -> Step:
        # One counter of fences for all names: it only grows, so an idle name need not be kept.
        return Step(
            *(name, state, now, self.listens, self._fence),
            metadata=_metadata,
            in_parts=True,
        )

    def _done(self, name: str, state: NameState, step: Step) -> None:
        self._fence = step.fence
        if step.pushes:
            for client, event in step.pushes:
                self.push(client, event)
        if step.rest is not None:
            self.later(partial(self._go_on, name, step.rest))
        if not state.holders and state.idle:
            self._states.pop(name, None)

    def _go_on(self, name: str, rest: Rest) -> None:
        """Go on with what a step has left."""
        if (state := self._states.get(name)) is not None:
            step = self._step(name, state)
            step.go_on(rest)
            self._done(name, state, step)

    def _sweep(self, now: int) -> None:
        """Forget names that were not used since their lease ended.

        For each new name two others are checked, in turn: so at most twice as many are kept as are
        in use, and no operation takes longer than others.
        """
        for name, state in list(islice(self._states.items(), _SWEPT)):
            self._states.move_to_end(name)
            if max(state.until, state.holders.last_end) <= now // 1000:
                self.reap(name)  # it may be closed from now on, and its numbers are kept for that


def _metadata(_: str) -> tuple[str, int]:
    """Every client of this server is in this process."""
    return socket.gethostname(), os.getpid()


def _at_once(parts: Generator[int, None, Value]) -> Value:
    while True:
        try:
            next(parts)
        except StopIteration as done:
            answer: Value = done.value
            return answer
