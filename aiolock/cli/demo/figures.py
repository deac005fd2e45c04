"""What came of an act: was the count right, how fast was it, was anybody overtaken."""

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
"""Whether ``time.monotonic_ns`` of two processes is one clock. Linux says so; elsewhere times are
compared within one process only."""


@dataclass(frozen=True, slots=True)
class Act:
    """One sale, as it was recorded."""

    locked: bool
    items: int
    left: int
    """The stock at the end."""
    sales: list[Sale]
    """As they were written, by whomever: the truth about what was sold."""
    visits: list[Visit]
    """As they were told by who made them; those during which a worker was killed are missing."""
    kills: list[Kill]
    seconds: float
    commands: int | None
    """What the lock sent to its store."""


@dataclass(frozen=True, slots=True)
class Spread:
    """Of many durations, in ms, half were at most ``p50`` and 99 in a hundred at most ``p99``."""

    p50: float
    p99: float


@dataclass(frozen=True, slots=True)
class Killed:
    """What became of a worker that was killed."""

    worker: int
    pid: int
    holding: bool
    wrote: bool
    in_queue: int
    cost_seconds: float | None
    """Of a holder: from its death to the next body. Of one in the queue: the longest hand-off
    until all its places had been passed. None: nobody can say."""


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
    """Of these, those in which somebody who had been stopped or killed held the lock."""
    per_second: float
    """Requests, in the time that was left."""
    waiting_ms: Spread | None = None
    handoff_ms: Spread | None = None
    overtaken: int | None = None
    commands_per_grant: float | None = None
    """With those of requests that were killed in the queue."""
    leases_lost: int | None = None
    killed: list[Killed] = field(default_factory=list[Killed])


def figures(act: Act) -> Figures:
    """Count and measure."""
    standstill = sum(_after(act, kill, kill.entered) or 0.0 for kill in act.kills)
    plain = Figures(
        items=act.items,
        requests=len(act.visits),
        sold=len(act.sales),
        oversold=max(0, len(act.sales) - act.items),
        left=act.left,
        seconds=act.seconds,
        standstill_seconds=standstill,
        per_second=len(act.visits) / (act.seconds - standstill),
    )
    if not act.locked:
        return plain
    grants = len(act.visits) + sum(kill.holding for kill in act.kills)
    return replace(
        plain,
        waiting_ms=_spread([visit.entered - visit.asked for visit in act.visits]),
        handoff_ms=_spread([took for _, took in _handoffs(act)]),
        overtaken=_overtaken(act),
        commands_per_grant=None if act.commands is None else act.commands / grants,
        leases_lost=sum(visit.lost for visit in act.visits),
        killed=[_killed(act, kill) for kill in act.kills],
    )


def _in_order(act: Act) -> list[Visit]:
    """The visits in the order in which they were granted the lock."""
    return sorted((visit for visit in act.visits if visit.fence), key=lambda visit: visit.fence)


def _spread(durations: Sequence[int]) -> Spread | None:
    ordered = sorted(durations)
    if not ordered:
        return None
    middle, most = (ordered[int(part * (len(ordered) - 1))] / 1e6 for part in (0.5, 0.99))
    return Spread(middle, most)


def _handoffs(act: Act) -> list[tuple[int, int]]:
    """The fence of each holder that handed on, and how many ns later the next one entered.

    Only where the next had been in the queue by then, or it would be its own way there that is
    measured, and not where one was killed in between.
    """
    killed = {kill.fence for kill in act.kills if kill.holding}
    return [
        (before.fence, after.entered - before.leaving)
        for before, after in pairwise(_in_order(act))
        if before.leaving
        and 0 < after.queued <= before.leaving
        and (ONE_CLOCK or before.worker == after.worker)
        and not any(before.fence < fence < after.fence for fence in killed)
    ]


def _overtaken(act: Act) -> int:
    """How many requests were served after one that had come later, for certain.

    Within a process that is exact: its requests reach the server in the order in which they were
    made. Between two processes nobody knows which of two requests that were under way together
    came first. So A counts as overtaken by B only if A had *its answer* that it stood in the queue
    before B so much as asked, and B was served first all the same: no round trip, and no
    difference between two times of arrival, has to be guessed.
    """
    overtaken = 0
    last_number: dict[int, int] = {}
    last_asked: dict[int, int] = {}
    for visit in _in_order(act):
        clock = 0 if ONE_CLOCK else visit.worker
        within = last_number.get(visit.worker, -1) > visit.number
        across = visit.queued > 0 and last_asked.get(clock, 0) > visit.queued
        overtaken += within or across
        last_number[visit.worker] = max(visit.number, last_number.get(visit.worker, -1))
        last_asked[clock] = max(visit.asked, last_asked.get(clock, 0))
    return overtaken


def _after(act: Act, kill: Kill, since: int) -> float | None:
    """How many seconds after ``since`` the next body was entered, be it one that was killed too."""
    bodies = [(visit.fence, visit.entered) for visit in act.visits]
    bodies += [(other.fence, other.entered) for other in act.kills if other.holding]
    entered = [entered for fence, entered in bodies if fence > kill.fence]
    return (min(entered) - since) / 1e9 if entered and ONE_CLOCK else None


def _killed(act: Act, kill: Kill) -> Killed:
    if kill.holding:
        cost = _after(act, kill, kill.at)
    else:
        passed = [took for fence, took in _handoffs(act) if fence >= kill.fence]
        cost = max(passed[: kill.queue - kill.waiting], default=0) / 1e9
    return Killed(kill.worker, kill.pid, kill.holding, kill.wrote, kill.waiting, cost)


def audit(act: Act) -> list[str]:
    """All that is wrong with a sale; nothing, if it came out exactly right."""
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
