"""``aiolock init-quorum``: registers the servers of a new quorum, so that they vote at once."""

from __future__ import annotations

import argparse
import importlib
import sys
from typing import Any, Final

import aiolock
from aiolock.cli.signals import typed_line
from aiolock.cli.store import ENVIRONMENT, NOBODY, WRONG_USE, Commands, ending, say

_SCHEMES: Final = ("redis", "rediss", "unix", "valkey", "valkeys")


def add_command(commands: Commands) -> None:
    """Add ``init-quorum`` to the command line."""
    parser = commands.add_parser(
        "init-quorum",
        help="register the servers of a new quorum, so that they vote at once",
        description="A server that was started a moment ago may have forgotten its votes, and gives"
        " none for longest_ttl. This command registers servers that have never voted: on the"
        " first day, before any client is started. Refused if a server has keys or clients of this"
        " prefix.",
        epilog="exit code: 0 if all of them vote now, 1 if one of them is in use, 69 if one of them"
        " does not answer",
    )
    parser.add_argument(
        "urls",
        nargs="+",
        metavar="URL",
        help="all servers of the quorum; - for those in AIOLOCK_URL, with blanks between them,"
        " which no other user of the machine sees",
    )
    parser.add_argument(
        "--prefix",
        default=ENVIRONMENT.get().get("AIOLOCK_PREFIX", "aiolock"),
        help="the prefix of the locks, as in connect() (default: AIOLOCK_PREFIX, or aiolock)",
    )
    parser.add_argument(
        "--longest-ttl",
        type=float,
        default=60.0,
        metavar="S",
        help="longest_ttl in seconds, as in connect() (default: %(default)g)",
    )
    parser.add_argument("--durable", action="store_true", help="durable=True, as in connect()")
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")
    parser.set_defaults(run=run, command="init-quorum")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if not arguments.yes and (sys.stdin is None or not sys.stdin.isatty()):
        say("aiolock init-quorum: without a terminal, this cannot ask for confirmation: use --yes")
        return WRONG_USE
    return ending(_begin, arguments)


async def _begin(arguments: argparse.Namespace) -> int:
    quorum = _new_quorum(arguments)
    for address, why in (found := await quorum.why_not()).items():
        say(f"{address}: {why}")
    if found:
        say("aiolock init-quorum: this quorum is not new")
        return NOBODY
    if not arguments.yes:
        for server in quorum.servers:
            print(f"{server.address}: empty")
        print("Have these servers never been used for locks? [y/N] ", end="", flush=True)
        if typed_line().strip().lower() not in ("y", "yes"):
            return NOBODY
    registered = await quorum.begin()
    print(
        f"all {len(quorum.servers)} servers vote" + ("" if registered else ", as they did before")
    )
    return 0


def _new_quorum(arguments: argparse.Namespace) -> Any:
    """The servers, as a `NewQuorum` of the Redis store; `ValueError` for options that are wrong."""
    urls, prefix = arguments.urls, arguments.prefix
    if urls == ["-"]:
        urls = ENVIRONMENT.get().get("AIOLOCK_URL", "").split()
    longest, durable = arguments.longest_ttl, arguments.durable
    if {url.partition("://")[0] for url in urls} - set(_SCHEMES):
        # The first part is not shown: without a scheme, it may be a password.
        raise ValueError(
            "init-quorum is for Redis servers, each given by a URL that begins with one of"
            f" {', '.join(f'{each}://' for each in _SCHEMES)}"
        )
    # It checks the options, and connects to nothing.
    aiolock.connect(urls, prefix=prefix, ttl=longest, longest_ttl=longest, durable=durable)
    # Imported by name: the other commands do not need them.
    redis = importlib.import_module("aiolock.stores.redis")
    quorum = importlib.import_module("aiolock.stores.quorum")
    members = [redis.member_at(url, prefix) for url in urls]
    return redis.new_quorum(urls, prefix, quorum.from_members(members, longest, durable=durable))
