"""The protocol in plain Python: the embedded store, and the model the scripts are tested against.

Read `MemoryServer` beside ``redis/lua/*.lua``: each method is the script of the same name.
"""

from __future__ import annotations

import asyncio
import os
import socket
import time
from bisect import bisect_left, insort
from collections.abc import Callable, Sequence
from typing import Any, Final, NamedTuple, TypeVar
from urllib.parse import urlsplit
from weakref import WeakKeyDictionary

from aiolock.errors import StoreError
from aiolock.store import (
    NOBODY,
    WAS_ABSENT,
    WAS_HOLDER,
    WAS_QUEUED,
    Answer,
    Busy,
    Done,
    Full,
    Granted,
    Inbox,
    Party,
    Queued,
    Renewal,
    Status,
    WaiterId,
)

Value = TypeVar("Value")


_CLOSED: Final = str(WaiterId(blind=False, fixed=True, claim=0, client=NOBODY, seq=0))
"""Holds the lock while it is closed."""
_DONE: Final = str(WaiterId(blind=False, fixed=True, claim=0, client=NOBODY, seq=0, once=True))
"""Holds the lock while it is remembered that something is done."""
_NOBODYS: Final = (_CLOSED, _DONE)


class Grant(NamedTuple):
    """One entry among the holders."""

    waiter: str
    fence: int


class _Line:
    """What is kept of one name."""

    def __init__(self) -> None:
        self.holders: dict[Grant, int] = {}  # -> the end of the lease, ms
        self.queue: list[tuple[int, str]] = []  # (ticket, waiter), in order
        self.tickets: dict[str, int] = {}

    def enqueue(self, ticket: int, waiter: str) -> None:
        self.tickets[waiter] = ticket
        insort(self.queue, (ticket, waiter))

    def place(self, waiter: str) -> int:
        return bisect_left(self.queue, (self.tickets[waiter], waiter)) + 1

    def dequeue(self, waiter: str) -> bool:
        if waiter not in self.tickets:
            return False
        del self.queue[self.place(waiter) - 1]
        del self.tickets[waiter]
        return True


