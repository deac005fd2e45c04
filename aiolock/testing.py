"""For tests: a suite that every store passes, and a store that fails on purpose.

**Testing code that uses aiolock.** No server is needed: ``aiolock.connect("memory://")`` keeps the
locks in the event loop that opened it. Clients of one `~aiolock.stores.memory.MemoryServer`
exclude each other as those of one Redis do, so two of them stand for two processes::

    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        async with theirs.lock("order:42"):
            assert await handle_order(ours, 42) == "somebody else is at it"

``MemoryServer(clock=...)`` has a clock of your own, in Unix seconds: set it forward, and leases end
for the server, as they do for a holder that is cut off. What the library itself waits for (a
timeout, the next renewal) runs on the event loop's clock, and by default the server's does too; so
on a loop whose time you control, hours of locking pass in no time.

**Testing what your code does when the store fails.** Wrap a store in a `FaultyStore`.

**Writing a store.** Have a test class inherit from `StoreContract`. It needs pytest with
`pytest-asyncio <https://pytest-asyncio.readthedocs.io>`_, or any other way to run async tests.
"""

# ruff: noqa: PLR2004  # a number in an assertion explains itself

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import socket
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final, Literal, NamedTuple, Self, TypeVar

from aiolock.errors import StoreError
from aiolock.store import (
    CLAIM,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Answer,
    Busy,
    Done,
    Full,
    Granted,
    Inbox,
    Queued,
    Renewal,
    Status,
    Store,
    WaiterId,
)

__all__ = ["FaultyStore", "Operation", "Peer", "StoreContract"]

Value = TypeVar("Value")

Operation = Literal[
    "open", "acquire", "release", "renew", "status", "finish", "request", "break_", "push"
]
"""What can go wrong: each operation of a `Store`, and what it pushes to its client."""

_HELD: Final[tuple[Operation, ...]] = (
    "acquire",
    "release",
    "renew",
    "status",
    "finish",
    "request",
    "break_",
    "push",
)

GIVES_UP: Final = 9.5
"""Seconds for which a `FaultyStore` holds an answer back at most: no `Store` hangs for ever."""


