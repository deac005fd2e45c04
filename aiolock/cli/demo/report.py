"""What came out: the figures of each run, the mistakes in it, and the table."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from statistics import median
from typing import Final, TypeAlias

from aiolock.cli.demo.contention import Run
from aiolock.cli.demo.worker import Request

Figures: TypeAlias = dict[str, float]

ROWS: Final = {
    "sold": ("items sold", ""),
    "oversold": ("oversold", ""),
    "overtaken": ("requests overtaken", ""),
    "handoff_ms": ("hand-off, median", " ms"),
    "longest_wait_s": ("longest wait", " s"),
}
"""The figures that say it at a glance: by their names in JSON, their titles and units."""
WIDTHS: Final = {"no lock": 7, "redis-py": 8, "aiolock": 8}
"""The widths of the columns: with the titles, 48 characters, which fit a phone."""
RIGHT: Final = "aiolock was exactly right: each item sold once."
HINT: Final = "With --url redis://... redis-py's own Lock has a run, too."


def figures(run: Run) -> Figures:
    """Count and measure, but for what says nothing about such a run."""
    oversold = max(0, run.sold - run.items)
    found: Figures = {"items": run.items, "sold": run.sold, "oversold": oversold, "left": run.left}
    served = in_order(run)
    if run.kind.guard == "nothing" or not served:  # without a lock nobody waits for anybody
        return found
    found["overtaken"] = count_overtaken(served)
    if took := sorted(handoffs(served)):
        found |= {"handoff_ms": median(took), "handoff_p99_ms": took[len(took) * 99 // 100]}
        found["slowest_handoff_ms"] = took[-1]
    if run.kind.kill:  # all others wait for the lease of a killed holder
        found |= {"killed": len(run.killed), "blocked_ms": max(blocked(served), default=0.0)}
        return found
    seconds = (max(each.leaving for each in served) - min(each.asked for each in served)) / 1e9
    found["longest_wait_s"] = max(each.entered - each.asked for each in served) / 1e9
    found["per_second"] = round(len(served) / seconds)
    if run.commands > 0:
        found["commands"] = run.commands / len(served)
    return found


def in_order(run: Run) -> list[Request]:
    """The requests that held the lock, in that order: by the clock, if it has no fences."""
    return sorted(run.requests, key=lambda each: (each.fence, each.entered))


def handoffs(served: Iterable[Request]) -> Iterator[float]:
    """The ms from the end of each work to the next one's, if that one was in the queue by then.

    A killed holder hands nothing on.
    """
    for before, after in pairwise(served):
        if 0 < after.queued <= before.leaving:
            yield (after.entered - before.leaving) / 1e6


def blocked(served: Iterable[Request]) -> Iterator[float]:
    """The ms from the death of each killed holder until the next request held the lock."""
    for before, after in pairwise(served):
        if before.killed:
            yield (after.entered - before.killed) / 1e6


def count_overtaken(served: Iterable[Request]) -> int:
    """The number of requests that were in the queue before one asked that held the lock earlier."""
    overtaken = latest = 0
    for each in served:
        overtaken += 0 < each.queued < latest
        latest = max(each.asked, latest)
    return overtaken


def mistakes(runs: Iterable[Run]) -> list[str]:
    """All that is wrong with the runs with aiolock; empty if they came out exactly right."""
    return [wrong for run in runs if run.kind.guard == "aiolock" for wrong in mistakes_of(run)]


def mistakes_of(run: Run) -> Iterator[str]:
    """All that is wrong with a run."""
    numbers, fences = zip(*run.history, strict=True)
    if numbers != tuple(range(run.items, -1, -1)):
        yield f"{run.sold} sales of {run.items} items, and the stock is {run.left}"
    if stale := sum(after <= before for before, after in pairwise(fences)):
        yield f"sales written after one with a higher fencing token: {stale}"
    recorded = set(fences)
    if false := sum(each.sold != (each.fence in recorded) for each in run.requests):
        yield f"requests told otherwise than is on record: {false}"


def lines(runs: Iterable[Run], wrong: Sequence[str]) -> Iterator[str]:
    """A table, the costs of the kills, and the verdict."""
    found = {run.kind.name: figures(run) for run in runs}
    killed = found.pop("killed", None)
    yield ""
    yield row("", {name: name for name in found})
    for key, (title, unit) in ROWS.items():
        if any(key in column for column in found.values()):
            yield row(title, {name: cell(found[name].get(key), unit) for name in found})
    yield ""
    if killed and killed["killed"]:
        counts = ", ".join(f"{key}: {killed[key]:,}" for key in ("killed", "oversold", "overtaken"))
        yield f"Workers {counts}."
        yield f"A dead holder blocked the others for {cell(killed['blocked_ms'], ' ms')}"
        slowest = cell(killed.get("slowest_handoff_ms"), " ms")
        yield f"(its lease), dead waiters for {slowest} at most."
        yield ""
    yield from [f"WRONG: {each}." for each in wrong] or [RIGHT]
    if "redis-py" not in found:
        yield HINT


def cell(value: float | None, unit: str) -> str:
    """A figure, with three significant digits."""
    if value is None:
        return "-"
    digits = 0 if isinstance(value, int) else max(0, 3 - len(str(int(value))))
    return f"{value:,.{digits}f}{unit}"


def row(title: str, cells: dict[str, str]) -> str:
    """A line of the table."""
    return f"{title:22}" + "".join(f" {text:>{WIDTHS[name]}}" for name, text in cells.items())
