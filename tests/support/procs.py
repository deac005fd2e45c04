"""Real worker processes for fault tests: the test's side (`Worker`) and the worker's side.

The two exchange JSON objects, one per line, over the worker's stdin and stdout. The worker's side
is two functions, which a worker imports from here: `say` and `commands`. This module imports
nothing but the standard library, so that a worker starts quickly.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import AsyncIterator
from functools import cache
from pathlib import Path
from typing import Any, Self, cast

Message = dict[str, Any]

_ROOT = Path(__file__).resolve().parents[2]

# Each becomes the program itself (same process id), and first asks Linux to kill it when its parent
# is gone. The `preexec_fn` of subprocess would do, but is unsafe once there are threads.
_BY_SHELL = '[ $PPID = "$0" ] && echo && exec "$@"'
_BY_PYTHON = """
import ctypes, os, sys
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, 9)  # PR_SET_PDEATHSIG, SIGKILL
if os.getppid() == int(sys.argv[1]):
    os.write(1, b"\\n")
    os.execvp(sys.argv[2], sys.argv[2:])
"""


@cache
def _tie() -> list[str]:
    """What runs a program with the process id of its parent, and the program's command line.

    Of the tests' some thousand servers, each starts 7 ms earlier by util-linux's command. Other
    systems lack it, or its option.
    """
    command = ["setpriv", "--pdeathsig", "KILL"]
    try:
        subprocess.run([*command, "true"], stderr=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.CalledProcessError):
        return [sys.executable, "-ISc", _BY_PYTHON]
    return [*command, "sh", "-c", _BY_SHELL]


def tied(*argv: str) -> list[str]:
    """Return a command line that runs `argv`, and on Linux dies with the thread that starts it.

    It writes an empty line to its standard output when that is assured.
    """
    return [*_tie(), str(os.getpid()), *argv]


def freeze(pid: int) -> None:
    """Stop a child process with SIGSTOP, and return when it has stopped."""
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)


def _handles(pid: int, number: signal.Signals) -> bool:
    """Whether a process has a handler for a signal; only Linux tells."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except FileNotFoundError:
        return True
    (caught,) = (line for line in status.splitlines() if line.startswith("SigCgt:"))
    return bool(int(caught.split()[1], 16) >> (number - 1) & 1)


def say(event: str, **fields: object) -> None:
    """Tell the test, from the worker's side, what happened, and when.

    The time, `t`, is `time.monotonic()`, which on Linux is the same clock in all processes.
    """
    line = json.dumps({"event": event, "t": time.monotonic(), **fields})
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


async def commands() -> AsyncIterator[Message]:
    """Yield the test's messages, on the worker's side, until the test closes the pipe."""
    reader = asyncio.StreamReader()
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    try:
        async for line in reader:
            yield json.loads(line)
    finally:
        transport.close()


class Worker(asyncio.SubprocessProtocol):
    """A Python child process that a test talks to, kills, stops and continues.

    `Worker("-c", source, *args)` or `Worker("-m", module, *args)`: the arguments are those of a
    Python command line; the source may be indented. Used with `async with`, at whose end the child
    is killed. `history` is all that it said so far: the event loop takes it in as it comes, so a
    worker never blocks on a slow test. A line that isn't a message becomes the event "print".
    Another Python than that of the tests may be given.
    """

    def __init__(self, *args: str, python: str | Path = sys.executable) -> None:
        self._python = str(python)
        self._args = list(args)
        if "-c" in self._args:
            source = self._args.index("-c") + 1
            self._args[source] = textwrap.dedent(self._args[source])
        self.history: list[Message] = []
        self._unread: list[Message] = []
        self._half_line = b""
        self._begun = asyncio.Event()
        self._news = asyncio.Event()
        self._ended = asyncio.Event()

    async def __aenter__(self) -> Self:
        path = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
        await asyncio.get_running_loop().subprocess_exec(
            lambda: self,
            *tied(self._python, *self._args),
            stderr=None,
            env=os.environ | {"PYTHONPATH": path},
            start_new_session=True,
        )
        try:
            await self._begun.wait()  # a test may stop it now: it will not outlive the test
        except BaseException:
            await self.__aexit__()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self.kill()
        await self._ended.wait()
        self._transport.close()

    @property
    def pid(self) -> int:
        """The worker's process id."""
        pid = self._transport.get_pid()
        assert pid is not None
        return pid

    async def send(self, message: Message) -> None:
        """Send one JSON line to the worker's `commands`."""
        if self._ended.is_set():
            raise BrokenPipeError(f"worker {self.pid} has ended, cannot send {message}")
        stdin = cast(asyncio.WriteTransport, self._transport.get_pipe_transport(0))
        stdin.write(json.dumps(message).encode() + b"\n")

    async def expect(self, event: str, *, within: float = 10.0) -> Message:
        """Return the first message about `event` that no `expect` has returned yet.

        Messages about other events are left for other calls. Raises `TimeoutError` when none came
        in `within` seconds, `EOFError` as soon as the worker has ended without one.
        """
        try:
            async with asyncio.timeout(within):
                while True:
                    for place, message in enumerate(self._unread):
                        if message["event"] == event:
                            return self._unread.pop(place)
                    if self._ended.is_set():
                        code = self._transport.get_returncode()
                        raise EOFError(
                            f"worker ended ({code}) without {event!r}, said: {self.history}"
                        )
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise TimeoutError(
                f"no {event!r} within {within} s, the worker said: {self.history}"
            ) from None

    async def wait(self, *, within: float = 10.0) -> int:
        """Wait until the worker has ended; return its exit code (minus the number of a signal)."""
        async with asyncio.timeout(within):
            await self._ended.wait()
        code = self._transport.get_returncode()
        assert code is not None
        return code

    def kill(self) -> None:
        """Kill the worker (SIGKILL), unless it has ended already."""
        self._signal(signal.SIGKILL)

    async def ask_to_end(self, *, within: float = 10.0) -> None:
        """Send SIGTERM, as soon as the worker handles it: one that still starts would just die."""
        async with asyncio.timeout(within):
            while not _handles(self.pid, signal.SIGTERM):  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0.01)
        self._signal(signal.SIGTERM)

    def stop(self) -> None:
        """Stop the worker in its tracks (SIGSTOP); it has stopped when this returns."""
        freeze(self.pid)

    def cont(self) -> None:
        """Let a stopped worker go on (SIGCONT)."""
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> None:
        # Not with the transport's methods: they may reap the child, behind the event loop's back.
        if self._transport.get_returncode() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        """Read the worker's messages (called by the event loop)."""
        *lines, self._half_line = (self._half_line + data).split(b"\n")
        for line in lines:
            if not self._begun.is_set():
                self._begun.set()
                continue
            try:
                message = json.loads(line)
            except ValueError:
                message = None
            if not isinstance(message, dict) or "event" not in message:
                message = {"event": "print", "text": line.decode(errors="replace")}
            self.history.append(message)
            self._unread.append(message)
        self._news.set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport (called by the event loop, before it says anything else).

        A worker that ends at once may have ended before `subprocess_exec` returns it.
        """
        self._transport = cast(asyncio.SubprocessTransport, transport)

    def process_exited(self) -> None:
        """Close the pipe to a worker that has ended (called by the event loop)."""
        stdin = self._transport.get_pipe_transport(0)
        if stdin is not None:
            stdin.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Note that the worker has ended and has no more to say (called by the event loop)."""
        self._begun.set()
        self._ended.set()
        self._news.set()
