"""``aiolock demo`` on the command line: what it says, and with which exit code it ends."""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from contextlib import ExitStack, suppress
from dataclasses import asdict
from tempfile import TemporaryDirectory
from typing import Final
from urllib.parse import quote

from aiolock.cli.demo.failure import first, reason
from aiolock.cli.demo.figures import Act, audit, figures
from aiolock.cli.demo.options import Options, add_options, options
from aiolock.cli.demo.progress import Progress
from aiolock.cli.demo.shop import in_a_file
from aiolock.cli.demo.story import Acts, tell
from aiolock.cli.demo.table import table

RIGHT, WRONG, IMPOSSIBLE = 0, 1, 2

_ABOUT: Final = """\
An online sale: many requests at once read a stock, do some work, and write it back. Without a
lock too much is sold. With the lock the stock ends at exactly 0, and each request is served in
the order in which it came. They come from several processes, and some of these are killed: with
the lock in hand, and in the queue. Without a server the lock is in an SQLite file. On a Redis
server the same sale is held once more, under redis-py's own Lock."""

_HINT: Final = """\
On a Redis server (--url redis://...) it is also held under redis-py's own Lock.
"""

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
    """Hold the sales, and say what came of them; the exit code."""
    with ExitStack() as stack:
        if arguments.url is None:
            directory = stack.enter_context(TemporaryDirectory(prefix="aiolock-demo-"))
            arguments.url = f"sqlite://{quote(directory)}/locks.db"
        try:
            chosen = options(arguments)
        except ValueError as error:
            return _impossible(str(error))
        return _hold(chosen, as_json=arguments.json)


def _hold(chosen: Options, *, as_json: bool) -> int:
    progress = Progress(None if as_json else sys.stdout)
    try:
        acts = asyncio.run(_terminable(chosen, progress))
    except (asyncio.CancelledError, KeyboardInterrupt):
        progress.clear()
        sys.stderr.write("aiolock demo: interrupted\n")
        raise KeyboardInterrupt from None
    except Exception as failure:  # noqa: BLE001  # a bug is raised again
        cause = first(failure)
        if (why := reason(cause)) is None:
            raise cause from None
        return _impossible(f"{chosen.server}: {why}")
    finally:
        progress.clear()
    wrong = audit(acts.ours)
    if as_json:
        sys.stdout.write(json.dumps(_document(chosen, acts, wrong), indent=2) + "\n")
    else:
        lines = table([figures(act) for act in acts if act is not None])
        hint = _HINT if in_a_file(chosen.url) else ""
        sys.stdout.write("\n".join(("", *lines, "", _verdict(acts.ours, wrong), hint)))
    sys.stdout.flush()
    return WRONG if wrong else RIGHT


async def _terminable(chosen: Options, progress: Progress) -> Acts:
    """Tell the story; SIGTERM ends it as Ctrl-C does, so that it tidies up."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # no such signals on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await tell(chosen, progress)


def _impossible(why: str) -> int:
    sys.stderr.write(f"aiolock demo: {why}\n")
    return IMPOSSIBLE


def _verdict(act: Act, wrong: list[str]) -> str:
    if wrong:
        return f"The sale came out WRONG: {'; '.join(wrong)}."
    return f"The sale came out exactly right: {act.items:,} of {act.items:,} sold, each item once."


def _document(chosen: Options, acts: Acts, wrong: list[str]) -> dict[str, object]:
    return {
        "server": chosen.server,
        "workers": chosen.workers,
        "requests_at_once": chosen.requests,
        "ttl": chosen.ttl,
        "without_lock": asdict(figures(acts.without)),
        "with_lock": asdict(figures(acts.ours)),
        "redis_py_lock": None if acts.peer is None else asdict(figures(acts.peer)),
        "right": not wrong,
        "wrong": wrong,
    }
