"""The stream on which leases are kept alive: a message to the leader, and no write."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from aiolock.stores.etcd._connection import Connection, Metadata, Stream
from aiolock.stores.etcd._failures import CallError, broken
from aiolock.stores.etcd._messages import lease_request
from aiolock.stores.etcd._replies import Lease, read_lease
from aiolock.stores.etcd._servers import TRY, Servers
from aiolock.stores.etcd._wire import MalformedError


class _Asked(NamedTuple):
    lease: int
    answer: asyncio.Future[int]


class _Line:
    """An open stream, and what was asked on it."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.stream: asyncio.Future[Stream] = asyncio.get_running_loop().create_future()
        self.asked = deque[_Asked]()

    def fail(self, error: CallError) -> None:
        """Nothing that was asked on it is answered any more."""
        if not self.stream.done():
            self.stream.set_exception(error)
            self.stream.exception()  # so that it is not logged if nobody waits
        for each in self.asked:
            if not each.answer.done():
                each.answer.set_exception(error)
                each.answer.exception()
        self.asked.clear()


class KeepAlive:
    """Asks for leases to be prolonged, all on one stream, which is opened when it is needed."""

    def __init__(
        self, servers: Servers, start: Callable[[Coroutine[Any, Any, None]], object]
    ) -> None:
        self._servers = servers
        self._start = start
        self._line: _Line | None = None
        self.count = 0
        """How many messages were sent: for tests."""

    async def ask(self, lease: int) -> int:
        """For how many seconds the lease was prolonged; 0 if it is over; `CallError` if unknown."""
        connection = self._servers.connection
        line = self._line
        if line is None or line.connection is not connection:
            line = self._line = _Line(connection)
            self._start(self._read(line))
        try:
            async with asyncio.timeout(TRY):
                stream = await asyncio.shield(line.stream)
                answer: asyncio.Future[int] = asyncio.get_running_loop().create_future()
                line.asked.append(_Asked(lease, answer))
                self.count += 1
                stream.write(lease_request(lease))
                return await answer
        except TimeoutError:
            error = broken(connection.address, "no answer in time")
            self._drop(line, error)
            raise error from None
        except CallError as error:
            self._drop(line, error)
            raise

    def _drop(self, line: _Line, error: CallError) -> None:
        self._end(line, error)
        self._servers.leave(line.connection)

    async def _read(self, line: _Line) -> None:
        connection = line.connection
        metadata: Metadata = ()
        try:
            metadata = await self._servers.metadata(connection)
            async with connection.stream("Lease/LeaseKeepAlive", TRY, metadata) as stream:
                if line.stream.done():
                    return  # whoever asked has given up meanwhile
                line.stream.set_result(stream)
                while True:
                    self._answered(line, read_lease(await stream.read()))
        except CallError as error:
            if error.token:
                self._servers.forget_token(metadata)
            self._end(line, error)
        except MalformedError as error:
            self._end(line, broken(connection.address, f"a reply cannot be read: {error}"))

    def _end(self, line: _Line, error: CallError) -> None:
        if line is self._line:
            self._line = None
        line.fail(error)

    @staticmethod
    def _answered(line: _Line, lease: Lease) -> None:
        # In order; one that is not asked for is of somebody who has given up.
        while line.asked:
            asked = line.asked.popleft()
            if asked.lease == lease.id:
                if not asked.answer.done():
                    asked.answer.set_result(lease.seconds)
                return

    def stop(self) -> None:
        """End the stream."""
        if self._line is not None:
            self._line.fail(broken(self._line.connection.address, "the store is closed"))
            self._line = None
