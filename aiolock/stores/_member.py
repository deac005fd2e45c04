"""The messages between a quorum and each of its members: commands, answers, and pushes.

A *member* is one server that votes. It keeps a *line* of waiters for each name, as a single server
keeps its queue, and has at most one *vote* out. It only speaks for itself: what follows from the
votes of all members is in `aiolock.stores.quorum`.

Times are as in `aiolock.store`: leases in ms, and a member's own clock in µs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from aiolock.errors import StoreError
from aiolock.store import Form, Inbox, Participant, WaiterId

UNBOUNDED = -1
"""As ``upto``, releases any vote of a waiter that does not come back: see `Member.release`."""
GONE, ALONE, SHARED = 0, 1, 2
"""Answers to `Member.reserve`: the vote does not stand; all waiters in line are of its client;
waiters of other clients may be in line."""
OUTSIDE, LOST = -1, -2
"""Releases a vote that was never entered, or one that was entered and lost."""


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
    """Another waiter has the vote, for ``until`` ms at most; this one is in line if it waits."""

    until: int
    place: int
    """1 if no other stands before it; 0 if it does not wait."""
    now: int
    holder: Participant | None = None
    """The owner of the vote, for a waiter that does not wait, if the member tells."""


class NotVoting(NamedTuple):
    """The member does not vote for ``left`` ms, because it may have forgotten votes that are out.

    Less than 0: until it is told the charter of its quorum.
    """

    left: int
    now: int


class QueueIsFull(NamedTuple):
    """``waiters`` stand in line already, as many as are allowed."""

    waiters: int
    now: int


class Refused(NamedTuple):
    """The vote does not stand; or the waiter gave up before, and this is a late copy."""

    now: int


class DoneMarker(NamedTuple):
    """The work that the waiter wants is done, as this member knows for ``left`` ms more."""

    number: int
    """The fence of the grant that did it."""
    left: int
    now: int


Answer = Voted | InQueue | NotVoting | QueueIsFull | Refused | DoneMarker


class DoneRecord(NamedTuple):
    """What a member knows of work to be done once, and whether it may have forgotten that."""

    number: int
    """The fence of the grant that did it; 0 if it knows of none."""
    left: int
    """For how many ms it remembers that."""
    forgot: int
    """At least this many ms ago it forgot what it knew; less than 0: it never did."""
    now: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What is posted at a member: see `Posted`."""

    count: int
    value: str
    left: int
    """For how many ms the member keeps it."""


class Registered(NamedTuple):
    """What a member says of itself when it is told the charter of its quorum."""

    left: int
    """For how many ms it does not vote; less than 0 if it knows of no quorum, nor whether it ever
    did."""
    run: str
    """A name for this run of the server: no two runs of any servers have the same."""
    now: int


class Memory(Enum):
    """What a member is told that knows of no quorum, and has run for long enough to know."""

    UNSAID = ""
    """Nothing yet: it does not vote until it is told more."""
    NEW = "new"
    """The other members do not know of it either: it has forgotten nothing, and votes."""
    LOST = "lost"
    """The other members know of it: all votes it may have given must end before it votes again."""


class QuorumConfig(NamedTuple):
    """The description of a quorum, the same for all members and for all their clients."""

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


class MemberInbox(Inbox, Protocol):
    """Where a member delivers its pushes; `Inbox.granted` is its vote, with the vote's number."""

    def inquired(self, name: str, waiter: WaiterId, number: int) -> None:
        """Another waiter, which comes before this one, wants this vote."""

    def registered(self, registered: Registered) -> None:
        """The connection is a new one, and the member has told its state."""

    def not_registered(self, error: Exception) -> None:
        """The member was told its charter, and has refused it: it does not vote."""


Heard = Callable[[Any, Exception | None], None]
"""Gets an answer, or the error instead; called once, in the loop, as soon as it comes."""


