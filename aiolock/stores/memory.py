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
from dataclasses import replace
from functools import lru_cache
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
    Differs,
    Done,
    Full,
    Granted,
    Inbox,
    Late,
    Party,
    Posted,
    Queued,
    Renewal,
    Status,
    WaiterId,
)

Value = TypeVar("Value")


_DONE: Final = str(WaiterId(blind=False, fixed=True, claim=0, client=NOBODY, seq=0, once=True))
"""Holds the lock while it is remembered that something is done."""
_parse = lru_cache(maxsize=4096)(WaiterId.parse)
_A_MINUTE: Final = 60_000
"""Milliseconds for which a number that was declared is remembered when nobody holds any more."""
RESIZED: Final = 10_000
"""Milliseconds for which a resize is known again, after the last copy of it may have come: the
client may send another, with a later limit, for that long."""
_KEEP_ALIVE: Final = 60_000
"""Milliseconds after which to ask again where no lease will end."""


class Grant(NamedTuple):
    """One entry among the holders."""

    waiter: str
    fence: int

    @property
    def who(self) -> WaiterId:
        return _parse(self.waiter)

    @property
    def nobodys(self) -> bool:
        return self.who.client == NOBODY

    @property
    def downgraded(self) -> Grant:
        """As it stands among the holders once it shares."""
        return Grant("s" + self.waiter[1:], self.fence)

    @property
    def as_granted(self) -> Grant:
        """As its client knows it."""
        return Grant("x" + self.waiter[1:], self.fence) if self.who.downgrades else self


