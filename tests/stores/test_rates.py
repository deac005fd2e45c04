"""What a rate limit promises, on the state machine, in random worlds; by counts of their own."""

from __future__ import annotations

import random
from collections.abc import Sequence
from heapq import heappop, heappush
from typing import Any

import pytest

from aiolock._rate import LONGEST, Rate, rate_of
from aiolock.protocol import (
    Acquire,
    AskAgain,
    Busy,
    Form,
    Granted,
    GrantPushed,
    Queued,
    Release,
    Resize,
    Rule,
    WaiterId,
)
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

RATE = Rate(100_000, 5)
CLAIM = 10_000
TOKENS = (1, 1, 1, 2, 5)
SET_BACK = 10
"""How often a clock is set back."""


def form(number: int, priority: int = 0) -> Form:
    """What a waiter for so many tokens wants."""
    return Form(
        *(CLAIM, True, Rule.RATE, number, RATE.declared),
        fixed=True,
        priority=priority,
    )


class Waiter:
    """One that wants tokens, as its client sees it."""

    def __init__(self, waiter: WaiterId, wants: Form, came: int) -> None:
        self.id, self.form, self.came = waiter, wants, came
        self.ticket = 0
        self.asks = 0
        """When it asks again (µs)."""
        self.got = 0
        self.gone = False


class World:
    """A store, its clock, and clients that ask when they are told to.

    The time is the true one; the clock of the store may be behind it by ``back``.
    """

    def __init__(
        self,
        seed: int,
        *,
        priorities: bool = False,
        back: bool = False,
        sizes: Sequence[int] = TOKENS,
    ) -> None:
        self.sizes = sizes
        self.dice = random.Random(seed)
        self.priorities = priorities
        self.sets_back = back
        self.back = 0
        self.now = 1_700_000_000_000_000
        self.state = NameState()
        self.waiters = dict[WaiterId, Waiter]()
        self.dead = set[str]()
        self.events: list[tuple[int, int, str, Any]] = []
        self.taken: list[tuple[int, int]] = []
        """When tokens were taken, and how many: at the store, once for each waiter."""
        self.order = list[Waiter]()
        """Those that came to the queue, in the order in which they got their tokens."""
        self.commands = 0
        self.seqs = 0

    def at(self, when: int, what: str, whom: Any = None) -> None:
        self.seqs += 1
        heappush(self.events, (when, self.seqs, what, whom))

    def step(self) -> Step:
        return Step("n", self.state, self.now - self.back, lambda who: who not in self.dead)

    def deliver(self, step: Step, *, lost: float) -> None:
        """What the step has pushed; some of it gets lost."""
        for client, event in step.pushes:
            assert client not in self.dead
            if isinstance(event, GrantPushed):
                self._takes(self.waiters[event.waiter])
            if self.dice.random() < lost:
                continue
            if isinstance(event, GrantPushed):
                self.at(self.now + 500, "pushed", self.waiters[event.waiter])
            elif isinstance(event, AskAgain):
                mine = [w for w in self.waiters.values() if w.id.client == client and waits(w)]
                if mine:
                    self.at(self.now + 500, "ask", min(mine, key=lambda w: w.ticket))

    def _takes(self, waiter: Waiter) -> None:
        assert not waiter.got, "one waiter gets its tokens once"
        waiter.got = self.now
        self.taken.append((self.now, waiter.form.number))
        if waiter.ticket:
            self.order.append(waiter)

    def ask(self, waiter: Waiter, *, lost: float = 0.0) -> None:
        self.commands += 1
        step = self.step()
        asked = Acquire("n", waiter.id, waiter.form, CLAIM, waiter.ticket)
        before = waiter.got
        answer = step.run(asked)
        if isinstance(answer, Granted):
            assert 0 < answer.fence <= RATE.tolerance
            if not before:
                self._takes(waiter)
            waiter.gone = True
        else:
            assert isinstance(answer, Queued)
            assert not before, "who has its tokens is not queued"
            waiter.ticket = answer.ticket
            waiter.asks = self.now + answer.until * 1000 + 3000
            self.at(waiter.asks, "due", waiter)
        self.deliver(step, lost=lost)

    def run(self, count: int, *, deaths: float, leaves: float, lost: float) -> None:
        """So many waiters come, and all end that do not die."""
        for each in range(count):
            self.at(self.now + self.dice.randrange(30_000_000), "new", each)
        for _ in range(SET_BACK if self.sets_back else 0):
            self.at(self.now + self.dice.randrange(40_000_000), "back")
        while self.events:
            self.now, _, what, whom = heappop(self.events)
            if what == "new":
                self._comes(whom, deaths, leaves, lost)
            elif what == "back":
                self.back += self.dice.randrange(60_000_000)
            elif what == "die":
                self.dead.add(whom)
            elif what == "pushed":
                whom.gone = True
            elif whom.id.client not in self.dead and not whom.gone:
                self._goes_on(what, whom, lost)

    def _comes(self, number: int, deaths: float, leaves: float, lost: float) -> None:
        client = f"c{self.dice.randrange(40)}"
        if client in self.dead:
            return
        who = WaiterId(client, number)
        priority = self.dice.choice([0, 0, 0, -1]) if self.priorities else 0
        waiter = self.waiters[who] = Waiter(
            who, form(self.dice.choice(self.sizes), priority), self.now
        )
        self.ask(waiter, lost=lost)
        if self.dice.random() < leaves:
            self.at(self.now + self.dice.randrange(3_000_000), "leave", waiter)
        if self.dice.random() < deaths:
            self.at(self.now + self.dice.randrange(3_000_000), "die", client)

    def _goes_on(self, what: str, waiter: Waiter, lost: float) -> None:
        if what == "leave":
            waiter.gone = True
            step = self.step()
            step.run(Release("n", waiter.id, waiter.form, 0, entered=False))
            self.deliver(step, lost=lost)
        elif what == "ask" or waiter.asks <= self.now:
            self.ask(waiter, lost=lost)


