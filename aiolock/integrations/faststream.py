"""Locks in FastStream: `Locks` has the decorators, and a lifespan that opens and closes the client.

::

    locks = Locks(aiolock.connect("redis://localhost:6379/0"))
    app = FastStream(broker, lifespan=locks.lifespan)


    @broker.subscriber(stream=StreamSub("users", group="workers", consumer="1"))
    @locks.locked("user:{user}")
    async def welcome(user: int) -> None: ...
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from faststream.exceptions import NackMessage

from aiolock import LockClient, LockError
from aiolock.integrations._tasks import TaskLocks

__all__ = ["Locks"]


class Locks(TaskLocks):
    """Decorators for FastStream's handlers. A message that is put back is a `NackMessage`.

    The broker decides when it is delivered again, and to whom; FastStream cannot tell it to wait,
    so there is no ``retry_after``.
    """

    def __init__(self, client: LockClient) -> None:
        super().__init__(client)

    @asynccontextmanager
    async def lifespan(self) -> AsyncGenerator[None, None]:
        """Open the client before the broker starts, and close it when that has ended."""
        async with self.client:
            yield

    async def _put_back(self, error: LockError, args: Sequence[Any]) -> BaseException:
        return NackMessage()
