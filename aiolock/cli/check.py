"""``aiolock check``: whether the locks of a store can be used, and how fast."""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import secrets
import statistics
import time
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import aiolock
from aiolock.cli.signals import SIGNALS
from aiolock.cli.store import Commands, add_store_options, check_url, ending, number

SLOW: Final = 1
_LIMITED: Final = ("acquire and release", "hand over")
_TIMES: Final = 15
"""The number of measurements of each; the median counts."""


def add_command(commands: Commands) -> None:
    """Add ``check`` to the command line."""
    parser = commands.add_parser(
        "check",
        help="check whether the locks of a store can be used, and how fast",
        description="Open two clients, which tests the connection, the rights and the pushes; then"
        " acquire and release a lock of its own, and hand it from one client to the other.",
        epilog="exit code: 0 if all of it works, 1 if it takes longer than --max-ms, 69 if it does"
        " not work",
    )
    add_store_options(parser)
    parser.add_argument(
        "--max-ms",
        type=number,
        metavar="MS",
        help="the longest that a lock may take to be acquired and released, or handed over",
    )
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="as JSON")
    form.add_argument(
        "--report",
        action="store_true",
        help="print first what a maintainer asks: versions, the kind of the store, its server and"
        " settings; neither addresses nor secrets",
    )
    parser.set_defaults(run=run, command="check")


def run(arguments: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    return ending(_check, arguments)


async def _check(arguments: argparse.Namespace) -> int:
    check_url(arguments)
    if arguments.report:
        from aiolock.cli import report

        # Before the check, which may fail: then a report matters most.
        print(report.text(await report.report(arguments.url)), "check:", sep="\n", flush=True)
    warnings = _Warnings()
    log = logging.getLogger("aiolock")
    log.addHandler(warnings)
    log.propagate = False  # the warnings are shown with the results
    try:
        with SIGNALS.end_this_task():
            found = await _measured(arguments)
    finally:
        log.removeHandler(warnings)
        log.propagate = True
    limit: float | None = arguments.max_ms
    slow = [] if limit is None else [what for what in _LIMITED if found.ms[what] > limit]
    if arguments.json:
        results = {"protocols": found.protocols, "ms": found.ms, "slow": slow}
        print(json.dumps({**results, "warnings": warnings.texts}, indent=2))
    else:
        if found.protocols:
            print(f"{'protocol':<20} {', beside '.join(map(str, found.protocols)):>9}")
        for what, ms in found.ms.items():
            print(f"{what:<20} {ms:9.2f} ms" + ("  too slow" if what in slow else ""))
        for text in warnings.texts:
            print(f"warning: {text}")
        print("slow" if slow else "ok")
    return SLOW if slow else 0


class _Found(NamedTuple):
    """The results."""

    ms: dict[str, float]
    """Milliseconds for each of the measured operations."""
    protocols: tuple[int, ...]
    """See `LockClient.protocols`."""


async def _measured(arguments: argparse.Namespace) -> _Found:
    name = f"aiolock check {secrets.token_hex(8)}"  # a name that nothing else uses
    began = time.perf_counter()
    async with (
        aiolock.connect(arguments.url, prefix=arguments.prefix, ttl=10) as ours,
        aiolock.connect(arguments.url, prefix=arguments.prefix, ttl=10) as theirs,
    ):
        opened = time.perf_counter() - began

        async def alone() -> float:
            begin = time.perf_counter()
            async with ours.lock(name, timeout=10):
                pass
            return time.perf_counter() - begin

        async def handed_over() -> float:
            async with asyncio.TaskGroup() as tasks, ours.lock(name, timeout=10) as lease:
                waiting = tasks.create_task(_enter(theirs.lock(name, timeout=10)))
                await asyncio.sleep(0)  # its request is sent; later commands follow that
                await theirs.request_release(name)
                async with asyncio.timeout(10):
                    await lease.requested.wait()
                begin = time.perf_counter()
            return waiting.result() - begin

        figures = await _median(alone), await _median(handed_over)
        ms = {"open": 1000 * opened, **dict(zip(_LIMITED, figures, strict=True))}
        return _Found(ms, ours.protocols)


async def _enter(lock: aiolock.Lock) -> float:
    """Enter the lock; returns when it was entered."""
    async with lock:
        return time.perf_counter()


async def _median(measure: Callable[[], Awaitable[float]]) -> float:
    return 1000 * statistics.median([await measure() for _ in range(_TIMES)])


class _Warnings(logging.Handler):
    """The warnings in aiolock's log meanwhile."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep the warning."""
        text = record.getMessage().removeprefix("aiolock: ")
        if text not in self.texts:  # both clients log the same
            self.texts.append(text)