def waits(waiter: Waiter) -> bool:
    """Whether it has a place, and does not know of any tokens."""
    return bool(waiter.ticket) and not waiter.gone


def conforms(taken: Sequence[tuple[int, int]], rate: Rate = RATE) -> None:
    """In any window of t µs, at most burst + t / interval tokens."""
    for first, (began, _) in enumerate(taken):
        tokens = 0
        for when, number in taken[first:]:
            tokens += number
            assert (tokens - rate.burst) * rate.interval <= when - began


SEEDS = range(30)


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", SEEDS)
def test_bucket_gives_no_more_than_burst_and_rate_and_keeps_the_order(seed: int) -> None:
    """With deaths, cancellations and lost pushes; nobody is left; each gets tokens once."""
    world = World(seed)
    world.run(120, deaths=0.05, leaves=0.1, lost=0.1)
    conforms(world.taken)
    tickets = [waiter.ticket for waiter in world.order]
    assert tickets == sorted(tickets), "first in, first out"
    left = [w for w in world.waiters.values() if not w.gone and w.id.client not in world.dead]
    assert not left
    assert not [w for w in world.state.waiting if w.client not in world.dead]


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", SEEDS)
def test_bucket_lets_no_token_lie_while_somebody_waits(seed: int) -> None:
    """If nobody dies: the tokens in the queue are taken as if they came without a pause."""
    world = World(seed)
    world.run(120, deaths=0, leaves=0.2, lost=0)
    conforms(world.taken)
    full_at = 0  # by a bucket of the test's own
    for when, number in sorted(world.taken):
        due = full_at + number * RATE.interval - RATE.tolerance
        full_at = max(full_at, when) + number * RATE.interval
        assert due <= when
    for before, waiter in zip(world.order, world.order[1:], strict=False):
        # It had its turn when the one before it was served, or has left; and then its tokens.
        idle = waiter.got - before.got - waiter.form.number * RATE.interval
        assert idle <= 10_000 or waiter.came > before.got or _left_between(world, before, waiter)


