"""One client of a store, as the contract plays it."""

from __future__ import annotations

import asyncio
import itertools
import secrets
from typing import Final, NamedTuple, Self

from aiolock.store import CLAIM, Answer, Granted, Queued, Renewal, Store, WaiterId

LONG: Final = 60_000
"""A ttl, in ms, that does not end while a test runs."""
PATIENCE: Final = 20.0
"""Seconds after which a test of the contract hangs."""
A_MOMENT: Final = 0.01
"""Seconds in which a lease of 1 ms has certainly ended."""


class Handed(NamedTuple):
    """The push by which a waiter became the holder."""

    name: str
    waiter: str
    fence: int
    lease: int
    now: int


class Lost(NamedTuple):
    """The push by which a holder learned that it is one no more."""

    name: str
    waiter: str
    fence: int
    reason: str


class Grant(NamedTuple):
    """What a holder releases and renews by."""

    waiter: str
    fence: int


class Place(NamedTuple):
    """A waiter and its ticket."""

    waiter: str
    ticket: int


class Peer:
    """One client of a store, as the contract plays it: its waiters, and an inbox that remembers."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.client = secrets.token_urlsafe(12)
        self.counted = False
        self._handed: asyncio.Queue[Handed] = asyncio.Queue()
        self._lost: asyncio.Queue[Lost] = asyncio.Queue()
        self._requested: asyncio.Queue[Grant] = asyncio.Queue()
        self._done: asyncio.Queue[str] = asyncio.Queue()
        self._seq = itertools.count(1)

    async def __aenter__(self) -> Self:
        self.counted = await self.store.open(self.client, self)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.aclose()

    def waiter(
        self,
        *,
        claim: int = CLAIM,
        fixed: bool = False,
        blind: bool = False,
        terms: str = "",
        once: bool = False,
        shared: bool = False,
        downgrades: bool = False,
        rule: str = "",
    ) -> str:
        """The id of another waiter of this client."""
        return str(
            WaiterId(
                blind or not self.counted,
                fixed,
                claim,
                self.client,
                next(self._seq),
                terms,
                once,
                shared or rule != "",
                downgrades,
                rule,
            )
        )

    def ask(
        self,
        name: str,
        waiter: str = "",
        *,
        ticket: int = 0,
        wait: bool = True,
        max_waiters: int = 0,
        ttl: int = LONG,
    ) -> asyncio.Future[Answer]:
        """Start an acquire, of a new waiter if none is given."""
        return self.store.acquire(
            name,
            waiter or self.waiter(),
            ttl,
            ticket=ticket,
            wait=wait,
            max_waiters=max_waiters,
        )

    async def take(self, name: str, waiter: str = "", *, ticket: int = 0) -> Grant:
        """Acquire a lock that must be free."""
        waiter = waiter or self.waiter()
        answer = await self.ask(name, waiter, ticket=ticket)
        assert isinstance(answer, Granted), answer
        return Grant(waiter, answer.fence)

    async def queue(self, name: str, waiter: str = "", *, ticket: int = 0) -> Place:
        """Queue for a lock that must be taken."""
        waiter = waiter or self.waiter()
        answer = await self.ask(name, waiter, ticket=ticket)
        assert isinstance(answer, Queued), answer
        return Place(waiter, answer.ticket)

    async def release(self, name: str, grant: Grant, *, entered: bool = True) -> int:
        """Release this very grant."""
        return await self.store.release(name, grant.waiter, grant.fence, entered=entered)

    async def holds(self, name: str, grant: Grant) -> bool:
        """Whether it is a holder still."""
        (held,) = await self.store.renew([Renewal(name, grant.waiter, grant.fence, 0)])
        return held

    async def confirm(self, name: str, handed: Handed) -> Grant:
        """Renew the claim of a pushed grant for the first time."""
        grant = Grant(handed.waiter, handed.fence)
        assert await self.store.renew([Renewal(name, *grant, LONG)]) == [True]
        return grant

    async def expire(self, name: str, grant: Grant) -> None:
        """Let a lease end as if nobody had renewed it."""
        assert await self.store.renew([Renewal(name, grant.waiter, grant.fence, 1)]) == [True]
        await asyncio.sleep(A_MOMENT)

    async def sees_end_of(self, other: Peer) -> None:
        """Close another client's store, and wait until the server has noticed."""
        await other.store.aclose()
        parties: object = "not asked yet"
        while parties:
            name = fresh_name()
            grant = await self.take(name)
            await self.queue(name, other.waiter())
            await self.release(name, grant)
            parties = (await self.store.status(name)).holders

    async def handed(self) -> Handed:
        """The next grant that was pushed."""
        return await self._handed.get()

    async def told(self) -> Lost:
        """The next loss that was pushed."""
        return await self._lost.get()

    async def requested_of(self) -> Grant:
        """The next grant of ours that somebody asked for."""
        return await self._requested.get()

    async def told_done(self) -> str:
        """The next name of which we heard that it is done."""
        return await self._done.get()

    # Inbox

    def done(self, name: str) -> None:
        """Remember it."""
        self._done.put_nowait(name)

    def granted(self, name: str, waiter: str, fence: int, lease: int, now: int) -> None:
        """Remember it."""
        self._handed.put_nowait(Handed(name, waiter, fence, lease, now))

    def lost(self, name: str, waiter: str, fence: int, reason: str) -> None:
        """Remember it."""
        self._lost.put_nowait(Lost(name, waiter, fence, reason))

    def requested(self, name: str, waiter: str, fence: int) -> None:  # noqa: ARG002  # an Inbox's
        """Remember it."""
        self._requested.put_nowait(Grant(waiter, fence))

    def reconnected(self) -> None:
        """Nothing that the contract does makes a connection break."""


def fresh_name() -> str:
    """The name of a lock that nobody else uses."""
    return f"contract {secrets.token_hex(8)}"
