"""The command line: ``python -m aiolock``, installed as ``aiolock``."""

from __future__ import annotations

import argparse
import io
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import aiolock
from aiolock.cli import (
    break_,
    check,
    completion,
    deadlocks,
    demo,
    init_db,
    init_quorum,
    members,
    run,
    show,
    top,
    web,
)
from aiolock.cli.store import ENVIRONMENT, say

COMMANDS: Final = (
    run,
    show,
    top,
    members,
    deadlocks,
    break_,
    web,
    check,
    init_db,
    init_quorum,
    demo,
)
"""Modules with an `add_command`, whose parser sets ``run`` to the function of the command."""

INTERRUPTED: Final = 130
NOT_WRITTEN: Final = 74


def main(
    argv: Sequence[str] | None = None,
    prog: str = "aiolock",
    environment: Mapping[str, str] = os.environ,
) -> int:
    """Run one command; returns the exit code. ``prog`` is how it was called, for its help.

    ``environment`` names the store, in ``AIOLOCK_URL`` and ``AIOLOCK_PREFIX``.
    """
    before = ENVIRONMENT.set(environment)
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal has not is escaped, and ends nothing.
        if isinstance(stream, io.TextIOWrapper):  # it is None if it is closed
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            return _run(sys.argv[1:] if argv is None else argv, prog)
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:  # the reader of our output has ended
        _discard_output()
        return 1
    except OSError as error:  # as for a disk that is full
        _discard_output()
        say(f"aiolock: the output cannot be written: {error}")
        return NOT_WRITTEN
    finally:
        ENVIRONMENT.reset(before)


def _parser(prog: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=prog,
        description="Run commands under a lock, and inspect or break the locks of a store.",
        epilog=f"The store is given by --url or AIOLOCK_URL. `{prog} COMMAND --help` says more.",
    )
    parser.add_argument("--version", action="version", version=f"aiolock {aiolock.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for command in COMMANDS:
        command.add_command(commands)
    completion.add_command(commands, parser)
    return parser


def _run(argv: Sequence[str], prog: str) -> int:
    ours = list(argv)
    behind: list[str] = []
    if ours[:1] == ["run"] and "--" in ours:
        # The words after it are another program's command line: argparse must not read them.
        at = ours.index("--")
        ours, behind = ours[:at], ours[at + 1 :]
    arguments = _parser(prog).parse_args(ours)
    arguments.behind = behind
    carry_out: Callable[[argparse.Namespace], int] = arguments.run
    return carry_out(arguments)


def _discard_output() -> None:
    """Python would complain when it flushes the rest."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
