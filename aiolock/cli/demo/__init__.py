"""``aiolock demo``: processes contend for one stock, without a lock and with several.

Read `worker` first: it takes items from the stock, and has all use of locks. `contention` runs
workers, `report` tells what came out.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

import aiolock
from aiolock.cli.signals import SIGNALS, Ended
from aiolock.cli.store import Commands, say

_ABOUT: Final = """\
Many requests at once take items from one stock: each reads the number of items, does some work,
and writes the number back less one. Without a lock too many items are sold. With the lock the stock
ends at exactly 0, and requests are served in the order in which they came. They come from several
processes. In one run some of these are killed: with the lock held, and in the queue. Without a
server the lock is in an SQLite file. On a Redis server there is also a run with redis-py's own
Lock."""

_CODES: Final = """\
exit code: 0 when the runs with aiolock came out exactly right, 1 when they did not, 2 when they
were not possible (wrong arguments, no server), 130 when they were interrupted"""

_RIGHT, _WRONG, _IMPOSSIBLE, _INTERRUPTED = 0, 1, 2, 130


@dataclass(frozen=True, slots=True)
class Options:
    """The options; valid once they exist."""

    url: str = field(repr=False)
    items: int
    requests: int
    """The number of requests at once."""
    workers: int
    ttl: float
    kill: bool

    def __post_init__(self) -> None:
        aiolock.connect(self.url, ttl=self.ttl)  # no I/O, only errors
        if not (self.on_redis or self.url.startswith(("sqlite://", "memory://"))):
            raise ValueError("the demo runs on Redis, on an SQLite file, or on memory:// only")
        if self.url.startswith("memory://") and self.workers > 1:
            raise ValueError(
                f"memory:// is one process: for {self.workers} workers name a server,"
                " --url redis://..."
            )
        if self.requests < self.workers:
            raise ValueError(f"{self.workers} workers need at least as many --requests at once")

    @property
    def on_redis(self) -> bool:
        """Whether redis-py's `Lock` can be used as well."""
        return self.url.startswith(("redis://", "rediss://", "unix://"))

    @property
    def server(self) -> str:
        """The URL as it may be shown: without user and password."""
        scheme, _, rest = self.url.partition("://")
        return f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}"


def add_command(commands: Commands) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="see it work: contention for one stock, without and with the lock",
        description=_ABOUT,
        epilog=_CODES,
    )
    parser.add_argument(
        "--url",
        help="the store: sqlite:////..., redis://, rediss://, unix://, or memory:// in one process"
        " (default: an SQLite file, which is removed afterwards)",
    )
    for name, default, text in (
        ("--items", 2000, "in the stock (default: %(default)s)"),
        ("--requests", 200, "at once (default: %(default)s)"),
        ("--workers", None, "processes (default: 4; memory:// is always one)"),
    ):
        parser.add_argument(name, type=_count, default=default, metavar="N", help=text)
    text = "seconds for which a holder that was killed blocks the others (default: %(default)s)"
    parser.add_argument("--ttl", type=float, default=1.5, metavar="S", help=text)
    parser.add_argument("--no-kill", dest="kill", action="store_false", help="kill no worker")
    parser.add_argument("--json", action="store_true", help="print the figures, as JSON, only")
    parser.set_defaults(run=run)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1 on, not {text!r}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Make the runs, and print what came out; returns the exit code."""
    # Imported only here: redis-py takes longer to import than all that other commands need.
    from aiolock.cli.demo import contention, report, worker

    with TemporaryDirectory(prefix="aiolock-demo-") as folder:
        url = f"sqlite:///{quote(folder)}/locks.db" if arguments.url is None else arguments.url
        workers = arguments.workers or (1 if url.startswith("memory://") else 4)
        kill = arguments.kill and workers > 1  # one is to live
        try:
            options = Options(
                url, arguments.items, arguments.requests, workers, arguments.ttl, kill
            )
        except (ValueError, ImportError) as error:
            say(f"aiolock demo: {error}")
            return _IMPOSSIBLE
        progress = contention.Progress(None if arguments.json else sys.stdout)

        async def until_signal() -> list[contention.Run]:
            with SIGNALS.end_this_task():
                return await contention.compare(options, Path(folder), progress)

        try:
            runs = asyncio.run(until_signal())
        except (Ended, KeyboardInterrupt):
            progress.show("")
            say("aiolock demo: interrupted")
            return _INTERRUPTED
        except Exception as failure:  # noqa: BLE001  # a bug is raised again
            progress.show("")
            say(f"aiolock demo: {options.server}: {worker.reason(failure)}")
            return _IMPOSSIBLE
    print(report.as_json(options, runs) if arguments.json else report.as_text(runs), flush=True)
    return _WRONG if report.mistakes(runs) else _RIGHT
