"""What one waiter makes of the votes of several servers: no I/O, no clock, no timer.

Every server is a fair queue of its own, and a *vote* is its grant. A waiter stands in all of them
under one ticket, and enters once it has votes of a majority. That is Maekawa's algorithm (1985),
with leases in place of servers that never fail:

* **Who is short of a majority gives way.** A server that has voted, and is then asked by a waiter
  with a lower ticket, inquires; whoever it has voted for gives that vote back, unless it has a
  majority. So the lowest ticket never gives way, and gets them all.
* **A vote that is given back is never counted again.** It is taken for void before the command is
  sent, by its number: a late answer cannot revive it, and one that comes again has a higher number.
* **The fence is known to a majority before anybody enters.** Each server numbers its votes by
  itself, so the numbers of one acquisition differ. The fence is the lowest number that a majority
  of the votes does not exceed, and servers whose last number is lower are told it first: the
  write-back of Attiya, Bar-Noy and Dolev (1995). Any two majorities have a server in common, so
  the next fence is higher, with no clock that is compared to another.
* **The deadline is that which a majority reaches.** Each vote has one of its own, by the client's
  clock, counted from before the question was sent.
* **A vote that was taken away stays away.** A server at which the vote of a holder ended before its
  time is not counted again for as long as it holds, though it may vote for it at once. Else who is
  broken at one server after the other would get each vote back, and hold a lock that was another's
  in between. So it is with all of them once the deadline was over: another may have been inside.
* **Readers and writers need nothing here.** A server votes for any number that share, and for
  nobody beside one that does not. So majorities of two that must not be inside together still
  meet. Only of those two is the fence of the later the higher one.

* **What is done once is asked for first.** Who wants it done and has a majority holds that, and
  enters only when it was found that nobody has done it: see `_marks`.

Times are seconds of the client's clock. Servers are numbers from 0 on.
"""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class Phase(Enum):
    """How far a waiter has come."""

    WAITING = "waiting"
    ENTERED = "entered"
    OVER = "over"


class Enter(NamedTuple):
    """The lock is ours."""

    fence: int


class Raise(NamedTuple):
    """Renew this vote, and have the server know this fence, before anybody may enter with it."""

    server: int
    vote: int
    fence: int


class GiveWay(NamedTuple):
    """Give this vote back, and stand in the queue there again."""

    server: int
    vote: int


class Release(NamedTuple):
    """Leave the queue there, and give back what was voted, up to this number."""

    server: int
    upto: int


class Recall(NamedTuple):
    """See, now that nobody else can do it, whether somebody has."""


Step = Enter | Raise | GiveWay | Recall
"""What a client has to do now."""


class Vote:
    """What one server has granted."""

    __slots__ = ("deadline", "known", "number", "raising")

    def __init__(self, number: int, deadline: float) -> None:
        self.number = number
        """The server's own number of this vote; each later one of that name has a higher one."""
        self.known = number
        """The highest fence that the server knows, as far as we know."""
        self.deadline = deadline
        """Until when it certainly stands."""
        self.raising = False
        """It was told a fence, and has not answered yet."""

    def __repr__(self) -> str:
        return f"<Vote {self.number} known={self.known} deadline={self.deadline:.6f}>"


