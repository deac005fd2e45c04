"""``aiolock run``: a command under a lock, on one of any number of machines."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import PurePath
from typing import NoReturn

import aiolock
from aiolock.backoff import Backoff
from aiolock.cli.signals import Ended, in_main_thread
from aiolock.cli.store import (
    BUSY,
    LOST,
    WRONG_USE,
    Commands,
    add_store_options,
    say,
    seconds,
    with_store,
)
from aiolock.text import plain

_FIRST_PAUSE = 1.0
_LONGEST_PAUSE = 30.0
"""The longest pause between tries to take part while the store cannot be reached, in seconds."""


def add_command(commands: Commands) -> None:
    """Add ``run`` to the command line."""
    parser = commands.add_parser(
        "run",
        help="run a command under a lock",
        usage="aiolock run [OPTION...] NAME -- COMMAND [ARGUMENT...]",
        description="Run a command while this holds the lock, and renews it. The command finds the"
        " name in AIOLOCK_NAME, and the fencing token in AIOLOCK_FENCE. When the lock is lost the"
        " command gets SIGTERM, and SIGKILL if that does not end it. Signals are passed on to"
        " the command.",
        epilog=f"exit code: the command's own (128 + N if signal N ended it); {BUSY} if the lock is"
        f" held by another client, {LOST} if it was lost, 69 if the store cannot be reached",
    )
    add_store_options(parser)
    waiting = parser.add_mutually_exclusive_group()
    waiting.add_argument("-n", "--no-wait", action="store_true", help="do not wait for the lock")
    waiting.add_argument(
        "-t", "--timeout", type=seconds, metavar="S", help="wait for S seconds at most"
    )
    parser.add_argument(
        "--ttl",
        type=seconds,
        metavar="S",
        help="seconds for which the lock stays taken if this machine dies"
        " (default: 30, or the most that the store keeps)",
    )
    parser.add_argument(
        "--grace",
        type=seconds,
        default=5.0,
        metavar="S",
        help="seconds from SIGTERM to SIGKILL when the lock was lost (default: 5)",
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--limit", type=int, metavar="N", help="the number of commands that may run at once"
    )
    what.add_argument(
        "--every",
        type=seconds,
        metavar="S",
        help="for ever: one run in each period of S seconds, among all processes with this option",
    )
    what.add_argument(
        "--once",
        type=seconds,
        metavar="S",
        help="only if it was not done in the last S seconds (if it was, the exit code is 0)",
    )
    parser.add_argument(
        "--verbose", action="store_true", help="with --once: print a line if it was done already"
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("argv", nargs="*", metavar="COMMAND")
    parser.set_defaults(run=run, command="run")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    arguments.argv += arguments.behind
    if not arguments.argv:
        say("aiolock run: no command is given: aiolock run NAME -- COMMAND")
        return WRONG_USE
    if os.name != "posix":
        say("aiolock run: commands are run on POSIX systems only")
        return WRONG_USE
    if arguments.every is not None and (arguments.no_wait or arguments.timeout is not None):
        say("aiolock run: --every waits for its turn, so it takes no -n and no -t")
        return WRONG_USE
    return with_store(_run)(arguments)


async def _run(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    # Imported only here: Windows lacks some of what it needs.
    from aiolock.cli.child import CannotRun

    task = asyncio.current_task()
    assert task is not None
    # Its name is the label of what it holds; not the arguments, which may be secret.
    task.set_name(PurePath(arguments.argv[0]).name)
    try:
        if arguments.every is not None:
            await _take_part(client, arguments)
        if arguments.once is not None:
            return await _once(client, arguments)
        async with _acquisition(client, arguments) as lease:
            return await _under(lease, arguments)
    except CannotRun as error:
        command, why = plain(arguments.argv[0]), error.why
        if isinstance(why, FileNotFoundError):
            say(f"aiolock run: {command}: there is no such command")
            return 127
        if isinstance(why, PermissionError):
            say(f"aiolock run: {command}: permission to run it is denied")
        else:
            say(f"aiolock run: {command}: it cannot be run: {why.strerror}")
        return 126


def _acquisition(
    client: aiolock.LockClient, arguments: argparse.Namespace
) -> aiolock.AcquireContext[aiolock.Lease]:
    name, ttl = arguments.name, arguments.ttl
    limit: int | None = arguments.limit
    timeout: float | None = 0 if arguments.no_wait else arguments.timeout
    if limit is None:
        return client.lock(name, ttl=ttl).acquire(timeout=timeout)
    return client.semaphore(name, limit, ttl=ttl).acquire(timeout=timeout)


async def _once(client: aiolock.LockClient, arguments: argparse.Namespace) -> int:
    """Run the command unless it is done already; a command that fails has not done it."""
    once = client.once(
        arguments.name,
        remember=arguments.once,
        ttl=arguments.ttl,
        timeout=0 if arguments.no_wait else arguments.timeout,
    )
    try:
        async with once as lease:
            if lease is None:
                if arguments.verbose:
                    say(f"aiolock run: {arguments.name!r} is done already")
                return 0
            await _do(lease, arguments)
            return 0
    except _NotDoneError as failed:
        return failed.code


class _NotDoneError(Exception):
    """The command has failed, so the next caller may try."""

    def __init__(self, code: int) -> None:
        self.code = code


async def _do(lease: aiolock.Lease, arguments: argparse.Namespace) -> None:
    if code := await _under(lease, arguments):
        raise _NotDoneError(code)


async def _take_part(client: aiolock.LockClient, arguments: argparse.Namespace) -> NoReturn:
    """Run the command in each period that is ours, until a signal ends it."""
    periodic = client.periodic(arguments.name, every=arguments.every, ttl=arguments.ttl)
    backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE)
    while True:
        try:
            async with periodic as lease:
                backoff.reset()
                if code := await _under(lease, arguments):
                    say(f"aiolock run: the command ended with {code}")
        except aiolock.LeaseLost as error:
            say(f"aiolock run: {error}; the command was ended")
        except aiolock.StoreError as error:
            pause = backoff.pause()
            say(f"aiolock run: {error}; tried again in {pause:g} s")
            await asyncio.sleep(pause)


async def _under(lease: aiolock.Lease, arguments: argparse.Namespace) -> int:
    """Run the command while the lease is ours; returns its exit code."""
    from aiolock.cli.child import Child, SupervisorLost

    if not in_main_thread():
        raise ValueError(
            "commands are run in the main thread only, which gets the signals for them"
        )
    argv: Sequence[str] = arguments.argv
    env = os.environ | {"AIOLOCK_NAME": arguments.name, "AIOLOCK_FENCE": str(lease.fence)}
    child = Child(argv, env, grace=arguments.grace, remaining=lease.remaining)
    try:
        code = await child.run()
    except SupervisorLost:
        say("aiolock run: the supervisor of the command was killed, so the command was ended")
        code = 128 + signal.SIGKILL
    if child.overdue:
        say(
            "aiolock run: the lease was not renewed in time (was this process stopped?), so the"
            " command was ended"
        )
        code = LOST
    if arguments.every is not None and child.told_to_end is not None:
        raise Ended(child.told_to_end)
    return code
