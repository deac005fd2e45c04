"""The Lua scripts against the state machine: random sequences, the same answers, the same state.

The scripts get a waiter as it is written down, the machine what the codec reads there; and what the
machine holds is written down to be compared. Among the ids are some that a later version may write,
and some that are none.

Time is not left to chance: leases are long, and a lease is ended by moving its end into the past
on both sides.
"""

from __future__ import annotations

import itertools
import os
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from aiolock import protocol
from aiolock.protocol import (
    FEW,
    WAS_ABSENT,
    WAS_HOLDER,
    Acquire,
    Adopt,
    Answer,
    AskAgain,
    Break,
    Busy,
    Detach,
    Discard,
    Done,
    Downgrade,
    Event,
    Finish,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    Late,
    Operation,
    OrderUnknown,
    Participant,
    Post,
    Posted,
    Queued,
    ReadPosted,
    ReadStatus,
    Release,
    ReleaseRequested,
    Renew,
    Renewal,
    ReportHandoff,
    RequestRelease,
    Resize,
    Rule,
    Status,
    WaiterId,
    detached,
)
from aiolock.stores._holders import Holder
from aiolock.stores._state import NameState
from aiolock.stores.memory import MemoryServer
from aiolock.stores.redis import _replies as replies
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis import _sharing as sharing
from aiolock.stores.redis._codec import RESERVED, decode_any, encode
from aiolock.stores.redis._encoding_rare import _detached
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._rest import left
from aiolock.stores.redis._scripts import KEPT
from aiolock.stores.redis._sharing import keys_with_shares
from aiolock.stores.redis._status import status
from aiolock.trees import MakeFence
from tests.support import looks
from tests.support.copies import run_copy
from tests.support.scripted import ScriptedServer
from tests.support.servers import RedisServer

Value = TypeVar("Value")

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "25"))
"""Sequences of each kind; twenty times as many where the scripts were changed."""
NAME = "the {name}"
AN_AGE = 10**14
"""A period, in ms, that does not end while a test runs."""
BLIND = "dim"
"""The client of which nobody can tell whether it listens: each of its ids says so."""
CLIENTS = ("ada", "bob", "cyd", BLIND)


def ids(*forms: str) -> list[str]:
    """The ids of a waiter of each form, of each client."""
    return [
        f"{form[0]}{'b' if client == BLIND else ''}{form[1:]}:{client}:{seq}"
        for client in CLIENTS
        for seq, form in enumerate(forms)
    ]


WAITERS = ids(
    "x10000",
    "x10000",
    "xf5000",
    "x7000",
    "x10000~20000",
    "xf10000+30000",
    f"xf9000@{AN_AGE}",
    "xo10000",
    "xfo8000",
    "xd9000",
    "s10000",
    "s10000",
    "sf10000",
    "s5000~20000",
    "xd10000~20000",
    "x10000!2",
    "xf7000~20000!-9",
    "s10000!-3",
    "xq10000,7",  # of a later version
    "sfz10000,7~20000",
    "x10000",
    "x10000",
)
READERS = ids("s10000", "s10000", "sf5000~20000", "s9000!-3", "x10000", "xd9000", "xd10000+30000")
TO_BE_DONE = ids("xo10000", "xo9000", "xfo8000", "xo7000~20000", "xd9000", "s10000")
PERMITS = ids(
    "s10000*1/3",
    "s10000*1/3",
    "s10000*1/3",
    "s10000*2/3",
    "s10000*3/3",
    "sf5000*1/3~20000",
    "s9000*2/3+30000",
    "s10000*1/4",
    "s10000*2/3!-3",
    "szf10000*1/3,7~20000",  # of a later version
)
TENANTS = ids(
    "x10000%QQ",
    "x10000%QQ",
    "x10000%Qg$3000",
    "x10000%Qg$2000",
    "x10000%Qw$500",
    "xf7000~20000%Qw",
    "x9000!-3%QQ",
    "x9000!-3%Qg",
    "xf10000+30000%RA$10",
    "x10000",
    "x10000!-3",
)
TENANTS_OF_PERMITS = ids(
    "s10000*1/3%QQ",
    "s10000*1/3%QQ",
    "s10000*2/3%Qg$3000",
    "s10000*1/3%Qg$2000",
    "s10000*1/3%Qw$500",
    "s10000*3/3%Qw",
    "s9000*1/3+30000%RA$100000",
    "sf5000*1/3~20000%RA",
    "s10000*1/3!-3%QQ",
    "s10000*2/3!-3%Qg",
    "s10000*1/3",
    "s10000*1/4%QQ",
)
PARTIES = ids("sf10000&3/3", "sf10000&3/3", "sf9000&3/3", "sf5000&2/2")
WATCHERS = ids("sf10000^2/2", "sf10000^2/2", "sf9000^1", "sf5000^4", "sf5000^3/3")
NODES = ids(
    "s10000", "s10000=1", "s9000=1", "sf10000=1", "s10000=1000000", "s9000=1000000!-3", "x10000"
)
GARBAGE = ["nobody's", "?10000:ada:1", "x:ada:1", "10000:bob:1"]
LONG_AGO = 1_000
MINUTE = 60_000_000


def now() -> int:
    """The time, in µs."""
    return int(time.time() * 1e6)


class Heard:
    """Writes down the events that come, without the times, and waiters as texts."""

    def __init__(
        self, log: list[tuple[Any, ...]], texts: Mapping[WaiterId, str], client: str
    ) -> None:
        self.log = log
        self.texts = texts
        self.client = f"x:{client}:"

    def __call__(self, event: Event) -> None:
        match event:
            case GrantPushed(name, waiter, form, fence, lease):
                assert name == NAME
                text = self.texts[waiter]
                assert form == decode_any(text)[1]
                self.log.append(("granted", text, fence, lease))
            case GrantLost(_, waiter, fence, reason):
                self.log.append(("lost", self.texts[waiter], fence, reason))
            case AskAgain(name):
                assert name == NAME
                self.log.append(("done", self.client, 0))
            case ReleaseRequested(_, waiter, fence):
                self.log.append(("requested", self.texts[waiter], fence))
            case OrderUnknown(_, waiter):
                self.log.append(("void", self.texts[waiter], 0))
            case _:
                raise AssertionError(f"a model has no {event}: neither connection nor clock")


class OnlyGrants(Heard):
    """Receives grants only."""

    def __call__(self, event: Event) -> None:
        if not isinstance(event, AskAgain):
            super().__call__(event)


