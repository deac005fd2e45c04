"""``aiolock break`` and ``aiolock ask``: take a lock from whoever holds it, or ask for it."""

from __future__ import annotations

import argparse
import asyncio
import sys

import aiolock
from aiolock.cli.store import (
    NOBODY,
    WRONG_USE,
    Commands,
    add_name,
    add_store_options,
    with_store,
)


def add_command(commands: Commands) -> None:
    """Add both to the command line."""
    breaking = commands.add_parser(
        "break",
        help="take one from whoever holds it, and hand it to the next",
        description="For a holder that hangs and goes on renewing; one that died needs no help."
        " The holder is told, and its body cancelled. Until that has ended two are at work.",
        epilog="exit code: 0 if it was taken from somebody, 1 if nobody held it",
    )
    add_store_options(breaking)
    add_name(breaking)
    breaking.add_argument(
        "--fence", type=int, metavar="N", help="only from the holder with this fencing token"
    )
    breaking.add_argument("--yes", action="store_true", help="do not ask whether to")
    breaking.set_defaults(run=with_store(_break), command="break")

    asking = commands.add_parser(
        "ask",
        help="ask whoever holds one to let go, when it can",
        description="Sets Lease.requested of whoever holds it. What comes of that is their affair.",
        epilog="exit code: 0 if somebody was told, 1 if nobody holds it",
    )
    add_store_options(asking)
    add_name(asking)
    asking.set_defaults(run=with_store(_ask), command="ask")


async def _break(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    name: str = arguments.name
    kind: str = arguments.kind
    fence: int | None = arguments.fence
    if not arguments.yes:
        if not sys.stdin.isatty():
            print("aiolock break: nobody can be asked here: say --yes", file=sys.stderr)
            return WRONG_USE
        status = await client.status(name, kind=kind)
        print(status)
        if not status.holders:
            return NOBODY
        # What is shown is what is broken, and nobody who has come since.
        fences = [party.fence for party in status.holders]
        from_whom = "from all who hold it" if fence is None else f"from the holder of {fence}"
        answer = await asyncio.to_thread(input, f"Take it {from_whom}? [y/N] ")
        if answer.strip().lower() not in ("y", "yes"):
            return NOBODY
        taken = False
        for each in fences:
            if fence in (None, each):
                taken |= await client.break_(name, kind=kind, fence=each)
    else:
        taken = await client.break_(name, kind=kind, fence=fence)
    print(f"{name!r} was taken away" if taken else "nobody held it")
    return 0 if taken else NOBODY


async def _ask(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    told = await client.request_release(arguments.name, kind=arguments.kind)
    print("whoever holds it was asked to let go" if told else "nobody holds it")
    return 0 if told else NOBODY
