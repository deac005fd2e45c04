"""The server of the model beside the memory store: both are asked the same, and must answer alike.

The memory store runs the protocol's state machine. That the scripts do what that does is shown in
``tests/proof/test_redis_model.py``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Final, NamedTuple

from aiolock.protocol import (
    CLAIM,
    MAX_AHEAD,
    WAS_ABSENT,
    WAS_HOLDER,
    Acquire,
    Before,
    Busy,
    Event,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    Late,
    OrderUnknown,
    Queued,
    Release,
    Renew,
    Renewal,
    ReportHandoff,
    WaiterId,
)
from aiolock.stores._state import NameState
from aiolock.stores.memory import MemoryServer
from tests.proof.protocol.model import Answer, Report, Safeguards, Server, Terms, Who
from tests.proof.protocol.server import AtServer
from tests.support.copies import run_copy
from tests.support.looks import Chance

NAME: Final = "the lock"
WAITERS: Final = (Who(0, 0), Who(0, 1), Who(1, 0))
TRIES: Final = Who(1, 1)
"""It never waits."""
TTL: Final = 2
"""Ticks, of which a claim is one."""
SAFEGUARDS: Final = Safeguards()
BURIED: Final = 1
"""Ticks for which a tombstone stands."""


class Op(NamedTuple):
    """Something that happens to a server."""

    what: str
    who: Who
    number: int = 0
    buried: int = 0
    looks: bool = False


class Memory(MemoryServer):
    """The memory store with a clock to set, and pushes that are there at once."""

    def __init__(self) -> None:
        self.micros = 1_000_000_000
        super().__init__(clock=lambda: self.micros / 1e6)
        self.heard: list[tuple[str, WaiterId, int]] = []

    def push(self, client: str, event: Event) -> None:
        if client in self._listeners:
            self._hear(event)

    def _hear(self, event: Event) -> None:
        match event:
            case GrantPushed(_, waiter, form, fence, lease):
                assert lease == CLAIM == form.claim
                self.heard.append(("granted", waiter, fence))
            case GrantLost(_, waiter, fence):
                self.heard.append(("lost", waiter, fence))
            case OrderUnknown(_, waiter):
                self.heard.append(("void", waiter, 0))
            case _:
                raise AssertionError(event)


class Twins:
    """Both servers, and everything that has happened to them."""

    def __init__(self, chance: Chance, *, renews: bool, late: bool, passes: bool) -> None:
        self.chance = chance
        self.terms = Terms(TTL, 1, BURIED if late else 0, renews, MAX_AHEAD if passes else 0)
        self.form = Form(CLAIM, fixed=not renews)
        self.server = Server()
        self.listening = [True, True]
        self.memory = Memory()
        self.fences = {0: 0}
        """The memory store's fence for each of the model's, which counts."""
        self.tickets = {0: 0}
        self.known: dict[Who, int] = {}
        for client in range(len(self.listening)):
            self.memory.listen(_client(client), self.memory._hear)

    def situation(self) -> tuple[Server, tuple[bool, ...]]:
        """How the model stands."""
        return self.server, tuple(self.listening)

    def ops(self) -> Iterator[Op]:
        """What may happen next."""
        for who in WAITERS:
            yield Op("ask", who)
            serving = AtServer(self.server, SAFEGUARDS, self.terms, listening=(*self.listening,))
            if serving.would_look(who, 0):
                yield Op("ask", who, looks=True)
            if who in self.known:
                yield Op("ask", who, self.known[who])
            yield from self._ops_of_waiter(who)
        if self.terms.late:
            yield Op("ask", TRIES, -1)
            yield from self._ops_of_waiter(TRIES)
            for who in (WAITERS[0], WAITERS[-1], TRIES):
                yield Op("release", who, 0, BURIED)
            yield Op("late", WAITERS[-1], self.server.last)
        if self.terms.ahead:
            for fence in {holder.fence for holder in self.server.holders} | {self.server.last}:
                yield Op("pass", WAITERS[0], fence)
        for who in (WAITERS[0], WAITERS[-1]):
            yield Op("hear", who)
        yield Op("wait", WAITERS[0])

    def _ops_of_waiter(self, who: Who) -> Iterator[Op]:
        yield Op("release", who)
        for fence in {holder.fence for holder in self.server.holders} | {self.server.last}:
            if fence:
                yield Op("release", who, fence)
                yield Op("renew", who, fence)

    def happens(self, op: Op) -> None:
        """It happens to both; the same must come of it."""
        self.memory.micros += 1
        self.chance.looks = op.looks
        if op.what == "wait":
            self.memory.micros += CLAIM * 1000
            older = tuple(h._replace(left=max(0, h.left - 1)) for h in self.server.holders)
            self.server = self.server._replace(holders=older, tombstones=())
        elif op.what == "hear":
            self._hear(op.who.client)
        else:
            listening = tuple(self.listening)
            serving = AtServer(self.server, SAFEGUARDS, self.terms, listening=listening)
            says = {
                "ask": self._ask,
                "release": self._release,
                "renew": self._renew,
                "late": self._come_late,
                "pass": self._pass,
            }
            says[op.what](serving, op)
            pushes = serving.pushes
            if serving.push is not None:  # which is with the reply, so in this very moment
                pushes = [*pushes, (op.who.client, serving.push)]
            pushed = [
                (push.what, _waiter(Who(client, push.task)), self._fence(push.fence))
                for client, push in pushes
                if self.listening[client]
            ]
            if not self.terms.ahead:
                self.memory.heard = [push for push in self.memory.heard if push[0] != "void"]
            assert pushed == self.memory.heard, op
            self.memory.heard.clear()
            self.server = serving.after()

    def _hear(self, client: int) -> None:
        self.listening[client] = not self.listening[client]
        if self.listening[client]:
            self.memory.listen(_client(client), self.memory)  # type: ignore[arg-type]  # as above
        else:
            self.memory.leave(_client(client))

    def _ask(self, serving: AtServer, op: Op) -> None:
        answer = serving.acquire(op.who, op.number, 0, looks=op.looks)
        told = self.memory.run(self._acquiring(op, self.tickets[max(0, op.number)]))
        if isinstance(told, Granted):
            ticks = round(told.lease / CLAIM)
            fence = self._fence(answer.number)
            assert answer == Answer("granted", answer.number, ticks, 0, told.displaced), op
            assert told.fence == fence
        elif isinstance(told, Busy):
            assert answer.what == "busy", op
        else:
            assert isinstance(told, Queued)
            ticks = round((told.until if told.place == 1 else min(told.until, CLAIM)) / CLAIM)
            says = Answer("queued", answer.number, ticks, 0, told.displaced, before=answer.before)
            assert answer == says, op
            if self.terms.ahead:
                before = answer.before and Before(
                    _waiter(Who(op.who.client, answer.before[0])), self._fence(answer.before[1])
                )
                assert told.before == before, op
            assert self.tickets.setdefault(answer.number, told.ticket) == told.ticket
            self.known[op.who] = answer.number

    def _release(self, serving: AtServer, op: Op) -> None:
        assert serving.release(op.who, op.number, op.buried).what == "done"
        # On the millisecond, as the ends of leases are here, so that both end with the same tick.
        tombstone_until = op.buried and self.memory.micros // 1000 * 1000 + op.buried * CLAIM * 1000
        release = Release(NAME, _waiter(op.who), self.form, self._fence(op.number))
        self.memory.run(release, tombstone_until)

    def _pass(self, serving: AtServer, op: Op) -> None:
        """From one of the first client's two waiters to the other."""
        report = Report(op.who.task, op.number, (WAITERS[1].task,), op.number + 1)
        answer = serving.report_handoff(op.who.client, report)
        source, target = _waiter(op.who), _waiter(WAITERS[1])
        since = self._fence(op.number)
        was = self.memory.run(
            ReportHandoff(NAME, self.form, source, since, target, since + 1, (target,))
        )
        assert was == (WAS_ABSENT if answer.what == "refused" else WAS_HOLDER), op
        if answer.what == "passed":
            self.fences[report.fence] = since + 1

    def _renew(self, serving: AtServer, op: Op) -> None:
        (still,) = self.memory.run(self._renewing(op))
        assert serving.renew(op.who, op.number).what == ("renewed" if still else "refused"), op

    def _come_late(self, serving: AtServer, op: Op) -> None:
        """In the model such a command is not there any more."""
        just_past = self.memory.micros - 1
        assert isinstance(run_copy(self.memory, self._acquiring(op, 0), just_past), Late)
        assert isinstance(run_copy(self.memory, self._renewing(op), just_past), Late)
        assert serving.after() == self.server

    def _renewing(self, op: Op) -> Renew:
        fence = self._fence(op.number)
        return Renew([Renewal(NAME, _waiter(op.who), self.form, fence, TTL * CLAIM)])

    def _acquiring(self, op: Op, ticket: int) -> Acquire:
        waiter, wait = _waiter(op.who), op.number >= 0
        return Acquire(NAME, waiter, self.form, TTL * CLAIM, ticket=ticket, wait=wait)

    def _fence(self, count: int) -> int:
        """The memory store's fence for one of the model's, which has just been minted at most."""
        if count not in self.fences:
            assert self.memory._fence > max(self.fences.values())
            self.fences[count] = self.memory._fence
        return self.fences[count]

    def compare(self) -> None:
        state = self.memory._states.get(NAME) or NameState()
        held = [(_waiter(h.who), self._fence(h.fence)) for h in self.server.holders]
        assert list(state.holders) == held
        queue = [waiter for _, waiter in state.queue]
        assert queue == [_waiter(place.who) for place in self.server.queue]


def _client(number: int) -> str:
    return "AB"[number]


def _waiter(who: Who) -> WaiterId:
    return WaiterId(_client(who.client), who.task + 1)


def compare(
    chance: Chance, depth: int, *, renews: bool = True, late: bool = False, passes: bool = False
) -> int:
    """Compare the twins after every so many things that may happen; in how many situations.

    ``chance`` decides whether newcomers look who is dead;
    ``renews``: whether leases are; ``late``: with what comes late, and with one that never waits;
    ``passes``: with a client that hands the lock on by itself.
    """
    make = partial(Twins, chance, renews=renews, late=late, passes=passes)
    seen = {make().situation()}
    paths: deque[tuple[Op, ...]] = deque([()])
    while paths:
        path = paths.popleft()
        for op in _after(make, path).ops():
            twins = _after(make, (*path, op))
            twins.compare()
            if twins.situation() not in seen and len(path) + 1 < depth:
                seen.add(twins.situation())
                paths.append((*path, op))
    return len(seen)


def _after(make: Callable[[], Twins], path: tuple[Op, ...]) -> Twins:
    twins = make()
    for op in path:
        twins.happens(op)
    return twins
