"""The messages between a quorum and each of its members: commands, answers, and pushes.

A *member* is one server that votes. It keeps a *queue* of waiters for each name, as a single server
does, and gives *votes* instead of grants. Each message is about that member alone: what follows
from the votes of all members is in `aiolock.stores.quorum`.

Times are as in `aiolock.store`: leases in ms, and a member's own clock in µs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final, NamedTuple, Protocol

from aiolock.errors import StoreError
from aiolock.protocol import Event, Form, Participant, WaiterId

UNBOUNDED = -1
"""As ``upto``, releases any vote of a waiter that does not come back: see `Member.release`."""
REMEMBERED: Final = 600_000
"""Milliseconds for which the last number of a name is kept after the last vote has ended."""
LOOKED_AT: Final = 128
"""How many waiters in a queue are checked for other clients; a longer queue may have some."""
COUNTED: Final = 31_536_000_000
"""Milliseconds, a year: the lease of a vote for a count, which stays reached."""

UNDECIDED: Final = -1
"""Instead of a time: the member has not ended all leases that are over yet, or not let in all
waiters that come before this one, as it does that in parts. Ask again at once."""

GONE, ALONE, SHARED = 0, 1, 2
"""Answers to `Member.reserve`: the vote has ended; all waiters in the queue are of its client;
waiters of other clients may be in the queue."""
OUTSIDE, LOST = -1, -2
"""As ``entered``, releases a vote that was never entered, or one that was entered and lost."""


class VoteRequest(NamedTuple):
    """The waiter that asks for a vote; it is the same at all members."""

    name: str
    waiter: WaiterId
    form: Form
    ticket: int
    """The waiter with the lower ticket comes first; equal tickets are ordered by waiter."""


class Voted(NamedTuple):
    """The waiter has the vote, for ``lease`` ms."""

    number: int
    """Each later vote of this name has a higher number, as long as the member forgets nothing."""
    lease: int
    now: int


class InQueue(NamedTuple):
    """Another waiter has the vote, for ``until`` ms at most; this one is in the queue if
    it waits.
    """

    until: int
    """`UNDECIDED` for a waiter that does not wait, but may get the vote if it asks again."""
    place: int
    """1 if it is the first; 0 if it does not wait."""
    now: int
    holder: Participant | None = None
    """The owner of the vote, for a waiter that does not wait, if the member reports it."""


class NotVoting(NamedTuple):
    """The member does not vote for ``left`` ms, because it may have forgotten votes that are out.

    Less than 0: until it has registered in its quorum (`Member.register`).
    """

    left: int
    now: int


class QueueIsFull(NamedTuple):
    """``waiters`` are already in the queue, as many as are allowed."""

    waiters: int
    now: int


class Refused(NamedTuple):
    """The vote has ended; or the waiter gave up before, and this is a late copy."""

    now: int


class DoneMarker(NamedTuple):
    """The work is done: this member keeps its done marker for ``left`` ms more."""

    number: int
    """The fence of the grant that did it."""
    left: int
    now: int


Answer = Voted | InQueue | NotVoting | QueueIsFull | Refused | DoneMarker


class DoneRecord(NamedTuple):
    """A member's record of work to be done once, and whether it may have forgotten one."""

    number: int
    """The fence of the grant that did it; 0 if there is no done marker."""
    left: int
    """For how many ms it keeps that marker."""
    forgot: int
    """At least this many ms ago it lost its memory; less than 0: it never did."""
    now: int


@dataclass(frozen=True, slots=True)
class Kept:
    """The posted value of a member: see `Posted`."""

    count: int
    value: str
    left: int
    """For how many ms the member keeps it."""


class Registered(NamedTuple):
    """The answer of a member to `Member.register`."""

    left: int
    """For how many ms it does not vote; less than 0 if it has no quorum config, and cannot tell
    whether it ever had one."""
    run: str
    """A name for this run of the server: no two runs of any servers have the same."""
    now: int


class Memory(Enum):
    """The reason why a member has no quorum config: what the other members know about that."""

    UNSAID = ""
    """Not known yet: it does not vote until it is."""
    NEW = "new"
    """The quorum is new, the other members have no config either: it has forgotten nothing, and
    votes."""
    LOST = "lost"
    """The other members have the config: all votes that it may have given must end before it votes
    again."""


class QuorumConfig(NamedTuple):
    """The configuration of a quorum, the same for all members and for all their clients."""

    members: tuple[str, ...]
    """The addresses of the members, in order."""
    longest: int
    """The longest lease allowed, in ms."""
    durable: bool
    """Whether the members forget nothing when they restart."""

    def __str__(self) -> str:
        durable = " durable" if self.durable else ""
        return f"{','.join(self.members)} longest_ttl={self.longest / 1000:g}{durable}"


class Unfit(StoreError):
    """This server cannot be a member; trying again later does not help."""


class VoteInquired(NamedTuple):
    """Another waiter, which comes before this one, needs this vote."""

    name: str
    waiter: WaiterId
    number: int


class MemberRegistered(NamedTuple):
    """The member was registered, on a new connection."""

    registered: Registered


class RegistrationRefused(NamedTuple):
    """The member has refused to be registered: it does not vote."""

    error: Exception


