"""The Lua scripts of rate limits beside the state machine: random operations, answer by answer.

The time is the test's, since it decides everything here: each script gets it instead of the clock
of the server, which may also be set back.
"""

from __future__ import annotations

import os
import random
import uuid
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from aiolock import protocol
from aiolock._rate import Rate
from aiolock.protocol import (
    Acquire,
    Answer,
    AskAgain,
    Form,
    GrantPushed,
    Late,
    OrderUnknown,
    Queued,
    ReadStatus,
    Release,
    Resize,
    Rule,
    WaiterId,
)
from aiolock.stores._effects import Rest
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.redis import _replies as replies
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._codec import decode, encode
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._rest import left
from aiolock.stores.redis._scripts import KEPT
from aiolock.stores.redis._status import status
from tests.support.scripted import ScriptedServer
from tests.support.servers import RedisServer

ROUNDS = int(os.environ.get("MODEL_EXAMPLES", "25"))
CLIENTS = ("ada", "bob", "eve")
RATE, SLOWER = Rate(400_000, 5).declared, Rate(700_001, 2).declared
FORMS = [
    Form(claim=3000, shared=True, fixed=True, rule=Rule.RATE, number=n, declared=rate, priority=p)
    for n, rate, p in ((1, RATE, 0), (3, RATE, 0), (2, RATE, -1), (1, SLOWER, 0))
]
QUOTAS = [
    replace(form, share=share, weight=weight)
    for form in FORMS
    for share, weight in (("a", 1000), ("b", 300), ("c", 4000), ("", 1000))
]
"""The same for tenants, and for nobody's share."""


class Both:
    """The same operations on both sides."""

    def __init__(self, server: ScriptedServer, names: Names, seed: int) -> None:
        self.dice = random.Random(seed)
        self.server = server
        self.name = f"n{seed}"
        self.channels = names.channels
        self.keys = names.keys(self.name)
        stem = self.keys[0].removesuffix("holders")
        self.five = [*self.keys, f"{stem}line", f"{stem}shares"]
        self.shares = False
        """Whether the scripts get the keys of shares."""
        self.state = NameState()
        self.fence = 0
        self.now = 1_700_000_000_000_000
        self.alive = set[str]()
        for client in CLIENTS:
            self.comes(client)
        self.seqs = 0
        self.known = list[tuple[WaiterId, Form]]()
        self.tickets = dict[WaiterId, int]()
        self.said = list[str]()
        self.few = False
        """Whether a step lets one enter, and looks at two waiters."""
        self.rests: list[list[bytes]] = []
        self.rest: Rest | None = None

    def comes(self, client: str) -> None:
        self.alive.add(client)
        self.server.listen(client)

    def goes(self, client: str) -> None:
        self.alive.discard(client)
        self.server.leave(client)

    def call(self, script: scripts.Script, keys: list[str], *values: object) -> Any:
        """The reply of a script at this moment, and what it pushes."""
        bounds = {"GRANTS": "1", "PART": "2"} if self.few else {}
        source = scripts._source(
            script.name, shares=self.shares or script.shares, LOOKERS="1e17", **bounds
        )
        time = f"{{'{self.now // 1_000_000}', '{self.now % 1_000_000}'}}"
        assert "redis.call('TIME')" in source
        source = source.replace("redis.call('TIME')", time)
        reply = self.server.evaluate(source, keys, *values)
        if not isinstance(reply, Late) and (rest := left(reply)) is not None:
            self.rests, reply = rest.calls, rest.reply
        return reply

    def step(self) -> Step:
        alive = self.alive.__contains__
        return Step(self.name, self.state, self.now, alive, self.fence, in_parts=self.few)

    def check(self, what: str, theirs: object, ours: object, step: Step) -> None:
        """The same answer, and the same pushes to those who listen."""
        self.said.append(f"{what} -> {ours}")
        trace = "\n".join(self.said[-12:])
        assert theirs == ours, trace
        heard = sorted((client, self._heard(push)) for client, push in self.server.pushes())
        said = sorted((p.client, _said(p.event)) for p in step.pushes if p.client in self.alive)
        assert heard == said, trace
        assert bool(self.rests) == (step.rest is not None), trace
        assert self.fence == step.fence, "tokens have no fence"
        self.rest = step.rest
        if self.rest is not None and self.dice.random() < 0.8:
            (rest,), self.rests = self.rests, []
            step, last = self.step(), self.rest
            step.go_on(last)
            texts = [each.decode() for each in rest[1:]]
            number = int(rest[0])
            self.call(scripts.GO_ON, texts[:number], *texts[number:])
            self.check(f"go on {last}", None, None, step)
        self.rests = []

    def _heard(self, push: str) -> str:
        kind, *rest = push.split(" ")
        if kind == "g":
            text, left, claim, now, _ = rest
            waiter, form, _ = decode(text)
            return _said(GrantPushed(self.name, waiter, form, int(left), int(claim), int(now)))
        return {"d": "ask again", "v": "order unknown"}[kind]

    def waiter(self) -> tuple[WaiterId, Form]:
        if self.known and self.dice.random() < 0.5:
            return self.dice.choice(self.known)
        self.seqs += 1
        who = WaiterId(self.dice.choice(CLIENTS), self.seqs)
        self.known.append((who, self.dice.choice(QUOTAS if self.shares else FORMS)))
        return self.known[-1]

    def acquire(self) -> None:
        waiter, form = self.waiter()
        ticket = self.tickets.get(waiter, 0) if self.dice.random() < 0.7 else 0
        wait, most = self.dice.random() < 0.8, self.dice.choice([0, 0, 2])
        text = encode(waiter, form, blind=False)
        step = self.step()
        asked = Acquire(self.name, waiter, form, 3000, ticket, wait, most)
        ours: Answer = step.run(asked)
        values = (3000, 3000 + KEPT, most, self.channels, text, ticket if wait else -1, 0)
        theirs = replies.answer(self.call(scripts.ACQUIRE, self.keys, *values))
        if not wait and ticket:  # a script is not told its ticket
            theirs = ours
        self.check(f"acquire {text} {ticket} {wait} {most}", theirs, ours, step)
        if isinstance(ours, Queued):
            self.tickets[waiter] = ours.ticket

    def release(self) -> None:
        waiter, form = self.waiter()
        tombstone = self.now + 3_000_500 if self.dice.random() < 0.2 else 0
        step = self.step()
        ours = step.run(Release(self.name, waiter, form, 0, entered=False), tombstone)
        text = encode(waiter, form, blind=False)
        was = self.call(scripts.RELEASE, self.keys, text, 0, self.channels, 0, tombstone)
        if isinstance(was, bytes):  # the first push for the client that is answered
            self.server.redis.publish(self.channels + waiter.client, was.decode())
            was = ours
        self.check(f"release {text}", was, ours, step)

    def resize(self) -> None:
        declared, limit = self.dice.choice([(RATE, SLOWER), (RATE, RATE), (SLOWER, RATE)])
        token = f"t{self.dice.randrange(9)}"
        step = self.step()
        ours = step.run(Resize(self.name, declared, limit, 60_000, token=token))
        values = (declared, limit, 60_000, self.channels, token, 0)
        theirs = self.call(scripts.RESIZE, self.five, *values)
        self.check(f"resize {declared} {limit} {token}", theirs, ours, step)

    def status(self) -> None:
        step = self.step()
        reply = self.call(scripts.STATUS, self.keys[:2], self.channels, 100, "-inf", 100, "", "")
        theirs, ours = status(self.name, reply), step.run(ReadStatus(self.name))
        if ours.limit is None:  # a key goes by the clock of the server
            theirs = replace(theirs, limit=None)
        self.check("status", str(theirs), str(ours), step)

    def go_on(self) -> None:
        """Time passes; somebody comes, or goes."""
        self.now += self.dice.choice([1, 137, 1000, 400_000, 2_100_000])
        if self.dice.random() < 0.1:
            self.now += self.dice.choice([7_000_000, -500_000, -3_000_000])
        if self.dice.random() < 0.1:
            client = self.dice.choice(CLIENTS)
            (self.goes if client in self.alive else self.comes)(client)


