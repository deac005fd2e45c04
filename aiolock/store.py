"""The reference for authors of stores: the protocol, its messages and their invariants.

You need not write the protocol: `aiolock.stores.machine` is all of it, without I/O.
`aiolock.stores.authors` says how to build a store on it, from anything that can load and save the
state of one name atomically, has a clock, knows which clients are alive, and can notify them.

A store keeps, for each name, the *holders* (grants, each with the end of its lease), the *queue*
(waiters, each with a ticket) and the last *fence*. Each operation below is one atomic step at the
store, and each is idempotent: repeated, it leaves the same state and gives the same answer.

Times on the wire are whole numbers: leases in milliseconds, the store's clock in microseconds.
Only the store's clock decides who holds; a client only ever subtracts two of its readings.

An outdated copy of a command has no effect. A copy may arrive long after the client had its answer
from another copy, and may have undone the command since. Such a copy must not take, prolong, count
or queue anything: a store that sends over a network must see to that itself (see `Late`).

Names are opaque to a store. Only one codec of each store defines how a waiter is encoded. A client
of another version may have written parts that are unknown to this version: a store must not fail on
what it cannot read.
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
"""The longest first lease of a pushed grant, in ms: a stuck waiter blocks others for this long."""

FEW: Final = 16
"""The holders that a `Store.status` without the waiters has, at most."""

PRIORITY = 100_000_000_000_000
"""How much higher a ticket is, in µs, for each step of `Form.priority`: three years, so that every
waiter of one priority comes before all waiters of the next."""


class WaiterId(NamedTuple):
    """The id of one acquisition at the store: no two are alike."""

    client: str
    """The client's id: 96 random bits, without ``:``."""
    seq: int
    """The acquisition's number among those of its client."""


class Rule(Enum):
    """The condition for a waiter that shares to enter. The number in each is `Form.number`."""

    ALWAYS = ""
    """Beside all others that share."""
    PERMITS = "*"
    """While ``number`` of the `Form.declared` permits are free."""
    GROUP = "&"
    """Once ``number`` waiters are in the queue; they all enter together."""
    COUNT = "^"
    """Once the count of the name is at least ``number``. Such a waiter blocks no other."""


@dataclass(frozen=True, slots=True)
class Form:
    """The properties that all waiters of one lock description share, as far as a store needs."""

    claim: int
    """The lease of a grant by push, in ms, until its client has confirmed it."""
    shared: bool = False
    """The waiter enters beside others that share, never beside an exclusive one."""
    rule: Rule = Rule.ALWAYS
    """For a shared waiter: when it may enter."""
    number: int = 0
    declared: int = 0
    """The number that all users of this name must declare alike; 0 if there is none."""
    fixed: bool = False
    """The lease is not renewed, so its end does not mean that the client is stuck."""
    once: bool = False
    """The waiter is for work that is to be done once: see `Store.finish`."""
    downgrades: bool = False
    """The waiter is exclusive, and may become shared: see `Store.downgrade`."""
    after_loss: int = 0
    """After the loss of its grant, the lock stays closed for this many ms."""
    after_grant: int = 0
    """After its grant, the lock is granted to no other for this many ms, however the grant ends."""
    period: int = 0
    """The lock stays closed until the end of its grant's period; periods of this many ms count
    from 1970."""
    priority: int = 0
    """The waiter is before all waiters of a higher number, however long they have waited."""
    remember: int = field(default=0, compare=False)
    """With ``once``: for how many ms the store remembers that the work is done. Only the waiter's
    own client needs it, where servers vote; it is never written to a store."""
    closes: int = field(init=False, repr=False, compare=False)
    """For how many ms at most its grant may close the lock beyond its lease; 0: it never does."""
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether the lock is exclusive, renewed, and open again as soon as the grant has ended."""
    permits: int = field(init=False, repr=False, compare=False)
    """How many permits it takes; 0 for a waiter of another kind."""

    def __post_init__(self) -> None:
        closes = max(self.after_loss, self.after_grant, self.period)
        odd = self.shared or self.fixed or self.once or self.downgrades or self.declared
        object.__setattr__(self, "closes", closes)  # frozen
        object.__setattr__(self, "plain", not odd and not closes)
        permits = self.number if self.rule is Rule.PERMITS else 0
        object.__setattr__(self, "permits", permits)

    @property
    def counts(self) -> bool:
        """Whether the waiter waits for a count, and so blocks no other waiter."""
        return self.rule is Rule.COUNT

    def opens(self, granted: int, lost: int | None, *, confirmed: bool = True) -> int:
        """The time from which others may enter after its grant, in ms of the store's clock; 0: at
        once.

        The grant was made at ``granted``; ``lost`` is when it was lost, or None. The delays apply
        to a grant that was entered. A claim that was not ``confirmed`` may have been entered,
        except with a `period`: such a waiter confirms its grant before it enters.
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
    """The waiter holds the lock, for ``lease`` ms.

    ``displaced``: the waiter asked with a ticket, but was no longer in the queue. The same cause
    may have removed its client's other waiters for this name. ``claim``: the grant was made before,
    by a push, and its lease is a claim that the client has not confirmed yet.
    """

    fence: int
    lease: int
    displaced: bool = False
    claim: bool = False


