"""What the author of a store reads: the protocol, its messages and their invariants.

Whoever writes one need not write the protocol: `aiolock.stores.machine` is all of it, without I/O,
and `aiolock.stores.authors` says how a store is built on that, on whatever can load and save the
state of one name atomically, has a clock, knows who lives, and can ring.

A store keeps, for each name, the *holders* (grants, each with the end of its lease), the *queue*
(waiters, each with a ticket) and the last *fence*. Each operation below is one atomic step at the
store, and each is idempotent: carried out twice, it leaves and answers what it does once.

Times on the wire are whole numbers: leases in milliseconds, the store's clock in microseconds.
Only the store's clock decides who holds; a client only ever subtracts two of its readings.

What was given up does not act. A copy of a command may arrive long after the client had its answer
from another copy, and may have undone it since. Such a copy takes, prolongs, counts and queues
nothing: a store that sends over a network must see to that itself (see `Late`).

Names are opaque to a store. How a waiter is written down is its own affair: one codec of each store
is the only place that knows. A client of another version may have written what this one does not
know all of: whatever a store cannot read is no reason to fail.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import Enum
from typing import Final, Literal, NamedTuple, Protocol, TypeVar, runtime_checkable

Value = TypeVar("Value")

CLAIM = 3_000
"""The longest first lease of a pushed grant, in ms: what one stuck waiter costs the others."""

PRIORITY = 100_000_000_000_000
"""How much higher a ticket is, in µs, for each step of `Form.priority`: three years, so that no
waiter of one priority stands behind one of a later."""


class Waiter(NamedTuple):
    """One acquisition, as the store names it: no two are alike."""

    client: str
    """The client's id: 96 random bits, without ``:``."""
    seq: int
    """Its number among those of its client."""


class Rule(Enum):
    """When a waiter that shares fits. The number of the rule is `Form.number`."""

    ALWAYS = ""
    """Beside all others that share."""
    PERMITS = "*"
    """While so many of the `Form.declared` permits are free."""
    GROUP = "&"
    """Once so many stand in the queue, all of which then enter together."""
    COUNT = "^"
    """Once the count of the name is as high; so it is in nobody's way."""


