"""The protocol: the operations on a store, their answers, its events, and the constants.

A store keeps, for each name, the *holders* (grants, each with the end of its lease), the *queue*
(waiters, each with a ticket) and the last *fence*. Each operation is one atomic step at the store,
and each is idempotent: repeated, it leaves the same state and gives the same answer.

An operation is a value that `aiolock.store.Store.submit` takes; its answer is the result of the
future. An event is a value that the store delivers by itself. Both are immutable.

Times are whole numbers: leases in milliseconds, the store's clock in microseconds. Only the store's
clock decides who holds; a client only ever subtracts two of its readings.

An outdated copy of a command has no effect. A copy may arrive long after the client had its answer
from another copy, and may have undone the command since. Such a copy must not take, prolong, count
or queue anything: a store that sends over a network must see to that itself (see `Late`).

Names are opaque to a store. Only one codec of each store defines how a waiter is encoded. A client
of another version may have written parts that are unknown to this version: a store must not fail on
what it cannot read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from enum import Enum
from typing import Any, Final, Generic, NamedTuple, TypeVar, final

from aiolock.status import DETACHED
from aiolock.status import Page as Page  # noqa: PLC0414  # exported
from aiolock.status import Participant as Participant  # noqa: PLC0414  # exported
from aiolock.status import Status as Status  # noqa: PLC0414  # exported

Answered = TypeVar("Answered", covariant=True)  # noqa: PLC0105  # named for what it is

new: Final[Callable[..., Any]] = tuple.__new__  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]  # as typeshed has it
"""Makes a named tuple of its fields, without a call in Python: ``new(WaiterId, (client, seq))``."""

# Constants

CLAIM = 3_000
"""The longest first lease of a pushed grant, in ms: a stuck waiter blocks others for this long."""

FEW: Final = 16
"""The holders that a `ReadStatus` without the waiters has, at most."""

PRIORITY = 100_000_000_000_000
"""How much higher a ticket is, in µs, for each step of `Form.priority`: three years, so that every
waiter of one priority comes before all waiters of the next."""

COST: Final = 10_000
"""The virtual time that a grant of one permit costs a share of weight 1: see `Form.share`."""
MOST_AHEAD = 1_024
"""The shares without waiters, for each priority, of which the next start is remembered if it is
ahead of the virtual time. Of more, those that are least ahead are forgotten."""

MAX_AHEAD: Final = 64
"""How many grants a client may be ahead of the store, at most. A grant that follows one whose end
its client has not reported has a fence that is higher by this many."""

A_MINUTE: Final = 60_000
"""Milliseconds for which a declared number is remembered after the last lease has ended."""
RESIZED: Final = 10_000
"""Milliseconds for which a resize is recognized after its last copy may have arrived: until then
the client may send another copy, with a later limit."""
KEEP_ALIVE: Final = 60_000
"""Milliseconds after which a waiter asks again if no lease will end."""

STANDS_STILL: Final = 60_000_000
"""Microseconds between the tickets of the first waiter and of a newcomer from which on a queue is
considered not to move."""
LOOKERS: Final = 32
"""One newcomer in this many looks for dead waiters."""
CHECKS: Final = 128
"""The number of waiters that it checks, if the queue is longer."""
CHECKS_IF_FULL: Final = 1024
"""The number of waiters that a newcomer checks which finds the queue full."""
GRANTS: Final = 128
"""The most grants that one step makes, or ends: a step blocks all other clients. The rest follow in
further steps, as `AskAgain` says."""
LOOKED_AHEAD: Final = 64
"""The waiters, from the head of the queue on, whose tokens are counted exactly to tell another one
when its own will be there. Each of those behind them counts as one token: the waiter asks too
early then, and is told a later time."""
PART: Final = 256
"""The most waiters of a queue that one step looks at. The rest follows in further steps, for which
nobody needs to ask."""

WAS_ABSENT, WAS_HOLDER, WAS_QUEUED, WAS_UNKNOWN = 0, 1, 2, 3
"""The state in which `Release` found the waiter.

