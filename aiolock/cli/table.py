"""Tables on a terminal: what is less important is left out where there is no room for it."""

from __future__ import annotations

import shutil
import sys
import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

_GAP: Final = "  "


class Column(NamedTuple):
    """A column of a table: of texts, or of numbers, which are aligned to the right."""

    title: str
    text: bool = False
    least: int = 8
    """A text is not cut to less than this; a number never is."""
    dropped: int = 0
    """The order in which columns are left out where not all fit; 0: it never is."""


def terminal_width() -> int | None:
    """The width of the terminal on standard output; None if it is none."""
    if sys.stdout is None or not sys.stdout.isatty():
        return None
    return shutil.get_terminal_size().columns


def aligned(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None = None
) -> Iterator[str]:
    """The lines of a table, its heading first; ``width``: the columns of a terminal, or no limit.

    Columns are left out, then texts cut, until it fits, if it can.
    """
    widths = layout(columns, rows, width)
    for row in ([column.title for column in columns], *rows):
        cells = (_fitted(printable(row[at]), widths[at], columns[at]) for at in widths)
        yield _GAP.join(cells).rstrip()


def layout(
    columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int | None
) -> Mapping[int, int]:
    """The widths of the columns that are shown, by their place."""
    widths = {
        at: max(columns_of(printable(text)) for text in (column.title, *(row[at] for row in rows)))
        for at, column in enumerate(columns)
    }
    if width is None:
        return widths
    least = {
        at: min(full, columns[at].least) if columns[at].text else full
        for at, full in widths.items()
    }
    for _, at in sorted((column.dropped, at) for at, column in enumerate(columns)):
        if _total(least) <= width:
            break
        if columns[at].dropped:
            del least[at]
    widths = {at: widths[at] for at in least}
    for _ in range(_total(widths) - width):
        widest = max(widths, key=lambda at: widths[at] - least[at])
        if widths[widest] == least[widest]:
            break
        widths[widest] -= 1
    return widths


def _total(widths: Mapping[int, int]) -> int:
    return sum(widths.values()) + len(_GAP) * (len(widths) - 1)


def _fitted(cell: str, width: int, column: Column) -> str:
    """A cell, cut or filled to its width."""
    cell = cut(cell, width) if columns_of(cell) > width else cell
    fill = " " * (width - columns_of(cell))
    return cell + fill if column.text else fill + cell


def printable(text: str) -> str:
    """The text, with each character escaped that standard output cannot encode."""
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    return text.encode(encoding, "backslashreplace").decode(encoding)


def columns_of(text: str) -> int:
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
        if columns_of(left + first + right) > room:
            break
        left += first
        if columns_of(left + last + right) > room:
            break
        right = last + right
    return left + mark + right
