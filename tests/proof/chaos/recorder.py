"""A store between aiolock and the real one, that records what only a store can see."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextvars import ContextVar
from functools import partial

import aiolock
from aiolock.store import Answer, Form, Inbox, Queued, Relay, Renewal, Store, WaiterId
from aiolock.stores.quorum import QuorumStore
from aiolock.stores.redis._codec import encode
from tests.proof.chaos.history import History

ATTEMPT: ContextVar[str] = ContextVar("attempt", default="")
"""The attempt for which something is done, also in tasks that are started to do it."""


def key(lease: aiolock.Lease) -> str:
    """The name at the store, which histories use: locks of two kinds may have one name."""
    return lease._hold.policy.key


def _text(waiter: WaiterId, form: Form) -> str:
    """A waiter as the conductor sees it at the server."""
    return encode(waiter, form, blind=False)


class Recorder(Relay):
    """A store that passes everything on, and records what only a store can see."""

    def __init__(self, store: Store, history: History) -> None:
        super().__init__(store)
        self._history = history
        self._attempts: dict[WaiterId, str] = {}
        self._over: set[WaiterId] = set()  # waiters whose end is written down
        self._left: set[WaiterId] = set()  # waiters whose body is over
        self._pushed: set[tuple[str, int]] = set()  # attempt, fence
        self._heard: dict[str, int] = {}
        self._leases: dict[WaiterId, tuple[str, aiolock.Lease, int]] = {}
        """By waiter, because readers may share a fence: its attempt, its lease, and until when."""
        self._breaks = 0

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

    async def open(self, client: str, inbox: Inbox) -> None:
        self._inbox = inbox
        await self._store.open(client, self)

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
        # A timer asked again, so this is not in the attempt's own context.
        if waiter not in self._attempts:
            self._attempts[waiter] = ATTEMPT.get()
            if ATTEMPT.get():
                self._history.note("waits", a=ATTEMPT.get(), w=_text(waiter, form))
        attempt = self._attempts[waiter]
        asked = self._store.acquire(
            name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
        )
        asked.add_done_callback(partial(self._answered, attempt, name, time.monotonic_ns()))
        return asked

    def _answered(
        self, attempt: str, name: str, since: int, answered: asyncio.Future[Answer]
    ) -> None:
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
        since = time.monotonic_ns()
        attempt = self._attempts.get(waiter, "")
        if entered and attempt and waiter not in self._left:
            self._history.note("taken_back", t=since, a=attempt, n=name, fence=fence)
        released = self._store.release(name, waiter, form, fence, entered=entered, lost=lost)
        released.add_done_callback(partial(self._given_back, attempt, name, fence, since))
        if entered or not fence:  # else the client asks again
            released.add_done_callback(partial(self._is_over, waiter, form))
        return released

    def _is_over(self, waiter: WaiterId, form: Form, released: asyncio.Future[int]) -> None:
        heard = not released.cancelled() and released.exception() is None
        if heard and waiter not in self._over:
            self._over.add(waiter)
            self._history.note("over", w=_text(waiter, form))

    def _given_back(
        self, attempt: str, name: str, fence: int, since: int, released: asyncio.Future[int]
    ) -> None:
        if fence and not released.cancelled() and released.exception() is None:
            was = released.result()
            self._history.note("given_back", a=attempt, n=name, fence=fence, since=since, was=was)

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        renewed = self._store.renew(renewals)
        renewed.add_done_callback(partial(self._look_soon, renewals))
        self._look_soon(renewals)  # `extend` to less counts from when it is sent
        return renewed

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        self._breaks += 1
        number = self._breaks
        self._history.note("breaking", n=name, fences=list(fences), id=number)
        broken = self._store.break_(name, fences)
        broken.add_done_callback(partial(self._broke, name, number))
        return broken

    def _broke(self, name: str, number: int, broken: asyncio.Future[int]) -> None:
        if not broken.cancelled() and broken.exception() is None:
            self._history.note("broke", n=name, id=number)

    # Inbox

    def granted(  # noqa: PLR0917  # see `Inbox`
        self, name: str, waiter: WaiterId, form: Form, fence: int, lease: int, now: int
    ) -> None:
        attempt = self._attempts[waiter]
        self._heard[attempt] = time.monotonic_ns()
        self._pushed.add((attempt, fence))
        if isinstance(self._store, QuorumStore):
            handed = self._store._candidates._runs.get(waiter)
            if handed is not None and handed.request.waiter != waiter:
                votes_of = _text(handed.request.waiter, form)
                self._history.note("handed", w=_text(waiter, form), of=votes_of)
        self._inbox.granted(name, waiter, form, fence, lease, now)

    def lost(self, name: str, waiter: WaiterId, fence: int, reason: str) -> None:
        self._inbox.lost(name, waiter, fence, reason)

    def shortened(self, name: str, waiter: WaiterId, fence: int, until: float) -> None:
        self._inbox.shortened(name, waiter, fence, until)

    def done(self, name: str) -> None:
        self._inbox.done(name)

    def requested(self, name: str, waiter: WaiterId, fence: int) -> None:
        self._inbox.requested(name, waiter, fence)

    def order_unknown(self, name: str, waiter: WaiterId) -> None:
        self._inbox.order_unknown(name, waiter)

    def link(self, error: Exception | None) -> None:
        self._inbox.link(error)

    def unconfirmed(
        self, name: str, waiter: WaiterId, form: Form, fence: int, error: Exception
    ) -> None:
        self._inbox.unconfirmed(name, waiter, form, fence, error)

    def reconnected(self) -> None:
        self._history.note("reconnected")
        self._inbox.reconnected()

    def beat(self) -> None:
        self._inbox.beat()
