"""A lock store that does what another one does, and counts its operations and notes answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from time import monotonic_ns
from typing import TypeVar

from aiolock.cli.demo.customers import CURRENT, Visit
from aiolock.store import Answer, Form, Operation, Queued, Relay, Store, WaiterId

Value = TypeVar("Value")


class Observed(Relay):
    """Wraps a store, only for the figures: a program gives `aiolock.connect` a URL."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._waiting: dict[WaiterId, Visit] = {}
        self.operations = 0

    def _call(
        self, operation: Operation, start: Callable[[], asyncio.Future[Value]]
    ) -> asyncio.Future[Value]:
        self.operations += 1
        return super()._call(operation, start)

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
        """Notes on the visit when the answer comes that its waiter is queued."""
        answer = super().acquire(
            name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
        )
        visit = CURRENT.get(None)
        # A waiter first asks in its own task, and again from a timer in the context of any task.
        if visit is not None and waiter not in self._waiting:
            self._waiting[waiter] = visit
            answer.add_done_callback(partial(_note, visit))
        return answer

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
        """The visit is over."""
        self._waiting.pop(waiter, None)
        return super().release(name, waiter, form, fence, entered=entered, lost=lost)


def _note(visit: Visit, answer: asyncio.Future[Answer]) -> None:
    answered = not answer.cancelled() and answer.exception() is None
    if answered and isinstance(answer.result(), Queued) and not visit.queued:
        visit.queued = monotonic_ns()
