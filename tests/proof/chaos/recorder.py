"""A store between aiolock and the real one, that records what only a store can see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial
from typing import Any, TypeVar

import aiolock
from aiolock.protocol import (
    Acquire,
    Adopt,
    Break,
    Deliver,
    Event,
    Form,
    Granted,
    GrantPushed,
    Operation,
    Queued,
    Reconnected,
    Release,
    Renew,
    Renewal,
    WaiterId,
)
from aiolock.store import Store
from aiolock.stores.quorum import QuorumStore
from aiolock.stores.redis._codec import encode
from tests.proof.chaos.history import History
from tests.proof.chaos.rates import Takings, is_rate

Value = TypeVar("Value")

ATTEMPT: ContextVar[str] = ContextVar("attempt", default="")
"""The attempt for which something is done, also in tasks that are started to do it."""


def key(lease: aiolock.Lease) -> str:
    """The name at the store, which histories use: locks of two kinds may have one name."""
    return lease._hold.policy.key


def _text(waiter: WaiterId, form: Form) -> str:
    """A waiter as the conductor sees it at the server."""
    return encode(waiter, form, blind=False)


class Recorder:
    """A store that passes everything on, and records what only a store can see."""

    def __init__(self, store: Store, history: History) -> None:
        self._store = store
        self.features = store.features
        self._history = history
        self._attempts: dict[WaiterId, str] = {}
        self._over: set[WaiterId] = set()  # waiters whose end is written down
        self._left: set[WaiterId] = set()  # waiters whose body is over
        self._pushed: set[tuple[str, int]] = set()  # attempt, fence
        self._heard: dict[str, int] = {}
        self._leases: dict[WaiterId, tuple[str, aiolock.Lease, int]] = {}
        """By waiter, because readers may share a fence: its attempt, its lease, and until when."""
        self._breaks = 0
        self._takings = Takings(history)

    def deadline(self, lease: aiolock.Lease) -> int:
        """Until when a lease is ours, at least. Read before `remaining`: too early, if anything."""
        return time.monotonic_ns() + int(lease.remaining() * 1e9)

    def entered(self, attempt: str, lease: aiolock.Lease) -> None:
        """A body begins."""
        deadline = self.deadline(lease)
        self._history.note(
            "entered",
            a=attempt,
            n=key(lease),
            fence=lease.fence,
            deadline=deadline,
            pushed=(attempt, lease.fence) in self._pushed,
            heard=self._heard.get(attempt),
        )
        self._leases[lease._hold.waiter] = attempt, lease, deadline

    def left(self, lease: aiolock.Lease) -> None:
        """A body is over."""
        waiter = lease._hold.waiter
        del self._leases[waiter]
        self._left.add(waiter)

    def _look(self, renewals: Sequence[Renewal]) -> None:
        for renewal in renewals:
            if renewal.waiter in self._leases:
                attempt, lease, before = self._leases[renewal.waiter]
                deadline = self.deadline(lease)
                # A difference of a microsecond comes from rounding.
                if abs(deadline - before) > 100_000 and lease.state in ("held", "at_risk"):
                    self._leases[renewal.waiter] = attempt, lease, deadline
                    self._history.note(
                        *("deadline",),
                        a=attempt,
                        n=key(lease),
                        fence=lease.fence,
                        deadline=deadline,
                    )

    def _look_soon(self, renewals: Sequence[Renewal], _: object = None) -> None:
        # After the watchdog, which hears of the answer when this does.
        asyncio.get_running_loop().call_soon(self._look, renewals)

    # Store

    async def open(self, client: str, deliver: Deliver) -> None:
        self._deliver = deliver
        await self._store.open(client, self._receive)

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        now = time.monotonic_ns()
        self._before(operation, now)
        answer = self._store.submit(operation)
        self._after(operation, now, answer)
        return answer

    def _before(self, operation: Operation[Any], now: int) -> None:
        match operation:
            case Acquire() | Adopt():
                self._asks(operation)
            case Release():
                self._releases(operation, now)
            case Break(name, fences):
                self._breaks += 1
                self._history.note("breaking", n=name, fences=list(fences), id=self._breaks)
            case _:
                pass

    def _after(self, operation: Operation[Any], now: int, answer: asyncio.Future[Any]) -> None:
        if isinstance(operation, Acquire | Adopt):
            attempt = self._attempts[operation.waiter]
            if is_rate(operation.form.rule):
                self._takings.asks(operation.waiter, now)
                answer.add_done_callback(partial(self._takes, operation, now))
            answer.add_done_callback(partial(self._answered, attempt, operation.name, now))
            return
        if isinstance(operation, Release):
            name, waiter, form, fence, entered, _ = operation
            attempt = self._attempts.get(waiter, "")
            answer.add_done_callback(partial(self._given_back, attempt, name, fence, now))
            if entered or not fence:  # else the client asks again
                answer.add_done_callback(partial(self._is_over, waiter, form))
            return
        match operation:
            case Renew(renewals):
                answer.add_done_callback(partial(self._look_soon, renewals))
                self._look_soon(renewals)  # `extend` to less counts from when it is sent
            case Break(name):
                answer.add_done_callback(partial(self._broke, name, self._breaks))
            case _:
                pass

    def _asks(self, operation: Acquire | Adopt) -> None:
        # A timer asked again, so this is not in the attempt's own context.
        if operation.waiter not in self._attempts:
            self._attempts[operation.waiter] = ATTEMPT.get()
            if ATTEMPT.get():
                self._history.note(
                    "waits", a=ATTEMPT.get(), w=_text(operation.waiter, operation.form)
                )

    async def aclose(self) -> None:
        await self._store.aclose()

    def _answered(self, attempt: str, name: str, since: int, answered: asyncio.Future[Any]) -> None:
        self._heard[attempt] = time.monotonic_ns()
        if not answered.cancelled() and answered.exception() is None:
            answer = answered.result()
            if isinstance(answer, Queued) and attempt:
                self._history.note(
                    "queued",
                    a=attempt,
                    n=name,
                    since=since,
                    ticket=answer.ticket,
                    place=answer.place,
                )

    def _takes(self, asked: Acquire | Adopt, since: int, answered: asyncio.Future[Any]) -> None:
        if answered.cancelled() or answered.exception() is not None:
            return
        if isinstance(answered.result(), Queued):
            self._takings.queued(asked.name, asked.waiter, since)
        elif isinstance(answered.result(), Granted):
            self._takings.took(asked.name, asked.waiter, asked.form.number)

    def _releases(self, operation: Release, since: int) -> None:
        name, waiter, fence = operation.name, operation.waiter, operation.fence
        attempt = self._attempts.get(waiter, "")
        if operation.entered and attempt and waiter not in self._left:
            self._history.note("taken_back", t=since, a=attempt, n=name, fence=fence)

    def _is_over(self, waiter: WaiterId, form: Form, released: asyncio.Future[Any]) -> None:
        heard = not released.cancelled() and released.exception() is None
        if heard and waiter not in self._over:
            self._over.add(waiter)
            self._history.note("over", w=_text(waiter, form))

    def _given_back(
        self, attempt: str, name: str, fence: int, since: int, released: asyncio.Future[Any]
    ) -> None:
        if fence and not released.cancelled() and released.exception() is None:
            was = released.result()
            self._history.note("given_back", a=attempt, n=name, fence=fence, since=since, was=was)

    def _broke(self, name: str, number: int, broken: asyncio.Future[Any]) -> None:
        if not broken.cancelled() and broken.exception() is None:
            self._history.note("broke", n=name, id=number)

    # Events

    def _receive(self, event: Event) -> None:
        if isinstance(event, GrantPushed):
            self._granted(event)
        elif isinstance(event, Reconnected):
            self._history.note("reconnected")
        self._deliver(event)

    def _granted(self, event: GrantPushed) -> None:
        name, waiter, form, fence, *_ = event
        if is_rate(form.rule):
            self._takings.took(name, waiter, form.number)
        attempt = self._attempts[waiter]
        self._heard[attempt] = time.monotonic_ns()
        self._pushed.add((attempt, fence))
        if isinstance(self._store, QuorumStore) and self._store._session is not None:
            handed = self._store._session.acquisitions.table.by_holder.get(waiter)
            if handed is not None and handed.request.waiter != waiter:
                votes_of = _text(handed.request.waiter, form)
                self._history.note("handed", w=_text(waiter, form), of=votes_of)