class MemoryServer:
    """The state of a lock store, and its operations, each of them one step.

    ``connect(server)`` gives a client of it; clients of one server exclude each other as those of
    one Redis do. ``clock`` gives the server's time in Unix seconds, so that tests can own it; by
    default it runs with the event loop's, which nobody can set back.
    """

    def __init__(self, clock: Callable[[], float] | None = None) -> None:
        self._clock = clock or self._loop_clock
        self._epoch: float | None = None
        self._lines: dict[str, _Line] = {}
        self._sweep_at = 1024
        self._fence = 0
        self._inboxes: dict[str, Inbox] = {}

    def now(self) -> int:
        """The server's clock, in microseconds."""
        return int(self._clock() * 1_000_000)

    def _loop_clock(self) -> float:
        elapsed = asyncio.get_running_loop().time()
        if self._epoch is None:
            self._epoch = time.time() - elapsed
        return self._epoch + elapsed

    def listen(self, client: str, inbox: Inbox) -> None:
        self._inboxes[client] = inbox

    def leave(self, client: str) -> None:
        """The client listens no more, whether it said good-bye or died."""
        self._inboxes.pop(client, None)

    def push(self, client: str, deliver: Callable[[Inbox], None]) -> int:
        """Send to a client; how many heard it."""
        inbox = self._inboxes.get(client)
        if inbox is None:
            return 0
        asyncio.get_running_loop().call_soon(deliver, inbox)
        return 1

    def acquire(
        self, name: str, waiter: str, ttl: int, *, ticket: int, wait: bool, max_waiters: int
    ) -> Answer:
        line, now = self._line(name), self.now()
        for grant, end in list(line.holders.items()):
            if end <= now // 1000:
                self._reap(name, line, grant, now)
        for (holder, fence), end in line.holders.items():
            left = end - now // 1000
            if holder == waiter:
                return Granted(fence, left, now)
            done = holder == _DONE and WaiterId.parse(waiter).once
            if done or not wait:
                return Done(left) if done else Busy(left)
        displaced = ticket > 0 and waiter not in line.tickets
        free = not line.holders and not line.queue
        if not free and wait and not self._enqueue(line, waiter, ticket, max_waiters, now):
            return Full(len(line.queue))
        if free or (not line.holders and self._advance(name, line, now, asking=waiter)):
            return Granted(self._grant(line, waiter, ttl, now), ttl, now, displaced)
        until = min(line.holders.values()) - now // 1000
        if not wait:
            return Busy(until)
        return Queued(line.tickets[waiter], line.place(waiter), until, now, displaced)

    def release(self, name: str, waiter: str, fence: int) -> int:
        line = self._line(name)
        if not fence:
            if line.dequeue(waiter):
                return self._done(name, line, WAS_QUEUED)
            fence = next((g.fence for g in line.holders if g.waiter == waiter), 0)
        if line.holders.pop(Grant(waiter, fence), None) is None:
            return self._done(name, line, WAS_ABSENT)
        now = self.now()
        if not self._close(line, Grant(waiter, fence), now):
            self._advance(name, line, now, ours=WaiterId.parse(waiter).client)
        return self._done(name, line, WAS_HOLDER)

    def renew(self, renewals: Sequence[Renewal]) -> list[bool]:
        now, held = self.now() // 1000, list[bool]()
        for name, waiter, fence, ttl in renewals:
            holders, grant = self._line(name).holders, Grant(waiter, fence)
            held.append(holders.get(grant, 0) > now)
            if held[-1] and ttl:
                holders[grant] = now + ttl
        return held

    def finish(self, name: str, waiter: str, fence: int, keep: int) -> int:
        line, now = self._line(name), self.now()
        if line.holders.pop(Grant(waiter, fence), None) is None:
            return int(Grant(_DONE, fence) in line.holders)
        line.holders[Grant(_DONE, fence)] = now // 1000 + keep
        waiting = [who for _, who in line.queue if WaiterId.parse(who).once]
        for who in waiting:
            line.dequeue(who)
        for client in dict.fromkeys(WaiterId.parse(who).client for who in waiting):
            self.push(client, lambda inbox: inbox.done(name))
        return WAS_HOLDER

    def request(self, name: str) -> int:
        held = [g for g, end in self._line(name).holders.items() if end > self.now() // 1000]
        return sum(self._request(name, grant) for grant in held if grant.waiter not in _NOBODYS)

    def break_(self, name: str, fences: Sequence[int]) -> int:
        line = self._line(name)
        now = self.now()
        held = [grant for grant in line.holders if grant.waiter not in _NOBODYS]
        broken = [grant for grant in held if grant.fence in fences]
        closed = False
        for grant in broken:
            del line.holders[grant]
            closed = self._close(line, grant, now, lost=now // 1000) or closed
            self._tell_lost(name, grant, "broken")
        if broken and not closed:
            self._advance(name, line, now)
        return self._done(name, line, len(broken))

    def status(self, name: str) -> Status:
        line, now = self._line(name), self.now()
        host, pid = socket.gethostname(), os.getpid()
        holders = (
            Party(
                client=WaiterId.parse(grant.waiter).client,
                host=host,
                pid=pid,
                since=grant.fence / 1e6,
                place=0,
                fence=grant.fence,
                remaining=(end - now / 1000) / 1000,
            )
            for grant, end in line.holders.items()
            if end > now // 1000 and grant.waiter not in _NOBODYS
        )
        opens = max((end for g, end in line.holders.items() if g.waiter in _NOBODYS), default=0)
        waiters = (
            Party(WaiterId.parse(waiter).client, host, pid, ticket / 1e6, place)
            for place, (ticket, waiter) in enumerate(line.queue, start=1)
        )
        return Status(name, tuple(holders), tuple(waiters), max(0.0, (opens - now / 1000) / 1000))

    def names(self) -> list[str]:
        """Every name of which something is kept: none, once all is released."""
        return [name for name, line in self._lines.items() if line.holders or line.queue]

    def _line(self, name: str) -> _Line:
        if len(self._lines) >= self._sweep_at:
            self._sweep()
        return self._lines.setdefault(name, _Line())

    def _done(self, name: str, line: _Line, answer: int) -> int:
        if not line.holders and not line.queue:
            self._lines.pop(name, None)
        return answer

    def _sweep(self) -> None:
        """Forget the names that nobody released or asked for since their lease ended."""
        past = self.now() // 1000
        for name, line in list(self._lines.items()):
            if not line.queue and all(end <= past for end in line.holders.values()):
                del self._lines[name]
        self._sweep_at = max(1024, 2 * len(self._lines))

    def _grant(self, line: _Line, waiter: str, lease: int, now: int) -> int:
        # One counter for all names: it only grows, so an idle name leaves nothing behind.
        self._fence = max(self._fence + 1, now)
        line.holders[Grant(waiter, self._fence)] = now // 1000 + lease
        return self._fence

    def _advance(
        self, name: str, line: _Line, now: int, *, asking: str | None = None, ours: str = ""
    ) -> bool:
        """Hand the free lock on; True when it is the turn of ``asking``, or nobody waits.

        The client ``ours`` is being answered, so it is there, whether or not it listens.
        """
        while line.queue:
            head = line.queue[0][1]
            line.dequeue(head)
            if head == asking:
                return True
            who = WaiterId.parse(head)
            if who.client in self._inboxes or who.blind or who.client == ours:
                fence = self._grant(line, head, who.claim, now)
                self.push(who.client, _grant_push(name, head, fence, who.claim, now))
                return False
        return True

    def _close(self, line: _Line, grant: Grant, now: int, lost: int | None = None) -> bool:
        """Let nobody in for as long as the terms of a grant that has ended say; whether they do."""
        granted = min(grant.fence, now) // 1000
        opens = WaiterId.parse(grant.waiter).opens(granted, lost)
        if opens <= now // 1000:
            return False
        line.holders[Grant(_CLOSED, grant.fence)] = opens
        return True

    def _reap(self, name: str, line: _Line, grant: Grant, now: int) -> None:
        ended = line.holders.pop(grant)
        self._close(line, grant, now, lost=ended)
        gone = WaiterId.parse(grant.waiter)
        if not gone.fixed:
            for _, waiter in list(line.queue):
                if WaiterId.parse(waiter).client == gone.client:
                    line.dequeue(waiter)
        self._tell_lost(name, grant, "expired")

    def _enqueue(self, line: _Line, waiter: str, ticket: int, max_waiters: int, now: int) -> bool:
        """Put it at its old place or behind the tail; False when as many wait as may."""
        if waiter in line.tickets:
            return True
        if not ticket and 0 < max_waiters <= len(line.queue):
            self._bury(line)
            if max_waiters <= len(line.queue):
                return False
        line.enqueue(ticket or max(now, line.queue[-1][0] + 1 if line.queue else 0), waiter)
        return True

    def _bury(self, line: _Line) -> None:
        for _, waiter in list(line.queue):
            who = WaiterId.parse(waiter)
            if who.client not in self._inboxes and not who.blind:
                line.dequeue(waiter)

    def _tell_lost(self, name: str, grant: Grant, reason: str) -> None:
        client = WaiterId.parse(grant.waiter).client
        if client != NOBODY:
            self.push(client, lambda inbox: inbox.lost(name, grant.waiter, grant.fence, reason))

    def _request(self, name: str, grant: Grant) -> int:
        client = WaiterId.parse(grant.waiter).client
        return self.push(client, lambda inbox: inbox.requested(name, grant.waiter, grant.fence))


def _grant_push(
    name: str, waiter: str, fence: int, lease: int, now: int
) -> Callable[[Inbox], None]:
    return lambda inbox: inbox.granted(name, waiter, fence, lease, now)


class MemoryStore:
    """One client's link to a `MemoryServer`; answers come in the next turn of the event loop."""

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self._client: str | None = None

    def __repr__(self) -> str:
        return f"<MemoryStore of {self.server!r}>"

    async def open(self, client: str, inbox: Inbox) -> bool:
        self._client = client
        self._loop = asyncio.get_running_loop()
        self.server.listen(client, inbox)
        return True

    async def aclose(self) -> None:
        if self._client is not None:
            self.server.leave(self._client)
            self._client = None

    def acquire(
        self, name: str, waiter: str, ttl: int, *, ticket: int, wait: bool, max_waiters: int
    ) -> asyncio.Future[Answer]:
        return self._soon(
            self.server.acquire(
                name, waiter, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            )
        )

    def release(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        return self._soon(self.server.release(name, waiter, fence))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        return self._soon(self.server.renew(renewals))

    def status(self, name: str) -> asyncio.Future[Status]:
        return self._soon(self.server.status(name))

    def finish(self, name: str, waiter: str, fence: int, keep: int) -> asyncio.Future[int]:
        return self._soon(self.server.finish(name, waiter, fence, keep))

    def request(self, name: str) -> asyncio.Future[int]:
        return self._soon(self.server.request(name))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return self._soon(self.server.break_(name, fences))

    def _soon(self, answer: Value) -> asyncio.Future[Value]:
        future: asyncio.Future[Value] = self._loop.create_future()
        if self._client is None:
            future.set_exception(StoreError("the store is closed"))
        else:
            # Never at once: a free lock is still a turn of the loop, so no task starves the others.
            self._loop.call_soon(_resolve, future, answer)
        return future


def _resolve(future: asyncio.Future[Any], answer: object) -> None:
    if not future.done():
        future.set_result(answer)


_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryServer]] = (
    WeakKeyDictionary()
)


class _ByUrl(MemoryStore):
    """The server that a ``memory://`` URL names: the event loop's own, found on opening."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._client = None

    def __repr__(self) -> str:
        return f"<MemoryStore memory://{self._name}>"

    async def open(self, client: str, inbox: Inbox) -> bool:
        servers = _servers.setdefault(asyncio.get_running_loop(), {})
        self.server = servers.setdefault(self._name, MemoryServer())
        return await super().open(client, inbox)


def from_url(url: str, prefix: str) -> MemoryStore:
    """``memory://`` or ``memory://name``: one server per event loop and name."""
    parts = urlsplit(url)
    if parts.path.strip("/") or parts.query or parts.username:
        raise ValueError(f"a memory URL is memory:// or memory://name, not {url!r}")
    return _ByUrl(f"{parts.netloc}/{prefix}")


def from_server(server: MemoryServer) -> MemoryStore:
    """A client's link to ``server``, which is a namespace of its own: no prefix is needed."""
    return MemoryStore(server)
