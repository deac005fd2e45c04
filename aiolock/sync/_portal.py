"""The portal: the event loop of a process's synchronous clients, in a thread of its own."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
import time
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextvars import Context
from typing import Any, Final, Protocol, TypeVar

from anyio.from_thread import start_blocking_portal

from aiolock.copying import Uncopyable
from aiolock.errors import ClientClosed

T = TypeVar("T")

AT_EXIT: Final = 3.0
"""Seconds for which the interpreter's exit waits until all is released."""


class Resident(Protocol):
    """Something that lives in the loop, and must end before it."""

    def end(self) -> None:
        """Do the work that is left, and end. Called in the loop."""
        ...


class Portal(Uncopyable):
    """A loop that runs in a thread until it is ended; other threads submit work to it."""

    def __init__(self) -> None:
        self._running = start_blocking_portal("asyncio")
        self._portal = self._running.__enter__()
        self.loop: asyncio.AbstractEventLoop = self._portal.call(asyncio.get_running_loop)
        self._thread = self._portal.call(threading.current_thread)
        self._thread.name = "aiolock"
        # Reentrant: the garbage collector or a signal handler may run here and come back.
        self._guard = threading.RLock()
        self._tasks = set[asyncio.Task[Any]]()
        self._residents = set[Resident]()
        self._pid = os.getpid()
        self.ended = False

    @property
    def is_this_thread(self) -> bool:
        """Whether the current thread is the loop's."""
        return threading.current_thread() is self._thread

    def check_process(self) -> None:
        """`ClientClosed` in a fork of the process that started it: its thread is not there."""
        if self._pid != os.getpid():
            raise ClientClosed(
                f"this client was opened in another process, of which this one ({os.getpid()}) is a"
                " fork: connect() again in each process, after the fork"
            )

    def soon(self, function: Callable[..., object], *args: object) -> None:
        """Have the loop call it; `ClientClosed` once the loop has ended, so no call gets lost."""
        self.check_process()
        with self._guard:
            if self.ended:
                raise ClientClosed("this client was closed", closed=True)
            self.loop.call_soon_threadsafe(function, *args)

    def read(self, function: Callable[[], T]) -> T:
        """The result of a quick function, called while nothing else runs in the loop."""
        self.check_process()
        if self.is_this_thread:
            return function()
        answer = Future[T]()

        def ask() -> None:
            try:
                answer.set_result(function())
            except BaseException as error:  # noqa: BLE001  # raised in the caller
                answer.set_exception(error)

        try:
            self.soon(ask)
        except ClientClosed:
            return function()  # the loop has ended
        return answer.result()

    def start(
        self,
        function: Callable[[], Coroutine[Any, Any, T]],
        name: str,
        resident: Resident | None = None,
    ) -> Future[T]:
        """Run it in a task of this name, and in a context of its own, not the caller's.

        A resident is ended before the loop is. `ClientClosed` once that has ended.
        """
        answer = Future[T]()

        def begin() -> None:
            task = self.loop.create_task(function(), name=name, context=Context())
            self._tasks.add(task)
            if resident is not None:
                self._residents.add(resident)
            task.add_done_callback(done)

        def done(task: asyncio.Task[T]) -> None:
            self._tasks.discard(task)
            if resident is not None:
                self._residents.discard(resident)
            error = asyncio.CancelledError() if task.cancelled() else task.exception()
            if error is None:
                answer.set_result(task.result())
            else:
                answer.set_exception(error)

        # This must not wait for the loop while it holds the guard: the loop may want that.
        self.soon(begin)
        return answer

    def stop(self) -> None:
        """Accept nothing more, and end when all accepted work is done."""
        with self._guard:
            if not self.ended:
                self.soon(self._end_residents)
                self.ended = True

    def _end_residents(self) -> None:
        for resident in self._residents:
            resident.end()

    async def _drained(self) -> None:
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _end(self) -> None:
        await self._drained()
        await self._portal.stop()

    def end(self) -> None:
        """`stop`, and wait for the end; in the loop's own thread, without waiting."""
        self.stop()
        if self.is_this_thread:  # the garbage collector has left the last body
            self._ending = self.loop.create_task(self._end())
            return
        self._portal.call(self._drained)
        self._running.__exit__(None, None, None)

    def end_by(self, moment: float) -> None:
        """`stop`, and wait for the end until then, by `time.monotonic`."""
        self.stop()
        with contextlib.suppress(RuntimeError):
            self._portal.start_task_soon(self._end)
        self._thread.join(max(0.0, moment - time.monotonic()))


class Closing(Protocol):
    """A client that is to be closed at the interpreter's exit."""

    def begin_close(self, portal: Portal) -> Future[None]:
        """Begin to close it."""
        ...


class Process:
    """The state of this process: one portal for all its clients, while any of them is open."""

    def __init__(self) -> None:
        self.guard = threading.RLock()
        self.clients = set[Closing]()
        self._portal: Portal | None = None
        # A set, not a count: an interrupted (Ctrl-C) step is repeated.
        self._users = set[object]()

    @property
    def running(self) -> Portal | None:
        """The portal, if there is one."""
        return self._portal

    def take(self, user: object) -> Portal:
        """The portal, which is started for the first user; `drop` the user after use."""
        with self.guard:
            self._users.add(user)
            if self._portal is None:
                self._portal = Portal()
            return self._portal

    def keep(self, portal: Portal, user: object) -> None:
        """Add a user of a portal that runs; to be dropped as well."""
        with self.guard:
            if portal is self._portal:
                self._users.add(user)

    def drop(self, user: object) -> None:
        """Remove a user, if it is one; with the last one the portal ends."""
        with self.guard:
            if user not in self._users:
                return  # dropped already, or a user in the parent of this fork
            self._users.discard(user)
            if self._users:
                return
            portal, self._portal = self._portal, None
        if portal is not None:
            portal.end()

    def at_exit(self) -> None:
        """Release what is held; what a running thread still holds is left to its lease.

        Only daemon threads still run: the others have ended.
        """
        portal, until = self._portal, time.monotonic() + AT_EXIT
        if portal is None:
            return
        closing = list[Future[None]]()
        # Neither a failure nor a store that does not answer may keep the process from ending.
        for client in list(self.clients):
            with contextlib.suppress(Exception):
                closing.append(client.begin_close(portal))
        for closed in closing:
            with contextlib.suppress(Exception):
                closed.result(max(0.0, until - time.monotonic()))
        portal.end_by(until)


_process = Process()
_left_behind = list[Process]()


def process() -> Process:
    """The state of this process; a fork has its own."""
    return _process


def _forked() -> None:
    # The parent's loop must not be collected here: closing it would remove its sockets from the
    # selector that it shares with the parent's.
    global _process  # noqa: PLW0603  # the hook takes no arguments
    _left_behind.append(_process)
    _process = Process()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_forked)


@atexit.register
def _at_exit() -> None:
    _process.at_exit()
