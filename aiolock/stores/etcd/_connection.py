"""One connection to one server: calls of gRPC with a deadline, and streams, all of bytes."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping
from typing import Final
from urllib.parse import unquote

from aiolock._futures import retrieve
from aiolock.stores.etcd._failures import CallError, broken, failed_call, not_connected
from aiolock.stores.etcd._headers import request_block
from aiolock.stores.etcd._link import Link, LinkError, LinkStream
from aiolock.stores.etcd._settings import Settings

Metadata = tuple[tuple[str, str], ...]

_UNREAD: Final = 100_000
"""Messages of a stream that may wait to be read: then it is ended."""
_BLOCKS: Final = 64
"""Header blocks of requests that are kept: one for each method and token."""


class Connection:
    """The link to one server. It is made when it is needed, and again after a loss."""

    def __init__(self, address: str, settings: Settings) -> None:
        self.address = address
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._link: Link | None = None
        self._links = set[Link]()
        """All that are not closed yet: one that takes no more streams goes on with those it has."""
        self._dialling: asyncio.Task[Link] | None = None
        self._blocks = dict[tuple[str, Metadata], bytes]()
        self._streams = set[Stream]()
        self._left = False

    async def call(
        self, method: str, request: bytes, seconds: float, metadata: Metadata = ()
    ) -> bytes:
        """The reply to a request; `CallError` if there is none within so many seconds."""
        deadline = self._loop.time() + seconds
        link = self._link
        if link is None or not link.is_open:
            link = await self._connected(seconds)
        reply = _Reply(self._loop.create_future())
        block = self._block(method, metadata)
        try:
            stream = link.open_stream(
                block, reply.on_headers, reply.on_message, reply.on_end, request
            )
        except LinkError as error:
            raise self._failure(error) from None
        timer = self._loop.call_at(deadline, reply.time_out)
        try:
            return await reply.future
        except LinkError as error:
            raise self._failure(error) from None
        except TimeoutError:
            raise broken(self.address, "no answer in time") from None
        except _StatusError as error:
            raise failed_call(error.code, error.text, self.address, self._settings.shown) from None
        finally:
            timer.cancel()
            link.cancel(stream)

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, seconds: float, metadata: Metadata = ()
    ) -> AsyncGenerator[Stream]:
        """A stream of messages in both directions, until `leave`; so long may connecting take."""
        link = self._link
        if link is None or not link.is_open:
            link = await self._connected(seconds)
        try:
            stream = Stream(self, link, self._block(method, metadata))
        except LinkError as error:
            raise self._failure(error) from None
        self._streams.add(stream)
        try:
            yield stream
        finally:
            self._streams.discard(stream)
            stream.cancel()

    def _failure(self, error: LinkError) -> CallError:
        shown = self._settings.shown.text(str(error))
        if error.refused:
            return CallError.not_sent(self.address, shown)
        return broken(self.address, shown)

    def _block(self, method: str, metadata: Metadata) -> bytes:
        key = method, metadata
        block = self._blocks.get(key)
        if block is None:
            if len(self._blocks) == _BLOCKS:
                self._blocks.clear()
            tls = self._settings.tls is not None
            path = f"/etcdserverpb.{method}"
            block = self._blocks[key] = request_block(path, self.address, metadata, tls=tls)
        return block

    # The link

    async def _connected(self, seconds: float) -> Link:
        dialling = self._dialling
        if dialling is None or dialling.done():
            dialling = self._loop.create_task(self._dial(), name="aiolock etcd connect")
            dialling.add_done_callback(retrieve)
            self._dialling = dialling
        # Others wait for it, too: it is cancelled only when the connection is closed.
        await asyncio.wait([dialling], timeout=seconds)
        if not dialling.done() or dialling.cancelled():
            raise not_connected(self.address, TimeoutError("no answer in time"))
        return dialling.result()

    async def _dial(self) -> Link:
        if self._left:
            raise CallError.not_sent(self.address, "the connection was given up")
        host, _, port = self.address.rpartition(":")
        tls, host = self._settings.tls, host.strip("[]")
        try:
            async with asyncio.timeout(_DIALS):
                _, link = await self._loop.create_connection(
                    Link, host, int(port), ssl=tls, server_hostname=host if tls else None
                )
        except OSError as error:  # `TimeoutError` and `ssl.SSLError` are among them
            shown = self._settings.shown.error(error)
            raise not_connected(self.address, shown) from None
        self._link = link
        self._links.add(link)
        link.closed.add_done_callback(lambda _: self._links.discard(link))
        return link

    def leave(self) -> None:
        """End the streams: their owners go on with another connection."""
        for stream in tuple(self._streams):
            stream.fail(LinkError("the connection was given up"))

    async def aclose(self, grace: float = 0.0) -> None:
        """End it; calls under way have so many seconds."""
        self.leave()
        self._left = True
        try:
            if grace:
                await asyncio.sleep(grace)
            if self._dialling is not None and not self._dialling.done():
                self._dialling.cancel()
                await asyncio.wait([self._dialling])
            closing = [link.closed for link in self._links]
            for link in tuple(self._links):
                link.close()
            if closing:
                await asyncio.wait(closing, timeout=_CLOSES)
        finally:
            for link in tuple(self._links):
                link.abort()


_DIALS: Final = 3.0
"""Seconds after which a link that is not there is given up, whoever waits for it."""
_CLOSES: Final = 0.5
"""Seconds after which a link is ended whose other side does not end it."""


class _StatusError(Exception):
    """The server has answered with another status than 0."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(code, text)
        self.code, self.text = code, text


