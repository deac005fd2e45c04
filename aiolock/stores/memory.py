"""The embedded store: the protocol's state machine in this process, by the event loop's clock."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from itertools import count, islice
from typing import Any, Final, TypeVar
from weakref import WeakKeyDictionary, ref

from aiolock._adapters import ByMethods
from aiolock._clock import clock as clock_of
from aiolock._turns import PART, in_parts
from aiolock._urls import parse
from aiolock.copying import Uncopyable
from aiolock.errors import StoreError
from aiolock.protocol import (
    Answer,
    Deliver,
    Event,
    Form,
    Late,
    Page,
    Participant,
    Posted,
    Renewal,
    ReportHandoff,
    Status,
    WaiterId,
)
from aiolock.store import Features
from aiolock.stores.machine import NameState, Rest, Step

Value = TypeVar("Value")

_PAGE: Final = 200
"""Names on one page of a snapshot."""
_LISTINGS: Final = 32
"""Snapshots that may be under way at a time, before one has to begin again."""
_SWEPT: Final = 2
"""Names that are checked, to be forgotten, for each new one."""
_PARTIES: Final = 100
"""Holders and waiters that are read at one moment, for a status."""
_PART: Final = 64
"""Operations in one part, each counted with the pushes that it sends."""


class MemoryServer:
    """The state of a lock store, and its operations, each of them one step.

    ``connect(server)`` gives a client of it; clients of one server exclude each other like those of
    one Redis. ``clock`` gives the server's time in Unix seconds, so that tests can control it. The
    default is a clock that cannot be set back, or the event loop's if that has a time of its own.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or self._own_clock
        # A server belongs to no loop, and `_servers` would keep one that it refers to for ever.
        self._loop: ref[asyncio.AbstractEventLoop] | None = None
        self._elapsed: Callable[[], float] | None = None
        """The clock of that loop; None if it is the time of the loop itself."""
        self._epoch: float | None = None
        self._states = OrderedDict[str, NameState]()
        self._listings = OrderedDict[str, list[str]]()
        """The names of the snapshots under way, by their numbers."""
        self._numbers = count(1)
        self._fence = 0
        self._listeners: dict[str, Deliver] = {}
        self.pushed = 0
        """How many pushes it has sent."""
        self._operations: ref[_Operations] | None = None

    def operations(self) -> _Operations:
        """Those of all clients in the running loop: they are carried out in one order."""
        loop = asyncio.get_running_loop()
        operations = None if self._operations is None else self._operations()
        if operations is None or operations.loop is not loop:
            operations = _Operations(self, loop)
            self._operations = ref(operations)
        return operations

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
            asyncio.get_running_loop().call_soon(deliver, event)

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
        not_after: int = 0,
    ) -> Answer | Late:
        return self._step(
            name,
            lambda step: step.acquire(
                waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            ),
            not_after,
        )

    def release(
        self,
        name: str,
        waiter: WaiterId,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
        tombstone_until: int = 0,
    ) -> int:
        return self._must_run(
            name,
            lambda step: step.release(
                waiter, fence, entered=entered, lost=lost, tombstone_until=tombstone_until
            ),
        )

    def report_handoff(self, passed: ReportHandoff, *, not_after: int = 0) -> int | Late:
        return self._step(passed.name, lambda step: step.report_handoff(passed), not_after)

    def renew(self, renewals: Sequence[Renewal], *, not_after: int = 0) -> list[bool | None] | Late:
        if 0 < not_after < (now := self.now()):
            return Late(now)
        return [
            self._must_run(name, partial(Step.renew, waiter=waiter, fence=fence, ttl=ttl))
            for name, waiter, _, fence, ttl in renewals
        ]

    def finish(
        self, name: str, waiter: WaiterId, fence: int, remember: int, *, tombstone_until: int = 0
    ) -> int:
        return self._must_run(
            name, lambda step: step.finish(waiter, fence, remember, tombstone_until=tombstone_until)
        )

    def request(self, name: str, *, not_after: int = 0) -> int | Late:
        return self._step(name, Step.request, not_after)

    def break_(self, name: str, fences: Sequence[int]) -> int:
        return self._must_run(name, lambda step: step.break_(fences))

    def downgrade(self, name: str, waiter: WaiterId, fence: int) -> int:
        return self._must_run(name, lambda step: step.downgrade(waiter, fence))

    def resize(
        self,
        name: str,
        declared: int,
        limit: int,
        remember: int,
        *,
        token: str = "",
        not_after: int = 0,
    ) -> int | Late:
        return self._step(
            name,
            lambda step: step.resize(declared, limit, remember, token=token, late=not_after),
            not_after,
        )

    def post(
        self,
        name: str,
        count: int,
        *,
        token: str,
        declared: int,
        value: str,
        remember: int,
        not_after: int = 0,
    ) -> int | Late:
        return self._step(
            name,
            lambda step: step.post(
                count, token=token, declared=declared, value=value, remember=remember
            ),
            not_after,
        )

    def read(self, name: str) -> Posted:
        return self._must_run(name, Step.read)

    def status(self, name: str, *, waiters: bool = True) -> Status:
        return self._must_run(name, lambda step: step.status(name, waiters=waiters))

    def is_large(self, name: str) -> bool:
        """Whether it has so many holders and waiters that its status is to be read in parts."""
        state = self._states.get(name)
        return state is not None and len(state.queue) + len(state.holders) > _PARTIES

    def status_in_parts(self, name: str) -> Generator[int, None, Status]:
        """The status, part by part; yields, before each part, how many units of work it is.

        The holders come last: so a waiter that is granted the lock meanwhile is not missed.
        """
        state = self._states.get(name) or NameState()
        waiters, holders = list[Participant](), list[Participant]()
        queue = list(state.queue)
        for start in range(0, len(queue), _PARTIES):
            yield _PARTIES
            some = queue[start : start + _PARTIES]
            waiters += self._reading(state).waiters(some, len(waiters) + 1)
        grants = list(state.holders)
        for start in range(0, len(grants), _PARTIES):
            yield _PARTIES
            holders += self._reading(state).holders(grants[start : start + _PARTIES])
        yield PART
        return self._reading(state).status_of(name, holders, waiters)

    def listed(self, start: str) -> tuple[list[str], str]:
        """The names of a page that are held or waited for, and the start of the next page.

        The names are listed once, for the first page. If that list is forgotten, because so many
        were asked for since, all names are listed again.
        """
        listing, _, first = start.partition(".")
        names, at = self._listings.pop(listing, None), int(first or 0)
        if names is None:
            names, at = list(self._states), 0
        page = [self._states.get(name) for name in names[at : at + _PAGE]]
        here = [
            name
            for name, state in zip(names[at : at + _PAGE], page, strict=True)
            if state is not None and (state.holders or state.queue)
        ]
        if at + _PAGE >= len(names):
            return here, ""
        listing = listing or str(next(self._numbers))
        self._listings[listing] = names
        if len(self._listings) > _LISTINGS:
            self._listings.popitem(last=False)
        return here, f"{listing}.{at + _PAGE}"

    def _reading(self, state: NameState) -> Step:
        return Step(state, self.now(), self.listens, self._fence, _metadata)

    def names(self) -> list[str]:
        """Every name that is held or waited for; none once all is released."""
        return [name for name, state in self._states.items() if state.holders or state.queue]

    def _step(self, name: str, operation: Callable[[Step], Value], not_after: int) -> Value | Late:
        """Carry out an operation, unless this copy of it comes too late."""
        if 0 < not_after < (now := self.now()):
            return Late(now)
        return self._must_run(name, operation)

    def _must_run(self, name: str, operation: Callable[[Step], Value]) -> Value:
        state = self._states.get(name)
        if state is None:
            self._sweep()
            state = self._states[name] = NameState()
        # One counter of fences for all names: it only grows, so an idle name need not be kept.
        step = Step(state, self.now(), self.listens, self._fence, _metadata, in_parts=True)
        answer = operation(step)
        self._done(name, state, step)
        return answer

    def _go_on(self, name: str, rest: Rest) -> None:
        """Go on with what a step has left."""
        self._must_run(name, lambda step: step.go_on(rest))

    def _later(self, call: Callable[[], None]) -> None:
        """Call this soon, after all that is due now."""
        asyncio.get_running_loop().call_soon(call)

    def _done(self, name: str, state: NameState, step: Step) -> None:
        self._fence = step.fence
        if step.pushes:
            for push in step.pushes:
                self.push(push.waiter.client, push.event(name))
        if step.rest is not None:
            self._later(partial(self._go_on, name, step.rest))
        if not state.holders and state.idle:
            self._states.pop(name, None)

    def _sweep(self) -> None:
        """Forget names that were not used since their lease ended.

        For each new name two others are checked, in turn: so at most twice as many are kept as are
        in use, and no operation takes longer than others.
        """
        now = self.now()
        for name, state in list(islice(self._states.items(), _SWEPT)):
            self._states.move_to_end(name)
            if max(state.until, state.holders.last_end) <= now // 1000:
                step = Step(state, now, self.listens, self._fence, _metadata, in_parts=True)
                step.reap()  # it may be closed from now on, and its numbers are kept for that
                self._done(name, state, step)


