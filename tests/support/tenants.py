"""Tenants that share one name fairly, on the state machine, and what must be true of each grant.

`Tenants` keeps counts of its own, with exact fractions, and does not look into the machine's
accounts: it raises `AssertionError` at the first grant that is unfair.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from random import Random
from typing import Final, Literal

from aiolock.protocol import (
    Acquire,
    AskAgain,
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
)
from aiolock.stores._codec import decode, encode
from aiolock.stores._effects import Push
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

NAME: Final = "x"
TTL: Final = 30_000
ROUNDING: Final = Fraction(1002, 1000)
"""Virtual time, and what is held for a weight, are whole numbers."""
Kind = Literal["lock", "semaphore"]


@dataclass
class Asked:
    """A waiter that asked, and did not leave yet."""

    share: str
    form: Form
    ticket: int = 1 << 62
    fence: int = 0
    """That of its grant; 0 while it waits."""
    away: bool = False
    """Whether it was removed from the queue with a stuck client, and has to come back."""


class Tenants:
    """Shares, by their weights in thousandths, and their waiters; ``""`` has none."""

    def __init__(
        self,
        random: Random,
        kind: Kind,
        limit: int,
        weights: dict[str, int],
        *,
        most_permits: int = 1,
        reloaded: bool = False,
    ) -> None:
        self._random, self._kind, self._limit, self._weights = random, kind, limit, weights
        self._most = most_permits
        self._reloaded = reloaded
        """Whether the state is written down and read again after each step."""
        self.state = NameState()
        self.now, self._fence = 10**15, 0
        self._alive: dict[str, bool] = {}
        self._numbers = itertools.count(1)
        self.asked: dict[WaiterId, Asked] = {}
        self.counts = Counter[str]()
        """How often each thing was done, or checked."""
        self._starved: dict[tuple[int, str], dict[str, Fraction]] = {}
        """For each share that waits and holds nothing: what others have got since, for their
        weights."""
        self._pairs: dict[tuple[int, str, str], tuple[Fraction, Fraction, Fraction]] = {}
        """For two shares that both wait: what one got more, for their weights; the least, the most.
        """

    # What may happen

    def arrive(self, share: str, *, permits: int = 1, priority: int = 0, client: str = "") -> None:
        """A waiter comes."""
        waiter = WaiterId(client or f"c{next(self._numbers)}", next(self._numbers))
        self._alive.setdefault(waiter.client, True)
        self.asked[waiter] = Asked(share, self._form(share, permits, priority))
        self._ask(waiter)

    def leave(self, waiter: WaiterId) -> None:
        """A holder releases, or a waiter gives up."""
        asked = self.asked.pop(waiter)
        self.counts["released" if asked.fence else "gave up"] += 1
        self._note()
        self._run(Release(NAME, waiter, asked.form, asked.fence))

    def die(self, client: str) -> None:
        """A client dies: the store sees that it does not listen, but not when."""
        self._alive[client] = False
        self.counts["died"] += 1
        self._note()

    def expire(self) -> None:
        """Time passes beyond the leases of the dead; the living renew theirs, then ask again."""
        self.now += TTL * 500
        for waiter, asked in list(self.asked.items()):
            if asked.fence and self._alive[waiter.client]:
                self._run(Renew([Renewal(NAME, waiter, asked.form, asked.fence, TTL)]))
        self.now += TTL * 501
        for waiter in self.waiting():
            if self._alive[waiter.client]:
                self._ask(waiter)
                return

    def displace(self, waiter: WaiterId) -> None:
        """The store loses a waiter, which comes back to its old place."""
        self.state.dequeue(waiter)
        self.counts["came back"] += 1
        asked, self.asked = self.asked, {k: v for k, v in self.asked.items() if k != waiter}
        self._note()
        self.asked = asked
        self._ask(waiter)

    # What is known

    def waiting(self) -> list[WaiterId]:
        """Those that wait, dead or alive."""
        return [waiter for waiter, asked in self.asked.items() if not asked.fence]

    def held(self) -> list[WaiterId]:
        """Those that hold, dead or alive."""
        return [waiter for waiter, asked in self.asked.items() if asked.fence]

    def is_alive(self, waiter: WaiterId) -> bool:
        """Whether its client lives."""
        return self._alive[waiter.client]

    def intervals(self) -> Hashable:
        """What is counted for the intervals that go on, as far as it matters."""
        return (
            tuple((each, tuple(sorted(got.items()))) for each, got in self._starved.items()),
            tuple(
                (each, most - least, more - least) for each, (more, least, most) in self._between()
            ),
        )

    def _between(self) -> Iterable[tuple[tuple[int, str, str], tuple[Fraction, ...]]]:
        return sorted(self._pairs.items()) if self._kind == "lock" else ()

    def check_rest(self) -> None:
        """After each step: nobody waits for what is free, and nothing is kept in vain."""
        state = self.state
        shares = state.holders.shares
        wait = {share for share, _ in self._wait()}
        if wait and not self.held():
            raise AssertionError("nobody holds it, and somebody alive waits")
        if not state.queue and not state.holders:
            assert shares is None or not self._step().pushes
        free = self._limit - state.holders.permits
        if self._kind == "semaphore" and free and state.queue and self.waiting():
            first = state.waiting[state.next(0)[1]][1]
            alive = self._alive.get(state.next(0)[1].client)
            ended = any(each.end <= self.now // 1000 for each in state.holders.values())
            assert not alive or ended or first.permits > free, "a permit that is free is wanted"

    def close(self) -> None:
        """Check what is checked at the end of an interval."""
        for pair in list(self._pairs):
            self._end(pair)

    # One step

    def _form(self, share: str, permits: int, priority: int) -> Form:
        weight = self._weights.get(share, 1000)
        if self._kind == "lock":
            return Form(3000, priority=priority, share=share, weight=weight)
        return Form(
            *(3000, True, Rule.PERMITS, permits, self._limit),
            priority=priority,
            share=share,
            weight=weight,
        )

    def _step(self) -> Step:
        return Step(NAME, self.state, self.now, lambda client: self._alive[client], self._fence)

    def _ask(self, waiter: WaiterId) -> None:
        asked = self.asked[waiter]
        ticket = asked.ticket if asked.ticket < 1 << 62 else 0
        asked.away = False
        answer, pushes = self._carry_out(Acquire(NAME, waiter, asked.form, TTL, ticket))
        if isinstance(answer, Queued):
            asked.ticket = answer.ticket
            self._receive(pushes)
        else:
            assert isinstance(answer, Granted)
            own = GrantPushed(NAME, waiter, asked.form, answer.fence, answer.lease, self.now)
            # In the order in which the grants were made.
            pushes.append(Push(waiter.client, own))
            pushes.sort(key=lambda push: isinstance(push.event, GrantPushed) and push.event.fence)
            self._receive(pushes, newcomer=None if ticket else waiter)
        self._note()
        self._come_back()

    def _run(self, operation: Operation[object]) -> None:
        _, pushes = self._carry_out(operation)
        self._receive(pushes)
        self._come_back()

    def _carry_out(self, operation: Operation[object]) -> tuple[object, list[Push]]:
        self.counts["steps"] += 1
        step = self._step()
        answer = step.run(operation)
        self._fence = step.fence
        if self._reloaded:
            self.state = decode(encode(self.state))
        here = {push.event.waiter for push in step.pushes if isinstance(push.event, GrantPushed)}
        here |= {waiter for waiter, _ in self.state.holders} | self.state.waiting.keys()
        for waiter in self.waiting():
            self.asked[waiter].away = waiter not in here
        self._note()
        return answer, step.pushes

    def _receive(self, pushes: list[Push], newcomer: WaiterId | None = None) -> None:
        for _, event in pushes:
            match event:
                case GrantPushed(_, waiter, _, fence):
                    if not self.asked[waiter].fence:
                        self._granted(waiter, fence, queued=waiter != newcomer)
                    self._note()
                case GrantLost(_, waiter):
                    self.asked.pop(waiter, None)
                    self.counts["expired"] += 1
                    self._note()
                case AskAgain():
                    self.counts["told to ask again"] += 1
                case _:
                    pass

    def _come_back(self) -> None:
        """Waiters that were removed with a stuck client ask again, at their old places."""
        for waiter in [waiter for waiter in self.waiting() if self.asked[waiter].away]:
            if waiter not in self.asked or not self.asked[waiter].away:
                pass  # it came back with the one before
            elif not self._alive[waiter.client]:
                del self.asked[waiter]
            else:
                self.counts["came back"] += 1
                self._ask(waiter)
        self._note()

    # What must be true

    def _wait(self) -> set[tuple[str, int]]:
        """The shares with waiters that live, and their priorities."""
        return {
            (self.asked[waiter].share, self.asked[waiter].form.priority)
            for waiter in self.waiting()
            if self._alive[waiter.client]
            and self.asked[waiter].share
            and not self.asked[waiter].away
        }

    def _held_by(self, share: str, priority: int) -> Fraction:
        """What a share holds, for its weight."""
        held = sum(
            self.asked[waiter].form.permits
            for waiter in self.held()
            if self.asked[waiter].share == share and self.asked[waiter].form.priority == priority
        )
        return Fraction(held * 1000, self._weights[share])

    def _granted(self, waiter: WaiterId, fence: int, *, queued: bool) -> None:
        asked = self.asked[waiter]
        share, priority = asked.share, asked.form.priority
        self.counts["grants"] += 1
        if share:
            if queued:
                self._check_first(waiter, asked)
                self._check_least(asked)
            got = Fraction(max(1, asked.form.permits) * 1000, asked.form.weight)
            self._count(share, priority, got)
        asked.fence = fence

    def _check_first(self, waiter: WaiterId, asked: Asked) -> None:
        """Within a share, in order of arrival."""
        self.counts["first of its share"] += 1
        for other in self.waiting():
            each = self.asked[other]
            alike = (each.share, each.form.priority) == (asked.share, asked.form.priority)
            if alike and other != waiter and self._alive[other.client] and not each.away:
                assert each.ticket > asked.ticket, "overtaken"

    def _check_least(self, asked: Asked) -> None:
        """No share that waits holds less for its weight."""
        priority = asked.form.priority
        mine = self._held_by(asked.share, priority)
        for share, its in self._wait():
            if its == priority and share != asked.share:
                self.counts["holds least"] += 1
                assert mine <= self._held_by(share, priority) + Fraction(1, 10**6), "held more"

    def _count(self, share: str, priority: int, got: Fraction) -> None:
        for (its, other), gotten in self._starved.items():
            if its == priority and other != share:
                gotten[share] = gotten.get(share, Fraction(0)) + got
                most = self._most * 1000
                bound = Fraction(most, self._weights[other]) + Fraction(most, self._weights[share])
                self.counts["passed over"] += 1
                assert gotten[share] <= bound * ROUNDING, "passed over for too long"
        if self._kind == "lock":
            for (its, one, other), (before, lowest, highest) in self._pairs.items():
                if its == priority and share in (one, other):
                    more = before + (got if share == one else -got)
                    self._pairs[its, one, other] = more, min(lowest, more), max(highest, more)

    def _note(self) -> None:
        """Note who waits with whom, and who waits and holds nothing."""
        wait = sorted(self._wait())
        hold = {(each.form.priority, each.share) for each in self.asked.values() if each.fence}
        starved = {(priority, share) for share, priority in wait} - hold
        self._starved = {each: self._starved.get(each, {}) for each in sorted(starved)}
        pairs = {
            (p, one, other)
            for (one, p), (other, its) in itertools.combinations(wait, 2)
            if p == its
        }
        for pair in self._pairs.keys() - pairs:
            self._end(pair)
        for pair in sorted(pairs - self._pairs.keys()):
            self._pairs[pair] = Fraction(0), Fraction(0), Fraction(0)

    def _end(self, pair: tuple[int, str, str]) -> None:
        """Two shares have waited together until now: they had the same, but for one request."""
        _, least, most = self._pairs.pop(pair)
        _, one, other = pair
        bound = Fraction(1000, self._weights[one]) + Fraction(1000, self._weights[other])
        self.counts["pairs"] += 1
        assert most - least <= bound * ROUNDING, "one had more than the other"


def run(seed: int, kind: Kind, actions: int = 300, *, reloaded: bool = False) -> Counter[str]:
    """Let tenants do random things, then let all of them finish; what was done and checked."""
    random = Random(seed)
    limit = 1 if kind == "lock" else random.choice([1, 2, 5, 15])
    weights = {
        f"s{number}": random.choice([1000, 1000, 1000, 2000, 500, 3000, 10_000, 100])
        for number in range(random.choice([2, 3, 5, 9]))
    }
    most = min(3, limit) if kind == "semaphore" and random.random() < 0.5 else 1
    tenants = Tenants(random, kind, limit, weights, most_permits=most, reloaded=reloaded)
    priorities = [0, 0, 1] if random.random() < 0.2 else [0]
    without = random.random() < 0.2
    clients = ["", "", "m1", "m2"] if random.random() < 0.3 else [""]
    for _ in range(actions):
        tenants.now += random.choice([0, 1, 50, 10_000])
        what, held, waiting = random.random(), tenants.held(), tenants.waiting()
        if what < 0.42 or not (held or waiting):
            share = "" if without and random.random() < 0.1 else random.choice(list(weights))
            client = random.choice(clients)
            if client and not tenants._alive.get(client, True):
                client = ""
            tenants.arrive(
                share,
                permits=random.randint(1, most),
                priority=random.choice(priorities),
                client=client,
            )
        elif what < 0.80 and held:
            tenants.leave(random.choice(held))
        elif what < 0.90 and waiting:
            tenants.leave(random.choice(waiting))
        elif what < 0.94 and (held or waiting):
            tenants.die(random.choice(held + waiting).client)
        elif what < 0.96:
            tenants.expire()
        elif waiting and tenants.is_alive(waiter := random.choice(waiting)):
            tenants.displace(waiter)
        tenants.check_rest()
    _finish(tenants, random)
    return tenants.counts


def _finish(tenants: Tenants, random: Random) -> None:
    """Let all holders release, until nobody alive waits: nobody starves."""
    while any(map(tenants.is_alive, tenants.asked)):
        tenants.now += 1000
        held = [waiter for waiter in tenants.held() if tenants.is_alive(waiter)]
        if held:
            tenants.leave(random.choice(held))
        else:
            tenants.expire()
    tenants.close()
