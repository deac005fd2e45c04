"""Locks in FastStream: `Locks` has the decorators, and a lifespan that opens and closes the client.

::

    locks = Locks(aiolock.connect("redis://localhost:6379/0"))
    app = FastStream(broker, lifespan=locks.lifespan)


    @broker.subscriber(stream=StreamSub("users", group="workers", consumer="1"))
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None: ...

`hand` publishes a message with a lease. The handlers of a broker with `LeaseMiddleware` adopt it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final, TypeVar

from faststream import BaseMiddleware
from faststream.exceptions import NackMessage
from faststream.message import StreamMessage

from aiolock import ClientClosed, Lease, LockClient, LockError
from aiolock.integrations._handing import HANDED, Carrier
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks
from aiolock.options import Seconds

__all__ = ["LeaseMiddleware", "Locks", "hand"]

T = TypeVar("T")

_began: Final = ContextVar[float]("aiolock.faststream")
"""The start of the run in this asyncio task, by `time.monotonic`."""
_headers: Final = ContextVar[dict[str, Any]]("aiolock.faststream.headers")
"""The headers of the message that is handled in this asyncio task, if a middleware notes them."""


class Locks(TaskLocks):
    """Decorators for FastStream's handlers. A message that is put back is a `NackMessage`.

    The broker decides when it is delivered again, and to whom. FastStream cannot make it wait,
    and some brokers deliver it at once, so the handler waits: a run that is put back takes
    ``retry_after`` seconds, with the time for which it has waited for its lock.
    """

    def __init__(self, client: LockClient, *, retry_after: Seconds = RETRY_AFTER) -> None:
        super().__init__(
            client,
            retry_after=retry_after,
            put_back=self._nack,
            begin=_note_begin,
            carrier=_headers_of_message,
            opened_by="`FastStream(broker, lifespan=locks.lifespan)`",
        )

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        """Open the client before the broker starts, and close it when that has ended."""
        async with self.client:
            yield

    async def _nack(self, error: LockError, _: Sequence[Any]) -> BaseException:
        if not isinstance(error, ClientClosed):  # the program ends, and waits for this
            await asyncio.sleep(_began.get() + self.retry_after - time.monotonic())
        return NackMessage()


async def _note_begin(_: Sequence[Any]) -> None:
    _began.set(time.monotonic())


def _headers_of_message(_: Sequence[Any], __: dict[str, Any]) -> Carrier:
    return _headers.get({})


class LeaseMiddleware(BaseMiddleware[Any, Any]):
    """A middleware for the broker of handlers that adopt leases: see `hand`.

    ::

        broker = RedisBroker("redis://localhost:6379/0", middlewares=[LeaseMiddleware])
    """

    async def consume_scope(
        self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]
    ) -> Any:
        """Note the headers of the message for the decorators of `Locks`."""
        noted = _headers.set(msg.headers)
        try:
            return await call_next(msg)
        finally:
            _headers.reset(noted)


async def hand(
    lease: Lease,
    publish: Callable[..., Awaitable[T]],
    *args: Any,
    ttl: Seconds = 60.0,
    label: str | None = None,
    headers: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> T:
    """Publish a message, and hand a lease on to its handler: nobody else gets the lock in between.

    ::

        async with client.lock("order:42") as lease:
            await hand(lease, broker.publish, {"order": 42}, stream="orders")

    The lease ends here when this is called, as by `Lease.detach`, whose errors are those of this.
    The handler adopts it, by its `Locks.locked` (or another decorator) of the same lock, or by
    `Locks.adopted`; its broker needs `LeaseMiddleware`. If several handlers get the message, one
    adopts the lease. If it cannot be published, that error is raised, and the lock is released.

    The token is in the header ``aiolock_lease`` of the message, and a secret.

    :param publish: the broker's, or a publisher's, with its arguments.
    :param ttl: seconds until the lock is free if no handler has begun with the message.
    :param label: shown in a status until then; "for a message", if None.
    """
    async with lease.handing_on(ttl=ttl, label=label or "for a message") as token:
        return await publish(*args, headers={**(headers or {}), HANDED: str(token)}, **kwargs)
