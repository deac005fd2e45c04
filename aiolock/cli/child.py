"""A program that runs while we hold a lease."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from typing import Final

import anyio

from aiolock.cli.signals import ENDING, SIGNALS, is_ignored

_PASSED_ON: Final = (signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that are passed on, beside those that end this process."""
_BY_TERMINAL: Final = (signal.SIGINT, signal.SIGQUIT)
_ON_LINUX: Final = sys.platform == "linux"
# Looked up here: a child forked from a process with several threads must do as little as possible.
_PRCTL: Final = ctypes.CDLL(None).prctl if _ON_LINUX else None
_PDEATHSIG: Final = 1
"""An argument of prctl(2)."""


class Child:
    """One run of a program. It shares our terminal, standard input and output.

    If there is a terminal, the program is in our process group, or it could not read from the
    terminal. Otherwise it has a group of its own, so that what it has started ends with it.
    """

    def __init__(self, argv: Sequence[str], env: Mapping[str, str], *, grace: float) -> None:
        """``grace``: seconds from SIGTERM to SIGKILL."""
        self._argv = argv
        self._env = env
        self._grace = grace
        self._interactive = _has_terminal()
        self._process: asyncio.subprocess.Process | None = None
        self._too_early: list[int] = []
        """Signals that came before the program had started."""
        self.told_to_end: int | None = None
        """The signal that told the program to end; None if there was none."""

    async def run(self) -> int:
        """Run it; its exit code, or 128 and the signal that ended it. `OSError` if it cannot start.

        If this is cancelled, the program gets SIGTERM, and later SIGKILL, and has ended when this
        raises.
        """
        loop = asyncio.get_running_loop()
        passed_on = [number for number in _PASSED_ON if not is_ignored(number)]
        for number in passed_on:
            loop.add_signal_handler(number, self._pass_on, number)
        if _ON_LINUX:
            loop.add_signal_handler(signal.SIGCHLD, self._reap_orphans)
        try:
            with SIGNALS.received_by(self._pass_on):
                return await self._run()
        finally:
            for number in (*passed_on, signal.SIGCHLD):
                loop.remove_signal_handler(number)

    async def _run(self) -> int:
        starting = asyncio.create_task(
            asyncio.create_subprocess_exec(
                *self._argv,
                env=self._env,
                process_group=None if self._interactive else 0,
                preexec_fn=_end_with_us if _ON_LINUX else None,
            )
        )
        try:
            code = await self._started(await asyncio.shield(starting)).wait()
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([starting])
                if starting.exception() is None:
                    await self._end(self._started(starting.result()))
            raise
        return code if code >= 0 else 128 - code

    def _started(self, process: asyncio.subprocess.Process) -> asyncio.subprocess.Process:
        self._process = process
        while self._too_early:
            self._send(self._too_early.pop(0))
        if _ON_LINUX:
            self._reap_orphans()  # those that ended before we knew which child is the program
        return process

    async def _end(self, process: asyncio.subprocess.Process) -> None:
        self._send(signal.SIGTERM)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._grace):
                await process.wait()
        self._send(signal.SIGKILL)  # also for the processes that it has left in its group
        await process.wait()

    def _pass_on(self, number: int) -> None:
        if number in ENDING:
            self.told_to_end = number
        if not self._has_it_already(number):
            self._send(number)

    def _has_it_already(self, number: int) -> bool:
        """Whether the terminal has sent it to the program: it does so to all in the foreground.

        Python does not say who has sent a signal: one by kill(1) is taken for the terminal's. Nor
        whether a program that is just being started has got it: it is sent again, not lost.
        """
        started = self._process is not None
        return self._interactive and started and number in _BY_TERMINAL and _has_terminal()

    def _send(self, number: int) -> None:
        if self._process is None:
            self._too_early.append(number)
            return
        with contextlib.suppress(ProcessLookupError):
            if self._interactive:
                self._process.send_signal(number)
            else:
                os.killpg(self._process.pid, number)

    def _reap_orphans(self) -> None:
        """Reap orphans: the first process of a container gets all processes without a parent."""
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                if self._process is None or found.si_pid == self._process.pid:
                    return  # the event loop reaps the program
                os.waitpid(found.si_pid, os.WNOHANG)


def _has_terminal() -> bool:
    """Whether this is in the foreground of a terminal."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except OSError:
        return False


def _end_with_us() -> None:
    """In the child, before it starts: end when this process is killed, for then nothing renews."""
    assert _PRCTL is not None
    _PRCTL(_PDEATHSIG, int(signal.SIGTERM))
