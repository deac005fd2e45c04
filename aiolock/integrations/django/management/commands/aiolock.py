"""``manage.py aiolock``: aiolock's own command line, with the store of the settings."""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError

from aiolock.cli.main import main
from aiolock.integrations.django._clients import options as options_of_settings


class Command(BaseCommand):
    """All commands of ``aiolock``: ``manage.py aiolock ls``."""

    help = "List, show and break the locks of settings.AIOLOCK, and run commands under a lock."
    requires_system_checks = ()

    def run_from_argv(self, argv: list[str]) -> None:
        """Run one command, and exit with its code."""
        try:
            store = _store_of_settings()
            code = main(_ours(argv[2:]), f"{Path(argv[0]).name} {argv[1]}", store)
        except CommandError as error:
            self.stderr.write(str(error))
            code = error.returncode
        sys.exit(code)

    def print_help(self, prog_name: str, subcommand: str) -> None:
        """Print the help of aiolock's command line."""
        with contextlib.suppress(SystemExit):
            main(["--help"], f"{Path(prog_name).name} {subcommand}")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Take all arguments as they are; for `call_command`."""
        parser.add_argument("arguments", nargs=argparse.REMAINDER)

    def handle(self, *_: object, arguments: list[str], **options: Any) -> None:
        """Run one command; `CommandError`, with the exit code, if that is not 0."""
        store = _store_of_settings()
        output, errors = options.get("stdout"), options.get("stderr")
        with (
            contextlib.redirect_stdout(output or sys.stdout),
            contextlib.redirect_stderr(errors or sys.stderr),
        ):
            try:
                code = main(arguments, environment=store)
            except SystemExit as ended:  # argparse has printed why
                code = int(ended.code or 0)
        if code:
            raise CommandError(
                f"aiolock {' '.join(arguments[:1])}: exit code {code}", returncode=code
            )


def _store_of_settings() -> Mapping[str, str]:
    """The variables by which aiolock's commands find that store.

    They are not those of the process: what ``run`` runs is not to see the password, nor are other
    threads to see this store.
    """
    try:
        given = options_of_settings()
    except ImproperlyConfigured as error:
        raise CommandError(str(error)) from error
    target = given["target"]
    # Another one has no URL, and so the command says that --url is missing.
    url = target if isinstance(target, str) else ""
    return {"AIOLOCK_URL": url, "AIOLOCK_PREFIX": given.get("prefix", "aiolock")}


def _ours(arguments: list[str]) -> list[str]:
    """The arguments without those of ``manage.py``, which has acted on them already."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for name in ("--settings", "--pythonpath"):
        parser.add_argument(name)
    at = arguments.index("--") if "--" in arguments else len(arguments)
    return parser.parse_known_args(arguments[:at])[1] + arguments[at:]