class FaultyStore:
    """A store that fails on purpose, round one that works: ``connect(FaultyStore(store))``.

    Until told otherwise it does what the other does, and counts. It is one client's link, so what
    it does to one client it does to no other::

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
        self._refused: dict[Operation, float] = {}
        self._lost: dict[Operation, float] = {}
        self._held: set[Operation] = set()
        self._back: list[Callable[[], None]] = []
        self._loop: asyncio.AbstractEventLoop

    def __repr__(self) -> str:
        return f"<FaultyStore round {self._store!r}>"

    # What goes wrong

    def refuse(self, operation: Operation, times: float = 1) -> None:
        """The next so many calls (`math.inf`: all) fail with `StoreError` and are not carried out.

        A push cannot be refused; `lose` it.
        """
        self._refused[operation] = times

    def lose(self, operation: Operation, times: float = 1) -> None:
        """The next so many calls are carried out, but their answers are lost: `StoreError`.

        A lost push is simply not delivered.
        """
        self._lost[operation] = times

    def hold(self, *operations: Operation) -> None:
        """Hold back every answer of these operations (of all, if none is named) until `resume`.

        They are carried out. An answer that is held back for 9.5 seconds becomes a `StoreError`,
        as with a store that hangs.
        """
        self._held.update(operations or _HELD)

    def resume(self) -> None:
        """Deliver what was held back, in order, and do no more wrong."""
        self._refused.clear()
        self._lost.clear()
        self._held.clear()
        back, self._back = self._back, []
        for deliver in back:
            deliver()

    # The store

    async def open(self, client: str, inbox: Inbox) -> bool:
        """As the other store, unless refused."""
        self._loop = asyncio.get_running_loop()
        self.calls["open"] += 1
        if _due(self._refused, "open"):
            raise StoreError("open was refused on purpose")
        return await self._store.open(client, _FaultyInbox(self, inbox))

    async def aclose(self) -> None:
        """As the other store; what was held back is delivered."""
        self.resume()
        await self._store.aclose()

    def acquire(
        self, name: str, waiter: str, ttl: int, *, ticket: int, wait: bool, max_waiters: int
    ) -> asyncio.Future[Answer]:
        """As the other store, unless told otherwise."""
        return self._call(
            "acquire",
            lambda: self._store.acquire(
                name, waiter, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            ),
        )

    def release(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        """As the other store, unless told otherwise."""
        return self._call("release", lambda: self._store.release(name, waiter, fence))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        """As the other store, unless told otherwise."""
        return self._call("renew", lambda: self._store.renew(renewals))

    def status(self, name: str) -> asyncio.Future[Status]:
        """As the other store, unless told otherwise."""
        return self._call("status", lambda: self._store.status(name))

    def finish(self, name: str, waiter: str, fence: int, keep: int) -> asyncio.Future[int]:
        """As the other store, unless told otherwise."""
        return self._call("finish", lambda: self._store.finish(name, waiter, fence, keep))

    def request(self, name: str) -> asyncio.Future[int]:
        """As the other store, unless told otherwise."""
        return self._call("request", lambda: self._store.request(name))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """As the other store, unless told otherwise."""
        return self._call("break_", lambda: self._store.break_(name, fences))

    def _call(
        self, operation: Operation, start: Callable[[], asyncio.Future[Value]]
    ) -> asyncio.Future[Value]:
        self.calls[operation] += 1
        future: asyncio.Future[Value] = self._loop.create_future()
        if _due(self._refused, operation):
            self._loop.call_soon(_fail, future, f"{operation} was refused on purpose")
            return future
        lost = _due(self._lost, operation)

        def answered(answer: asyncio.Future[Value]) -> None:
            if operation in self._held:
                self._loop.call_later(
                    GIVES_UP, _fail, future, f"{operation}: no answer, on purpose"
                )
            self._deliver(operation, lambda: _pass_on(answer, future, operation, lost=lost))

        start().add_done_callback(answered)
        return future

    def _push(self, deliver: Callable[[], None]) -> None:
        self.calls["push"] += 1
        if not _due(self._lost, "push"):
            self._deliver("push", deliver)

    def _deliver(self, operation: Operation, deliver: Callable[[], None]) -> None:
        if operation in self._held:
            self._back.append(deliver)
        else:
            deliver()


class _FaultyInbox:
    """The inbox that the store behind a `FaultyStore` sees."""

    def __init__(self, faulty: FaultyStore, inbox: Inbox) -> None:
        self._push = faulty._push
        self._inbox = inbox

    def granted(self, name: str, waiter: str, fence: int, lease: int, now: int) -> None:
        self._push(lambda: self._inbox.granted(name, waiter, fence, lease, now))

    def lost(self, name: str, waiter: str, fence: int, reason: str) -> None:
        self._push(lambda: self._inbox.lost(name, waiter, fence, reason))

    def done(self, name: str) -> None:
        self._push(lambda: self._inbox.done(name))

    def requested(self, name: str, waiter: str, fence: int) -> None:
        self._push(lambda: self._inbox.requested(name, waiter, fence))

    def reconnected(self) -> None:
        self._inbox.reconnected()


def _due(faults: dict[Operation, float], operation: Operation) -> bool:
    left = faults.get(operation, 0)
    faults[operation] = left - 1
    return left > 0


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


# The contract

_LONG: Final = 60_000
"""A ttl, in ms, that does not end while a test runs."""
_PATIENCE: Final = 20.0
"""Seconds after which a test of the contract hangs."""
_A_MOMENT: Final = 0.01
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
    ) -> str:
        """The id of another waiter of this client."""
        blind = blind or not self.counted
        return str(WaiterId(blind, fixed, claim, self.client, next(self._seq), terms, once))

    def ask(
        self,
        name: str,
        waiter: str = "",
        *,
        ticket: int = 0,
        wait: bool = True,
        max_waiters: int = 0,
        ttl: int = _LONG,
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

    async def release(self, name: str, grant: Grant) -> int:
        """Release this very grant."""
        return await self.store.release(name, grant.waiter, grant.fence)

    async def holds(self, name: str, grant: Grant) -> bool:
        """Whether it is a holder still."""
        (held,) = await self.store.renew([Renewal(name, grant.waiter, grant.fence, 0)])
        return held

    async def expire(self, name: str, grant: Grant) -> None:
        """Let a lease end as if nobody had renewed it."""
        assert await self.store.renew([Renewal(name, grant.waiter, grant.fence, 1)]) == [True]
        await asyncio.sleep(_A_MOMENT)

    async def sees_end_of(self, other: Peer) -> None:
        """Close another client's store, and wait until the server has noticed."""
        await other.store.aclose()
        parties: object = "not asked yet"
        while parties:
            name = _name()
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