class _Line:
    """What is kept of one name."""

    def __init__(self) -> None:
        self.holders: dict[Grant, int] = {}  # -> the end of the lease, ms
        self.claims: set[Grant] = set()  # those whose lease is a claim that is not confirmed
        self.tombstones: dict[
            str, int
        ] = {}  # what was given up -> until when copies of it may come
        # Remembered until `until`, and while somebody holds.
        self.limit: int | None = None
        self.declared = self.count = 0
        self.tokens: set[str] = set()
        self.value = ""
        self.until = 0
        self.passing = 0  # how many more of a full group enter, within one operation
        self.queue: list[tuple[int, str]] = []  # (ticket, waiter), in order
        self.tickets: dict[str, int] = {}

    def remove(self, grant: Grant) -> bool:
        """Take a grant out of the holders; whether it was a claim that nobody has confirmed."""
        del self.holders[grant]
        claim = grant in self.claims
        self.claims.discard(grant)
        return claim

    def give_up(self, what: str, until: int, now: int) -> None:
        """Remember that this was given up, for as long as copies of it may still come."""
        self.tombstones = {each: end for each, end in self.tombstones.items() if end > now}
        self.tombstones[what] = until
        self.keep(until)

    def gave_up(self, what: str, now: int) -> bool:
        """Whether it was given up, and this may be a copy of it."""
        return self.tombstones.get(what, 0) > now

    def enqueue(self, ticket: int, waiter: str) -> None:
        self.tickets[waiter] = ticket
        insort(self.queue, (ticket, waiter))

    @property
    def open(self) -> bool:
        """Nobody holds it who is exclusive: whoever holds it may share it."""
        return all(grant.who.shared for grant in self.holders)

    @property
    def idle(self) -> bool:
        """Nothing is to be kept of it."""
        remembered = self.limit is not None or self.count or self.value or self.tombstones
        return not (self.holders or self.queue or remembered)

    def find(self, waiter: str, fence: int) -> Grant | None:
        """This grant, as it stands among the holders now."""
        grant = Grant(waiter, fence)
        if grant not in self.holders and grant.who.downgrades:
            grant = grant.downgraded
        return grant if grant in self.holders else None

    def used(self) -> int:
        """How many permits are taken."""
        return sum(grant.who.permits for grant in self.holders)

    def permits(self, declared: int, now: int) -> int:
        """How many there are; where that is forgotten, as many as are declared."""
        if self.limit is None:
            self.limit = declared
            self.keep(now + _A_MINUTE)
        return self.limit

    def differs(self, declared: int, now: int) -> bool:
        """Whether another number is known."""
        return self.permits(declared, now) != declared != self.declared

    def keep(self, until: int) -> None:
        """Remember the numbers until then, at least."""
        self.until = max(self.until, until)

    def forget(self) -> None:
        self.limit = None
        self.declared = self.count = self.until = 0
        self.tokens.clear()
        self.tombstones.clear()
        self.value = ""

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
        self,
        name: str,
        waiter: str,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
        not_after: int = 0,
    ) -> Answer | Late:
        line, now, who = self._line(name), self.now(), _parse(waiter)
        if 0 < not_after < now:
            return self._done(name, line, Late(now))
        known = self._known(name, line, waiter, now)
        if known is not None:
            return known
        displaced = ticket > 0 and waiter not in line.tickets
        if self._enters(line, waiter, now, wait=wait):
            line.dequeue(waiter)
            if line.passing:
                self._advance(name, line, now, asker=who.client)
            return Granted(self._grant(line, waiter, ttl, now), ttl, now, displaced)
        if wait and not self._enqueue(line, waiter, ticket, max_waiters, now):
            full = Full(len(line.queue))
            if line.open and not who.counts:  # dead ones have left: who was behind them may fit
                self._advance(name, line, now, asker=who.client)
            return full
        fence = 0
        if line.open and not who.counts:
            fence = self._advance(name, line, now, asking=waiter, ttl=ttl, asker=who.client)
            if not wait and not line.queue and self._fits(line, who, now, who.client):
                fence = self._grant(line, waiter, ttl, now)  # all that waited were dead
        if fence:
            return Granted(fence, ttl, now, displaced)
        return self._taken(line, waiter, now, wait=wait, displaced=displaced)

    def _enters(self, line: _Line, waiter: str, now: int, *, wait: bool) -> bool:
        """Whether it enters at once: past those that wait, if it is in nobody's way."""
        who = _parse(waiter)
        completes = who.rule.startswith("&") and not wait and waiter not in line.tickets
        past = who.counts or completes or not line.queue
        return past and self._fits(line, who, now, who.client)

    @staticmethod
    def _taken(line: _Line, waiter: str, now: int, *, wait: bool, displaced: bool) -> Answer:
        first = min(line.holders.items(), key=lambda held: held[1], default=None)
        until = first[1] - now // 1000 if first else _KEEP_ALIVE
        if wait:
            return Queued(line.tickets[waiter], line.place(waiter), until, now, displaced)
        return Busy(until, _holder(*first, now) if first and not first[0].nobodys else None)

    def _known(self, name: str, line: _Line, waiter: str, now: int) -> Answer | None:
        """The answer where what it wants cannot be, or is done, or it is a holder already."""
        who = _parse(waiter)
        if line.gave_up(waiter, now // 1000):
            return Busy(0)
        if who.declared and line.differs(who.declared, now // 1000):
            return Differs(line.limit or 0)
        if any(end <= now // 1000 for end in line.holders.values()):
            self._reap(name, line, now)
        for grant, end in line.holders.items():
            left = end - now // 1000
            if grant.waiter == waiter:
                return Granted(grant.fence, left, now, claim=grant in line.claims)
            if grant.waiter == _DONE and who.once:
                return Done(left)
        return None

    def release(
        self, name: str, waiter: str, fence: int, *, entered: bool = True, bury: int = 0
    ) -> int:
        line, now, client = self._line(name), self.now(), _parse(waiter).client
        if bury:
            line.give_up(waiter, -(-bury // 1000), now // 1000)
        if not fence:
            if line.dequeue(waiter):
                if line.queue and line.open:
                    self._advance(name, line, now, asker=client)
                return self._done(name, line, WAS_QUEUED)
            fence = next((g.fence for g in line.holders if g.as_granted.waiter == waiter), 0)
        grant = line.find(waiter, fence)
        if grant is None:
            return self._done(name, line, WAS_ABSENT)
        line.remove(grant)
        exclusive = not grant.who.shared
        if not (entered and self._close(name, line, grant, now) and exclusive):
            self._advance(name, line, now, asker=client)
        return self._done(name, line, WAS_HOLDER)

    def renew(self, renewals: Sequence[Renewal], *, not_after: int = 0) -> list[bool] | Late:
        micros, held = self.now(), list[bool]()
        now = micros // 1000
        if 0 < not_after < micros:
            return Late(micros)
        for name, waiter, fence, ttl in renewals:
            line = self._line(name)
            grant = line.find(waiter, fence)
            held.append(grant is not None and line.holders[grant] > now)
            if grant is not None and held[-1] and ttl:
                line.holders[grant] = now + ttl
                line.claims.discard(grant)
                line.keep(now + ttl + _A_MINUTE)
        return held

    def finish(self, name: str, waiter: str, fence: int, keep: int, *, bury: int = 0) -> int:
        line, now = self._line(name), self.now()
        keep = max(keep, -(-bury // 1000) - now // 1000)
        if Grant(waiter, fence) not in line.holders:
            return int(Grant(_DONE, fence) in line.holders)
        line.remove(Grant(waiter, fence))
        line.holders[Grant(_DONE, fence)] = now // 1000 + keep
        waiting = [who for _, who in line.queue if _parse(who).once]
        for who in waiting:
            line.dequeue(who)
        for client in dict.fromkeys(_parse(who).client for who in waiting):
            self.push(client, lambda inbox: inbox.done(name))
        return WAS_HOLDER

    def request(self, name: str, *, not_after: int = 0) -> int | Late:
        now = self.now()
        if 0 < not_after < now:
            return Late(now)
        held = [g for g, end in self._line(name).holders.items() if end > now // 1000]
        return sum(self._request(name, grant) for grant in held if not grant.nobodys)

    def break_(self, name: str, fences: Sequence[int]) -> int:
        line, now = self._line(name), self.now()
        broken = [g for g in line.holders if g.fence in fences and not g.nobodys]
        for grant in broken:
            claim = line.remove(grant)
            self._tell_lost(name, grant, "broken")
            self._close(name, line, grant, now, lost=now // 1000, claim=claim)
        if broken:
            self._advance(name, line, now)
        return self._done(name, line, len(broken))

    def downgrade(self, name: str, waiter: str, fence: int) -> int:
        line, now = self._line(name), self.now()
        grant = line.find(waiter, fence)
        if grant is None:
            return self._done(name, line, WAS_ABSENT)
        if not grant.who.shared:
            end = line.holders[grant]
            if end <= now // 1000:
                return WAS_ABSENT
            if line.remove(grant):
                line.claims.add(grant.downgraded)
            line.holders[grant.downgraded] = end
            self._advance(name, line, now)
        return WAS_HOLDER

    def resize(
        self,
        name: str,
        declared: int,
        limit: int,
        keep: int,
        *,
        token: str = "",
        not_after: int = 0,
    ) -> int | Late:
        line, now = self._line(name), self.now()
        if 0 < not_after < now:
            return self._done(name, line, Late(now))
        tombstone = f"{token}="
        for known in line.tombstones:
            if token and known.startswith(tombstone) and line.gave_up(known, now // 1000):
                return int(known.removeprefix(tombstone))
        before = line.permits(declared, now // 1000)
        if token:
            until = -(-(not_after or now) // 1000) + RESIZED
            line.give_up(f"{tombstone}{before}", until, now // 1000)
        other = before if declared == limit else declared
        if other != limit:
            line.declared = other
        line.limit = limit
        line.keep(now // 1000 + keep)
        self._advance(name, line, now)
        return before

    def post(
        self,
        name: str,
        count: int,
        *,
        token: str,
        declared: int,
        value: str,
        keep: int,
        not_after: int = 0,
    ) -> int | Late:
        line, now = self._line(name), self.now()
        if 0 < not_after < now:
            return self._done(name, line, Late(now))
        if declared and line.differs(declared, now // 1000):
            return -(line.limit or 0)
        before = line.count
        if value and count >= before:
            line.value = value
        line.count = max(line.count, count)
        if token and token not in line.tokens:
            line.tokens.add(token)
            line.count += 1
        line.keep(now // 1000 + keep)
        self._advance(name, line, now, counted=line.count > before)
        return line.count

    def read(self, name: str) -> Posted:
        line = self._line(name)
        return self._done(name, line, Posted(line.count, line.value))

    def status(self, name: str, *, waiters: bool = True) -> Status:
        line, now = self._line(name), self.now()
        held = [(grant, end) for grant, end in line.holders.items() if end > now // 1000]
        held.sort(key=lambda one: one[0].fence)
        opens = max((end for grant, end in held if grant.nobodys), default=0)
        holders = tuple(
            self._seen(_holder(grant, end, now), grant.who)
            for grant, end in held
            if not grant.nobodys
        )
        queue = [(ticket, _parse(waiter)) for ticket, waiter in line.queue if waiters]
        waiting = tuple(
            self._seen(_party(who, ticket / 1e6, place), who)
            for place, (ticket, who) in enumerate(queue, start=1)
        )
        closed = max(0.0, (opens - now / 1000) / 1000)
        return self._done(name, line, Status(name, holders, waiting, closed, line.limit))

    def _seen(self, party: Party, who: WaiterId) -> Party:
        return replace(party, alive=self._listens(who, ""))

    def names(self) -> list[str]:
        """Every name that somebody holds or waits for: none, once all is released."""
        return [name for name, line in self._lines.items() if line.holders or line.queue]

    def _line(self, name: str) -> _Line:
        if len(self._lines) >= self._sweep_at:
            self._sweep()
        line = self._lines.setdefault(name, _Line())
        if line.until and line.until <= self.now() // 1000:
            line.forget()
        return line

    def _done(self, name: str, line: _Line, answer: Value) -> Value:
        if line.idle:
            self._lines.pop(name, None)
        return answer

    def _sweep(self) -> None:
        """Forget the names that nobody released or asked for since their lease ended."""
        past = self.now() // 1000
        for name, line in list(self._lines.items()):
            if line.until <= past and all(end <= past for end in line.holders.values()):
                self._reap(name, line, self.now())
                if line.until <= past:  # else it is closed now, and its numbers are kept for that
                    line.forget()
                self._done(name, line, None)
        self._sweep_at = max(1024, 2 * len(self._lines))

    def _listens(self, who: WaiterId, asker: str) -> bool:
        """Whether there is anybody to tell; ``asker`` is being answered, so that one is there."""
        return who.client == asker or who.client in self._inboxes or who.blind

    def _grant(self, line: _Line, waiter: str, lease: int, now: int, *, claim: bool = False) -> int:
        # One counter for all names: it only grows, so an idle name leaves nothing behind.
        self._fence = max(self._fence + 1, now)
        end = now // 1000 + lease
        line.holders[Grant(waiter, self._fence)] = end
        if claim:
            line.claims.add(Grant(waiter, self._fence))
        if _parse(waiter).shared:
            line.keep(end + _A_MINUTE)
        return self._fence

    def _fits(self, line: _Line, who: WaiterId, now: int, asker: str) -> bool:
        """Whether this waiter, who is not in the queue now, may enter beside those who hold it."""
        if not line.open or not (who.shared or not line.holders):
            return False  # exclusive: alone
        if who.rule.startswith("&"):
            return self._is_full(line, who.number - 1, asker)
        if who.counts:
            return line.count >= who.number
        if who.permits:
            return line.used() + who.number <= line.permits(who.declared, now // 1000)
        return True

    def _is_full(self, line: _Line, others: int, asker: str) -> bool:
        """Whether the group is full: the others stand in the queue, or are passing already."""
        if line.passing:
            line.passing -= 1
            return True
        if len(line.queue) >= others:
            self._bury(line, asker)
        if len(line.queue) < others:
            return False
        line.passing = others
        return True

    def _advance(
        self,
        name: str,
        line: _Line,
        now: int,
        *,
        asking: str = "",
        ttl: int = 0,
        asker: str = "",
        counted: bool = False,
    ) -> int:
        """Let those at the head of the queue in for as long as they fit; the fence of ``asking``.

        The client ``asker`` is being answered, so it is there, whether or not it listens. Where
        something was ``counted``, those that wait for a higher count are passed over.
        """
        mine, over = 0, list[tuple[int, str]]()
        while line.queue:
            ticket, head = line.queue[0]
            who = _parse(head)
            line.dequeue(head)
            if not self._listens(who, asker):
                continue
            if not self._fits(line, who, now, asker):
                over.append((ticket, head))
                if counted and who.counts and not who.declared:
                    continue
                break
            if head == asking:
                mine = self._grant(line, head, ttl, now)
            else:
                fence = self._grant(line, head, who.claim, now, claim=True)
                self.push(who.client, _grant_push(name, head, fence, who.claim, now))
            if not who.shared or (who.permits and line.used() >= (line.limit or 0)):
                break  # nobody fits beside it, or all permits are taken
        for ticket, head in over:
            line.enqueue(ticket, head)
        line.passing = 0
        return mine

    def _close(
        self,
        name: str,
        line: _Line,
        grant: Grant,
        now: int,
        *,
        lost: int | None = None,
        claim: bool = False,
    ) -> bool:
        """Let nobody in for as long as the terms of a grant that has ended say; whether they do."""
        granted = min(grant.fence, now) // 1000
        who = grant.who
        opens = who.opens(granted, lost, confirmed=not claim)
        if opens <= now // 1000:
            return False
        nobody = WaiterId(
            blind=False,
            fixed=True,
            claim=0,
            client=NOBODY,
            seq=0,
            shared=who.shared,
            rule=who.rule,
        )
        line.holders[Grant(str(nobody), grant.fence)] = opens
        line.keep(opens + _A_MINUTE)
        if line.queue:
            self.push(_parse(line.queue[0][1]).client, lambda inbox: inbox.done(name))
        return True

    def _reap(self, name: str, line: _Line, now: int) -> None:
        ended = [(grant, end) for grant, end in line.holders.items() if end <= now // 1000]
        stuck = set[str]()
        for grant, end in ended:
            claim = line.remove(grant)
            self._tell_lost(name, grant, "expired")
            self._close(name, line, grant, now, lost=end, claim=claim)
            # A claim is to be confirmed, whether or not the lease is renewed afterwards.
            if claim or not grant.who.fixed:
                stuck.add(grant.who.client)
        for _, waiter in list(line.queue):
            if _parse(waiter).client in stuck:
                line.dequeue(waiter)

    def _enqueue(self, line: _Line, waiter: str, ticket: int, max_waiters: int, now: int) -> bool:
        """Put it at its old place or behind the tail; False when as many wait as may."""
        if waiter in line.tickets:
            return True
        if not ticket and 0 < max_waiters <= len(line.queue):
            self._bury(line, _parse(waiter).client)
            if max_waiters <= len(line.queue):
                return False
        line.enqueue(ticket or max(now, line.queue[-1][0] + 1 if line.queue else 0), waiter)
        return True

    def _bury(self, line: _Line, asker: str) -> None:
        for _, waiter in list(line.queue):
            if not self._listens(_parse(waiter), asker):
                line.dequeue(waiter)

    def _tell_lost(self, name: str, grant: Grant, reason: str) -> None:
        if not grant.nobodys:
            waiter, fence = grant.as_granted
            self.push(grant.who.client, lambda inbox: inbox.lost(name, waiter, fence, reason))

    def _request(self, name: str, grant: Grant) -> int:
        waiter, fence = grant.as_granted
        return self.push(grant.who.client, lambda inbox: inbox.requested(name, waiter, fence))


def _party(who: WaiterId, since: float, place: int) -> Party:
    return Party(
        client=who.client,
        host=socket.gethostname(),
        pid=os.getpid(),
        since=since,
        place=place,
        shared=who.shared,
        permits=who.permits,
        seq=who.seq,
    )


def _holder(grant: Grant, end: int, now: int) -> Party:
    left = (end - now / 1000) / 1000
    return replace(_party(grant.who, grant.fence / 1e6, 0), fence=grant.fence, remaining=left)


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
        return self._start(
            lambda: self.server.acquire(
                name, waiter, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            )
        )

    def release(
        self, name: str, waiter: str, fence: int, *, entered: bool = True
    ) -> asyncio.Future[int]:
        return self._start(lambda: self.server.release(name, waiter, fence, entered=entered))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        return self._start(lambda: self.server.renew(renewals))

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return self._start(lambda: self.server.status(name, waiters=waiters))

    def finish(self, name: str, waiter: str, fence: int, keep: int) -> asyncio.Future[int]:
        return self._start(lambda: self.server.finish(name, waiter, fence, keep))

    def request(self, name: str) -> asyncio.Future[int]:
        return self._start(lambda: self.server.request(name))

    def downgrade(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        return self._start(lambda: self.server.downgrade(name, waiter, fence))

    def resize(self, name: str, declared: int, limit: int, keep: int) -> asyncio.Future[int]:
        return self._start(lambda: self.server.resize(name, declared, limit, keep))

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, keep: int
    ) -> asyncio.Future[int]:
        return self._start(
            lambda: self.server.post(
                name, count, token=token, declared=declared, value=value, keep=keep
            )
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        return self._start(lambda: self.server.read(name))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return self._start(lambda: self.server.break_(name, fences))

    def _start(self, operation: Callable[[], Value | Late]) -> asyncio.Future[Value]:
        if self._client is not None:
            return self._soon(operation())
        future: asyncio.Future[Value] = self._loop.create_future()
        error = StoreError("the store is closed")
        error.refused = True
        future.set_exception(error)
        return future

    def _soon(self, answer: Value | Late) -> asyncio.Future[Value]:
        # Never at once: a free lock is still a turn of the loop, so no task starves the others.
        future: asyncio.Future[Value] = self._loop.create_future()
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
