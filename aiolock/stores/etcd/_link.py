"""One HTTP/2 link to one server: streams of messages, with the flow control of both sides.

Why no library does it: a small transaction costs its client 115 µs of processor time by this link,
260 by grpcio's asyncio API, and 290 by h2 (CPython 3.11; 45, 90 and 140 with fifty at once); a lock
is two of them, and all else that a client does for it costs 400. And grpcio does not work in forked
processes, nor without noise in two event loops, one after the other.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable
from typing import Final, cast

from aiolock.stores.etcd import _frames
from aiolock.stores.etcd._frames import Frame, Frames
from aiolock.stores.etcd._headers import Blocks

_OURS: Final = 1 << 30
"""Bytes that the server may send before we say more: what we wait for is small."""
_LONGEST: Final = 64 << 20
"""Bytes of a message, at most."""
_LONGEST_BLOCK: Final = 1 << 16
"""Bytes of a block of headers, at most."""
_ACKNOWLEDGES: Final = 0.2
"""Seconds after which a ping is answered, if nothing else is sent by then."""
_MOST_PINGS: Final = 1000
"""Pings that may wait for that."""
_LARGEST_WINDOW: Final = (1 << 31) - 1
_LAST_STREAM: Final = 1 << 30
"""Numbers of streams after which another link is needed: they are odd, and of 31 bits."""
_BEGIN: Final = (
    _frames.PREFACE
    + _frames.settings(
        {
            _frames.HEADER_TABLE_SIZE: 0,
            _frames.ENABLE_PUSH: 0,
            _frames.INITIAL_WINDOW_SIZE: _OURS,
        }
    )
    + _frames.window_update(0, _OURS - _frames.WINDOW)
)


class LinkError(Exception):
    """A stream has ended without a status of gRPC's."""

    def __init__(self, text: str, *, refused: bool = False) -> None:
        super().__init__(text)
        self.refused = refused
        """Whether the server has certainly not looked at it."""


class LinkStream:
    """One stream: a request, and what comes back."""

    __slots__ = (
        *("consumed", "number", "on_end", "on_headers", "on_message"),
        *("pending", "received", "window"),
    )

    def __init__(
        self,
        number: int,
        window: int,
        on_headers: Callable[[dict[str, str]], None],
        on_message: Callable[[bytes], None],
        on_end: Callable[[LinkError | None], None],
    ) -> None:
        self.number = number
        self.window = window
        """Bytes that may be sent on it."""
        self.pending = deque[tuple[bytes, bool]]()
        """Data that waits for the window, and whether the stream ends with it."""
        self.received = bytearray()
        self.consumed = 0
        """Bytes that were received since we have let the server send more."""
        self.on_headers, self.on_message, self.on_end = on_headers, on_message, on_end


