"""``aiolock break`` and ``aiolock ask``: take a lock from its holder, or ask the holder for it."""

from __future__ import annotations

import argparse
import asyncio
import sys

import aiolock
from aiolock.cli.signals import typed_line
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
        help="take a lock from its holder, and hand it to the next waiter",
        description="Take a lock from a holder that hangs and goes on renewing; a dead holder needs"
        " no help. The holder is told, and its body cancelled. Until the body has ended, it runs"
        " beside the next one.",
        epilog="exit code: 0 if it was taken from a holder, 1 if there was none",
    )
    add_store_options(breaking)
    add_name(breaking)
    breaking.add_argument(
        "--fence", type=int, metavar="N", help="only from the holder with this fencing token"
    )
    breaking.add_argument("--yes", action="store_true", help="do not ask before")
    breaking.set_defaults(run=run, command="break")

    asking = commands.add_parser(
        "ask",
        help="ask the holder of a lock to release it when it can",
        description="Set Lease.requested of the holder, which decides whether to release the lock.",
        epilog="exit code: 0 if a holder was told, 1 if there is none",
    )
    add_store_options(asking)
    add_name(asking)
    asking.set_defaults(run=with_store(_ask), command="ask")


def run(arguments: argparse.Namespace) -> int:
    """Break the lock, unless the user says no; returns the exit code."""
    arguments.fences = None
    if not arguments.yes:
        if not sys.stdin.isatty():
            print("aiolock break: nobody can be asked here: say --yes", file=sys.stderr)
            return WRONG_USE
        if code := with_store(_look)(arguments):
            return code
        print("Take it away? [y/N] ", end="", flush=True)
        if typed_line().strip().lower() not in ("y", "yes"):
            return NOBODY
    return with_store(_break)(arguments)


async def _look(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    """Show the holders. Only those that are shown will be broken, and no later ones."""
    status = await client.status(arguments.name, kind=arguments.kind)
    print(status)
    held = [party.fence for party in status.holders]
    arguments.fences = [each for each in held if arguments.fence in (None, each)]
    if held and not arguments.fences:
        print(f"nobody holds it with the fence {arguments.fence}")
    return 0 if arguments.fences else NOBODY


async def _break(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    fences: list[int | None] = arguments.fences or [arguments.fence]
    # All at once: where the store does not answer, that takes no longer than for one.
    found = await asyncio.gather(
        *(client.break_(arguments.name, kind=arguments.kind, fence=each) for each in fences),
        return_exceptions=True,
    )
    taken = True in found
    failure = next((one for one in found if isinstance(one, BaseException)), None)
    if taken or failure is None:
        print(f"{arguments.name!r} was taken away" if taken else "nobody held it")
    if failure is not None:
        raise failure
    return 0 if taken else NOBODY


async def _ask(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    told = await client.request_release(arguments.name, kind=arguments.kind)
    print("whoever holds it was asked to let go" if told else "nobody holds it")
    return 0 if told else NOBODY
