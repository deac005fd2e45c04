"""``aiolock demo``: processes contend for one stock, without a lock and with several.

Read `worker` first: it takes items from the stock, and has all use of locks. `contention` runs
workers, `report` tells what came out.
"""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

from aiolock.cli.signals import SIGNALS, Ended
from aiolock.cli.store import Commands, ending, say

_ABOUT: Final = """\
Many requests at once take items from one stock: each reads the number of items, does some work,
and writes the number back less one. Without a lock too many items are sold. With the lock the stock
ends at exactly 0, and requests are served in the order in which they came. They come from several
processes. In one run some of these are killed: with the lock held, and in the queue. Without a
server the lock is in an SQLite file. On a Redis server there is also a run with redis-py's own
Lock."""
_CODES: Final = "exit code: 0 if the runs with aiolock came out exactly right, 1 if they did not"
_WRONG: Final = 1


def add_command(commands: Commands) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="see it work: contention for one stock, without and with the lock",
        description=_ABOUT,
        epilog=_CODES,
    )
    text = "redis://, rediss://, unix://, or sqlite:////... (default: a file, removed afterwards)"
    parser.add_argument("--url", help=text)
    for name, default, text in (
        ("--items", 2000, "in the stock (default: %(default)s)"),
        ("--requests", 200, "at once (default: %(default)s)"),
        ("--workers", 4, "processes (default: %(default)s)"),
    ):
        parser.add_argument(name, type=int, default=default, metavar="N", help=text)
    text = "seconds for which a holder that was killed blocks the others (default: %(default)s)"
    parser.add_argument("--ttl", type=float, default=1.5, metavar="S", help=text)
    parser.add_argument("--json", action="store_true", help="print the figures, as JSON, only")
    parser.set_defaults(run=run, command="demo")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return ending(_compare, arguments)


async def _compare(arguments: argparse.Namespace) -> int:
    # Imported only here: redis-py takes longer to import than all that other commands need.
    from aiolock.cli.demo import contention, report
    from aiolock.cli.demo.worker import Settings

    with TemporaryDirectory(prefix="aiolock-demo-") as folder:
        settings = Settings(
            arguments.url or f"sqlite:///{quote(folder)}/locks.db",
            arguments.items,
            arguments.requests,
            arguments.workers,
            arguments.ttl,
        )
        try:
            with SIGNALS.end_this_task(), redirect_stdout(None if arguments.json else sys.stdout):
                runs = await contention.compare(settings, Path(folder))
        except Ended:
            say("aiolock demo: interrupted")
            raise
    wrong = report.mistakes(runs)
    if arguments.json:
        figures = {run.kind.name: report.figures(run) for run in runs}
        print(json.dumps({**figures, "wrong": wrong}, indent=2))
    else:
        print("\n".join(report.lines(runs, wrong)))
    return _WRONG if wrong else 0
