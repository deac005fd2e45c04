"""What every command that uses a store has in common: where that is, and how it ends."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final, TypeAlias

import aiolock
from aiolock.cli.signals import SIGNALS, Ended

Commands: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"
NOBODY: Final = 1
WRONG_USE: Final = 2
NO_STORE: Final = 69
BUSY: Final = 75
LOST: Final = 76

Work = Callable[[aiolock.LockClient, argparse.Namespace], Awaitable[int]]
"""What a command does with an open client; its exit code."""


def add_store_options(parser: argparse.ArgumentParser) -> None:
    """Add what says where the store is."""
    parser.add_argument(
        "--url",
        default=os.environ.get("AIOLOCK_URL"),
        help="the store: redis://…, postgresql://…, mysql://…, sqlite:///… (default: AIOLOCK_URL)",
    )
    parser.add_argument(
        "--prefix",
        default=os.environ.get("AIOLOCK_PREFIX", "aiolock"),
        help="of the locks, as in connect() (default: AIOLOCK_PREFIX, or aiolock)",
    )


def add_name(parser: argparse.ArgumentParser) -> None:
    """Add what says which lock it is, or semaphore, or whatever else has a name."""
    parser.add_argument("name", metavar="NAME", help="of the lock")
    parser.add_argument(
        "--kind",
        choices=aiolock.LockClient.KINDS,
        default="lock",
        help="what it is (default: %(default)s)",
    )


def with_store(work: Work) -> Callable[[argparse.Namespace], int]:
    """A command that does this with an open client."""

    async def carry_out(arguments: argparse.Namespace) -> int:
        check_url(arguments)
        with SIGNALS.end_this_task():
            async with aiolock.connect(arguments.url, prefix=arguments.prefix) as client:
                return await work(client, arguments)

    return lambda arguments: ending(carry_out, arguments)


def check_url(arguments: argparse.Namespace) -> None:
    """`ValueError` where nobody has said which store."""
    if not arguments.url:
        raise ValueError("which store? Say --url, or set AIOLOCK_URL")


def ending(
    carry_out: Callable[[argparse.Namespace], Coroutine[Any, Any, int]],
    arguments: argparse.Namespace,
) -> int:
    """Carry it out; the exit code. What goes wrong is said in one line."""
    try:
        return asyncio.run(carry_out(arguments))
    except aiolock.StoreError as error:
        code, why = NO_STORE, str(error)
    except (aiolock.AcquireTimeout, aiolock.QueueFull) as error:
        code, why = BUSY, str(error)
    except aiolock.LeaseLost as error:
        code, why = LOST, str(error)
    except BrokenPipeError:
        raise  # whoever reads our output has enough
    except (ValueError, TypeError, ImportError, OSError) as error:
        code, why = WRONG_USE, str(error)
    except Ended as ended:
        return 128 + ended.number
    print(f"aiolock {arguments.command}: {why}", file=sys.stderr)
    return code
