"""One line for each status: what `ls` prints, and `top` shows."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from aiolock.cli.table import Column, aligned, layout
from aiolock.protocol import Participant, Status
from aiolock.text import plain

COLUMNS: Final = (
    Column("KIND", text=True, least=12, dropped=4),
    Column("NAME", text=True, least=20),
    Column("HELD BY", text=True, least=14, dropped=5),
    Column("WHERE", text=True, least=12, dropped=1),
    Column("FOR", dropped=6),
    Column("LEASE", dropped=2),
    Column("WAITING", dropped=7),
    Column("LONGEST", dropped=3),
)
_HELD_BY, _WHERE = 2, 3
"""The places of these columns."""
SORTS: Final[dict[str, Callable[[Status], tuple[Any, ...]]]] = {
    "name": lambda status: (status.kind, status.name),
    "waiting": lambda status: (-len(status.waiters), status.kind, status.name),
    "held": lambda status: tuple(sorted(party.since for party in status.holders)) or (math.inf,),
}
"""The orders in which rows can be sorted."""
_DAY: Final = 86_400
_UNITS: Final = (("s", 1, 100), ("min", 60, 6_000), ("h", 3_600, 2 * _DAY))
"""Units with their lengths, and the durations from which the next one is used, in seconds."""


def listed(statuses: Sequence[Status], width: int | None) -> Iterator[str]:
    """A heading, and a line for each status; see `aligned`."""
    rows = [cells(status) for status in statuses]
    shown = layout(COLUMNS, rows, width)
    if _WHERE not in shown:  # then HELD BY alone names the holder
        rows = [
            (*row[:_HELD_BY], _named(status), *row[_WHERE:]) if status.holders else row
            for row, status in zip(rows, statuses, strict=True)
        ]
    return aligned(COLUMNS, rows, width)


def cells(status: Status) -> tuple[str, ...]:
    """The cells of a row, one for each of the columns."""
    first = status.holders[0] if status.holders else None
    # Not just the first waiter: a later one may have waited longer, with a lower priority.
    waits = min(status.waiters, key=lambda waiter: waiter.since, default=None)
    return (
        status.kind,
        plain(status.name),
        _holder(status) or (who(first) if first else "-"),
        where(first) + _more(status) if first else "-",
        ago(status, first),
        duration(first.remaining) if first else "-",
        str(len(status.waiters)),
        ago(status, waits),
    )


def held_by(party: Participant) -> str:
    """The participant in one cell: its label, or else its process."""
    label = plain(party.label)
    return label + _mark(party) if label else where(party)


def _holder(status: Status) -> str:
    """Who holds a node of a path, if all that hold it are below; empty for anything else."""
    below = status.holders and all(each.below for each in status.holders)
    return f"{status.below} below" if below else ""


def _named(status: Status) -> str:
    return _holder(status) or held_by(status.holders[0]) + _more(status)


def _more(status: Status) -> str:
    return f" +{len(status.holders) - 1}" if len(status.holders) > 1 else ""


def who(party: Participant) -> str:
    """The participant's label, or else a short id."""
    if party.detached:
        return plain(party.label) or "-"
    return plain(party.label) or f"{party.client[:6]}#{party.seq}"


def where(party: Participant) -> str:
    """The participant's process, with a mark if it is gone; a detached lease has none."""
    if party.detached:
        return "detached"
    return f"{plain(party.host) or '?'}:{party.pid}{_mark(party)}"


def _mark(party: Participant) -> str:
    return "" if party.alive else " !"


def ago(status: Status, party: Participant | None) -> str:
    """For how long this participant has held it, or waited; a dash for none."""
    return duration(max(0.0, status.now - party.since)) if party else "-"


def duration(seconds: float) -> str:
    """A duration, in few characters."""
    for unit, length, most in _UNITS:
        if seconds < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / _DAY:.0f} days"
