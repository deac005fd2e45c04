"""One server: a fair queue whose grants are votes. Each command is one step."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

CLAIM = 300.0
"""The lease of a vote that is pushed, in ms."""


class Who(NamedTuple):
    """A waiter, as all servers order it: by its ticket, and then by its name."""

    ticket: int
    id: str
    shares: bool = False
    """It enters beside others that share: a reader."""

    def goes_with(self, other: Who) -> bool:
        """Whether both may have a vote of one server at a time."""
        return self.shares and other.shares

    @property
    def client(self) -> str:
        """The name of its client."""
        return self.id.partition(".")[0]


# Commands. Each may be carried out twice, late, and in any order.


class Vote(NamedTuple):
    """Vote for us, or let us stand in the queue."""

    who: Who
    proposal: int
    ttl: float


class Release(NamedTuple):
    """Leave the queue, and give back a vote up to this number; learn the highest number."""

    who: Who
    highest: int
    upto: float


class YieldVote(NamedTuple):
    """Take this vote back, and let us stand in the queue."""

    who: Who
    number: int


class Renew(NamedTuple):
    """Prolong this vote, and know this fence."""

    who: Who
    number: int
    ttl: float
    fence: int


class Reserve(NamedTuple):
    """Know this fence while this vote stands, and say whether another client waits."""

    who: Who
    number: int
    fence: int


class Ping(NamedTuple):
    """Answer."""


Command = Vote | Release | YieldVote | Renew | Reserve | Ping

# Answers and pushes


class Granted(NamedTuple):
    """You have the vote, for so long."""

    number: int
    lease: float
    now: float


class Queued(NamedTuple):
    """Another waiter has it, for so long."""

    left: float
    now: float


class NotVoting(NamedTuple):
    """No vote for so long: earlier votes are forgotten here."""

    left: float
    now: float


class Done(NamedTuple):
    """As told."""

    now: float


class Reserved(NamedTuple):
    """That fence is known; whether another client waits."""

    others: bool
    now: float


class Refused(NamedTuple):
    """That vote does not stand."""

    now: float


Answer = Granted | Queued | NotVoting | Done | Reserved | Refused


class Inquire(NamedTuple):
    """A waiter that asked before you wants this vote."""

    number: int


class Lost(NamedTuple):
    """This vote has ended."""

    number: int


Push = Granted | Inquire | Lost


@dataclass
class Out:
    """A vote that is out."""

    who: Who
    number: int
    end: float


class Server:
    """One server, by its own clock.

    Its votes are out to one waiter that does not share, or to any number of waiters that share.
    """

    def __init__(self, listens: Callable[[Who], bool], push: Callable[[Who, Push], object]) -> None:
        self._listens = listens
        self._push = push
        self.votes_from = float("-inf")
        """Until then, by its clock, it may have votes out that it has forgotten."""
        self.forget()

    def forget(self) -> None:
        """Lose all memory."""
        self.out: dict[Who, Out] = {}
        self.queue: list[Who] = []
        self.last = 0

    def execute(self, command: Command, now: float) -> Answer:
        """Carry out a command."""
        match command:
            case Vote():
                return self._vote(command, now)
            case Release():
                return self._release(command, now)
            case YieldVote():
                return self._take_back(command, now)
            case Renew():
                return self._renew(command, now)
            case Reserve():
                return self._reserve(command, now)
            case Ping():
                return Done(now)

    def _not_voting(self, now: float) -> bool:
        return now < self.votes_from

    def _vote(self, asked: Vote, now: float) -> Answer:
        if self._not_voting(now):
            return NotVoting(self.votes_from - now, now)
        self._reap(now)
        who = asked.who
        if who in self.out:
            return self._has(who, now)
        if self._fits(who) and self._is_first(who):
            self._unqueue(who)
            return self._grant(who, asked.ttl, asked.proposal, now)
        self._enqueue(who)
        for out in self._in_the_way(who):
            self._push(out.who, Inquire(out.number))
        self._advance(now, asking=who)
        return self._answer(who, now)

    def _reap(self, now: float) -> None:
        for out in list(self.out.values()):
            if out.end <= now:
                del self.out[out.who]
                self._push(out.who, Lost(out.number))

    def _fits(self, who: Who) -> bool:
        """Whether a waiter may have a vote beside those that are out."""
        return all(who.goes_with(other) for other in self.out)

    def _is_first(self, who: Who) -> bool:
        head = self._head()
        return head is None or who <= head

    def _in_the_way(self, who: Who) -> list[Out]:
        """The votes of waiters behind this one that it cannot share with."""
        return [out for out in self.out.values() if who < out.who and not who.goes_with(out.who)]

    def _has(self, who: Who, now: float) -> Granted:
        out = self.out[who]
        return Granted(out.number, out.end - now, now)

    def _answer(self, who: Who, now: float) -> Answer:
        if who in self.out:
            return self._has(who, now)
        return Queued(min((out.end for out in self.out.values()), default=now) - now, now)

    def _release(self, left: Release, now: float) -> Answer:
        self._learn(left.highest)
        was_in_line = left.who in self.queue
        self._unqueue(left.who)
        out = self.out.get(left.who)
        if out is not None and self._within(out, left):
            del self.out[left.who]
            self._advance(now)
        elif was_in_line:
            self._advance(now)  # it may have kept others from entering beside those inside
        return Done(now)

    @staticmethod
    def _within(out: Out, left: Release) -> bool:
        return out.number <= left.upto

    def _learn(self, highest: int) -> None:
        self.last = max(self.last, highest)

    def _take_back(self, given: YieldVote, now: float) -> Answer:
        out = self.out.get(given.who)
        if out is None or out.number != given.number:
            return Refused(now)
        del self.out[given.who]
        self._enqueue(given.who)
        return self._next(out, now)

    def _next(self, before: Out, now: float) -> Answer:
        """The first waiter in the queue gets the vote: under a new number if it is the same."""
        self._advance(now, asking=before.who)
        return self._answer(before.who, now)

    def _renew(self, renewal: Renew, now: float) -> Answer:
        out = self.out.get(renewal.who)
        if out is None or out.number != renewal.number or out.end <= now:
            return Refused(now)
        out.end = max(out.end, now + renewal.ttl)
        self._learn(renewal.fence)
        return Done(now)

    def _reserve(self, asked: Reserve, now: float) -> Answer:
        out = self.out.get(asked.who)
        if out is None or out.number != asked.number or out.end <= now:
            return Refused(now)
        self._learn(asked.fence)
        return Reserved(self._others(asked.who), now)

    def _others(self, who: Who) -> bool:
        return any(other.client != who.client for other in self.queue)

    def _enqueue(self, who: Who) -> None:
        if who not in self.queue:
            bisect.insort(self.queue, who)

    def _unqueue(self, who: Who) -> None:
        if who in self.queue:
            self.queue.remove(who)

    def _head(self) -> Who | None:
        while self.queue and not self._listens(self.queue[0]):
            del self.queue[0]
        return self.queue[0] if self.queue else None

    def _grant(self, who: Who, lease: float, proposal: int, now: float) -> Granted:
        self.last = max(self.last + 1, proposal)
        self.out[who] = Out(who, self.last, now + lease)
        return Granted(self.last, lease, now)

    def _advance(self, now: float, asking: Who | None = None) -> None:
        """The first waiters in the queue get votes while they fit."""
        while (head := self._head()) is not None and self._fits(head):
            self._unqueue(head)
            granted = self._grant(head, CLAIM, 0, now)
            if head != asking:
                self._push(head, granted)