`WAS_UNKNOWN`: the waiter is absent, but the release had been sent before and its reply was lost, so
that first copy may have removed it.
"""

BREAK_UNKNOWN: Final = -1
"""The answer of `Break` if it finds none of the grants, but it had been sent before and its
reply was lost, so that first copy may have ended them."""


# Waiters


class WaiterId(NamedTuple):
    """The id of one acquisition at the store: no two are alike."""

    client: str
    """The client's id: 96 random bits, without ``:``."""
    seq: int
    """The acquisition's number among those of its client."""


def detached(key: str) -> WaiterId:
    """The waiter of a grant that was detached with this key: see `Detach`."""
    return WaiterId(DETACHED + key, 0)


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
    RATE = "|"
    """Once ``number`` tokens are there, which it takes; it holds nothing then (`stores._bucket`).
    Its ``declared`` is a `Rate`. In place of a fence, it gets the µs until the bucket is full; and
    `Busy.until` is in µs, too."""
    ALIKE = "="
    """Beside those that share and have the same number, or another rule: see `aiolock.trees`."""


@dataclass(frozen=True, slots=True)
class Form:
    """The properties that all waiters of one lock description share, as far as a store needs.

    Some stores write them in this order: a new one comes last of those that are compared.
    """

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
    """The waiter is for work that is to be done once: see `Finish`."""
    downgrades: bool = False
    """The waiter is exclusive, and may become shared: see `Downgrade`."""
    after_loss: int = 0
    """After the loss of its grant, the lock stays closed for this many ms."""
    after_grant: int = 0
    """After its grant, the lock is granted to no other for this many ms, however the grant ends."""
    period: int = 0
    """The lock stays closed until the end of its grant's period; periods of this many ms count
    from 1970."""
    priority: int = 0
    """The waiter is before all waiters of a higher number, however long they have waited."""
    share: str = ""
    """The share that the waiter belongs to, or empty: among the waiters of one priority, the next
    is the first of the share that holds the fewest permits for its weight, and among equals has had
    the fewest grants. A waiter without a share is next when all that came before it have left."""
    weight: int = 1_000
    """The weight of that share, in thousandths, as far as this waiter is concerned."""
    remember: int = field(default=0, compare=False)
    """With ``once``: for how many ms the store remembers that the work is done. Only the waiter's
    own client needs it, where servers vote; it is never written to a store."""
    closes: int = field(init=False, repr=False, compare=False)
    """For how many ms at most its grant may close the lock beyond its lease; 0: it never does."""
    plain: bool = field(init=False, repr=False, compare=False)
    """Whether the lock is exclusive, renewed, and open again as soon as the grant has ended."""
    permits: int = field(init=False, repr=False, compare=False)
    """The permits or tokens that it takes, or its number with `Rule.ALIKE`; 0 with other rules."""

    def __post_init__(self) -> None:
        closes = max(self.after_loss, self.after_grant, self.period)
        odd = self.shared or self.fixed or self.once or self.downgrades or self.declared
        object.__setattr__(self, "closes", closes)  # frozen
        object.__setattr__(self, "plain", not odd and not closes and not self.share)
        counted = self.rule in (Rule.PERMITS, Rule.RATE, Rule.ALIKE)
        permits = self.number if counted else 0
        object.__setattr__(self, "permits", permits)

    @property
    def counts(self) -> bool:
        """Whether the waiter waits for a count, and so blocks no other waiter."""
        return self.rule is Rule.COUNT


