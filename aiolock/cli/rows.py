"""One line for each status: what `ls` prints, and `top` shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiolock.store import Party, Status, plain

COLUMNS: Final = ("KIND", "NAME", "HELD BY", "WHERE", "FOR", "LEASE", "WAITING", "LONGEST")
TEXTS: Final = 4
"""How many of the columns are text; the others are numbers, and are aligned to the right."""
SORTS: Final[dict[str, Callable[[Status], tuple[Any, ...]]]] = {
    "name": lambda status: (status.kind, status.name),
    "waiting": lambda status: (-len(status.waiters), status.kind, status.name),
    "held": lambda status: tuple(sorted(party.since for party in status.holders)) or (math.inf,),
}
"""The orders in which rows can be sorted."""
_DAY: Final = 86_400
_UNITS: Final = (("s", 1, 100), ("min", 60, 6_000), ("h", 3_600, 2 * _DAY))
"""Units with their lengths, and the durations from which the next one is used, in seconds."""


def cells(status: Status) -> Sequence[str]:
    """The cells of a row, one for each of the columns."""
    first = status.holders[0] if status.holders else None
    more = f" +{len(status.holders) - 1}" if len(status.holders) > 1 else ""
    # Not just the first waiter: a later one may have waited longer, with a lower priority.
    waits = min(status.waiters, key=lambda waiter: waiter.since, default=None)
    return (
        status.kind,
        plain(status.name),
        _who(first) if first else "-",
        where(first) + more if first else "-",
        _ago(status, first),
        duration(first.remaining) if first else "-",
        str(len(status.waiters)),
        _ago(status, waits),
    )


def _who(party: Party) -> str:
    """The party's label, or else a short id."""
    return plain(party.label) or f"{party.client[:6]}#{party.seq}"


def where(party: Party) -> str:
    """The party's process, with a mark if it is gone."""
    return f"{plain(party.host) or '?'}:{party.pid}" + ("" if party.alive else " !")


def _ago(status: Status, party: Party | None) -> str:
    return duration(max(0.0, status.now - party.since)) if party else "-"


def duration(seconds: float) -> str:
    """A duration, in few characters."""
    for unit, length, most in _UNITS:
        if seconds < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / _DAY:.0f} days"


def aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    """The lines of a table."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number < TEXTS else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
