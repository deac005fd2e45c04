"""One client's link to a server in memory."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any, Final, TypeVar

from aiolock._turns import in_parts
from aiolock.copying import Uncopyable
from aiolock.protocol import Deliver, Operation, ReadPage, ReadStatus
from aiolock.store import Features
from aiolock.stores._operations import Fetch
from aiolock.stores._outcomes import closed
from aiolock.stores.memory._server import MemoryServer

Value = TypeVar("Value")

_READS: Final = (ReadStatus, ReadPage)


class MemoryStore(Uncopyable):
    """One client's link to a `MemoryServer`; answers come in a later loop iteration."""

    features = Features()

    def __init__(self, server: MemoryServer) -> None:
        self.server = server
        self._client: str | None = None

    def __repr__(self) -> str:
        return f"<MemoryStore of {self.server!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self._client = client
        self._queue = self.server.operation_queue()
        self.server.listen(client, deliver)

    async def aclose(self) -> None:
        if self._client is not None:
            self.server.leave(self._client)
            self._client = None

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        if self._client is None:
            return closed()
        if type(operation) in _READS and (parts := self.server.reads_in_parts(operation)):
            return self._queue.loop.create_task(self._in_parts(parts))
        return self._queue.submit(operation)

    async def _in_parts(self, parts: Generator[int, None, Value]) -> Value:
        await self._queue.submit(Fetch())  # behind all operations that were submitted before
        return await in_parts(parts)
