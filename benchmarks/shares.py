"""What fair shares do for tenants, and what they cost, on the state machine alone: no I/O.

    python benchmarks/shares.py

The waits are exact, since the clock is simulated. The time of a step is this machine's.
"""

from __future__ import annotations

import heapq
import itertools
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import mean

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from aiolock.protocol import Acquire, Form, Granted, GrantPushed, Release, Rule, WaiterId
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step

_NAME = "pool"
_TTL = 10**9
_ALL = 1 << 60


@dataclass(frozen=True)
class Arrival:
    """Somebody asks for a permit."""

    at: float
    tenant: str
    weight: int = 1000


@dataclass
class Simulated:
    """What has become of some arrivals."""

    waits: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """How long each tenant's waiters have waited, in seconds."""
    order: list[str] = field(default_factory=list[str])
    """The tenants, in the order of their grants."""
    micros: float = 0.0
    """The time of a step, in µs of this machine."""

    @property
    def longest(self) -> float:
        """The longest wait of anybody."""
        return max(itertools.chain(*self.waits.values()))


def simulate(
    arrivals: Sequence[Arrival],
    limit: int,
    lasts: Callable[[], float],
    *,
    fair: bool,
    grants: int = _ALL,
) -> Simulated:
    """Let all of these have a permit in turn, each for the seconds that ``lasts`` gives."""
    found, state, fence = Simulated(), NameState(), 0
    events = [(round(each.at * 1e6) + 10**15, n, n) for n, each in enumerate(arrivals)]
    heapq.heapify(events)
    number, asked, fences = itertools.count(len(events)), dict[int, int](), dict[int, int]()
    steps = spent = 0.0

    def form(each: Arrival) -> Form:
        share = each.tenant if fair else ""
        weight = each.weight if fair else 1000
        return Form(
            claim=3000,
            shared=True,
            rule=Rule.PERMITS,
            number=1,
            declared=limit,
            share=share,
            weight=weight,
        )

    def enter(who: int, fence: int, now: int) -> None:
        tenant = arrivals[who].tenant
        found.waits.setdefault(tenant, []).append((now - asked[who]) / 1e6)
        found.order.append(tenant)
        fences[who] = fence
        heapq.heappush(events, (now + round(lasts() * 1e6), next(number), who))

    while events and len(found.order) < grants:
        now, _, who = heapq.heappop(events)
        waiter, terms = WaiterId(f"c{who}", who), form(arrivals[who])
        began = time.perf_counter()
        step = Step(_NAME, state, now, lambda _: True, fence)
        if who in fences:
            step.run(Release(_NAME, waiter, terms, fences[who]))
        else:
            asked[who] = now
            answer = step.run(Acquire(_NAME, waiter, terms, _TTL))
            if isinstance(answer, Granted):
                enter(who, answer.fence, now)
        spent, steps, fence = spent + time.perf_counter() - began, steps + 1, step.fence
        for _, event in step.pushes:
            if isinstance(event, GrantPushed):
                enter(event.waiter.seq, event.fence, now)
    found.micros = spent / steps * 1e6
    return found


def one_busy_tenant() -> list[Arrival]:
    """One tenant with 1,000 waiters; then twenty others, with one each."""
    busy = [Arrival(number / 10_000, "busy") for number in range(1000)]
    return busy + [Arrival(1 + number / 100, f"tenant {number}") for number in range(20)]


def about_a_second() -> Callable[[], float]:
    """How long a call lasts: a second, more or less."""
    random = Random(5)
    return lambda: random.uniform(0.5, 1.5)


def crowd(waiters: int, tenants: int) -> list[Arrival]:
    """So many waiters, of so many tenants in turn."""
    return [Arrival(number / 10_000, f"t{number % tenants}") for number in range(waiters)]


def report() -> Iterator[str]:
    """The lines of the report."""
    yield "One tenant with 1,000 waiters, then 20 with one each; 15 permits, calls of a second"
    for fair, what in ((False, "in order"), (True, "by shares")):
        found = simulate(one_busy_tenant(), 15, about_a_second(), fair=fair)
        busy = found.waits.pop("busy")
        others = [*itertools.chain(*found.waits.values())]
        yield (
            f"  {what:9}  the 20: {mean(others):5.2f} s on average, {max(others):5.2f} s at most;"
            f"  the busy one's last: {max(busy):4.1f} s"
        )
    yield "Weights of 1, 2 and 4, of which all always wait: grants of the first 700"
    three = (("one", 1000), ("two", 2000), ("four", 4000))
    arrivals = [Arrival(n / 1e6, tenant, weight) for n in range(600) for tenant, weight in three]
    for limit in (1, 14):
        found = simulate(arrivals, limit, about_a_second(), fair=True, grants=700)
        counts = ", ".join(f"{tenant} {n}" for tenant, n in sorted(Counter(found.order).items()))
        yield f"  {limit:2} permits  {counts}"
    yield "A step of the machine, in µs: so many waiters, 15 permits"
    for waiters, tenants in _CROWDS:
        times = [
            simulate(crowd(waiters, tenants), 15, lambda: 1.0, fair=fair, grants=3000).micros
            for fair in (False, True)
        ]
        crowded = f"{waiters:6,} of {tenants:6,} tenants"
        yield f"  {crowded}  in order {times[0]:4.1f}, by shares {times[1]:4.1f}"


_CROWDS: Iterable[tuple[int, int]] = ((1_000, 20), (10_000, 200), (10_000, 10_000))


if __name__ == "__main__":
    for line in report():
        print(line)