@dataclass(frozen=True, slots=True)
class Form:
    """What a store must know of every waiter of one lock."""

    claim: int
    """The lease of a grant by push, in ms, until its client has confirmed it."""
    shared: bool = False
    """It enters beside others that share, never beside an exclusive one."""
    rule: Rule = Rule.ALWAYS
    """Where it is shared: when it fits."""
    number: int = 0
    declared: int = 0
    """The number that all who use this name declare alike; 0 for none."""
    fixed: bool = False
    """The lease is not renewed, so that its end does not mean that its client is stuck."""
    once: bool = False
    """It wants something done that is done once: see `Store.finish`."""
    downgrades: bool = False
    """It is exclusive, and may become shared: see `Store.downgrade`."""
    after_loss: int = 0
    """So many ms after its grant was lost nobody enters."""
    after_grant: int = 0
    """Nor so many ms after its grant, however that ends."""
    period: int = 0
    """Nor until the end of the period, of so many ms since 1970, in which it was granted."""
    priority: int = 0
    """It stands before all waiters of a higher number, however long they have waited."""
    remember: int = field(default=0, compare=False)
    """Where it wants something ``once``: for how many ms that will be remembered. Its own client
    needs to know, where servers vote; it is written down nowhere."""
    closes: int = field(init=False, repr=False, compare=False)
    """For how many ms at most its grant may close the lock behind its lease; 0: it never does."""
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether it is a lock that one holds alone, renewed, and that is open at its end."""

    def __post_init__(self) -> None:
        closes = max(self.after_loss, self.after_grant, self.period)
        odd = self.shared or self.fixed or self.once or self.downgrades or self.declared
        object.__setattr__(self, "closes", closes)  # frozen
        object.__setattr__(self, "plain", not odd and not closes)

    @property
    def permits(self) -> int:
        """How many permits it takes; 0 where there are none."""
        return self.number if self.rule is Rule.PERMITS else 0

    @property
    def counts(self) -> bool:
        """Whether it waits for a count, and so is in nobody's way."""
        return self.rule is Rule.COUNT

    def opens(self, granted: int, lost: int | None, *, confirmed: bool = True) -> int:
        """When somebody may enter after its grant, in ms of the store's clock; 0 for at once.

        The grant was made at ``granted``, and lost, where it was, at ``lost``. These terms hold for
        a grant that was entered. Of a claim that nobody confirmed that is not known: where there
        is a `period` it was not, for who has one confirms before it enters.
        """
        opens = 0
        if lost is not None and self.after_loss:
            opens = lost + self.after_loss
        if self.after_grant:
            opens = max(opens, granted + self.after_grant)
        if self.period and confirmed:
            opens = max(opens, (granted // self.period + 1) * self.period)
        return opens


class Granted(NamedTuple):
    """The lock is the waiter's, for ``lease`` ms.

    ``displaced``: it asked with a ticket, but stood in the queue no more. What took it out may
    have taken out its client's other waiters for this name. ``claim``: it was granted before, by a
    push, and its lease is a claim that nobody has confirmed yet.
    """

    fence: int
    lease: int
    displaced: bool = False
    claim: bool = False


class Before(NamedTuple):
    """Who stands directly before a waiter."""

    waiter: Waiter
    fence: int
    """Of its grant, where it is the holder; 0 where it waits."""


class Queued(NamedTuple):
    """The waiter stands in the queue; ``until`` the first lease ends, ms.

    ``place`` is 1 where nobody stands before it. Else it is more than that, and not to be relied
    on: to count those before it costs some stores too much.

    ``displaced`` is as in `Granted`. ``before``: who stands directly before it, of its own client,
    where the store says so; that is optional, and for newcomers only (see `Store.pass_on`).
    """

    ticket: int
    place: int
    until: int
    now: int
    displaced: bool = False
    before: Before | None = None


class Full(NamedTuple):
    """``waiters`` stand in the queue, which is as many as were allowed."""

    waiters: int


class Done(NamedTuple):
    """What the waiter wants done is done, and will be remembered for ``until`` ms."""

    until: int


class Differs(NamedTuple):
    """The waiter declares a number for this name, but another is known: ``known``."""

    known: int


class Late(NamedTuple):
    """Between a store and its server: a copy of a command came too late, and was not carried out.

    Each copy of an `acquire`, `renew`, `post`, `resize` or `request` says until when, by the
    server's clock, it is to be carried out. ``now`` is that clock, in µs. No client gets this.
    """

    now: int


class Renewal(NamedTuple):
    """One line of a `Store.renew`; a ttl of 0 asks only whether the grant still holds."""

    name: str
    waiter: Waiter
    form: Form
    fence: int
    ttl: int


class Pass(NamedTuple):
    """A client has handed a lock on among its own waiters; see `Store.pass_on`."""

    name: str
    form: Form
    """That of all of them."""
    giver: Waiter
    giver_fence: int
    """The grant that the store knows of."""
    taker: Waiter
    fence: int
    """The grant that there is now."""
    through: tuple[Waiter, ...]
    """Those that have had it since then, in order; the last is the taker."""


RUN: Final = 64
"""How many grants a client may be ahead of the store, at most, and so how much higher the fence
must be that follows on a grant whose end its client has not reported."""


@dataclass(frozen=True, slots=True)
class Posted:
    """What has been counted of a name, and the value that was put up with it; see `Store.read`."""

    count: int
    value: str


@dataclass(frozen=True, slots=True)
class Party:
    """One holder or waiter, as `Lock.status` shows it."""

    client: str
    """The client's id: 96 random bits."""
    host: str
    """The machine the client runs on; empty where the store has forgotten."""
    pid: int
    """The client's process; 0 where the store has forgotten."""
    since: float
    """When it was granted, or began to wait: Unix time in seconds, by the store's clock."""
    place: int
    """0 for a holder; 1 for the waiter that is next, and so on."""
    fence: int = 0
    """A holder's fencing token; 0 for a waiter."""
    remaining: float = 0.0
    """Seconds until a holder's lease ends if nobody renews it; 0 for a waiter."""
    shared: bool = False
    """Whether it holds, or wants, it beside others: a reader, or permits of a semaphore."""
    permits: int = 0
    """How many permits of a semaphore it has, or waits for."""
    seq: int = 0
    """The number of this acquisition among those of its client: which of its waiters it is."""
    alive: bool = True
    """Whether its client still listens: where not, it is dead, or cut off. Always True where the
    store cannot count who listens."""
    label: str = ""
    """What it calls itself: see `Lock.acquire`. It is there after a second or two; empty before
    that, and where only a store has been asked."""
    task: int = 0
    """Tells the tasks of one client apart: which of them holds this, or stands still until it has
    it. 0 where that is not known, as before there is a label."""

    def __str__(self) -> str:
        where = f"{plain(self.host)}:{self.pid}" if self.host else "somewhere"
        since = datetime.fromtimestamp(self.since, UTC).isoformat(timespec="milliseconds")
        who = f"{plain(self.label)} " if self.label else ""
        facts = [f"{who}{self.client[:_SHORT]}#{self.seq} at {where}", f"since {since}"]
        if not self.place:
            facts += [f"fence {self.fence}", f"{self.remaining:.1f} s left"]
        if self.permits:
            facts.append(f"{self.permits} permit" + "s" * (self.permits > 1))
        elif self.shared:
            facts.append("shared")
        facts.append("alive" if self.alive else "dead or cut off")
        return ", ".join(facts)


@dataclass(frozen=True, slots=True)
class Status:
    """Who holds a lock and who waits for it, both in order, at one moment."""

    name: str
    holders: tuple[Party, ...]
    waiters: tuple[Party, ...]
    closed: float = 0.0
    """For how many seconds nobody may enter though nobody holds it (where it was shared, nobody who
    does not share it): ``min_hold``, ``lock_delay``,
    or the rest of a period."""
    limit: int | None = None
    """How many permits the semaphore has, how many count the latch down, or meet at the barrier;
    None for a lock, and once it is forgotten: a minute after the last lease would have ended."""
    kind: str = ""
    """What it is: ``lock``, ``semaphore``, ``once``, …; empty where only a store has been asked."""
    now: float = field(default=0.0, compare=False)
    """When that was: Unix time in seconds, by the store's clock, as `Party.since` is."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """For people: what it is, then one line for each holder and each waiter."""
        facts = "" if self.limit is None else f", limit {self.limit}"
        facts += f", closed for {self.closed:.1f} s" if self.closed else ""
        nobody = "" if self.holders or self.waiters else ": nobody holds it or waits"
        yield f"{self.kind} {self.name!r}{facts}{nobody}".lstrip()
        yield from (f"  holds: {holder}" for holder in self.holders)
        yield from (f"  waits, place {waiter.place}: {waiter}" for waiter in self.waiters)


def plain(text: str) -> str:
    """What somebody else has chosen: on one line, and with nothing that a terminal would obey."""
    return repr(text)[1:-1]


_SHORT: Final = 6
"""So many characters of a client's id tell it from others, for people."""


class Page(NamedTuple):
    """Some of what there is at a store; see `Store.snapshot`."""

    statuses: Sequence[Status]
    more: str
    """Where the next page begins, which only the store can read; empty where this is the last."""


class Busy(NamedTuple):
    """The lock is taken and the waiter did not want to wait; ``until`` the first lease ends, ms.

    ``holder``: whose lease that is, where the store says so. An ``until`` of 0: the waiter has been
    released, and nothing is left of it.
    """

    until: int
    holder: Party | None = None


Answer = Granted | Queued | Busy | Full | Done | Differs

WAS_ABSENT, WAS_HOLDER, WAS_QUEUED, WAS_UNKNOWN = 0, 1, 2, 3
"""What `Store.release` found the waiter to be.

`WAS_UNKNOWN`: absent, but the release had been sent before and its reply was lost, so that may
have been its own doing.
"""


class Inbox(Protocol):
    """Where a store delivers what comes unasked: called in the client's loop, never awaited."""

    def granted(  # noqa: PLR0917  # once for each hand-off, and keywords cost a tenth of it
        self, name: str, waiter: Waiter, form: Form, fence: int, lease: int, now: int
    ) -> None:
        """The lock was handed to this waiter, at ``now`` (µs, store), for ``lease`` ms."""

    def lost(self, name: str, waiter: Waiter, fence: int, reason: str) -> None:
        """This grant was taken away (``expired`` or ``broken``).

        Where it had expired, the client's waiters for ``name`` have left the queue as well.
        """

    def done(self, name: str) -> None:
        """Whoever waits for ``name`` knows too little: ask again.

        What some wanted done once is done, and they have left the queue; or it stays
        closed for a while, and whoever is first in the queue is to ask for how long.
        """

    def requested(self, name: str, waiter: Waiter, fence: int) -> None:
        """Somebody asks whoever has this grant to let go, when it can."""

    def void(self, name: str, waiter: Waiter) -> None:
        """Somebody stands directly before this waiter who did not when it was `Queued`."""

    def unconfirmed(
        self, name: str, waiter: Waiter, form: Form, fence: int, error: Exception
    ) -> None:
        """This grant may be forgotten, so it is no good: whoever waits for it gets the error.

        And gives it back; where nobody waits for it any more, the client does. Of a store that
        gives a grant only once replicas of it have it.
        """

    def reconnected(self) -> None:
        """Pushes may have been missed: whoever waits must ask again."""

    def link(self, error: Exception | None) -> None:
        """The link to the store broke; or, None, it is whole again. For who observes, no more."""

    def beat(self) -> None:
        """The store is about to try its links.

        Somebody who waits may ask now what it would ask before long: one command does for both.
        """


@runtime_checkable
class Versioned(Protocol):
    """What a store has besides where clients of several versions of it may meet.

    Each version has a protocol, a number, by which those refuse each other that cannot work side by
    side.
    """

    @property
    def protocols(self) -> tuple[int, ...]:
        """Our own, and behind it those that others speak there, as far as they are known."""
        ...


@runtime_checkable
class Store(Protocol):
    """A place to keep locks.

    The operations are *started by the call* and return a future of the running loop: the
    command is under way whether or not anybody awaits it, and commands about one waiter are
    carried out in the order in which they were called. A future's exception is a `StoreError`.

    A client speaks only of its own waiters. Whoever cancels the future of an `acquire` calls
    `release` next, so the store may then drop the command as long as it keeps that order. Every
    other command is carried out whatever becomes of its future. No future stays open for ever: a
    store gives up in 9.5 seconds at most.
    """

    async def open(self, client: str, inbox: Inbox) -> None:
        """Connect, and listen for what comes for ``client``; `StoreError` when it cannot.

        Where the store cannot count who listens, it takes nobody for dead.
        """
        ...

    async def aclose(self) -> None:
        """Wait for what is under way, then disconnect. Idempotent; raises nothing."""
        ...

    def acquire(
        self,
        name: str,
        waiter: Waiter,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        """Take the lock for ``ttl`` ms if nobody holds it or waits for it, else queue.

        ``ticket`` is the waiter's old place, 0 for a newcomer; ``max_waiters`` 0 is no limit. A
        waiter that is a holder already gets its grant again, one that is queued its place.

        One with the rule ``^`` is in nobody's way: where it fits, it is granted past those that
        wait. One with ``&`` that does not wait, and completes its group, enters with the others.
        A lock that nobody holds, and nobody alive waits for, is never `Busy`.
        """
        ...

    def release(
        self, name: str, waiter: Waiter, form: Form, fence: int, *, entered: bool = True
    ) -> asyncio.Future[int]:
        """Remove the waiter from the holders or the queue, and hand the lock on if it held it.

        With a ``fence`` it speaks of that grant alone; with 0 of whatever the waiter is now. Not
        ``entered``: the grant was given up, or back, so that the lock does not stay closed for it
        (see `Form.opens`).
        Answers one of `WAS_ABSENT`, `WAS_HOLDER`, `WAS_QUEUED` and `WAS_UNKNOWN`.
        """
        ...

    def pass_on(self, passed: Pass) -> asyncio.Future[int]:
        """The giver is no holder any more and the taker is, for its claim; who is in between left.

        Called only where the store has answered with `Queued.before`, which it need not: then all
        hand-offs are its own. For a client that knows that its own waiter stands directly behind
        its own holder knows what the store would answer to a release. So it hands the lock on at
        once, under the lease that the store respects, and reports it.

        Answers `WAS_HOLDER`, `WAS_ABSENT` where the giver was no holder, and `WAS_UNKNOWN` as for
        a release. Where one client's waiter comes to stand before another's (one that was displaced
        comes back, or one of a higher priority), that one is told, by `Inbox.void`.
        """
        ...

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        """For each: still a holder, and then its lease ends ``ttl`` ms from now.

        None for one of which the store cannot tell, as where too few of its servers have answered:
        that is asked again until its deadline, and the others of the call have their answer.
        """
        ...

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        """Who holds the lock and who waits for it; changes nothing.

        Without ``waiters`` the queue is not read, which may be long.
        """
        ...

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """The status of some names, from ``start`` on; changes nothing.

        The first page begins at an empty ``start``. A name that somebody holds or waits for, from
        the first page to the last, is on one of them; one may be on two, and there may be some
        that nobody holds or waits for any more. Each status is of one moment, but each of its own.
        A page keeps nobody else from the store for more than a few ms.
        """
        ...

    def finish(
        self, name: str, waiter: Waiter, form: Form, fence: int, keep: int
    ) -> asyncio.Future[int]:
        """End this grant: what it was for is done, which is remembered for ``keep`` ms.

        Every waiter that wants it done once leaves the queue, its client is told, and
        whoever asks later gets `Done`. Answers as `release`: `WAS_HOLDER`, also for a second time.
        """
        ...

    def request(self, name: str) -> asyncio.Future[int]:
        """Ask who holds the lock to let go, when they can; how many were told. Changes nothing."""
        ...

    def downgrade(self, name: str, waiter: Waiter, form: Form, fence: int) -> asyncio.Future[int]:
        """Let this grant share the lock from now on, without letting go; see `Form.downgrades`.

        It keeps its id, its fence and its lease. Those at the head of the queue who share it too
        enter. Answers `WAS_HOLDER`, also for a second time, or `WAS_ABSENT`.
        """
        ...

    def resize(self, name: str, declared: int, limit: int, keep: int) -> asyncio.Future[int]:
        """Let there be ``limit`` permits, for everybody and for ``keep`` ms; how many there were.

        Where none were known there were ``declared``. From now on ``limit`` may be declared, and
        ``declared``; or, where that is the same number, the one that there was before.
        """
        ...

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, keep: int
    ) -> asyncio.Future[int]:
        """Count: let the count be ``count``, if it is less, or one more for each new ``token``.

        Those who wait for it to be so high enter. ``value``, unless empty, is put up, unless the
        count is higher already. All this is remembered for ``keep`` ms at least. Answers the
        count; or less than 0, minus the number that is known, where ``declared`` (0: none) is
        another, and then nothing was done.
        """
        ...

    def read(self, name: str) -> asyncio.Future[Posted]:
        """What was counted and put up; changes nothing."""
        ...

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """Take the lock from these grants, tell them, hand it on; how many of them held it."""
        ...


@runtime_checkable
class Sharded(Protocol):
    """A store whose names are in several places, of which one may fail while others serve.

    It may say so: then the leases of one call of `Store.renew` are all of one place, so that those
    of a place that fails do not keep the others from their answer.
    """

    def shard_of(self, name: str) -> Hashable:
        """The place of this name, as far as is known."""
        ...


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One of several servers, as a client sees it."""

    address: str
    state: str
    """``up``; ``silent``, where it answers and does not vote yet; or ``out``, where it does not
    answer."""
    silent: float = 0.0
    """For how many seconds it does not vote, for it may have forgotten its votes."""
    clock: float | None = None
    """By how many seconds its clock is ahead of the median; None where that is not known."""
    votes: int = 0
    """How many of its votes this client has."""
    error: str = ""
    """Why it does not answer."""


@runtime_checkable
class Several(Protocol):
    """A store on several servers, of which some may fail."""

    def servers(self) -> list[ServerStatus]:
        """What this client knows of each, now; nothing is asked."""
        ...


ALL_KINDS: Final = frozenset(
    {
        *("lock", "rwlock", "semaphore", "latch", "event", "barrier"),
        *("election", "periodic", "once"),
    }
)
"""All that a store may offer, by the methods of `LockClient` that describe it."""


@runtime_checkable
class Limited(Protocol):
    """A store that does not offer all that others do.

    It may say so: then what it does not offer is an error where it is described, before anything
    is sent. These do not change while the store exists.
    """

    @property
    def longest_ttl(self) -> float | None:
        """The longest ttl of a lease, in seconds; a longer one is a `ValueError`. None: any."""
        ...

    @property
    def offers(self) -> frozenset[str]:
        """Those of `ALL_KINDS` that there are, ``lock`` among them."""
        ...

    def why_not(self, kind: str) -> str:
        """Why it does not offer this kind, and what to use instead: the end of a sentence."""
        ...


Operation = Literal[
    "acquire",
    "release",
    "pass_on",
    "renew",
    "status",
    "snapshot",
    "finish",
    "request",
    "downgrade",
    "resize",
    "post",
    "read",
    "break_",
]
"""The operations of a `Store`."""


class Relay:
    """A store that does what another does: to inherit from, for who observes or disturbs one."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def longest_ttl(self) -> float | None:
        """As the other store: see `Limited`."""
        return self._store.longest_ttl if isinstance(self._store, Limited) else None

    @property
    def offers(self) -> frozenset[str]:
        """As the other store: see `Limited`."""
        return self._store.offers if isinstance(self._store, Limited) else ALL_KINDS

    def why_not(self, kind: str) -> str:
        """As the other store: see `Limited`."""
        assert isinstance(self._store, Limited), "it offers everything"
        return self._store.why_not(kind)

    def _call(
        self,
        operation: Operation,  # noqa: ARG002  # for those who override this
        start: Callable[[], asyncio.Future[Value]],
    ) -> asyncio.Future[Value]:
        """Through here goes every operation; ``start`` calls the other store."""
        return start()

    async def open(self, client: str, inbox: Inbox) -> None:
        """As the other store."""
        await self._store.open(client, inbox)

    async def aclose(self) -> None:
        """As the other store."""
        await self._store.aclose()

    def acquire(
        self,
        name: str,
        waiter: Waiter,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        """As the other store."""
        return self._call(
            "acquire",
            lambda: self._store.acquire(
                name, waiter, form, ttl, ticket=ticket, wait=wait, max_waiters=max_waiters
            ),
        )

    def release(
        self, name: str, waiter: Waiter, form: Form, fence: int, *, entered: bool = True
    ) -> asyncio.Future[int]:
        """As the other store."""
        return self._call(
            "release", lambda: self._store.release(name, waiter, form, fence, entered=entered)
        )

    def pass_on(self, passed: Pass) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("pass_on", lambda: self._store.pass_on(passed))

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        """As the other store."""
        return self._call("renew", lambda: self._store.renew(renewals))

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        """As the other store."""
        return self._call("status", lambda: self._store.status(name, waiters=waiters))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """As the other store."""
        return self._call("snapshot", lambda: self._store.snapshot(start))

    def finish(
        self, name: str, waiter: Waiter, form: Form, fence: int, keep: int
    ) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("finish", lambda: self._store.finish(name, waiter, form, fence, keep))

    def request(self, name: str) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("request", lambda: self._store.request(name))

    def downgrade(self, name: str, waiter: Waiter, form: Form, fence: int) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("downgrade", lambda: self._store.downgrade(name, waiter, form, fence))

    def resize(self, name: str, declared: int, limit: int, keep: int) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("resize", lambda: self._store.resize(name, declared, limit, keep))

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, keep: int
    ) -> asyncio.Future[int]:
        """As the other store."""
        return self._call(
            "post",
            lambda: self._store.post(
                name, count, token=token, declared=declared, value=value, keep=keep
            ),
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        """As the other store."""
        return self._call("read", lambda: self._store.read(name))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("break_", lambda: self._store.break_(name, fences))
