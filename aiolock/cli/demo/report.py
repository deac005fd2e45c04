"""What came out: the figures of each run, the mistakes in it, and the table."""

from __future__ import annotations

import json
import math
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Final, TypeAlias

from aiolock.cli.demo import Options
from aiolock.cli.demo.contention import Kill, Run
from aiolock.cli.demo.worker import Request

Value: TypeAlias = int | float | tuple[float, float] | None

ROWS: Final = {
    "items": ("items", ""),
    "requests": ("requests", "those that were answered: a killed worker's are not"),
    "sold": ("sold", "requests that were told yes"),
    "oversold": ("oversold", "sold beyond the number of items"),
    "left": ("stock at the end", ""),
    "per_second": ("requests a second", "one after the other; without a lock none waits"),
    "waiting_ms": ("waiting, ms", "from asking until the lock is held: p50 / p99"),
    "handoff_ms": ("hand-off, ms", "from one's work to the next one's, which waited: p50 / p99"),
    "waited": ("waited", "requests for which the lock was not free"),
    "overtaken": ("overtaken", "of these, those that a later request overtook"),
    "items_per_task": ("items per task", "the fewest and the most"),
    "commands": ("commands", "what the server got for the lock, for each request"),
    "leases_lost": ("leases lost", "leases that ended before the work"),
}
"""The figures: by their names in JSON, their titles and what they mean."""
PARAGRAPH: Final = textwrap.TextWrapper(
    80, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False
)
RIGHT: Final = "The runs with aiolock came out exactly right: each item was sold once."
HINT: Final = "On a Redis server (--url redis://...) redis-py's own Lock has a run, too."


def figures(run: Run) -> dict[str, Value]:
    """Count and measure; None for what says nothing about such a run."""
    served = in_order(run)
    seconds = (served[-1].leaving - min(each.asked for each in served)) / 1e9 if served else 0.0
    bought = Counter((each.worker, each.task) for each in served if each.sold)
    fewest = min(bought.values(), default=0) if len(bought) == run.tasks else 0
    values: dict[str, Value] = {
        "items": run.items,
        "requests": len(run.requests),
        "sold": run.sold,
        "oversold": max(0, run.sold - run.items),
        "left": run.left,
    }
    if run.kind.guard != "nothing":  # without a lock nobody waits for anybody
        values |= {
            "waited": sum(each.queued > 0 for each in served),
            "overtaken": count_overtaken(run),
            "handoff_ms": spread(took for _, took in handoffs(run)),
            "leases_lost": sum(each.lost for each in run.requests),
        }
        if not run.kind.kill:  # for the lease of a killed holder all others wait
            values |= {
                "per_second": round(len(served) / seconds) if seconds else None,
                "waiting_ms": spread(each.entered - each.asked for each in served),
                "items_per_task": (fewest, max(bought.values(), default=0)),
                "commands": run.commands and run.commands / max(1, len(served)),
            }
    return {key: values.get(key) for key in ROWS}


def turn(request: Request) -> tuple[int, int]:
    """The sort key of holders: by the clock, if a lock has no fencing tokens."""
    return request.fence, request.entered


def in_order(run: Run) -> list[Request]:
    """The requests that held the lock, in that order; also those of killed holders."""
    killed = [kill.holder for kill in run.kills if kill.holding]
    return sorted((each for each in [*run.requests, *killed] if each.entered), key=turn)


def spread(durations: Iterable[int]) -> tuple[float, float] | None:
    """The 50th and the 99th percentile of nanoseconds, in ms."""
    ordered = sorted(durations)
    if not ordered:
        return None
    p50, p99 = (ordered[int(part * (len(ordered) - 1))] / 1e6 for part in (0.5, 0.99))
    return p50, p99


def handoffs(run: Run) -> list[tuple[Request, int]]:
    """The requests that handed the lock on, and how many ns later the next one held it.

    Only if the next one was in the queue by then. A killed holder hands nothing on.
    """
    return [
        (before, after.entered - before.leaving)
        for before, after in pairwise(in_order(run))
        if 0 < after.queued <= before.leaving
    ]


def count_overtaken(run: Run) -> int:
    """The number of requests that held the lock after one that certainly asked later.

    Within a process the order of the calls is certain, if there is a queue. Of two processes nobody
    knows whose request came first, unless one was known to wait before the other asked.
    """
    overtaken = latest = 0
    numbers: dict[int, int] = {}
    for each in in_order(run):
        last = numbers.get(each.worker, -1)
        overtaken += (each.fence > 0 and each.number < last) or 0 < each.queued < latest
        numbers[each.worker] = max(each.number, last)
        latest = max(each.asked, latest)
    return overtaken


