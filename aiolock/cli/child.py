"""A program that runs while we hold a lease."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import anyio

from aiolock.cli import supervisor
from aiolock.cli.signals import ENDING, SIGNALS, is_ignored
from aiolock.cli.supervisor import LINUX, RECORD, clock, members, send

_PASSED_ON: Final = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are passed on, beside those that end this process."""
_BY_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
_FIRST_FREE_FD: Final = 3
_BEAT: Final = 0.25
"""Seconds between two messages to the supervisor about the lease, at most."""
_SHORTEST_BEAT: Final = 0.02
_ALLOWED: Final = 5.0
"""Seconds that SIGKILL may take to end everything."""


class CannotRun(Exception):
    """The command cannot be started."""

    def __init__(self, errno: int) -> None:
        self.why = OSError(errno, os.strerror(errno))  # of the class for that number


class SupervisorLost(Exception):
    """The supervisor was killed, so the command was ended."""


class Child:
    """One run of a program. It shares our terminal, standard input and output.

    If there is a terminal, the program is in our process group: else it could not read from the
    terminal, and Ctrl-Z would not stop it. Otherwise it has a group of its own.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        *,
        grace: float,
        remaining: Callable[[], float],
    ) -> None:
        """``grace``: seconds from SIGTERM to SIGKILL; ``remaining``: those that the lease lasts."""
        self._argv = argv
        self._env = env
        self._grace = grace
        self._remaining = remaining
        self._job = 0 if _foreground() is None else os.getpgrp()
        self._channel: socket.socket | None = None
        self._received = b""
        self._supervisor: subprocess.Popen[bytes] | None = None
        self._command = 0
        self.told_to_end: int | None = None
        """The signal to the program to end; None if there was none."""
        self.overdue = False
        """Whether the program was ended because the lease was not renewed in time."""

    async def run(self) -> int:
        """Run it; its exit code, or 128 and the signal that ended it. `CannotRun` if it cannot be.

        If this is cancelled, the program and all that it has started get SIGTERM, and later
        SIGKILL, and have ended when this raises. `SupervisorLost` when its supervisor was killed;
        then they have ended as well.
        """
        loop = asyncio.get_running_loop()
        passed_on = [number for number in _PASSED_ON if not is_ignored(number)]
        for number in passed_on:
            loop.add_signal_handler(number, self._pass_on, number)
        if LINUX:
            supervisor.adopt_orphans()  # those of a supervisor that is killed
            loop.add_signal_handler(signal.SIGCHLD, self._reap_orphans)
            self._reap_orphans()  # those that ended before
        try:
            with SIGNALS.received_by(self._pass_on):
                return await self._run()
        finally:
            for number in (*passed_on, signal.SIGCHLD):
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        self._start()
        beating = asyncio.create_task(self._beat())
        try:
            code = await self._end_of_command()
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await self._end()
            raise
        finally:
            beating.cancel()
            self._close()
        return code if code >= 0 else 128 - code

    def _start(self) -> None:
        """Start the supervisor, which starts the command when it is sent the lease."""
        ours, theirs = socket.socketpair()
        ours.setblocking(False)  # noqa: FBT003  # takes no other
        # Never one of the standard streams, which may be closed.
        fd = fcntl.fcntl(theirs, fcntl.F_DUPFD, _FIRST_FREE_FD)
        # Before it ignores them, they wait.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, supervisor.SHIELDED)
        try:
            self._supervisor = subprocess.Popen(  # noqa: S603  # the user's command
                (
                    *(sys.executable, "-I", "-S", supervisor.__file__),
                    *map(str, (fd, os.getpid(), self._job, self._grace)),
                    *self._argv,
                ),
                env=self._env,
                pass_fds=(fd,),
                process_group=0,  # not stopped with us by a terminal, nor killed by killpg(2)
            )
        except BaseException:
            ours.close()
            raise
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            theirs.close()
            os.close(fd)
        self._channel = ours
        self._say_lease()

    def _close(self) -> None:
        assert self._channel is not None
        assert self._supervisor is not None
        self._channel.close()
        try:
            self._supervisor.wait(1)  # it ends by itself
        except subprocess.TimeoutExpired:
            self._supervisor.kill()
            self._supervisor.wait()

    # The supervisor

    def _say(self, kind: bytes, value: float) -> None:
        assert self._channel is not None
        # It has ended, or was stopped for long.
        with contextlib.suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            self._channel.send(RECORD.pack(kind, value))

    def _say_lease(self) -> float:
        left = self._remaining()
        self._say(supervisor.LEASE, clock() + left)
        return left

    async def _beat(self) -> None:
        assert self._supervisor is not None
        while True:
            left = self._say_lease()
            self._supervisor.send_signal(signal.SIGCONT)  # in case it was stopped
            await asyncio.sleep(min(_BEAT, max(_SHORTEST_BEAT, left / 8)))

    async def _end_of_command(self) -> int:
        """The exit code of the command; less than 0 if a signal has ended it."""
        assert self._channel is not None
        loop = asyncio.get_running_loop()
        while True:
            while len(self._received) >= RECORD.size:
                kind, value = RECORD.unpack(self._received[: RECORD.size])
                self._received = self._received[RECORD.size :]
                if kind == supervisor.STARTED:
                    self._command = int(value)
                elif kind == supervisor.OVERDUE:
                    self.overdue = True
                elif kind == supervisor.ENDED:
                    return int(value)
                else:
                    raise CannotRun(int(value))
            data = b""
            with contextlib.suppress(ConnectionResetError):
                data = await loop.sock_recv(self._channel, RECORD.size)
            if not data:
                with anyio.CancelScope(shield=True):
                    await self._end_orphans()
                raise SupervisorLost
            self._received += data

    async def _end(self) -> None:
        self._say(supervisor.END, 0)
        with contextlib.suppress(TimeoutError, CannotRun, SupervisorLost):
            async with asyncio.timeout(self._grace + _ALLOWED):
                await self._end_of_command()
                return
        assert self._supervisor is not None
        self._supervisor.kill()
        await self._end_orphans()

    async def _end_orphans(self) -> None:
        """End the command without the supervisor, which has died: on Linux we have adopted it."""
        assert self._supervisor is not None
        self._supervisor.wait()
        loop = asyncio.get_running_loop()
        root = os.getpid() if LINUX else self._command
        group = 0 if LINUX or self._job else self._command
        for number, seconds in ((signal.SIGTERM, self._grace), (signal.SIGKILL, _ALLOWED)):
            until = loop.time() + seconds
            sent = False
            while left := [each.pid for each in members(root, group)] if root else []:
                if not sent or number == signal.SIGKILL:
                    send(number, left)
                    send(signal.SIGCONT, left)
                    sent = True
                if loop.time() >= until:
                    break
                await asyncio.sleep(_SHORTEST_BEAT)

    # Signals

    def _pass_on(self, number: int) -> None:
        if number in ENDING:
            self.told_to_end = number
        if not self._has_it_already(number):
            self._say(supervisor.SIGNAL, number)

    def _has_it_already(self, number: int) -> bool:
        """Whether the terminal has sent it to the program, as to all processes in the foreground.

        Python does not tell who sent a signal: one by kill(1) is taken for the terminal's. Nor does
        it tell whether a program that is just being started has got it: it is sent again, not lost.
        """
        return bool(self._job and self._command and number in _BY_TERMINAL and _foreground())

    def _reap_orphans(self) -> None:
        """Reap orphans: the first process of a container gets all processes without a parent."""
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if self._supervisor is not None and found.si_pid == self._supervisor.pid:
                    return
                os.waitpid(found.si_pid, os.WNOHANG)


def _foreground() -> bool | None:
    """Whether this is in the foreground of its terminal; None if it has no terminal."""
    try:
        terminal = os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return None
    finally:
        os.close(terminal)
