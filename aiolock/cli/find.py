"""The locks that a name on the command line means: of any kind, and of any name like a pattern."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence

import aiolock
from aiolock.cli.store import shown
from aiolock.protocol import Status
from aiolock.text import plain


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add the arguments that name a lock, a semaphore or another primitive."""
    parser.add_argument(
        "name", metavar="NAME", help="a name, or a pattern of names, as 'order:*' (see ls)"
    )
    parser.add_argument(
        "--kind",
        choices=aiolock.LockClient.KINDS,
        help="only of this kind (default: of any kind)",
    )


def is_pattern(name: str) -> bool:
    """Whether it may stand for several names."""
    return any(each in name for each in "*?[")


async def found(client: aiolock.LockClient, arguments: argparse.Namespace) -> list[Status]:
    """All that is held or waited for under this name; if nothing is, under names like it."""
    name: str = arguments.name
    kinds: Sequence[str] = (arguments.kind,) if arguments.kind else client.KINDS
    looks = [client.status(name, kind=kind) for kind in kinds]
    statuses = await asyncio.gather(*looks)
    used = [each for each in statuses if each.holders or each.waiters or each.closed]
    if used or not is_pattern(name):
        return used
    return await client.snapshot(name, kind=arguments.kind)


def nothing(arguments: argparse.Namespace) -> str:
    """The text when nothing was found: what was looked for, and where."""
    pattern = arguments.name if "name" in arguments else arguments.pattern
    what = f"no {arguments.kind}" if arguments.kind else "nothing"
    if pattern != "*":
        like = "with a name like" if is_pattern(pattern) else "called"
        what += f" {like} '{plain(pattern)}'"
    place = f"the prefix '{plain(arguments.prefix)}' at {shown(arguments.url)}"
    return f"{what} is held or waited for, under {place}"


def several(statuses: Sequence[Status]) -> ValueError:
    """The error where only one kind can be meant, and several have the name."""
    kinds = " and ".join((", ".join(each.kind for each in statuses[:-1]), statuses[-1].kind))
    return ValueError(f"{statuses[0].name!r} is the name of several: {kinds}. Use --kind")
