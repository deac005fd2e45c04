"""``aiolock ls`` and ``aiolock show``: what is held, by whom, and what waits."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import aiolock
from aiolock.cli.rows import COLUMNS, SORTS, aligned, cells
from aiolock.cli.store import (
    NOBODY,
    Commands,
    add_name,
    add_store_options,
    with_store,
)


def add_command(commands: Commands) -> None:
    """Add both to the command line."""
    listing = commands.add_parser(
        "ls",
        help="list all locks that are held or waited for",
        description="List all locks that are held or waited for, a line each. A holder or waiter"
        " that is marked with ! does not answer: its process is gone, or cut off.",
    )
    add_store_options(listing)
    listing.add_argument(
        "pattern", nargs="?", default="*", help="only names like this, as 'order:*' (default: all)"
    )
    listing.add_argument("--kind", choices=aiolock.LockClient.KINDS, help="only these")
    listing.add_argument("--sort", choices=tuple(SORTS), default="name", help="by what")
    listing.add_argument("--json", action="store_true", help="a list, as JSON")
    listing.set_defaults(run=with_store(_list), command="ls")

    showing = commands.add_parser(
        "show",
        help="show the holders and the waiters of one lock",
        description="Show the holders and the waiters of a lock, in order.",
        epilog="exit code: 0 if there is a holder or a waiter, 1 if there is none",
    )
    add_store_options(showing)
    add_name(showing)
    showing.add_argument("--json", action="store_true", help="as JSON")
    showing.set_defaults(run=with_store(_show), command="show")


async def _list(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    found = await client.snapshot(arguments.pattern, kind=arguments.kind)
    found.sort(key=SORTS[arguments.sort])
    if arguments.json:
        print(json.dumps([asdict(status) for status in found], indent=2))
    else:
        for line in aligned([COLUMNS, *map(cells, found)]):
            print(line)
    return 0


async def _show(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    status = await client.status(arguments.name, kind=arguments.kind)
    print(json.dumps(asdict(status), indent=2) if arguments.json else status)
    return 0 if status.holders or status.waiters else NOBODY
