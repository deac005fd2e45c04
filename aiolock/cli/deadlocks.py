"""``aiolock deadlocks``: tasks that wait for each other, over all locks and processes."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import aiolock
from aiolock.cli.store import Commands, add_store_options, with_store


def add_command(commands: Commands) -> None:
    """Add ``deadlocks`` to the command line."""
    parser = commands.add_parser(
        "deadlocks",
        help="find tasks that wait for each other, in any processes",
        description="Find tasks that wait for each other, over all locks and processes. A task is"
        " found once it has waited for two seconds, if it waits itself, by `await` or"
        " `async with`, and not in another task.",
        epilog="exit code: 0 if there are none, 1 if there are",
    )
    add_store_options(parser)
    parser.add_argument("--json", action="store_true", help="a list, as JSON")
    parser.set_defaults(run=with_store(_print), command="deadlocks")


async def _print(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    found = await client.deadlocks()
    if arguments.json:
        print(json.dumps([asdict(deadlock) for deadlock in found], indent=2))
    else:
        print("\n\n".join(map(str, found)) if found else "no deadlocks")
    return 1 if found else 0
