"""The leases of a web request: they end when the request has ended.

A lease protects all that the request does: its handler, what its dependencies do at their end (as a
commit after ``yield``), what middleware does around it, and what is sent while it is made. So
neither the handler nor a dependency ends it, but the outermost layer of the integration.

On the way there the request passes several layers, not all of them in one task: the handler, the
router, the middleware. Each is a *body*, and a lease belongs to the innermost. A loss cancels the
task of that body and is raised where it ends, so that the framework's own handlers of errors see
it. If the lease is not lost, the next body has it.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Final, Literal, Self, TypeVar, Unpack

from aiolock import AcquireContext, Lease, LeaseLost, LeaseState, Lock, LockClient
from aiolock.integrations._names import LockOf
from aiolock.integrations._waiting import ReasonToLeave, held, patient
from aiolock.options import LockOptions, Seconds
from aiolock.validation import seconds

T = TypeVar("T")

PLACE: Final = "aiolock.leases"
"""The key of a request's leases in its scope."""

LeaseScope = Literal["request", "function"]
"""The end of a request's lease: with the request, or with its handler."""

ALIVE: Final = (LeaseState.HELD, LeaseState.AT_RISK)

SEND_TIMEOUT: Final = 30.0
"""Seconds that a client may keep a lock waiting, by default.

As long as a lease: a client that does not read, or does not send, costs the others no more than a
process that died.
"""

_NO_WAIT: Final = 0.01
"""Seconds that a server may take over a message without waiting for its client."""

_log = logging.getLogger("aiolock.web")


class SlowClient(OSError):
    """The client sends its request, or takes its response, too slowly for the locks it keeps."""


