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

from aiolock.store import (
    BREAK_UNKNOWN,
    WAS_ABSENT,
    WAS_UNKNOWN,
    Answer,
    Form,
    Page,
    Pass,
    Posted,
    Renewal,
    Status,
    Waiter,
)
from aiolock.stores.machine import Push, Step

Value = TypeVar("Value")


class Told(NamedTuple):
    """A push for an inbox."""

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
    """The names whose states it needs."""
    run: Callable[[Steps], Any]


class Operations(ABC):
    """All the operations of a `Store`, once it is open."""

    @abstractmethod
    def _call(self, operation: Operation) -> asyncio.Future[Any]:
        """Carry it out, in order."""

    @abstractmethod
    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """See `Store.snapshot`: the status of each state is `Step.status`."""

    def _token(self) -> str:
        """A text that tells a resize from others, if it may be carried out twice; else empty."""
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
        waiter: Waiter,
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
        waiter: Waiter,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        return self._sure_step(
            name, lambda step: step.release(waiter, fence, entered=entered, lost=lost)
        )

    def pass_on(self, passed: Pass) -> asyncio.Future[int]:
        return self._sure_step(passed.name, lambda step: step.pass_on(passed))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        def renew_all(steps: Steps) -> list[bool]:
            return [
                steps.step(name, partial(Step.renew, waiter=waiter, fence=fence, ttl=ttl))
                for name, waiter, _, fence, ttl in renewals
            ]

        return self._call(Operation([renewal.name for renewal in renewals], renew_all))

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return self._step(name, lambda step: step.status(name, waiters=waiters))

    def finish(
        self, name: str, waiter: Waiter, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        return self._sure_step(name, lambda step: step.finish(waiter, fence, remember))

    def request(self, name: str) -> asyncio.Future[int]:
        return self._step(name, Step.request)

    def downgrade(self, name: str, waiter: Waiter, form: Form, fence: int) -> asyncio.Future[int]:
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
