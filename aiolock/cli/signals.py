"""Signals: they end a command of ours, or are passed on to the program that it runs."""

from __future__ import annotations

import asyncio
import contextlib
import select
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from typing import Any, Final

ENDING: Final = tuple(
    signal.Signals[name]
    for name in ("SIGINT", "SIGTERM", "SIGHUP")
    if name in signal.Signals.__members__  # Windows lacks some of them
)


class Ended(Exception):
    """A signal has ended the command."""

    def __init__(self, number: int) -> None:
        self.number = number


class Signals:
    """The signals that this process gets while a command runs."""

    def __init__(self) -> None:
        self._receiver: Callable[[int], None] | None = None

    @contextlib.contextmanager
    def end_this_task(self) -> Generator[None]:
        """Let signals cancel the current task, which then raises `Ended`."""
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        came: list[int] = []

        def receive(number: int) -> None:
            if self._receiver is not None:
                self._receiver(number)
                return
            came.append(number)
            _end(task)

        with contextlib.suppress(NotImplementedError):  # Windows has no signal handlers
            for number in ENDING if in_main_thread() else ():
                if not is_ignored(number):
                    loop.add_signal_handler(number, receive, number)
        try:
            yield
        except asyncio.CancelledError:
            if came:
                raise Ended(came[0]) from None
            raise

    @contextlib.contextmanager
    def received_by(self, receiver: Callable[[int], None]) -> Generator[None]:
        """Let signals go to ``receiver`` meanwhile."""
        self._receiver = receiver
        try:
            yield
        finally:
            self._receiver = None


def typed_line() -> str:
    """Wait for a line at the terminal, without an event loop; Ctrl-C is a `KeyboardInterrupt`.

    Also if it comes when the line is not yet waited for: Python only notes a signal, and a call
    that begins to wait just after that goes on waiting.
    """
    # On Windows, Ctrl-C ends what waits, and only sockets can be selected.
    if sys.platform == "win32" or not in_main_thread():
        return sys.stdin.readline()
    ours, woken = socket.socketpair()
    with ours, woken:
        woken.setblocking(False)  # noqa: FBT003  # takes no other
        before = signal.set_wakeup_fd(woken.fileno())
        try:
            select.select([sys.stdin, ours], [], [])
            return sys.stdin.readline()
        finally:
            signal.set_wakeup_fd(before)


def in_main_thread() -> bool:
    """Whether this thread gets signals: a program may run a command of ours in another one."""
    return threading.current_thread() is threading.main_thread()


def is_ignored(number: signal.Signals) -> bool:
    """Whether the parent has it ignored: nohup, or a shell that runs us in the background."""
    return signal.getsignal(number) is signal.SIG_IGN


def _end(task: asyncio.Task[Any] | None) -> None:
    if task is not None:
        task.cancel()


SIGNALS: Final = Signals()
"""The one instance of this process."""