class Model(MemoryServer):
    """The memory server, with a microsecond to each operation and pushes that are there at once.

    ``texts`` says how each waiter is written down.
    """

    def __init__(self, texts: dict[WaiterId, str]) -> None:
        super().__init__()
        self.texts = texts
        self.log: list[tuple[Any, ...]] = []
        self.began = now()
        """Its clock, in µs; it hardly moves."""
        self.clock = itertools.count(self.began)
        self.answered = ""
        self.first = list[Event]()
        """The first event for the client that is answered, if it does not listen."""

    def now(self) -> int:
        return next(self.clock)

    def listens(self, client: str) -> bool:
        """Nobody knows of the blind one, so it is taken for there."""
        return client == BLIND or self.hears(client)

    def hears(self, client: str) -> bool:
        """Whether what is pushed to it reaches it."""
        return client in self._listeners

    def hear(self, client: str) -> None:
        self.listen(client, Heard(self.log, self.texts, client))

    def later(self, call: Callable[[], None]) -> None:
        call()

    def push(self, client: str, event: Event) -> None:
        if client in self._listeners:
            self._listeners[client](event)
        elif client == self.answered and not self.first:
            self.first.append(event)

    def run(self, operation: Operation[Value], copies_until: int = 0) -> Value:
        if not isinstance(operation, Release):
            return super().run(operation, copies_until)
        self.answered, self.first = operation.waiter.client, []
        was: Any = super().run(operation, copies_until)
        # With the reply comes the first grant to whoever hands on, and nothing else.
        if was == WAS_HOLDER and self.first:
            OnlyGrants(self.log, self.texts, self.answered)(self.first[0])
        self.answered = ""
        return was  # type: ignore[no-any-return]  # the answer to a release

    # What is kept of the name, as it is written down

    @property
    def state(self) -> NameState:
        return self._states.get(NAME) or NameState()

    def grants(self) -> list[tuple[str, Holder]]:
        """The holders by their texts, sorted as those of the scripts."""
        found = [(self._text(holder), holder) for holder in self.state.holders.values()]
        return sorted(found, key=lambda grant: (grant[0], grant[1].grant.fence))

    def holders(self) -> list[tuple[str, int]]:
        """The grants, sorted, as they would stand there."""
        return [(text, holder.grant.fence) for text, holder in self.grants()]

    def _text(self, holder: Holder) -> str:
        waiter, form = holder.grant.waiter, replace(holder.form, shared=holder.shared)
        if holder.is_reserved:
            return encode(WaiterId(RESERVED, 0), form, blind=False)
        text = ("s" if holder.shared else "x") + self.texts[waiter][1:]
        assert decode_any(text) == (waiter, form, waiter.client == BLIND)
        return text

    def claims(self) -> list[tuple[str, int]]:
        return [(text, of.grant.fence) for text, of in self.grants() if of.claim]

    def queue(self) -> list[str]:
        state = self.state
        assert set(state.waiting) == {waiter for _, waiter in state.queue}
        return [self.texts[waiter] for _, waiter in state.queue]

    def tombstones(self) -> set[str]:
        state, ms = self.state, self.began // 1000
        resized = {f"{of}={was}" for of, (was, end) in state.resized.items() if end > ms}
        return {self.texts[each] for each, end in state.tombstones.items() if end > ms} | resized

    def order(self) -> Order:
        """The order among shares."""
        order = Order({}, {}, {}, {}, [])
        waiting, shares = self.state.waiting, self.state.holders.shares
        if shares is None:
            return order
        for priority, accounts in shares._by_priority.items():
            for place in accounts._places:
                share = waiting[place.waiter][1].share
                order.places.setdefault(priority, []).append((place.held, place.start, share))
            if accounts._ahead:
                order.ahead[priority] = accounts._ahead
            if accounts.virtual:
                order.virtual[priority] = accounts.virtual
            held = {(priority, name): of.held for name, of in accounts._by_name.items() if of.held}
            order.held.update(held)
        order.line.extend(self.texts[who] for who, (_, form) in waiting.items() if form.share)
        order.line.sort()
        return order

    def numbers(self) -> tuple[int, int, int]:
        """Permits taken, the limit, the count."""
        return self.state.holders.permits, self.state.limit or 0, self.state.count


class Order(NamedTuple):
    """The order among shares."""

    places: dict[int, list[tuple[int, int, str]]]
    """For each priority, what shares hold for their weights, their starts, and they, in order."""
    ahead: dict[int, list[tuple[int, str]]]
    """For each priority, starts and shares of those that do not wait, in order."""
    virtual: dict[int, int]
    held: dict[tuple[int, str], int]
    line: list[str]
    """The waiters of shares, sorted."""


class Kept(NamedTuple):
    """What Redis keeps of the name."""

    scores: dict[str, float]
    """Its members of the first key."""
    queue: list[str]
    expiries: list[int]
    """In how many ms each key ends; -1: never."""


