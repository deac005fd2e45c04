"""What is said between a quorum and each of its members: commands, answers, and what is pushed.

A *member* is one server that votes. It keeps a *line* for each name, as a single server keeps its
queue, and has at most one *vote* out. It says of nothing but itself: what follows from the votes of
all of them is in `aiolock.stores.quorum`.

Times are as in `aiolock.store`: leases in ms, and a member's own clock in µs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple, Protocol

from aiolock.errors import StoreError
from aiolock.store import Form, Inbox, Party, Waiter

UNBOUNDED = -1
"""A release of whatever vote there is: see `Member.release`."""
GONE, ALONE, SHARED = 0, 1, 2
"""Answers to `Member.reserve`: that vote does not stand; of those in line, all are of its client;
others may be there."""
OUTSIDE, LOST = -1, -2
"""A release of what has never entered, or has entered and lost that."""


class Stand(NamedTuple):
    """Who asks for a vote; at all members alike."""

    name: str
    waiter: Waiter
    form: Form
    ticket: int
    """Who has a lower one is before it, and of two with the same, by who they are."""


class Voted(NamedTuple):
    """The vote is the waiter's, for so long."""

    number: int
    """Each later vote of this name has a higher one, as long as the member forgets nothing."""
    lease: int
    now: int


class InLine(NamedTuple):
    """Another has the vote, until then at most; whoever waits stands in line."""

    until: int
    place: int
    """1 where nobody stands before it; 0 where it does not wait."""
    now: int
    holder: Party | None = None
    """For who does not wait: who has the vote, where the member says so."""


class Silent(NamedTuple):
    """It does not vote for so long, for it may have votes out that it has forgotten.

    Less than 0: until it is told of what it is a member.
    """

    left: int
    now: int


class Crowded(NamedTuple):
    """As many stand in line as were allowed."""

    waiters: int
    now: int


class Refused(NamedTuple):
    """That vote does not stand; or who asks for one was given up before, and this is a copy."""

    now: int


class Marked(NamedTuple):
    """What the waiter wants done once is done, as this member knows for so long."""

    number: int
    """The fence of whoever did it."""
    left: int
    now: int


Answer = Voted | InLine | Silent | Crowded | Refused | Marked


class Recalled(NamedTuple):
    """What a member knows of something that is to be done once, and whether it would know."""

    number: int
    """The fence of whoever did it; 0 where it knows of nobody."""
    left: int
    """For how many ms it knows that."""
    forgot: int
    """So many ms ago, at least, it forgot what it knew; less than 0: it never did."""
    now: int


@dataclass(frozen=True, slots=True)
class Kept:
    """What is put up at a member: see `Posted`."""

    count: int
    value: str
    left: int
    """For how many ms it is."""


class Enrolled(NamedTuple):
    """What a member says of itself when it is told of what it is a member."""

    left: int
    """For how many ms it does not vote; less than 0 where it knows of no quorum, and does not know
    whether it ever did."""
    run: str
    """What names this run of the server: no two are alike, of whatever servers."""
    now: int


class Memory(Enum):
    """What a member is told that knows of no quorum, and has run for long enough to know."""

    UNSAID = ""
    """Nothing yet: it does not vote until it is told more."""
    NEW = "new"
    """Neither do the others: it has forgotten nothing, and votes."""
    LOST = "lost"
    """The others know of it: what it may have voted for must have ended before it votes again."""


class Charter(NamedTuple):
    """Of what it is a member: the same for all members, and for all clients of them."""

    members: tuple[str, ...]
    """Their addresses, in order."""
    longest: int
    """The longest lease that there may be."""
    durable: bool
    """They forget nothing when they restart."""

    def __str__(self) -> str:
        durable = " durable" if self.durable else ""
        return f"{','.join(self.members)} longest_ttl={self.longest / 1000:g}{durable}"


class Unfit(StoreError):
    """This server cannot be a member: no matter of waiting until it can be reached."""


class MemberInbox(Inbox, Protocol):
    """Where a member delivers what comes unasked; `Inbox.granted` is its vote, by its number."""

    def inquired(self, name: str, waiter: Waiter, number: int) -> None:
        """Somebody who is before this waiter wants this vote."""

    def enrolled(self, enrolled: Enrolled) -> None:
        """The connection is a new one, and the member has said what it is."""


