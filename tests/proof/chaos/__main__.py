"""``python -m tests.proof.chaos``: break everything for a while, then check what happened."""

from __future__ import annotations

import argparse
import asyncio
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Final

from tests.proof.chaos.checker import check, lost_at
from tests.proof.chaos.conductor import Conductor
from tests.proof.chaos.faults import ATTACKS, UNPLANNED, Fault
from tests.proof.chaos.history import read
from tests.proof.chaos.run import Acquisition, Run, Violation

WORKERS: Final = 4
TASKS: Final = 12
_MOST_SHOWN: Final = 3
"""Violations of one rule that are printed."""
_BUSY: Final = "lock:hot"
_EXCERPT: Final = 60
"""Events of one violation that are printed."""


def say(text: str) -> None:
    """Print a line at once, also into a pipe."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


async def chaos(
    folder: Path,
    *,
    store: str = "redis",
    seconds: float,
    seed: str,
    workers: int = WORKERS,
    tasks: int = TASKS,
    faults: Sequence[Fault] | None = None,
    progress: Callable[[str], object] = say,
) -> None:
    """One run, with the seed's faults or with these; its history is in ``folder`` afterwards."""
    conductor = Conductor(
        *(folder,),
        store=store,
        seconds=seconds,
        seed=seed,
        workers=workers,
        tasks=tasks,
        faults=faults,
    )
    await conductor.run(progress)


def report(run: Run, violations: Sequence[Violation]) -> str:
    """The figures and the verdict."""
    began = next(event for event in run.events if event.kind == "began")
    entries = [attempt for those in run.entries.values() for attempt in those]
    waits = sorted(a.entered.t - a.asked.t for a in entries if a.entered)
    outcomes = Counter(attempt.outcome for attempt in run.attempts.values())
    lost = sum(lost_at(attempt) is not None for attempt in entries)
    ordered = sum(run.stood_since(a, a.entered.t) is not None for a in entries if a.entered)
    kinds = Counter(
        event["kind"]
        for event in run.events
        if event.kind == "fault" and event["kind"] not in UNPLANNED
    )

    def share(part: float) -> str:
        return f"{waits[int(part * (len(waits) - 1))] / 1e6:,.1f} ms" if waits else "-"

    rows: list[tuple[str, object]] = [
        ("store", began["store"]),
        ("seed", began["seed"]),
        ("seconds of faults", f"{began['seconds']:g}"),
        ("events", f"{len(run.events):,}"),
        ("attempts", f"{len(run.attempts):,}"),
        ("entries", f"{len(entries):,}"),
        ("hand-offs (pushed)", f"{sum(a.entered['pushed'] for a in entries if a.entered):,}"),
        ("order checked", f"{ordered:,}"),
        ("cancellations", f"{sum(a.cancelling is not None for a in run.attempts.values()):,}"),
        (
            "time-outs",
            f"{sum(outcomes[o] for o in ('none', 'AcquireTimeout', 'TimeoutError')):,}",
        ),
        ("losses", f"{lost:,}"),
        ("breaks", f"{sum(event.kind == 'breaking' for event in run.events):,}"),
        ("nobody knows (StoreError)", f"{outcomes['StoreError']:,}"),
        ("late copies (refused)", _late(run)),
        ("handed on, adopted", _handed_on(entries)),
        ("clients closed in use", f"{sum(event.kind == 'closing' for event in run.events):,}"),
        ("waiting p50", share(0.5)),
        ("waiting p99", share(0.99)),
        ("waiting max", share(1.0)),
        (f"longest pause of {_BUSY}", f"{longest_pause(run) / 1e9:.2f} s"),
        ("faults", f"{sum(kinds.values()):,}"),
        *((f"  {kind}", count) for kind, count in sorted(kinds.items())),
        ("verdict", "right" if not violations else f"WRONG: {len(violations)} violations"),
    ]
    width = max(len(row[0]) for row in rows)
    return "\n".join(f"{what:<{width}}  {value}" for what, value in rows)


def longest_pause(run: Run) -> int:
    """The longest time in which nobody entered the lock that most want, while others waited."""
    times = [attempt.entered.t for attempt in run.entries.get(_BUSY, ()) if attempt.entered]
    return max((after - before for before, after in pairwise(times)), default=0)


def _handed_on(entries: Sequence[Acquisition]) -> str:
    """How many leases were handed on, and how many of these another process has adopted."""
    detached = {a.fence: a.who for a in entries if a.detached is not None}
    others = sum(a.who != detached.get(a.adopts, a.who) for a in entries if a.adopts)
    adopted = sum(a.adopts > 0 for a in entries)
    return f"{len(detached):,}, {adopted:,} ({others:,} by another process)"


def _late(run: Run) -> str:
    """How often a link's late copies reached the server, and how many of them it refused."""
    refused = [event["refused"] for event in run.of("late")]
    return f"{len(refused)} ({sum(refused):,})"


def explain(run: Run, violations: Sequence[Violation]) -> str:
    """The first violations of each rule, with their events."""
    begin = run.events[0].t
    lines: list[str] = []
    shown: Counter[str] = Counter()
    for violation in violations:
        shown[violation.rule] += 1
        if shown[violation.rule] > _MOST_SHOWN:
            continue
        excerpt = [event.line(begin) for event in violation.excerpt]
        if len(excerpt) > _EXCERPT:
            half = _EXCERPT // 2
            excerpt[half:-half] = [f"{'...':>11}"]
        lines += ["", f"VIOLATION of {violation.rule}: {violation.text}", *excerpt]
    for rule, count in shown.items():
        if count > _MOST_SHOWN:
            lines.append(f"\n... and {count - _MOST_SHOWN} more of {rule}")
    return "\n".join(lines)


def judge(folder: Path) -> int:
    """Check the history in a folder and print the verdict; the exit code."""
    run = Run(read(folder))
    violations = check(run)
    if violations:
        say(explain(run, violations))
    say("")
    say(report(run, violations))
    return 1 if violations else 0


def main(arguments: Sequence[str] | None = None) -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.proof.chaos", description=__doc__)
    parser.add_argument("--store", choices=ATTACKS, default="redis", help="what it is made at")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", default="1")
    parser.add_argument("--keep", type=Path, help="a new folder to keep the history in")
    parser.add_argument("--check", type=Path, help="check a history that was kept, run nothing")
    options = parser.parse_args(arguments)
    if options.check:
        return judge(options.check)
    folder = options.keep or Path(tempfile.mkdtemp(prefix="aiolock-chaos-"))
    folder.mkdir(parents=True, exist_ok=True)
    asyncio.run(chaos(folder, store=options.store, seconds=options.seconds, seed=options.seed))
    code = judge(folder)
    if code:
        say(f"\nThe history is in {folder}")
    elif not options.keep:
        shutil.rmtree(folder)
    return code


if __name__ == "__main__":
    sys.exit(main())
