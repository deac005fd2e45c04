"""The bodies of ``with`` that threads are in."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import logging
import threading
import warnings
from collections.abc import Awaitable, Callable, Coroutine
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Generic, Protocol, TypeVar
from weakref import ref

import aiolock
from aiolock.copying import CopiedAsItself, Uncopyable
from aiolock.entering import AnyEnterable, Entered, Entry, Inside, SyncEnterable
from aiolock.errors import ClientClosed
from aiolock.sync._portal import Portal, process
from aiolock.sync._thread import abandon, caller, current_task, leave
from aiolock.sync.transactions import check_released, refuse_in_transaction

log = logging.getLogger("aiolock")

T = TypeVar("T")
Given = TypeVar("Given")
Given_co = TypeVar("Given_co", covariant=True)


class Body(Uncopyable, Generic[T]):
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
        self._describe: Callable[[], AbstractAsyncContextManager[T]] | None = describe
        self._visit: ref[Visit] | None = None
        # The attributes below are used in the loop only.
        self._exit: Callable[..., Awaitable[object]] | None = None
        self._left = False

    def enter(self) -> None:
        """Wait for it, and enter it."""
        process().keep(self._portal, self)
        self._mine.call(self._enter, waits=True)

    async def _enter(self) -> None:
        assert self._describe is not None
        context = self._describe()
        self._describe = None  # it may refer to what this body must not keep alive
        kind = type(context)
        enter, leave = kind.__aenter__, kind.__aexit__  # together: see `aiolock.entering`
        self.value = await enter(context)
        self._exit = partial(leave, context)
        self.agent.inside[self] = partial(_relied_on, self.value)

    def visit(self) -> Visit:
        """The visit of this body, which is entered: the body is left when that is collected."""
        visit = Visit(self)
        self._visit = ref(visit, self._collected)
        return visit

    def _collected(self, _: object) -> None:
        """No thread can leave it any more. Called by the garbage collector, in any thread."""
        self.close()
        leases = _relied_on(self.value)
        if leases and leases[0]._watchdog.is_here:  # in a fork, the parent is still inside
            for lease in leases:
                lease._watchdog.forgotten.was_dropped(lease._hold)
            called = ", ".join(lease._hold.policy.called for lease in leases)
            # The warning comes last, because with -W error it raises.
            warnings.warn(
                f"{called}: a body was entered that nobody can leave any more, so it is left: use"
                " `with`, or close the exit stack",
                ResourceWarning,
                stacklevel=2,
                source=self,
            )

    def leave(self, error: BaseException | None) -> None:
        """Leave it, as ``async with`` does."""
        self._visit = None
        try:
            leave(self._portal, self.agent, lambda: self._leave(error))
        except ClientClosed as failure:
            if error is None:
                raise
            log.warning("aiolock: a body could not be left as it should be: %s", failure)
        finally:
            process().drop(self)
        if error is None and self.value is not None:  # None: work that was done already
            check_released(self.value, failing=False)

    def close(self) -> None:
        """Leave it without waiting, if it was not left; it then counts as cancelled."""
        self._visit = None
        if not self._left:
            with contextlib.suppress(ClientClosed):
                given_up = asyncio.CancelledError()
                self._portal.soon(abandon, self.agent, lambda: self._leave(given_up))
        process().drop(self)

    async def _leave(self, error: BaseException | None) -> None:
        self._left = True
        leave, self._exit = self._exit, None
        if leave is None:
            return
        try:
            kind = None if error is None else type(error)
            await leave(kind, error, None if error is None else error.__traceback__)
        finally:
            self.agent.inside.pop(self, None)


def _relied_on(value: object) -> tuple[aiolock.Lease, ...]:
    """The leases behind the value of an ``async with``."""
    if isinstance(value, aiolock.Lease):
        return (value,)
    if isinstance(value, aiolock.MultiLease):
        return tuple(value.leases.values())
    lease: object = getattr(value, "lease", None)  # of a term, or of work to be done once
    return (lease,) if isinstance(lease, aiolock.Lease) else ()


def check_function(what: str, function: object) -> None:
    """`TypeError` unless it is a function that a thread can call."""
    if not callable(function):
        raise TypeError(f"{what} must be a function, not {function!r}")
    if inspect.iscoroutinefunction(function):
        raise TypeError(
            f"{what} must be a function without async, not {function!r}: for an async one, use the"
            " client of aiolock.connect()"
        )


class Visit:
    """A body that a thread is in. It belongs to its exit, and is left if that is collected."""

    def __init__(self, body: Body[Any]) -> None:
        self._body = body

    @property
    def task(self) -> asyncio.Task[Any] | None:
        """The task of the thread that entered it."""
        return self._body.agent.task

    def close(self, error: BaseException | None) -> None:
        """Leave it, as ``async with`` does."""
        try:
            self._body.leave(error)
        finally:
            self._body.close()


class Bodies(Entered):
    """The bodies of one client that threads have entered by hand."""

    def __init__(self) -> None:
        super().__init__(current_task)
        # Reentrant: the garbage collector may run here and close a generator, which enters again.
        self._guard = threading.RLock()

    def has(self, of: object) -> bool:
        with self._guard:
            return super().has(of)

    def add(self, of: object, body: Inside) -> None:
        with self._guard:
            super().add(of, body)

    def take(self, of: AnyEnterable[Any]) -> Inside:
        with self._guard:
            return super().take(of)


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


class Entrance(CopiedAsItself, SyncEnterable[Given_co], Generic[Given, Given_co]):
    """A description that any number of threads enter with ``with``."""

    __slots__ = ("_client", "_context", "_given")

    def __init__(
        self,
        client: Opened,
        context: AbstractAsyncContextManager[Given],
        given: Callable[[Portal, Given], Given_co],
    ) -> None:
        """The thread's task enters ``context``; ``given`` makes of its value that of the thread."""
        self._client = client
        self._context = context
        self._given = given

    @property
    def _entered(self) -> Bodies:
        return self._client.entered

    def _enter(self, entry: Entry) -> Given_co:
        refuse_in_transaction(self)
        portal = self._client.portal()
        body = Body(portal, lambda: self._context)
        try:
            body.enter()
            given = self._given(portal, body.value)
            entry.enters(self, body.visit())
            return given
        except BaseException:
            body.close()
            raise
