"""The command line, run as its users run it: in a process, at a terminal, with signals."""

from __future__ import annotations

import asyncio
import fcntl
import io
import os
import pty
import signal
import sys
import termios
from collections.abc import AsyncGenerator, Callable, Generator, Sequence
from contextlib import (
    asynccontextmanager,
    contextmanager,
    redirect_stderr,
    redirect_stdout,
    suppress,
)
from pathlib import Path
from typing import Any

import pytest

import aiolock
from aiolock.cli.main import main

WITHIN = 60.0
"""Seconds for a program to start, or to end, on a busy machine."""


class Cli:
    """The command line, against one store."""

    def __init__(self, url: str, prefix: str) -> None:
        self.env = {"AIOLOCK_URL": url, "AIOLOCK_PREFIX": prefix}

    @asynccontextmanager
    async def started(
        self,
        *args: str,
        by: Sequence[str] = (),
        program: Sequence[str] = (),
        before: Callable[[], object] = int,
        **options: Any,
    ) -> AsyncGenerator[asyncio.subprocess.Process]:
        """A command that is under way; killed in the end.

        It is started by another program, if one is given, and in its process that is done before.
        Arguments of Python may be given instead of the command line.
        """

        def prepare() -> None:
            get_all_signals()
            before()

        options.setdefault("stdin", asyncio.subprocess.DEVNULL)
        options.setdefault("stdout", asyncio.subprocess.PIPE)
        process = await asyncio.create_subprocess_exec(
            *(*by, sys.executable, *(program or ("-P", "-W", "error", "-m", "aiolock", *args))),
            stderr=asyncio.subprocess.PIPE,
            env=os.environ | self.env,
            preexec_fn=prepare,
            **options,
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                process.kill()
            # Before that is waited for: what it has left behind may have its output open.
            process._transport.close()  # type: ignore[attr-defined]  # asyncio tells no other way
            await process.wait()

    async def run_with(self, before: Callable[[], None], *args: str) -> tuple[int, str, str]:
        """The same, where that is done in its process first."""
        async with self.started(*args, before=before) as process:
            return await end_of(process)

    async def __call__(self, *args: str) -> tuple[int, str, str]:
        """Its exit code, and what it printed."""
        async with self.started(*args) as process:
            return await end_of(process)

    async def here(self, *args: str, encoding: str = "utf-8") -> tuple[int, str, str]:
        """The same in this process, in another thread: most of a command is the start of Python.

        Without a terminal, and without signals.
        """
        written = io.BytesIO(), io.BytesIO()
        streams = [io.TextIOWrapper(each, encoding, write_through=True) for each in written]
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(streams[0]):
            for name, value in self.env.items():
                patch.setenv(name, value)
            patch.setattr("aiolock.cli.signals.ENDING", ())
            with redirect_stderr(streams[1]):
                code = await asyncio.to_thread(_code_of, args)
        output, errors = (each.getvalue().decode(errors="surrogateescape") for each in written)
        return code, output, errors


def _code_of(args: Sequence[str]) -> int:
    try:
        return main(args)
    except SystemExit as end:  # of argparse
        return int(end.code or 0)


def get_all_signals() -> None:
    """Of this process, ignore and block none.

    Whoever runs the tests may do so, and their programs would inherit it: a shell that runs them
    in the background, nohup, a service.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        signal.signal(number, signal.SIG_DFL)


@contextmanager
def command_line(url: str, prefix: str) -> Generator[Cli]:
    """The command line, and in the end none of what it has started: see `end_all`."""
    cli = Cli(url, prefix)
    try:
        yield cli
    finally:
        if sys.platform == "linux":
            end_all(f"AIOLOCK_PREFIX={prefix}")


def end_all(variable: str) -> None:
    """End each process that was started with that in its environment, wherever it has gone.

    A test that fails leaves programs that nothing but SIGKILL ends, in sessions of their own.
    """
    ended = {os.getpid()}
    while left := [pid for pid in started_with(variable) if pid not in ended]:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        ended.update(left)  # what they have started meanwhile is found the next time


def started_with(variable: str) -> list[int]:
    """The processes that were started with that in their environment."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        with suppress(OSError):  # it has ended, or belongs to another user
            if folder.name.isdigit() and (
                variable.encode() in (folder / "environ").read_bytes().split(b"\0")
            ):
                found.append(int(folder.name))
    return found


async def end_of(process: asyncio.subprocess.Process) -> tuple[int, str, str]:
    """The exit code of a command, and what it has printed since."""
    output, errors = await asyncio.wait_for(process.communicate(), WITHIN)
    assert process.returncode is not None
    return (
        process.returncode,
        (output or b"").decode(errors="surrogateescape"),
        errors.decode(errors="surrogateescape"),
    )


async def line_of(process: asyncio.subprocess.Process) -> str:
    """The next line that it prints."""
    assert process.stdout is not None
    return (await asyncio.wait_for(process.stdout.readline(), WITHIN)).decode().rstrip("\n")


def sh(script: str) -> tuple[str, ...]:
    """A command of the shell's."""
    return ("--", "sh", "-c", script)


async def gone(pid: int) -> None:
    """Wait for the end of a process."""
    async with asyncio.timeout(WITHIN):
        while True:
            if not runs(pid):
                return
            await asyncio.sleep(0.02)


async def waited_for(client: aiolock.LockClient, name: str, kind: str = "lock") -> None:
    """Wait until somebody waits for it."""
    async with asyncio.timeout(WITHIN):
        while True:
            if (await client.status(name, kind=kind)).waiters:
                return
            await asyncio.sleep(0.01)


def state(pid: int) -> str:
    """Of its main thread: "S" waits, "R" works, "Z" has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def runs(pid: int) -> bool:
    """Whether it has not ended yet."""
    try:
        return state(pid) != "Z"
    except OSError:
        return False


async def shown(terminal: int, text: str) -> str:
    """All that is written to a terminal until that is."""
    seen = b""
    async with asyncio.timeout(WITHIN):
        while text not in seen.decode("utf-8", "replace"):
            seen += await asyncio.to_thread(os.read, terminal, 65536)
    return seen.decode("utf-8", "replace")


@asynccontextmanager
async def at_a_terminal(
    cli: Cli, *args: str, program: Sequence[str] = ()
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, int]]:
    """A command in the foreground of a terminal of its own; and our end of that."""
    ours, its_end = pty.openpty()

    def take() -> None:
        os.setsid()
        fcntl.ioctl(its_end, termios.TIOCSCTTY, 0)

    try:
        async with cli.started(
            *args, program=program, before=take, stdin=its_end, stdout=its_end
        ) as it:
            os.close(its_end)
            yield it, ours
    finally:
        os.close(ours)
