"""The bodies of ``with`` that threads are in."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import FrameType, TracebackType
from typing import Any, Generic, Protocol, TypeVar

import aiolock
from aiolock._engine.entered import Entered
from aiolock._engine.scope import Scope
from aiolock._locks.once import Doing
from aiolock.errors import ClientClosed, NotHeld
from aiolock.sync._portal import Portal, process
from aiolock.sync._thread import abandon, caller, current_task, leave

log = logging.getLogger("aiolock")

T = TypeVar("T")
Given = TypeVar("Given")
Given_co = TypeVar("Given_co", covariant=True)


class Body(Generic[T]):
    """One body: entered by one thread, in its task, and left by the same, or by whoever may.

    Ctrl-C may come between any two calls, also where one has just given what the next is to have.
    So what was entered is known here, to the loop, and not by what `enter` gives. Whoever makes one
    is to `close` it, whatever happens.
    """

    value: T
    """What it gave; there once it is entered."""

    def __init__(
        self, portal: Portal, describe: Callable[[], AbstractAsyncContextManager[T]]
    ) -> None:
        """``describe`` is called in the loop, by the thread's task, which owns what it gives."""
        self._mine = caller(portal)
        self.agent = self._mine.agent
        self._portal = portal
        self._describe = describe
        # The others are the loop's alone.
        self._entered: AbstractAsyncContextManager[T] | None = None
        self._left = False

    def enter(self) -> None:
        """Wait for it, and enter it."""
        process().keep(self._portal, self)
        self._mine.call(self._enter, waits=True)

    async def _enter(self) -> None:
        context = self._describe()
        self.value = await context.__aenter__()
        self._entered = context
        self.agent.inside[self] = _relied_on(self.value)

    def leave(self, error: BaseException | None) -> None:
        """Leave it, as ``async with`` does."""
        try:
            leave(self._portal, self.agent, lambda: self._leave(error))
        except ClientClosed as failure:
            if error is None:
                raise
            log.warning("aiolock: a body could not be left as it should be: %s", failure)
        finally:
            process().drop(self)

    def close(self) -> None:
        """Leave it without waiting, where it was not left: nothing is said to be done in it."""
        if not self._left:
            with contextlib.suppress(ClientClosed):
                given_up = asyncio.CancelledError()
                self._portal.soon(abandon, self.agent, lambda: self._leave(given_up))
        process().drop(self)

    async def _leave(self, error: BaseException | None) -> None:
        self._left = True
        context, self._entered = self._entered, None
        if context is None:
            return
        try:
            kind = None if error is None else type(error)
            await context.__aexit__(kind, error, None if error is None else error.__traceback__)
        finally:
            self.agent.inside.pop(self, None)


def _relied_on(value: object) -> tuple[aiolock.Lease, ...]:
    """The leases behind what an ``async with`` gave."""
    if isinstance(value, aiolock.Lease):
        return (value,)
    if isinstance(value, aiolock.MultiLease):
        return tuple(value.leases.values())
    return (value.lease,) if isinstance(value, aiolock.Term | Doing) else ()


@asynccontextmanager
async def framed(context: AbstractAsyncContextManager[T]) -> AsyncGenerator[T, None]:
    """The same, in a frame of its own: by its frame the library tells bodies apart."""
    async with context as value:
        yield value


@asynccontextmanager
async def held(lease: aiolock.Lease) -> AsyncGenerator[aiolock.Lease, None]:
    """A body under a lease that was acquired before."""
    scope = Scope(lease, asyncio.current_task())
    try:
        yield lease
    except BaseException as error:
        await scope.close(error)
        raise
    await scope.close(None)


class Bodies:
    """Who is in which body: as for tasks, what is entered holds nothing."""

    def __init__(self) -> None:
        # What a thread does here, its garbage collector may ask for again: it closes generators.
        self._guard = threading.RLock()
        self._entered = Entered()

    def add(self, of: object, frame: FrameType, body: Body[Any]) -> None:
        """A thread has entered ``of`` in a ``with`` of ``frame``."""
        with self._guard:
            self._entered.add(of, frame, body.agent.task, body)

    def take(self, of: object, frame: FrameType, taken: list[Body[Any]]) -> None:
        """Add the innermost body that was entered there; `NotHeld` if there is none."""
        with self._guard:
            taken.append(self._entered.take(of, frame, current_task()))


class Opened(Protocol):
    """What makes descriptions: a client, as they see it."""

    entered: Bodies

    def portal(self) -> Portal:
        """The loop that it is open in; it is opened, if it never was."""
        ...

    def call(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """What comes of it: see `Caller.call`."""
        ...

    def rest(self, seconds: float) -> None:
        """Wait so long, or until it is closed."""
        ...

    def leave(self, function: Callable[[], Awaitable[None]]) -> None:
        """Do it, if there is anything left to be done: see `Caller.leave`."""
        ...


class Entrance(Generic[Given, Given_co]):
    """What threads enter with ``with``, any number of them, and wait their turn for."""

    __slots__ = ()
    _client: Opened

    @abstractmethod
    def _context(self) -> AbstractAsyncContextManager[Given]:
        """What the thread's task enters."""

    @abstractmethod
    def _given(self, portal: Portal, value: Given) -> Given_co:
        """What the thread has of what that gave."""

    def __enter__(self) -> Given_co:
        portal = self._client.portal()
        body = Body(portal, lambda: framed(self._context()))
        try:
            body.enter()
            given = self._given(portal, body.value)
            self._client.entered.add(self, sys._getframe(1), body)
            return given
        except BaseException:
            body.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        taken = list[Body[Given]]()
        try:
            self._client.entered.take(self, sys._getframe(1), taken)
            taken[0].leave(error)
        finally:
            if not taken:  # interrupted
                with contextlib.suppress(NotHeld):
                    self._client.entered.take(self, sys._getframe(1), taken)
            for body in taken:
                body.close()