MemberEvent = Event | VoteInquired | MemberRegistered | RegistrationRefused
"""What a member delivers by itself; `GrantPushed` is its vote, with the vote's number as fence."""

DeliverMember = Callable[[MemberEvent], None]
"""The receiver of a member's events: called in the client's loop, never awaited."""


OnReply = Callable[[Any, Exception | None], None]
"""A function that gets the answer, or the error instead: called once, in the loop."""


class Member(Protocol):
    """One server that votes, from the side of a client.

    As with a `Store`, an operation is started by the call, operations about one waiter are carried
    out in the order of the calls, and each is answered, or fails, in the end.
    """

    @property
    def address(self) -> str:
        """Its address in the quorum config, and in errors."""
        ...

    @property
    def kind(self) -> str:
        """The kind of server: all members of one quorum are of one kind."""
        ...

    async def join(self, client: str, deliver: DeliverMember, config: QuorumConfig) -> None:
        """Connect, register, and subscribe. `StoreError` if that fails and may be tried again;
        `Unfit` or `QuorumMismatch` if the server cannot be a member of this quorum.
        """

    async def leave(self, patience: float) -> None:
        """Wait this many seconds for the operations under way, then disconnect. Idempotent."""

    def waits_for(self) -> float:
        """Seconds for which the oldest missing answer has been due; 0 if none is missing."""
        ...

    def register(self, memory: Memory) -> None:
        """Register it in its quorum once more; its event has the answer, or the error."""

    def vote(
        self,
        request: VoteRequest,
        ttl: int,
        proposal: int,
        *,
        wait: bool,
        most: int,
        new: bool,
        on_reply: OnReply,
    ) -> None:
        """Vote for this waiter, or put it in the queue; an `Answer`.

        The vote's number must be at least ``proposal``; at most ``most`` waiters may be in the
        queue (0: any number). ``new``: this member was never asked for this waiter, so nothing has
        to be released if the command is not sent.
        """

    def release(
        self, request: VoteRequest, highest: int, upto: int, *, entered: int, on_reply: OnReply
    ) -> None:
        """Remove the waiter from the queue, and its vote if its number is not above ``upto``.

        With `UNBOUNDED`, any vote of it is released, and it does not come back. The member's later
        numbers must be above ``highest``. ``entered``: for how many ms the waiter was inside,
        because its form may close the lock for a while; or `OUTSIDE`, or `LOST`. Answers
        ``WAS_HOLDER`` and so on. Answers ``WAS_UNKNOWN`` if the waiter is not there and the member
        has lost its memory: then no other waiter has had that vote since.
        """

    def yield_vote(self, request: VoteRequest, number: int, on_reply: OnReply) -> None:
        """Take this vote back, and put the waiter in the queue again; an `Answer`."""

    def renew(
        self,
        request: VoteRequest,
        number: int,
        ttl: int,
        fence: int,
        *,
        entered: bool,
        on_reply: OnReply,
    ) -> None:
        """Prolong this vote to at least ``ttl`` ms from now, and remember this fence.

        Answers whether the vote is still out; a ttl of 0 asks only that. ``entered``: its waiter is
        inside.
        """

    def reserve(self, request: VoteRequest, number: int, fence: int, on_reply: OnReply) -> None:
        """Remember this fence, if this vote is still out; answer whether other clients are in the
        queue.

        A client sends this before it hands the lock off among its own waiters. Answers `GONE`,
        `ALONE` or `SHARED`.
        """

    def finish(
        self, request: VoteRequest, fence: int, remember: int, until: int, on_reply: OnReply
    ) -> None:
        """Keep a *done marker* for ``remember`` ms: the waiter's work is done.

        Until then no waiter gets a vote; the waiters for that work leave the queue, and are
        notified. Refused if the vote is another waiter's, so a member never has both a marker and a
        vote out. The marker ends at ``until`` at the latest, in ms of the member's own clock; 0 for
        no such limit. A ``remember`` of 0 only asks whether there is a marker of this very fence.
        Answers whether there is.
        """

    def query_done(self, name: str, on_reply: OnReply) -> None:
        """The done marker, if there is one: a `DoneRecord`. Changes nothing."""

    def take_away(self, name: str, waiter: WaiterId, on_reply: OnReply) -> None:
        """Take the vote from this waiter, notify it, and vote for the next; how many had it.

        ``BREAK_UNKNOWN`` as of `Break`.
        """

    def request(self, name: str, on_reply: OnReply) -> None:
        """Ask the owner of the vote to release the lock when it can; how many were asked."""

    def status(self, name: str, on_reply: OnReply, *, waiters: bool = True) -> None:
        """The owner of the vote, and the waiters in the queue, unless not wanted: a `Status`.

        If there are many, they may be read in parts: see `ReadStatus`.
        """

    def names(self, start: str, on_reply: OnReply) -> None:
        """Some names with votes: a tuple of them, and the start of the next page."""

    def post(self, name: str, count: int, value: str, remember: int, on_reply: OnReply) -> None:
        """Post this value, unless the count is higher already; answers the count.

        Waiters for a count that is now reached are notified, as of a vote.
        """

    def read(self, name: str, on_reply: OnReply) -> None:
        """The posted value: a `Kept`."""
