"""Servers, clients and a network that breaks, in virtual time; and what must never occur.

Everything is drawn from one seed. Times are in ms of real time; each server and each client has a
clock of its own, with an offset and a rate. Messages take their time, some very long; they are
lost, come twice, and overtake each other.
"""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable
from copy import copy
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final

from tests.proof.quorum.client import FRESH, Client, WaiterId
from tests.proof.quorum.faults import Faults
from tests.proof.quorum.server import Answer, Command, Push, Server, Who, YieldVote

_LIMIT: Final = 60_000.0
"""ms by which all waiters have been served."""
_ROUND_TRIP: Final = 2.0
"""The longest round trip, in a world without faults."""


class Violation(Exception):
    """An event that must never occur; its first word says which."""


@dataclass(frozen=True, slots=True)
class World:
    """The options of a world."""

    faults: tuple[str, ...] = ()
    """The kinds of `Faults`. Without any, no message is late or lost: then order is checked."""
    breaks: tuple[int, int] = (1, 6)
    """How often a fault happens, at least and at most."""
    begins: tuple[float, float] = (0.0, 3600.0)
    late: float = 0.01
    """The share of messages that are late."""
    lateness: float = 900.0
    """How late they are at most, in ms."""
    twice: float = 0.01
    given_twice: float = 0.0
    """The share of returned votes that come twice: more than of other messages."""
    quick: bool = False
    """Messages take a fifth of a millisecond."""
    skews: tuple[float, ...] = (0.0, 1.0, 30.0, 200.0)
    """The greatest difference of the servers' clocks, one of these."""
    rates: tuple[float, float, float] = (0.995, 1.0, 1.005)
    """The rate of a client's clock, one of these; of a server's, one of those, or the last."""
    fast_servers: bool = False
    crowded: bool = False
    """Each client has many tasks, that stay inside for a short while."""
    limit: float = _LIMIT
    readers: float = 0.0
    """The share of acquisitions that share the lock with others."""


_ALL: Final = (*("crash", "amnesia", "amnesia", "stop", "pause", "die", "cut", "deaf", "isolate"),)
_ALONE: Final = {
    "quiet": World(skews=(0.0, 5.0), rates=(1.0, 1.0, 1.0)),
    "all": World(_ALL),
    "drift": World(("isolate holder",), quick=True, skews=(1.0,), fast_servers=True),
    "storm": World(("pause", "cut", "deaf"), late=0.2, lateness=150.0, twice=0.15),
    "stranded": World(("stranded",), breaks=(1, 1), begins=(5.0, 300.0), limit=25_000.0),
    "twice": World(("pause", "deaf"), late=0.2, lateness=150.0, twice=0.15, given_twice=0.8),
    "crowd": World(skews=(0.0, 5.0), rates=(1.0, 1.0, 1.0), crowded=True),
    "crowd, all": World(_ALL, crowded=True),
    "crowd, drift": World(
        ("isolate holder",), quick=True, skews=(1.0,), fast_servers=True, crowded=True
    ),
    "crowd, storm": World(
        ("pause", "cut", "deaf", "die"), late=0.2, lateness=150.0, twice=0.15, crowded=True
    ),
    # Beyond the assumptions: rates that differ by three in a hundred.
    "too fast": World(
        ("isolate holder",),
        quick=True,
        skews=(1.0,),
        fast_servers=True,
        rates=(0.985, 0.985, 1.015),
    ),
}
_SHARED: Final = {
    f"{name}, shared": replace(world, readers=0.6)
    for name, world in _ALONE.items()
    if name != "too fast"
}
WORLDS: Final = _ALONE | _SHARED


@dataclass
class Place:
    """A server and its clock."""

    server: Server
    offset: float
    rate: float
    up: bool = True
    stopped: bool = False
    backlog: list[Callable[[], None]] = field(default_factory=list[Callable[[], None]])


@dataclass(frozen=True)
class Kinds:
    """The parts of the world; an ablation changes one of them."""

    client: type[Client] = Client
    other_client: type[Client] | None = None
    """The kind of the first client, if it is another."""
    server: type[Server] = Server