def _status(headers: Mapping[str, str]) -> _StatusError | None:
    """The status in the headers at the end; None if all is well."""
    status, http = headers.get("grpc-status"), headers.get(":status", "200")
    if status is None:
        return _StatusError(-1, f"the server answers with HTTP {http}, and no status of gRPC")
    if status == "0":
        return None
    code = int(status) if status.isdigit() else -1
    return _StatusError(code, unquote(headers.get("grpc-message", "")))


class _Reply:
    """The reply to one call."""

    __slots__ = ("_headers", "_message", "future")

    def __init__(self, future: asyncio.Future[bytes]) -> None:
        self.future = future
        self._headers: dict[str, str] = {}
        self._message: bytes | None = None

    def on_headers(self, headers: dict[str, str]) -> None:
        self._headers = headers if not self._headers else self._headers | headers

    def on_message(self, message: bytes) -> None:
        self._message = message

    def on_end(self, error: LinkError | None) -> None:
        if self.future.done():
            return
        failure: Exception | None = error or _status(self._headers)
        if failure is None and self._message is None:
            failure = LinkError("the server has answered without a message")
        if failure is not None:
            self.future.set_exception(failure)
        else:
            assert self._message is not None
            self.future.set_result(self._message)

    def time_out(self) -> None:
        if not self.future.done():
            self.future.set_exception(TimeoutError())


class Stream:
    """One stream; a `CallError` says that it is of no use any more."""

    def __init__(self, connection: Connection, link: Link, block: bytes) -> None:
        self._connection, self._link = connection, link
        self._messages = deque[bytes]()
        self._reading: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._headers: dict[str, str] = {}
        self._stream: LinkStream = link.open_stream(
            block, self._on_headers, self._on_message, self.fail
        )

    def write(self, request: bytes) -> None:
        """Send a message."""
        if self._error is not None:
            raise self._failure(self._error)
        self._link.send(self._stream, request)

    async def read(self) -> bytes:
        """The next message."""
        while not self._messages:
            if self._error is not None:
                raise self._failure(self._error)
            self._reading = asyncio.get_running_loop().create_future()
            await self._reading
        return self._messages.popleft()

    def _failure(self, error: Exception) -> CallError:
        connection = self._connection
        if isinstance(error, _StatusError):
            shown = connection._settings.shown
            return failed_call(error.code, error.text, connection.address, shown)
        return broken(connection.address, connection._settings.shown.text(str(error)))

    def _on_headers(self, headers: dict[str, str]) -> None:
        self._headers |= headers

    def _on_message(self, message: bytes) -> None:
        self._messages.append(message)
        if len(self._messages) > _UNREAD:
            self.fail(LinkError("messages came faster than they were read"))
        self._wake()

    def fail(self, error: LinkError | None) -> None:
        """It has ended."""
        if self._error is None:
            self._error = error or _status(self._headers) or LinkError("the stream has ended")
            self._wake()

    def _wake(self) -> None:
        if self._reading is not None and not self._reading.done():
            self._reading.set_result(None)

    def cancel(self) -> None:
        """End it."""
        self._link.cancel(self._stream)
