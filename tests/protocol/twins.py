"""The server of the model beside the memory store: both are asked the same, and must answer alike.

That the scripts do what the memory store does is shown in ``tests/test_model.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Final, NamedTuple

from aiolock.store import CLAIM, Granted, Queued, Renewal, WaiterId
from aiolock.stores.memory import MemoryServer
from tests.protocol.model import Answer, Safeguards, Server, Who
from tests.protocol.server import AtServer

NAME: Final = "the lock"
WAITERS: Final = (Who(0, 0), Who(0, 1), Who(1, 0))
TTL: Final = 2
"""Ticks, of which a claim is one."""


class Op(NamedTuple):
    """Something that happens to a server."""

    what: str
    who: Who
    number: int = 0


class Memory(MemoryServer):
    """The memory store with a clock to set, and pushes that are there at once."""

    def __init__(self) -> None:
        self.micros = 1_000_000_000
        super().__init__(clock=lambda: self.micros / 1e6)
        self.heard: list[tuple[str, str, int]] = []

    def push(self, client: str, deliver: Callable[[Any], None]) -> int:
        if client not in self._inboxes:
            return 0
        deliver(self)
        return 1

    def granted(self, name: str, waiter: str, fence: int, lease: int, now: int) -> None:
        assert lease == CLAIM
        self.heard.append(("granted", waiter, fence))

    def lost(self, name: str, waiter: str, fence: int, reason: str) -> None:
        self.heard.append(("lost", waiter, fence))


class Twins:
    """Both servers, and everything that has happened to them."""

    def __init__(self) -> None:
        self.server = Server()
        self.listening = [True, True]
        self.memory = Memory()
        self.fences = [0]
        """The memory store's fences in the order in which they were minted: the model counts."""
        self.tickets = {0: 0}
        self.known: dict[Who, int] = {}
        for client in range(len(self.listening)):
            self.memory.listen(_client(client), self.memory)  # type: ignore[arg-type]  # no reconnects

    def situation(self) -> tuple[Server, tuple[bool, ...]]:
        """How the model stands."""
        return self.server, tuple(self.listening)

    def ops(self) -> Iterator[Op]:
        """What may happen next."""
        for who in WAITERS:
            yield Op("ask", who)
            if who in self.known:
                yield Op("ask", who, self.known[who])
            yield Op("release", who)
            for fence in {holder.fence for holder in self.server.holders} | {self.server.last}:
                if fence:
                    yield Op("release", who, fence)
                    yield Op("renew", who, fence)
        for who in (WAITERS[0], WAITERS[-1]):
            yield Op("hear", who)
        yield Op("wait", WAITERS[0])

    def happens(self, op: Op) -> None:
        """It happens to both; the same must come of it."""
        self.memory.micros += 1
        if op.what == "wait":
            self.memory.micros += CLAIM * 1000
            older = tuple(h._replace(left=max(0, h.left - 1)) for h in self.server.holders)
            self.server = self.server._replace(holders=older)
        elif op.what == "hear":
            self._hear(op.who.client)
        else:
            serving = AtServer(
                self.server, Safeguards(), ttl=TTL, claim=1, listening=tuple(self.listening)
            )
            says = {"ask": self._ask, "release": self._release, "renew": self._renew}[op.what]
            says(serving, op)
            pushes = serving.pushes
            if serving.push is not None:  # which is with the reply, so in this very moment
                pushes = [*pushes, (op.who.client, serving.push)]
            pushed = [
                (push.what, _waiter(Who(client, push.task)), self._fence(push.fence))
                for client, push in pushes
                if self.listening[client]
            ]
            assert pushed == self.memory.heard, op
            self.memory.heard.clear()
            self.server = serving.after()
        self._compare()

    def _hear(self, client: int) -> None:
        self.listening[client] = not self.listening[client]
        if self.listening[client]:
            self.memory.listen(_client(client), self.memory)  # type: ignore[arg-type]  # as above
        else:
            self.memory.leave(_client(client))

    def _ask(self, serving: AtServer, op: Op) -> None:
        answer = serving.acquire(op.who, op.number, 0)
        ticket = self.tickets[op.number]
        told = self.memory.acquire(
            NAME, _waiter(op.who), TTL * CLAIM, ticket=ticket, wait=True, max_waiters=0
        )
        if isinstance(told, Granted):
            ticks = round(told.lease / CLAIM)
            fence = self._fence(answer.number)
            assert answer == Answer("granted", answer.number, ticks, 0, told.displaced), op
            assert told.fence == fence
        else:
            assert isinstance(told, Queued)
            ticks = round((told.until if told.place == 1 else min(told.until, CLAIM)) / CLAIM)
            assert answer == Answer("queued", answer.number, ticks, 0, told.displaced), op
            assert self.tickets.setdefault(answer.number, told.ticket) == told.ticket
            self.known[op.who] = answer.number

    def _release(self, serving: AtServer, op: Op) -> None:
        assert serving.release(op.who, op.number).what == "done"
        self.memory.release(NAME, _waiter(op.who), self._fence(op.number))

    def _renew(self, serving: AtServer, op: Op) -> None:
        renewal = Renewal(NAME, _waiter(op.who), self._fence(op.number), TTL * CLAIM)
        (still,) = self.memory.renew([renewal])
        assert serving.renew(op.who, op.number).what == ("renewed" if still else "refused"), op

    def _fence(self, count: int) -> int:
        """The memory store's fence for one of the model's, which has just been minted at most."""
        if count == len(self.fences):
            assert self.memory._fence > self.fences[-1]
            self.fences.append(self.memory._fence)
        return self.fences[count]

    def _compare(self) -> None:
        line = self.memory._lines.get(NAME)
        holders = [(g.waiter, g.fence) for g in line.holders] if line else []
        queue = [waiter for _, waiter in line.queue] if line else []
        assert holders == [(_waiter(h.who), self._fence(h.fence)) for h in self.server.holders]
        assert queue == [_waiter(place.who) for place in self.server.queue]


def _client(number: int) -> str:
    return "AB"[number]


def _waiter(who: Who) -> str:
    return str(WaiterId(False, False, CLAIM, _client(who.client), who.task + 1))


def compare(depth: int) -> int:
    """Compare the twins after every so many things that may happen; in how many situations."""
    seen = {Twins().situation()}
    paths: deque[tuple[Op, ...]] = deque([()])
    while paths:
        path = paths.popleft()
        for op in _after(path).ops():
            twins = _after((*path, op))
            if twins.situation() not in seen and len(path) + 1 < depth:
                seen.add(twins.situation())
                paths.append((*path, op))
    return len(seen)


def _after(path: tuple[Op, ...]) -> Twins:
    twins = Twins()
    for op in path:
        twins.happens(op)
    return twins
