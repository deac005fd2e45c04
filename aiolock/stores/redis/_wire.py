"""One connection to the server: redis-py makes it (TLS, ACL user, Sentinel), then we own it.

Only this file uses private parts of redis-py. On an ordinary connection it puts its own protocol on
the transport and feeds hiredis itself, which costs a third of what redis-py's streams do per reply.
Where there is no transport (fakeredis), a `PublicWire` runs on the public methods.
``tests/stores/redis/test_wire.py`` fails when redis-py changes these parts.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import socket
import struct
import weakref
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Final, Protocol

import hiredis
import redis.exceptions
from redis.asyncio.connection import (
    AbstractConnection,
    Connection,
    ConnectionPool,
    SSLConnection,
)
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff

from aiolock.stores.redis._errors import Refusal, shown_of
from aiolock.stores.redis._public_wire import BUG, MOST, PublicWire

log = logging.getLogger("aiolock")

CONNECT_TIMEOUT: Final = 5.0
"""Seconds for one attempt to connect and authenticate."""

FEW: Final = 2  # as `Outbox.post` knows
"""Up to this many commands at a time are each sent at once: so the server begins with the first (it
may be a release that a task waits for) while we prepare the second. More are sent together."""
_MANY: Final = 32
"""Commands after which the data is sent before the end of the iteration: the server works
meanwhile."""


def _nowhere(_: bytes) -> None:
    """Send it nowhere: the connection is closed."""


_NO_LINGER: Final = struct.pack("hh" if os.name == "nt" else "ii", 1, 0)


class Wire(Protocol):
    """An open connection. Everything that comes goes to the two functions given to `dial`."""

    @property
    def corked(self) -> bool:
        """Whether what is written is held back for the rest of this iteration."""
        ...

    @property
    def write_now(self) -> Callable[[bytes], object]:
        """As `write` at once, while it is not corked."""
        ...

    def write(self, data: bytes, *, at_once: bool) -> None:
        """Send, at once or together with all else that this loop iteration sends. Never raises."""
        ...

    def write_later(self, data: bytes) -> None:
        """As `write` while it is corked."""
        ...

    def close(self) -> None:
        """End the connection; nothing is received after it. Idempotent."""
        ...

    def reset(self) -> None:
        """As `close`; data that has not left this machine is dropped, as far as possible: it will
        be written again elsewhere, and must not arrive after that.
        """
        ...

    async def wait_closed(self) -> None:
        """Wait until it is closed, after `close`."""
        ...


async def dial(
    pool: ConnectionPool,
    on_reply: Callable[[Any], None],
    on_broken: Callable[[Exception], None],
    address: tuple[str, int] | None = None,
) -> Wire:
    """Connect as ``pool`` would, and own the connection.

    ``on_reply`` gets each reply (a `Refusal` for an error); ``on_broken`` is called once when the
    connection ends, unless we closed it. ``address`` is where a pool of Sentinel's connects to.
    Raises what redis-py raises, and `TimeoutError`.
    """
    options: dict[str, Any] = {
        **_driver(pool.connection_kwargs),
        **pool.connection_kwargs,
        # RESP2 and bytes, whatever the caller's client uses: we read the same from all.
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
    kind: type[AbstractConnection] = pool.connection_class
    if address is not None:
        kind = SSLConnection if issubclass(kind, SSLConnection) else Connection
        options |= {"host": address[0], "port": address[1]}
        del options["connection_pool"]
    connection: Any = kind(**options)
    _connections.add(connection)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT):
            await connection.connect()
    except BaseException as error:
        await connection.disconnect(nowait=True)
        if isinstance(error, Exception):
            raise shown_of(pool).error(error)  # noqa: B904  # it is this error
        raise
    transport = _transport(connection)
    if hasattr(transport, "set_protocol"):  # uvloop's transports have no common base class
        return _TransportWire(connection, transport, on_reply, on_broken)
    forget = partial(_forget_what_is_unsent, transport)
    return PublicWire(connection, on_reply, on_broken, forget)


def _driver(options: Mapping[str, Any]) -> Mapping[str, Any]:
    """What redis-py tells the server about itself, unless the caller's options say that."""
    return {} if {"driver_info", "lib_name", "lib_version"} & options.keys() else _redis_py()


@cache
def _redis_py() -> Mapping[str, Any]:
    """Made once: by itself, redis-py reads the files of its package for each connection."""
    try:
        from redis.driver_info import DriverInfo
    except ImportError:  # an older one reads them once
        return {}
    return {"driver_info": DriverInfo()}