class Scripts:
    """The same operations by the Lua scripts, on a real server."""

    def __init__(self, server: RedisServer, *, shares: bool = False) -> None:
        """``shares``: acquire and release have the keys of shares."""
        self.names = Names(f"model-{uuid.uuid4().hex[:8]}")
        self.shares = shares
        self.scripted = ScriptedServer(server.port, self.names.channels)
        self.redis = self.scripted.redis
        self.listen, self.leave = self.scripted.listen, self.scripted.leave
        self.keys = keys_with_shares(self.names, NAME)[: 5 if shares else 3]
        """The keys of acquire and release."""
        self.three, self.five = self.names.keys(NAME), keys_with_shares(self.names, NAME)
        self.value = self.names.value(NAME)
        self.log: list[tuple[Any, ...]] = []
        self._kept: Kept | None = None
        self.looks: bool | None = None
        """Whether newcomers look for dead waiters; None: now and then."""
        self.goes_on = True
        """Whether what a call has left is done at once."""
        self.rests: list[list[bytes]] = []
        """What is still to be done, in order."""

    def _call(self, script: scripts.Script, keys: list[str], *values: object) -> Any:
        """The decoded reply, after the pushes have come."""
        self._kept = None
        answer = self.scripted.evaluate(self._source(script), keys, *values)
        if not isinstance(answer, Late):
            answer = self._without_rest(answer)
            answer = answer if script.name == "release" else script.decode(answer)
        self._hear()
        if self.goes_on:
            self.go_on()
        return answer

    def go_on(self) -> int:
        """Do all that was left to further calls; how many these were."""
        calls = 0
        while self.rests:
            rest = self.rests.pop(0)
            self._without_rest(self.scripted.raw.eval(self._source(scripts.GO_ON), *rest))
            self._kept = None
            self._hear()
            calls += 1
        return calls

    def _without_rest(self, reply: Any) -> Any:
        if (rest := left(reply)) is None:
            return reply
        self.rests += rest.calls
        return rest.reply

    def _source(self, script: scripts.Script) -> str:
        if self.looks is None:
            return script.source
        return looks.source(script, looks=self.looks, grants=protocol.GRANTS, part=protocol.PART)

    def _hear(self) -> None:
        """Write down the pushes that have come."""
        for client, push in self.scripted.pushes():
            self._heard(push, client)

    def _heard(self, push: str, client: str) -> None:
        kind, *rest = push.split(" ", 3)
        if kind == "g":
            waiter, fence, after = rest
            self.log.append(("granted", waiter, int(fence), int(after.split(" ")[0])))
        elif kind == "d":
            self.log.append(("done", f"x:{client}:", 0))
        elif kind == "v":
            self.log.append(("void", rest[0], 0))
        elif kind == "r":
            waiter, _, fence = rest[0].rpartition(":")
            self.log.append(("requested", as_granted(waiter), int(fence)))
        else:
            waiter, _, fence = rest[0].rpartition(":")
            self.log.append(("lost", as_granted(waiter), int(fence), rest[1]))

    def acquire(
        self, waiter: str, ttl: int, ticket: int, most: int, not_after: int = 0
    ) -> Answer | Late:
        kept = ttl + KEPT + decode_any(waiter)[1].closes
        args = (ttl, kept, most, self.names.channels, waiter, ticket, not_after)
        script = sharing.ACQUIRE if self.shares else scripts.ACQUIRE
        answer: Answer | Late = self._call(script, self.keys, *args)
        return answer

    def acquire_several(self, waiters: list[str], ttl: int) -> list[Answer]:
        args = (ttl, ttl + KEPT, 0, self.names.channels, *waiters, 0)
        reply = self._call(scripts.ACQUIRE_SEVERAL, self.three, *args)
        return replies.several(reply, [decode_any(waiter)[0] for waiter in waiters])

    def release(
        self,
        waiter: str,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
        tombstone_until: int = 0,
    ) -> int:
        closes = 1 + lost if entered and decode_any(waiter)[1].closes else 0
        args = (waiter, fence, self.names.channels, closes, tombstone_until)
        script = sharing.RELEASE if self.shares else scripts.RELEASE
        was = self._call(script, self.keys, *args)
        if not isinstance(was, bytes):
            return int(was)
        self._heard(was.decode(), decode_any(waiter)[0].client)  # the push, with the reply
        return WAS_HOLDER

    def report_handoff(
        self, giver: str, fence: int, through: list[str], claim: int, not_after: int
    ) -> int | Late:
        minted = fence + len(through)
        values = (f"{giver}:{fence}", f"{through[-1]}:{minted}", minted, claim, *through, not_after)
        was: int | Late = self._call(scripts.REPORT_HANDOFF, self.three, *values)
        return was

    def finish(self, waiter: str, fence: int, remember: int, *, tombstone_until: int = 0) -> int:
        values = (waiter, fence, remember, self.names.channels, tombstone_until)
        return int(self._call(scripts.FINISH, self.three, *values))

    def renew(self, renewals: list[tuple[str, int, int]], not_after: int = 0) -> list[bool] | Late:
        """Each of a waiter, a fence and a ttl."""
        keys = [self.keys[0]] * len(renewals)
        values = [v for waiter, fence, ttl in renewals for v in (f"{waiter}:{fence}", ttl)]
        held: list[bool] | Late = self._call(scripts.RENEW, keys, *values, not_after)
        return held

    def break_(self, fences: list[int]) -> int:
        return int(self._call(scripts.BREAK, self.five, self.names.channels, *fences))

    def request(self, not_after: int = 0) -> int | Late:
        told, behind = 0, ("", "")
        while True:
            values = (self.names.channels, *behind, not_after)
            reply: replies.Asked | Late = self._call(scripts.REQUEST, self.keys[:1], *values)
            if isinstance(reply, Late):
                return reply
            more, last = reply
            told += more
            if last is None:
                return told
            behind = last[0].decode(), last[1].decode()

    def downgrade(self, waiter: str, fence: int) -> int:
        values = (waiter, fence, self.names.channels)
        return int(self._call(scripts.DOWNGRADE, self.three, *values))

    def detach(self, waiter: str, fence: int, token: str, ttl: int) -> int:
        values = (f"{waiter}:{fence}", f"{token}:{fence}", ttl)
        return int(self._call(scripts.DETACH, self.keys[:1], *values))

    def adopt(
        self, token: str, fence: int, waiter: str, ttl: int, not_after: int = 0
    ) -> Granted | Late | None:
        values = (f"{token}:{fence}", waiter, ttl, not_after)
        adopted: Granted | Late | None = self._call(scripts.ADOPT, self.keys, *values)
        return adopted

    def resize(
        self, declared: int, limit: int, remember: int, token: str = "t", not_after: int = 0
    ) -> int | Late:
        values = (declared, limit, remember, self.names.channels, token, not_after)
        before: int | Late = self._call(scripts.RESIZE, self.five, *values)
        return before

    def post(
        self,
        count: int,
        token: str,
        declared: int,
        value: str,
        remember: int,
        *,
        not_after: int = 0,
    ) -> int | Late:
        values = (token, count, declared, value, remember, self.names.channels, not_after)
        counted: int | Late = self._call(scripts.POST, [*self.three, self.value], *values)
        return counted

    def make_fence(self) -> int:
        return int(self._call(scripts.MAKE_FENCE, self.three))

    def read(self) -> Posted:
        posted: Posted = self._call(scripts.READ, [self.keys[0], self.value])
        return posted

    def status(self, *, waiters: bool = True) -> Status:
        most = 1_000_000 if waiters else FEW
        values = (self.names.channels, most if waiters else 0, "-inf", most, "")
        return status(NAME, self._call(scripts.STATUS, self.keys[:2], *values))

    # What stands there

    def put(self, key: str, member: str, score: float) -> None:
        """Write this there, beside the scripts."""
        self._kept = None
        self.redis.zadd(key, {member: score})

    @property
    def kept(self) -> Kept:
        """All of it, read once after each change: many look at it."""
        if self._kept is None:
            with self.redis.pipeline(transaction=False) as pipeline:
                pipeline.zrange(self.keys[0], 0, -1, withscores=True)
                pipeline.zrange(self.keys[1], 0, -1)
                for key in (*self.five, self.value):
                    pipeline.pttl(key)
                scores, queue, *expiries = pipeline.execute()
            self._kept = Kept(dict(scores), queue, expiries)
        return self._kept

    def order(self) -> Order:
        """The order among shares, as the scripts keep it."""
        order = Order({}, {}, {}, {}, [])
        first: dict[str, dict[str, float]] = {}
        for member, score in self.redis.zrange(self.five[4], 0, -1, withscores=True):
            first.setdefault(member[0], {})[member[1:]] = score
        for member, score in first.get("%", {}).items():
            began, ticket, account = member.split(":")
            priority, share = named(account)
            places = order.places.setdefault(priority, [])
            places.append((int(score) - priority * 10**12, int(began), share))
            assert first["s"].pop(account) == 10**14 + int(began)
            assert first["t"].pop(account) == int(ticket)
            first.get("w", {}).pop(account, None)
        for account, score in first.get("-", {}).items():
            priority, share = named(account)
            start = int(score) + 54 * 10**14 - priority * 4 * 10**14
            order.ahead.setdefault(priority, []).append((start, share))
        for of, count in first.get("n", {}).items():
            assert len(order.ahead.get(int(of), ())) == int(count) - 10**14
        now = {int(of): int(v) - 10**14 for of, v in first.get("v", {}).items()}
        order.virtual.update({priority: v for priority, v in now.items() if v})
        assert not any(first.get(kind) for kind in "stw"), "nothing is left behind"
        for member, score in self.kept.scores.items():
            if member[0] == "%" and len(member) > 1:
                order.held[named(member[1:])] = int(score) - 10**15
        for priority, ahead in list(order.ahead.items()):
            # Of those that are ahead no more, each grant forgets two at most.
            order.ahead[priority] = sorted(each for each in ahead if each[0] > now.get(priority, 0))
            if not order.ahead[priority]:
                del order.ahead[priority]
        entries = self.redis.zrange(self.five[3], 0, -1)
        order.line.extend(sorted(entry.split(":", 2)[2] for entry in entries))
        return order

    def claims(self) -> list[str]:
        """The grants whose lease is a claim that nobody has confirmed."""
        held = self.kept.scores.items()
        return sorted(grant for grant, end in held if end < 10**15 and end % 1)

    def tombstones(self) -> set[str]:
        """What was given up, of which copies may still come."""
        after = 10**15 + int(time.time() * 1000)
        found = self.kept.scores.items()
        return {m.removeprefix("!") for m, end in found if after <= end <= 10**15 + 10**13}

    def numbers(self) -> tuple[int, int, int]:
        """Permits taken, the limit, the count."""
        known = map(self.kept.scores.get, ["used", "limit", "count"])
        used, limit, count = (0 if n is None else int(n) - 10**15 for n in known)
        return used, limit, count

    def holders(self) -> list[tuple[str, int]]:
        """The grants, sorted, as they stand there."""
        grants = [grant for grant, end in self.kept.scores.items() if end < 10**15]
        parts = (grant.rpartition(":") for grant in grants)
        return sorted((waiter, int(fence)) for waiter, _, fence in parts)

    def close(self) -> None:
        self.scripted.close(*self.five, self.value)