class RequestLeases:
    """The leases of one request."""

    def __init__(self) -> None:
        self._bodies = list[Body]()
        self._taken = list[tuple[Lease, float]]()
        self._waited = 0.0
        self._receives = False

    @property
    def bound(self) -> float | None:
        """Seconds that the request may wait for its client; None if it holds no lease."""
        return min((bound for lease, bound in self._taken if lease.state in ALIVE), default=None)

    @property
    def patience(self) -> float:
        """Seconds that are left of them."""
        bound = self.bound
        return math.inf if bound is None else max(0.0, bound - self._waited)

    def body(self, reason_to_leave: ReasonToLeave | None = None) -> Body:
        """A part of the request: leases that are taken in it outlive it if it is not the whole.

        Enter it with ``async with``. ``reason_to_leave()`` returns an error when a request that
        waits must not wait any more; that of the outer body, if None.
        """
        outer = self._bodies[-1] if self._bodies else None
        if reason_to_leave is None and outer is not None:
            reason_to_leave = outer.reason_to_leave
        return Body(self._bodies, outer, reason_to_leave)

    async def take(self, lock: Lock, send_timeout: float) -> Lease:
        """Wait for the lock, as `held` does, and hold it until the request ends."""
        reason_to_leave = self._innermost(lock).reason_to_leave
        acquisition = lock.acquire()
        async with AsyncExitStack() as stack:
            enter = partial(stack.enter_async_context, acquisition)
            lease = await patient(enter, reason_to_leave)
            body = self._innermost(lock)
            stack.pop_all()
        acquisition._move_to(body.task)
        body.add(lease, acquisition)
        self._taken.append((lease, send_timeout))
        return lease

    @asynccontextmanager
    async def hold(self, lock: Lock, send_timeout: float) -> AsyncGenerator[Lease]:
        """Wait for the lock, and hold it in the body of this."""
        async with held(lock, self._innermost(lock).reason_to_leave) as lease:
            taken = (lease, send_timeout)
            self._taken.append(taken)
            try:
                yield lease
            finally:
                self._taken.remove(taken)

    async def wait(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait for what is no lease, as `patient`."""
        return await patient(wait, self._bodies[-1].reason_to_leave if self._bodies else None)

    def _innermost(self, lock: Lock) -> Body:
        if not self._bodies:
            raise RuntimeError(f"the request that is to hold {lock.name!r} has ended")
        return self._bodies[-1]

    async def receiving(self, receive: Callable[[], Awaitable[T]]) -> T:
        """Receive a part of the request, as `bounded`; of one within another, one counts."""
        if self._receives:
            return await receive()
        self._receives = True
        try:
            return await self.bounded(receive)
        finally:
            self._receives = False

    async def bounded(self, wait: Callable[[], Awaitable[T]]) -> T:
        """Wait for the client; `SlowClient` if it has kept the locks too long."""
        bound = self.bound
        if bound is None:
            return await wait()
        loop = asyncio.get_running_loop()
        began = loop.time()
        patience = asyncio.timeout(None if math.isinf(bound) else self.patience)
        try:
            async with patience:
                return await wait()
        except TimeoutError:
            if not patience.expired():
                raise
            raise self.too_slow(bound) from None
        finally:
            self.waited(loop.time() - began)

    def waited(self, seconds: float) -> None:
        """Add seconds that the client has kept the locks waiting."""
        if seconds > _NO_WAIT:
            self._waited += seconds

    def too_slow(self, bound: float) -> SlowClient:
        """The error of a client that has taken longer than the bound; logs it."""
        names = ", ".join(sorted({repr(lease.name) for lease, _ in self._taken}))
        error = SlowClient(
            f"the request was cut off: in all, its client has let {names} wait for"
            f" {bound:g} s (send_timeout)"
        )
        _log.warning("%s", error)
        return error


class Body:
    """A part of a request, in one task. Most requests take no lease: for them it is almost free."""

    __slots__ = (
        "_all",
        "_before",
        "_leases",
        "_lost",
        "_outer",
        "begun",
        "ended",
        "reason_to_leave",
        "task",
    )

    def __init__(
        self, all_bodies: list[Body], outer: Body | None, reason_to_leave: ReasonToLeave | None
    ) -> None:
        self.begun = self.ended = False
        """Whether what it sends has begun, and whether it has ended."""
        self.reason_to_leave = reason_to_leave
        self.task: asyncio.Task[Any] | None = None
        self._all = all_bodies
        self._before = 0
        self._leases: AsyncExitStack | None = None
        self._lost: LeaseLost | None = None
        """The loss that it was interrupted for; also raised where it was noticed."""
        self._outer = outer

    async def __aenter__(self) -> Self:
        self.task = asyncio.current_task()
        self._before = self.task.cancelling() if self.task else 0
        self._all.append(self)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.ended = True
        self._all.remove(self)
        if self._lost is not None:
            # Called first: leases end in any case.
            self._leases = self._leases or AsyncExitStack()
            self._leases.push_async_exit(self._take_back)
        if self._leases is not None:
            await self._leases.__aexit__(kind, error, traceback)

    def add(self, lease: Lease, acquisition: AcquireContext[Lease]) -> None:
        """Add a lease: when this body ends, it is ended, or goes to the outer body."""

        async def leave(
            kind: type[BaseException] | None,
            error: BaseException | None,
            traceback: TracebackType | None,
        ) -> None:
            outer = self._outer
            while outer is not None and outer.ended:
                outer = outer._outer
            if outer is None or lease.state not in ALIVE:
                try:
                    await acquisition.__aexit__(kind, error, traceback)
                except LeaseLost as loss:
                    if outer is not None:
                        self._interrupt(outer, loss)
                    raise
            else:
                acquisition._move_to(outer.task)
                outer.add(lease, acquisition)

        self._leases = self._leases or AsyncExitStack()
        self._leases.push_async_exit(leave)

    def _interrupt(self, outer: Body, loss: LeaseLost) -> None:
        # When the response has begun, middleware with a task of its own may do its part, such as a
        # commit, beside this. Before, it only waits for what comes of the loss.
        if not self.begun or outer.task is None or outer.task is self.task:
            return
        if outer._lost is None:
            outer._lost = loss
            outer.task.cancel(str(loss))

    async def _take_back(
        self,
        _: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Undo the cancellation by `_interrupt`; raise the loss, if nothing else is."""
        assert self.task is not None
        assert self._lost is not None
        alone = self.task.uncancel() <= self._before
        if not isinstance(error, asyncio.CancelledError):
            try:
                await asyncio.sleep(0)  # before Python 3.13 it would arrive at the next await
            except asyncio.CancelledError:
                if self.task.cancelling() > self._before:
                    raise
        if error is None or (alone and isinstance(error, asyncio.CancelledError)):
            raise self._lost from None


class RequestLock(LockOf):
    """The lock of a request, and for how long it is held.

    :param scope: ``"request"`` holds it until the request has ended; ``"function"`` until its
        handler has.
    :param send_timeout: seconds that the client may keep the lock waiting, in all, while it sends
        its request or is sent its response; None waits as long as it takes.
    """

    def __init__(
        self,
        template: str,
        query: Collection[str] = (),
        *,
        scope: LeaseScope,
        send_timeout: Seconds | None,
        **options: Unpack[LockOptions],
    ) -> None:
        if scope not in ("request", "function"):
            raise ValueError(f"scope must be 'request' or 'function', not {scope!r}")
        self.scope = scope
        self.send_timeout = (
            math.inf
            if send_timeout is None
            else seconds("send_timeout (or None)", send_timeout, least=0)
        )
        super().__init__(template, query, **options)

    @asynccontextmanager
    async def held_in(
        self, leases: RequestLeases, client: LockClient, values: Mapping[str, object]
    ) -> AsyncGenerator[Lease]:
        """Hold it while a handler runs; and then, with ``scope="request"``, until that ends."""
        lock = self.on(client.lock, values)
        if self.scope == "function":
            async with leases.hold(lock, self.send_timeout) as lease:
                yield lease
        else:
            # A body of its own: so a loss is raised in the handler, where the framework handles it.
            async with leases.body():
                yield await leases.take(lock, self.send_timeout)