class Member(Protocol):
    """One server that votes, as its client sees it.

    As with a `Store`, an operation is started by the call, operations about one waiter are carried
    out in the order of the calls, and each is answered, or fails, in the end.
    """

    @property
    def address(self) -> str:
        """Its name in the charter, and in errors."""
        ...

    @property
    def kind(self) -> str:
        """The kind of server: all members of one quorum are of one kind."""
        ...

    async def join(self, client: str, inbox: MemberInbox, config: QuorumConfig) -> None:
        """Connect, enrol, and listen. `StoreError` if that fails and may be tried again; `Unfit`
        or `QuorumMismatch` if the server cannot be a member of this quorum.
        """

    async def leave(self, patience: float) -> None:
        """Wait this many seconds for the operations under way, then disconnect. Idempotent."""

    def waits_for(self) -> float:
        """Seconds for which the oldest missing answer has been due; 0 if none is missing."""
        ...

    def register(self, memory: Memory) -> None:
        """Tell it the charter of its quorum once more; the inbox gets the answer, or the error."""

    def vote(
        self,
        request: VoteRequest,
        ttl: int,
        proposal: int,
        *,
        wait: bool,
        most: int,
        new: bool,
        on_reply: Heard,
    ) -> None:
        """Vote for this waiter, or let it stand in line; an `Answer`.

        The vote's number must be at least ``proposal``; at most ``most`` waiters may stand in line
        (0: any number). ``new``: this member was never asked for this waiter, so nothing has to be
        released if the command is not sent.
        """

    def release(
        self, request: VoteRequest, highest: int, upto: int, *, entered: int, on_reply: Heard
    ) -> None:
        """Take the waiter out of line, and its vote, if its number is not above ``upto``.

        With `UNBOUNDED`, any vote of it is released, and it does not come back. The member must
        know the number ``highest`` from now on. ``entered``: for how many ms the waiter was inside,
        because its form may close the lock for a while; or `OUTSIDE`, or `LOST`. Answers
        ``WAS_HOLDER`` and so on. Answers ``WAS_UNKNOWN`` if the waiter is not there and the member
        has lost its memory: then no other waiter has had that vote since.
        """

    def yield_vote(self, request: VoteRequest, number: int, on_reply: Heard) -> None:
        """Take this vote back, and let the waiter stand in line; an `Answer`."""

    def renew(
        self,
        request: VoteRequest,
        number: int,
        ttl: int,
        fence: int,
        *,
        entered: bool,
        on_reply: Heard,
    ) -> None:
        """Let this vote last for at least ``ttl`` ms from now, and remember this fence.

        Answers whether the vote stands; a ttl of 0 asks only that. ``entered``: its waiter is
        inside.
        """

    def reserve(self, request: VoteRequest, number: int, fence: int, on_reply: Heard) -> None:
        """Remember this fence, if this vote stands; answer whether another client is in line.

        A client asks this that may hand the lock on among its own waiters: `GONE`, `ALONE` or
        `SHARED`.
        """

    def finish(
        self, request: VoteRequest, fence: int, remember: int, until: int, on_reply: Heard
    ) -> None:
        """Keep in mind for ``remember`` ms that the waiter's work is done: the *mark* of that work.

        Until then no waiter gets a vote; those in line that want the work done leave, and are told.
        Refused if the vote is another waiter's, so a member never has both a mark and a vote out.
        The mark ends at ``until`` at the latest, in ms of the member's own clock; 0 for no such
        limit. A ``remember`` of 0 only asks whether this very fence is known. Answers whether it
        is.
        """

    def query_done(self, name: str, on_reply: Heard) -> None:
        """What it knows of work to be done once: a `DoneRecord`. Changes nothing."""

    def take_away(self, name: str, waiter: WaiterId, on_reply: Heard) -> None:
        """Take the vote from this waiter, tell it, and give it to the next; how many had it.

        ``BREAK_UNKNOWN`` as of `Store.break_`.
        """

    def request(self, name: str, on_reply: Heard) -> None:
        """Tell the owner of the vote that another client wants the lock; how many were told."""

    def status(self, name: str, on_reply: Heard, *, waiters: bool = True) -> None:
        """The owner of the vote, and the waiters in line, unless not wanted: a `Status`.

        If there are many, they may be read in parts: see `Store.status`.
        """

    def names(self, start: str, on_reply: Heard) -> None:
        """Some names of which there are votes: a tuple of them, and where the next page begins."""

    def post(self, name: str, count: int, value: str, remember: int, on_reply: Heard) -> None:
        """Post this value, unless a higher count is there already; answers the count.

        Waiters for a count that is now reached are told, as of a vote.
        """

    def read(self, name: str, on_reply: Heard) -> None:
        """The posted value: a `Kept`."""