def named(account: str) -> tuple[int, str]:
    """The priority and the share of an account."""
    priority, _, share = account.partition(".")
    return int(priority), decode_any(f"x1%{share}:ada:1")[1].share


class Fences:
    """Fences of one side by the order of their minting: 1, 2, 3, and 0 for one never minted."""

    def __init__(self) -> None:
        self.seen: list[int] = [0]

    def learn(self, fences: Iterable[int]) -> None:
        """These were minted since, or before."""
        new = sorted({*fences} - {*self.seen})
        assert not new or new[0] > self.seen[-1], "fences increase"
        self.seen += new

    def rank(self, fence: int) -> int:
        return self.seen.index(fence)


numbers = st.integers(0, 3 * len(WAITERS) - 1)
not_after = st.sampled_from([0, 0, MINUTE, MINUTE, -MINUTE])


def crowds(waiters: Sequence[str]) -> list[list[str]]:
    """Those of one client and one form, that of a plain lock."""
    found = dict[tuple[str, Form], list[str]]()
    for waiter in waiters:
        who, form, _ = decode_any(waiter)
        if form.plain and not form.priority:
            found.setdefault((who.client, form), []).append(waiter)
    return [crowd for crowd in found.values() if len(crowd) > 1]


class Differential(RuleBasedStateMachine):
    """Each rule does the same to both sides and compares what they say."""

    server: RedisServer
    waiters: list[str]
    chance: looks.Chance
    asks_at_once: bool

    def __init__(self) -> None:
        super().__init__()
        self.shares = any(decode_any(text)[1].share for text in self.waiters)
        self.real = Scripts(self.server, shares=self.shares)
        texts = {decode_any(text)[0]: text for text in (*self.waiters, *GARBAGE)}
        self.model = Model(texts)
        forms = [decode_any(text)[1] for text in self.waiters]
        self.once = any(form.once for form in forms)
        self.downgrades = any(form.downgrades for form in forms)
        self.nodes = any(form.rule is Rule.ALIKE for form in forms)
        self.plain = any(form.plain for form in forms)
        self.crowds = crowds(self.waiters)
        self.counts = any(form.rule is not Rule.ALWAYS for form in forms)
        self.real_fences, self.model_fences = Fences(), Fences()
        self.tickets: dict[str, tuple[int, int]] = {}
        self.lately: dict[str, None] = {}
        self.tokens = itertools.count()
        self.token = "c.first"

    @initialize(looks=st.booleans())
    def all_listen(self, looks: bool) -> None:
        self.real.looks = self.chance.looks = looks
        for client in CLIENTS:
            self.come_back(client)

    @rule(client=st.sampled_from(CLIENTS))
    def come_back(self, client: str) -> None:
        self.real.listen(client)
        self.model.hear(client)

    @rule(client=st.sampled_from(CLIENTS))
    def vanish(self, client: str) -> None:
        self.real.leave(client)
        self.model.leave(client)

    def waiter(
        self, number: int, suits: Callable[[Form], bool] = lambda _: True
    ) -> tuple[str, WaiterId, Form]:
        """One of them all, of those that have asked lately, or of the holders (2), if one suits."""
        held = [as_granted(text) for text, of in self.model.grants() if of.has_client]
        for those in ((self.waiters, list(self.lately)[-6:], held)[number % 3], self.waiters):
            known = [(text, *decode_any(text)[:2]) for text in those]
            if suiting := [waiter for waiter in known if suits(waiter[2])]:
                return suiting[number // 3 % len(suiting)]
        raise AssertionError("among them all there is one")

    def stamps(self, when: int) -> tuple[int, int]:
        """So many µs from now, by the clock of each side; 0 is no time at all."""
        return (now() + when, self.model.began + when) if when else (0, 0)

    @rule(
        number=numbers,
        ttl=st.sampled_from([30_000, 60_000]),
        how=st.sampled_from(["new", "new", "new", "old", "no wait"]),
        most=st.sampled_from([0, 0, 0, 1, 2]),
        when=not_after,
    )
    def acquire(self, number: int, ttl: int, how: str, most: int, when: int) -> None:
        waiter, who, form = self.waiter(number)
        self.lately.pop(waiter, None)
        self.lately[waiter] = None
        old = self.tickets.get(waiter, (0, 0)) if how == "old" else (0, 0)
        tickets = (-1, 0) if how == "no wait" else old
        times = self.stamps(when)
        real = self.real.acquire(waiter, ttl, tickets[0], most, times[0])
        model = run_copy(
            self.model,
            Acquire(
                NAME,
                who,
                form,
                ttl,
                ticket=tickets[1],
                wait=how != "no wait",
                max_waiters=most,
            ),
            times[1],
        )
        self.same_answer(waiter, real, model)

    def same_answer(
        self, waiter: str, real: Answer | Late | None, model: Answer | Late | None
    ) -> None:
        assert type(real) is type(model), (real, model)
        if isinstance(real, Granted) and isinstance(model, Granted):
            self.learn()
            ours, theirs = self.real_fences.rank(real.fence), self.model_fences.rank(model.fence)
            assert ours == theirs
            assert self.near(real.lease, model.lease)
            assert (real.displaced, real.claim) == (model.displaced, model.claim)
        elif isinstance(real, Queued) and isinstance(model, Queued):
            assert (real.place == 1) == (model.place == 1)
            assert self.known(real.before, real=True) == self.known(model.before, real=False)
            assert self.near(real.until, model.until)
            assert real.displaced == model.displaced
            self.tickets[waiter] = (real.ticket, model.ticket)
        elif isinstance(real, Busy) and isinstance(model, Busy):
            assert self.near(real.until, model.until)
            if len(self.real.holders()) == 1:  # of several, the first to end may be either
                self.same_parties(
                    [p for p in (real.holder,) if p], [p for p in (model.holder,) if p]
                )
        elif isinstance(real, Done) and isinstance(model, Done):
            assert self.near(real.until, model.until)
        elif isinstance(real, Late) and isinstance(model, Late):
            assert self.near(real.now // 1000, now() // 1000)
        else:
            assert real == model

    def known(
        self, before: tuple[WaiterId, int] | None, *, real: bool
    ) -> tuple[WaiterId, int] | None:
        """Who stands before it, and which grant that has."""
        self.learn()
        fences = self.real_fences if real else self.model_fences
        return None if before is None else (before[0], fences.rank(before[1]))

    # What is done most often: it takes many of these until something is handed on.

    @rule(those=st.lists(numbers, min_size=2, max_size=6))
    def come(self, those: list[int]) -> None:
        for number in those:
            self.acquire(number, 30_000, "new", 0, 0)
            self.same_pushes()
            self.same_state()

    @precondition(lambda self: self.crowds and self.asks_at_once)
    @rule(which=numbers, those=st.lists(numbers, min_size=2, max_size=6))
    def come_at_once(self, which: int, those: list[int]) -> None:
        """Newcomers of one client that ask in one call are as if each asked by itself."""
        crowd = self.crowds[which % len(self.crowds)]
        waiters = list(dict.fromkeys(crowd[number % len(crowd)] for number in those))
        if len(waiters) < 2:
            return
        known = set(waiters) & {*self.model.queue(), *(text for text, _ in self.model.holders())}
        answers = self.real.acquire_several(waiters, 30_000)
        for waiter, real in zip(waiters, answers, strict=True):
            self.lately.pop(waiter, None)
            self.lately[waiter] = None
            who, form, _ = decode_any(waiter)
            model = self.model.run(Acquire(NAME, who, form, 30_000))
            if known and isinstance(model, Queued) and isinstance(real, Queued) and not real.before:
                # A copy that comes late: who stands before whom need not be said.
                model = model._replace(before=None)
            self.same_answer(waiter, real, model)

    @rule(those=st.lists(numbers, min_size=1, max_size=3))
    def go(self, those: list[int]) -> None:
        for number in those:
            self.release(3 * (number // 3) + 2, True, True, False, 0)
            self.same_pushes()
            self.same_state()

    def held(self, waiter: str) -> tuple[int, int]:
        """The fence of its grant on each side, or one that there never was."""
        as_now = (waiter, "s" + waiter[1:])
        real = next((f for w, f in self.real.holders() if w in as_now), 12345)
        model = next((f for w, f in self.model.holders() if w in as_now), 12345)
        return real, model

    @precondition(lambda self: self.nodes)
    @rule()
    def make_fence(self) -> None:
        self.learn()
        self.real_fences.learn([self.real.make_fence()])
        self.model_fences.learn([self.model.run(MakeFence(NAME))])

    @precondition(lambda self: self.once)
    @rule(
        number=numbers,
        remember=st.sampled_from([20_000, 60_000]),
        tombstone_until=st.sampled_from([0, 0, MINUTE, -MINUTE]),
    )
    def finish(self, number: int, remember: int, tombstone_until: int) -> None:
        waiter, who, form = self.waiter(number, lambda form: form.once)
        real, model = self.held(waiter)
        times = self.stamps(tombstone_until)
        answer = self.real.finish(waiter, real, remember, tombstone_until=times[0])
        finish = Finish(NAME, who, form, model, remember)
        assert answer == self.model.run(finish, times[1])

    @rule(
        number=numbers,
        exact=st.booleans(),
        entered=st.sampled_from([True, True, False]),
        lost=st.booleans(),
        tombstone_until=st.sampled_from([0, 0, 0, MINUTE, -MINUTE]),
    )
    def release(
        self, number: int, exact: bool, entered: bool, lost: bool, tombstone_until: int
    ) -> None:
        waiter, who, form = self.waiter(number)
        fences = self.held(waiter) if exact else (0, 0)
        times = self.stamps(tombstone_until)
        how = {"entered": entered, "lost": entered and lost}
        real = self.real.release(waiter, fences[0], **how, tombstone_until=times[0])
        model = self.model.run(Release(NAME, who, form, fences[1], **how), times[1])
        assert real == model

    @precondition(lambda self: self.plain)
    @rule(number=numbers, count=st.integers(1, 3), exact=st.booleans(), when=not_after)
    def report_handoff(self, number: int, count: int, exact: bool, when: int) -> None:
        """From a holder, or from one that is none, to those of its kind that wait, or to others."""
        waiter, who, form = self.waiter(number, lambda form: form.plain)
        kind = waiter.rpartition(":")[0]
        others = (text for text in (*self.model.queue(), *self.waiters) if text != waiter)
        through = [text for text in others if text.rpartition(":")[0] == kind][:count]
        if not through:
            return
        real, model = self.held(waiter) if exact else (12345, 12345)
        times, those = self.stamps(when), [decode_any(text)[0] for text in through]
        passed = ReportHandoff(NAME, form, who, model, those[-1], model + len(those), tuple(those))
        answer = self.real.report_handoff(waiter, real, through, form.claim, times[0])
        assert self.alike(answer, run_copy(self.model, passed, times[1]))

    @rule(text=st.sampled_from(GARBAGE))
    def intrude(self, text: str) -> None:
        """Something that nobody can read stands in the queue."""
        state, (waiter, form, _) = self.model.state, decode_any(text)
        if state.holders and waiter not in state.waiting:
            ticket = state.queue[-1][0] + 1 if state.queue else 1
            state.enqueue(ticket, waiter, form)
            real = self.real.redis.zrange(self.real.keys[1], -1, -1, withscores=True)
            self.real.put(self.real.keys[1], text, real[0][1] + 1 if real else 1)
            self.real.redis.pexpire(self.real.keys[1], 300_000)

    @precondition(lambda self: self.downgrades)
    @rule(number=numbers)
    def downgrade(self, number: int) -> None:
        waiter, who, form = self.waiter(number, lambda form: form.downgrades)
        real, model = self.held(waiter)
        assert self.real.downgrade(waiter, real) == self.model.run(
            Downgrade(NAME, who, form, model)
        )

    @precondition(lambda self: self.waiters in (PERMITS, TENANTS_OF_PERMITS))
    @rule(
        limit=st.integers(0, 4),
        declared=st.sampled_from([3, 3, 4]),
        again=st.booleans(),
        when=not_after,
    )
    def resize(self, limit: int, declared: int, again: bool, when: int) -> None:
        token = self.token if again else f"c.{next(self.tokens)}"
        self.token, times = token, self.stamps(when)
        real = self.real.resize(declared, limit, 90_000, token, times[0])
        resize = Resize(NAME, declared, limit, 90_000, token=token)
        model = run_copy(self.model, resize, times[1])
        assert self.alike(real, model)

    @precondition(lambda self: self.waiters is WATCHERS)
    @rule(
        count=st.integers(0, 5),
        token=st.sampled_from(["t:1", "t:2", "t:3", "t:4"]),
        declared=st.sampled_from([0, 0, 2, 3]),
        value=st.text(),
        when=not_after,
    )
    def post(self, count: int, token: str, declared: int, value: str, when: int) -> None:
        token = "" if count else token
        times = self.stamps(when)
        real = self.real.post(count, token, declared, value, 90_000, not_after=times[0])
        model = run_copy(
            self.model,
            Post(
                NAME,
                count,
                token=token,
                declared=declared,
                value=value,
                remember=90_000,
            ),
            times[1],
        )
        assert self.alike(real, model)
        assert self.real.read() == self.model.run(ReadPosted(NAME))

    @rule(ttl=st.sampled_from([0, 20_000, 90_000]), stranger=numbers, when=not_after)
    def renew(self, ttl: int, stranger: int, when: int) -> None:
        text, who, form = self.waiter(stranger)
        real = [(as_granted(waiter), fence, ttl) for waiter, fence in self.real.holders()]
        real.append((text, 12345, ttl))
        model = [
            Renewal(NAME, holder.grant.waiter, holder.form, holder.grant.fence, ttl)
            for _, holder in self.model.grants()
        ]
        model.append(Renewal(NAME, who, form, 12345, ttl))
        times = self.stamps(when)
        renewed = self.real.renew(real, times[0])
        assert self.alike(renewed, run_copy(self.model, Renew(model), times[1]))

    @rule(when=not_after)
    def request(self, when: int) -> None:
        times = self.stamps(when)
        real = self.real.request(times[0])
        model = run_copy(self.model, RequestRelease(NAME), times[1])
        # The machine can only say who is there, and takes the blind one for that. Redis says how
        # many received it, which counts for the blind one as for any other.
        if not isinstance(model, Late) and not self.model.hears(BLIND):
            ends = (of.end for _, of in self.model.grants() if of.client == BLIND)
            model -= sum(end > self.model.began // 1000 for end in ends)
        assert self.alike(real, model)

    @staticmethod
    def alike(real: object, model: object) -> bool:
        """Whether both did the same, or both came too late."""
        return isinstance(model, Late) if isinstance(real, Late) else real == model

    @rule(waiters=st.booleans())
    def status(self, waiters: bool) -> None:
        real, model = (
            self.real.status(waiters=waiters),
            self.model.run(ReadStatus(NAME, waiters=waiters)),
        )
        self.same_parties(real.holders, model.holders)
        self.same_parties(real.waiters, model.waiters)
        assert real.more_holders == model.more_holders
        assert self.near(int(1000 * real.closed), int(1000 * model.closed))
        assert real.limit == model.limit

    def near(self, real: int, model: int) -> bool:
        """Whether two durations are alike, but for the time that this example has taken so far.

        Those that are given here differ by ten seconds at least.
        """
        return abs(real - model) < 8000 + (now() - self.model.began) // 1000

    def same_parties(self, real: Sequence[Participant], model: Sequence[Participant]) -> None:
        self.learn()
        assert [self.told(p, self.real_fences) for p in real] == [
            self.told(p, self.model_fences) for p in model
        ]
        for ours, theirs in zip(real, model, strict=True):
            assert self.near(round(1000 * ours.remaining), round(1000 * theirs.remaining))
            if ours.client in CLIENTS:  # others stand where they were put
                assert self.near(round(1000 * ours.since), round(1000 * theirs.since))

    @staticmethod
    def told(party: Participant, fences: Fences) -> tuple[object, ...]:
        """What is said of a party, but for times and where it runs, which nobody has said here."""
        fence = fences.rank(party.fence)
        same = (party.client, party.seq, party.place, party.shared, party.permits, party.alive)
        return (fence, *same)

    @rule(which=st.sampled_from(["stale", "first", "all"]))
    def break_(self, which: str) -> None:
        real = [fence for _, fence in self.real.holders()]
        model = [fence for _, fence in self.model.holders()]
        if which != "all":
            real, model = ([12345], [12345]) if which == "stale" else (real[:1], model[:1])
        assert self.real.break_(real) == self.model.run(Break(NAME, model))

    @rule(every=st.booleans())
    def end_the_lease(self, every: bool) -> None:
        # In the order in which they were granted, a millisecond apart: those of one millisecond
        # have no order that both sides share.
        claims, first = self.real.claims(), None if every else 1
        real = sorted(self.real.holders(), key=lambda grant: grant[1])[:first]
        for ended, (waiter, fence) in enumerate(real, start=LONG_AGO):
            member = f"{waiter}:{fence}"
            claim = 0.5 if member in claims else 0
            self.real.put(self.real.keys[0], member, ended + claim)
        held = self.model.state.holders
        model = sorted(held.values(), key=lambda holder: holder.grant.fence)[:first]
        for ended, holder in enumerate(model, start=LONG_AGO):
            held.prolong(holder, ended)

    def learn(self) -> None:
        """What was minted on each side since."""
        real = (*self.real.holders(), *(push[1:] for push in self.real.log))
        model = (*self.model.holders(), *(push[1:] for push in self.model.log))
        self.real_fences.learn(grant[1] for grant in real)
        self.model_fences.learn(grant[1] for grant in model)

    @invariant()
    def same_state(self) -> None:
        self.learn()
        real = self.ranked(self.real.holders(), self.real_fences)
        assert real == self.ranked(self.model.holders(), self.model_fences)
        marked = (grant.rpartition(":") for grant in self.real.claims())
        claims = [(waiter, int(fence)) for waiter, _, fence in marked]
        assert self.ranked(claims, self.real_fences) == self.ranked(
            self.model.claims(), self.model_fences
        )
        assert self.real.tombstones() == self.model.tombstones()
        assert self.real.kept.queue == self.model.queue()
        if self.counts:
            used, limit, count = self.real.numbers()
            assert (used, max(0, limit), count) == self.model.numbers()
        else:
            assert all("s" not in w[0] for w, _ in real) or all(w[0] == "s" for w, _ in real)
        if self.shares:
            assert self.real.order() == self.model.order()

    @staticmethod
    def ranked(grants: Iterable[tuple[str, int]], fences: Fences) -> list[tuple[str, int]]:
        return sorted((waiter, fences.rank(fence)) for waiter, fence in grants)

    @invariant()
    def same_pushes(self) -> None:
        self.learn()
        # Each client's pushes are in order; between clients there is none.
        for side in (self.real, self.model):
            side.log.sort(key=lambda push: (push[1].split(":")[1], push[2]))
        real = [(*p[:2], self.real_fences.rank(p[2]), *p[3:]) for p in self.real.log]
        model = [(*p[:2], self.model_fences.rank(p[2]), *p[3:]) for p in self.model.log]
        assert real == model
        self.real.log.clear()
        self.model.log.clear()

    @invariant()
    def every_key_expires(self) -> None:
        for key, lasts in zip(
            (*self.real.five, self.real.value), self.real.kept.expiries, strict=True
        ):
            assert lasts != -1, f"{key} has no expiry"

    def teardown(self) -> None:
        self.real.close()


class Key(NamedTuple):
    """What was to be detached with a key."""

    key: str
    token: str
    """The text of the waiter of the detached grant."""
    waiter: str
    who: WaiterId
    form: Form
    fences: tuple[int, int]
    """On each side."""


class HandingOn(Differential):
    """The same, and grants are detached, adopted and discarded."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = list[Key]()
        self.adopters = dict[str, str]()
        """Who has asked for each key last."""

    @rule(
        those=st.lists(numbers, min_size=1, max_size=3), adopts=st.sampled_from([True, True, False])
    )
    def go(self, those: list[int], adopts: bool) -> None:
        """Instead of a release, most often, the grant is handed on; so the queue waits."""
        for number in those:
            if number % 5 == 0:
                super().go([number])
                continue
            if self.keys and not any(of.has_client for _, of in self.model.grants()):
                self.adopt(0, number % 2 == 0, 30_000, 0)
            if not self.model.state.holders:
                self.acquire(number, 30_000, "no wait", 0, 0)
            self.detach(number, False, 30_000)
            self.same_state()
            if adopts:
                self.adopt(0, number % 2 == 0, 30_000, 0)
                self.same_state()

    def key(self, number: int) -> Key:
        """One of the last of them, most often."""
        last = self.keys if number % 4 == 1 else self.keys[-2:]
        return last[-1 - number // 4 % len(last)]

    @rule(
        number=numbers,
        again=st.sampled_from([False, False, True]),
        ttl=st.sampled_from([30_000, 60_000]),
    )
    def detach(self, number: int, again: bool, ttl: int) -> None:
        """A grant, or once more what was to be detached before."""
        if again and self.keys:
            key = self.key(number)
        else:
            waiter, who, form = self.waiter(3 * (number // 3) + 2 if number % 4 else number)
            text = _detached(form, name := f"k{len(self.keys)}")
            key = Key(name, text, waiter, who, form, self.held(waiter))
            self.keys.append(key)
            self.model.texts[detached(name)] = text
        real, model = key.fences
        asked = Detach(NAME, key.who, key.form, model, key.key, ttl)
        assert self.real.detach(key.waiter, real, key.token, ttl) == self.model.run(asked)

    @precondition(lambda self: self.keys)
    @rule(
        number=numbers, again=st.booleans(), ttl=st.sampled_from([30_000, 60_000]), when=not_after
    )
    def adopt(self, number: int, again: bool, ttl: int, when: int) -> None:
        """By who has asked for it last, or by another."""
        key = self.key(number)
        waiter = self.adopters.get(key.key, "")
        if not (again and waiter):
            client = CLIENTS[number // 2 % len(CLIENTS)]
            who = WaiterId(client, 1000 + next(self.tokens))
            waiter = self.adopters[key.key] = encode(who, key.form, blind=client == BLIND)
            self.model.texts[who] = waiter
        (real, model), times = key.fences, self.stamps(when)
        who, form, _ = decode_any(waiter)
        adopted = self.real.adopt(key.token, real, waiter, ttl, times[0])
        asked = Adopt(NAME, who, form, model, key.key, ttl)
        self.same_answer(waiter, adopted, run_copy(self.model, asked, times[1]))

    @precondition(lambda self: self.keys)
    @rule(number=numbers, tombstone_until=st.sampled_from([0, MINUTE, MINUTE, -MINUTE]))
    def discard(self, number: int, tombstone_until: int) -> None:
        key, times = self.key(number), self.stamps(tombstone_until)
        was = self.real.release(key.token, key.fences[0], tombstone_until=times[0])
        asked = Discard(NAME, detached(key.key), key.form, key.fences[1])
        assert was == self.model.run(asked, times[1])

    @precondition(lambda self: self.adopters)
    @rule(number=numbers)
    def give_up(self, number: int) -> None:
        """An adoption, of which copies may come later."""
        waiter, times = self.adopters.get(self.key(number).key), self.stamps(MINUTE)
        if waiter is not None:
            who, form, _ = decode_any(waiter)
            was = self.real.release(waiter, 0, entered=False, tombstone_until=times[0])
            asked = Release(NAME, who, form, 0, entered=False)
            assert was == self.model.run(asked, times[1])


def as_granted(text: str) -> str:
    """A waiter as it was granted, and as its client knows it."""
    return "x" + text[1:] if decode_any(text)[1].downgrades else text


@pytest.mark.timeout(60 + EXAMPLES)
@pytest.mark.parametrize(
    "those",
    [WAITERS, READERS, TO_BE_DONE, PERMITS, PARTIES, WATCHERS, NODES, TENANTS, TENANTS_OF_PERMITS],
    ids=[
        *("locks", "readers", "to_be_done", "permits", "parties", "watchers", "nodes"),
        *("tenants", "tenants_of_permits"),
    ],
)
def test_redis_scripts_agree_with_the_machine(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, those: list[str]
) -> None:
    """Whatever is done in whatever order, Lua on Redis and Python in memory do the same."""
    agree(redis_server, monkeypatch, those)


@pytest.mark.timeout(60 + EXAMPLES)
@pytest.mark.parametrize(
    "those",
    [READERS, PERMITS, PARTIES, WATCHERS, NODES, TENANTS_OF_PERMITS],
    ids=["readers", "permits", "parties", "watchers", "nodes", "tenants_of_permits"],
)
def test_redis_scripts_agree_with_the_machine_if_few_enter_at_once(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, those: list[str]
) -> None:
    """The same, if one enters in each step, and the next is told to ask."""
    monkeypatch.setattr(protocol, "GRANTS", 1)
    agree(redis_server, monkeypatch, those)


@pytest.mark.timeout(60 + EXAMPLES)
@pytest.mark.parametrize(
    "those",
    [WAITERS, READERS, TO_BE_DONE, PERMITS, PARTIES, WATCHERS, NODES, TENANTS, TENANTS_OF_PERMITS],
    ids=[
        *("locks", "readers", "to_be_done", "permits", "parties", "watchers", "nodes"),
        *("tenants", "tenants_of_permits"),
    ],
)
def test_redis_scripts_agree_with_the_machine_if_done_in_parts(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, those: list[str]
) -> None:
    """The same, if each step looks at one waiter of the queue, and leaves the rest to the next."""
    monkeypatch.setattr(protocol, "GRANTS", 1)
    monkeypatch.setattr(protocol, "PART", 1)
    # What several that ask in one call leave is done behind all of their answers; the machine does
    # it behind each. So their answers differ, and their order in the queue does not.
    agree(redis_server, monkeypatch, those, at_once=False)


@pytest.mark.timeout(60 + EXAMPLES)
@pytest.mark.parametrize(
    "those",
    [WAITERS, READERS, TO_BE_DONE, PERMITS],
    ids=["locks", "readers", "to_be_done", "permits"],
)
def test_redis_scripts_agree_with_the_machine_if_grants_are_handed_on(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, those: list[str]
) -> None:
    """The same, if grants are detached, adopted and discarded beside all else."""
    agree(redis_server, monkeypatch, those, of=HandingOn)


LOCK, ANOTHER = "x10000:ada:1", "x10000:bob:1"
TOKEN = _detached(decode_any(LOCK)[1], "k")


@pytest.fixture
def real(redis_server: RedisServer) -> Iterator[Scripts]:
    """The scripts, beside nothing."""
    real = Scripts(redis_server)
    yield real
    real.close()


def fence_of(answer: object) -> int:
    """That of a grant."""
    assert isinstance(answer, Granted)
    return answer.fence


def test_late_copy_of_a_detach_or_an_adopt_that_was_given_up_has_no_effect(real: Scripts) -> None:
    """Nobody would have the key, or know of the grant."""
    fence = fence_of(real.acquire(LOCK, 60_000, 0, 0))
    real.release(TOKEN, fence, tombstone_until=now() + MINUTE)
    assert real.detach(LOCK, fence, TOKEN, 60_000) == WAS_ABSENT
    assert real.holders() == [(LOCK, fence)]
    other = _detached(decode_any(LOCK)[1], "other")
    assert real.detach(LOCK, fence, other, 60_000) == WAS_HOLDER
    real.release(ANOTHER, 0, entered=False, tombstone_until=now() + MINUTE)
    assert real.adopt(other, fence, ANOTHER, 60_000) is None
    late = real.adopt(other, fence, "x10000:cyd:1", 60_000, now() - MINUTE)
    assert isinstance(late, Late)
    assert real.holders() == [(other, fence)]


def test_end_of_a_detached_grant_leaves_no_waiters_to_look_for(
    real: Scripts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end of a lease removes the waiters of its client; here it has none, so none is sought."""
    monkeypatch.setattr(protocol, "PART", 1)
    real.looks = real.goes_on = False
    real.listen("bob")
    fence = fence_of(real.acquire(LOCK, 60_000, 0, 0))
    assert real.detach(LOCK, fence, TOKEN, 60_000) == WAS_HOLDER
    for seq in range(3):
        real.acquire(f"x10000:bob:{seq}", 60_000, 0, 0)
    real.put(real.keys[0], f"{TOKEN}:{fence}", LONG_AGO)
    real.acquire("x10000:bob:3", 60_000, 0, 0)
    assert not real.rests
    assert [waiter for waiter, _ in real.holders()] == ["x10000:bob:0"]


def test_end_of_a_detached_grant_notifies_nobody(real: Scripts) -> None:
    """Its client is a key, which is a secret; a channel has none."""
    real.listen("=k")
    for number in range(2):
        fence = fence_of(real.acquire(f"x10000:ada:{number}", 60_000, 0, 0))
        assert real.detach(f"x10000:ada:{number}", fence, TOKEN, 60_000) == WAS_HOLDER
        assert real.request() == 0
        real.put(real.keys[0], f"{TOKEN}:{fence}", LONG_AGO)
    fence = fence_of(real.acquire(LOCK, 60_000, 0, 0))
    assert real.detach(LOCK, fence, TOKEN, 60_000) == WAS_HOLDER
    assert real.break_([fence]) == 1
    assert not real.log


def test_client_whose_id_begins_with_a_dash_is_told_of_its_lease(real: Scripts) -> None:
    """One in 64 does; only the dash alone is nobody."""
    real.listen("-eve")
    fence = fence_of(real.acquire("x10000:-eve:1", 60_000, 0, 0))
    assert real.request() == 1
    assert real.break_([fence]) == 1
    assert [kind for kind, *_ in real.log] == ["requested", "lost"]


def test_keys_of_a_name_outlast_the_lease_of_what_is_handed_on(real: Scripts) -> None:
    """They end by themselves, but not before: with the fence, too, for whoever comes then."""
    form = "s1000*1/3"
    fence = fence_of(real.acquire(f"{form}:ada:1", 1000, 0, 0))
    token = _detached(decode_any(f"{form}:ada:1")[1], "k")
    assert real.detach(f"{form}:ada:1", fence, token, 10 * KEPT) == WAS_HOLDER
    assert real.kept.expiries[0] > 10 * KEPT
    assert real.adopt(token, fence, f"{form}:bob:1", 20 * KEPT)
    assert real.kept.expiries[0] > 20 * KEPT


def agree(
    redis_server: RedisServer,
    monkeypatch: pytest.MonkeyPatch,
    those: list[str],
    *,
    at_once: bool = True,
    of: type[Differential] = Differential,
) -> None:
    """Have them do the same, and compare; ``at_once``: also of several that ask in one call."""

    class OnThisServer(of):  # type: ignore[valid-type, misc]  # a class all the same
        server = redis_server
        waiters = those
        chance = looks.decided(monkeypatch)
        asks_at_once = at_once

    run_state_machine_as_test(
        OnThisServer,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("terms", ["+300000", "~300000", "@86400000"])
def test_machine_keeps_the_limit_until_after_the_last_terms_have_ended(terms: str) -> None:
    """The machine forgets, as the scripts do, after the last grant can have closed: not before."""
    seconds = 1_800_000_000.0
    server = MemoryServer(clock=lambda: seconds)
    waiter, form, _ = decode_any(f"s10000*3/3{terms}:ada:1")
    other = WaiterId("bob", 1)
    server.run(Acquire(NAME, waiter, form, 10_000))
    assert server.run(Resize(NAME, 3, 4, 0)) == 3
    seconds += 100  # its lease has ended, and nobody has asked for more than a minute
    answer = server.run(Acquire(NAME, other, form, 10_000, wait=False))
    assert isinstance(answer, Busy)
    assert server.run(ReadStatus(NAME)).limit == 4
    assert server.run(ReadStatus(NAME)).closed > 100
    seconds += 2 * 86_400
    assert server.run(ReadStatus(NAME)).limit is None