Heard = Callable[[Any, Exception | None], None]
"""Gets an answer, or why there is none; called once, in the loop, as soon as it comes."""


class Member(Protocol):
    """One server that votes, as its client sees it.

    As with a `Store`, an operation is started by the call, operations about one waiter are carried
    out in the order of the calls, and none stays unanswered for ever.
    """

    @property
    def address(self) -> str:
        """What it is called in the charter, and in errors."""
        ...

    @property
    def kind(self) -> str:
        """Of what kind of server: all of one quorum are of one."""
        ...

    async def join(self, client: str, inbox: MemberInbox, charter: Charter) -> None:
        """Connect, enrol, and listen; `StoreError` where that fails, and then it may be tried
        again. `Unfit`, or `QuorumMismatch`, where the server cannot be a member of this quorum.
        """

    async def leave(self, patience: float) -> None:
        """Wait so many seconds for what is under way, then disconnect. Idempotent."""

    def waits_for(self) -> float:
        """For how many seconds the answer is due that has been due for longest; 0 for none."""
        ...

    def enrol(self, memory: Memory) -> None:
        """Tell it of what it is a member once more; its answer goes to the inbox."""

    def vote(
        self,
        stand: Stand,
        ttl: int,
        proposal: int,
        *,
        wait: bool,
        most: int,
        new: bool,
        heard: Heard,
    ) -> None:
        """Vote for this waiter, or let it stand in line; an `Answer`.

        ``proposal`` is what the number is to be at least; ``most`` may stand in line (0: any
        number). ``new``: it was never asked there before, so that there is nothing to be released
        where this was not sent.
        """

    def release(self, stand: Stand, highest: int, upto: int, *, entered: int, heard: Heard) -> None:
        """Take the waiter out of line, and its vote, if its number is not above ``upto``.

        ``highest``: a number that the member is to know from now on. ``entered``: for how many ms
        it was inside, so that its terms may close the lock; or `OUTSIDE`, or `LOST`. `UNBOUNDED`:
        it does not come back. Answers ``WAS_HOLDER`` and so on; ``WAS_UNKNOWN`` where it is not
        there, and the member has lost its memory: then nobody else has had that vote since.
        """

    def give_way(self, stand: Stand, number: int, heard: Heard) -> None:
        """Take this vote back, and let the waiter stand in line; an `Answer`."""

    def renew(
        self, stand: Stand, number: int, ttl: int, fence: int, *, entered: bool, heard: Heard
    ) -> None:
        """Let this vote last for ``ttl`` ms from now, at least, and know this fence.

        Answers whether it stands; a ttl of 0 asks only that. ``entered``: its waiter is inside.
        """

    def reserve(self, stand: Stand, number: int, fence: int, heard: Heard) -> None:
        """Know this fence, if this vote stands, and say whether another client stands in line.

        What a client asks that may hand the lock on among its own: `GONE`, `ALONE` or `SHARED`.
        """

    def finish(self, stand: Stand, fence: int, keep: int, until: int, heard: Heard) -> None:
        """Know for ``keep`` ms that what this waiter wanted done once is done: the *mark* of that.

        Until then nobody gets a vote; those in line that want it done leave, and are told. Refused
        where the vote is another's, so a member never has both a mark and a vote out. ``until``: at
        this time, in ms of its own clock, it ends at the latest; 0 for no such time. ``keep`` 0
        asks only whether this very fence is known. Answers whether it is known.
        """

    def recall(self, name: str, heard: Heard) -> None:
        """What it knows of something that is to be done once: a `Recalled`. Changes nothing."""

    def take_away(self, name: str, waiter: Waiter, heard: Heard) -> None:
        """Take the vote from this waiter, tell it, and let the next have it; how many had it."""

    def request(self, name: str, heard: Heard) -> None:
        """Tell who has the vote that somebody asks it to let go; how many were told."""

    def status(self, name: str, heard: Heard) -> None:
        """Who has the vote, and who stands in line: a `Status`."""

    def names(self, start: str, heard: Heard) -> None:
        """Some names of which there are votes; a tuple of them, and where the next begin."""

    def post(self, name: str, count: int, value: str, keep: int, heard: Heard) -> None:
        """Put this up, unless a higher count is there already; the count.

        Those who wait for the count to be so high are told, as of a vote.
        """

    def read(self, name: str, heard: Heard) -> None:
        """What is put up: a `Kept`."""