def _transport(connection: Any) -> Any:
    return getattr(getattr(connection, "_writer", None), "transport", None)


def _forget_what_is_unsent(transport: Any) -> None:
    """Have the kernel end this connection with a reset, and drop the data it has not sent.

    An ordinary end would leave that data to be sent again until the network lets it through.
    """
    with contextlib.suppress(OSError, AttributeError):  # closed already, or no socket at all
        end = transport.get_extra_info("socket")
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _NO_LINGER)


_connections: Final[weakref.WeakSet[Any]] = weakref.WeakSet()


def _forked() -> None:
    """In the child of a fork: release the parent's connections.

    Otherwise they stay open while the child lives, and a parent that was killed would still count
    as a listener. They are not closed: with TLS that would speak to the server in the parent's
    name, and their file numbers could be given to other files.
    """
    nothing = os.open(os.devnull, os.O_RDWR)
    for connection in _connections:
        with contextlib.suppress(OSError, AttributeError):  # closed, or no socket
            number = _transport(connection).get_extra_info("socket").fileno()
            if number >= 0:
                os.dup2(nothing, number, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(after_in_child=_forked)


class _TransportWire(asyncio.Protocol):
    """Our own protocol on redis-py's transport."""

    def __init__(
        self,
        connection: AbstractConnection,
        transport: asyncio.Transport,
        on_reply: Callable[[Any], None],
        on_broken: Callable[[Exception], None],
    ) -> None:
        self._connection = connection
        self._transport = transport
        self._on_reply = on_reply
        self._on_broken = on_broken
        self._reader = hiredis.Reader(replyError=Refusal)
        self._soon = asyncio.get_running_loop().call_soon
        self.corked = False
        self.write_now: Callable[[bytes], object] = transport.write
        self._held_back: list[bytes] = []
        self._closed = False
        self._behind = False
        """Whether replies have come that are received in the next iteration."""
        self._lost: Exception | None = None
        """Why the connection has ended, until all that came before is received."""
        transport.set_protocol(self)
        # redis-py's stream may have paused the transport; this protocol reads without pauses.
        transport.resume_reading()

    def write(self, data: bytes, *, at_once: bool) -> None:
        if at_once and not self.corked:
            if not self._closed:
                self._transport.write(data)
        else:
            if not self.corked:
                self.corked = True
                self._soon(self._flush)
            self.write_later(data)

    def write_later(self, data: bytes) -> None:
        self._held_back.append(data)
        if len(self._held_back) == _MANY:
            self._send()

    def _flush(self) -> None:
        self.corked = False
        if self._held_back:
            self._send()

    def _send(self) -> None:
        if not self._closed:
            self._transport.write(b"".join(self._held_back))
        self._held_back.clear()

    def data_received(self, data: bytes) -> None:
        reader, on_reply, replies = self._reader, self._on_reply, 0
        try:
            reader.feed(data)
            if self._behind:
                return  # behind all that has come before
            for replies in range(MOST):  # noqa: B007  # it is read after the loop
                # False is hiredis for "not enough yet": RESP2 has no booleans.
                if (reply := reader.gets()) is False or self._closed:
                    break
                on_reply(reply)
            else:
                self._behind = True
                self._soon(self._catch_up)
        except hiredis.ProtocolError as error:
            self._end(redis.exceptions.InvalidResponse(str(error)))
        except Exception as error:
            log.exception(BUG)
            self._end(error)
        # The tasks woken here run before the callbacks scheduled here: all that they send in their
        # first step leaves with one system call. A few need not wait for that.
        if replies > FEW and not self.corked:
            self.corked = True
            self._soon(self._flush)

    def _catch_up(self) -> None:
        """Go on with what has come already."""
        self._behind = False
        self.data_received(b"")
        if self._lost is not None and not self._behind:
            self._end(self._lost)

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = exc or ConnectionResetError("the server closed the connection")
        if not self._behind:  # else once all is received that came before
            self._end(self._lost)

    def _end(self, error: Exception) -> None:
        if not self._closed:
            self.reset()
            self._on_broken(error)

    def reset(self) -> None:
        if not self._closed:
            _forget_what_is_unsent(self._transport)
            self.close()

    def close(self) -> None:
        self._closed = True
        self.write_now = _nowhere
        self._transport.abort()
        # redis-py does not know that its connection is closed, and would warn when collected.
        connection: Any = self._connection
        connection._writer = connection._reader = None

    async def wait_closed(self) -> None:
        pass  # an abort waits for nothing
