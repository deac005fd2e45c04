"""The votes for one waiter at several servers, and what they allow: no I/O, no clock, no timer.

Every server is a fair queue of its own, and its grant is a *vote*. A waiter is in the queues of all
servers under one ticket, and enters once it has the votes of a majority. This is Maekawa's
algorithm (1985), with leases in place of servers that never fail:

* **A waiter without a majority yields.** A server that has voted, and is then asked by a waiter
  with a lower ticket, inquires. The waiter that it has voted for gives that vote back, unless it
  has a majority. So the waiter with the lowest ticket never yields, and gets all votes.
* **A vote that is given back is never counted again.** Its number is excluded before the command is
  sent: a late answer cannot revive it, and a later vote has a higher number.
* **The fence is known to a majority before the waiter enters.** Each server numbers its votes by
  itself, so the numbers of one acquisition differ. The fence is the lowest number that a majority
  of the votes does not exceed. Servers whose last number is lower are told the fence first: the
  write-back of Attiya, Bar-Noy and Dolev (1995). Any two majorities have a server in common, so the
  next fence is higher, and no clock is compared to another.
* **The deadline is the latest one that a majority of the votes reaches.** Each vote has its own, by
  the client's clock, counted from before the question was sent.
* **A vote that was taken away stays away.** If the vote of a holder ended at a server before its
  time, no vote of that server is counted again while it holds, though the server may vote for it at
  once. Otherwise a holder that is broken at one server after the other would get each vote back,
  and keep a lock that was another's in between. Once the deadline was over, no new vote of any
  server is counted: another may have been inside.
* **Readers and writers need nothing here.** A server votes for any number of waiters that share,
  and for no other waiter beside one that does not. So the majorities of two waiters that must not
  be inside together still meet. Only for such a pair is the later fence the higher one.

* **Work that is done once is asked for first.** A waiter for such work keeps its majority, and
  enters only once it was found that the work is not done: see `_done_markers`.
* **Of a periodic job only the votes of one period count together**: see `_periods`.

A client's events (a vote, a renewal, an inquiry, a loss) go into a `VoteSet` by its methods;
`VoteSet.look` then returns the steps that the client has to take. `_acquisitions` sends them.

Times are seconds of the client's clock. Servers are numbers from 0 on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import Enum
from typing import NamedTuple

from aiolock.stores.quorum._periods import ENDLESS, Period


class Phase(Enum):
    """The phase of a waiter."""

    WAITING = "waiting"
    ENTERED = "entered"
    OVER = "over"


class Enter(NamedTuple):
    """The waiter has the lock."""

    fence: int


class Raise(NamedTuple):
    """Renew this vote and tell the server this fence, before the waiter may enter with it."""

    server: int
    vote: int
    fence: int


class YieldVote(NamedTuple):
    """Give this vote back, and join the queue there again."""

    server: int
    vote: int


class Release(NamedTuple):
    """Leave the queue there, and give back votes up to this number."""

    server: int
    upto: int


class QueryDone(NamedTuple):
    """Ask whether the work is done, now that no other waiter can begin it."""


Step = Enter | Raise | YieldVote | QueryDone
"""The next step of the client."""


class Vote:
    """The vote of one server."""

    __slots__ = ("deadline", "known", "number", "period", "raising")

    def __init__(self, number: int, deadline: float, period: Period = ENDLESS) -> None:
        self.number = number
        """The server's number of this vote; each later vote of that name has a higher one."""
        self.known = number
        """The highest fence that the server has certainly got."""
        self.deadline = deadline
        """The time until which the vote certainly lasts."""
        self.period = period
        self.raising = False
        """The server was told a fence, and has not answered yet."""

    def __repr__(self) -> str:
        return f"<Vote {self.number} known={self.known} deadline={self.deadline:.6f}>"


