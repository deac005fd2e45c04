"""``aiolock members``: the members of a group, and their changes."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

import aiolock
from aiolock.cli.rows import duration
from aiolock.cli.store import NOBODY, Commands, add_store_options, with_store
from aiolock.cli.table import Column, aligned, terminal_width
from aiolock.text import plain

_COLUMNS: Final = (
    Column("MEMBER", text=True, least=12),
    Column("WHERE", text=True, least=12, dropped=3),
    Column("SHARDS", text=True, dropped=1),
    Column("DATA", text=True, dropped=2),
    Column("FOR"),
)
_SIGNS: Final[dict[type[aiolock.GroupChange], str]] = {
    aiolock.Joined: "+",
    aiolock.Left: "-",
    aiolock.Changed: "~",
}


def add_command(commands: Commands) -> None:
    """Add ``members`` to the command line."""
    parser = commands.add_parser(
        "members",
        help="list the members of a group, or watch them",
        description="List the members of a group, in the order in which they joined, with what"
        " each says about itself. With --watch, go on with a line for each change, until Ctrl-C:"
        " + has joined, - has left, ~ has changed its data.",
        epilog="exit code: 0 if there is a member, 1 if there is none",
    )
    add_store_options(parser)
    parser.add_argument("name", metavar="NAME", help="the name of a group, or of shards")
    parser.add_argument("--watch", action="store_true", help="go on with each change")
    parser.add_argument("--json", action="store_true", help="as JSON; a line for each change")
    parser.set_defaults(run=with_store(_members), command="members")


async def _members(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    group = client.group(arguments.name)
    if arguments.watch:
        async for change in group.watch():
            _print_change(change, as_json=arguments.json)
    members = await group.members()
    if arguments.json:
        print(json.dumps([asdict(member) for member in members], indent=2))
    elif members:
        now = (await group.status()).now
        _print_members(members, now)
    else:
        print(f"the group '{plain(arguments.name)}' has no members")
    return 0 if members else NOBODY


def _print_members(members: Sequence[aiolock.Member], now: float) -> None:
    rows = [(*_cells(member), duration(max(0.0, now - member.since))) for member in members]
    for line in aligned(_COLUMNS, rows, terminal_width()):
        print(line)


def _print_change(change: aiolock.GroupChange, *, as_json: bool) -> None:
    if as_json:
        fields = {"change": type(change).__name__.lower(), **asdict(change)}
        print(json.dumps(fields), flush=True)
    elif isinstance(change, aiolock.Joined | aiolock.Left | aiolock.Changed):
        print(_SIGNS[type(change)], *_cells(change.member), flush=True)
    else:
        for member in change.members:
            print("=", *_cells(member), flush=True)


def _cells(member: aiolock.Member) -> tuple[str, str, str, str]:
    shards = ", ".join(f"{plain(name)} ({count})" for name, count in member.shards.items())
    where = f"{plain(member.host) or '?'}:{member.pid}"
    return member.id, where, shards or "-", json.dumps(dict(member.data))
