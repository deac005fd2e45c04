"""The bodies of ``with`` in which threads are."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
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
from aiolock.sync._transactions import check_released, refuse_in_transaction

log = logging.getLogger("aiolock")

T = TypeVar("T")
Given = TypeVar("Given")
Given_co = TypeVar("Given_co", covariant=True)


class Body(Generic[T]):
    """One body: a thread enters it, in its task; as a rule, the same thread leaves it.

    Ctrl-C may come between any two calls, even between a return and the next statement. So the loop
    knows what was entered, not only the result of `enter`. The code that makes a body must `close`
    it, whatever happens.
    """

    value: T
    """The value that it gave; set once it is entered."""

    def __init__(
        self, portal: Portal, describe: Callable[[], AbstractAsyncContextManager[T]]
    ) -> None:
        """``describe`` is called in the loop, by the thread's task, which owns its result."""
        self._mine = caller(portal)
        self.agent = self._mine.agent
        self._portal = portal
        self._describe = describe
        # The attributes below are used in the loop only.
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
        if error is None and self.value is not None:  # None: work that was done already
            check_released(self.value)

    def close(self) -> None:
        """Leave it without waiting, if it was not left; it then counts as cancelled."""
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
    """The leases behind the value of an ``async with``."""
    if isinstance(value, aiolock.Lease):
        return (value,)
    if isinstance(value, aiolock.MultiLease):
        return tuple(value.leases.values())
    return (value.lease,) if isinstance(value, aiolock.Term | Doing) else ()


@asynccontextmanager
async def framed(context: AbstractAsyncContextManager[T]) -> AsyncGenerator[T, None]:
    """The context manager in a frame of its own: aiolock tells bodies apart by their frames."""
    async with context as value:
        yield value


@asynccontextmanager
async def held(lease: aiolock.Lease) -> AsyncGenerator[aiolock.Lease, None]:
    """A body under a lease that was acquired before."""
    cancels = lease._hold.policy.on_lost == "cancel"
    scope = Scope(lease, asyncio.current_task(), cancels=cancels)
    try:
        yield lease
    except BaseException as error:
        await scope.close(error)
        raise
    await scope.close(None)


class Bodies:
    """Which thread is in which body: as for tasks, descriptions have no state."""

    def __init__(self) -> None:
        # Reentrant: the garbage collector may run here and close a generator, which enters again.
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
    """The client, as its descriptions use it."""

    entered: Bodies

    def portal(self) -> Portal:
        """The portal with the loop in which it is open; opens it, if it never was."""
        ...

    def call(
        self,
        function: Callable[[], Awaitable[T]],
        undo: Callable[[T], Awaitable[object]] | None = None,
        *,
        waits: bool = False,
    ) -> T:
        """The result of the function, called in the loop: see `Caller.call`."""
        ...

    def rest(self, seconds: float) -> None:
        """Wait this long, or until it is closed."""
        ...

    def leave(self, function: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Call this in the loop, if the client is still open: see `Caller.leave`."""
        ...


class Entrance(Generic[Given, Given_co]):
    """A description that any number of threads enter with ``with``."""

    __slots__ = ()
    _client: Opened

    @abstractmethod
    def _context(self) -> AbstractAsyncContextManager[Given]:
        """The context manager that the thread's task enters."""

    @abstractmethod
    def _given(self, portal: Portal, value: Given) -> Given_co:
        """The value that the thread gets for that of the context manager."""

    def __enter__(self) -> Given_co:
        refuse_in_transaction(self)
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
            if not taken:  # `take` was interrupted
                with contextlib.suppress(NotHeld):
                    self._client.entered.take(self, sys._getframe(1), taken)
            for body in taken:
                body.close()
