"""``aiolock completion``: a script by which a shell completes commands and options."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Final

from aiolock.cli.store import WRONG_USE, Commands, say

SHELLS: Final = ("bash", "zsh", "tcsh")


def add_command(commands: Commands, parser: argparse.ArgumentParser) -> None:
    """Add ``completion`` to the command line that ``parser`` reads."""
    completion = commands.add_parser(
        "completion",
        help="print a script that lets your shell complete commands and options",
        description="Print a script for your shell: for bash, say"
        " `aiolock completion bash > ~/.local/share/bash-completion/completions/aiolock`.",
        epilog="needs the extra `cli`: pip install 'aiolock-redis[cli]'",
    )
    completion.add_argument("shell", choices=SHELLS)
    completion.set_defaults(run=partial(_print, parser), command="completion")


def _print(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    try:
        import shtab
    except ImportError:
        say("aiolock completion: it needs shtab: pip install 'aiolock-redis[cli]'")
        return WRONG_USE
    print(shtab.complete(parser, arguments.shell))
    return 0
