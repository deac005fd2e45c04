"""One line for each status: what `ls` prints, and `top` shows."""

from __future__ import annotations

import math
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from aiolock.protocol import Participant, Status
from aiolock.text import plain

COLUMNS: Final = ("KIND", "NAME", "HELD BY", "WHERE", "FOR", "LEASE", "WAITING", "LONGEST")
TEXTS: Final = 4
"""The number of columns of text; the others are numbers, and are aligned to the right."""
SORTS: Final[dict[str, Callable[[Status], tuple[Any, ...]]]] = {
    "name": lambda status: (status.kind, status.name),
    "waiting": lambda status: (-len(status.waiters), status.kind, status.name),
    "held": lambda status: tuple(sorted(party.since for party in status.holders)) or (math.inf,),
}
"""The orders in which rows can be sorted."""
_GAP: Final = "  "
_NARROWEST: Final = 8
"""Columns of text are not made narrower than this."""
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


def _who(party: Participant) -> str:
    """The participant's label, or else a short id."""
    if party.detached:
        return plain(party.label) or "-"
    return plain(party.label) or f"{party.client[:6]}#{party.seq}"


def where(party: Participant) -> str:
    """The participant's process, with a mark if it is gone; a detached lease has none."""
    if party.detached:
        return "detached"
    return f"{plain(party.host) or '?'}:{party.pid}" + ("" if party.alive else " !")


def _ago(status: Status, party: Participant | None) -> str:
    return duration(max(0.0, status.now - party.since)) if party else "-"


def duration(seconds: float) -> str:
    """A duration, in few characters."""
    for unit, length, most in _UNITS:
        if seconds < most:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds / _DAY:.0f} days"


def terminal_width() -> int | None:
    """The width of the terminal on standard output; None if it is none."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def aligned(rows: Sequence[Sequence[str]], width: int | None = None) -> Iterable[str]:
    """The lines of a table; cut to so many columns of a terminal, unless that is None."""
    shown = [[printable(cell) for cell in row] for row in rows]
    widths = [max(map(columns, column)) for column in zip(*shown, strict=True)]
    if width is not None:
        _narrow(widths, width)
    for row in shown:
        yield _GAP.join(map(_fitted, row, widths, range(len(row)))).rstrip()


def _fitted(cell: str, width: int, number: int) -> str:
    """A cell, cut or filled to its width."""
    cell = cut(cell, width) if columns(cell) > width else cell
    fill = " " * (width - columns(cell))
    return cell + fill if number < TEXTS else fill + cell


def _narrow(widths: list[int], width: int) -> None:
    """Make the widest columns of text narrower until all of them fit, if they can."""
    excess = sum(widths) + len(_GAP) * (len(widths) - 1) - width
    for _ in range(excess):
        widest = max(range(TEXTS), key=lambda number: widths[number])
        if widths[widest] <= _NARROWEST:
            return
        widths[widest] -= 1


def printable(text: str) -> str:
    """The text, with each character escaped that standard output cannot encode."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def columns(text: str) -> int:
    """The number of columns of a terminal that the text takes."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(each) else 1 + (unicodedata.east_asian_width(each) in "WF")
        for each in text
    )


def cut(text: str, width: int) -> str:
    """The text without its middle: names mostly differ at one of their ends."""
    mark = "…" if printable("…") == "…" else "~"
    left, right, room = "", "", width - 1
    for first, last in zip(text, reversed(text), strict=True):
        if columns(left + first + right) > room:
            break
        left += first
        if columns(left + last + right) > room:
            break
        right = last + right
    return left + mark + right