class Before(NamedTuple):
    """The waiter or holder directly before a waiter."""

    waiter: WaiterId
    fence: int
    """The fence of its grant, if it is the holder; 0 if it waits."""


class Queued(NamedTuple):
    """The waiter is in the queue; the first lease ends in ``until`` ms.

    ``place`` is 1 for the first in the queue. For any other it is more than 1, but not exact: some
    stores would pay too much for counting those before it.

    ``displaced`` is as in `Granted`. ``before`` is set if the waiter or holder directly before it
    belongs to the same client. A store need not set it, and sets it for newcomers only (see
    `Store.report_handoff`).
    """

    ticket: int
    place: int
    until: int
    now: int
    displaced: bool = False
    before: Before | None = None


class Full(NamedTuple):
    """``waiters`` are already in the queue, as many as are allowed."""

    waiters: int


class Done(NamedTuple):
    """The work is done already, and will be remembered for ``until`` ms."""

    until: int


class Differs(NamedTuple):
    """The waiter declares a number for this name, but the store has another: ``known``."""

    known: int


class Late(NamedTuple):
    """The answer of a server to a copy of a command that came too late, and was not carried out.

    Each copy of an `acquire`, `renew`, `post`, `resize` or `request` carries the time, by the
    server's clock, until which it may be carried out. ``now`` is that clock, in µs. It is an answer
    to the store; a client never gets it.
    """

    now: int


class Renewal(NamedTuple):
    """One grant in a `Store.renew`; a ttl of 0 only asks whether the grant still holds."""

    name: str
    waiter: WaiterId
    form: Form
    fence: int
    ttl: int


class HandoffReport(NamedTuple):
    """A report that a client has handed a lock on among its own waiters: see
    `Store.report_handoff`.
    """

    name: str
    form: Form
    """The form that all of these waiters have."""
    source: WaiterId
    source_fence: int
    """The fence of the grant that the store has on record."""
    target: WaiterId
    fence: int
    """The fence of the present grant."""
    via: tuple[WaiterId, ...]
    """The waiters that have held it since, in order; the last is the ``target``."""


MAX_AHEAD: Final = 64
"""How many grants a client may be ahead of the store, at most. A grant that follows one whose end
its client has not reported has a fence that is higher by this many."""


@dataclass(frozen=True, slots=True)
class Posted:
    """The count of a name, and the value posted with it; see `Store.read`."""

    count: int
    value: str


