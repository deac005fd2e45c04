"""What is printed: Markdown tables, numbers a reader can compare, and bars with a verdict."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from benchmarks.rounds import Spread


def number(value: float) -> str:
    """``value`` with three digits that say something: 0.0123, 4.56, 78.9, 12,345."""
    if value == 0 or abs(value) >= 100:
        return f"{value:,.0f}"
    if abs(value) >= 10:
        return f"{value:.1f}"
    if abs(value) >= 1:
        return f"{value:.2f}"
    return f"{value:.3g}"


def amount(measured: Spread, unit: str = "") -> str:
    """A median with its quartiles, ``4.56 (4.1–5.0) µs``; alone where all rounds agree."""
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
class Bar:
    """A figure that was promised, and what was measured."""

    what: str
    measured: Spread
    unit: str
    limit: float
    at_least: bool
    beside: str = ""
    """What the reader should know of the measurement."""

    @property
    def reached(self) -> bool:
        """Whether the median is on the right side of the bar."""
        if self.at_least:
            return self.measured.median >= self.limit
        return self.measured.median <= self.limit

    def row(self) -> tuple[str, str, str, str, str]:
        """The line of the table of bars."""
        word = "at least" if self.at_least else "at most"
        bar = f"{word} {number(self.limit)} {self.unit}".rstrip()
        verdict = "yes" if self.reached else "**no**"
        return (self.what, amount(self.measured, self.unit), bar, verdict, self.beside)


def bars(promised: Iterable[Bar]) -> str:
    """The table of bars."""
    header = ("what", "measured", "bar", "reached", "beside it")
    return markdown(header, (bar.row() for bar in promised))