def cost(run: Run, kill: Kill) -> float | None:
    """What a kill cost the others, in ms; None if nobody held the lock afterwards.

    For a holder, the time until the next one held the lock; for a waiter, the longest hand-off.
    """
    took = [took for before, took in handoffs(run) if before.entered > kill.at]
    if kill.holding:
        later = [each.entered for each in in_order(run) if turn(each) > turn(kill.holder)]
        took = [entered - kill.at for entered in later[:1]]
    return max(took) / 1e6 if took else None


def mistakes(runs: Iterable[Run]) -> list[str]:
    """All that is wrong with the runs with aiolock; empty if they came out exactly right."""
    return [wrong for run in runs if run.kind.guard == "aiolock" for wrong in mistakes_of(run)]


def mistakes_of(run: Run) -> Iterator[str]:
    """All that is wrong with a run."""
    sales = run.history[1:]
    if run.left:
        yield f"the stock is {run.left} at the end"
    if run.sold != run.items:
        yield f"{run.sold} sales are on record, of {run.items} items"
    if twice := sum(times > 1 for times in Counter(left for left, _ in sales).values()):
        yield f"{twice} items were sold more than once"
    if stale := sum(after <= before for (_, before), (_, after) in pairwise(sales)):
        yield f"{stale} sales were written after one with a higher fencing token"
    fences = {fence for _, fence in sales}
    if missing := sum(each.sold and each.fence not in fences for each in run.requests):
        yield f"{missing} requests were told yes, and their sale is not on record"
    for kill in run.kills:
        if kill.holding and kill.holder.sold != (kill.holder.fence in fences):
            yield f"worker {kill.worker} was killed, and its last sale is " + (
                "not on record" if kill.holder.sold else "on record though it had not written it"
            )


def as_json(options: Options, runs: Sequence[Run]) -> str:
    """All figures."""
    document = {
        "server": options.server,
        "workers": options.workers,
        "requests_at_once": options.requests,
        "ttl": options.ttl,
        **{run.kind.name: figures(run) for run in runs},
        "killed": [
            {
                "worker": kill.worker,
                "holding": kill.holding,
                "wrote": kill.holder.sold,
                "waiting": kill.waiting,
                "cost_ms": cost(run, kill),
            }
            for run in runs
            for kill in run.kills
        ],
        "wrong": mistakes(runs),
    }
    return json.dumps(document, indent=2)


def as_text(runs: Sequence[Run]) -> str:
    """A table, what its figures do not tell, what its words mean, and the verdict."""
    columns = [figures(run) for run in runs]
    table = {key: [cell(column[key]) for column in columns] for key in ROWS}
    table = {key: cells for key, cells in table.items() if set(cells) != {"-"}}
    wrong = mistakes(runs)
    lines = [
        "",
        row("", [run.kind.column for run in runs]),
        *(row(ROWS[key][0], cells) for key, cells in table.items()),
        "",
        *map(PARAGRAPH.fill, notes(runs)),
        "",
        *(row(ROWS[key][0]) + ROWS[key][1] for key in table if ROWS[key][1]),
        row("p50 / p99") + "half took the first at most, 99 of 100 the second",
        "",
        f"WRONG: {'; '.join(wrong)}." if wrong else RIGHT,
    ]
    return "\n".join(lines if runs[-1].kind.guard == "redis-py" else [*lines, HINT])


def notes(runs: Sequence[Run]) -> Iterator[str]:
    """What the figures alone do not tell."""
    for run in runs:
        if run.sold != run.items - run.left:
            yield (
                f"{run.kind.title}: {run.sold:,} requests were told yes, and the stock went down by"
                f" {run.items - run.left:,}, because they overwrote each other's numbers."
            )
        for kill in run.kills:
            if (ms := cost(run, kill)) is not None:
                then = (
                    "the next one held it after" if kill.holding else "no hand-off took more than"
                )
                yield f"Killed {kill}: {then} {ms:,.1f} ms."
        if run.kind.guard == "redis-py":
            at_once = sum(not each.queued for each in run.requests)
            yield (
                f"{run.kind.title}: {at_once:,} of {len(run.requests):,} requests did not wait,"
                " because a process that releases it can have it again before any other asks."
            )
        if run.left and run.kind.seconds < math.inf:
            yield f"It was ended after {run.kind.seconds:g} s, with {run.left:,} items left."


def cell(value: Value) -> str:
    """A figure, or two; with three significant digits."""
    if isinstance(value, tuple):
        return " / ".join(map(cell, value))
    if value is None:
        return "-"
    digits = 0 if isinstance(value, int) else max(0, 3 - len(str(int(value))))
    return f"{value:,.{digits}f}"


def row(title: str, cells: Sequence[str] = ()) -> str:
    """A line of the table."""
    widths = (8, 16, 16, 18)
    return f"  {title:20}" + "".join(f"{c:>{w}}" for c, w in zip(cells, widths, strict=False))
