"""One connection to the server: redis-py makes it (TLS, ACL user, Sentinel), then we own it.

This is the one file that reaches below redis-py's public surface. On an ordinary connection it
puts its own protocol on the transport and feeds hiredis itself, which costs a third of what
redis-py's streams do per reply. Where there is no transport (fakeredis), the same `Wire` runs on
the public methods. ``tests/test_wire.py`` fails the day redis-py changes underneath.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, Protocol

import hiredis
import redis.exceptions
from redis.asyncio.connection import AbstractConnection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

CONNECT_TIMEOUT: Final = 5.0
"""Seconds for one attempt to connect and authenticate."""

FEW: Final = 2
"""Up to so many commands at a time are sent each at once: so the server has begun with the first,
a release for which somebody waits perhaps, while we prepare the second. More are sent together."""

_CODES: Final[dict[type[Exception], str]] = {
    redis.exceptions.NoScriptError: "NOSCRIPT",
    redis.exceptions.ReadOnlyError: "READONLY",
    redis.exceptions.OutOfMemoryError: "OOM",
    redis.exceptions.NoPermissionError: "NOPERM",
    redis.exceptions.BusyLoadingError: "LOADING",
}


class Refusal(redis.exceptions.ResponseError):
    """An error the server answered, whole, with its code as the first word."""


class Wire(Protocol):
    """An open connection. Everything that comes goes to the two functions given to `dial`."""

    def write(self, data: bytes, *, at_once: bool) -> None:
        """Send, at once or with all else that this turn of the event loop sends. Never raises."""
        ...

    def close(self) -> None:
        """Drop the connection; nothing is received after it. Idempotent."""
        ...

    async def wait_closed(self) -> None:
        """Wait until it is closed, after `close`."""
        ...


async def dial(
    pool: ConnectionPool,
    received: Callable[[Any], None],
    broken: Callable[[Exception], None],
) -> Wire:
    """Connect as ``pool`` would, and own the connection.

    ``received`` gets each reply (a `Refusal` for an error), ``broken`` the end of the connection,
    once, unless we closed it. Raises what redis-py raises, and `TimeoutError`.
    """
    options: dict[str, Any] = {
        **pool.connection_kwargs,
        # RESP2 and bytes whatever the caller's client speaks: what we read is the same for all.
        "protocol": 2,
        "decode_responses": False,
        # Our own deadlines bound every command, and a retry inside would hide a lost reply.
        "socket_timeout": None,
        "socket_connect_timeout": CONNECT_TIMEOUT,
        "health_check_interval": 0,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_error": [],
        "retry_on_timeout": False,
    }
    connection: Any = pool.connection_class(**options)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await connection.connect()
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    transport: Any = getattr(getattr(connection, "_writer", None), "transport", None)
    if hasattr(transport, "set_protocol"):  # uvloop's transports are of no common class
        return _TransportWire(connection, transport, received, broken)
    return _PublicWire(connection, received, broken)


class _TransportWire(asyncio.Protocol):
    """Our own protocol on redis-py's transport."""

    def __init__(
        self,
        connection: AbstractConnection,
        transport: asyncio.Transport,
        received: Callable[[Any], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._received = received
        self._broken = broken
        self._reader = hiredis.Reader(replyError=Refusal)
        self._soon = asyncio.get_running_loop().call_soon
        self._corked = False
        self._held_back: list[bytes] = []
        self._closed = False
        transport.set_protocol(self)
        # redis-py's stream may have paused the transport; ours reads all there is.
        transport.resume_reading()

    def write(self, data: bytes, *, at_once: bool) -> None:
        if at_once and not self._corked:
            if not self._closed:
                self._transport.write(data)
        else:
            if not self._corked:
                self._corked = True
                self._soon(self._flush)
            self._held_back.append(data)

    def _flush(self) -> None:
        self._corked = False
        if self._held_back and not self._closed:
            self._transport.write(b"".join(self._held_back))
        self._held_back.clear()

    def data_received(self, data: bytes) -> None:
        reader, received, replies = self._reader, self._received, 0
        try:
            reader.feed(data)
            # False is hiredis for "not enough yet": RESP2 has no booleans.
            while (reply := reader.gets()) is not False and not self._closed:
                received(reply)
                replies += 1
        except hiredis.ProtocolError as error:
            self._end(redis.exceptions.InvalidResponse(str(error)))
        # The tasks that this has woken run before what is called soon from here: all that they
        # send in their first step leaves with one system call. A few need not wait for that.
        if replies > FEW and not self._corked:
            self._corked = True
            self._soon(self._flush)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end(exc or ConnectionResetError("the server closed the connection"))

    def _end(self, error: Exception) -> None:
        if not self._closed:
            self.close()
            self._broken(error)

    def close(self) -> None:
        self._closed = True
        self._transport.abort()
        # redis-py does not know that its connection is closed, and would warn when collected.
        connection: Any = self._connection
        connection._writer = connection._reader = None

    async def wait_closed(self) -> None:
        pass  # an abort waits for nothing


class _PublicWire:
    """The same through redis-py's public methods: a task that reads and one that writes."""

    def __init__(
        self,
        connection: AbstractConnection,
        received: Callable[[Any], None],
        broken: Callable[[Exception], None],
    ) -> None:
        self._connection = connection
        self._received = received
        self._broken = broken
        self._closed = False
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._reading = asyncio.create_task(self._read(), name="aiolock read")
        self._sending = asyncio.create_task(self._send(), name="aiolock send")

    def write(self, data: bytes, *, at_once: bool) -> None:  # noqa: ARG002  # always soon
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
        while not self._closed:
            try:
                reply = await connection.read_response(
                    disable_decoding=True, disconnect_on_error=False
                )
            except redis.exceptions.ResponseError as error:
                reply = Refusal(f"{_CODES.get(type(error), 'ERR')} {error}")
            except (redis.exceptions.RedisError, OSError) as error:
                self._end(error)
                return
            if not self._closed:
                self._received(reply)

    def _end(self, error: Exception) -> None:
        if not self._closed:
            self.close()
            self._broken(error)

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._outbox.put_nowait(None)  # after what is still to be sent

    async def wait_closed(self) -> None:
        await asyncio.wait([self._sending])