@dataclass(frozen=True, slots=True)
class Participant:
    """One holder or waiter, as `Lock.status` shows it."""

    client: str
    """The client's id: 96 random bits."""
    host: str
    """The machine the client runs on; empty if the store has forgotten it."""
    pid: int
    """The client's process; 0 if the store has forgotten it."""
    since: float
    """The time of its grant, or since which it waits: Unix time in seconds, by the store's clock.
    """
    place: int
    """0 for a holder; 1 for the waiter that is next, and so on."""
    fence: int = 0
    """A holder's fencing token; 0 for a waiter."""
    remaining: float = 0.0
    """Seconds until a holder's lease ends if nobody renews it; 0 for a waiter."""
    shared: bool = False
    """Whether it shares, or wants to share, the lock: a reader, or permits of a semaphore."""
    permits: int = 0
    """How many permits of a semaphore it has, or waits for."""
    seq: int = 0
    """The number of this acquisition among those of its client."""
    alive: bool = True
    """Whether its client still listens; if not, it is dead or cut off. Always True if the store
    cannot count listeners."""
    label: str = ""
    """Its label: see `Lock.acquire`. Empty for the first second or two, and in a status that comes
    from a store alone."""
    task: int = 0
    """The number of the task, among those of its client, that holds this or does nothing but wait
    for it. 0 if unknown, as before there is a label."""

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
    """The holders and the waiters of a lock, both in order, at one moment."""

    name: str
    holders: tuple[Participant, ...]
    waiters: tuple[Participant, ...]
    closed: float = 0.0
    """Seconds for which the lock stays closed although nobody holds it: by ``min_hold`` or
    ``lock_delay``, or for the rest of a period. After a shared grant, it is closed only for
    exclusive waiters."""
    limit: int | None = None
    """How many permits the semaphore has, how many counts open the latch, or how many parties meet
    at the barrier. None for a lock, and once it is forgotten: a minute after the last lease would
    have ended."""
    kind: str = ""
    """The kind: ``lock``, ``semaphore``, ``once``, …; empty if it comes from a store alone."""
    now: float = field(default=0.0, compare=False)
    """The time of this status: Unix time in seconds, by the store's clock, like
    `Participant.since`."""
    more_holders: int = 0
    """How many holders it has beside those in `holders`: see ``waiters`` of `Store.status`. Always
    0 in what `Lock.status` gives."""

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        """One line about the lock, then one for each holder and each waiter."""
        facts = "" if self.limit is None else f", limit {self.limit}"
        facts += f", closed for {self.closed:.1f} s" if self.closed else ""
        nobody = "" if self.holders or self.waiters else ": nobody holds it or waits"
        yield f"{self.kind} {self.name!r}{facts}{nobody}".lstrip()
        yield from (f"  holds: {holder}" for holder in self.holders)
        yield from (f"  waits, place {waiter.place}: {waiter}" for waiter in self.waiters)


def plain(text: str) -> str:
    """A text that others have chosen, on one line and without control codes for a terminal."""
    return repr(text)[1:-1]


def one_line(error: BaseException) -> str:
    """The text of an error as a part of a sentence: some have several lines, and a full stop."""
    return " ".join(str(error).split()).rstrip(".")


_SHORT: Final = 6
"""How many characters of a client's id are shown: enough for people to tell clients apart."""


class Page(NamedTuple):
    """Some of the statuses of a store; see `Store.snapshot`."""

    statuses: Sequence[Status]
    more: str
    """The start of the next page: opaque to the client, and empty for the last page."""


class Busy(NamedTuple):
    """The lock is taken and the waiter did not want to wait; the first lease ends in ``until`` ms.

    ``holder`` has that lease, if the store reports it. An ``until`` of 0 means that the waiter has
    been released, and nothing is left of it; one of -1, that many leases have ended, so that the
    store has not removed all of them yet: ask again at once.
    """

    until: int
    holder: Participant | None = None


Answer = Granted | Queued | Busy | Full | Done | Differs

WAS_ABSENT, WAS_HOLDER, WAS_QUEUED, WAS_UNKNOWN = 0, 1, 2, 3
"""The state in which `Store.release` found the waiter.

`WAS_UNKNOWN`: the waiter is absent, but the release had been sent before and its reply was lost, so
that first copy may have removed it.
"""

