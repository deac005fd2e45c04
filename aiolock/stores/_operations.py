"""The operations of a store that runs the protocol's state machine itself, one call each.

Such a store keeps the state of each name as a whole. It only needs to carry out an `Operation`:
load the states of its names, let it run, save them and send the pushes, all of it or nothing.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

from aiolock._adapters import ByMethods
from aiolock.copying import Uncopyable
from aiolock.protocol import (
    BREAK_UNKNOWN,
    WAS_ABSENT,
    WAS_UNKNOWN,
    Answer,
    Form,
    Page,
    Posted,
    Renewal,
    ReportHandoff,
    Status,
    WaiterId,
)
from aiolock.store import Features
from aiolock.stores.machine import Push, Step

Value = TypeVar("Value")


class Told(NamedTuple):
    """A push, and the deliver and name that it is for."""

    name: str
    push: Push


class Steps(Protocol):
    """A transaction, as an operation sees it."""

    @property
    def again(self) -> bool:
        """Whether the operation may have been carried out already, with its answer lost."""
        ...

    def step(self, name: str, operation: Callable[[Step], Value]) -> Value:
        """Carry out an operation of the state machine on the state of this name."""
        ...


class Operation(NamedTuple):
    """One operation of a client."""

    names: Sequence[str]
    """The name whose state it needs, or none: a transaction locks the names of its operations."""
    run: Callable[[Steps], Any]
    renews: bool = False
    """Whether it renews a lease, which must not wait behind everything else."""


class Operations(ByMethods, Uncopyable, ABC):
    """All the operations of a `Store`, once it is open."""

    features = Features()
    """See `Store.features`."""

    @abstractmethod
    def _call(self, operation: Operation) -> asyncio.Future[Any]:
        """Carry it out, in order."""

    def _call_each(self, operations: Sequence[Operation]) -> asyncio.Future[list[Any]]:
        """Carry these out, each by itself; their answers, None for each that has failed.

        If all of them fail, so does the future, with the error of one.
        """
        return joined([self._call(operation) for operation in operations])

    @abstractmethod
    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """See `ReadPage`: the status of each state is `Step.status`."""

    def _token(self) -> str:
        """A text that identifies a resize, if it may be carried out twice; else empty."""
        return ""

    def _step(self, name: str, operation: Callable[[Step], Value]) -> asyncio.Future[Value]:
        def run(steps: Steps) -> Value:
            return steps.step(name, operation)

        return self._call(Operation((name,), run))

    def _sure_step(
        self, name: str, operation: Callable[[Step], int], unknown: int = WAS_UNKNOWN
    ) -> asyncio.Future[int]:
        """For a release or the like: its first copy may have done what the second finds done."""

        def run(steps: Steps) -> int:
            was = steps.step(name, operation)
            return unknown if steps.again and was == WAS_ABSENT else was

        return self._call(Operation((name,), run))

    def acquire(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        return self._step(
            name,
            lambda step: step.acquire(
                waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            ),
        )

    def release(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        return self._sure_step(
            name, lambda step: step.release(waiter, fence, entered=entered, lost=lost)
        )

    def report_handoff(self, passed: ReportHandoff) -> asyncio.Future[int]:
        return self._sure_step(passed.name, lambda step: step.report_handoff(passed))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        return self._call_each(
            [Operation((each.name,), partial(_renew, each), renews=True) for each in renewals]
        )

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return self._step(name, lambda step: step.status(name, waiters=waiters))

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        return self._sure_step(name, lambda step: step.finish(waiter, fence, remember))

    def request(self, name: str) -> asyncio.Future[int]:
        return self._step(name, Step.request)

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        return self._step(name, lambda step: step.downgrade(waiter, fence))

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        token = self._token()
        return self._step(name, lambda step: step.resize(declared, limit, remember, token=token))

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        return self._step(
            name,
            lambda step: step.post(
                count, token=token, declared=declared, value=value, remember=remember
            ),
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        return self._step(name, Step.read)

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return self._sure_step(name, lambda step: step.break_(fences), BREAK_UNKNOWN)


def _renew(renewal: Renewal, steps: Steps) -> bool:
    name, waiter, _, fence, ttl = renewal
    return steps.step(name, partial(Step.renew, waiter=waiter, fence=fence, ttl=ttl))


def joined(each: Sequence[asyncio.Future[Any]]) -> asyncio.Future[list[Any]]:
    """The answers of all of these, which nobody cancels; see `Operations._call_each`."""
    future: asyncio.Future[list[Any]] = asyncio.get_running_loop().create_future()
    left = len(each)

    def one_is_done(done: asyncio.Future[Any]) -> None:
        nonlocal left
        left -= 1
        failure = done.exception()  # also so that it is not logged
        if left or future.done():
            return
        answers = [None if one.exception() else one.result() for one in each]
        if failure is not None and all(one.exception() for one in each):
            future.set_exception(failure)
        else:
            future.set_result(answers)

    for one in each:
        one.add_done_callback(one_is_done)
    if not each:
        future.set_result([])
    return future