class Ballot:
    """The votes of one waiter, and what follows from them."""

    def __init__(self, servers: int, *, once: bool = False) -> None:
        self.quorum = servers // 2 + 1
        self.unsure = once
        """Whether it is not to enter yet, though it has a majority: it is not known that what is to
        be done once is not done. What was found holds for as long as there is a majority of the
        votes: else somebody may have done it since. Of a period, see `_periods`."""
        self._once = once
        self.phase = Phase.WAITING
        self.votes: list[Vote | None] = [None] * servers
        self.fence = 0
        """Under which it has entered."""
        self.highest = 0
        """The highest number that it was ever given; a release tells it to all servers, which then
        agree, so that the next need not be told a fence before it enters."""
        self.aside = False
        """It stands in no queue: see `step_aside`."""
        self._void = [0] * servers
        """Numbers up to this are not ours any more."""
        self._inquired = [0] * servers
        """The highest number for which each server has inquired."""
        self._taken = [False] * servers
        """Whether a vote that had been counted ended there before its time."""
        self._expired = False
        """Whether its deadline was over once."""

    # What is heard

    def voted(self, server: int, number: int, deadline: float) -> Release | None:
        """A server has voted for us, by an answer or by a push; what is to be done if in vain."""
        self.highest = max(self.highest, number)
        if number <= self._void[server]:
            return None
        vote = self.votes[server]
        if vote is not None and number <= vote.number:
            if number == vote.number:
                vote.deadline = max(vote.deadline, deadline)
            return None
        if self.aside or self._taken[server] or self._expired:
            self.votes[server] = None
            self._void[server] = number
            return Release(server, number)
        self.votes[server] = Vote(number, deadline)
        return None

    def counted(self, server: int, number: int, deadline: float) -> None:
        """What we wait for was counted there, and stays so: no answer is too late for that."""
        if not self.aside:
            self.votes[server] = Vote(number, deadline)

    def least(self, server: int) -> int:
        """The lowest number that is counted there, which a server may have forgotten; 0: any."""
        return self._void[server] + 1 if self._void[server] else 0

    def renewed(self, server: int, number: int, deadline: float, fence: int = 0) -> None:
        """A server has renewed this vote, and knows this fence."""
        vote = self.votes[server]
        if vote is not None and vote.number == number:
            vote.deadline = max(vote.deadline, deadline)
            vote.known = max(vote.known, fence)
            vote.raising = False

    def unanswered(self, server: int, number: int) -> None:
        """Nobody knows what became of a renewal: a fence is to be told once more."""
        vote = self.votes[server]
        if vote is not None and vote.number == number:
            vote.raising = False

    def gone(self, server: int, number: int, now: float) -> None:
        """This vote does not stand any more: its server says so."""
        vote = self.votes[server]
        if vote is not None and vote.number <= number:
            self.votes[server] = None
            if self.phase is Phase.ENTERED and self._stands(vote, now):
                self._taken[server] = True
        self._void[server] = max(self._void[server], number)

    def expire(self, now: float) -> None:
        """Where the deadline of who has entered is over, no other vote makes a majority again.

        Another may have been inside since.
        """
        if self.phase is Phase.ENTERED:
            deadline = self.deadline
            self._expired = self._expired or deadline is None or deadline <= now

    def forgotten(self, server: int) -> None:
        """The server has lost its memory, and votes for nobody: so it was not taken away there.

        What it votes later may have the number of the fence, as the others have it: who looks at
        the votes tells the fence by them. Whatever it had voted before has ended by then.
        """
        self._taken[server] = False
        if self.phase is Phase.ENTERED:
            self._void[server] = min(self._void[server], self.fence - 1)

    def inquired(self, server: int, number: int) -> None:
        """Somebody who asked before us wants this vote."""
        self._inquired[server] = max(self._inquired[server], number)

    # What follows

    def look(self, now: float) -> list[Step]:
        """What is to be done; to be asked after everything that is heard, and now and then.

        Who is to enter has entered by this: the clock is read for it, so it enters at once.
        """
        if self.phase is not Phase.WAITING:
            return []
        votes, quorum = self.votes, self.quorum
        if len(votes) - votes.count(None) < quorum:  # whether they stand or not
            self.unsure = self._once
            return self._give_way(now)
        standing = [
            (server, vote)
            for server, vote in enumerate(votes)
            if vote is not None and self._stands(vote, now)
        ]
        if len(standing) < quorum:
            self.unsure = self._once
            return self._give_way(now)
        fence = self._fence(sorted([vote.number for _, vote in standing]))
        if self._is_known([vote for _, vote in standing], fence):
            if self.unsure:
                return [Recall()]
            self.phase, self.fence = Phase.ENTERED, fence
            return [Enter(fence)]
        steps: list[Step] = []
        for server, vote in standing:
            if vote.known < fence and not vote.raising:
                vote.raising = True
                steps.append(Raise(server, vote.number, fence))
        return steps

    @staticmethod
    def _stands(vote: Vote, now: float) -> bool:
        return vote.deadline > now

    def _fence(self, numbers: list[int]) -> int:
        """Of the numbers of the votes, in order: the least that a majority does not exceed."""
        return numbers[self.quorum - 1]

    def _is_known(self, standing: list[Vote], fence: int) -> bool:
        return sum([vote.known >= fence for vote in standing]) >= self.quorum

    def _give_way(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for server, vote in enumerate(self.votes):
            if vote is None:
                continue
            # One that has ended is given back, too: for a new number, or for who is before us.
            if self._inquired[server] >= vote.number or not self._stands(vote, now):
                self._drop(server, vote)
                steps.append(GiveWay(server, vote.number))
        return steps

    def turned(self, server: int) -> None:
        """The vote there is turned into a mark: it is not counted from now on."""
        vote = self.votes[server]
        if vote is not None:
            self._drop(server, vote)

    def _drop(self, server: int, vote: Vote) -> None:
        self.votes[server] = None
        self._void[server] = max(self._void[server], vote.number)

    @property
    def has_votes(self) -> bool:
        """Whether any server has voted for us; else there is nothing to be done."""
        return self.votes.count(None) < len(self.votes)

    @property
    def deadline(self) -> float | None:
        """Until when a majority of the votes certainly stands; None if there is none."""
        deadlines = [vote.deadline for vote in self.votes if vote is not None]
        deadlines.sort()
        return deadlines[-self.quorum] if len(deadlines) >= self.quorum else None

    # Handing on within one client

    def reserve(self, fence: int) -> list[Raise]:
        """What its servers are to know, so that others may have it up to this fence."""
        if self.phase is not Phase.ENTERED:
            return []
        self.highest = max(self.highest, fence)
        return [
            Raise(server, vote.number, fence)
            for server, vote in enumerate(self.votes)
            if vote is not None
        ]

    def hand_on(self, now: float) -> int:
        """Another waiter of this client has it from now on; under which fence, or 0: it may not.

        The votes stay what they are, and so does the deadline. A majority of the votes has to
        stand, and their servers to know the fence by now: else whoever comes next could have the
        same one, where nothing that is sent after this ever arrives.
        """
        self.expire(now)
        if self.phase is not Phase.ENTERED or self._expired:
            return 0
        standing = [vote for vote in self.votes if vote is not None and self._stands(vote, now)]
        if not self._is_known(standing, self.fence + 1):
            return 0
        self.fence += 1
        return self.fence

    # The end

    def step_aside(self) -> list[Release]:
        """No majority is in reach: be in nobody's way, who may have one. The ticket is kept.

        Else a waiter that reaches one server only, and has the lowest ticket there, would block
        those for ever that need this server for their majority.
        """
        self.aside = True
        for server, vote in enumerate(self.votes):
            if vote is not None:
                self._drop(server, vote)
        # No further than this: a copy that comes late must not take what is voted after it.
        return [Release(server, upto) for server, upto in enumerate(self._void)]

    def give_back(self) -> list[Release]:
        """It has entered too late: all of it is given back, but for the ticket."""
        self.phase, self.fence = Phase.WAITING, 0
        self._taken, self._expired = [False] * len(self._taken), False
        return self.step_aside()

    def come_back(self) -> None:
        """A majority is in reach again: ask all of them."""
        self.aside = False

    def leave(self) -> None:
        """It is over: release without a bound at every server that was ever asked."""
        self.phase = Phase.OVER
