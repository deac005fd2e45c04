"""The results of an act: was the count right, how fast was it, was any request overtaken."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from aiolock.cli.demo.customers import Visit
from aiolock.cli.demo.kills import Kill
from aiolock.cli.demo.shop import Sale

ONE_CLOCK: Final = sys.platform == "linux"
"""Whether ``time.monotonic_ns`` of two processes is one clock. Linux guarantees it; elsewhere times
are compared within one process only."""


@dataclass(frozen=True, slots=True)
class Act:
    """One sale, as it was recorded."""

    locked: bool
    items: int
    left: int
    """The stock at the end."""
    sales: list[Sale]
    """As they were written, by any customer: the truth about what was sold."""
    visits: list[Visit]
    """As the customers reported them; those during which a worker was killed are missing."""
    kills: list[Kill]
    seconds: float
    ended: int
    """When it ended (``time.monotonic_ns``)."""
    commands: int | None
    """How many commands the lock sent to its store."""
    closed_after: float | None = None
    """Seconds after which it was ended with items left; None if it was not."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Many durations, in ms: half are at most ``p50``, and 99 in a hundred at most ``p99``."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Killed:
    """The results for a worker that was killed."""

    worker: int
    pid: int
    holding: bool
    wrote: bool
    in_queue: int
    cost_seconds: float | None
    """For a holder: from its death to the next body. For one in the queue: the longest hand-off
    until all its places had been passed. None: it is unknown, or there is no queue."""


@dataclass(frozen=True, slots=True)
class Figures:
    """One column of the table."""

    items: int
    requests: int
    sold: int
    oversold: int
    left: int
    seconds: float
    standstill_seconds: float
    """How long of that a stopped or killed customer held the lock."""
    closed_after: float | None
    """Seconds after which the shop was closed with items left; None if it was not."""
    per_second: float | None = None
    """Requests per second of the time without a standstill. None without a lock: there no request
    waits for another, which is no contest."""
    waiting_ms: Spread | None = None
    waiting_undelayed_ms: Spread | None = None
    """Of requests that did not wait for the lease of a killed holder to end; None if none was
    killed, or it is unknown."""
    handoff_ms: Spread | None = None
    overtaken: int | None = None
    waited: int | None = None
    """Requests that had to wait, and so might have been overtaken."""
    per_customer: tuple[int, int] | None = None
    """The fewest and the most items that one customer bought, of those who stayed to the end."""
    commands_per_grant: float | None = None
    """Including those of requests that were killed in the queue."""
    leases_lost: int | None = None
    killed: list[Killed] = field(default_factory=list[Killed])


def figures(act: Act) -> Figures:
    """Count and measure."""
    per_customer = _per_customer(act)
    act = replace(act, visits=[visit for visit in act.visits if visit.entered or visit.lost])
    standstill = _standstill(act)
    plain = Figures(
        items=act.items,
        requests=len(act.visits),
        sold=len(act.sales),
        oversold=max(0, len(act.sales) - act.items),
        left=act.left,
        seconds=act.seconds,
        standstill_seconds=standstill,
        closed_after=act.closed_after,
    )
    if not act.locked:
        return plain
    overtaken, waited = _overtaken(act)
    grants = len(act.visits) + sum(kill.holding for kill in act.kills)
    return replace(
        plain,
        per_second=len(act.visits) / (act.seconds - standstill),
        waiting_ms=_spread([visit.entered - visit.asked for visit in _in_order(act)]),
        waiting_undelayed_ms=_undelayed(act),
        handoff_ms=_spread([took for _, took in _handoffs(act)]),
        overtaken=overtaken,
        waited=waited,
        per_customer=per_customer,
        commands_per_grant=act.commands / grants if act.commands is not None and grants else None,
        leases_lost=sum(visit.lost for visit in act.visits),
        killed=[_killed(act, kill) for kill in act.kills],
    )


def _turn(of: Visit | Kill) -> tuple[int, int]:
    """The sort key of a turn; by the clock if the lock has no fencing tokens."""
    return of.fence, of.entered


def _in_order(act: Act) -> list[Visit]:
    """The visits in the order in which they were granted the lock."""
    return sorted((visit for visit in act.visits if visit.entered), key=_turn)


def _spread(durations: Sequence[int]) -> Spread | None:
    ordered = sorted(durations)
    if not ordered:
        return None
    middle, most = (ordered[int(part * (len(ordered) - 1))] / 1e6 for part in (0.5, 0.99))
    return Spread(middle, most)


