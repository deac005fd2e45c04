"""``aiolock demo`` on the command line."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

from aiolock.cli.demo.options import add_options, options

_ABOUT: Final = """\
An online sale: many requests at once read a stock, do some work, and write it back. Without a
lock too much is sold. With the lock the stock ends at exactly 0, and each request is served in
the order in which it came. They come from several processes, and some of these are killed: with
the lock in hand, and in the queue. Without a server the lock is in an SQLite file. On a Redis
server the same sale is held once more, under redis-py's own Lock."""

_CODES: Final = """\
exit code: 0 when the sale under the lock came out exactly right, 1 when it did not, 2 when it
could not be held (wrong arguments, no server), 130 when it was interrupted"""


def add_command(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add ``demo`` to the command line."""
    parser = commands.add_parser(
        "demo",
        help="see it work: an online sale, without and with the lock",
        description=_ABOUT,
        epilog=_CODES,
    )
    add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Hold the sales, and print the results; returns the exit code."""
    # Imported only here: redis-py takes longer to import than all that other commands need.
    from aiolock.cli.demo.sale import hold, impossible

    with ExitStack() as stack:
        if arguments.url is None:
            directory = stack.enter_context(TemporaryDirectory(prefix="aiolock-demo-"))
            arguments.url = f"sqlite:///{quote(directory)}/locks.db"
        try:
            chosen = options(arguments)
        except ValueError as error:
            return impossible(str(error))
        return hold(chosen, as_json=arguments.json)
