"""The Lua scripts against the memory model: random sequences, the same answers, the same state.

Time is not left to chance: leases are long, and a lease is ended by moving its end into the past
on both sides.
"""

from __future__ import annotations

import itertools
import uuid
from typing import Any

import pytest
import redis
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from aiolock.store import WAS_HOLDER, Busy, Done, Full, Granted, Queued, Renewal, WaiterId
from aiolock.stores.memory import Grant, MemoryServer
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._names import Names
from tests.servers import RedisServer

NAME = "the {name}"
CLIENTS = ("ada", "bob", "cyd")
WAITERS = [
    str(WaiterId(blind, fixed, claim, client, seq, terms, once))
    for client in CLIENTS
    for seq, (blind, fixed, claim, terms, once) in enumerate(
        [
            (False, False, 10_000, "", False),
            (False, False, 10_000, "", False),
            (False, True, 5_000, "", False),
            (True, False, 7_000, "", False),
            (False, False, 10_000, "~20000", False),
            (False, True, 10_000, "+30000", False),
            (False, False, 10_000, "", True),
            (True, True, 8_000, "", True),
        ]
    )
]
LONG_AGO = 1_000

waiters = st.sampled_from(WAITERS)


class Heard:
    """An inbox that writes down what comes, without the times."""

    def __init__(self, log: list[tuple[Any, ...]], client: str) -> None:
        self.log = log
        self.client = f"x:{client}:"

    def granted(self, name: str, waiter: str, fence: int, lease: int, now: int) -> None:
        assert name == NAME
        self.log.append(("granted", waiter, fence, lease))

    def lost(self, name: str, waiter: str, fence: int, reason: str) -> None:
        self.log.append(("lost", waiter, fence, reason))

    def done(self, name: str) -> None:
        assert name == NAME
        self.log.append(("done", self.client, 0))

    def requested(self, name: str, waiter: str, fence: int) -> None:
        self.log.append(("requested", waiter, fence))

    def reconnected(self) -> None:
        raise AssertionError("a model has no connection")