def _metadata(_: str) -> tuple[str, int]:
    """Every client of this server is in this process."""
    return socket.gethostname(), os.getpid()


class _Operations:
    """The operations on a server, carried out in the order in which they are asked for.

    As a rule each is carried out in the very call. But what it pushes may make many tasks ask for
    more at once, each of which makes more of them ask: of ten thousand readers that leave as soon
    as they have entered, each lets in others. So after a number of operations, and of the pushes
    that they send, the rest is carried out in the next iterations of the event loop.
    """

    def __init__(self, server: MemoryServer, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._server = server
        self._part = 0
        self._left = _PART
        """How much may be done in this part; nothing, if operations wait for the next one."""
        self._waiting = deque[tuple[asyncio.Future[Any], Callable[[], Any]]]()

    def ask(self, operation: Callable[[], Any]) -> asyncio.Future[Any]:
        """The future of an operation's answer."""
        future: asyncio.Future[Any] = self.loop.create_future()
        if self._left > 0:
            self._carry_out(future, operation)
        else:
            self._waiting.append((future, operation))
        return future

    def _carry_out(self, future: asyncio.Future[Any], operation: Callable[[], Any]) -> None:
        before = self._server.pushed
        answer = operation()
        # Never at once: even a free lock takes an iteration, so no task starves the others.
        self.loop.call_soon(self._answer, self._part, future, answer)
        self._left -= 1 + self._server.pushed - before

    def _answer(self, part: int, future: asyncio.Future[Any], answer: object) -> None:
        if part == self._part:  # the first answer of that part: it is another iteration now
            self._begin_part()
        if not future.done():
            future.set_result(answer)

    def _begin_part(self) -> None:
        self._part += 1
        self._left = _PART
        while self._waiting and self._left > 0:
            future, operation = self._waiting.popleft()
            try:
                self._carry_out(future, operation)
            except Exception as error:  # noqa: BLE001  # that of its caller, not of this one
                if not future.done():
                    future.set_exception(error)


class MemoryStore(ByMethods, Uncopyable):
    """One client's link to a `MemoryServer`; answers come in a later loop iteration."""

    features = Features()

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self._client: str | None = None

    def __repr__(self) -> str:
        return f"<MemoryStore of {self.server!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._operations = self.server.operations()
        self.server.listen(client, deliver)

    async def aclose(self) -> None:
        if self._client is not None:
            self.server.leave(self._client)
            self._client = None

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
        return self._start(
            lambda: self.server.acquire(
                name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            )
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
        return self._start(
            lambda: self.server.release(name, waiter, fence, entered=entered, lost=lost)
        )

    def report_handoff(self, passed: ReportHandoff) -> asyncio.Future[int]:
        return self._start(lambda: self.server.report_handoff(passed))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        return self._start(lambda: self.server.renew(renewals))

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        if waiters and self._client is not None and self.server.is_large(name):
            return self._loop.create_task(self._in_parts(self.server.status_in_parts(name)))
        return self._start(lambda: self.server.status(name, waiters=waiters))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        if self._client is None:
            return self._start(lambda: Page((), ""))
        return self._loop.create_task(self._in_parts(self._snapshot(start)))

    async def _in_parts(self, steps: Generator[int, None, Value]) -> Value:
        await self._start(lambda: None)  # behind all operations that were asked for before
        return await in_parts(steps)

    def _snapshot(self, start: str) -> Generator[int, None, Page]:
        statuses = list[Status]()
        names, more = self.server.listed(start)
        for name in names:
            yield 2
            if self.server.is_large(name):
                statuses.append((yield from self.server.status_in_parts(name)))
            else:
                statuses.append(self.server.status(name))
        return Page(statuses, more)

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        return self._start(lambda: self.server.finish(name, waiter, fence, remember))

    def request(self, name: str) -> asyncio.Future[int]:
        return self._start(lambda: self.server.request(name))

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        return self._start(lambda: self.server.downgrade(name, waiter, fence))

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        return self._start(lambda: self.server.resize(name, declared, limit, remember))

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        return self._start(
            lambda: self.server.post(
                name, count, token=token, declared=declared, value=value, remember=remember
            )
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        return self._start(lambda: self.server.read(name))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return self._start(lambda: self.server.break_(name, fences))

    def _start(self, operation: Callable[[], Value | Late]) -> asyncio.Future[Value]:
        if self._client is not None:
            return self._operations.ask(operation)
        future: asyncio.Future[Value] = self._loop.create_future()
        error = StoreError("the store is closed")
        error.refused = True
        future.set_exception(error)
        return future


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryServer]] = (
    WeakKeyDictionary()
)


class _ByUrl(MemoryStore):
    """The store of a ``memory://`` URL: its server is the event loop's own, found on opening."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._client = None

    def __repr__(self) -> str:
        return f"<MemoryStore memory://{self._name}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self.server = _server(self._name)
        await super().open(client, deliver)


def _server(name: str) -> MemoryServer:
    servers = _servers.setdefault(asyncio.get_running_loop(), {})
    return servers.setdefault(name, MemoryServer())


def _name_in(url: str, prefix: str) -> str:
    parts = parse(url, "memory:// or memory://name")
    parts.no_user()
    parts.no_options()
    ((host, port), *others) = parts.addresses
    if parts.path not in ("", "/") or port or others:
        raise parts.wrong("a memory URL has a name at most")
    return f"{host}/{prefix}"


def from_url(url: str, prefix: str) -> MemoryStore:
    """``memory://`` or ``memory://name``: one server per event loop and name."""
    return _ByUrl(_name_in(url, prefix))


def server_finder(url: str, prefix: str) -> Callable[[], MemoryServer]:
    """A function that finds the server of a URL, in the event loop that runs then."""
    return partial(_server, _name_in(url, prefix))


def from_server(server: MemoryServer) -> MemoryStore:
    """A client's link to ``server``, which is a namespace of its own: no prefix is needed."""
    return MemoryStore(server)