def _said(event: object) -> str:
    match event:
        case AskAgain():
            return "ask again"
        case OrderUnknown():
            return "order unknown"
        case _:
            return repr(event)


@pytest.fixture
def scripted(redis_server: RedisServer) -> Iterator[tuple[ScriptedServer, Names]]:
    """A server, and names that nothing else uses there."""
    names = Names(f"rates-{uuid.uuid4().hex[:8]}")
    server = ScriptedServer(redis_server.port, names.channels)
    yield server, names
    server.close(*(server.redis.keys(f"{names.prefix}*") or ["none"]))


@pytest.mark.one_loop
@pytest.mark.parametrize(("few", "shares"), [(False, False), (True, False), (False, True)])
def test_rate_scripts_agree_with_the_machine(
    scripted: tuple[ScriptedServer, Names],
    monkeypatch: pytest.MonkeyPatch,
    *,
    few: bool,
    shares: bool,
) -> None:
    """Whatever is asked of them, at whatever time, they say and tell the same.

    With shares not in small steps: there, a script looks at fewer waiters in one than the machine.
    """
    monkeypatch.setattr(protocol, "LOOKERS", 10**17)
    if few:
        monkeypatch.setattr(protocol, "GRANTS", 1)
        monkeypatch.setattr(protocol, "PART", 2)
    operations = ["acquire"] * 6 + ["release"] * 2 + ["go_on"] * 4 + ["status", "resize"]
    for seed in range(ROUNDS):
        both = Both(*scripted, seed + 1000 * few)
        both.few, both.shares = few, shares
        if shares:
            both.keys = both.five
        for _ in range(40):
            both.now += 1  # a server never reads one time twice
            getattr(both, both.dice.choice(operations))()
        for client in CLIENTS:
            both.goes(client)
