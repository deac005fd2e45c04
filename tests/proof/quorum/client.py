"""A client of several servers: its waiters, its clock, its questions and when it repeats them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

from aiolock.stores.quorum._votes import Enter, Phase, Raise, VoteSet, YieldVote
from aiolock.stores.quorum._votes import Release as Leave
from tests.proof.quorum import server as at
from tests.proof.quorum.server import CLAIM, Answer, Command, Granted, NotVoting, Push, Queued, Who

TTL: Final = 1000.0
"""ms of every lease, and the longest lease that there is."""
_RESEND: Final = 120.0
"""ms until a command without an answer is sent again."""
_FOR_GOOD: Final = 27 * _RESEND
"""ms until a command is given up."""
_LONG: Final = 3 * _RESEND
_UNBOUNDED: Final = float("inf")
FRESH: Final = 10.0
"""ms for which "no other client waits" is relied on, from before that was asked."""
_AHEAD: Final = 8
"""How many fences the servers know in advance."""
_LAZY: Final = 50.0
"""ms for which a waiter may stand in no queue; and until a hand-off is tried again."""
_UNDECIDED: Final = 20.0
"""ms for which the next holder may be undecided before the lock is released."""


def lasts(lease: float) -> float:
    """For how long a lease is certainly ours, from before it was asked for: as in aiolock."""
    return lease * 0.99 - 2.0


class Network(Protocol):
    """The surroundings of a client."""

    time: float
    """Real time."""

    def later(self, after: float, call: Callable[[], None], of: Client) -> None: ...
    def send(self, client: Client, server: int, number: int, command: Command) -> None: ...
    def entered(self, waiter: WaiterId) -> None: ...
    def left(self, waiter: WaiterId) -> None: ...
    def over(self, waiter: WaiterId) -> None: ...


class WaiterId:
    """One acquisition."""

    def __init__(self, client: Client, who: Who, vote_set: VoteSet, patience: float | None) -> None:
        servers = len(vote_set.votes)
        self.client = client
        self.who = who
        self.vote_set = vote_set
        self.patience = patience
        self.body = 0.0
        """For how long it stays inside, in ms."""
        self.task = 0
        self.born = client.clock()
        self.started = client.network.time
        self.queued_at: float | None = None
        """When a majority had it in the queue, in real time."""
        self.asked = [0.0] * servers
        """When each server was asked first, by the client's clock; 0 if it never was."""
        self.asking = [False] * servers
        self.answered: list[tuple[float, float] | None] = [None] * servers
        """When the last answered question was sent, and the server's clock in the answer."""
        self.ask_at = [_UNBOUNDED] * servers
        self.renewing = [0.0] * servers
        """Since when a renewal is under way; 0 if none is."""
        self.local = False
        """It stands in no queue, behind a holder of its own client."""
        self.undecided = False
        """Its body has ended, and the next holder is not known yet."""
        self.ahead_asked = float("-inf")
        """When the servers were last asked whether it may be handed on."""
        self.done: Counter[str] = Counter()

    @property
    def inside(self) -> bool:
        return self.vote_set.phase is Phase.ENTERED


@dataclass
class _Sent:
    """A command without an answer yet."""

    server: int
    command: Command
    waiter: WaiterId | None
    first: float
    last: float