class Link(asyncio.Protocol):
    """The link; made by `loop.create_connection`."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._frames, self._blocks = Frames(), Blocks()
        self._numbers = itertools.count(1, 2)
        self._streams = dict[int, LinkStream]()
        self._window, self._first_window = _frames.WINDOW, _frames.WINDOW
        self._size = _frames.SIZE
        self._most_streams = _LARGEST_WINDOW
        self._consumed = 0
        self._acknowledgements = list[bytes]()
        """Of pings, which are sent with the next frames, or soon."""
        self._acknowledges = False
        """Whether a timer runs for that."""
        self._block: Frame | None = None
        """Headers that go on in the next frame."""
        self.is_open = False
        """Whether streams may be opened."""
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.why = "the link was closed"

    # As a protocol of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See `asyncio.Protocol`."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is no subclass of it
        self.is_open = True
        self._transport.write(_BEGIN)

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        try:
            for each in self._frames.feed(data):
                self._received(each)
        except ValueError as error:
            self.why = f"what the server sends is no HTTP/2: {error}"
            self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self.is_open = False
        if exc is not None:
            self.why = str(exc) or type(exc).__name__
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.on_end(LinkError(self.why))
        if not self.closed.done():
            self.closed.set_result(None)

    # Streams

    def open_stream(
        self,
        block: bytes,
        on_headers: Callable[[dict[str, str]], None],
        on_message: Callable[[bytes], None],
        on_end: Callable[[LinkError | None], None],
        only: bytes | None = None,
    ) -> LinkStream:
        """Begin a stream with these headers, and with the ``only`` message sent on it, if any."""
        assert self._transport is not None
        if len(self._streams) >= self._most_streams:
            raise LinkError("the server takes no more requests at once", refused=True)
        number = next(self._numbers)
        if number > _LAST_STREAM:
            self.is_open = False
        stream = LinkStream(number, self._first_window, on_headers, on_message, on_end)
        self._streams[number] = stream
        head = _frames.frame(_frames.HEADERS, _frames.END_HEADERS, number, block)
        if only is None:
            self._write(head)
        else:
            stream.pending.append((_framed(only), True))
            self._flush(stream, head)
        return stream

    def send(self, stream: LinkStream, message: bytes) -> None:
        """Send a message, or as much of it as the server takes by now."""
        stream.pending.append((_framed(message), False))
        self._flush(stream)

    def _flush(self, stream: LinkStream, head: bytes = b"") -> None:
        assert self._transport is not None
        out = [head] if head else []
        while stream.pending:
            data, end = stream.pending[0]
            most = min(self._window, stream.window, self._size)
            if most <= 0:
                break
            part, rest = data[:most], data[most:]
            self._window -= len(part)
            stream.window -= len(part)
            flags = _frames.END_STREAM if end and not rest else 0
            out.append(_frames.frame(_frames.DATA, flags, stream.number, part))
            if rest:
                stream.pending[0] = rest, end
            else:
                stream.pending.popleft()
        if out:
            self._write(b"".join(out))

    def cancel(self, stream: LinkStream) -> None:
        """End a stream from this side; nothing of it is reported any more."""
        if self._streams.pop(stream.number, None) is not None:
            self._write(_frames.reset(stream.number))
            self._close_if_idle()

    def abort(self) -> None:
        """End the link at once."""
        self.is_open = False
        if self._transport is not None:
            self._transport.abort()

    def close(self) -> None:
        """End the link, after what was written."""
        self.is_open = False
        if self._transport is not None:
            self._transport.close()

    # What arrives

    def _received(self, found: Frame) -> None:
        if self._block is not None and found.kind != _frames.CONTINUATION:
            raise _frames.BrokenFrameError("headers do not go on")
        receive = _RECEIVERS.get(found.kind)
        if receive is not None:
            receive(self, found)

    def _data(self, found: Frame) -> None:
        self._consumed += len(found.payload)
        stream = self._streams.get(found.stream)
        if self._consumed > _OURS // 2:
            self._write(_frames.window_update(0, self._consumed))
            self._consumed = 0
        if stream is None:
            return
        stream.received += _frames.content(found)
        stream.consumed += len(found.payload)
        if stream.consumed > _OURS // 2:  # it may live for months
            self._write(_frames.window_update(stream.number, stream.consumed))
            stream.consumed = 0
        received = stream.received
        while len(received) >= 5:  # noqa: PLR2004  # the bytes before a message
            size = int.from_bytes(received[1:5], "big")
            if received[0]:
                raise _frames.BrokenFrameError("a message is compressed")
            if size > _LONGEST:
                raise _frames.BrokenFrameError("a message is too long")
            if len(received) < 5 + size:
                break
            message = bytes(received[5 : 5 + size])
            del received[: 5 + size]
            stream.on_message(message)
        if found.flags & _frames.END_STREAM:
            self._end(stream, None)

    def _headers(self, found: Frame) -> None:
        if not found.flags & _frames.END_HEADERS:
            self._block = found._replace(payload=_frames.content(found), flags=found.flags & 1)
            return
        self._head(found.stream, found.flags, _frames.content(found))

    def _continuation(self, found: Frame) -> None:
        begun = self._block
        if begun is None or begun.stream != found.stream:
            raise _frames.BrokenFrameError("headers go on that have not begun")
        if len(begun.payload) + len(found.payload) > _LONGEST_BLOCK:
            raise _frames.BrokenFrameError("headers are too long")
        begun = begun._replace(payload=begun.payload + found.payload)
        self._block = begun
        if found.flags & _frames.END_HEADERS:
            self._block = None
            self._head(begun.stream, begun.flags, begun.payload)

    def _head(self, number: int, flags: int, block: bytes) -> None:
        headers = self._blocks.read(block)
        stream = self._streams.get(number)
        if stream is not None:
            stream.on_headers(dict(headers))
            if flags & _frames.END_STREAM:
                self._end(stream, None)

    def _reset(self, found: Frame) -> None:
        stream = self._streams.get(found.stream)
        if stream is not None:
            code = _frames.number(found.payload)
            refused = code == _frames.REFUSED_STREAM
            self._end(stream, LinkError(f"the server has reset it ({code})", refused=refused))

    def _settings(self, found: Frame) -> None:
        if found.flags & _frames.ACK:
            return
        values = _frames.read_settings(found.payload)
        self._size = values.get(_frames.MAX_FRAME_SIZE, self._size)
        self._most_streams = values.get(_frames.MAX_CONCURRENT_STREAMS, self._most_streams)
        window = values.get(_frames.INITIAL_WINDOW_SIZE, self._first_window)
        if window > _LARGEST_WINDOW or self._size < _frames.SIZE:
            raise _frames.BrokenFrameError("a setting cannot be")
        more, self._first_window = window - self._first_window, window
        for stream in self._streams.values():
            stream.window += more
        self._write(_frames.frame(_frames.SETTINGS, _frames.ACK, 0))
        self._flush_all()

    def _ping(self, found: Frame) -> None:
        """Servers send one after each request, to measure: an own packet for it would cost more
        than all else.
        """
        if not found.flags & _frames.ACK:
            if not self._acknowledges:
                self._acknowledges = True
                asyncio.get_running_loop().call_later(_ACKNOWLEDGES, self._acknowledge)
            if len(self._acknowledgements) > _MOST_PINGS:
                raise _frames.BrokenFrameError("there are too many pings")
            acknowledgement = _frames.frame(_frames.PING, _frames.ACK, 0, found.payload)
            self._acknowledgements.append(acknowledgement)

    def _acknowledge(self) -> None:
        self._acknowledges = False
        if self._acknowledgements and self.is_open:
            self._write(b"")

    def _goaway(self, found: Frame) -> None:
        """The server takes no more streams; those after the last one it has not looked at."""
        self.is_open = False
        last = _frames.number(found.payload)
        for stream in [each for each in self._streams.values() if each.number > last]:
            self._end(stream, LinkError("the server closes the link", refused=True))
        self._close_if_idle()

    def _window_update(self, found: Frame) -> None:
        more = _frames.number(found.payload)
        if self._window + more > _LARGEST_WINDOW and not found.stream:
            raise _frames.BrokenFrameError("a window is too large")
        if not found.stream:
            self._window += more
            self._flush_all()
        elif (stream := self._streams.get(found.stream)) is not None:
            stream.window += more
            self._flush(stream)

    def _flush_all(self) -> None:
        for stream in list(self._streams.values()):
            if stream.pending:
                self._flush(stream)

    def _end(self, stream: LinkStream, error: LinkError | None) -> None:
        if self._streams.pop(stream.number, None) is not None:
            stream.on_end(error)
            self._close_if_idle()

    def _close_if_idle(self) -> None:
        """No other stream will follow where none may be opened: another link is used by then."""
        if not self.is_open and not self._streams and self._transport is not None:
            self._transport.close()

    def _write(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            if self._acknowledgements:
                data = b"".join([*self._acknowledgements, data])
                self._acknowledgements.clear()
            self._transport.write(data)


def _framed(message: bytes) -> bytes:
    """A message as gRPC has it in its stream: not compressed."""
    return b"\0" + len(message).to_bytes(4, "big") + message


_RECEIVERS: Final[dict[int, Callable[[Link, Frame], None]]] = {
    _frames.DATA: Link._data,
    _frames.HEADERS: Link._headers,
    _frames.RST_STREAM: Link._reset,
    _frames.SETTINGS: Link._settings,
    _frames.PING: Link._ping,
    _frames.GOAWAY: Link._goaway,
    _frames.WINDOW_UPDATE: Link._window_update,
    _frames.CONTINUATION: Link._continuation,
}
