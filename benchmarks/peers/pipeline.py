"""Bare statements on libpq connections in pipeline mode: a transaction, and a Sync, for each.

It is no lock: it shows what a lock in PostgreSQL could cost at least, or what gathering saves.
"""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from types import TracebackType

import psycopg
from psycopg import pq

BYTEA, TEXT = 17, 25


class Connection:
    """Many transactions may be under way; their answers come in order."""

    def __init__(self, connection: psycopg.AsyncConnection, statements: Sequence[str]) -> None:
        self._connection = connection
        self._pg = connection.pgconn
        self._loop = asyncio.get_running_loop()
        self._names = {text: b"s%d" % place for place, text in enumerate(statements)}
        self._asked = deque[asyncio.Future[bytes]]()
        self._answer = b""
        self._failure = ""
        self._flushes = False
        self._pg.nonblocking = 1
        self._pg.enter_pipeline_mode()
        self._loop.add_reader(self._pg.socket, self._readable)

    async def prepare(self) -> None:
        """Let the server know all statements: ``$1`` is a lock's name, ``$2`` the last answer."""
        for text, name in self._names.items():
            self._pg.send_prepare(name, text.encode(), [BYTEA, TEXT])
        await self._sync()

    def ask(self, statement: str, name: bytes, last: bytes) -> asyncio.Future[bytes]:
        """Send a statement; the future is of its answer."""
        self._pg.send_query_prepared(self._names[statement], (name, last))
        return self._sync()

    def _sync(self) -> asyncio.Future[bytes]:
        self._pg.pipeline_sync()
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._asked.append(answer)
        if not self._flushes:
            self._flushes = True
            self._loop.call_soon(self._flush)
        return answer

    def _flush(self) -> None:
        self._flushes = bool(self._pg.flush())
        if self._flushes:
            self._loop.call_soon(self._flush)

    def _readable(self) -> None:
        self._pg.consume_input()
        while self._asked and not self._pg.is_busy():
            result = self._pg.get_result()
            if result is None:
                continue
            if result.status == pq.ExecStatus.PIPELINE_SYNC:
                self._answered(self._asked.popleft())
            elif result.status == pq.ExecStatus.FATAL_ERROR:
                self._failure = result.get_error_message()
            elif result.status == pq.ExecStatus.TUPLES_OK:
                self._answer = result.get_value(0, 0) or b""

    def _answered(self, future: asyncio.Future[bytes]) -> None:
        if future.done():
            return
        if self._failure:
            future.set_exception(RuntimeError(self._failure))
        else:
            future.set_result(self._answer)

    async def close(self) -> None:
        """Disconnect."""
        self._loop.remove_reader(self._pg.socket)
        await self._connection.close()


class Statements:
    """What one task sends: it waits for the first answer only, as aiolock does."""

    def __init__(
        self, connection: Connection, name: str, enter: Sequence[str], leave: Sequence[str]
    ) -> None:
        self._connection = connection
        self._name = name.encode()
        self._enter = enter
        self._leave = leave
        self._last = b""

    async def __aenter__(self) -> None:
        await self._send(self._enter)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._send(self._leave)

    async def _send(self, statements: Sequence[str]) -> None:
        answers = [self._connection.ask(each, self._name, self._last) for each in statements]
        if answers:
            self._last = await answers[0]


class Peer:
    """``url`` is the database's; ``each``: a connection for each task, not one for all."""

    def __init__(
        self, *, url: str, enter: Sequence[str], leave: Sequence[str], each: bool = False
    ) -> None:
        self._url = url
        self._enter = enter
        self._leave = leave
        self._each = each

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own
        self._connections = [await self._connect() for _ in range(tasks if self._each else 1)]
        self._next = itertools.cycle(self._connections)

    async def _connect(self) -> Connection:
        plain = await psycopg.AsyncConnection.connect(self._url, autocommit=True)
        connection = Connection(plain, list(dict.fromkeys((*self._enter, *self._leave))))
        await connection.prepare()
        return connection

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Statements(next(self._next), name, self._enter, self._leave)

    async def close(self) -> None:
        for connection in self._connections:
            await connection.close()
