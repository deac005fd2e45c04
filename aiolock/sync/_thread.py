"""A thread as a task: its agent in the loop owns, waits, and is notified of losses for it.

A lock belongs to the task that asked for it. So each thread has a task of its own in the portal's
loop, which carries out the thread's commands, one after the other, while the thread waits. So
ownership, re-entrancy, deadlocks and labels work for threads as for tasks. A command runs in the
context of its thread, so that an observer sees the span, and the other context variables, of the
code that takes the lock.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import threading
from collections import deque
from collections.abc import Awaitable, Callable, Generator
from concurrent.futures import Future
from contextvars import copy_context
from functools import partial
from typing import Any, Generic, TypeVar

from aiolock import Lease, LeaseState
from aiolock.async_library import in_trio
from aiolock.errors import ClientClosed, LeaseLost
from aiolock.sync._greenlets import check_no_greenlets
from aiolock.sync._portal import Portal

T = TypeVar("T")


class _Command(Generic[T]):
    """A function that a thread wants called in its task, and waits for."""

    def __init__(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None,
        *,
        waits: bool,
        cancels: bool,
    ) -> None:
        self.function = function
        self._context = copy_context()
        self.undo = undo
        """Called with the result if the thread waits no more."""
        self.waits = waits
        """Whether it waits for others, so that the loss of a lease of the thread ends it."""
        self.cancels = cancels
        """Whether to cancel it if the thread waits no more."""
        self.future = Future[T]()
        self.abandoned = False
        self.cancelled = False

    def __await__(self) -> Generator[Any, None, T]:
        # A task has one context for all its steps, so each step changes to that of the thread.
        async def call() -> T:
            return await self.function()

        steps = call()
        error: BaseException | None = None
        while True:
            try:
                if error is None:
                    awaited = self._context.run(steps.send, None)
                else:
                    awaited = self._context.run(steps.throw, error)
            except StopIteration as returned:
                result: T = returned.value
                return result
            finally:
                error = None  # otherwise it and this frame would refer to each other
            try:
                yield awaited
            except BaseException as raised:  # noqa: BLE001  # thrown into the function
                error = raised


class _Task(asyncio.Task[None]):
    """The task of an agent; a loss does not simply cancel it."""

    agent: Agent
    of_thread = True
    """For the engine: the body runs elsewhere, and a loss cannot end it."""

    def cancel(self, msg: Any | None = None) -> bool:
        """With a message it is a loss: the body must end. Otherwise as any task's."""
        return self.cancel_wait() if msg is None else self.agent.lose(msg)

    def cancel_wait(self, msg: Any | None = None) -> bool:
        """End what it waits for, as any task's `cancel`."""
        return super().cancel(msg)


class Agent:
    """The task of one thread. All its methods are called in the loop."""

    def __init__(self, portal: Portal) -> None:
        self.task: _Task | None = None
        self._late = list[asyncio.Task[None]]()
        self._portal = portal
        self._commands = deque[_Command[Any]]()
        self._now: _Command[Any] | None = None
        self._wake: asyncio.Future[None] | None = None
        self._lost = False
        """Whether a loss came while no command was waiting for others."""
        self._ends = False
        self.inside: dict[object, Callable[[], tuple[Lease, ...]]] = {}
        """The bodies that the thread is in, from the outermost, and the leases of each, as they are
        now: a membership has another one after each change."""

    async def run(self, name: str) -> None:
        """Carry out commands until the thread has ended, or the loop is to end."""
        self.task = task = _Task(self._run(), loop=self._portal.loop, name=name)
        task.agent = self
        await task

    async def _run(self) -> None:
        while self._goes_on():
            if self._commands:
                await self._carry_out(self._commands.popleft())
            else:
                self._wake = self._portal.loop.create_future()
                await self._wake
                self._wake = None

    def _goes_on(self) -> bool:
        return bool(self._commands) or not self._ends

    def submit(self, command: _Command[Any]) -> None:
        """Carry this out next."""
        if self.task is not None and self.task.done():
            # The thread has ended; the garbage collector leaves bodies of it.
            self._late = [task for task in self._late if not task.done()]
            self._late.append(asyncio.create_task(self._carry_out(command)))
            return
        self._commands.append(command)
        self._awake()

    def end(self) -> None:
        """Carry out the commands there are, and end."""
        self._ends = True
        self._awake()

    def _awake(self) -> None:
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def lose(self, msg: Any | None) -> bool:
        """A lease is lost: end a command that waits for others; let any other one finish."""
        if self.task is not None and self._now is not None and self._now.waits:
            return self.task.cancel_wait(msg)
        self._lost = True
        return True

    def abandon(self, command: _Command[Any]) -> None:
        """The thread waits no more, as after Ctrl-C: leave nothing behind."""
        if not command.cancels:
            return  # it must be done in any case, even if it has not begun
        command.abandoned = True
        if command is self._now and self.task is not None:
            command.cancelled = self.task.cancel_wait()

    async def _carry_out(self, command: _Command[Any]) -> None:
        if command.abandoned:
            return
        if command.waits and self._lost:
            # As for a task that was cancelled while it did not wait: raised at its next wait, once.
            self._lost = False
            if (loss := self._loss()) is not None:
                command.future.set_exception(loss)
                return
        self._now = command
        try:
            value = await command
        except asyncio.CancelledError as error:
            command.future.set_exception(self._loss() or error)
        except BaseException as error:  # noqa: BLE001  # raised in the thread
            command.future.set_exception(error)
        else:
            await self._deliver(command, value)
        self._now = None
        if command.cancelled:
            await self._take_back()

    async def _deliver(self, command: _Command[T], value: T) -> None:
        if not command.abandoned:
            command.future.set_result(value)
        elif command.undo is not None:
            with contextlib.suppress(Exception, asyncio.CancelledError):
                await command.undo(value)

    async def _take_back(self) -> None:
        """Undo our own cancellation, also if it came too late to have an effect."""
        assert self.task is not None
        self.task.uncancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(0)

    def _loss(self) -> LeaseLost | None:
        """The loss of the outermost body whose lease is lost and whose lock is to cancel it."""
        for leases in self.inside.values():
            for lease in leases():
                if lease.state is LeaseState.LOST and lease._hold.policy.on_lost == "cancel":
                    return lease._loss()
        return None


