"""The figures, as a table for people."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from aiolock.cli.demo.figures import ONE_CLOCK, Figures, Killed, Spread

_NOTHING: Final = "-"


def table(without: Figures, under_lock: Figures) -> Iterator[str]:
    """Its lines, and then one for each worker that was killed."""
    yield _line("", "without a lock", "with the lock")
    for label, cell in _ROWS:
        cells = cell(without), cell(under_lock)
        if cells != (_NOTHING, _NOTHING):  # not every store has commands to count
            yield _line(label, *cells)
    if not ONE_CLOCK:
        yield "  (Processes have no clock in common here: times are compared within each one.)"
    if under_lock.killed:
        yield (
            f"  (For {under_lock.standstill_seconds:,.1f} s of it the holder had been stopped or"
            " killed. The rate leaves them out.)"
        )
        yield ""
    for killed in under_lock.killed:
        yield f"  Worker {killed.worker} was killed {_fate(killed)}."


def _line(label: str, without: str, under_lock: str) -> str:
    return f"  {label:22}{without:>16}{under_lock:>24}"


def _number(value: float | None, digits: int = 0) -> str:
    return _NOTHING if value is None else f"{value:,.{digits}f}"


def _spread(spread: Spread | None) -> str:
    return _NOTHING if spread is None else f"{spread.p50:,.2f} / {spread.p99:,.2f} ms"


_ROWS: Final[list[tuple[str, Callable[[Figures], str]]]] = [
    ("items", lambda of: _number(of.items)),
    ("requests", lambda of: _number(of.requests)),
    ("sold", lambda of: _number(of.sold)),
    ("oversold", lambda of: _number(of.oversold)),
    ("stock at the end", lambda of: _number(of.left)),
    ("requests per second", lambda of: _number(of.per_second)),
    ("waiting, p50 / p99", lambda of: _spread(of.waiting_ms)),
    ("hand-off, p50 / p99", lambda of: _spread(of.handoff_ms)),
    ("requests overtaken", lambda of: _number(of.overtaken)),
    ("commands per hand-off", lambda of: _number(of.commands_per_grant, 2)),
    ("leases lost", lambda of: _number(of.leases_lost)),
]


def _fate(killed: Killed) -> str:
    cost = "-" if killed.cost_seconds is None else f"{killed.cost_seconds * 1000:,.1f} ms"
    if not killed.holding:
        return (
            f"with {killed.in_queue} requests in the queue: they were passed over,"
            f" and no hand-off took longer than {cost}"
        )
    if killed.wrote:
        return f"after its write: the item is sold, and the next one entered {cost} later"
    return f"before its write: another sold the item, and entered {cost} later"