# Answers


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
    `ReportHandoff`).
    """

    ticket: int
    place: int
    until: int
    now: int
    displaced: bool = False
    before: Before | tuple[WaiterId, int] | None = None


class Busy(NamedTuple):
    """The lock is taken and the waiter did not want to wait; the first lease ends in ``until`` ms.

    ``holder`` has that lease, if the store reports it. An ``until`` of 0 means that the waiter has
    been released, and nothing is left of it; one of -1, that the store has not removed all leases
    that have ended yet, or not let in all who come first, since they are many: ask again at once.
    """

    until: int
    holder: Participant | None = None


class Full(NamedTuple):
    """``waiters`` are already in the queue, as many as are allowed."""

    waiters: int


class Done(NamedTuple):
    """The work is done already, and will be remembered for ``until`` ms."""

    until: int


class Differs(NamedTuple):
    """The waiter declares a number for this name, but the store has another: ``known``."""

    known: int


Answer = Granted | Queued | Busy | Full | Done | Differs
"""The answers to `Acquire`."""


class Late(NamedTuple):
    """The answer of a server to a copy of a command that came too late, and was not carried out.

    Each copy of an `Acquire`, `Renew`, `Post`, `Resize` or `RequestRelease` carries the time,
    by the server's clock, until which it may be carried out. ``now`` is that clock, in µs. It is an
    answer to the store; a client never gets it.
    """

    now: int


@dataclass(frozen=True, slots=True)
class Posted:
    """The count of a name, and the value posted with it; see `ReadPosted`."""

    count: int
    value: str


def lasts(lease: int) -> float:
    """Seconds for which a lease of so many ms is certainly ours, counted from before its request.

    The safety margin is a hundredth, for clocks that run at different speeds (as in Redlock), and
    2 ms for rounding.
    """
    return lease * 0.00099 - 0.002


# Operations


class Operation(Generic[Answered]):
    """One command to a store; its type argument is the type of its answer."""

    __slots__ = ()

    name: str
    """The name that it is about; empty if it is about several, or none."""


class _Acquire(NamedTuple):
    name: str
    waiter: WaiterId
    form: Form
    ttl: int
    ticket: int = 0
    wait: bool = True
    max_waiters: int = 0


@final
class Acquire(_Acquire, Operation[Answer]):
    """Take the lock for ``ttl`` ms if nobody holds it or waits for it, else queue.

    ``ticket`` is the waiter's old place, 0 for a newcomer; a ``max_waiters`` of 0 is no limit. A
    waiter that already holds the lock gets its grant again, one that is queued its place.

    A waiter with the rule ``^`` blocks no other: if it fits, it is granted past the queue. One with
    ``&`` that does not wait, but completes its group, enters with the others. A lock that nobody
    holds, and for which nobody alive waits, is never `Busy`.

    It is a named tuple, as is `Release`: every acquisition makes both, and that costs least.
    """

    __slots__ = ()


class _Release(NamedTuple):
    name: str
    waiter: WaiterId
    form: Form
    fence: int
    entered: bool = True
    lost: bool = False


@final
class Release(_Release, Operation[int]):
    """Remove the waiter from the holders or the queue; grant the lock to the next if it held.

    A ``fence`` releases only the grant with that fence; 0 releases the waiter in any state. Without
    ``entered``, the grant was given up or given back unused, so the lock does not stay closed after
    it. With ``lost``, the lease has ended by the client's deadline, so this is a
    loss, even if it ends at the store a little later. (A lease that has ended there was lost in any
    case.) The client sets it only with `Form.after_loss`. Answers one of `WAS_ABSENT`,
    `WAS_HOLDER`, `WAS_QUEUED` and `WAS_UNKNOWN`.
    """

    __slots__ = ()


@final
class Discard(_Release, Operation[int]):
    """Release a detached grant, whose ``waiter`` is that of `detached`: see `Detach`.

    Answers as `Release` does. Copies of its `Detach` or `Adopt` that come later have no effect.
    """

    __slots__ = ()


@final
@dataclass(frozen=True, slots=True)
class ReportHandoff(Operation[int]):
    """Make ``target`` the holder instead of ``source``, for its claim; those between have left.

    Sent only if the store has answered with `Queued.before`. A store need not set that; then it
    makes all hand-offs itself. If a client's own waiter is directly behind its own holder, the
    client can tell what a release would do at the store. So it hands the lock on at once, under the
    lease that the store respects, and reports that afterwards.

    Answers `WAS_HOLDER`, or `WAS_ABSENT` if the source was no holder, or `WAS_UNKNOWN` as for a
    release. If another client's waiter is inserted directly before one of this client (it was
    displaced and comes back, or has a higher priority), the latter gets `OrderUnknown`.
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


class Renewal(NamedTuple):
    """One grant in a `Renew`; a ttl of 0 only asks whether the grant still holds."""

    name: str
    waiter: WaiterId
    form: Form
    fence: int
    ttl: int