class Simulation:
    """One run."""

    def __init__(
        self, seed: int, world: World, servers: int = 3, kinds: Kinds | None = None
    ) -> None:
        kinds = kinds or Kinds()
        self.rng = rng = random.Random(seed)
        self.world = world
        self.time = 0.0
        """Real time."""
        self.counts: Counter[str] = Counter()
        self.stranded: Client | None = None
        """The clients that reach no majority, and need not be served."""
        self.paused: dict[Client, list[Callable[[], None]]] = {}
        self.cut: set[tuple[Client, int]] = set()
        self.deaf: dict[tuple[Client, int], float] = {}
        """Until when a client does not listen there."""
        self.inside: list[WaiterId] = []
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._scheduled = 0
        self._mean_delay = rng.choice([2.0, 2.0, 10.0])
        self._in_order: dict[tuple[Client, int, str], float] = {}
        self._entered: list[WaiterId] = []
        self._fence = 0
        """The highest fence of all that have entered."""
        self._writers_fence = 0
        """The highest fence of all that have entered and do not share."""
        skew = rng.choice(world.skews)
        self.places = [self._place(index, kinds.server, skew) for index in range(servers)]
        many = rng.randint(2, 4 if servers == 3 else 5)
        self.clients = [self._client(index, kinds, servers) for index in range(many)]
        self._named = {client.name: client for client in self.clients}
        self._left: dict[tuple[Client, int], int] = {}
        for client in self.clients:
            for task in range(rng.randint(2, 5) if world.crowded else rng.randint(1, 2)):
                self._left[client, task] = 12 if world.crowded and client is self.clients[0] else 5
                self._begin_in(rng.uniform(0, 20), client, task)
            self.later(rng.uniform(0, 120), client.resend, client)
            for index, place in enumerate(self.places):
                client.open(index, self.clock_of(place), rng.uniform(0.3, 3))
        self._faults = Faults(self)
        if world.faults:
            self._faults.plan(world.faults, world.breaks, world.begins)

    def _place(self, index: int, kind: type[Server], skew: float) -> Place:
        server = kind(
            lambda who: self._listens(index, who), lambda who, push: self._push(index, who, push)
        )
        rate = (
            self.world.rates[-1] if self.world.fast_servers else self.rng.choice(self.world.rates)
        )
        return Place(server, 1e6 + self.rng.uniform(-skew, skew), rate)

    def _client(self, index: int, kinds: Kinds, servers: int) -> Client:
        kind = kinds.client if index or kinds.other_client is None else kinds.other_client
        offset = self.rng.uniform(-1e6, 1e6)
        client = kind(self, f"{index}", servers, offset, self.rng.choice(self.world.rates))
        client.hands_on = self.world.crowded
        return client

    # Time

    def clock_of(self, place: Place) -> float:
        """A server's clock."""
        return place.offset + place.rate * self.time

    def after(self, delay: float, call: Callable[[], None]) -> None:
        """Let this happen then."""
        self._scheduled += 1
        heapq.heappush(self._events, (self.time + delay, self._scheduled, call))

    def later(self, after: float, call: Callable[[], None], of: Client) -> None:
        """Let a client do this when it runs, if it lives."""
        self.after(after, partial(self._by, of, call))

    def _by(self, client: Client, call: Callable[[], None]) -> None:
        if not client.alive:
            return
        if client in self.paused:
            self.paused[client].append(call)
        else:
            call()

    # The tasks

    def _begin_in(self, delay: float, client: Client, task: int) -> None:
        self.later(delay, lambda: self._begin(client, task), client)

    def _begin(self, client: Client, task: int) -> None:
        if self._left[client, task] == 0:
            return
        self._left[client, task] -= 1
        rng, faulty = self.rng, bool(self.world.faults)
        patience = rng.choice([None, None, None, 500.0, 2000.0]) if faulty else None
        bodies = [0.0, 1.0, 20.0, 200.0, 1500.0] if faulty else [0.0, 3.0, 30.0]
        name = f"{client.name}.{task}.{self._left[client, task]}"
        shares = self.world.readers > 0 and rng.random() < self.world.readers
        waiter = client.acquire(name, patience, shares=shares)
        if self.world.crowded:
            bodies = [0.0, 0.0, 1.0, 1.0, 20.0, bodies[-1]]
        waiter.body, waiter.task = rng.choice(bodies), task

    def over(self, waiter: WaiterId) -> None:
        """A waiter has ended: its task goes on."""
        pauses = [0.0, 1.0, 10.0, 200.0]
        if self.world.crowded:  # one of them, and the others now and then
            busy = waiter.client is self.clients[0]
            pauses = [0.0, 0.0, 1.0] if busy else [10.0, 100.0, 200.0]
        self._begin_in(self.rng.choice(pauses), waiter.client, waiter.task)

    # Messages

    def _delay(self) -> float:
        if not self.world.faults:
            return self.rng.uniform(0.2, 1.0)
        if self.world.quick:
            return self.rng.expovariate(5.0)
        delay = self.rng.expovariate(1 / self._mean_delay)
        if self.rng.random() < self.world.late:
            delay += self.rng.uniform(0, self.world.lateness)
        return delay

    def _carry(self, link: tuple[Client, int, str], deliver: Callable[[], None]) -> None:
        if self.world.faults:
            self.after(self._delay(), deliver)
            return
        arrives = max(self._in_order.get(link, 0.0) + 1e-6, self.time + self._delay())
        self._in_order[link] = arrives
        self.after(arrives - self.time, deliver)

    def send(self, client: Client, server: int, number: int, command: Command) -> None:
        """A command is on its way; or two of it."""
        self.counts["commands"] += 1

        arrive = partial(self._arrive, client, server, number, command)
        if self.world.faults:
            if self.rng.random() < 0.01:
                return
            given = isinstance(command, YieldVote) and self.world.given_twice
            if self.rng.random() < (given or self.world.twice):
                more = self.rng.uniform(0, self.rng.choice([30.0, 1500.0]))
                self.after(self._delay() + more, arrive)
        self._carry((client, server, "command"), arrive)

    def _arrive(self, client: Client, server: int, number: int, command: Command) -> None:
        place = self.places[server]
        if not place.up or (client, server) in self.cut:
            return
        if place.stopped:
            place.backlog.append(partial(self._arrive, client, server, number, command))
            return
        answer = place.server.execute(command, self.clock_of(place))
        if self.world.faults and self.rng.random() < 0.01:
            return
        self._carry(
            (client, server, "answer"),
            partial(self._answered, client, server, number, answer),
        )

    def _answered(self, client: Client, server: int, number: int, answer: Answer) -> None:
        if (client, server) not in self.cut:
            self._by(client, partial(client.answered, server, number, answer))

    def _push(self, server: int, who: Who, push: Push) -> None:
        self.counts[type(push).__name__] += 1
        client = self._client_of(who)
        if self.world.faults and self.rng.random() < 0.03:
            return

        def deliver() -> None:
            if (client, server) not in self.cut:
                self._by(client, lambda: client.told(server, who, push))

        self._carry((client, server, "push"), deliver)

    def _client_of(self, who: Who) -> Client:
        return self._named[who.id.partition(".")[0]]

    def _listens(self, server: int, who: Who) -> bool:
        client = self._client_of(who)
        return client.alive and self.deaf.get((client, server), -1.0) < self.time

    # What must never occur

    def entered(self, waiter: WaiterId) -> None:
        """A waiter has entered: alone, or beside others if all share; and with a high fence.

        A waiter that does not share has a higher fence than all before it. A waiter that shares
        has a higher one than all before it that did not: of two readers, neither is first.
        """
        self.counts["entered"] += 1
        self.counts.update(waiter.done.keys())
        for other in self.inside:
            deadline = other.vote_set.deadline
            relies = deadline is not None and deadline > other.client.clock()
            if not (other.client.alive and relies):
                continue
            if not waiter.who.goes_with(other.who):
                raise Violation(f"two: {other.who.id} and {waiter.who.id} at {self.time:.1f} ms")
            self.counts["beside"] += 1
        fence, before = waiter.vote_set.fence, self._fence
        if waiter.who.shares:
            before = self._writers_fence
        if fence <= before:
            text = f"{fence} of {waiter.who.id} after {before}"
            raise Violation(f"fence: {text} at {self.time:.1f} ms")
        self._fence = max(self._fence, fence)
        if not waiter.who.shares:
            self._writers_fence = fence
        self.inside.append(waiter)
        self._entered.append(copy(waiter))

    def left(self, waiter: WaiterId) -> None:
        """A waiter is not inside any more."""
        if waiter in self.inside:
            self.inside.remove(waiter)

    def run(self) -> None:
        """Run until all waiters have been served; raises `Violation`."""
        while self._events:
            self.time, _, call = heapq.heappop(self._events)
            if self.time > self.world.limit:
                break
            call()
            if self.time > 100 and not self._goes_on():
                break
        left = [
            (client.name, task, count)
            for (client, task), count in self._left.items()
            if self._is_served(client) and (count or client.waiters)
        ]
        if left:
            raise Violation(f"forgotten: {left}")
        if not self.world.faults:
            self._check_order()

    def _is_served(self, client: Client) -> bool:
        return client.alive and client is not self.stranded

    def _goes_on(self) -> bool:
        for client in self.clients:  # after each event: so without a generator
            if (client.waiters or client.waits_for_answers) and self._is_served(client):
                return True
        return any(count and self._is_served(client) for (client, _), count in self._left.items())

    def _check_order(self) -> None:
        """A waiter that asked a round trip after another stood in line does not overtake it.

        Waiters that share enter in any order, if no other is between them.
        """
        for index, waiter in enumerate(self._entered):
            for later in self._entered[index + 1 :]:
                stood = later.queued_at
                if waiter.who.goes_with(later.who):
                    continue
                margin = _ROUND_TRIP + (FRESH if waiter.done["handed on"] else 0.0)
                if stood is not None and stood + margin < waiter.started:
                    raise Violation(f"order: {waiter.who.id} overtook {later.who.id}")
