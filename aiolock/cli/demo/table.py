"""The figures, as a table for people, with the meanings of its words."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Sequence
from typing import Final

from aiolock.cli.demo.figures import ONE_CLOCK, Figures, Killed, Spread

_NOTHING: Final = "-"
_WIDTH: Final = 80
_COLUMNS: Final = (
    ("no lock", 10, "without a lock"),
    ("aiolock", 21, "with aiolock"),
    ("redis-py Lock", 21, "with redis-py's Lock"),
)
_LABEL: Final = 24


def table(columns: Sequence[Figures]) -> Iterator[str]:
    """The lines of a table with two or three columns; then notes, and the meanings of its words."""
    yield _line("", [title for title, _, _ in _COLUMNS[: len(columns)]])
    meanings: list[tuple[str, str]] = []
    for label, cell, meaning in _ROWS:
        cells = [cell(column) for column in columns]
        if set(cells) != {_NOTHING}:  # not every store has commands to count
            yield _line(label, cells)
            meanings += [(label, meaning)] if meaning else []
    yield ""
    notes = [line for note in _notes(columns) for line in _wrapped(note, 2)]
    yield from [*notes, ""] if notes else []
    for label, meaning in (
        *meanings,
        ("p50 / p99", "half took the first at most, 99 of 100 the second"),
    ):
        yield from _wrapped(f"{label:{_LABEL}}{meaning}", _LABEL)


def _line(label: str, cells: Sequence[str]) -> str:
    padded = [f"{cell:>{width}}" for cell, (_, width, _) in zip(cells, _COLUMNS, strict=False)]
    return f"  {label:{_LABEL}}{''.join(padded)}"


def _wrapped(text: str, indent: int) -> list[str]:
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent="  ",
        subsequent_indent=" " * (2 + indent),
        break_on_hyphens=False,
    )


def _number(value: float | None, digits: int = 0) -> str:
    return _NOTHING if value is None else f"{value:,.{digits}f}"


def _ms(value: float) -> str:
    """With three significant digits."""
    return f"{value:,.{max(0, 3 - len(str(int(value))))}f}"


def _of(part: int | None, whole: int | None) -> str:
    return _NOTHING if part is None else f"{part:,} of {whole:,}"


def _range(ends: tuple[int, int] | None) -> str:
    return _NOTHING if ends is None else f"{ends[0]:,} to {ends[1]:,}"


def _spread(spread: Spread | None) -> str:
    return _NOTHING if spread is None else f"{_ms(spread.p50)} / {_ms(spread.p99)} ms"


_ROWS: Final[list[tuple[str, Callable[[Figures], str], str]]] = [
    ("items", lambda of: _number(of.items), ""),
    ("requests", lambda of: _number(of.requests), "those answered: a killed worker's are not"),
    ("sold", lambda of: _number(of.sold), "buyers who were told yes"),
    ("oversold", lambda of: _number(of.oversold), "sold beyond the number of items"),
    ("stock at the end", lambda of: _number(of.left), ""),
    (
        "requests per second",
        lambda of: _number(of.per_second),
        "one after the other; without a lock nobody waits for anybody, which is no contest",
    ),
    ("waiting, p50 / p99", lambda of: _spread(of.waiting_ms), "from asking to one's turn"),
    (
        "  undisturbed",
        lambda of: _spread(of.waiting_undelayed_ms),
        "without those who had to wait until the lease of a killed holder ended",
    ),
    (
        "hand-off, p50 / p99",
        lambda of: _spread(of.handoff_ms),
        "from the release by one to the turn of the next, who was waiting",
    ),
    (
        "requests overtaken",
        lambda of: _of(of.overtaken, of.waited),
        "of those that had to wait; one that came later had its turn first",
    ),
    (
        "items per customer",
        lambda of: _range(of.per_customer),
        "of the customers of workers that were not killed: fewest to most",
    ),
    (
        "commands per hand-off",
        lambda of: _number(of.commands_per_grant, 2),
        "what the lock sends to its store, for each turn",
    ),
    (
        "leases lost",
        lambda of: _number(of.leases_lost),
        "holders whose lease ended before they were done",
    ),
]


def _notes(columns: Sequence[Figures]) -> Iterator[str]:
    """Notes on what a figure alone does not tell."""
    titled = [(title, column) for (*_, title), column in zip(_COLUMNS, columns, strict=False)]
    for title, column in titled:
        if column.sold != (down := column.items - column.left):
            yield (
                f"{title[0].upper()}{title[1:]} {column.sold:,} buyers were told yes, and the"
                f" stock went down by {down:,}: each overwrote the others."
            )
    for peer in columns[2:]:
        yield from _polling(peer)
    still = [f"{of.standstill_seconds:.1f} s {title}" for title, of in titled if of.killed]
    if still:
        yield (
            f"Until the leases of killed holders had ended, all waited: {', '.join(still)}."
            " It is in the p99 of waiting, and not in the requests per second."
        )
    for killed in columns[1].killed:
        yield f"Worker {killed.worker} was killed {_fate(killed)}."
    if not ONE_CLOCK:
        yield "Processes have no clock in common here: times are compared within each one."


def _polling(peer: Figures) -> Iterator[str]:
    """Notes on what it means that redis-py's `Lock` has no queue."""
    if peer.waited is not None and 0 < peer.waited < peer.requests / 2:
        yield (
            f"With redis-py's Lock {peer.requests - peer.waited:,} of {peer.requests:,} requests"
            " did not wait: who had just released it had it again before anybody else asked."
        )
    if peer.closed_after is not None:
        yield (
            f"With redis-py's Lock the shop was closed after {peer.closed_after:.0f} s, with"
            f" {peer.left:,} of {peer.items:,} items left."
        )


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
