"""One client of a store, as the suite uses it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple, Self

from aiolock.store import (
    Answer,
    Form,
    Granted,
    HandoffReport,
    Queued,
    Renewal,
    Rule,
    Store,
    WaiterId,
)

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


def group_of(number: int) -> Form:
    """The form of a waiter that enters with others, this many in all."""
    return Form(CLAIM, shared=True, rule=Rule.GROUP, number=number, declared=number)


def count_of(number: int, declared: int = 0) -> Form:
    """The form of a waiter for a count of at least ``number``."""
    return Form(CLAIM, shared=True, rule=Rule.COUNT, number=number, declared=declared)


class Handed(NamedTuple):
    """The push by which a waiter became the holder."""

    name: str
    waiter: WaiterId
    form: Form
    fence: int
    lease: int
    now: int


class Lost(NamedTuple):
    """The push by which a holder learned that it is one no more."""

    name: str
    waiter: WaiterId
    fence: int
    reason: str


class Grant(NamedTuple):
    """The waiter and fence by which a holder releases and renews."""

    waiter: WaiterId
    fence: int


class Place(NamedTuple):
    """A waiter and its ticket."""

    waiter: WaiterId
    ticket: int


class Peer:
    """One client of a store, as the suite uses it: its waiters, and an inbox that remembers."""

    def __init__(
        self, store: Store, expire: Callable[[Peer, str, Grant], Awaitable[None]] | None = None
    ) -> None:
        """``expire``: how to let a lease end at this store; by a short renewal, if None."""
        self.store = store
        self._expire = expire
        self.client = secrets.token_urlsafe(12)
        self._forms: dict[WaiterId, Form] = {}
        self._handed: asyncio.Queue[Handed] = asyncio.Queue()
        self._lost: asyncio.Queue[Lost] = asyncio.Queue()
        self._requested: asyncio.Queue[Grant] = asyncio.Queue()
        self._done: asyncio.Queue[str] = asyncio.Queue()
        self._order_unknown = asyncio.Queue[WaiterId]()
        self._seq = itertools.count(1)

    async def __aenter__(self) -> Self:
        await self.store.open(self.client, self)
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
        return self.store.acquire(
            name,
            waiter,
            self.form(waiter),
            ttl,
            ticket=ticket,
            wait=wait,
            max_waiters=max_waiters,
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
        return self.store.release(name, waiter, form, fence, entered=entered, lost=lost)

    def leave(self, name: str, waiter: WaiterId, *, entered: bool = True) -> asyncio.Future[int]:
        """Release a waiter, whether it holds or waits."""
        return self.release(name, Grant(waiter, 0), entered=entered)

    def passed(self, name: str, grant: Grant, *via: WaiterId) -> HandoffReport:
        """The report that this grant was handed off, from one waiter to the next, to the last of
        these.
        """
        fence, form = grant.fence + len(via), self.form(grant.waiter)
        return HandoffReport(name, form, grant.waiter, grant.fence, via[-1], fence, via)

    def finish(self, name: str, grant: Grant, remember: int) -> asyncio.Future[int]:
        """End this grant: its work is done."""
        waiter, fence = grant
        return self.store.finish(name, waiter, self.form(waiter), fence, remember)

    def downgrade(self, name: str, grant: Grant) -> asyncio.Future[int]:
        """Let this grant share the lock from now on."""
        waiter, fence = grant
        return self.store.downgrade(name, waiter, self.form(waiter), fence)

    def renewal(self, name: str, grant: Grant, ttl: int) -> Renewal:
        """One grant for `Store.renew`."""
        waiter, fence = grant
        return Renewal(name, waiter, self.form(waiter), fence, ttl)

    async def holds(self, name: str, grant: Grant) -> bool:
        """Whether it is still a holder."""
        (held,) = await self.store.renew([self.renewal(name, grant, 0)])
        assert held is not None, "enough of its servers answer"
        return held

    async def confirm(self, name: str, handed: Handed | Grant) -> Grant:
        """Renew a claim for the first time."""
        grant = Grant(handed.waiter, handed.fence)
        assert await self.store.renew([self.renewal(name, grant, LONG)]) == [True]
        return grant

    async def expire(self, name: str, grant: Grant) -> None:
        """Let a lease end as if nothing had renewed it."""
        if self._expire is None:
            await self.renew_for_a_moment(name, grant)
        else:
            await self._expire(self, name, grant)

    async def renew_for_a_moment(self, name: str, grant: Grant) -> None:
        """Let a lease end in a moment, if a renewal can make it shorter."""
        assert await self.store.renew([self.renewal(name, grant, 1)]) == [True]
        await asyncio.sleep(A_MOMENT)

    async def sees_end_of(self, other: Peer) -> None:
        """Close another client's store, and wait until the server has noticed."""
        grant = await self.take(name := fresh_name())
        await other.queue(name)
        await other.store.aclose()
        while any(waiter.alive for waiter in (await self.store.status(name)).waiters):
            pass
        await self.release(name, grant)

    async def handed(self) -> Handed:
        """The next grant that was pushed."""
        handed = await self._handed.get()
        assert handed.form == self.form(handed.waiter)
        return handed

    async def told(self) -> Lost:
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

    # Inbox

    def done(self, name: str) -> None:
        """Remember it."""
        self._done.put_nowait(name)

    def granted(  # noqa: PLR0917  # an Inbox's
        self, name: str, waiter: WaiterId, form: Form, fence: int, lease: int, now: int
    ) -> None:
        """Remember it."""
        self._handed.put_nowait(Handed(name, waiter, form, fence, lease, now))

    def lost(self, name: str, waiter: WaiterId, fence: int, reason: str) -> None:
        """Remember it."""
        self._lost.put_nowait(Lost(name, waiter, fence, reason))

    def shortened(self, name: str, waiter: WaiterId, fence: int, until: float) -> None:
        """Ignored: a peer has no deadlines."""

    def requested(self, name: str, waiter: WaiterId, fence: int) -> None:  # noqa: ARG002  # an Inbox's
        """Remember it."""
        self._requested.put_nowait(Grant(waiter, fence))

    def order_unknown(self, name: str, waiter: WaiterId) -> None:  # noqa: ARG002  # an Inbox's
        """Remember it."""
        self._order_unknown.put_nowait(waiter)

    def beat(self) -> None:
        """Ignored: a peer asks only what a test tells it to ask."""

    def link(self, error: Exception | None) -> None:
        """Ignored: a peer does not observe."""

    def unconfirmed(
        self, name: str, waiter: WaiterId, form: Form, fence: int, error: Exception
    ) -> None:
        """Never called: no test of the suite stops replicas from following."""

    def reconnected(self) -> None:
        """Never called: no test of the suite breaks a connection."""


def fresh_name() -> str:
    """A name of a lock that nothing else uses."""
    return f"contract {secrets.token_hex(8)}"
