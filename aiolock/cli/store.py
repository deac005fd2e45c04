"""The common part of all commands on a store: the options that name it, and the exit codes."""

from __future__ import annotations

import argparse
import asyncio
import errno
import math
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import aiolock
from aiolock.cli.signals import SIGNALS, Ended
from aiolock.text import plain

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
NOBODY: Final = 1
WRONG_USE: Final = 2
NO_STORE: Final = 69
BUSY: Final = 75
LOST: Final = 76
_OF_OUTPUT: Final = (errno.EPIPE, errno.ENOSPC, errno.EFBIG, errno.EIO, errno.EBADF)
"""Errors of output: its reader has ended, or its disk is full. `main` knows what to do."""

ENVIRONMENT: Final = ContextVar[Mapping[str, str]]("aiolock.cli", default=os.environ)
"""The variables that name the store. Those of the process are also given to what ``run`` runs."""

Work = Callable[[aiolock.LockClient, argparse.Namespace], Awaitable[int]]
"""The work of a command with an open client; returns the exit code."""


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the store."""
    parser.add_argument(
        "--url",
        default=ENVIRONMENT.get().get("AIOLOCK_URL"),
        help="the store: redis://..., postgresql://..., mysql://..., etcd://..., sqlite:////..."
        " (default: AIOLOCK_URL)",
    )
    parser.add_argument(
        "--prefix",
        default=ENVIRONMENT.get().get("AIOLOCK_PREFIX", "aiolock"),
        help="the prefix of the locks, as in connect() (default: AIOLOCK_PREFIX, or aiolock)",
    )


def say(text: str) -> None:
    """Print a line to standard error, if there is one."""
    if sys.stderr is not None:  # it is None where it is closed, and print() takes that for stdout
        print(text, file=sys.stderr)


def number(text: str, unit: str = "") -> float:
    """An option that is a number of at least 0."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:  # nan fails every comparison
        raise argparse.ArgumentTypeError(f"{text!r} is not a number{unit} of at least 0")
    return value


def seconds(text: str) -> float:
    """An option that is a number of seconds of at least 0."""
    return number(text, " of seconds")


def with_store(work: Work) -> Callable[[argparse.Namespace], int]:
    """A command that does this work with an open client."""

    async def carry_out(arguments: argparse.Namespace) -> int:
        check_url(arguments)
        with SIGNALS.end_this_task():
            async with aiolock.connect(arguments.url, prefix=arguments.prefix) as client:
                return await work(client, arguments)

    return lambda arguments: ending(carry_out, arguments)


def check_url(arguments: argparse.Namespace) -> None:
    """`ValueError` if no store is named."""
    if not arguments.url:
        raise ValueError("no store is named: use --url, or set AIOLOCK_URL")


def shown(url: str) -> str:
    """The URL of a store without what may be secret: its user, password and options.

    For a URL that was connected to: in others, a password may be anywhere.
    """
    scheme, _, rest = url.partition("://")
    return plain(f"{scheme}://{rest.partition('?')[0].rpartition('@')[2]}")


def ending(
    carry_out: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
    arguments: argparse.Namespace,
) -> int:
    """Run the command; returns the exit code. An error is printed in one line."""
    try:
        return asyncio.run(carry_out(arguments))
    except aiolock.StoreError as error:
        code, why = NO_STORE, str(error)
    except (aiolock.AcquireTimeout, aiolock.QueueFull) as error:
        code, why = BUSY, str(error)
    except aiolock.LeaseLost as error:
        code, why = LOST, str(error)
    except (ValueError, TypeError, ImportError, OSError) as error:
        if isinstance(error, OSError) and error.errno in _OF_OUTPUT:
            raise
        code, why = WRONG_USE, str(error)
    except Ended as ended:
        return 128 + ended.number
    say(f"aiolock {arguments.command}: {why}")
    return code
