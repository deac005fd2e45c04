"""The output: Markdown tables, numbers that a reader can compare, and bars with a verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from benchmarks.rounds import Spread


def number(value: float) -> str:
    """``value`` with three significant digits: 0.0123, 4.56, 78.9, 12,345."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def amount(measured: Spread, unit: str = "") -> str:
    """A median with its quartiles, ``4.56 (4.1–5.0) µs``; alone if all rounds agree."""
    if math.isnan(measured.median):
        return "–"
    text = number(measured.median)
    if measured.low != measured.high:
        text += f" ({number(measured.low)}–{number(measured.high)})"
    return f"{text} {unit}".rstrip()


def markdown(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A Markdown table, padded so that it can be read as text."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(3, *(len(row[column]) for row in cells)) for column in range(len(header))]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(r, widths, strict=True)) + " |" for r in cells
    ]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    return "\n".join(lines) + "\n"


@dataclass(frozen=True)
class Measured:
    """A measured value of a promised figure."""

    spread: Spread
    beside: str = ""
    """A note for the reader."""


@dataclass(frozen=True)
class Bar:
    """A promised figure, and the measured values in each column."""

    what: str
    unit: str
    limit: float
    at_least: bool
    cells: Mapping[str, Measured]

    def reached(self, measured: Measured) -> bool:
        """Whether the median is on the right side of the bar."""
        if self.at_least:
            return measured.spread.median >= self.limit
        return measured.spread.median <= self.limit

    @property
    def promised(self) -> str:
        """The limit in words."""
        word = "at least" if self.at_least else "at most"
        return f"{word} {self.limit:g} {self.unit}".rstrip()

    def cell(self, column: str) -> str:
        """The measured value in this column, and whether it missed the bar."""
        measured = self.cells.get(column)
        if measured is None or math.isnan(measured.spread.median):
            return "–"
        text = amount(measured.spread)
        return text if self.reached(measured) else f"**missed:** {text}"


def bars(promised: Sequence[Bar]) -> str:
    """The table of bars: a row for each promise, a column for each way to measure it."""
    columns = _columns(promised)
    rows = [(bar.what, bar.promised, *map(bar.cell, columns)) for bar in promised]
    return markdown(("what", "promised", *columns), rows)


def beside(promised: Sequence[Bar]) -> str:
    """The values behind the bars: the medians that were compared, and other remarks."""
    columns = _columns(promised)
    rows = [
        (
            bar.what,
            bar.unit,
            *(bar.cells[each].beside if each in bar.cells else "–" for each in columns),
        )
        for bar in promised
        if any(measured.beside for measured in bar.cells.values())
    ]
    return markdown(("behind the bars", "", *columns), rows)


def _columns(promised: Sequence[Bar]) -> list[str]:
    return list(dict.fromkeys(column for bar in promised for column in bar.cells))