BREAK_UNKNOWN: Final = -1
"""The answer of `Store.break_` if it finds none of the grants, but it had been sent before and its
reply was lost, so that first copy may have ended them."""


class Inbox(Protocol):
    """The receiver of a store's pushes: called in the client's loop, never awaited."""

    def granted(  # noqa: PLR0917  # once for each hand-off, and keywords cost a tenth of it
        self, name: str, waiter: WaiterId, form: Form, fence: int, lease: int, now: int
    ) -> None:
        """The store granted the lock to this waiter, at ``now`` (store, µs), for ``lease`` ms."""

    def lost(self, name: str, waiter: WaiterId, fence: int, reason: str) -> None:
        """This grant was taken away (``expired`` or ``broken``).

        If it had expired, the client's waiters for ``name`` have left the queue as well.
        """

    def shortened(self, name: str, waiter: WaiterId, fence: int, until: float) -> None:
        """This grant is only certain until then, by the client's clock (s), unless it is renewed.

        No answer to a renewal that was sent before moves the deadline past that. Only a store of
        several servers calls this, when it misses a vote that it has counted.
        """

    def done(self, name: str) -> None:
        """The waiters for ``name`` have outdated answers: ask again, for one of three reasons.

        The work of a `once` is done, and its waiters have left the queue. Or the lock stays closed
        for a while, and the first waiter in the queue has to ask for how long. Or many have
        entered, or many leases have ended, and the store goes on with more of them when the first
        waiter asks: so none of its steps takes long, however many there are.
        """

    def requested(self, name: str, waiter: WaiterId, fence: int) -> None:
        """Another client asks the holder of this grant to release the lock when it can."""

    def order_unknown(self, name: str, waiter: WaiterId) -> None:
        """The order is unknown: another waiter was inserted directly before this one since
        `Queued`.
        """

    def unconfirmed(
        self, name: str, waiter: WaiterId, form: Form, fence: int, error: Exception
    ) -> None:
        """This grant may be forgotten, so it must not be used: its waiter gets the error.

        The waiter then gives the grant back, or its client does if the acquisition has ended. Only
        a store that waits for its replicas calls this.
        """

    def reconnected(self) -> None:
        """Pushes may have been missed: every waiter must ask again."""

    def link(self, error: Exception | None) -> None:
        """The link to the store broke with an error, or (None) works again.

        For observers, and for the error of an acquisition without an answer. If the error is a
        `StoreError`, its ``misconfigured`` counts, and the driver's error is its ``__cause__``.
        """

    def beat(self) -> None:
        """The store is about to check its connections.

        A waiter may ask now what it would ask soon anyway: one command does for both.
        """


@runtime_checkable
class Versioned(Protocol):
    """A store that clients of several versions may use at the same time.

    Each version has a protocol, which is a number. Clients of versions that cannot work together
    refuse each other by it.
    """

    @property
    def protocols(self) -> tuple[int, ...]:
        """Our own protocol, then those that other clients are known to use there."""
        ...


