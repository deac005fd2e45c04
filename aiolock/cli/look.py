"""``aiolock ls`` and ``aiolock show``: what is held, by whom, and who waits."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

import aiolock
from aiolock.cli.store import (
    NOBODY,
    Commands,
    add_name,
    add_store_options,
    with_store,
)
from aiolock.store import Party, Status

_COLUMNS: Final = ("KIND", "NAME", "HELD BY", "FOR", "LEASE", "WAITING", "LONGEST")
_TEXTS: Final = 3
"""So many of them are text; the others are numbers, and stand to the right."""
_SORTS: Final[dict[str, Callable[[Status], tuple[Any, ...]]]] = {
    "name": lambda status: (status.kind, status.name),
    "waiting": lambda status: (-len(status.waiters),),
    "held": lambda status: tuple(sorted(party.since for party in status.holders)) or (math.inf,),
}


def add_command(commands: Commands) -> None:
    """Add both to the command line."""
    listing = commands.add_parser(
        "ls",
        help="all that somebody holds or waits for",
        description="All that somebody holds or waits for, a line each. A holder or waiter that is"
        " marked with ! does not answer: its process is gone, or cut off.",
    )
    add_store_options(listing)
    listing.add_argument(
        "pattern", nargs="?", default="*", help="of the names, as 'order:*' (default: all)"
    )
    listing.add_argument("--kind", choices=aiolock.LockClient.KINDS, help="only these")
    listing.add_argument("--sort", choices=tuple(_SORTS), default="name", help="by what")
    listing.add_argument("--json", action="store_true", help="a list, as JSON")
    listing.set_defaults(run=with_store(_list), command="ls")

    showing = commands.add_parser(
        "show",
        help="who holds one, and everybody who waits for it",
        description="Who holds it, and everybody who waits for it, in order.",
        epilog="exit code: 0 if somebody holds it or waits for it, 1 if nobody does",
    )
    add_store_options(showing)
    add_name(showing)
    showing.add_argument("--json", action="store_true", help="as JSON")
    showing.set_defaults(run=with_store(_show), command="show")


async def _list(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    found = await client.snapshot(arguments.pattern, kind=arguments.kind)
    found.sort(key=_SORTS[arguments.sort])
    if arguments.json:
        print(json.dumps([asdict(status) for status in found], indent=2))
    else:
        for line in _aligned([_COLUMNS, *map(_cells, found)]):
            print(line)
    return 0


async def _show(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    status = await client.status(arguments.name, kind=arguments.kind)
    print(json.dumps(asdict(status), indent=2) if arguments.json else status)
    return 0 if status.holders or status.waiters else NOBODY


def _cells(status: Status) -> Sequence[str]:
    first = status.holders[0] if status.holders else None
    more = f" +{len(status.holders) - 1}" if len(status.holders) > 1 else ""
    waits = status.waiters[0] if status.waiters else None
    return (
        status.kind,
        repr(status.name)[1:-1],  # a line each, whatever is in it
        _where(first) + more if first else "-",
        _ago(status, first),
        f"{first.remaining:.1f} s" if first else "-",
        str(len(status.waiters)),
        _ago(status, waits),
    )


def _where(party: Party) -> str:
    return f"{party.host or '?'}:{party.pid}" + ("" if party.alive else " !")


def _ago(status: Status, party: Party | None) -> str:
    return f"{max(0.0, status.now - party.since):.1f} s" if party else "-"


def _aligned(rows: Sequence[Sequence[str]]) -> Iterable[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if number < _TEXTS else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()
