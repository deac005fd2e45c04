"""Handing on, at the state machine: random runs with lost and late messages, and the promises.

The clients know only what they are told. What they believe is compared with what the store has.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeVar

import pytest

from aiolock import protocol
from aiolock.protocol import (
    WAS_ABSENT,
    WAS_HOLDER,
    Acquire,
    Adopt,
    Break,
    Detach,
    Discard,
    Form,
    Granted,
    GrantLost,
    GrantPushed,
    Operation,
    Queued,
    Release,
    Renew,
    Renewal,
    Rule,
    WaiterId,
    detached,
)
from aiolock.stores._holders import Grant
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

pytestmark = pytest.mark.one_loop

Value = TypeVar("Value")
NAME, TTL = "x", 10_000
LATE = 5_000_000
"""Microseconds after which no copy of a command is carried out, or arrives."""
LIMIT = 3
PLAIN = Form(3000)
FORMS = {
    "locks": [PLAIN, Form(3000, priority=1), Form(3000, fixed=True)],
    "terms": [Form(3000, after_loss=2000), Form(3000, after_grant=4000), PLAIN],
    "permits": [
        Form(3000, shared=True, rule=Rule.PERMITS, number=number, declared=LIMIT)
        for number in (1, 1, 2)
    ],
}


@dataclass
class Handed:
    """What was detached with one key, or is to be."""

    grant: Grant
    form: Form
    end: int = 0
    """Of its lease at the store, in ms; 0 until it is detached there."""
    over: str = ""
    """Why it is not there any more."""
    adopted: set[WaiterId] = field(default_factory=set[WaiterId])


class Copy(NamedTuple):
    """A message on its way."""

    arrives: int
    operation: Operation[Any]
    not_after: int
    copies_until: int


class World:
    """One name at a store, and clients whose messages are carried out, lost, repeated, and late.

    All times are µs of one clock, but for the ends of leases at the store (ms).
    """

    def __init__(self, seed: int, forms: list[Form]) -> None:
        self.dice = random.Random(seed)
        self.forms = forms
        self.state = NameState()
        self.now, self.fence, self.highest = 10**15, 0, 0
        self.numbers = itertools.count(1)
        self.clients = [f"c{next(self.numbers)}" for _ in range(4)]
        self.copies = list[Copy]()
        self.handed = dict[str, Handed]()
        self.tokens = list[str]()
        """The keys that somebody has."""
        self.asking = dict[WaiterId, tuple[Form, int]]()
        """The waiters that have no grant, and their tickets."""
        self.believes = dict[WaiterId, tuple[int, int]]()
        """Until when each waiter relies on its grant, and the fence of that."""
        self.form_of = dict[WaiterId, Form]()
        self.gone = set[WaiterId]()
        """Waiters that have given up, and know that the store knows."""
        self.taken_back = set[Grant]()
        """The same of grants."""
        self.unwanted = list[tuple[WaiterId, int]]()
        """Grants that came to waiters which ask for nothing: a late copy has queued them."""
        self.seen = Counter[str]()

    # The store

    def carry_out(self, copy: Copy) -> Any:
        """What the store answers to a copy; None if that is too late."""
        operation = copy.operation
        if 0 < copy.not_after < self.now:
            self.seen["late"] += 1
            return None
        before = set(self.state.holders)
        alive = self.clients
        step = Step(NAME, self.state, self.now, alive.__contains__, self.fence)
        answer = step.run(operation, copy.copies_until)
        self.fence = step.fence
        self.check(operation, before, answer)
        for client, event in step.pushes:
            assert not client.startswith("="), "nobody listens there"
            if isinstance(event, GrantPushed) and self.dice.random() < 0.9:
                self.granted(event.waiter, event.fence, event.now, event.lease)
            elif isinstance(event, GrantLost):
                self.believes.pop(event.waiter, None)
        self.check_beliefs()
        return answer

    def check(self, operation: Operation[Any], before: set[Grant], answer: object) -> None:
        held = self.state.holders
        alive = [of for of in held.values() if of.end > self.now // 1000 and not of.is_reserved]
        if self.forms[0].permits:
            assert sum(of.form.permits for of in alive) <= LIMIT, "more permits than there are"
        else:
            assert len(alive) <= 1, "two hold the lock"
        for grant in sorted(set(held) - before, key=lambda grant: grant.fence):
            if held[grant].has_client:
                assert grant.fence > self.highest, "a fence is no higher than the last"
                self.highest = grant.fence
        if isinstance(operation, Adopt) and answer is not None:
            self.handed[operation.key].adopted.add(operation.waiter)
        for key, of in self.handed.items():
            self.check_handed(key, of, operation)
        held_by = {grant.waiter for grant in held} | set(self.state.waiting)
        assert not self.gone & held_by, "a waiter holds or waits that has given up"
        assert not self.taken_back & set(held), "a grant is there that was taken back"

    def check_handed(self, key: str, of: Handed, operation: Operation[Any]) -> None:
        """It is there from its detach until it is adopted, discarded or broken, or has ended."""
        fence = of.grant.fence
        holder = self.state.holders.get(Grant(detached(key), fence))
        if holder is not None:
            assert not of.over, f"a key is there again that was {of.over}"
            assert of.grant not in self.state.holders, "its old grant is there, too"
            of.end = holder.end
        elif of.end and not of.over:
            ended = of.end <= self.now // 1000
            if isinstance(operation, Adopt) and operation.key == key:
                of.over = "adopted"
                assert not ended, "it had ended"
            elif isinstance(operation, Discard) and operation.waiter == detached(key):
                of.over = "discarded"
            elif isinstance(operation, Break) and fence in operation.fences:
                of.over = "broken"
            else:
                of.over = "ended"
                assert ended, "its grant is gone"
        assert len(of.adopted) <= 1, "two have adopted it"

    def check_beliefs(self) -> None:
        relied = [
            self.form_of[waiter]
            for waiter, (until, _) in self.believes.items()
            if until > self.now and waiter.client in self.clients
        ]
        if self.forms[0].permits:
            assert sum(form.permits for form in relied) <= LIMIT, "more rely on permits"
        else:
            assert len(relied) <= 1, "two rely on the lock"

    # The network

    def send(self, operation: Operation[Value], copies_until: int = 0) -> tuple[bool, Any]:
        """Whether an answer comes, and which; a copy may come later in any case."""
        expires = isinstance(operation, Acquire | Renew | Adopt)
        arrives = self.now + self.dice.randint(0, 2 * LATE if expires else LATE)
        copy = Copy(arrives, operation, self.now + LATE if expires else 0, copies_until)
        chance = self.dice.random()
        if chance < 0.35:
            self.copies.append(copy)
        if chance < 0.15:
            return False, None
        answer = self.carry_out(copy)
        return not 0.35 < chance < 0.5, answer

    def until_answered(self, operation: Operation[Value], copies_until: int = 0) -> Any:
        while True:
            is_answered, answer = self.send(operation, copies_until)
            if is_answered:
                return answer
            self.pass_time(1000)

    def pass_time(self, us: int) -> None:
        """Time passes, in which copies arrive."""
        self.now += us
        due = sorted(copy for copy in self.copies if copy.arrives <= self.now)
        self.copies = [copy for copy in self.copies if copy.arrives > self.now]
        for copy in due:
            self.seen["copies"] += 1
            self.carry_out(copy)
        while self.unwanted:
            waiter, fence = self.unwanted.pop()
            back = Release(NAME, waiter, self.form_of[waiter], fence, entered=False)
            self.until_answered(back)
        self.check_beliefs()

    # The clients

    def granted(self, waiter: WaiterId, fence: int, since: int, lease: int) -> None:
        if waiter.client not in self.clients:
            return
        if self.asking.pop(waiter, None) is None:
            self.unwanted.append((waiter, fence))
        else:
            self.believes[waiter] = since + lease * 1000, fence

    def new_waiter(self, form: Form) -> WaiterId:
        waiter = WaiterId(self.dice.choice(self.clients), next(self.numbers))
        self.form_of[waiter] = form
        return waiter

    def holder(self) -> WaiterId | None:
        """One that relies on its grant."""
        relying = [each for each, (until, _) in self.believes.items() if until > self.now]
        return self.dice.choice(relying) if relying else None

    def acquire(self) -> None:
        if len(self.asking) < 4:
            waiter = self.new_waiter(self.dice.choice(self.forms))
            self.asking[waiter] = self.form_of[waiter], 0
            self.ask(waiter)

    def ask_again(self) -> None:
        if self.asking:
            self.ask(self.dice.choice([*self.asking]))

    def ask(self, waiter: WaiterId) -> None:
        (form, ticket), sent = self.asking[waiter], self.now
        answered, answer = self.send(Acquire(NAME, waiter, form, TTL, ticket))
        if answered and isinstance(answer, Granted):
            self.granted(waiter, answer.fence, sent, answer.lease)
        elif answered and isinstance(answer, Queued) and waiter in self.asking:
            self.asking[waiter] = form, answer.ticket

    def release(self) -> None:
        if waiter := self.holder():
            _, fence = self.believes.pop(waiter)
            self.until_answered(Release(NAME, waiter, self.form_of[waiter], fence))

    def renew(self) -> None:
        if waiter := self.holder():
            (_, fence), sent = self.believes[waiter], self.now
            renewal = Renewal(NAME, waiter, self.form_of[waiter], fence, TTL)
            answered, held = self.send(Renew([renewal]))
            if answered and held and waiter in self.believes:
                self.believes.pop(waiter)
                if held[0]:
                    self.believes[waiter] = sent + TTL * 1000, fence

    def detach(self) -> None:
        if not (waiter := self.holder()):
            return
        _, fence = self.believes.pop(waiter)  # before anything is sent
        form, key = self.form_of[waiter], f"k{next(self.numbers)}"
        self.handed[key] = of = Handed(Grant(waiter, fence), form)
        detach = Detach(
            NAME, waiter, form, fence, key, self.dice.choice([1000, 3000, 10_000, 30_000])
        )
        if self.dice.random() < 0.3:
            self.seen["taken back"] += 1
            self.send(detach)
            self.take_back(key)
            return
        was = self.until_answered(detach)
        if was == WAS_HOLDER:
            self.seen["detached"] += 1
            self.tokens.append(key)
        else:
            assert was == WAS_ABSENT
            assert of.over or not of.end or of.end <= self.now // 1000, "it is there"

    def take_back(self, key: str) -> None:
        """Give up both: nobody learns the key. Which comes first, depends on the network."""
        of = self.handed[key]
        waiter, fence = of.grant
        both: list[Callable[[], object]] = [
            lambda: self.until_answered(Release(NAME, waiter, of.form, fence), self.now + LATE),
            lambda: self.discard_as(key),
        ]
        self.dice.shuffle(both)
        for each in both:
            each()
            self.pass_time(self.dice.choice([0, 1_000_000, 3_000_000]))
        self.taken_back |= {of.grant, Grant(detached(key), fence)}

    def discard(self) -> None:
        if self.tokens:
            self.discard_as(self.dice.choice(self.tokens))
            self.seen["discarded"] += 1

    def discard_as(self, key: str) -> None:
        of = self.handed[key]
        discard = Discard(NAME, detached(key), of.form, of.grant.fence)
        self.until_answered(discard, self.now + LATE)

    def adopt(self) -> None:
        """By a key that is there, most often, or by one that was used."""
        there = [key for key in self.tokens if not self.handed[key].over]
        if not (keys := there if there and self.dice.random() < 0.8 else self.tokens):
            return
        key = self.dice.choice(keys)
        of = self.handed[key]
        waiter, fence = self.new_waiter(of.form), of.grant.fence
        self.asking[waiter] = of.form, 0
        adopt = Adopt(NAME, waiter, of.form, fence, key, TTL)
        for _ in range(self.dice.choice([1, 4, 4, 4])):
            sent = self.now
            answered, answer = self.send(adopt)
            if answered and isinstance(answer, Granted):
                assert answer.fence > fence
                self.seen["adopted"] += 1
                self.granted(waiter, answer.fence, sent, answer.lease)
                return
            if answered and answer is None:
                self.seen["spent"] += 1
                self.asking.pop(waiter, None)
                return
            self.pass_time(1000)
        self.seen["given up"] += 1
        self.asking.pop(waiter, None)
        # The copies of the question, and what an earlier one of them may have adopted.
        self.until_answered(Release(NAME, waiter, of.form, 0, entered=False), self.now + LATE)
        self.gone.add(waiter)

    def break_(self) -> None:
        fences = [grant.fence for grant, of in self.state.holders.items() if not of.is_reserved]
        self.send(Break(NAME, fences))
        for waiter, (_, fence) in [*self.believes.items()]:
            if fence in fences:
                self.believes.pop(waiter)  # as soon as it is told

    def die(self) -> None:
        """A client dies, and another begins."""
        dead = self.clients.pop(self.dice.randrange(len(self.clients)))
        self.clients.append(f"c{next(self.numbers)}")
        for of in (self.asking, self.believes):
            for waiter in [each for each in of if each.client == dead]:
                of.pop(waiter)

    def wait_long(self) -> None:
        self.pass_time(self.dice.choice([3_100_000, 12_000_000]))
        self.believes = {w: each for w, each in self.believes.items() if each[0] > self.now}

    def end(self) -> None:
        """Nobody does anything any more: the lock is free soon."""
        self.clients = ["last"]
        for _ in range(2):  # the last copies arrive, and what they have done ends
            self.pass_time(100_000_000)
        last = Acquire(NAME, WaiterId("last", 1), self.forms[0], TTL, wait=False)
        assert isinstance(self.carry_out(Copy(0, last, 0, 0)), Granted), "it is not free"


OFTEN = (
    *("acquire", "acquire", "ask_again", "release", "renew", "detach", "detach", "detach"),
    *("adopt", "adopt", "adopt", "discard", "break_", "die", "wait_long"),
)
PAUSES = (1000, 10_000, 500_000, 2_000_000)


def runs(forms: str, seeds: int) -> Counter[str]:
    """Random runs of so many steps; what has happened in them."""
    seen = Counter[str]()
    for seed in range(seeds):
        world = World(seed, FORMS[forms])
        for _ in range(100):
            world.pass_time(world.dice.choice(PAUSES))
            getattr(world, world.dice.choice(OFTEN))()
        world.end()
        seen += world.seen
        seen.update(of.over for of in world.handed.values() if of.over)
    return seen


@pytest.mark.parametrize("forms", FORMS)
def test_random_runs_with_faults_keep_every_promise_of_handing_on(forms: str) -> None:
    """One holder at a time by the store and by what clients believe, and each key works once."""
    seen = runs(forms, 200)
    for what in ("detached", "adopted", "spent", "taken back", "given up", "discarded", "broken"):
        assert seen[what] > 50, f"{what}: {seen}"
    assert seen["ended"] > 50, seen
    assert seen["late"] > 500, seen


def test_end_of_a_detached_grant_leaves_no_waiters_to_look_for() -> None:
    """The end of a lease removes the waiters of its client; here it has none, so none is sought."""
    state, now = NameState(), 10**15

    def step(operation: Operation[Any]) -> Step:
        step = Step(NAME, state, now, lambda _: True, in_parts=True)
        step.run(operation)
        return step

    ada, bob = WaiterId("ada", 1), WaiterId("bob", 1)
    step(Acquire(NAME, ada, PLAIN, TTL))
    (grant,) = state.holders
    step(Detach(NAME, ada, PLAIN, grant.fence, "key", 1000))
    for number in range(protocol.PART + 1):
        step(Acquire(NAME, WaiterId("eve", number), PLAIN, TTL))
    now += 2_000_000
    ended = step(Acquire(NAME, bob, PLAIN, TTL))
    assert ended.rest is None
    assert [push.client for push in ended.pushes] == ["eve"]
    assert [each.waiter for each in state.holders] == [WaiterId("eve", 0)]