@runtime_checkable
class Store(Protocol):
    """A place to keep locks.

    The operations are *started by the call* and return a future of the running loop: the
    command is under way whether or not anyone awaits it, and commands about one waiter are
    carried out in the order in which they were called. A future's exception is a `StoreError`.

    A client sends commands about its own waiters only. After it cancels the future of an `acquire`,
    it calls `release` next, so the store may drop the cancelled command as long as it keeps that
    order. Every other command is carried out, even if its future is cancelled. Every future is
    resolved: a store gives up after 9.5 seconds at most.
    """

    async def open(self, client: str, inbox: Inbox) -> None:
        """Connect, and subscribe to pushes for ``client``; `StoreError` when that fails.

        A store that cannot count listeners considers no client dead.
        """
        ...

    async def aclose(self) -> None:
        """Wait for the commands under way, then disconnect. Idempotent; raises nothing."""
        ...

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
        """Take the lock for ``ttl`` ms if nobody holds it or waits for it, else queue.

        ``ticket`` is the waiter's old place, 0 for a newcomer; a ``max_waiters`` of 0 is no limit.
        A waiter that already holds the lock gets its grant again, one that is queued its place.

        A waiter with the rule ``^`` blocks no other: if it fits, it is granted past the queue. One
        with ``&`` that does not wait, but completes its group, enters with the others. A lock that
        nobody holds, and for which nobody alive waits, is never `Busy`.
        """
        ...

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
        """Remove the waiter from the holders or the queue; grant the lock to the next if it held.

        A ``fence`` releases only the grant with that fence; 0 releases the waiter in any state.
        Without ``entered``, the grant was given up or given back unused, so the lock does not stay
        closed after it (see `Form.opens`). With ``lost``, the lease has ended by the client's
        deadline, so this is a loss, even if it ends at the store a little later. (A lease that has
        ended there was lost in any case.) The client sets it only with `Form.after_loss`. Answers
        one of `WAS_ABSENT`, `WAS_HOLDER`, `WAS_QUEUED` and `WAS_UNKNOWN`.
        """
        ...

    def report_handoff(self, passed: HandoffReport) -> asyncio.Future[int]:
        """Make ``target`` the holder instead of ``source``, for its claim; those between have left.

        Called only if the store has answered with `Queued.before`. A store need not set that; then
        it makes all hand-offs itself. If a client's own waiter is directly behind its own holder,
        the client can tell what a release would do at the store. So it hands the lock on at once,
        under the lease that the store respects, and reports that afterwards.

        Answers `WAS_HOLDER`, or `WAS_ABSENT` if the source was no holder, or `WAS_UNKNOWN` as for a
        release. If another client's waiter is inserted directly before one of this client (it was
        displaced and comes back, or has a higher priority), the latter gets `Inbox.order_unknown`.
        """
        ...

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        """Prolong these leases to ``ttl`` ms from now; for each: whether it is still a holder.

        None if that is unknown, as when too few of a store's servers have answered. The client asks
        for that one again until its deadline; the others of the call have their answer.
        """
        ...

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        """The holders and the waiters of the lock; changes nothing.

        If there are many of them, they may be read in parts, each at a moment of its own: first the
        waiters, and then the holders, as of `Status.now`. A participant that waited or held from
        the first part to the last is in it once. A waiter may be in it that has left meanwhile, and
        a holder may be missing whose lease was made shorter meanwhile.

        Without ``waiters`` neither the queue, which may be long, nor all holders are read: `FEW` of
        them at most, and `Status.more_holders`, which may count some that have ended, or have no
        owner.
        """
        ...

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        """The status of some names, from ``start`` on; changes nothing.

        The first page begins at an empty ``start``. A name that is held or waited for, from the
        first page to the last, is on one of them. It may be on two, and pages may have names that
        are no longer held or waited for. Each status is true of a moment of its own. Reading a
        page delays other clients by a few ms at most.
        """
        ...

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        """End this grant: its work is done, which the store remembers for ``remember`` ms.

        Every waiter for that work leaves the queue, its client is notified (`Inbox.done`), and
        later ones get `Done`. Answers as `release` does: `WAS_HOLDER`, also for a second call.
        """
        ...

    def request(self, name: str) -> asyncio.Future[int]:
        """Ask the holders to release the lock when they can; returns how many were asked. No
        change.
        """
        ...

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        """Let this grant share the lock from now on, without a release; see `Form.downgrades`.

        It keeps its id, its fence and its lease. Waiters at the head of the queue that share the
        lock enter too. Answers `WAS_HOLDER`, also for a second call, or `WAS_ABSENT`.
        """
        ...

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        """Set the number of permits to ``limit``, for ``remember`` ms; answers the number before.

        If the store has no number yet, that is ``declared``. From now on waiters may declare two
        numbers: the new ``limit``, and ``declared``, or the number before if that is the same.
        """
        ...

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        """Raise the count to ``count`` if it is less, or by one for each new ``token``.

        Waiters for a count that is now reached enter. A ``value``, unless empty, replaces the one
        posted before, unless the count is higher already. All this is remembered for ``remember``
        ms at least. Answers the count. If ``declared`` (0: none) differs from the store's number,
        answers minus that number, and nothing was done.
        """
        ...

    def read(self, name: str) -> asyncio.Future[Posted]:
        """The count and the posted value; changes nothing."""
        ...

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """End these grants, notify their holders, grant the lock to the next; how many were held.

        Or `BREAK_UNKNOWN`: none of them is held, and whether this call has ended them is unknown.
        """
        ...