@dataclass(frozen=True, slots=True)
class Renew(Operation[list[bool | None]]):
    """Prolong these leases to ``ttl`` ms from now; for each: whether it is still a holder.

    None if that is unknown, as when too few of a store's servers have answered. The client asks for
    that one again until its deadline; the others of the operation have their answer.
    """

    renewals: Sequence[Renewal]
    name: str = field(default="", init=False)


@dataclass(frozen=True, slots=True)
class ReadStatus(Operation[Status]):
    """The holders and the waiters of the lock; changes nothing.

    If there are many of them, they may be read in parts, each at a moment of its own: first the
    waiters, and then the holders, as of `Status.now`. A participant that waited or held from the
    first part to the last is in it once. A waiter may be in it that has left meanwhile, and a
    holder may be missing whose lease was made shorter meanwhile.

    Without ``waiters`` neither the queue, which may be long, nor all holders are read: `FEW` of
    them at most, and `Status.more_holders`, which may count some that have ended, or have no owner.
    """

    name: str
    _: KW_ONLY
    waiters: bool = True


@dataclass(frozen=True, slots=True)
class ReadPage(Operation[Page]):
    """The status of some names, from ``start`` on; changes nothing.

    The first page begins at an empty ``start``. A name that is held or waited for, from the first
    page to the last, is on one of them. It may be on two, and pages may have names that are no
    longer held or waited for. Each status is true of a moment of its own. Reading a page delays
    other clients by a few ms at most.
    """

    start: str = ""
    name: str = field(default="", init=False)


@dataclass(frozen=True, slots=True)
class Finish(Operation[int]):
    """End this grant: its work is done, which the store remembers for ``remember`` ms.

    Every waiter for that work leaves the queue, its client is notified (`AskAgain`), and later ones
    get `Done`. Answers as `Release` does: `WAS_HOLDER`, also for a second call.
    """

    name: str
    waiter: WaiterId
    form: Form
    fence: int
    remember: int


@dataclass(frozen=True, slots=True)
class RequestRelease(Operation[int]):
    """Ask the holders to release the lock when they can; how many were asked. Changes nothing."""

    name: str


@dataclass(frozen=True, slots=True)
class Downgrade(Operation[int]):
    """Let this grant share the lock from now on, without a release; see `Form.downgrades`.

    It keeps its id, its fence and its lease. Waiters at the head of the queue that share the lock
    enter too. Answers `WAS_HOLDER`, also for a second call, or `WAS_ABSENT`.
    """

    name: str
    waiter: WaiterId
    form: Form
    fence: int


@dataclass(frozen=True, slots=True)
class Detach(Operation[int]):
    """Let this grant, for ``ttl`` ms, belong to whoever has the ``key``: see `Adopt`.

    It keeps its fence, its permits and its delays. Its waiter becomes that of `detached`, which no
    client has; so its end does not mean that a client is stuck. The queue is not looked at. Answers
    `WAS_HOLDER`, also for a second call, or `WAS_ABSENT`: it had ended, or the key was used or
    discarded since.
    """

    name: str
    waiter: WaiterId
    form: Form
    fence: int
    key: str
    """Random, made up by the client for this one grant; without ``:``."""
    ttl: int


@dataclass(frozen=True, slots=True)
class Adopt(Operation["Granted | None"]):
    """Let ``waiter`` hold, for ``ttl`` ms, what was detached with this ``key``, under a new fence.

    In one step, so nobody holds it in between, and a key works once. The queue is not looked at.
    Answers None if the key was used before, or discarded, or its grant was broken or has ended. The
    same waiter gets its grant again, unless it has given up: then it gets None.
    """

    name: str
    waiter: WaiterId
    form: Form
    """That of the grant."""
    fence: int
    """The fence of the detached grant."""
    key: str
    ttl: int


