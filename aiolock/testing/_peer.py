"""One client of a store, as the suite uses it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Self

from aiolock.protocol import (
    Acquire,
    Answer,
    AskAgain,
    Downgrade,
    Event,
    Finish,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    OrderUnknown,
    Queued,
    ReadStatus,
    Reconnected,
    Release,
    ReleaseRequested,
    Renew,
    Renewal,
    ReportHandoff,
    Rule,
    WaiterId,
)
from aiolock.store import Store

LONG: Final = 60_000
"""A ttl, in ms, that does not end while a test runs."""
CLAIM: Final = 50_000
"""A claim, in ms, that does not end while a test runs on a busy machine."""
PATIENCE: Final = 45.0
"""Seconds after which a test of the suite counts as hanging: before a claim ends."""
A_MOMENT: Final = 0.01
"""Seconds in which a lease of 1 ms has certainly ended."""

PLAIN: Final = Form(CLAIM)
"""The form of a waiter that wants the lock alone."""
READER: Final = Form(CLAIM, shared=True)
"""The form of a waiter that shares the lock with all others that share it."""


def permits(number: int, declared: int) -> Form:
    """The form of a waiter that wants this many of the declared permits."""
    return Form(CLAIM, shared=True, rule=Rule.PERMITS, number=number, declared=declared)


def alike(number: int) -> Form:
    """The form of a waiter that shares with those of the same number, 1 or `MANY`, or of none."""
    return Form(CLAIM, shared=True, rule=Rule.ALIKE, number=number)


def group_of(number: int) -> Form:
    """The form of a waiter that enters with others, this many in all."""
    return Form(CLAIM, shared=True, rule=Rule.GROUP, number=number, declared=number)


def count_of(number: int, declared: int = 0) -> Form:
    """The form of a waiter for a count of at least ``number``."""
    return Form(CLAIM, shared=True, rule=Rule.COUNT, number=number, declared=declared)


class Grant(NamedTuple):
    """The waiter and fence by which a holder releases and renews."""

    waiter: WaiterId
    fence: int


class Place(NamedTuple):
    """A waiter and its ticket."""

    waiter: WaiterId
    ticket: int


class Peer:
    """One client of a store, as the suite uses it: its waiters, and its events, remembered."""

    def __init__(
        self, store: Store, expire: Callable[[Peer, str, Grant], Awaitable[None]] | None = None
    ) -> None:
        """``expire``: how to let a lease end at this store; by a short renewal, if None."""
        self.store = store
        self._expire = expire
        self.client = secrets.token_urlsafe(12)
        self._forms: dict[WaiterId, Form] = {}
        self._handed: asyncio.Queue[GrantPushed] = asyncio.Queue()
        self._lost: asyncio.Queue[GrantLost] = asyncio.Queue()
        self._requested: asyncio.Queue[Grant] = asyncio.Queue()
        self._done: asyncio.Queue[str] = asyncio.Queue()
        self._order_unknown = asyncio.Queue[WaiterId]()
        self._seq = itertools.count(1)
        self.reconnected = asyncio.Event()
        """Set when events may have been missed."""

    async def __aenter__(self) -> Self:
        await self.store.open(self.client, self.deliver)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.aclose()

    def waiter(self, form: Form = PLAIN) -> WaiterId:
        """Another waiter of this client, whose form is remembered."""
        waiter = WaiterId(self.client, next(self._seq))
        self._forms[waiter] = form
        return waiter

    def form(self, waiter: WaiterId) -> Form:
        """The form of a waiter of this client."""
        return self._forms[waiter]

    def ask(
        self,
        name: str,
        waiter: WaiterId | None = None,
        *,
        ticket: int = 0,
        wait: bool = True,
        max_waiters: int = 0,
        ttl: int = LONG,
    ) -> asyncio.Future[Answer]:
        """Start an acquire, for a new waiter if none is given."""
        waiter = waiter or self.waiter()
        return self.store.submit(
            Acquire(
                name,
                waiter,
                self.form(waiter),
                ttl,
                ticket=ticket,
                wait=wait,
                max_waiters=max_waiters,
            )
        )

    async def take(self, name: str, waiter: WaiterId | None = None, *, ticket: int = 0) -> Grant:
        """Acquire a lock that must be free."""
        waiter = waiter or self.waiter()
        answer = await self.ask(name, waiter, ticket=ticket)
        assert isinstance(answer, Granted), answer
        return Grant(waiter, answer.fence)

    async def queue(self, name: str, waiter: WaiterId | None = None, *, ticket: int = 0) -> Place:
        """Queue for a lock that must be taken."""
        waiter = waiter or self.waiter()
        answer = await self.ask(name, waiter, ticket=ticket)
        assert isinstance(answer, Queued), answer
        return Place(waiter, answer.ticket)

    def release(
        self, name: str, grant: Grant, *, entered: bool = True, lost: bool = False
    ) -> asyncio.Future[int]:
        """Release this very grant."""
        waiter, fence = grant
        form = self.form(waiter)
        return self.store.submit(Release(name, waiter, form, fence, entered=entered, lost=lost))

    def leave(self, name: str, waiter: WaiterId, *, entered: bool = True) -> asyncio.Future[int]:
        """Release a waiter, whether it holds or waits."""
        return self.release(name, Grant(waiter, 0), entered=entered)

    def passed(self, name: str, grant: Grant, *via: WaiterId) -> ReportHandoff:
        """The report that this grant was handed off, from one waiter to the next, to the last of
        these.
        """
        fence, form = grant.fence + len(via), self.form(grant.waiter)
        return ReportHandoff(name, form, grant.waiter, grant.fence, via[-1], fence, via)

    def finish(self, name: str, grant: Grant, remember: int) -> asyncio.Future[int]:
        """End this grant: its work is done."""
        waiter, fence = grant
        return self.store.submit(Finish(name, waiter, self.form(waiter), fence, remember))

    def downgrade(self, name: str, grant: Grant) -> asyncio.Future[int]:
        """Let this grant share the lock from now on."""
        waiter, fence = grant
        return self.store.submit(Downgrade(name, waiter, self.form(waiter), fence))

    def renewal(self, name: str, grant: Grant, ttl: int) -> Renewal:
        """One grant for `Renew`."""
        waiter, fence = grant
        return Renewal(name, waiter, self.form(waiter), fence, ttl)

    async def holds(self, name: str, grant: Grant) -> bool:
        """Whether it is still a holder."""
        (held,) = await self.store.submit(Renew([self.renewal(name, grant, 0)]))
        assert held is not None, "enough of its servers answer"
        return held

    async def confirm(self, name: str, handed: GrantPushed | Grant) -> Grant:
        """Renew a claim for the first time."""
        grant = Grant(handed.waiter, handed.fence)
        assert await self.store.submit(Renew([self.renewal(name, grant, LONG)])) == [True]
        return grant

    async def expire(self, name: str, grant: Grant) -> None:
        """Let a lease end as if nothing had renewed it."""
        if self._expire is None:
            await self.renew_for_a_moment(name, grant)
        else:
            await self._expire(self, name, grant)

    async def renew_for_a_moment(self, name: str, grant: Grant) -> None:
        """Let a lease end in a moment, if a renewal can make it shorter."""
        assert await self.store.submit(Renew([self.renewal(name, grant, 1)])) == [True]
        await asyncio.sleep(A_MOMENT)

    async def sees_end_of(self, other: Peer) -> None:
        """Close another client's store, and wait until the server has noticed."""
        grant = await self.take(name := fresh_name())
        await other.queue(name)
        await other.store.aclose()
        while any(waiter.alive for waiter in (await self.store.submit(ReadStatus(name))).waiters):
            pass
        await self.release(name, grant)

    async def handed(self) -> GrantPushed:
        """The next grant that was pushed."""
        handed = await self._handed.get()
        assert handed.form == self.form(handed.waiter)
        return handed

    async def told(self) -> GrantLost:
        """The next loss that was pushed."""
        return await self._lost.get()

    async def requested_of(self) -> Grant:
        """The next grant of ours whose release was asked for."""
        return await self._requested.get()

    async def told_order_unknown(self) -> WaiterId:
        """The next waiter of ours that another one has come directly before."""
        return await self._order_unknown.get()

    async def told_done(self) -> str:
        """The next name of a `done` push."""
        return await self._done.get()

    def deliver(self, event: Event) -> None:
        """Remember an event. A peer has no deadlines, asks only what a test tells it to ask, and
        does not observe its link.
        """
        match event:
            case GrantPushed():
                self._handed.put_nowait(event)
            case GrantLost():
                self._lost.put_nowait(event)
            case ReleaseRequested(_, waiter, fence):
                self._requested.put_nowait(Grant(waiter, fence))
            case OrderUnknown(_, waiter):
                self._order_unknown.put_nowait(waiter)
            case AskAgain(name):
                self._done.put_nowait(name)
            case Reconnected():
                self.reconnected.set()
            case _:
                pass


def fresh_name() -> str:
    """A name of a lock that nothing else uses."""
    return f"contract {secrets.token_hex(8)}"