@runtime_checkable
class Sharded(Protocol):
    """A store whose names are in several shards, of which one may fail while others serve.

    The leases of one call of `Store.renew` are then all of one shard, so that a shard that fails
    does not delay the answers of the others.
    """

    def shard_of(self, name: str) -> Hashable:
        """The shard of this name, as far as it is known."""
        ...


@dataclass(frozen=True, slots=True)
class ServerStatus:
    """One server of a quorum, as a client sees it."""

    address: str
    state: str
    """``up``; or ``not voting``, if it answers but does not vote yet; or ``out``, if it does not
    answer."""
    not_voting: float = 0.0
    """Seconds for which it does not vote, because it may have forgotten its votes."""
    clock: float | None = None
    """Seconds by which its clock is ahead of the median; None if unknown."""
    votes: int = 0
    """How many of its votes this client has."""
    error: str = ""
    """Why it does not answer, or why it does not vote; empty if it does."""


@runtime_checkable
class Several(Protocol):
    """A store on several servers, of which some may fail."""

    def servers(self) -> list[ServerStatus]:
        """The present state of each server as this client knows it; no I/O."""
        ...


ALL_KINDS: Final = frozenset(
    {
        *("lock", "rwlock", "semaphore", "latch", "event", "barrier"),
        *("election", "periodic", "once"),
    }
)
"""All kinds that a store may offer, by the methods of `LockClient` that make them."""


@runtime_checkable
class Limited(Protocol):
    """A store that offers only some kinds, or has a longest ttl.

    A kind that it does not offer is an error where the lock is described, before anything is sent.
    The limits do not change while the store exists.
    """

    @property
    def longest_ttl(self) -> float | None:
        """The longest ttl of a lease, in seconds; a longer one is a `ValueError`. None: any."""
        ...

    @property
    def offers(self) -> frozenset[str]:
        """Those of `ALL_KINDS` that this store offers; ``lock`` is always one of them."""
        ...

    def why_not(self, kind: str) -> str:
        """The reason why it does not offer this kind, and what to use instead: the end of a
        sentence.
        """
        ...


Operation = Literal[
    "acquire",
    "release",
    "report_handoff",
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
    """A store that delegates to another: a base class for observing or disturbing one."""

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
        """Every operation goes through here; ``start`` calls the other store."""
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
        waiter: WaiterId,
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
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        """As the other store."""
        return self._call(
            "release",
            lambda: self._store.release(name, waiter, form, fence, entered=entered, lost=lost),
        )

    def report_handoff(self, passed: HandoffReport) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("report_handoff", lambda: self._store.report_handoff(passed))

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
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("finish", lambda: self._store.finish(name, waiter, form, fence, remember))

    def request(self, name: str) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("request", lambda: self._store.request(name))

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("downgrade", lambda: self._store.downgrade(name, waiter, form, fence))

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("resize", lambda: self._store.resize(name, declared, limit, remember))

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        """As the other store."""
        return self._call(
            "post",
            lambda: self._store.post(
                name, count, token=token, declared=declared, value=value, remember=remember
            ),
        )

    def read(self, name: str) -> asyncio.Future[Posted]:
        """As the other store."""
        return self._call("read", lambda: self._store.read(name))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        """As the other store."""
        return self._call("break_", lambda: self._store.break_(name, fences))
