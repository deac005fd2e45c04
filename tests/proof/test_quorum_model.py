"""The scripts of a server that votes against the state machine: the same answers, the same state.

As in `test_model`, which does this for the single server: leases are long, and end by being moved
into the past on both sides.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from aiolock import protocol
from aiolock.protocol import AskAgain, GrantLost, GrantPushed, Late, ReleaseRequested, WaiterId
from aiolock.stores._member import (
    ALONE,
    GONE,
    UNBOUNDED,
    DoneMarker,
    DoneRecord,
    InQueue,
    MemberEvent,
    NotVoting,
    Refused,
    Voted,
    VoteInquired,
    VoteRequest,
)
from aiolock.stores.quorum._server import QuorumServerStep
from aiolock.stores.quorum._server_state import QuorumServerState
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis import _voting as voting
from aiolock.stores.redis._codec import decode_any
from aiolock.stores.redis._rest import left
from aiolock.stores.redis._scripts import Script
from aiolock.stores.redis._voting import VoteNames, VoteText
from tests.support import looks
from tests.support.scripted import ScriptedServer
from tests.support.servers import RedisServer

EXAMPLES = int(os.environ.get("MODEL_EXAMPLES", "25"))
"""Sequences; twenty times as many where the scripts were changed."""
NAME = "the {name}"
CLIENTS = ("ada", "bob", "cyd")
AN_AGE = 10**14
FORMS = (
    "x10000",
    "x10000",
    "xf5000",
    "x7000!2",
    "x7000!-9",
    "x10000~20000",
    "x10000+30000",
    f"x9000@{AN_AGE}",
    "xq10000,7",  # of a later version
    "xo10000",
    "xo7000",
    "s8000^5",
    "sf8000^9",
    "s10000",
    "s10000",
    "s10000",
    "sf7000",
    "s10000~20000",
    "s10000+30000",
    "s7000!-9",
)
WAITERS = [f"{form}:{client}:{seq}" for seq, form in enumerate(FORMS) for client in CLIENTS]
MINUTE = 60_000
FIRST = 1_790_000_000_000_000
"""A ticket, and so a number: what is minted here is above that."""

Told = tuple[str, str, int]


def now() -> int:
    """The time, in ms."""
    return int(time.time() * 1000)


class Scripts:
    """A server that votes, by its scripts."""

    def __init__(self, server: RedisServer) -> None:
        self.names = VoteNames(f"model-{uuid.uuid4().hex[:8]}")
        self.scripted = ScriptedServer(server.port, self.names.channels)
        self.redis = self.scripted.redis
        self.listen, self.leave = self.scripted.listen, self.scripted.leave
        self.keys = self.names.keys(NAME)
        self.votes, self.queue, self.last, self.marker = self.keys
        self.value = self.names.value(NAME)
        self.log: list[Told] = []
        self.looks: bool | None = None
        """Whether newcomers look for dead waiters; None: now and then."""
        self.goes_on = True
        """Whether what a call has left is done at once."""
        self.rests: list[list[bytes]] = []
        """What is still to be done, in order."""

    def call(self, script: Script, *values: object, keys: list[str] | None = None) -> Any:
        """The decoded reply; the pushes are in the log."""
        keys = self.keys if keys is None else keys
        reply = self.scripted.evaluate(self._source(script), keys, *values)
        if isinstance(reply, Late):
            return reply
        reply = self._without_rest(reply)
        self._hear()
        if script is voting.RELEASE and isinstance(reply, bytes):
            self._heard(reply.decode())
        if self.goes_on:
            self.go_on()
        return script.decode(reply)

    def go_on(self) -> int:
        """Do all that was left to further calls; how many these were."""
        calls = 0
        while self.rests:
            source = self._source(scripts.VOTES_GO_ON)
            reply = self.scripted.raw.eval(source, *self.rests.pop(0))
            self._without_rest(reply)
            self._hear()
            calls += 1
        return calls

    def _without_rest(self, reply: Any) -> Any:
        if (rest := left(reply)) is None:
            return reply
        assert rest.of_votes
        self.rests += rest.calls
        return rest.reply

    def _source(self, script: Script) -> str:
        if self.looks is None:
            return script.source
        return looks.source(script, looks=self.looks, grants=protocol.GRANTS, part=protocol.PART)

    def _hear(self) -> None:
        """Write down the pushes that have come."""
        for _, push in self.scripted.pushes():
            self._heard(push)

    def _heard(self, push: str) -> None:
        kind, *rest = push.split(" ")
        if kind == "g":
            self.log.append(("granted", rest[0], int(rest[1])))
        elif kind == "i":
            self.log.append(("inquired", rest[0], int(rest[1])))
        elif kind == "d":
            self.log.append(("done", "", 0))
        elif kind == "r":
            vote = VoteText.read(rest[0])
            self.log.append(("requested", vote.waiter, vote.number))
        else:
            waiter, _, number = rest[0].rpartition(":")
            self.log.append((rest[1], waiter, int(number)))

    def vote(  # noqa: PLR0917  # as the machine's
        self, waiter: str, ticket: int, ttl: int, proposal: int, wait: bool, most: int, late: int
    ) -> Any:
        kept, remembered = ttl + 60_000 + decode_any(waiter)[1].closes, ttl + 600_000
        terms = (ttl, kept, remembered, most, int(wait))
        values = (self.names.channels, *terms, waiter, ticket, proposal, late)
        return self.call(voting.VOTE, *values)

    def out(self) -> dict[tuple[int, WaiterId], tuple[VoteText, str, float]]:
        """The votes that are out as they are written, and their scores, by number and waiter."""
        found = self.redis.zrangebyscore(self.votes, "-inf", f"({10**15}", withscores=True)
        read = [(VoteText.read(text), text, score) for text, score in found]
        return {(each[0].number, decode_any(each[0].waiter)[0]): each for each in read}

    def tombstones(self) -> set[str]:
        after = 10**15 + now()
        found = self.redis.zrangebyscore(self.votes, after, 10**15 + 10**13)
        return {member.removeprefix("!") for member in found}

    def close(self) -> None:
        self.scripted.close(*self.keys, self.value)


class Model:
    """The same, by the machine."""

    def __init__(self) -> None:
        self.state = QuorumServerState()
        self.began = now()
        self.not_voting = 0
        self.listening = set[str]()
        self.log: list[Told] = []

    def step(self) -> QuorumServerStep:
        return QuorumServerStep(
            NAME, self.state, self.began * 1000, self.listening.__contains__, self.not_voting
        )

    def done(self, step: QuorumServerStep, answered: str = "") -> None:
        """Its pushes, as they are written down; with the answer comes a grant, if it is one."""
        assert not step.rest, "it does all in one step, as the scripts do"
        for client, event in step.pushes:
            alone = isinstance(event, GrantPushed) and not event.form.shared
            if client in self.listening or (client == answered and alone):
                self.log.append(self._told(event))

    @staticmethod
    def _told(event: MemberEvent) -> Told:
        match event:
            case AskAgain():
                return ("done", "", 0)
            case GrantPushed(_, waiter, form, number):
                assert form == decode_any(TEXTS[waiter])[1]
                return ("granted", TEXTS[waiter], number)
            case GrantLost(_, waiter, number, reason):
                return (reason, TEXTS[waiter], number)
            case ReleaseRequested(_, waiter, number):
                return ("requested", TEXTS[waiter], number)
            case VoteInquired(_, waiter, number):
                return ("inquired", TEXTS[waiter], number)
            case _:
                raise AssertionError(f"no event of the machine's: {event}")


TEXTS = {decode_any(text)[0]: text for text in WAITERS}

waiters = st.sampled_from(WAITERS)


class Differential(RuleBasedStateMachine):
    """Each rule does the same to both sides and compares their answers."""

    server: RedisServer
    chance = looks.Chance()

    def __init__(self) -> None:
        super().__init__()
        self.real, self.model = Scripts(self.server), Model()
        self.tickets: dict[str, int] = {}
        self.ticket = FIRST
        self.ended = 1000

    @initialize(looks=st.booleans())
    def begin(self, *, looks: bool = False) -> None:
        self.real.looks = self.chance.looks = looks
        self.speak(0)
        for client in CLIENTS:
            self.come_back(client)

    @rule(client=st.sampled_from(CLIENTS))
    def come_back(self, client: str) -> None:
        self.real.listen(client)
        self.model.listening.add(client)

    @rule(client=st.sampled_from(CLIENTS))
    def vanish(self, client: str) -> None:
        self.real.leave(client)
        self.model.listening.discard(client)

    @rule(left=st.sampled_from([0, 0, 0, 0, MINUTE, -1]))
    def speak(self, left: int) -> None:
        """It votes, or not for a while, or knows of no quorum."""
        self.model.not_voting = left
        if left < 0:
            self.real.redis.delete(self.real.marker)
        else:
            self.real.redis.set(self.real.marker, f"run {now() + left if left else 0} charter")

    def vote_request(self, text: str, *, early: bool = False) -> VoteRequest:
        waiter, form, _ = decode_any(text)
        if text not in self.tickets:
            self.ticket += 100
            ahead = -100 * (waiter.seq % 3) if early else 0  # it asked before one that is here
            # Two waiters have one ticket only if their texts sort as the waiters do.
            alike = 0 if waiter.seq < 2 else waiter.seq
            own = self.ticket + ahead + alike + form.priority * 10**14
            self.tickets[text] = own
        return VoteRequest(NAME, waiter, form, self.tickets[text])

    @rule(
        text=waiters,
        early=st.booleans(),
        ttl=st.sampled_from([30_000, MINUTE, 20 * MINUTE]),
        proposal=st.sampled_from([0, 0, 1, -20, 300]),
        wait=st.sampled_from([True, True, True, False]),
        most=st.sampled_from([0, 0, 0, 1, 2]),
        late=st.sampled_from([0, 0, MINUTE, -MINUTE]),
    )
    def vote(  # noqa: PLR0917  # as the machine's
        self, text: str, early: bool, ttl: int, proposal: int, wait: bool, most: int, late: int
    ) -> None:
        request = self.vote_request(text, early=early)
        proposed = self.ticket + proposal if proposal else 0
        not_after = (now() + late) * 1000 if late else 0
        real = self.real.vote(text, request.ticket, ttl, proposed, wait, most, not_after)
        if late < 0:
            assert isinstance(real, Late)
            return
        step = self.model.step()
        model = step.vote(request, ttl, proposed, wait=wait, most=most)
        self.model.done(step)
        if request.form.counts and isinstance(real, InQueue):  # it waits for no lease
            assert real._replace(now=0) == model._replace(now=0)
        else:
            self.same(real, model)

    def near(self, real: int, model: int) -> bool:
        """Whether two times are alike, but for what this example has taken so far."""
        return abs(real - model) < 8000 + now() - self.model.began

    def same(self, real: Any, model: Any) -> None:
        assert type(real) is type(model), (real, model)
        if isinstance(real, Voted):
            assert real.number == model.number
            assert self.near(real.lease, model.lease)
        elif isinstance(real, InQueue):
            assert real.place == model.place
            assert self.near(real.until, model.until)
            out = self.model.state.out
            if real.holder is not None:
                assert real.place == 0
                who = real.holder.client, real.holder.seq
                assert (who, real.holder.fence) in [(each.waiter, each.number) for each in out]
            elif real.place == 0:  # of several it is that which ends first
                assert not out or any(each.is_reserved for each in out)
        elif isinstance(real, NotVoting):
            assert self.near(real.left, model.left)
            assert (real.left < 0) == (model.left < 0)
        elif isinstance(real, DoneMarker):
            assert real.number == model.number
            assert self.near(real.left, model.left)
        elif not isinstance(real, Refused):
            assert real._replace(now=0) == model._replace(now=0)

    # The most frequent steps: it takes many of them until something is handed on.

    @rule(
        texts=st.lists(waiters, min_size=2, max_size=5, unique=True),
        alike=st.booleans(),
        left=st.sampled_from([0, 0, MINUTE]),
        upto=st.sampled_from(["any", "this"]),
    )
    def come_and_go(self, texts: list[str], alike: bool, left: int, upto: str) -> None:
        """Some stand in line, two perhaps with one ticket, and the holder of the vote leaves."""
        self.speak(0)
        for text in texts:
            self.vote(text, alike, 30_000, 0, True, 0, 0)
            self.same_pushes()
            self.same_state()
        self.speak(left)
        self.release(texts[0], 0, None, upto, 0, 0)
        self.same_pushes()
        self.same_state()

    def out(self, which: int = 0) -> tuple[str, int]:
        """Whose vote is out, and its number: one of them."""
        votes = [vote for vote in self.model.state.out if not vote.is_reserved]
        if not votes:
            return WAITERS[0], 12345
        vote = votes[which % len(votes)]
        return TEXTS[vote.waiter], vote.number

    @rule(
        text=waiters,
        mine=st.sampled_from([0, 1, 2, None]),
        highest=st.sampled_from([None, None, 0, 0, -5, 5, 100]),
        upto=st.sampled_from(["any", "any", "below", "this"]),
        entered=st.sampled_from([-2, -1, 0, 10_000, 30_000]),
        tombstone_until=st.sampled_from([0, 0, 0, MINUTE, -MINUTE]),
    )
    def release(  # noqa: PLR0917  # as the machine's
        self,
        text: str,
        mine: int | None,
        highest: int | None,
        upto: str,
        entered: int,
        tombstone_until: int,
    ) -> None:
        holder, number = self.out(mine or 0)
        text = text if mine is None else holder
        bound = {"any": UNBOUNDED, "below": number - 1, "this": number}[upto]
        top = 0 if highest is None else number + highest
        buried = (now() + tombstone_until) * 1000 if tombstone_until else 0
        channels = self.real.names.channels
        form = decode_any(text)[1]
        simple = int(not form.shared and not form.closes)
        values = (channels, bound, simple, text, top, entered, buried)
        real = self.real.call(voting.RELEASE, *values)
        step, waiter = self.model.step(), decode_any(text)[0]
        model = step.release(waiter, top, bound, entered=entered, tombstone_until=buried)
        self.model.done(step, waiter.client if model == 1 else "")
        assert real == model

    @rule(text=waiters, mine=st.sampled_from([0, 1, None]))
    def yield_vote(self, text: str, mine: int | None) -> None:
        holder, number = self.out(mine or 0)
        request = self.vote_request(text if mine is None else holder)
        text = TEXTS[request.waiter]
        values = (text, number, request.ticket, self.real.names.channels)
        real = self.real.call(voting.YIELD_VOTE, *values)
        step = self.model.step()
        model = step.yield_vote(request, number)
        self.model.done(step)
        self.same(real, model)

    @rule(
        text=waiters,
        mine=st.sampled_from([0, 1, 2, None]),
        off=st.sampled_from([0, 0, 0, 1]),
        ttl=st.sampled_from([0, 20_000, 90_000]),
        fence=st.sampled_from([0, 0, 40]),
        entered=st.booleans(),
    )
    def renew(  # noqa: PLR0917  # as the machine's
        self, text: str, mine: int | None, off: int, ttl: int, fence: int, entered: bool
    ) -> None:
        holder, number = self.out(mine or 0)
        text, number = text if mine is None else holder, number + off
        known = number + fence if fence else 0
        real = self.real.call(voting.RENEW, text, number, ttl, known, int(entered), 0)
        waiter = decode_any(text)[0]
        assert real == self.model.step().renew(waiter, number, ttl, known, entered=entered)

    @rule(
        text=waiters,
        mine=st.booleans(),
        off=st.sampled_from([0, 0, 0, -1, 1]),
        more=st.sampled_from([0, 1, 100]),
    )
    def reserve(self, text: str, mine: bool, off: int, more: int) -> None:
        holder, number = self.out()
        text, number = holder if mine else text, number + off
        real = self.real.call(voting.RESERVE, text, number, number + more)
        assert real == self.model.step().reserve(decode_any(text)[0], number, number + more)

    @rule(text=waiters, mine=st.sampled_from([0, 1, None]))
    def take_away(self, text: str, mine: int | None) -> None:
        text = text if mine is None else self.out(mine)[0]
        end = text[text.index(":") :]
        real = self.real.call(voting.BREAK, self.real.names.channels, end)
        step = self.model.step()
        assert real == step.take_away(decode_any(text)[0])
        self.model.done(step)

    @rule()
    def request(self) -> None:
        keys, values = [self.real.votes], (self.real.names.channels, "", "", 0)
        real = self.real.call(scripts.REQUEST, *values, keys=keys)
        step = self.model.step()
        assert real == (step.request(), None)
        self.model.done(step)

    @rule(
        text=waiters,
        mine=st.sampled_from([0, 1, 2, None]),
        off=st.sampled_from([-1, 0, 0, 5]),
        remember=st.sampled_from([0, 30_000, 90_000]),
        until=st.sampled_from([0, 0, MINUTE, -MINUTE]),
        late=st.sampled_from([0, 0, 0, -MINUTE]),
    )
    def finish(  # noqa: PLR0917  # as the machine's
        self, text: str, mine: int | None, off: int, remember: int, until: int, late: int
    ) -> None:
        holder, number = self.out(mine or 0)
        text, fence = text if mine is None else holder, max(1, number + off)
        end, not_after = now() + until if until else 0, (now() + late) * 1000 if late else 0
        channels = self.real.names.channels
        real = self.real.call(voting.FINISH, text, fence, remember, end, channels, not_after)
        if late:
            assert isinstance(real, Late)
            return
        step = self.model.step()
        model = step.finish(decode_any(text)[0], fence, remember, end)
        self.model.done(step)
        assert real == model

    @rule()
    def query_done(self) -> None:
        real: DoneRecord = self.real.call(voting.QUERY_DONE)
        not_voting = self.model.not_voting
        model = self.model.step().query_done(-1 if not not_voting else 0)
        assert (real.number, real.forgot) == (model.number, model.forgot)
        assert self.near(real.left, model.left)

    @rule(
        count=st.integers(0, 12),
        value=st.sampled_from(["", "ä", "b"]),
    )
    def post(self, count: int, value: str) -> None:
        keys = [*self.real.keys, self.real.value]
        values = (count, value, MINUTE, self.real.names.channels, 0)
        real = self.real.call(voting.POST, *values, keys=keys)
        step = self.model.step()
        assert real == step.post(count, value, MINUTE)
        self.model.done(step)

    @rule()
    def read(self) -> None:
        real = self.real.call(voting.READ, keys=[self.real.votes, self.real.value])
        model = self.model.step().read()
        assert (real.count, real.value) == (model.count, model.value)
        assert self.near(real.left, model.left) or not model.value

    @rule(which=st.integers(0, 2))
    def time_passes(self, which: int) -> None:
        """The lease of a vote that is out ends."""
        real, model = self.real.out(), self.model.state.out
        if model:
            vote = model[which % len(model)]
            _, text, score = real[vote.number, vote.waiter]
            self.ended += 1
            self.real.redis.zadd(self.real.votes, {text: self.ended + score % 1})
            self.model.state.prolong(vote, self.ended)

    @rule()
    def numbers_are_forgotten(self) -> None:
        """Not while a vote is out: the last number is kept for longer than its lease."""
        if not self.model.state.out:
            self.real.redis.delete(self.real.last)
            self.model.state.last = 0

    @invariant()
    def same_pushes(self) -> None:
        # Each client's pushes are in order; between clients there is none.
        # Of several votes it is all one whose waiter is told first.
        for side in (self.real, self.model):
            side.log.sort(
                key=lambda push: (
                    push[1].split(":")[1:2],
                    push[1] if push[0] in {"inquired", "requested"} else "",
                )
            )
        assert self.real.log == self.model.log
        self.real.log.clear()
        self.model.log.clear()

    @invariant()
    def same_state(self) -> None:
        state, out = self.model.state, self.real.out()
        assert sorted(out) == sorted((vote.number, vote.waiter) for vote in state.out)
        for vote in state.out:
            text, _, score = out[vote.number, vote.waiter]
            if vote.is_reserved:
                mode = "s" if vote.form.shared else "x"
                assert text.waiter == ("xfo0:-:1" if vote.marks else f"{mode}f0:-:0")
            else:
                assert text.waiter == TEXTS[vote.waiter]
                assert text.ticket == vote.ticket
                assert (score % 1 > 0) == vote.unsure
            assert self.near(text.granted, vote.granted)
            assert self.near(int(score), vote.end)
            assert self.real.redis.pttl(self.real.votes) > vote.end - now()
            if vote.form.shared and not vote.is_reserved:
                assert self.real.redis.pttl(self.real.last) > vote.end - now()
        line = [TEXTS[waiter] for _, waiter in state.queue]
        assert self.real.redis.zrange(self.real.queue, 0, -1) == line
        assert int(self.real.redis.get(self.real.last) or 0) == state.last
        buried = {TEXTS[each] for each, end in state.tombstones.items() if end > self.model.began}
        assert self.real.tombstones() == buried

    @invariant()
    def keys_expire(self) -> None:
        for key in (self.real.votes, self.real.queue, self.real.last):
            assert self.real.redis.pttl(key) != -1

    def teardown(self) -> None:
        self.real.close()


def test_inquiry_of_a_writer_goes_to_all_readers_behind_it(
    redis_server: RedisServer,
) -> None:
    """A writer wants the votes of all readers behind it, and of none before it."""
    real, readers = Scripts(redis_server), [f"s10000:{client}:1" for client in CLIENTS]
    for client in CLIENTS:
        real.listen(client)
    real.redis.set(real.marker, "run 0 charter")
    for ticket, text in zip((10, 30, 40), readers, strict=True):
        assert isinstance(real.vote(text, ticket, MINUTE, FIRST, True, 0, 0), Voted)
    assert real.log == []
    assert isinstance(real.vote("x10000:ada:2", 20, MINUTE, FIRST, True, 0, 0), InQueue)
    assert sorted(real.log) == [
        ("inquired", text, FIRST + number) for number, text in enumerate(readers) if number
    ]
    real.close()


def test_votes_are_kept_for_as_long_as_the_longest_lease(redis_server: RedisServer) -> None:
    """A later reader with a short lease makes the server forget no other reader."""
    real, long, short = Scripts(redis_server), "s10000:ada:1", "s10000:bob:1"
    real.redis.set(real.marker, "run 0 charter")
    assert isinstance(real.vote(long, 10, 60 * MINUTE, FIRST, True, 0, 0), Voted)
    for again in range(2):
        voted = real.vote(short, 20, MINUTE, FIRST, True, 0, 0)
        assert isinstance(voted, Voted)
        if again:
            assert real.call(voting.RENEW, short, voted.number, MINUTE, 0, 0, 0)
        assert real.redis.pttl(real.votes) > 59 * MINUTE
        assert real.redis.pttl(real.last) > 59 * MINUTE
    real.call(voting.RELEASE, real.names.channels, -1, 0, short, FIRST + 1000, 0, 0)
    assert int(real.redis.get(real.last)) == FIRST + 1000
    assert real.redis.pttl(real.last) > 59 * MINUTE
    real.close()


def test_vote_number_after_it_was_forgotten_is_as_high_as_proposed(
    redis_server: RedisServer,
) -> None:
    """The waiter that gets the vote may have asked long before the last numbers."""

    class OnThisServer(Differential):
        server = redis_server

    state, first = OnThisServer(), "x10000:bob:0"
    state.begin()
    for text in ("x10000:ada:0", first):
        state.vote(text=text, early=False, ttl=MINUTE, proposal=0, wait=True, most=0, late=0)
    state.same_pushes()
    state.time_passes(0)
    state.real.redis.delete(state.real.last)
    state.model.state.last = 0
    text = "x10000:cyd:0"
    state.vote(text=text, early=False, ttl=MINUTE, proposal=300, wait=True, most=0, late=0)
    assert ("granted", first, state.ticket + 300) in state.real.log
    state.same_pushes()
    state.same_state()
    state.teardown()


def test_release_of_a_waiting_writer_grants_the_reader_behind_it(redis_server: RedisServer) -> None:
    """A writer that gives up, between a reader that has a vote and one that stands behind it."""
    real, behind = Scripts(redis_server), "s10000:bob:1"
    for client in CLIENTS:
        real.listen(client)
    real.redis.set(real.marker, "run 0 charter")
    real.vote("s10000:ada:1", 10, MINUTE, FIRST, True, 0, 0)
    for ticket, text in ((20, "x10000:cyd:1"), (30, behind)):
        real.vote(text, ticket, MINUTE, FIRST, True, 0, 0)
    real.call(voting.RELEASE, real.names.channels, -1, 1, "x10000:cyd:1", 0, -1, 0)
    assert real.log == [("granted", behind, FIRST + 1)]
    real.close()


def test_vote_that_has_ended_keeps_no_reader_out(redis_server: RedisServer) -> None:
    """Whether or not it was removed when others leave the queue, or a vote is given back."""

    class OnThisServer(Differential):
        server = redis_server

    for leaves, votes in ((True, True), (False, True), (False, False)):
        state = OnThisServer()
        state.begin()
        for text in ("s10000:ada:13", "s10000:bob:13", "x10000:cyd:0", "s10000:bob:14"):
            state.vote(text=text, early=False, ttl=MINUTE, proposal=0, wait=True, most=0, late=0)
        state.same_pushes()
        state.time_passes(0)
        state.speak(0 if votes else MINUTE)
        if leaves:
            state.release("x10000:cyd:0", None, None, "any", -1, 0)
            assert [told[:2] for told in state.real.log] == [("granted", "s10000:bob:14")]
        else:
            state.yield_vote("s10000:bob:13", 1)
        state.same_pushes()
        state.same_state()
        state.teardown()


def test_waiter_for_a_count_may_have_several_votes(redis_server: RedisServer) -> None:
    """One that waits for a count under a name with votes gets one of those, each time it asks."""

    class OnThisServer(Differential):
        server = redis_server

    state, counts = OnThisServer(), "s8000^5:ada:11"
    state.begin()
    for writer in ("x10000:ada:0", "x10000:bob:0"):
        for text in (writer, counts):
            state.vote(text=text, early=False, ttl=MINUTE, proposal=0, wait=True, most=0, late=0)
        state.release(writer, None, None, "any", -1, 0)
        state.same_pushes()
        state.same_state()
    for which in (1, 0):
        state.yield_vote(counts, which)
        state.take_away(counts, which)
        state.same_pushes()
        state.same_state()
    state.teardown()


def test_reserve_of_shared_votes_finds_them_by_waiter_and_number(redis_server: RedisServer) -> None:
    """A vote that is shared is found by its waiter and its number, whichever of them it is."""

    class OnThisServer(Differential):
        server = redis_server

    state = OnThisServer()
    state.begin()
    for text in (readers := ("s10000:ada:13", "s10000:ada:14")):
        state.vote(text=text, early=False, ttl=MINUTE, proposal=0, wait=True, most=0, late=0)
    votes = state.model.state.out
    assert {TEXTS[vote.waiter] for vote in votes} == set(readers)
    for vote in votes:
        for number, said in ((vote.number, ALONE), (vote.number + 1000, GONE)):
            text = TEXTS[vote.waiter]
            assert state.real.call(voting.RESERVE, text, number, number) == said
            assert state.model.step().reserve(vote.waiter, number, number) == said
    state.same_state()
    state.teardown()


def test_voting_scripts_agree_with_the_machine(
    redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Any requests in any order give the same answers, pushes and state."""

    class OnThisServer(Differential):
        server = redis_server
        chance = looks.decided(monkeypatch)

    run_state_machine_as_test(
        OnThisServer,
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
