"""Holds the sales and prints the results."""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from contextlib import suppress
from dataclasses import asdict
from typing import Final

from aiolock.cli.demo.failure import first, reason
from aiolock.cli.demo.figures import Act, audit, figures
from aiolock.cli.demo.options import Options, in_a_file
from aiolock.cli.demo.progress import Progress
from aiolock.cli.demo.story import Acts, tell
from aiolock.cli.demo.table import table

RIGHT, WRONG, IMPOSSIBLE = 0, 1, 2

_HINT: Final = """\
On a Redis server (--url redis://...) it is also held under redis-py's own Lock.
"""


def hold(chosen: Options, *, as_json: bool) -> int:
    """Hold the sales, and print the results; returns the exit code."""
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
        return impossible(f"{chosen.server}: {why}")
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
    """Tell the story; SIGTERM ends it like Ctrl-C, so that it tidies up."""
    task = asyncio.current_task()
    assert task is not None
    with suppress(NotImplementedError):  # no such signals on Windows
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    return await tell(chosen, progress)


def impossible(why: str) -> int:
    """Print why the sales cannot be held; returns the exit code."""
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