class StoreContract(ABC):
    """What every store does: one test each, for a store's author to inherit.

    ::

        class TestMyStore(StoreContract):
            def store(self) -> Store:
                return MyStore("localhost")

    Each call of `store` makes another unopened link to one and the same server. pytest makes an
    object of the class for each test, so a fixture of the class may set up what `store` needs. The
    tests use names that nobody else uses.
    """

    @abstractmethod
    def store(self) -> Store:
        """Another unopened store, of the same server each time."""

    async def left_behind(self, name: str) -> object:  # noqa: ARG002  # for those who override it
        """What the server keeps for ``name`` that would not end by itself within minutes.

        For stores that can look into their server; whatever is true here fails a test.
        """
        return None

    @asynccontextmanager
    async def peers(self, count: int) -> AsyncGenerator[list[Peer], None]:
        """So many clients of the server, opened; closed at the end."""
        async with asyncio.timeout(_PATIENCE), AsyncExitStack() as stack:
            yield [await stack.enter_async_context(Peer(self.store())) for _ in range(count)]

    # acquire

    async def test_free_lock_is_granted(self) -> None:
        """A free lock is granted in the answer, for the whole ttl."""
        async with self.peers(1) as (ann,):
            answer = await ann.ask(name := _name(), waiter := ann.waiter(), ttl=5000)
            assert isinstance(answer, Granted)
            assert answer.lease == 5000
            assert answer.fence > 0
            assert await ann.holds(name, Grant(waiter, answer.fence))

    async def test_names_are_different_locks(self) -> None:
        """Names that differ in anything are different locks, whatever is in them."""
        async with self.peers(1) as (ann,):
            stem = _name()
            odd = [
                "",
                ":queue",
                ":holders",
                "{",
                "}",
                "{}",
                "%7B",
                "%257B",
                " ",
                "\n",
                "é",
                "🔒",
                "*",
            ]
            grants = [await ann.take(stem + end) for end in odd]
            assert [await ann.release(stem + e, g) for e, g in zip(odd, grants, strict=True)] == [
                WAS_HOLDER
            ] * len(odd)

    async def test_taken_lock_queues(self) -> None:
        """Who asks for a taken lock is queued behind those before, and told when to look again."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := _name())
            first = await bob.ask(name)
            second = await ann.ask(name)
            assert isinstance(first, Queued)
            assert isinstance(second, Queued)
            assert (first.place, second.place) == (1, 2)
            assert 0 < first.ticket < second.ticket
            assert 0 < second.until <= first.until <= _LONG
            assert first.now <= second.now

    async def test_holder_asks_again(self) -> None:
        """A holder that asks again gets its grant again, and what is left of its lease."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := _name())
            again = await ann.ask(name, grant.waiter, ttl=2 * _LONG)
            assert isinstance(again, Granted)
            assert again.fence == grant.fence
            assert 0 < again.lease <= _LONG

    async def test_handed_waiter_asks_again(self) -> None:
        """A waiter that did not hear of its grant finds it when it asks again."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            await ann.release(name, grant)
            again = await bob.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Granted)
            assert (name, place.waiter, again.fence) == (await bob.handed())[:3]
            assert 0 < again.lease <= CLAIM
            assert not again.displaced

    async def test_waiter_asks_again(self) -> None:
        """A waiter that asks again keeps its place and its ticket, with or without showing it."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := _name())
            place = await bob.queue(name)
            await ann.queue(name)
            for ticket in (0, place.ticket):
                again = await bob.ask(name, place.waiter, ticket=ticket)
                assert isinstance(again, Queued)
                assert (again.ticket, again.place) == (place.ticket, 1)
                assert not again.displaced
            assert len((await ann.store.status(name)).waiters) == 2

    async def test_waiter_comes_back_to_its_old_place(self) -> None:
        """A waiter that had left the queue stands at its old ticket again, not at the end."""
        async with self.peers(2) as (ann, bob):
            await ann.take(name := _name())
            first = await bob.queue(name)
            second = await ann.queue(name)
            await bob.store.release(name, first.waiter, 0)
            assert await ann.queue(name, second.waiter) == second
            back = await bob.ask(name, first.waiter, ticket=first.ticket)
            assert isinstance(back, Queued)
            assert (back.ticket, back.place) == (first.ticket, 1)
            assert back.displaced
            last = await ann.ask(name)
            assert isinstance(last, Queued)
            assert last.place == 3

    async def test_not_waiting(self) -> None:
        """Who does not wait gets a free lock, and of a taken one learns how long it is taken."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            assert isinstance(await ann.ask(name, wait=False), Granted)
            busy = await bob.ask(name, wait=False)
            assert isinstance(busy, Busy)
            assert 0 < busy.until <= _LONG
            assert not (await bob.store.status(name)).waiters

    async def test_not_waiting_does_not_overtake(self) -> None:
        """Who does not wait gets nothing while others do, even when no lease holds any more."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            busy = await cat.ask(name, wait=False)
            assert isinstance(busy, Busy)
            assert 0 < busy.until <= CLAIM
            assert (await bob.handed()).waiter == place.waiter

    async def test_max_waiters(self) -> None:
        """As many may wait as were allowed; who stands in the queue already is not refused."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            assert isinstance(await ann.ask(name, max_waiters=1), Granted)
            waiter = bob.waiter()
            place = await bob.ask(name, waiter, max_waiters=1)
            assert isinstance(place, Queued)
            assert await ann.ask(name, max_waiters=1) == Full(1)
            assert isinstance(await ann.ask(name, max_waiters=2), Queued)
            assert await bob.ask(name, max_waiters=1) == Full(2)
            assert isinstance(await bob.ask(name, waiter, max_waiters=1), Queued)
            await bob.store.release(name, waiter, 0)
            back = await bob.ask(name, waiter, ticket=place.ticket, max_waiters=1)
            assert isinstance(back, Queued)
            assert isinstance(await bob.ask(name, wait=False, max_waiters=1), Busy)

    async def test_max_waiters_of_the_living(self) -> None:
        """Waiters whose client has gone do not count, and leave a full queue."""
        async with self.peers(3) as (ann, bob, cat):
            if not ann.counted:
                return  # then nobody is taken for dead
            await ann.take(name := _name())
            await bob.queue(name)
            place = await ann.queue(name)
            await bob.queue(name)
            assert await cat.ask(name, max_waiters=3) == Full(3)
            await ann.sees_end_of(bob)
            newcomer = await cat.ask(name, max_waiters=3)
            assert isinstance(newcomer, Queued)
            assert newcomer.place == 2
            assert await ann.queue(name, place.waiter) == place
            assert await cat.ask(name, max_waiters=2) == Full(2)

    # release

    async def test_release_of_a_holder(self) -> None:
        """A holder that releases was one, and the lock is free."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            assert await ann.release(name, grant) == WAS_HOLDER
            assert not await ann.holds(name, grant)
            assert (await bob.take(name)).fence > grant.fence

    async def test_release_of_whatever_it_is(self) -> None:
        """Without a fence a waiter is released from wherever it stands."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            first, second = await bob.queue(name), await bob.queue(name)
            assert await bob.store.release(name, first.waiter, 0) == WAS_QUEUED
            again = await bob.ask(name, second.waiter)
            assert isinstance(again, Queued)
            assert again.place == 1
            assert await ann.store.release(name, grant.waiter, 0) == WAS_HOLDER
            assert (await bob.handed()).waiter == second.waiter
            assert await bob.store.release(name, second.waiter, 0) == WAS_HOLDER
            assert (await bob.store.status(name)) == Status(name, (), ())

    async def test_release_of_nobody(self) -> None:
        """Who is neither a holder nor queued was absent, and disturbs nobody."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            assert await bob.store.release(name, bob.waiter(), 0) == WAS_ABSENT
            grant = await ann.take(name)
            for fence in (0, grant.fence):
                assert await bob.store.release(name, bob.waiter(), fence) == WAS_ABSENT
            assert await ann.holds(name, grant)

    async def test_release_of_one_grant(self) -> None:
        """With a fence it speaks of that grant alone: not of another one, nor of a place."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            stale = Grant(grant.waiter, grant.fence - 1)
            assert await ann.release(name, stale) == WAS_ABSENT
            assert await ann.holds(name, grant)
            assert await bob.release(name, Grant(place.waiter, grant.fence)) == WAS_ABSENT
            assert await bob.queue(name, place.waiter) == place

    async def test_release_goes_through_unheard(self) -> None:
        """A release is carried out even when nobody waits for its answer."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := _name())
            ann.store.release(name, grant.waiter, grant.fence).cancel()
            assert not await ann.holds(name, grant)

    async def test_release_goes_through_before_the_end(self) -> None:
        """A store that is closed first carries out what is under way."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            _ = ann.store.release(name, grant.waiter, grant.fence)
            await ann.store.aclose()
            assert (await bob.handed()).waiter == place.waiter

    # Handing on

    async def test_hand_on(self) -> None:
        """A released lock is handed to the next by a push, for the claim that its id names."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := f"{_name()} {{é}}\n%7B x")
            waiter = bob.waiter(claim=2500)
            queued = await bob.ask(name, waiter)
            assert isinstance(queued, Queued)
            assert await ann.release(name, grant) == WAS_HOLDER
            handed = await bob.handed()
            assert handed == (name, waiter, handed.fence, 2500, handed.now)
            assert handed.fence > grant.fence
            assert handed.now >= queued.now
            assert isinstance(await ann.ask(name, wait=False), Busy)
            (holder,) = (await bob.store.status(name)).holders
            assert 0 < holder.remaining <= 2.5

    async def test_hand_on_in_order(self) -> None:
        """The lock goes through the queue in the order of arrival, across all clients."""
        async with self.peers(3) as peers:
            ann = peers[0]
            grant = await ann.take(name := _name())
            order = [(peer, (await peer.queue(name)).waiter) for _ in range(8) for peer in peers]
            fences = [grant.fence]
            for peer, waiter in order:
                assert await ann.release(name, grant) == WAS_HOLDER
                handed = await peer.handed()
                assert handed.waiter == waiter
                grant = Grant(waiter, handed.fence)
                fences.append(handed.fence)
            assert await ann.release(name, grant) == WAS_HOLDER
            assert fences == sorted(set(fences))
            await ann.take(name)

    async def test_hand_on_past_the_dead(self) -> None:
        """Waiters whose client has gone are skipped in the call that would have granted to them."""
        async with self.peers(4) as (ann, bob, cat, dan):
            if not ann.counted:
                return  # then nobody is taken for dead
            grant = await ann.take(name := _name())
            await bob.queue(name)
            await cat.queue(name)
            await bob.queue(name)
            place = await dan.queue(name)
            await ann.sees_end_of(bob)
            await ann.sees_end_of(cat)
            await ann.release(name, grant)
            assert (await dan.handed()).waiter == place.waiter
            status = await ann.store.status(name)
            assert [holder.client for holder in status.holders] == [dan.client]
            assert not status.waiters

    async def test_hand_on_to_nobody(self) -> None:
        """Where every waiter's client has gone, the lock is free."""
        async with self.peers(2) as (ann, bob):
            if not ann.counted:
                return  # then nobody is taken for dead
            grant = await ann.take(name := _name())
            await bob.queue(name)
            await ann.sees_end_of(bob)
            assert await ann.release(name, grant) == WAS_HOLDER
            assert await ann.store.status(name) == Status(name, (), ())
            assert not await self.left_behind(name)

    async def test_hand_on_to_the_blind(self) -> None:
        """A waiter whose listening cannot be counted is never taken for dead."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            await bob.queue(name, bob.waiter(blind=True))
            await bob.store.aclose()
            await ann.release(name, grant)
            (holder,) = (await ann.store.status(name)).holders
            assert holder.client == bob.client

    # Leases

    async def test_renew(self) -> None:
        """A renewal moves the end of a lease to so long from now, later or sooner."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := _name())
            for ttl in (10 * _LONG, 2 * _LONG, 5000):
                assert await ann.store.renew([Renewal(name, *grant, ttl)]) == [True]
                (holder,) = (await ann.store.status(name)).holders
                assert ttl - 5000 < 1000 * holder.remaining <= ttl

    async def test_renew_only_asks(self) -> None:
        """A renewal with a ttl of 0 changes nothing."""
        async with self.peers(1) as (ann,):
            grant = await ann.take(name := _name())
            assert await ann.store.renew([Renewal(name, *grant, 0)]) == [True]
            (holder,) = (await ann.store.status(name)).holders
            assert holder.remaining > 1

    async def test_renew_many(self) -> None:
        """One call renews leases of many names, and answers for each in its order."""
        async with self.peers(2) as (ann, bob):
            names = [_name() for _ in range(40)]
            grants = [await ann.take(name) for name in names]
            released = set(names[::3])
            for name, grant in zip(names, grants, strict=True):
                if name in released:
                    await ann.release(name, grant)
                    await bob.take(name)
            renewals = [Renewal(n, *g, _LONG) for n, g in zip(names, grants, strict=True)]
            answers = await ann.store.renew(renewals)
            assert answers == [name not in released for name in names]

    async def test_renew_refused(self) -> None:
        """What is not a holder is not renewed: a waiter, another grant, a lease that has ended."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            others = [Grant(place.waiter, grant.fence), Grant(grant.waiter, grant.fence + 1)]
            renewals = [Renewal(name, *other, _LONG) for other in others]
            assert await ann.store.renew(renewals) == [False, False]
            await ann.expire(name, grant)
            assert await ann.store.renew([Renewal(name, *grant, _LONG)]) == [False]
            assert await ann.store.renew([Renewal(_name(), *grant, _LONG)]) == [False]

    async def test_lease_ends(self) -> None:
        """A lease that has ended stands in nobody's way, and its client is told."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            await ann.expire(name, grant)
            assert not (await bob.store.status(name)).holders
            theirs = await bob.take(name)
            assert theirs.fence > grant.fence
            assert await ann.told() == Lost(name, grant.waiter, grant.fence, "expired")
            assert not await ann.holds(name, grant)
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await bob.holds(name, theirs)

    async def test_lease_ends_for_a_waiter(self) -> None:
        """The waiter that is next takes the lock over, by asking, when the lease has ended."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            again = await bob.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Granted)
            assert again.lease == _LONG
            assert again.fence > grant.fence
            assert not again.displaced

    async def test_lease_ends_for_a_newcomer(self) -> None:
        """A newcomer who finds that a lease has ended wakes the next, and queues behind."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            newcomer = await cat.ask(name)
            assert isinstance(newcomer, Queued)
            assert newcomer.place == 1
            assert 0 < newcomer.until <= CLAIM
            assert (await bob.handed()).waiter == place.waiter

    async def test_claim_ends(self) -> None:
        """Who does not confirm a grant loses it with its claim, and to the next in the queue."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := _name())
            await bob.queue(name, bob.waiter(claim=1))
            place = await cat.queue(name)
            await ann.release(name, grant)
            handed = await bob.handed()
            assert handed.lease == 1
            await asyncio.sleep(_A_MOMENT)
            after = await cat.take(name, place.waiter, ticket=place.ticket)
            assert after.fence > handed.fence
            assert await bob.told() == Lost(name, handed.waiter, handed.fence, "expired")

    async def test_stuck_client_leaves_the_queue(self) -> None:
        """With a lease that ended the waiters of its client go too: one is stuck, all are."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := _name())
            own = [await ann.queue(name)]
            place = await bob.queue(name)
            own.append(await ann.queue(name))
            await ann.expire(name, grant)
            await cat.queue(name)
            assert (await bob.handed()).waiter == place.waiter
            status = await bob.store.status(name)
            assert [waiter.client for waiter in status.waiters] == [cat.client]
            # It was only slow: told of it, its waiters come back to where they stood.
            assert (await ann.told()).reason == "expired"
            assert [await ann.queue(name, w, ticket=ticket) for w, ticket in own] == own
            status = await bob.store.status(name)
            clients = [waiter.client for waiter in status.waiters]
            assert clients == [ann.client, ann.client, cat.client]

    async def test_stuck_client_comes_back_itself(self) -> None:
        """A client that was only slow, and asks itself, loses the lease but not its place."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            place = await ann.queue(name)
            await bob.queue(name)
            await ann.expire(name, grant)
            again = await ann.ask(name, place.waiter, ticket=place.ticket)
            assert isinstance(again, Granted)
            assert again.fence > grant.fence
            assert again.displaced

    async def test_fixed_lease_ends(self) -> None:
        """The end of a lease that nobody was to renew says nothing about its client."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := _name(), ann.waiter(fixed=True))
            place = await ann.queue(name)
            await bob.queue(name)
            await ann.expire(name, grant)
            await cat.queue(name)
            assert (await ann.told()).waiter == grant.waiter
            assert (await ann.handed()).waiter == place.waiter
            clients = [waiter.client for waiter in (await bob.store.status(name)).waiters]
            assert clients == [bob.client, cat.client]

    # Closed for a while

    async def test_closed_from_the_grant(self) -> None:
        """With `~`, nobody enters for so long after a grant, whenever it was released."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name(), ann.waiter(terms="~200"))
            assert await ann.release(name, grant) == WAS_HOLDER
            assert await ann.release(name, grant) == WAS_ABSENT
            await self._closed(name, bob, most=200)
            after = await self._opened(name, bob)
            assert after.fence > grant.fence
            assert await bob.release(name, after) == WAS_HOLDER
            await ann.release(name, await ann.take(name))

    async def test_closed_after_a_loss(self) -> None:
        """With `+`, nobody enters for so long after the end of a lease that nobody renewed."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name(), ann.waiter(terms="+200"))
            await ann.release(name, grant)
            grant = await ann.take(name, ann.waiter(terms="+200"))  # a release is no loss
            await ann.expire(name, grant)
            await self._closed(name, bob, most=200)
            assert await ann.told() == Lost(name, grant.waiter, grant.fence, "expired")
            assert await ann.release(name, grant) == WAS_ABSENT
            await bob.release(name, await self._opened(name, bob))

    async def test_closed_after_a_break(self) -> None:
        """A broken lock is lost, so with `+` it is closed; and it cannot be broken open."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name(), ann.waiter(terms="+200"))
            assert await bob.store.break_(name, [grant.fence]) == 1
            assert await bob.store.break_(name, [grant.fence]) == 0
            await self._closed(name, bob, most=200)
            await bob.release(name, await self._opened(name, bob))

    async def test_closed_to_the_end_of_the_period(self) -> None:
        """With `@`, nobody enters in the period of the grant, however that has ended."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            for end in (ann.release, ann.expire, ann.release):
                waiter = ann.waiter(terms="@100")
                while True:  # a period of which enough is left to see that it is closed
                    answer = await ann.ask(name, waiter)
                    if isinstance(answer, Granted) and answer.now % 100_000 < 50_000:
                        break
                    if isinstance(answer, Granted):
                        await ann.store.release(name, waiter, answer.fence)
                        waiter = ann.waiter(terms="@100")
                    else:
                        assert isinstance(answer, Queued), answer
                        await asyncio.sleep(answer.until / 1000)
                await end(name, Grant(waiter, answer.fence))
                await self._closed(name, bob, most=100)
                after = await self._opened(name, bob)
                assert after.fence // 100_000 > answer.fence // 100_000
                await bob.release(name, after)

    async def _closed(self, name: str, peer: Peer, *, most: int) -> None:
        """Nobody holds it, nobody enters, and whoever asks is told when it opens."""
        answer = await peer.ask(name, wait=False)
        assert isinstance(answer, Busy), answer
        assert 0 < answer.until <= most
        status = await peer.store.status(name)
        assert status.holders == ()
        assert 0 < status.closed <= most / 1000
        assert await peer.store.request(name) == 0

    async def _opened(self, name: str, peer: Peer) -> Grant:
        """Wait in the queue until it opens."""
        waiter, ticket = peer.waiter(), 0
        while not isinstance(answer := await peer.ask(name, waiter, ticket=ticket), Granted):
            assert isinstance(answer, Queued), answer
            assert answer.place == 1
            ticket = answer.ticket
            await asyncio.sleep(answer.until / 1000)
        assert (await peer.store.status(name)).closed == 0
        return Grant(waiter, answer.fence)

    # Done once

    async def test_finish(self) -> None:
        """What is finished is remembered: those who wait leave and are told, later ones as well."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            grant = await ann.take(name, ann.waiter(once=True))
            places = [await bob.queue(name, bob.waiter(once=True)) for _ in range(2)]
            assert await self._finish(ann, name, grant, 200) == WAS_HOLDER
            assert await self._finish(ann, name, grant, 200) == WAS_HOLDER
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await bob.told_done() == name
            for waiter, ticket, wait in (
                (places[0].waiter, places[0].ticket, True),
                (bob.waiter(once=True), 0, True),
                (ann.waiter(once=True), 0, False),
            ):
                answer = await bob.ask(name, waiter, ticket=ticket, wait=wait)
                assert isinstance(answer, Done), answer
                assert 0 < answer.until <= 200
            status = await bob.store.status(name)
            assert (status.holders, status.waiters) == ((), ())
            assert 0 < status.closed <= 0.2
            await asyncio.sleep(0.2)
            again = await bob.take(name, bob.waiter(once=True))
            assert again.fence > grant.fence
            assert await bob.release(name, again) == WAS_HOLDER

    async def test_finish_of_what_is_lost(self) -> None:
        """Only the holder finishes; what it lost is somebody else's."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            grant = await ann.take(name, ann.waiter(once=True))
            await ann.expire(name, grant)
            theirs = await bob.take(name, bob.waiter(once=True))
            assert await self._finish(ann, name, grant, 200) == WAS_ABSENT
            assert await bob.holds(name, theirs)
            await bob.release(name, theirs)
            assert await self._finish(bob, name, theirs, 200) == WAS_ABSENT
            await ann.release(name, await ann.take(name, ann.waiter(once=True)))

    async def test_finish_is_nothing_to_others(self) -> None:
        """Whoever wants the lock for something else waits, as while it is closed."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            grant = await ann.take(name, ann.waiter(once=True))
            place = await bob.queue(name)
            await self._finish(ann, name, grant, 200)
            assert await bob.queue(name, place.waiter, ticket=place.ticket) == place
            await self._closed(name, bob, most=200)
            await asyncio.sleep(0.2)
            after = await bob.take(name, place.waiter, ticket=place.ticket)
            assert after.fence > grant.fence
            await bob.release(name, after)

    @staticmethod
    async def _finish(peer: Peer, name: str, grant: Grant, keep: int) -> int:
        return await peer.store.finish(name, grant.waiter, grant.fence, keep)

    # request, break_ and status

    async def test_request(self) -> None:
        """Whoever holds the lock hears that somebody asks for it; nothing else changes."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            assert await bob.store.request(name) == 0
            grant = await ann.take(name)
            place = await bob.queue(name)
            assert await bob.store.request(name) == 1
            assert await ann.requested_of() == grant
            assert await ann.holds(name, grant)
            assert await bob.queue(name, place.waiter, ticket=place.ticket) == place

    async def test_break(self) -> None:
        """A broken lock is taken from its holder, who is told, and handed to the next."""
        async with self.peers(3) as (ann, bob, cat):
            grant = await ann.take(name := f"{_name()} {{é}}\n%7B x")
            place, own = await bob.queue(name), await ann.queue(name)
            assert await cat.store.break_(name, [grant.fence]) == 1
            assert await ann.told() == Lost(name, grant.waiter, grant.fence, "broken")
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            assert handed.fence > grant.fence
            assert not await ann.holds(name, grant)
            assert await ann.release(name, grant) == WAS_ABSENT
            assert await ann.queue(name, own.waiter) == own

    async def test_break_of_these_grants(self) -> None:
        """Only the grants that are named are broken, so that a second time breaks nobody else's."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            assert await ann.store.break_(name, [1]) == 0
            grant = await ann.take(name)
            await bob.queue(name)
            assert await ann.store.break_(name, []) == 0
            assert await ann.store.break_(name, [grant.fence + 1]) == 0
            assert await ann.holds(name, grant)
            assert await ann.store.break_(name, [1, grant.fence]) == 1
            assert await ann.store.break_(name, [1, grant.fence]) == 0
            handed = await bob.handed()
            assert await bob.holds(name, Grant(handed.waiter, handed.fence))

    async def test_status(self) -> None:
        """A status shows who holds and who waits, in order, and where they run."""
        async with self.peers(3) as (ann, bob, cat):
            name = _name()
            assert await cat.store.status(name) == Status(name, (), ())
            grant = await ann.take(name)
            for peer in (bob, ann, bob):
                await peer.queue(name)
            status = await cat.store.status(name)
            assert status.name == name
            (holder,) = status.holders
            assert (holder.client, holder.place, holder.fence) == (ann.client, 0, grant.fence)
            assert _LONG / 1000 - 10 < holder.remaining <= _LONG / 1000
            waiters = status.waiters
            assert [waiter.client for waiter in waiters] == [bob.client, ann.client, bob.client]
            assert [waiter.place for waiter in waiters] == [1, 2, 3]
            assert all(waiter.fence == 0 and waiter.remaining == 0 for waiter in waiters)
            since = [party.since for party in (holder, *waiters)]
            assert since == sorted(since)
            assert since[-1] - since[0] < _PATIENCE
            for party in (holder, *waiters):
                assert party.host in (socket.gethostname(), "")
                assert party.pid in (os.getpid(), 0)

    async def test_status_changes_nothing(self) -> None:
        """Looking at a lock neither reaps a holder nor wakes a waiter."""
        async with self.peers(2) as (ann, bob):
            grant = await ann.take(name := _name())
            place = await bob.queue(name)
            await ann.expire(name, grant)
            for _ in range(2):
                status = await bob.store.status(name)
                assert not status.holders
                assert [waiter.client for waiter in status.waiters] == [bob.client]
            after = await bob.take(name, place.waiter, ticket=place.ticket)
            assert after.fence > grant.fence

    # Throughout

    async def test_fences_grow(self) -> None:
        """Each grant has a higher fence than any before, whatever became of that one."""
        async with self.peers(2) as (ann, bob):
            name, fences = _name(), list[int]()
            for _ in range(3):
                grant = await ann.take(name)
                fences.append(grant.fence)
                await bob.queue(name)
                await ann.release(name, grant)
                handed = await bob.handed()
                fences.append(handed.fence)
                await bob.store.break_(name, [handed.fence])
                grant = await ann.take(name)
                fences.append(grant.fence)
                await ann.expire(name, grant)
                grant = await bob.take(name)
                fences.append(grant.fence)
                await bob.release(name, grant)
            assert fences == sorted(set(fences))

    async def test_twice_is_once(self) -> None:
        """What is carried out twice, as after a lost reply, leaves what it leaves once."""
        async with self.peers(3) as (ann, bob, cat):
            name, ours, theirs = _name(), ann.waiter(), bob.waiter()
            one, two = await asyncio.gather(ann.ask(name, ours), ann.ask(name, ours))
            assert isinstance(one, Granted)
            assert isinstance(two, Granted)
            assert one.fence == two.fence
            asked = await asyncio.gather(bob.ask(name, theirs), bob.ask(name, theirs))
            assert isinstance(asked[0], Queued)
            assert isinstance(asked[1], Queued)
            assert asked[0][:2] == asked[1][:2]
            place = await cat.queue(name)
            assert len((await ann.store.status(name)).waiters) == 2
            renewal = Renewal(name, ours, one.fence, _LONG)
            assert await ann.store.renew([renewal, renewal]) == [True, True]
            released = [ann.store.release(name, ours, one.fence) for _ in range(2)]
            assert await asyncio.gather(*released) == [WAS_HOLDER, WAS_ABSENT]
            handed = await bob.handed()
            assert await bob.holds(name, Grant(handed.waiter, handed.fence))
            assert await cat.queue(name, place.waiter) == place
            released = [cat.store.release(name, place.waiter, 0) for _ in range(2)]
            assert await asyncio.gather(*released) == [WAS_QUEUED, WAS_ABSENT]

    async def test_order_of_one_waiter(self) -> None:
        """Commands about one waiter are carried out in the order in which they were called."""
        async with self.peers(2) as (ann, bob):
            name, waiter = _name(), ann.waiter()
            asked = ann.ask(name, waiter)
            released = ann.store.release(name, waiter, 0)
            assert isinstance(await asked, Granted)
            assert await released == WAS_HOLDER
            await bob.take(name)
            asked = ann.ask(name, waiter)
            released = ann.store.release(name, waiter, 0)
            assert isinstance(await asked, Queued)
            assert await released == WAS_QUEUED

    async def test_given_up_before_the_answer(self) -> None:
        """An acquire that was cancelled and released leaves nothing, whether it was sent or not."""
        async with self.peers(2) as (ann, bob):
            name = _name()
            for _ in range(2):
                waiter = ann.waiter()
                ann.ask(name, waiter).cancel()
                await ann.store.release(name, waiter, 0)
                status = await ann.store.status(name)
                assert ann.client not in {p.client for p in (*status.holders, *status.waiters)}
                if not status.holders:
                    await bob.take(name)

    async def test_nothing_is_left(self) -> None:
        """After a lock was used in every way, and given back, the server has forgotten it."""
        async with self.peers(3) as (ann, bob, cat):
            name = _name()
            grant = await ann.take(name)
            given_up, place = await bob.queue(name), await bob.queue(name)
            await bob.store.release(name, given_up.waiter, 0)
            await ann.release(name, grant)
            handed = await bob.handed()
            assert handed.waiter == place.waiter
            await cat.queue(name)
            await ann.store.break_(name, [handed.fence])
            handed = await cat.handed()
            await cat.expire(name, Grant(handed.waiter, handed.fence))
            grant = await ann.take(name)
            await ann.release(name, grant)
            await ann.release(name, grant)
            assert await ann.store.status(name) == Status(name, (), ())
            assert not await self.left_behind(name)

    async def test_closing_twice(self) -> None:
        """A store closes once; closing it again is harmless."""
        async with self.peers(1) as (ann,):
            await ann.take(_name())
            await ann.store.aclose()
            await ann.store.aclose()

    async def test_it_is_a_store(self) -> None:
        """It has every operation of the protocol, and they return futures of the running loop."""
        async with self.peers(1) as (ann,):
            assert isinstance(ann.store, Store)
            name, waiter = _name(), ann.waiter()
            futures: list[asyncio.Future[Any]] = [
                ann.ask(name, waiter),
                ann.store.renew([Renewal(name, waiter, 1, 0)]),
                ann.store.status(name),
                ann.store.break_(name, [1]),
                ann.store.release(name, waiter, 0),
            ]
            for future in futures:
                assert future.get_loop() is asyncio.get_running_loop()
                await future


def _name() -> str:
    """The name of a lock that nobody else uses."""
    return f"contract {secrets.token_hex(8)}"
