"""``aiolock top``: the locks that are held or waited for, live."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final

import aiolock
from aiolock.cli.rows import SORTS, listed
from aiolock.cli.store import Commands, add_store_options, seconds, with_store
from aiolock.protocol import Status
from aiolock.text import plain

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_LOOKS_FOR_DEADLOCKS: Final = 5
"""Deadlocks are searched for once in this many snapshots."""
_MARK: Final = len("  DEADLOCK")
"""The width of the marks behind the lines."""
_SHORTEST, _LONGEST = 0.1, 3600


def add_command(commands: Commands) -> None:
    """Add ``top`` to the command line."""
    parser = commands.add_parser(
        "top",
        help="show the locks that are held or waited for, live",
        description="Show the locks that are held or waited for, again and again, until Ctrl-C; the"
        " longest queue first. ! marks a process that is gone, and a queue that grows; DEADLOCK"
        " marks tasks that wait for each other.",
        epilog="needs the extra `cli`: pip install 'aiolock-redis[cli]'",
    )
    add_store_options(parser)
    parser.add_argument(
        "pattern", nargs="?", default="*", help="only names like this (default: all)"
    )
    parser.add_argument("--kind", choices=aiolock.LockClient.KINDS, help="only these")
    parser.add_argument("--sort", choices=tuple(SORTS), default="waiting", help="the order")
    parser.add_argument(
        "--every",
        type=_pause,
        default=1.0,
        metavar="S",
        help="seconds between two looks (default: 1)",
    )
    parser.add_argument(
        "--json", action="store_true", help="a line for each look, as JSON, instead of a screen"
    )
    parser.set_defaults(run=with_store(_top), command="top")


def _pause(text: str) -> float:
    pause = seconds(text)
    if not _SHORTEST <= pause <= _LONGEST:
        raise argparse.ArgumentTypeError(
            f"it must be from {_SHORTEST} to {_LONGEST} seconds, not {text}"
        )
    return pause


class _Look:
    """The result of a look: the statuses, and the deadlocks."""

    def __init__(self) -> None:
        self.statuses: Sequence[Status] = ()
        self.deadlocks: Sequence[aiolock.Deadlock] = ()
        self.growing = frozenset[tuple[str, str]]()
        self.failure = ""
        self.pause = 0.0
        """Seconds to wait before the next look."""
        self._looked = 0
        self._waited = dict[tuple[str, str], int]()

    async def again(self, client: aiolock.LockClient, arguments: argparse.Namespace) -> None:
        """Look again; if the store does not answer, keep what was seen, with the error."""
        time = asyncio.get_running_loop().time
        began = time()
        try:
            statuses = await client.snapshot(arguments.pattern, kind=arguments.kind)
            # A store that has much to do is asked for half of the time; latency is no load.
            self.pause = max(arguments.every, time() - began)
            # A deadlock that is shown is checked each time: it ends as soon as one task gives up.
            if self.deadlocks or self._looked % _LOOKS_FOR_DEADLOCKS == 0:
                blocked = any(status.waiters for status in statuses)
                self.deadlocks = await client.deadlocks() if blocked else ()
        except aiolock.StoreError as error:
            self.failure, self.pause = str(error), arguments.every
            return
        self.failure = ""
        self._looked += 1
        waited = {(each.kind, each.name): len(each.waiters) for each in statuses}
        self.growing = frozenset(
            key for key, count in waited.items() if count > self._waited.get(key, count)
        )
        self._waited = waited
        self.statuses = sorted(statuses, key=SORTS[arguments.sort])


async def _top(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    look = _Look()
    if arguments.json:
        return await _lines(client, arguments, look)
    if sys.stdout is None or not sys.stdout.isatty():
        raise ValueError("top shows a screen: its output must be a terminal (or say --json)")
    try:
        from rich.live import Live
    except ImportError:
        raise ImportError("top needs rich: pip install 'aiolock-redis[cli]'") from None
    with Live(screen=True, auto_refresh=False) as live:
        while True:
            await look.again(client, arguments)
            live.update(_screen(look, arguments, live.console), refresh=True)
            await asyncio.sleep(look.pause)


async def _lines(client: aiolock.LockClient, arguments: argparse.Namespace, look: _Look) -> int:
    while True:
        await look.again(client, arguments)
        data = {
            "locks": [asdict(status) for status in look.statuses],
            "deadlocks": [asdict(deadlock) for deadlock in look.deadlocks],
            "error": look.failure or None,
        }
        print(json.dumps(data), flush=True)
        await asyncio.sleep(look.pause)


def _screen(look: _Look, arguments: argparse.Namespace, console: Console) -> RenderableType:
    from rich.console import Group
    from rich.text import Text

    width, height = console.size

    in_cycle = {(each.kind, each.name) for deadlock in look.deadlocks for each in deadlock.cycle}
    waiting = sum(len(status.waiters) for status in look.statuses)
    head = Text.assemble(
        ("aiolock top", "bold"),
        f"  {plain(arguments.pattern)}  held or wanted {len(look.statuses)}  waiting {waiting}",
    )
    if look.failure:
        head.append(f"\n{plain(look.failure)}", "bold red")
    for deadlock in look.deadlocks:
        head.append(f"\nDEADLOCK: {deadlock}", "bold red")
    room = max(1, height - len(head.wrap(console, width)) - 2)
    statuses = look.statuses[:room]
    heading, *lines = listed(statuses, width - _MARK)
    rows = [Text(f"{heading:<{width}}", "reverse")]
    for status, line in zip(statuses, lines, strict=True):
        key = status.kind, status.name
        mark = "DEADLOCK" if key in in_cycle else "!" if key in look.growing else ""
        dead = any(not holder.alive for holder in status.holders)
        style = "bold red" if key in in_cycle else "yellow" if dead or mark else ""
        # As text, because rich would interpret brackets in a name.
        rows.append(Text(f"{line}  {mark}", style))
    more = len(look.statuses) - room
    foot = Text(f"and {more} more" if more > 0 else "", "dim")
    return Group(head, *rows, foot)
