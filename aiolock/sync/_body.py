"""The bodies of ``with`` that threads are in."""

from __future__ import annotations

import asyncio
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
from aiolock.errors import ClientClosed
from aiolock.sync._portal import Portal, process
from aiolock.sync._thread import Agent, caller, current_task, leave

log = logging.getLogger("aiolock")

T = TypeVar("T")
Given = TypeVar("Given")
Given_co = TypeVar("Given_co", covariant=True)


class Body(Generic[T]):
    """One body: entered by one thread, in its task, and left by the same, or by whoever may."""

    def __init__(
        self, portal: Portal, agent: Agent, context: AbstractAsyncContextManager[T], value: T
    ) -> None:
        self.agent = agent
        self.value = value
        self._portal = portal
        self._context = context

    def leave(self, error: BaseException | None) -> None:
        """Leave it, as ``async with`` does."""
        try:
            leave(self._portal, self.agent, lambda: self._leave(error))
        except ClientClosed as failure:
            if error is None:
                raise
            log.warning("aiolock: a body could not be left as it should be: %s", failure)
        finally:
            process().drop(self._portal)

    async def _leave(self, error: BaseException | None) -> None:
        try:
            kind = None if error is None else type(error)
            await self._context.__aexit__(
                kind, error, None if error is None else error.__traceback__
            )
        finally:
            self.agent.inside.pop(self, None)

    async def undo(self) -> None:
        """Leave it where nobody has entered it: nothing was done in it."""
        await self._leave(asyncio.CancelledError())


def enter(portal: Portal, describe: Callable[[], AbstractAsyncContextManager[T]]) -> Body[T]:
    """Wait for a body, and enter it. Interrupted, or refused, nothing is left of it."""
    mine = caller(portal)

    async def entered() -> Body[T]:
        context = describe()  # here, for whoever asks for it owns it
        body = Body(portal, mine.agent, context, await context.__aenter__())
        mine.agent.inside[body] = _relied_on(body.value)
        return body

    async def undo(body: Body[T]) -> None:
        await body.undo()

    process().keep(portal)
    try:
        return mine.call(entered, undo, waits=True)
    except BaseException:
        process().drop(portal)
        raise


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
        self._guard = threading.Lock()
        self._entered = Entered()

    def add(self, of: object, frame: FrameType, body: Body[Any]) -> None:
        """A thread has entered ``of`` in a ``with`` of ``frame``."""
        with self._guard:
            self._entered.add(of, frame, body.agent.task, body)

    def take(self, of: object, frame: FrameType) -> Body[Any]:
        """The innermost body that was entered there; `NotHeld` if there is none."""
        with self._guard:
            body: Body[Any] = self._entered.take(of, frame, current_task())
            return body


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
        body = enter(portal, lambda: framed(self._context()))
        try:
            given = self._given(portal, body.value)
            self._client.entered.add(self, sys._getframe(1), body)
        except BaseException as error:
            body.leave(error)
            raise
        return given

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.entered.take(self, sys._getframe(1)).leave(error)