class VoteSet:
    """The votes for one waiter, and the decisions by them."""

    def __init__(
        self,
        servers: int,
        *,
        once: bool = False,
        periodic: bool = False,
        counts: list[int] | None = None,
    ) -> None:
        """``counts``: by server, the number of votes that the client has; kept up to date."""
        self.quorum = servers // 2 + 1
        self.unsure = once
        """Whether the waiter may not enter yet in spite of a majority: its work may be done.
        A "not done" holds for as long as there is a majority of the votes: without one, another
        waiter may have done the work since."""
        self._once = once
        self._periodic = periodic
        self._confirmed = False
        """A majority has recorded that the waiter is inside: later votes may be of other
        periods."""
        self.phase = Phase.WAITING
        self.votes: list[Vote | None] = [None] * servers
        self._counts = counts or [0] * servers
        self.fence = 0
        """The fence under which the waiter has entered."""
        self.highest = 0
        """The highest number that it was ever given. A release carries it to all servers, so that
        their numbers agree, and the next waiter need not write a fence back before it enters."""
        self.suspended = False
        """The waiter has left the queues: see `suspend`."""
        self.stuck = False
        """It has a majority, but too few of these servers can be reached to get the fence."""
        self._given_back = [0] * servers
        """By server: votes with numbers up to this are not ours any more."""
        self._inquired = [0] * servers
        """By server: the highest number for which it has inquired."""
        self._taken = [False] * servers
        """By server: whether a counted vote ended there before its time."""
        self._expired = False
        """Whether the deadline was over at any time."""

    # Events from the servers

    def voted(
        self, server: int, number: int, deadline: float, period: Period = ENDLESS
    ) -> Release | None:
        """A server has voted for us, by answer or push; a release if that is in vain."""
        self.highest = max(self.highest, number)
        # A late answer or push: we have given that vote back, and another may have it by now.
        if not self.may_count(server, number):
            return None
        vote = self.votes[server]
        if vote is not None and number <= vote.number:
            if number == vote.number:
                vote.deadline = max(vote.deadline, deadline)
            return None
        # It must not count, and until it is released it would keep others from that server.
        if self.suspended or self._taken[server] or self._expired:
            self._put(server, None)
            self._given_back[server] = number
            return Release(server, number)
        self._put(server, Vote(number, deadline, period))
        return None

    def _put(self, server: int, vote: Vote | None) -> None:
        self._counts[server] += (vote is not None) - (self.votes[server] is not None)
        self.votes[server] = vote

    def may_count(self, server: int, number: int) -> bool:
        """Whether a vote of this number is not one that was given back, or taken away."""
        return number > self._given_back[server]

    def counted(self, server: int, number: int, deadline: float) -> None:
        """The count that the waiter waits for is reached, and stays so: no answer is too late."""
        if not self.suspended:
            self._put(server, Vote(number, deadline))

    def least(self, server: int) -> int:
        """The lowest number that counts there, which the server may have forgotten; 0: any."""
        return self._given_back[server] + 1 if self._given_back[server] else 0

    def renewed(self, server: int, number: int, deadline: float, fence: int = 0) -> None:
        """A server has renewed this vote, and has got this fence."""
        vote = self.votes[server]
        if vote is not None and vote.number == number:
            vote.deadline = max(vote.deadline, deadline)
            vote.known = max(vote.known, fence)
            vote.raising = False

    def unanswered(self, server: int, number: int) -> None:
        """A renewal got no answer, so its effect is unknown: the fence is sent once more."""
        vote = self.votes[server]
        if vote is not None and vote.number == number:
            vote.raising = False

    def gone(self, server: int, number: int, now: float) -> None:
        """The server has answered that this vote has ended."""
        vote = self.votes[server]
        if vote is not None and vote.number <= number:
            self._put(server, None)
            if self.phase is Phase.ENTERED and self._is_valid(vote, now):
                self._taken[server] = True
        self._given_back[server] = max(self._given_back[server], number)

    def expire(self, now: float) -> None:
        """After the deadline of a waiter that has entered, no new vote makes a majority again.

        Another waiter may have been inside since.
        """
        if self.phase is Phase.ENTERED:
            deadline = self.deadline
            self._expired = self._expired or deadline is None or deadline <= now

    def forgotten(self, server: int) -> None:
        """The server has lost its memory and gives no votes, so no vote was taken away there.

        A later vote of it may have the fence as its number, as votes of other servers have:
        `status` and `break_` find the fence by these numbers. All its earlier votes have ended.
        """
        self._taken[server] = False
        if self.phase is Phase.ENTERED:
            self._given_back[server] = min(self._given_back[server], self.fence - 1)

    def inquired(self, server: int, number: int) -> None:
        """A waiter with a lower ticket needs this vote."""
        self._inquired[server] = max(self._inquired[server], number)

    # Decisions

    def look(self, now: float, reaches: Callable[[int], bool] = lambda _: True) -> list[Step]:
        """The steps that the client has to take; to be called after each event, and now and then.

        If the waiter may enter, it has entered by this call: the clock is read for that, so it
        enters at once. ``reaches``: whether a server can be asked.
        """
        self.stuck = False
        if self.phase is not Phase.WAITING:
            unconfirmed = self._periodic and self.phase is Phase.ENTERED and not self._confirmed
            return self._exchange(self.together, now) if unconfirmed else []
        votes, quorum = self.votes, self.quorum
        if len(votes) - votes.count(None) < quorum:  # whether they have ended or not
            self.unsure = self._once
            return self._yield_votes(now)
        acquisition = self._of_one_period(
            [
                (server, vote)
                for server, vote in enumerate(votes)
                if vote is not None and self._is_valid(vote, now) and vote.period.over_at > now
            ]
        )
        if len(acquisition) < quorum:
            self.unsure = self._once
            return self._yield_votes(now)
        fence = self._fence(sorted([vote.number for _, vote in acquisition]))
        if self._is_known([vote for _, vote in acquisition], fence):
            if self.unsure:
                return [QueryDone()]
            # From here on a majority can tell this fence, so every later one is higher.
            self.phase, self.fence = Phase.ENTERED, fence
            return [Enter(fence)]
        return self._raise(acquisition, fence, now, reaches)

    def _raise(
        self,
        acquisition: list[tuple[int, Vote]],
        fence: int,
        now: float,
        reaches: Callable[[int], bool],
    ) -> list[Step]:
        """Send the fence to the servers of these votes that do not have it yet."""
        able = sum([vote.known >= fence or reaches(server) for server, vote in acquisition])
        if able < self.quorum:
            # It counts as without a majority until then. Otherwise it would keep votes that others
            # need: they can have a majority without the server that does not answer.
            self.stuck, self.unsure = True, self._once
            return self._yield_votes(now)
        steps: list[Step] = []
        for server, vote in acquisition:
            if vote.known < fence and not vote.raising:
                vote.raising = True
                steps.append(Raise(server, vote.number, fence))
        return steps + self._exchange([server for server, _ in acquisition], now)

    def _of_one_period(self, votes: list[tuple[int, Vote]]) -> list[tuple[int, Vote]]:
        """The votes that count together: of a periodic job, those of the period with the most
        votes.
        """
        if not self._periodic or self._confirmed:
            return votes
        numbers = [vote.period.number for _, vote in votes]
        periods = Counter(number for number in numbers if number is not None)
        most = max(periods, key=periods.__getitem__, default=-1)
        return [each for each, number in zip(votes, numbers, strict=True) if number == most]

    def counts_with(self, number: int | None, server: int) -> bool:
        """Whether the vote of that server counts with those of the period of this number."""
        vote = self.votes[server]
        if vote is None:
            return False
        return not self._periodic or self._confirmed or vote.period.number == number

    @property
    def together(self) -> list[int]:
        """The servers whose votes count together."""
        votes = [(server, vote) for server, vote in enumerate(self.votes) if vote is not None]
        return [server for server, _ in self._of_one_period(votes)]

    @staticmethod
    def _is_valid(vote: Vote, now: float) -> bool:
        return vote.deadline > now

    def _fence(self, numbers: list[int]) -> int:
        """The lowest of the sorted numbers that a majority of the votes does not exceed."""
        return numbers[self.quorum - 1]

    def _is_known(self, acquisition: list[Vote], fence: int) -> bool:
        return sum([vote.known >= fence for vote in acquisition]) >= self.quorum

    def _yield_votes(self, now: float) -> list[Step]:
        steps: list[Step] = []
        for server, vote in enumerate(self.votes):
            if vote is None:
                continue
            # A vote that has ended is given back, too: for a new number, or for a waiter before us;
            # and one whose period is over, for one of the next.
            ended = not self._is_valid(vote, now) or vote.period.over_at <= now
            if ended or self._inquired[server] >= vote.number:
                steps.append(self._back(server, vote))
        return steps

    def _exchange(self, counted: list[int], now: float) -> list[Step]:
        """Give back votes of a period that is over, if they do not count with ``counted``.

        One of those servers may have stopped: then the next vote of another one makes a majority.
        """
        over = [
            (server, vote)
            for server, vote in enumerate(self.votes)
            if vote is not None and vote.period.over_at <= now and server not in counted
        ]
        return [self._back(server, vote) for server, vote in over]

    def _back(self, server: int, vote: Vote) -> YieldVote:
        self._drop(server, vote)
        return YieldVote(server, vote.number)

    def turned(self, server: int) -> None:
        """The vote of that server becomes a done marker: it is not counted from now on."""
        vote = self.votes[server]
        if vote is not None:
            self._drop(server, vote)

    def _drop(self, server: int, vote: Vote) -> None:
        self._put(server, None)
        self._given_back[server] = max(self._given_back[server], vote.number)

    @property
    def has_votes(self) -> bool:
        """Whether any server has voted for us; without votes there is nothing to do."""
        return self.votes.count(None) < len(self.votes)

    @property
    def deadline(self) -> float | None:
        """The time until which a majority of the votes certainly lasts; None without a majority."""
        deadlines = [vote.deadline for vote in self.votes if vote is not None]
        deadlines.sort()
        return deadlines[-self.quorum] if len(deadlines) >= self.quorum else None

    def confirm(self) -> None:
        """A majority of the votes that count together was renewed with ``entered``."""
        self._confirmed = True

    # Hand-offs within one client

    def reserve(self, fence: int) -> list[Raise]:
        """The steps by which the servers learn this fence, before waiters may be handed the lock
        with fences up to it.
        """
        if self.phase is not Phase.ENTERED:
            return []
        self.highest = max(self.highest, fence)
        return [
            Raise(server, vote.number, fence)
            for server, vote in enumerate(self.votes)
            if vote is not None
        ]

    def hand_off(self, now: float) -> int:
        """Hand the lock off to another waiter of this client; its fence, or 0 if that is not
        allowed.

        The votes stay what they are, and so does the deadline. A majority of the votes must not
        have ended, and their servers must have the fence by now: otherwise a later waiter could get
        the same one, if no message that is sent after this arrives.
        """
        self.expire(now)
        if self.phase is not Phase.ENTERED or self._expired:
            return 0
        acquisition = [
            vote for vote in self.votes if vote is not None and self._is_valid(vote, now)
        ]
        if not self._is_known(acquisition, self.fence + 1):
            return 0
        self.fence += 1
        return self.fence

    # The end

    def suspend(self) -> list[Release]:
        """No majority votes at all: leave the queues, but keep the ticket.

        Otherwise a waiter that reaches one voting server only, and has the lowest ticket there,
        would block for ever other clients' waiters that need this server for their majority.
        """
        self.suspended = True
        for server, vote in enumerate(self.votes):
            if vote is not None:
                self._drop(server, vote)
        # No further than this: a late copy must not take a vote that is given after it.
        return [Release(server, upto) for server, upto in enumerate(self._given_back)]

    def give_back(self) -> list[Release]:
        """The waiter has entered too late: give everything back except the ticket."""
        self.phase, self.fence = Phase.WAITING, 0
        self._taken, self._expired = [False] * len(self._taken), False
        self._confirmed = False
        return self.suspend()

    def come_back(self) -> None:
        """A majority votes again: ask all servers."""
        self.suspended = False

    def leave(self) -> None:
        """End it: release without a bound at every server that was ever asked."""
        self.phase = Phase.OVER
        for server, vote in enumerate(self.votes):
            self._counts[server] -= vote is not None
        self._counts = [0] * len(self.votes)  # it counts no more