class Client:
    """A process."""

    def __init__(
        self, network: Network, name: str, servers: int, offset: float, rate: float
    ) -> None:
        self.network = network
        self.name = name
        self.servers = servers
        self.quorum = servers // 2 + 1
        self._offset, self._rate = offset, rate
        self.alive = True
        self.waiters: dict[Who, WaiterId] = {}
        self._sent: dict[int, _Sent] = {}
        self._numbers = 0
        self._offsets: list[float | None] = [None] * servers
        """Each server's clock minus ours, at least."""
        self.heard = [float("-inf")] * servers
        self._pinged = [float("-inf")] * servers
        self._seen = 0
        self._last_ticket = 0
        self._alone = [float("-inf")] * servers
        """When the question was sent that each server last answered with "no other client"."""
        self.hands_on = False
        """Whether it hands on among its own waiters."""
        self._shared_until = float("-inf")
        """Until then no hand-off is tried, because another client waits."""

    def vote_set(self) -> VoteSet:
        """The votes of one more waiter."""
        return VoteSet(self.servers)

    def clock(self) -> float:
        """Its own clock."""
        return self._offset + self._rate * self.network.time

    @property
    def waits_for_answers(self) -> bool:
        return bool(self._sent)

    def open(self, server: int, its_clock: float, round_trip: float) -> None:
        """The first sample of a server's clock."""
        self._offsets[server] = its_clock - self.clock() - round_trip / 2
        self.heard[server] = self.clock()

    def _servers_clock(self) -> float:
        """The lower median of the servers' clocks that are known, now."""
        known = sorted(offset for offset in self._offsets if offset is not None)
        return known[(len(known) - 1) // 2] + self.clock() if known else 0.0

    def _send(self, server: int, command: Command, waiter: WaiterId | None) -> None:
        self._numbers += 1
        now = self.clock()
        self._sent[self._numbers] = _Sent(server, command, waiter, now, now)
        self.network.send(self, server, self._numbers, command)

    # Asking

    def acquire(self, name: str, patience: float | None, *, shares: bool = False) -> WaiterId:
        """Wait for the lock, for so many ms at most."""
        ticket = max(int(self._servers_clock() * 1000), self._last_ticket + 1)
        self._last_ticket = ticket
        waiter = WaiterId(self, Who(ticket, name, shares), self.vote_set(), patience)
        waiter.local = self._holder() is not None and self.is_alone()
        self.waiters[waiter.who] = waiter
        if waiter.local:
            waiter.queued_at = waiter.started
        for server in range(self.servers):
            self._ask(waiter, server)
        self.tick(waiter)
        return waiter

    def _ask(self, waiter: WaiterId, server: int) -> None:
        if waiter.asking[server] or waiter.vote_set.votes[server] or waiter.vote_set.suspended:
            return
        if waiter.local:
            return
        waiter.asking[server] = True
        waiter.asked[server] = waiter.asked[server] or self.clock()
        waiter.ask_at[server] = self.clock() + _LONG
        proposal = max(int(self._servers_clock() * 1000), self._seen + 1)
        vote = at.Vote(waiter.who, 0 if waiter.inside else proposal, TTL)
        self._send(server, vote, waiter)

    # Hearing

    def answered(self, server: int, number: int, answer: Answer) -> None:
        """A server has answered."""
        sent = self._sent.pop(number, None)
        if sent is None:
            return
        self._hear(server, answer.now)
        waiter = sent.waiter
        if waiter is None:
            self._pinged[server] = float("-inf")
            return
        command = sent.command
        if isinstance(command, at.Vote):
            waiter.asking[server] = False
        if waiter.who not in self.waiters:
            if not isinstance(command, at.Release) and isinstance(answer, Granted | Queued):
                self._release(waiter, server, 0)  # the waiter has ended
            return
        match answer:
            case Granted():
                self._voted(waiter, server, answer, self._from(sent.first))
            case Queued():
                waiter.answered[server] = (sent.first, answer.now)
                waiter.ask_at[server] = self.clock() + max(1.0, answer.left + 3)
                self._note_queued(waiter)
            case NotVoting():
                waiter.vote_set.forgotten(server)
                waiter.ask_at[server] = self.clock() + answer.left * 1.02 + 3
            case at.Reserved(others):
                self._reserved(waiter, server, sent, others=others)
            case _:
                self._done(waiter, server, sent, refused=isinstance(answer, at.Refused))
        self.look(waiter)

    def _done(self, waiter: WaiterId, server: int, sent: _Sent, *, refused: bool) -> None:
        match sent.command:
            case at.Renew(_, number, ttl, fence):
                waiter.renewing[server] = 0.0
                if refused:
                    self._gone(waiter, server, number)
                else:
                    until = self._from(sent.first) + self.lasts(ttl)
                    waiter.vote_set.renewed(server, number, until, fence)
            case at.YieldVote():
                waiter.ask_at[server] = self.clock()  # it had ended
            case at.Reserve(_, number, _):
                self._gone(waiter, server, number)
            case _:
                pass

    def _from(self, sent: float) -> float:
        """The time from which the lease of an answer is counted."""
        return sent

    def lasts(self, lease: float) -> float:
        """For how long a lease is certainly ours."""
        return lasts(lease)

    def _hear(self, server: int, its_clock: float) -> None:
        now = self.clock()
        self.heard[server] = now
        low = its_clock - now
        known = self._offsets[server]
        if known is None or low > known:
            self._offsets[server] = low
        else:
            self._offsets[server] = known + 0.05 * (low - known)

    def _note_queued(self, waiter: WaiterId) -> None:
        stands = zip(waiter.answered, waiter.vote_set.votes, strict=True)
        if waiter.queued_at is None and sum(bool(a or v) for a, v in stands) >= self.quorum:
            waiter.queued_at = self.network.time

    def told(self, server: int, who: Who, push: Push) -> None:
        """A server has pushed something."""
        waiter = self.waiters.get(who)
        if waiter is None:
            if not isinstance(push, at.Lost):
                self._send(server, at.Release(who, 0, _UNBOUNDED), None)
            return
        match push:
            case Granted():
                answered = waiter.answered[server]
                began = waiter.asked[server]
                if answered is not None:
                    began = answered[0] + (push.now - answered[1])
                self._voted(waiter, server, push, min(self._from(began), self.clock()))
            case at.Lost(number):
                self._gone(waiter, server, number)
            case at.Inquire(number):
                waiter.vote_set.inquired(server, number)
        self.look(waiter)

    def _voted(self, waiter: WaiterId, server: int, granted: Granted, began: float) -> None:
        self._seen = max(self._seen, granted.number)
        until = began + self.lasts(granted.lease)
        waiter.vote_set.expire(self.clock())
        leave = waiter.vote_set.voted(server, granted.number, until)
        if leave is not None:
            self._release(waiter, server, 0, leave.upto)

    def _gone(self, waiter: WaiterId, server: int, number: int) -> None:
        waiter.vote_set.gone(server, number, self.clock())
        waiter.ask_at[server] = self.clock()

    def again(self, server: int) -> None:
        """The connection to this server is a new one: all waiters without a vote there ask."""
        for waiter in self.waiters.values():
            if not waiter.vote_set.votes[server]:
                waiter.ask_at[server] = min(waiter.ask_at[server], self.clock())

    # What follows from the votes

    def look(self, waiter: WaiterId) -> None:
        """Act on the votes."""
        if waiter.inside:
            if not self._lasts_still(waiter):
                self._leave(waiter)
            return
        for step in waiter.vote_set.look(self.clock()):
            match step:
                case Enter():
                    self.network.entered(waiter)
                    self.network.later(waiter.body, lambda: self._ends(waiter), self)
                case Raise(server, vote, fence):
                    waiter.done["raise"] += 1
                    waiter.renewing[server] = self.clock()
                    self._send(server, at.Renew(waiter.who, vote, CLAIM, fence), waiter)
                case YieldVote(server, vote):
                    waiter.done["give way"] += 1
                    waiter.ask_at[server] = self.clock() + _LONG
                    self._send(server, at.YieldVote(waiter.who, vote), waiter)

    def _lasts_still(self, waiter: WaiterId) -> bool:
        deadline = waiter.vote_set.deadline
        return deadline is not None and deadline > self.clock()

    def _ends(self, waiter: WaiterId) -> None:
        """Its body has ended."""
        if not waiter.inside:
            return
        if not self.hands_on or not self._lasts_still(waiter) or not self._own():
            self._leave(waiter)
            return
        self.network.left(waiter)
        self.network.over(waiter)
        waiter.undecided = True
        now = self.clock()
        if now >= self._shared_until:
            self._ask_ahead(waiter)
            self.network.later(_UNDECIDED, lambda: self._decide(waiter, late=True), self)
            self._decide(waiter)
        else:
            self._leave(waiter)

    def _leave(self, waiter: WaiterId) -> None:
        """End a waiter: it left, gave up, or has lost the lock."""
        if waiter.inside:
            self._enqueue()
            if not waiter.undecided:
                self.network.left(waiter)
        waiter.vote_set.leave()
        del self.waiters[waiter.who]
        for server in self.released_at(waiter):
            self._release(waiter, server, waiter.vote_set.highest)
        if not waiter.undecided:
            self.network.over(waiter)

    def released_at(self, waiter: WaiterId) -> list[int]:
        """The servers that are told that it has left: all."""
        return [] if waiter.local else list(range(self.servers))

    # Handing on to a waiter of this client

    def _holder(self) -> WaiterId | None:
        return next((waiter for waiter in self.waiters.values() if waiter.inside), None)

    def _own(self) -> list[WaiterId]:
        """The waiters, in order."""
        waiting = [each for each in self.waiters.values() if each.vote_set.phase is Phase.WAITING]
        return sorted(waiting, key=lambda waiter: waiter.who)

    def is_alone(self) -> bool:
        """Whether a majority has said lately that no other client waits."""
        since = self.clock() - FRESH
        return sum([asked >= since for asked in self._alone]) >= self.quorum

    def _ask_ahead(self, waiter: WaiterId) -> None:
        """Make the next fences known, and ask whether other clients wait."""
        now = self.clock()
        if now - waiter.ahead_asked < FRESH / 2 and self.next_is_known(waiter):
            return
        waiter.ahead_asked = now
        for step in waiter.vote_set.reserve(waiter.vote_set.fence + _AHEAD):
            reserve = at.Reserve(waiter.who, step.vote, step.fence)
            self._send(step.server, reserve, waiter)

    @staticmethod
    def next_is_known(waiter: WaiterId) -> bool:
        """Whether some server knows the next fence."""
        votes = waiter.vote_set.votes
        return any(vote is not None and vote.known > waiter.vote_set.fence for vote in votes)

    def _reserved(self, waiter: WaiterId, server: int, sent: _Sent, *, others: bool) -> None:
        assert isinstance(sent.command, at.Reserve)
        never = -_UNBOUNDED
        waiter.vote_set.renewed(server, sent.command.number, never, sent.command.fence)
        if others:
            self._alone = [float("-inf")] * self.servers
            self._shared_until = self.clock() + _LAZY
            self._enqueue()
        else:
            self._alone[server] = max(self._alone[server], sent.first)
        if waiter.undecided:
            self._decide(waiter)

    def _decide(self, waiter: WaiterId, *, late: bool = False) -> None:
        """No waiter has it: the next has it, if that is surely one of ours."""
        if not waiter.inside or not waiter.undecided:
            return
        own, now = self._own(), self.clock()
        if not own or late or now < self._shared_until:
            self._leave(waiter)
            return
        if not self.is_alone() or not waiter.vote_set.hand_off(now):
            return
        taker = own[0]
        taker.vote_set.leave()
        del self.waiters[taker.who]
        for server in self.released_at(taker):
            self._release(taker, server, 0)
        # For the servers, the votes still belong to the waiter that was voted for.
        waiter.undecided = False
        waiter.body, waiter.task, waiter.born = taker.body, taker.task, taker.born
        waiter.started, waiter.queued_at = taker.started, taker.queued_at
        waiter.done = Counter({"handed on": 1})
        self.network.entered(waiter)
        self.network.later(waiter.body, lambda: self._ends(waiter), self)

    def _enqueue(self) -> None:
        """Put the waiters that stand in no queue into the queues."""
        for waiter in self._own():
            if waiter.local:
                waiter.local = False
                for server in range(self.servers):
                    self._ask(waiter, server)

    def _release(
        self, waiter: WaiterId, server: int, highest: int, upto: float = _UNBOUNDED
    ) -> None:
        self._send(server, at.Release(waiter.who, highest, upto), waiter)

    # Timers

    def tick(self, waiter: WaiterId) -> None:
        """Look after one waiter, now and then."""
        if waiter.who not in self.waiters:
            return
        now = self.clock()
        waits = waiter.vote_set.phase is Phase.WAITING
        if waits and waiter.patience is not None and now - waiter.born > waiter.patience:
            self._leave(waiter)
            return
        self.look(waiter)
        if waiter.who not in self.waiters:
            return
        if waiter.local and (now - waiter.born > _LAZY or self._holder() is None):
            self._enqueue()
        self._ping(now)
        in_reach = waiter.inside or self.in_reach(now)
        if not in_reach and not waiter.vote_set.suspended:
            for leave in waiter.vote_set.suspend():
                self._step_aside(waiter, leave)
        elif in_reach and waiter.vote_set.suspended:
            waiter.vote_set.come_back()
            waiter.ask_at = [now] * self.servers
        if in_reach:
            for server in range(self.servers):
                self._look_after(waiter, server, now)
        self.network.later(CLAIM / 8, partial(self.tick, waiter), self)

    def _step_aside(self, waiter: WaiterId, leave: Leave) -> None:
        self._release(waiter, leave.server, 0, leave.upto)

    def in_reach(self, now: float) -> bool:
        """Whether a majority of the servers was heard of lately."""
        return sum([now - heard < 2 * CLAIM for heard in self.heard]) >= self.quorum

    def _ping(self, now: float) -> None:
        if now - min(self.heard) <= CLAIM / 2:
            return  # nearly always
        for server in range(self.servers):
            not_voting = now - self.heard[server] > CLAIM / 2
            if not_voting and now - self._pinged[server] > CLAIM / 2:
                self._pinged[server] = now
                self._send(server, at.Ping(), None)

    def _look_after(self, waiter: WaiterId, server: int, now: float) -> None:
        """Renew a vote, or ask again where there is none."""
        vote = waiter.vote_set.votes[server]
        if vote is None:
            if now >= waiter.ask_at[server]:
                self.ask_again(waiter, server)
            return
        lease = TTL if waiter.inside else CLAIM
        under_way = waiter.renewing[server] and now - waiter.renewing[server] <= _RESEND
        stands = waiter.inside or vote.deadline > now
        if vote.deadline - now < lease * 0.67 and not under_way and stands:
            waiter.renewing[server] = now
            fence = waiter.vote_set.fence if waiter.inside else 0
            self._send(server, at.Renew(waiter.who, vote.number, lease, fence), waiter)

    def ask_again(self, waiter: WaiterId, server: int) -> None:
        """A push may have been lost."""
        self._ask(waiter, server)

    def resend(self) -> None:
        """Send commands without an answer once more, and give up old ones."""
        now = self.clock()
        for number, sent in list(self._sent.items()):
            waiter, command = sent.waiter, sent.command
            if now - sent.first > _FOR_GOOD:
                del self._sent[number]
                if waiter is not None and isinstance(command, at.Vote):
                    waiter.asking[sent.server] = False
                if waiter is not None and isinstance(command, at.Renew):
                    waiter.renewing[sent.server] = 0.0
                    waiter.vote_set.unanswered(sent.server, command.number)
            elif now - sent.last > _RESEND:
                asks = isinstance(command, at.Vote)
                if asks and (waiter is None or waiter.who not in self.waiters):
                    del self._sent[number]
                    continue
                sent.last = now
                self.network.send(self, sent.server, number, command)
        self.network.later(_RESEND / 2, self.resend, self)
