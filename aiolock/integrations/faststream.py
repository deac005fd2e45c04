"""Locks in FastStream: `Locks` has the decorators, and a lifespan that opens and closes the client.

::

    locks = Locks(aiolock.connect("redis://localhost:6379/0"))
    app = FastStream(broker, lifespan=locks.lifespan)


    @broker.subscriber(stream=StreamSub("users", group="workers", consumer="1"))
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None: ...
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from contextvars import ContextVar
from typing import Any, Final

from faststream.exceptions import NackMessage

from aiolock import ClientClosed, LockClient, LockError
from aiolock.integrations._tasks import RETRY_AFTER, TaskLocks
from aiolock.options import Seconds

__all__ = ["Locks"]

_began: Final = ContextVar[float]("aiolock.faststream")
"""The start of the run in this asyncio task, by `time.monotonic`."""


class Locks(TaskLocks):
    """Decorators for FastStream's handlers. A message that is put back is a `NackMessage`.

    The broker decides when it is delivered again, and to whom. FastStream cannot make it wait,
    and some brokers deliver it at once, so the handler waits: a run that is put back takes
    ``retry_after`` seconds, with the time for which it has waited for its lock.
    """

    def __init__(self, client: LockClient, *, retry_after: Seconds = RETRY_AFTER) -> None:
        super().__init__(client, retry_after=retry_after, put_back=self._nack, begin=_note_begin)

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