class Model(MemoryServer):
    """The memory server, with a microsecond to each operation and pushes that are there at once."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[tuple[Any, ...]] = []
        self.clock = itertools.count(1_800_000_000_000_000)
        self.answered = ""

    def now(self) -> int:
        return next(self.clock)

    def push(self, client: str, deliver: Any) -> int:
        if client == self.answered:  # with the reply, to whoever asked
            deliver(Heard(self.log, client))
        elif client in self._inboxes:
            deliver(self._inboxes[client])
        return int(client in self._inboxes)

    def release(self, name: str, waiter: str, fence: int) -> int:
        self.answered = WaiterId.parse(waiter).client
        was = super().release(name, waiter, fence)
        self.answered = ""
        return was


class Scripts:
    """The same operations by the Lua scripts, on a real server."""

    def __init__(self, server: RedisServer) -> None:
        self.redis: Any = redis.Redis(port=server.port, decode_responses=True)
        self.names = Names(f"model-{uuid.uuid4().hex[:8]}")
        self.keys = self.names.keys(NAME)
        self.pubsubs: dict[str, Any] = {}
        self.log: list[tuple[Any, ...]] = []

    def _call(self, script: scripts.Script, keys: list[str], *values: object) -> Any:
        reply = self.redis.eval(script.source, len(keys), *keys, *map(str, values))
        for client, pubsub in self.pubsubs.items():
            self.redis.publish(self.names.channels + client, "that is all")
            while (push := pubsub.get_message(timeout=10)["data"]) != "that is all":
                self._heard(push, client)
        return reply

    def _heard(self, push: str, client: str) -> None:
        kind, *rest = push.split(" ", 3)
        if kind == "g":
            waiter, fence, after = rest
            self.log.append(("granted", waiter, int(fence), int(after.split(" ")[0])))
        elif kind == "d":
            self.log.append(("done", f"x:{client}:", 0))
        elif kind == "r":
            waiter, _, fence = rest[0].rpartition(":")
            self.log.append(("requested", waiter, int(fence)))
        else:
            waiter, _, fence = rest[0].rpartition(":")
            self.log.append(("lost", waiter, int(fence), rest[1]))

    def listen(self, client: str) -> None:
        if client not in self.pubsubs:
            pubsub = self.redis.pubsub()
            pubsub.subscribe(self.names.channels + client)
            assert pubsub.get_message(timeout=10)["type"] == "subscribe"
            self.pubsubs[client] = pubsub

    def leave(self, client: str) -> None:
        if client in self.pubsubs:
            self.pubsubs.pop(client).close()
            channel = self.names.channels + client
            while self.redis.pubsub_numsub(channel)[0][1]:
                pass  # the server has not read our good-bye yet

    def acquire(self, waiter: str, ttl: int, ticket: int, most: int) -> Any:
        args = (waiter, ticket, ttl, most, self.names.channels)
        kind, *rest = self._call(scripts.ACQUIRE, self.keys, *args)
        return (Busy, Granted, Queued, Full, Done)[kind](*rest)

    def release(self, waiter: str, fence: int) -> int:
        was = self._call(scripts.RELEASE, self.keys, waiter, fence, self.names.channels)
        if not isinstance(was, str):
            return int(was)
        self._heard(was, WaiterId.parse(waiter).client)  # the push, with the reply
        return WAS_HOLDER

    def finish(self, waiter: str, fence: int, keep: int) -> int:
        values = (waiter, fence, keep, self.names.channels)
        return int(self._call(scripts.FINISH, self.keys[:2], *values))

    def renew(self, renewals: list[Renewal]) -> list[bool]:
        keys = [self.keys[0]] * len(renewals)
        values = [v for r in renewals for v in (f"{r.waiter}:{r.fence}", r.ttl)]
        return [flag == 1 for flag in self._call(scripts.RENEW, keys, *values)]

    def break_(self, fences: list[int]) -> int:
        return int(self._call(scripts.BREAK, self.keys, self.names.channels, *fences))

    def request(self) -> int:
        return int(self._call(scripts.REQUEST, self.keys[:1], self.names.channels))

    def holders(self) -> list[tuple[str, int]]:
        grants = self.redis.zrange(self.keys[0], 0, -1)
        return [(waiter, int(fence)) for waiter, _, fence in (g.rpartition(":") for g in grants)]

    def close(self) -> None:
        for client in list(self.pubsubs):
            self.leave(client)
        self.redis.delete(*self.keys)
        self.redis.close()


class Fences:
    """Fences of one side by the order of their minting: 1, 2, 3, and 0 for one never minted."""

    def __init__(self) -> None:
        self.seen: list[int] = [0]

    def rank(self, fence: int) -> int:
        if fence not in self.seen:
            assert fence > self.seen[-1], "fences increase"
            self.seen.append(fence)
        return self.seen.index(fence)


def near(real: int, model: int) -> bool:
    """Whether two durations are alike, but for the time that the test itself takes."""
    return abs(real - model) < 3000


class Differential(RuleBasedStateMachine):
    """Each rule does the same to both sides and compares what they say."""

    server: RedisServer

    def __init__(self) -> None:
        super().__init__()
        self.real = Scripts(self.server)
        self.model = Model()
        self.real_fences, self.model_fences = Fences(), Fences()
        self.tickets: dict[str, tuple[int, int]] = {}

    @initialize()
    def all_listen(self) -> None:
        for client in CLIENTS:
            self.come_back(client)

    @rule(client=st.sampled_from(CLIENTS))
    def come_back(self, client: str) -> None:
        self.real.listen(client)
        self.model.listen(client, Heard(self.model.log, client))

    @rule(client=st.sampled_from(CLIENTS))
    def vanish(self, client: str) -> None:
        self.real.leave(client)
        self.model.leave(client)

    @rule(
        waiter=waiters,
        ttl=st.sampled_from([30_000, 60_000]),
        how=st.sampled_from(["new", "new", "old", "no wait"]),
        most=st.sampled_from([0, 0, 1, 2]),
    )
    def acquire(self, waiter: str, ttl: int, how: str, most: int) -> None:
        old = self.tickets.get(waiter, (0, 0)) if how == "old" else (0, 0)
        tickets = (-1, 0) if how == "no wait" else old
        real = self.real.acquire(waiter, ttl, tickets[0], most)
        model = self.model.acquire(
            NAME, waiter, ttl, ticket=tickets[1], wait=how != "no wait", max_waiters=most
        )
        assert type(real) is type(model)
        if isinstance(real, Granted) and isinstance(model, Granted):
            ours, theirs = self.real_fences.rank(real.fence), self.model_fences.rank(model.fence)
            assert ours == theirs
            assert near(real.lease, model.lease)
            assert real.displaced == model.displaced
        elif isinstance(real, Queued) and isinstance(model, Queued):
            assert real.place == model.place
            assert near(real.until, model.until)
            assert real.displaced == model.displaced
            self.tickets[waiter] = (real.ticket, model.ticket)
        elif (isinstance(real, Busy) and isinstance(model, Busy)) or (
            isinstance(real, Done) and isinstance(model, Done)
        ):
            assert near(real.until, model.until)
        else:
            assert real == model

    @rule(waiter=waiters, keep=st.sampled_from([20_000, 60_000]))
    def finish(self, waiter: str, keep: int) -> None:
        held = dict(self.real.holders()), {g.waiter: g.fence for g in self._model_holders()}
        real, model = (side.get(waiter, 12345) for side in held)
        answer = self.real.finish(waiter, real, keep)
        assert answer == self.model.finish(NAME, waiter, model, keep)

    @rule(waiter=waiters, exact=st.booleans())
    def release(self, waiter: str, exact: bool) -> None:
        held = dict(self.real.holders()), {g.waiter: g.fence for g in self._model_holders()}
        fences = [side.get(waiter, 12345) if exact else 0 for side in held]
        answers = self.real.release(waiter, fences[0]), self.model.release(NAME, waiter, fences[1])
        assert answers[0] == answers[1]

    @rule(ttl=st.sampled_from([0, 20_000, 90_000]), stranger=waiters)
    def renew(self, ttl: int, stranger: str) -> None:
        real = [Renewal(NAME, *grant, ttl) for grant in self.real.holders()]
        model = [Renewal(NAME, *grant, ttl) for grant in self._model_holders()]
        nobody = Renewal(NAME, stranger, 12345, ttl)
        assert self.real.renew([*real, nobody]) == self.model.renew([*model, nobody])

    @rule()
    def request(self) -> None:
        assert self.real.request() == self.model.request(NAME)

    @rule(stale=st.booleans())
    def break_(self, stale: bool) -> None:
        real = [12345] if stale else [fence for _, fence in self.real.holders()]
        model = [12345] if stale else [grant.fence for grant in self._model_holders()]
        assert self.real.break_(real) == self.model.break_(NAME, model)

    @rule()
    def end_the_lease(self) -> None:
        for waiter, fence in self.real.holders():
            self.real.redis.zadd(self.real.keys[0], {f"{waiter}:{fence}": LONG_AGO})
        line = self.model._lines.get(NAME)
        for grant in self._model_holders():
            assert line is not None
            line.holders[grant] = LONG_AGO

    @invariant()
    def same_state(self) -> None:
        real = [(waiter, self.real_fences.rank(fence)) for waiter, fence in self.real.holders()]
        model = [(g.waiter, self.model_fences.rank(g.fence)) for g in self._model_holders()]
        assert real == model
        line = self.model._lines.get(NAME)
        queue = [waiter for _, waiter in line.queue] if line else []
        assert self.real.redis.zrange(self.real.keys[1], 0, -1) == queue

    @invariant()
    def same_pushes(self) -> None:
        # Each client's pushes are in order; between clients there is none.
        for side, fences in ((self.real, self.real_fences), (self.model, self.model_fences)):
            side.log.sort(key=lambda push: (push[1].split(":")[1], push[2]))
            for fence in sorted(push[2] for push in side.log):
                fences.rank(fence)
        real = [(*p[:2], self.real_fences.rank(p[2]), *p[3:]) for p in self.real.log]
        model = [(*p[:2], self.model_fences.rank(p[2]), *p[3:]) for p in self.model.log]
        assert real == model
        self.real.log.clear()
        self.model.log.clear()

    @invariant()
    def every_key_expires(self) -> None:
        for key in self.real.keys:
            assert self.real.redis.pttl(key) != -1, f"{key} has no expiry"

    def _model_holders(self) -> list[Grant]:
        line = self.model._lines.get(NAME)
        return list(line.holders) if line else []

    def teardown(self) -> None:
        self.real.close()


@pytest.mark.timeout(120)
def test_the_scripts_and_the_model_agree(redis_server: RedisServer) -> None:
    """Whatever is done in whatever order, Lua on Redis and Python in memory do the same."""

    class OnThisServer(Differential):
        server = redis_server

    run_state_machine_as_test(
        OnThisServer,
        settings=settings(
            max_examples=150,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