@dataclass(frozen=True, slots=True)
class Resize(Operation[int]):
    """Set the number of permits to ``limit``, for ``remember`` ms; answers the number before.

    If the store has no number yet, that is ``declared``. From now on waiters may declare two
    numbers: the new ``limit``, and ``declared``, or the number before if that is the same.

    A store that may carry out copies of it sets a ``token``: all of them have the same, and only
    the first has an effect.
    """

    name: str
    declared: int
    limit: int
    remember: int
    _: KW_ONLY
    token: str = ""


@dataclass(frozen=True, slots=True)
class Post(Operation[int]):
    """Raise the count to ``count`` if it is less, or by one for each new ``token``.

    Waiters for a count that is now reached enter. A ``value``, unless empty, replaces the one
    posted before, unless the count is higher already. All this is remembered for ``remember`` ms at
    least. Answers the count. If ``declared`` (0: none) differs from the store's number, answers
    minus that number, and nothing was done.
    """

    name: str
    count: int
    _: KW_ONLY
    token: str
    declared: int
    value: str
    remember: int


@dataclass(frozen=True, slots=True)
class ReadPosted(Operation[Posted]):
    """The count and the posted value; changes nothing."""

    name: str


@dataclass(frozen=True, slots=True)
class Break(Operation[int]):
    """End these grants, notify their holders, grant the lock to the next; how many were held.

    Or `BREAK_UNKNOWN`: none of them is held, and whether this call has ended them is unknown.
    """

    name: str
    fences: Sequence[int]


# Events


class GrantPushed(NamedTuple):
    """The store granted the lock to this waiter, at ``now`` (store, µs), for ``lease`` ms."""

    name: str
    waiter: WaiterId
    form: Form
    fence: int
    lease: int
    now: int


class GrantLost(NamedTuple):
    """This grant was taken away; ``reason`` is ``expired`` or ``broken``.

    If it had expired, the client's waiters for ``name`` have left the queue as well.
    """

    name: str
    waiter: WaiterId
    fence: int
    reason: str


class LeaseShortened(NamedTuple):
    """This grant is only certain until then, by the client's clock (s), unless it is renewed.

    No answer to a renewal that was sent before moves the deadline past that. Only a store of
    several servers delivers this, when it misses a vote that it has counted.
    """

    name: str
    waiter: WaiterId
    fence: int
    until: float


class AskAgain(NamedTuple):
    """The waiters for ``name`` have outdated answers: ask again, for one of three reasons.

    The work of a `once` is done, and its waiters have left the queue. Or the lock stays closed for
    a while, and the first waiter in the queue has to ask for how long. Or many have entered, or
    many leases have ended, and the store goes on with more of them when the first waiter asks: so
    none of its steps takes long, however many there are.
    """

    name: str


class ReleaseRequested(NamedTuple):
    """Another client asks the holder of this grant to release the lock when it can."""

    name: str
    waiter: WaiterId
    fence: int


class OrderUnknown(NamedTuple):
    """Another waiter was inserted directly before this one since `Queued`."""

    name: str
    waiter: WaiterId


class GrantUnconfirmed(NamedTuple):
    """This grant may be forgotten, so it must not be used: its waiter gets the error.

    The waiter then gives the grant back, or its client does if the acquisition has ended. Only a
    store that waits for its replicas delivers this.
    """

    name: str
    waiter: WaiterId
    form: Form
    fence: int
    error: Exception


class Reconnected(NamedTuple):
    """Events may have been missed: every waiter must ask again."""


class LinkChanged(NamedTuple):
    """The link to the store broke with an error, or (None) works again.

    For observers, and for the error of an acquisition without an answer. If the error is a
    `StoreError`, its ``misconfigured`` counts, and the driver's error is its ``__cause__``.
    """

    error: Exception | None


class Heartbeat(NamedTuple):
    """The store is about to check its connections.

    A waiter may ask now what it would ask soon anyway: one command does for both.
    """


Event = (
    GrantPushed
    | GrantLost
    | LeaseShortened
    | AskAgain
    | ReleaseRequested
    | OrderUnknown
    | GrantUnconfirmed
    | Reconnected
    | LinkChanged
    | Heartbeat
)
"""What a store delivers by itself."""

Deliver = Callable[[Event], None]
"""The receiver of a store's events: called in the client's loop, never awaited."""
