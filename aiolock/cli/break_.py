"""``aiolock break`` and ``aiolock ask``: take a lock from its holder, or ask the holder for it."""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence

import aiolock
from aiolock.cli.find import add_name, found, is_pattern, nothing, several
from aiolock.cli.parties import described
from aiolock.cli.signals import typed_line
from aiolock.cli.store import NOBODY, WRONG_USE, Commands, add_store_options, say, with_store
from aiolock.cli.table import terminal_width
from aiolock.protocol import Status
from aiolock.text import plain


def add_command(commands: Commands) -> None:
    """Add both to the command line."""
    breaking = commands.add_parser(
        "break",
        help="take a lock from its holder, and grant it to the next waiter",
        description="Take a lock from a holder that hangs and goes on renewing; a dead holder needs"
        " no help. The holder is notified, and its body cancelled. Until the body has ended, it"
        " runs beside the next one. A pattern takes all locks with a name like it.",
        epilog="exit code: 0 if it was taken from a holder, 1 if there was none",
    )
    add_store_options(breaking)
    add_name(breaking)
    breaking.add_argument(
        "--fence", type=int, metavar="N", help="only from the holder with this fencing token"
    )
    breaking.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    breaking.set_defaults(run=run, command="break")

    asking = commands.add_parser(
        "ask",
        help="ask the holder of a lock to release it when it can",
        description="Set Lease.requested of the holder, which decides whether to release the lock.",
        epilog="exit code: 0 if a holder was asked, 1 if there is none",
    )
    add_store_options(asking)
    add_name(asking)
    asking.set_defaults(run=with_store(_ask), command="ask")


def run(arguments: argparse.Namespace) -> int:
    """Break the locks, unless the user says no; returns the exit code."""
    arguments.grants = None
    if not arguments.yes:
        if sys.stdin is None or not sys.stdin.isatty():
            say("aiolock break: without a terminal, this cannot ask for confirmation: use --yes")
            return WRONG_USE
        if code := with_store(_look)(arguments):
            return code
        print("Take it away? [y/N] ", end="", flush=True)
        if typed_line().strip().lower() not in ("y", "yes"):
            return NOBODY
    return with_store(_break)(arguments)


Grant = tuple[str, str, int]
"""A kind, a name, and the fence of one of its holders."""


def _grants(statuses: Sequence[Status], arguments: argparse.Namespace) -> list[Grant]:
    """The grants to break; `ValueError` if it is not clear which lock is meant."""
    held = [status for status in statuses if status.holders]
    if len(held) > 1 and not is_pattern(arguments.name):
        raise several(held)
    return [
        (status.kind, status.name, holder.fence)
        for status in held
        for holder in status.holders
        if arguments.fence in (None, holder.fence)
    ]


async def _look(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    """Show the holders. Only those that are shown will be broken, and no later ones."""
    statuses = await found(client, arguments)
    texts = ["\n".join(described(status, terminal_width())) for status in statuses]
    print("\n\n".join(texts) or nothing(arguments))
    arguments.grants = _grants(statuses, arguments)
    if not arguments.grants and any(status.holders for status in statuses):
        print(_no_fence(arguments))
    return 0 if arguments.grants else NOBODY


def _no_fence(arguments: argparse.Namespace) -> str:
    return f"no holder has the fence {arguments.fence}"


async def _break(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    grants: list[Grant] | None = arguments.grants
    if grants is None:
        grants = _grants(await found(client, arguments), arguments)
    # All at once: where the store does not answer, that takes no longer than for one.
    results = await asyncio.gather(
        *(client.break_(name, kind=kind, fence=fence) for kind, name, fence in grants),
        return_exceptions=True,
    )
    taken = list(
        dict.fromkeys(
            name for (_, name, _), done in zip(grants, results, strict=True) if done is True
        )
    )
    failure = next((one for one in results if isinstance(one, BaseException)), None)
    for name in taken:
        print(f"'{plain(name)}' was taken away")
    if failure is not None:
        raise failure
    if not taken:
        print("it had no holder" if arguments.fence is None else _no_fence(arguments))
    return 0 if taken else NOBODY


async def _ask(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    held = [status for status in await found(client, arguments) if status.holders]
    if len(held) > 1 and not is_pattern(arguments.name):
        raise several(held)
    answers = await asyncio.gather(
        *(client.request_release(status.name, kind=status.kind) for status in held)
    )
    asked = [status for status, notified in zip(held, answers, strict=True) if notified]
    for status in asked:
        print(f"the holder of '{plain(status.name)}' was asked to release it")
    if not asked:
        print("it has no holder")
    return 0 if asked else NOBODY
