"""A connection to the server on redis-py's public methods, where it has no transport."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Any, Final

import redis.exceptions
from redis.asyncio.connection import AbstractConnection

from aiolock.stores.redis._errors import as_answered

log = logging.getLogger("aiolock")

MOST: Final = 32
"""Replies that are received in one iteration of the loop at most; the rest in the next one."""
BUG: Final = "aiolock: could not deal with what the server sent, and connects again"


class PublicWire:
    """A `Wire` on redis-py's public methods: one task reads and one writes."""

    corked = True  # nothing is sent at once here

    def __init__(
        self,
        connection: AbstractConnection,
        on_reply: Callable[[Any], None],
        on_broken: Callable[[Exception], None],
        forget: Callable[[], None],
    ) -> None:
        """``forget`` drops the data that has not left this machine, as far as possible."""
        self._connection = connection
        self._on_reply = on_reply
        self._on_broken = on_broken
        self._forget = forget
        self._closed = False
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(), name="aiolock read")
        self._sending = asyncio.create_task(self._send(), name="aiolock send")

    def write_now(self, data: bytes) -> None:
        self._outbox.put_nowait(data)

    def write(self, data: bytes, *, at_once: bool) -> None:
        self._outbox.put_nowait(data)

    def write_later(self, data: bytes) -> None:
        self._outbox.put_nowait(data)

    async def _send(self) -> None:
        try:
            while (data := await self._outbox.get()) is not None:
                await self._connection.send_packed_command([data], check_health=False)
        except (redis.exceptions.RedisError, OSError) as error:
            self._end(error)
        self._reading.cancel()
        await asyncio.wait([self._reading])
        await self._connection.disconnect(nowait=True)

    async def _read(self) -> None:
        connection: Any = self._connection  # its reply has no type
        for number in itertools.count(1):
            if self._closed:
                return
            if number % MOST == 0:
                await asyncio.sleep(0)
            try:
                reply = await connection.read_response(
                    disable_decoding=True, disconnect_on_error=False
                )
            except redis.exceptions.ResponseError as error:
                reply = as_answered(error)
            except (redis.exceptions.RedisError, OSError) as error:
                self._end(error)
                return
            if not self._closed:
                try:
                    self._on_reply(reply)
                except Exception as error:
                    log.exception(BUG)
                    self._end(error)

    def _end(self, error: Exception) -> None:
        if not self._closed:
            self.reset()
            self._on_broken(error)

    def reset(self) -> None:
        if not self._closed:
            while not self._outbox.empty():
                self._outbox.get_nowait()
            self._forget()
            self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outbox.put_nowait(None)  # after the data that is still to be sent

    async def wait_closed(self) -> None:
        await asyncio.wait([self._sending])
