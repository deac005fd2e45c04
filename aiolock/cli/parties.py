"""The holders and the waiters of one lock: what `show` prints, and `break` before it asks."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

from aiolock.cli.rows import ago, duration, held_by, where, who
from aiolock.cli.table import Column, aligned, layout
from aiolock.protocol import Participant, Status
from aiolock.status import shares
from aiolock.text import plain

_COLUMNS: Final = (
    Column("PLACE", text=True),
    Column("WHO", text=True, least=14),
    Column("WHERE", text=True, least=12, dropped=3),
    Column("FOR"),
    Column("LEASE", dropped=1),
    Column("FENCE"),
    Column("AS", text=True, dropped=2),
)
_WIDE: Final = (*_COLUMNS, Column("SINCE", text=True), Column("CLIENT", text=True))
_WHO, _WHERE, _AS = 1, 2, 6
"""The places of these columns."""


def described(status: Status, width: int | None, *, wide: bool = False) -> Iterator[str]:
    """The lines about one lock; see `aligned`. With ``wide``, also the times and the clients."""
    yield _head(status)
    yield from (f"share {line}" for line in shares(status))
    parties = (*status.holders, *status.waiters)
    if not parties:
        return
    columns: tuple[Column, ...] = _WIDE if wide else _COLUMNS
    rows = [_cells(status, party)[: len(columns)] for party in parties]
    if all(row[_AS] == "-" for row in rows):
        columns = columns[:_AS] + columns[_AS + 1 :]
        rows = [row[:_AS] + row[_AS + 1 :] for row in rows]
    if _WHERE not in layout(columns, rows, width):  # then WHO alone names it
        rows = [
            (*row[:_WHO], held_by(party), *row[_WHERE:])
            for row, party in zip(rows, parties, strict=True)
        ]
    yield from aligned(columns, rows, width)


def _head(status: Status) -> str:
    """What is to be said of the lock itself."""
    held = len(status.holders)
    facts = [f"{held} holder{'s' * (held != 1)}", f"{len(status.waiters)} waiting"]
    if status.limit is not None:
        facts.append(f"{'limit' if status.interval is None else 'burst'} {status.limit}")
    if status.interval is not None:
        facts.append(f"a token every {status.interval:g} s")
    if status.closed:
        facts.append(f"closed for {duration(status.closed)}")
    if status.below:
        facts.append(f"below: {status.below}")
    return f"{status.kind} {plain(status.name)}: {', '.join(facts)}"


def _cells(status: Status, party: Participant) -> tuple[str, ...]:
    since = datetime.fromtimestamp(party.since, UTC)
    return (
        str(party.place) if party.place else "holder",
        who(party),
        where(party),
        ago(status, party),
        "-" if party.place else duration(party.remaining),
        "-" if party.place else str(party.fence),
        status.role_of(party) or "-",
        since.isoformat(timespec="milliseconds"),
        f"{party.client}#{party.seq}" if party.client else "-",
    )
