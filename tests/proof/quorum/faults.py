"""The faults of a simulation: in servers, processes, and the connections between them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from tests.proof.quorum.client import TTL, Client

if TYPE_CHECKING:
    from tests.proof.quorum.world import Place, Simulation


class Faults:
    """The faults of one run, at random times."""

    def __init__(self, simulation: Simulation) -> None:
        self._sim = simulation
        self._rng = simulation.rng

    def plan(
        self, kinds: tuple[str, ...], breaks: tuple[int, int], begins: tuple[float, float]
    ) -> None:
        """Let some of these faults happen."""
        for _ in range(self._rng.randint(*breaks)):
            kind = self._rng.choice(kinds)
            happens: Callable[[], None] = getattr(self, f"_{kind.replace(' ', '_')}")
            self._sim.after(self._rng.uniform(*begins), happens)

    # Servers: a majority always keeps its memory and runs, but for those that stop

    def _running(self) -> list[Place]:
        return [place for place in self._sim.places if place.up and not place.stopped]

    def _crash(self) -> None:
        self._down(forgets=False)

    def _amnesia(self) -> None:
        self._down(forgets=True)

    def _down(self, *, forgets: bool) -> None:
        running = self._running()
        # Faults of more than a minority at once are rare.
        many = len(running) < len(self._sim.places) // 2 + 1
        if not running or (many and not forgets and self._rng.random() < 0.5):
            return
        place = self._rng.choice(running)
        place.up = False
        if forgets:
            place.server.forget()
        down = self._rng.choice([5.0, 50.0, 400.0, 1500.0])
        self._sim.after(down, lambda: self._back(place, forgot=forgets))

    def _back(self, place: Place, *, forgot: bool) -> None:
        place.up = True
        if forgot:
            place.server.votes_from = self._sim.clock_of(place) + TTL
        for client in self._sim.clients:
            if client.alive:
                client.again(self._sim.places.index(place))

    def _stop(self) -> None:
        running = self._running()
        if running:
            place = self._rng.choice(running)
            place.stopped = True
            self._sim.after(self._rng.choice([50.0, 500.0, 1500.0]), lambda: self._go(place))

    @staticmethod
    def _go(place: Place) -> None:
        place.stopped = False
        backlog, place.backlog = place.backlog, []
        for arrive in backlog:
            arrive()

    # Processes

    def _pause(self) -> None:
        client = self._rng.choice(self._sim.clients)
        if client.alive and client not in self._sim.paused:
            self._sim.paused[client] = []
            pause = self._rng.choice([50.0, 300.0, 900.0, 1200.0, 2500.0])
            self._sim.after(pause, lambda: self._resume(client))

    def _resume(self, client: Client) -> None:
        backlog = self._sim.paused.pop(client)
        if self._rng.random() < 0.5:
            self._rng.shuffle(backlog)
        for call in backlog:
            call()

    def _die(self) -> None:
        client = self._rng.choice(self._sim.clients)
        if sum(other.alive for other in self._sim.clients) > 1:
            client.alive = False
            for waiter in client.waiters.values():
                self._sim.left(waiter)

    # Connections

    def _link(self) -> tuple[Client, int]:
        return self._rng.choice(self._sim.clients), self._rng.randrange(len(self._sim.places))

    def _cut(self) -> None:
        self._part([self._link()], [50.0, 500.0, 1500.0])

    def _deaf(self) -> None:
        self._sim.deaf[self._link()] = self._sim.time + self._rng.choice([50.0, 500.0])

    def _isolate(self) -> None:
        client = self._rng.choice(self._sim.clients)
        servers = range(len(self._sim.places))
        some = self._rng.sample(servers, self._rng.randint(1, len(servers)))
        self._part([(client, server) for server in some], [300.0, 1500.0])

    def _isolate_holder(self) -> None:
        """A client that is inside cannot renew."""
        holders = [waiter.client for waiter in self._sim.inside] or self._sim.clients
        client = self._rng.choice(holders)
        links = [(client, server) for server in range(len(self._sim.places))]
        self._part(links, [300.0, 1500.0])

    def _part(self, links: list[tuple[Client, int]], lasts: list[float]) -> None:
        for link in links:
            self._sim.cut.add(link)
            self._sim.after(self._rng.choice(lasts), partial(self._sim.cut.discard, link))

    def _stranded(self) -> None:
        """One client reaches one server only, and as many others are down as may be."""
        places = self._sim.places
        client = self._sim.stranded = self._sim.clients[0]
        reached = self._rng.randrange(len(places))
        others = [server for server in range(len(places)) if server != reached]
        self._sim.cut |= {(client, server) for server in others}
        for server in others[: len(places) - len(places) // 2 - 1]:
            places[server].up = False
