"""``aiolock ls`` and ``aiolock show``: the locks, their holders and their waiters."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import aiolock
from aiolock.cli.find import add_name, found, is_pattern, nothing, several
from aiolock.cli.parties import described
from aiolock.cli.rows import SORTS, listed
from aiolock.cli.store import NOBODY, Commands, add_store_options, say, with_store
from aiolock.cli.table import terminal_width


def add_command(commands: Commands) -> None:
    """Add both to the command line."""
    listing = commands.add_parser(
        "ls",
        help="list all locks that are held or waited for",
        description="List all locks that are held or waited for, a line each. A holder or waiter"
        " that is marked with ! does not answer: its process is gone, or cut off. On a terminal, no"
        " line is wider than that: less important columns are left out, and long names are cut in"
        " the middle. Elsewhere, as in a pipe, all is printed.",
    )
    add_store_options(listing)
    listing.add_argument(
        "pattern", nargs="?", default="*", help="only names like this, as 'order:*' (default: all)"
    )
    listing.add_argument("--kind", choices=aiolock.LockClient.KINDS, help="only these")
    listing.add_argument("--sort", choices=tuple(SORTS), default="name", help="the order")
    listing.add_argument("--wide", action="store_true", help="all columns, whole names")
    listing.add_argument("--json", action="store_true", help="a list, as JSON")
    listing.set_defaults(run=with_store(_list), command="ls")

    showing = commands.add_parser(
        "show",
        help="show the holders and the waiters of a lock",
        description="Show the holders and the waiters of a lock, in order: of all kinds of locks"
        " with this name, or of all locks with a name like a pattern.",
        epilog="exit code: 0 if there is a holder or a waiter, 1 if there is none",
    )
    add_store_options(showing)
    add_name(showing)
    showing.add_argument(
        "--wide", action="store_true", help="all columns, with the times and the ids of the clients"
    )
    showing.add_argument(
        "--json",
        action="store_true",
        help="as JSON: an object, or a list if NAME is a pattern",
    )
    showing.set_defaults(run=with_store(_show), command="show")


async def _list(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    statuses = await client.snapshot(arguments.pattern, kind=arguments.kind)
    statuses.sort(key=SORTS[arguments.sort])
    if arguments.json:
        print(json.dumps([asdict(status) for status in statuses], indent=2))
    elif not statuses:
        say(nothing(arguments))  # not on standard output, which has the locks only
    else:
        for line in listed(statuses, None if arguments.wide else terminal_width()):
            print(line)
    return 0


async def _show(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    statuses = await found(client, arguments)
    if not arguments.json:
        width = None if arguments.wide else terminal_width()
        texts = ["\n".join(described(each, width, wide=arguments.wide)) for each in statuses]
        print("\n\n".join(texts) or nothing(arguments))
    elif is_pattern(arguments.name):
        print(json.dumps([asdict(status) for status in statuses], indent=2))
    elif len(statuses) > 1:
        raise several(statuses)
    else:
        kind = arguments.kind or "lock"
        status = statuses[0] if statuses else await client.status(arguments.name, kind=kind)
        print(json.dumps(asdict(status), indent=2))
    return 0 if any(status.holders or status.waiters for status in statuses) else NOBODY