def _handoffs(act: Act) -> list[tuple[int, int]]:
    """The fence of each holder that handed on, and how many ns later the next one entered.

    Only if the next was in the queue by then (otherwise its own way there would be measured), and
    no holder was killed in between.
    """
    killed = [_turn(kill) for kill in act.kills if kill.holding]
    return [
        (before.fence, after.entered - before.leaving)
        for before, after in pairwise(_in_order(act))
        if before.leaving
        and 0 < after.queued <= before.leaving
        and (ONE_CLOCK or (before.fence and before.worker == after.worker))
        and not any(_turn(before) < turn < _turn(after) for turn in killed)
    ]


def _per_customer(act: Act) -> tuple[int, int] | None:
    """Items per customer, of workers that were not killed: the fewest, and the most."""
    killed = {kill.worker for kill in act.kills}
    bought = Counter[tuple[int, int]]()
    for visit in act.visits:
        if visit.worker not in killed:
            bought[visit.worker, visit.customer] += visit.sold
    return (min(bought.values()), max(bought.values())) if bought else None


def _overtaken(act: Act) -> tuple[int, int]:
    """How many requests were certainly served after one that had come later; how many waited.

    Within a process that is exact, if there is a queue: its requests reach the server in the order
    in which they were made. Between processes, it is unknown which of two requests that were under
    way together came first. So A counts as overtaken by B only if A had *its answer* that it had to
    wait before B even asked, and B was served first all the same. So no round trip, and no
    difference between two times of arrival, has to be guessed.
    """
    overtaken = waited = 0
    last_number: dict[int, int] = {}
    last_asked: dict[int, int] = {}
    for visit in _in_order(act):
        clock = 0 if ONE_CLOCK else visit.worker
        within = visit.fence > 0 and last_number.get(visit.worker, -1) > visit.number
        across = visit.queued > 0 and last_asked.get(clock, 0) > visit.queued
        overtaken += within or across
        waited += within or visit.queued > 0
        last_number[visit.worker] = max(visit.number, last_number.get(visit.worker, -1))
        last_asked[clock] = max(visit.asked, last_asked.get(clock, 0))
    return overtaken, waited


def _next(act: Act, kill: Kill) -> int | None:
    """When the body after its holder's was entered, even by one that was killed too."""
    bodies = [_turn(visit) for visit in act.visits]
    bodies += [_turn(other) for other in act.kills if other.holding]
    entered = [turn[1] for turn in bodies if turn > _turn(kill)]
    return min(entered) if entered and ONE_CLOCK else None


def _standstill(act: Act) -> float:
    """How many seconds a stopped or killed customer held the lock."""
    if not ONE_CLOCK:
        return 0.0
    return sum((_next(act, kill) or act.ended) - kill.entered for kill in act.kills) / 1e9


def _undelayed(act: Act) -> Spread | None:
    """The waits during which no killed holder had the lock."""
    ends = [_next(act, kill) for kill in act.kills if kill.holding]
    if not ends or not ONE_CLOCK:
        return None
    return _spread(
        [
            visit.entered - visit.asked
            for visit in _in_order(act)
            if not any(end and visit.asked < end <= visit.entered for end in ends)
        ]
    )


def _killed(act: Act, kill: Kill) -> Killed:
    cost: float | None = None
    if kill.holding:
        if (then := _next(act, kill)) is not None:
            cost = (then - kill.at) / 1e9
    elif kill.queue is not None:
        passed = [took for fence, took in _handoffs(act) if fence >= kill.fence]
        cost = max(passed[: kill.queue - kill.waiting], default=0) / 1e9
    return Killed(kill.worker, kill.pid, kill.holding, kill.wrote, kill.waiting, cost)


def audit(act: Act) -> list[str]:
    """All that is wrong with a sale; empty, if it came out exactly right."""
    wrong: list[str] = []
    if act.left != 0:
        wrong.append(f"the stock is {act.left} at the end")
    if len(act.sales) != act.items:
        wrong.append(f"{len(act.sales)} sales are on record, of {act.items} items")
    twice = [item for item, times in Counter(sale.item for sale in act.sales).items() if times > 1]
    if twice:
        wrong.append(f"{len(twice)} items were sold more than once")
    stale = sum(after.fence <= before.fence for before, after in pairwise(act.sales))
    if stale:
        wrong.append(f"{stale} sales were written after one with a higher fencing token")
    fences = {sale.fence for sale in act.sales}
    unwritten = sum(visit.sold and visit.fence not in fences for visit in act.visits)
    if unwritten:
        wrong.append(f"{unwritten} customers bought an item, and it is not on record")
    wrong += [
        f"worker {kill.worker} was killed, and its last sale is "
        + ("not on record" if kill.wrote else "on record though it had not written it")
        for kill in act.kills
        if kill.holding and kill.wrote != (kill.fence in fences)
    ]
    return wrong