def _left_between(world: World, before: Waiter, waiter: Waiter) -> bool:
    """Whether some that would have been served between these two had left."""
    return any(
        before.ticket < other.ticket < waiter.ticket and not other.got
        for other in world.waiters.values()
    )


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", SEEDS)
def test_bucket_whose_clock_is_set_back_gives_no_more_and_does_not_stop(seed: int) -> None:
    """By the true time: it is as if the bucket had been emptied then."""
    world = World(seed, back=True)
    world.run(120, deaths=0.05, leaves=0.1, lost=0.1)
    conforms(world.taken)
    assert not [w for w in world.state.waiting if w.client not in world.dead]
    # Each time at most a bucket was lost.
    needed = sum(number for _, number in world.taken) * RATE.interval
    took = world.taken[-1][0] - world.taken[0][0]
    assert took <= 30_000_000 + needed + SET_BACK * RATE.tolerance


@pytest.mark.one_loop
@pytest.mark.parametrize("seed", SEEDS)
def test_bucket_with_priorities_gives_to_the_more_urgent_first(seed: int) -> None:
    """Within each priority in the order of arrival; told times that were too early do no harm."""
    world = World(seed, priorities=True)
    world.run(120, deaths=0.05, leaves=0.1, lost=0.1)
    conforms(world.taken)
    for priority in (0, -1):
        of_it = [w.ticket for w in world.order if w.form.priority == priority]
        assert of_it == sorted(of_it)
    assert not [w for w in world.state.waiting if w.client not in world.dead]


@pytest.mark.one_loop
def test_waiters_of_a_rate_limit_send_two_commands_each_at_most() -> None:
    """One to get into the queue, and one when it is there, or less."""
    for count, sizes in ((400, (1,)), (60, TOKENS)):
        world = World(1, sizes=sizes)
        world.run(count, deaths=0, leaves=0, lost=0)
        assert len(world.taken) == count
        assert world.commands <= 2 * count


@pytest.mark.one_loop
def test_try_without_waiting_counts_the_tokens_of_those_who_wait() -> None:
    """It is told when its own would be there behind them, in µs."""
    world = World(2)
    for number in (5, 3, 2):
        world.ask(Waiter(WaiterId("a", number), form(number), world.now))
    step = world.step()
    refused = step.run(Acquire("n", WaiterId("b", 1), form(1), CLAIM, wait=False))
    assert refused == Busy(6 * RATE.interval)


@pytest.mark.one_loop
def test_bucket_that_was_made_smaller_gives_nobody_more_than_it_has() -> None:
    """However long it is full: who wants more waits until it is made larger, and so do others."""
    world, smaller = World(3), Rate(RATE.interval, 2)
    world.ask(Waiter(WaiterId("a", 1), form(5), world.now))
    world.step().run(Resize("n", RATE.declared, smaller.declared, 10**9, token="t"))
    many, single = (Waiter(WaiterId("a", n), form(n), world.now) for n in (5, 3))
    for each in (many, single):
        world.waiters[each.id] = each
        world.ask(each)
        world.now += 100 * RATE.interval
    assert len(world.taken) == 1
    step = world.step()
    step.run(Resize("n", RATE.declared, RATE.declared, 10**9, token="u"))
    world.deliver(step, lost=0)
    assert many.got


@pytest.mark.one_loop
def test_number_of_a_rate_keeps_interval_and_burst() -> None:
    """Each number that is declared is exact in floating point, and no time in Redis."""
    dice, seen = random.Random(3), dict[int, Rate]()
    for _ in range(20_000):
        burst = dice.randint(1, 2 ** dice.randint(1, 29))
        most = max(1, min(LONGEST // burst, 2 ** dice.randint(1, 45)))
        rate = Rate(dice.randint(1, most), burst)
        assert rate_of(rate.declared) == rate
        assert 2**51 <= rate.declared < 2**52
        assert seen.setdefault(rate.declared, rate) == rate


@pytest.mark.one_loop
def test_bucket_forgets_grants_that_need_not_be_remembered() -> None:
    """So it remembers those of ten seconds, and a few more."""
    world = World(4)
    for each in range(1000):
        world.now += RATE.interval
        world.ask(Waiter(WaiterId("a", each), form(1), world.now))
    assert world.state.bucket is not None
    assert len(world.state.bucket.granted) <= CLAIM * 1000 // RATE.interval + 2
    world.now += 10 * 60_000_000
    world.step()
    assert world.state.idle, "nothing is kept of a rate limit that is not used"