class Caller:
    """A thread's end of its agent."""

    def __init__(self, portal: Portal) -> None:
        self.portal = portal
        self.agent = Agent(portal)
        self._busy = False
        # The agent must not refer to this object, which is collected when the thread ends.
        name = threading.current_thread().name
        portal.start(partial(self.agent.run, name), "aiolock thread", self.agent)

    def __del__(self) -> None:
        # The thread has ended, and its thread-local data with it.
        if agent := getattr(self, "agent", None):
            with contextlib.suppress(ClientClosed):
                self.portal.soon(agent.end)

    def call(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """The result of the function, called in the thread's task.

        If the thread is interrupted meanwhile (Ctrl-C), the call is cancelled, and if it has a
        result all the same, ``undo`` gets that. A result that has been delivered before the
        interruption is for the caller to undo.
        """
        check_thread(self.portal)
        if self._busy:
            raise RuntimeError(
                "this thread waits for aiolock already, and a signal handler (or the garbage"
                " collector) that interrupts it cannot: let it only set a flag"
            )
        return self._call(_Command(function, undo, waits=waits, cancels=True))

    def leave(self, function: Callable[[], Awaitable[None]]) -> None:
        """Call it, whatever interrupts the thread; a thread that waits already does not wait."""
        command = _Command(function, None, waits=False, cancels=False)
        if self._busy:  # the garbage collector leaves a generator
            self.portal.soon(self.agent.submit, command)
        else:
            self._call(command)

    def _call(self, command: _Command[T]) -> T:
        future = command.future
        self._busy = True
        try:
            try:
                self.portal.soon(self.agent.submit, command)
                error = future.exception()
                if error is None:
                    return future.result()
            except BaseException:
                with contextlib.suppress(ClientClosed):
                    self.portal.soon(self.agent.abandon, command)
                raise
            finally:
                self._busy = False
            raise error
        finally:
            del future, command  # otherwise the error and this frame would refer to each other


class _Here(threading.local):
    caller: Caller | None = None


_here = _Here()


def caller(portal: Portal) -> Caller:
    """The caller of the current thread."""
    portal.check_process()
    mine = _here.caller
    if mine is None or mine.portal is not portal:
        mine = _here.caller = Caller(portal)
    return mine


def leave(portal: Portal, agent: Agent, function: Callable[[], Awaitable[None]]) -> None:
    """Leave what an agent has entered, from any thread; the loop's own thread does not wait."""
    if portal.is_this_thread:
        agent.submit(_Command(function, None, waits=False, cancels=False))
    else:
        caller(portal).leave(function)


def abandon(agent: Agent, function: Callable[[], Awaitable[None]]) -> None:
    """Leave what an agent has entered, or is entering, and nothing waits for. In the loop."""
    agent.submit(_Command(function, None, waits=False, cancels=False))


def current_task() -> asyncio.Task[Any] | None:
    """The task of the current thread, if it has any."""
    return None if _here.caller is None else _here.caller.agent.task


def check_thread(portal: Portal | None) -> None:
    """`RuntimeError` in a thread that runs an event loop, which would be blocked meanwhile.

    A cell of a notebook runs in one, but may block it: the kernel waits for the cell in any case.
    Also where greenlets would be taken for threads.
    """
    check_no_greenlets()
    loop = asyncio._get_running_loop()
    if loop is None and not in_trio():
        return
    if portal is not None and loop is portal.loop:
        raise RuntimeError(
            "aiolock.sync was called in its own thread, as by an observer, where it would wait for"
            " itself"
        )
    if not _in_a_notebook():
        raise RuntimeError(
            "aiolock.sync would block the event loop that runs in this thread: use"
            " aiolock.connect() and `async with` here (under asyncio), or call it in a thread"
            " (asyncio.to_thread, anyio.to_thread)"
        )


def _in_a_notebook() -> bool:
    ipython = sys.modules.get("IPython")
    shell: Any = ipython.get_ipython() if ipython is not None else None
    return getattr(shell, "kernel", None) is not None
