"""The link: frames of HTTP/2, by the book and not, from a server that is played by the test."""

# a number in an assertion explains itself

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import hpack
import pytest

from aiolock.stores.etcd import _frames
from aiolock.stores.etcd._connection import Connection
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._frames import Frame, Frames, frame, settings
from aiolock.stores.etcd._settings import Settings

OK = [(":status", "200"), ("content-type", "application/grpc")]
DONE = [("grpc-status", "0"), ("grpc-message", "")]


def block(pairs: list[tuple[str, str]]) -> bytes:
    """Headers as a server writes them that was told to keep no table."""
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    return encoder.encode(pairs)


def headers(stream: int, pairs: list[tuple[str, str]], flags: int = _frames.END_HEADERS) -> bytes:
    """A frame of headers."""
    return frame(_frames.HEADERS, flags, stream, block(pairs))


def message(text: bytes) -> bytes:
    """A message as gRPC frames it."""
    return b"\0" + len(text).to_bytes(4, "big") + text


def data(stream: int, content: bytes, flags: int = 0) -> bytes:
    """A frame of data."""
    return frame(_frames.DATA, flags, stream, content)


TRAILERS = _frames.END_HEADERS | _frames.END_STREAM


def reply(stream: int, text: bytes) -> bytes:
    """A whole reply."""
    return headers(stream, OK) + data(stream, message(text)) + headers(stream, DONE, TRAILERS)


class Server:
    """One connection of a client, and what it has sent."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._frames = Frames(1 << 24)
        self._seen = list[Frame]()
        self._preface = b""

    async def next(self, kind: int) -> Frame:
        """The next frame of this kind; earlier ones of other kinds are left out."""
        while True:
            while self._seen:
                found = self._seen.pop(0)
                if found.kind == kind:
                    return found
            received = await self._reader.read(1 << 16)
            assert received, "the client has closed the link"
            if len(self._preface) < len(_frames.PREFACE):
                self._preface += received
                received = self._preface[len(_frames.PREFACE) :]
                assert self._preface.startswith(_frames.PREFACE[: len(self._preface)])
            self._seen += self._frames.feed(received)

    async def request(self) -> tuple[int, bytes]:
        """The next request of one message: its stream, and the message."""
        stream, received = (await self.next(_frames.HEADERS)).stream, b""
        while True:
            part = await self.next(_frames.DATA)
            assert part.stream == stream
            received += part.payload
            if part.flags & _frames.END_STREAM:
                return stream, received[5:]

    def send(self, *frames: bytes) -> None:
        """Send these."""
        self._writer.write(b"".join(frames))

    def close(self) -> None:
        """End the connection."""
        self._writer.close()


class Play:
    """A client's connection, and the servers that it finds: one each time that it connects."""

    def __init__(self) -> None:
        self.servers = asyncio.Queue[Server]()
        self.connection: Connection

    async def server(self, first: bytes = settings({})) -> Server:
        """The server of the next connection, which begins with these frames."""
        server = await self.servers.get()
        server.send(first)
        return server


@pytest.fixture
async def play() -> AsyncIterator[Play]:
    """A client without a server, so far."""
    found = Play()
    held = list[Server]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server = Server(reader, writer)
        held.append(server)
        found.servers.put_nowait(server)

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    found.connection = Connection(address, Settings((address,)))
    yield found
    await found.connection.aclose()
    for each in held:
        each.close()
    server.close()
    await asyncio.sleep(0)


def call(play: Play, request: bytes = b"q", seconds: float = 20) -> asyncio.Task[bytes]:
    """Start a call."""
    return asyncio.create_task(play.connection.call("KV/Txn", request, seconds))


async def failure(task: asyncio.Task[Any]) -> CallError:
    """The error of a call."""
    with pytest.raises(CallError) as raised:
        await task
    return raised.value


async def test_call_sends_grpc_headers_and_reads_the_reply(play: Play) -> None:
    """A call is a stream: headers, a message with its length, and the status at the end."""
    task = call(play)
    server = await play.server()
    decoder = hpack.Decoder()
    sent = await server.next(_frames.HEADERS)
    assert [(str(n), str(v)) for n, v in decoder.decode(sent.payload)] == [
        (":method", "POST"),
        (":scheme", "http"),
        (":path", "/etcdserverpb.KV/Txn"),
        (":authority", play.connection.address),
        ("te", "trailers"),
        ("content-type", "application/grpc"),
    ]
    assert (await server.next(_frames.DATA)).payload == message(b"q")
    server.send(reply(sent.stream, b"answer"))
    assert await task == b"answer"


async def test_link_announces_no_table_of_headers_and_acknowledges_settings(play: Play) -> None:
    """So a block of headers always means the same."""
    task = call(play)
    server = await play.server()
    first = await server.next(_frames.SETTINGS)
    assert _frames.read_settings(first.payload)[_frames.HEADER_TABLE_SIZE] == 0
    assert (await server.next(_frames.SETTINGS)).flags == _frames.ACK
    server.send(reply(1, b""))
    assert await task == b""


@pytest.mark.parametrize("flags", [0, _frames.PADDED, _frames.PADDED | _frames.PRIORITY])
async def test_headers_padded_or_continued_are_read(play: Play, flags: int) -> None:
    """Padding and priority are left out, and headers go on in further frames."""
    task = call(play)
    server = await play.server()
    stream, _ = await server.request()
    whole = block(OK)
    parts = [whole[:3], whole[3:5], whole[5:]]
    first = parts[0]
    if flags & _frames.PRIORITY:
        first = bytes(5) + first
    if flags & _frames.PADDED:
        first = b"\2" + first + b"\0\0"
    server.send(
        frame(_frames.HEADERS, flags, stream, first),
        frame(_frames.CONTINUATION, 0, stream, parts[1]),
        frame(_frames.CONTINUATION, _frames.END_HEADERS, stream, parts[2]),
        frame(_frames.DATA, _frames.PADDED, stream, b"\4" + message(b"padded") + bytes(4)),
        headers(stream, DONE, TRAILERS),
    )
    assert await task == b"padded"


async def test_message_in_pieces_is_joined(play: Play) -> None:
    """A message may come in any number of frames, and those in any number of bytes."""
    task = call(play)
    server = await play.server()
    stream, _ = await server.request()
    content = message(b"ab" * 100)
    out = headers(stream, OK) + b"".join(data(stream, content[n : n + 7]) for n in range(0, 205, 7))
    for byte in out + headers(stream, DONE, TRAILERS):
        server.send(bytes([byte]))
    assert await task == b"ab" * 100


@pytest.mark.parametrize("of_stream", [True, False])
async def test_request_larger_than_a_window_waits_for_an_update(
    play: Play, *, of_stream: bool
) -> None:
    """No more is sent than either window allows, in frames that are not too large."""
    window = 10 if of_stream else _frames.WINDOW
    first = settings({_frames.INITIAL_WINDOW_SIZE: 10 if of_stream else 1 << 20})
    warm = call(play)
    server = await play.server(first)
    stream, _ = await server.request()
    server.send(reply(stream, b""))
    await warm
    if not of_stream:
        window -= len(message(b"q"))
    request = bytes(range(256)) * 300
    task = call(play, request)
    stream = (await server.next(_frames.HEADERS)).stream
    received = b""
    while len(received) < window:
        part = await server.next(_frames.DATA)
        assert len(part.payload) <= _frames.SIZE
        received += part.payload
    assert len(received) == window
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.05):
            await server.next(_frames.DATA)
    server.send(_frames.window_update(stream if of_stream else 0, 1 << 20))
    if of_stream:
        server.send(_frames.window_update(0, 1 << 20))
    while True:
        part = await server.next(_frames.DATA)
        received += part.payload
        if part.flags & _frames.END_STREAM:
            break
    assert received == message(request)
    server.send(reply(stream, b"all"))
    assert await task == b"all"


async def test_settings_in_the_middle_change_windows_and_frame_sizes(play: Play) -> None:
    """A new first window counts for streams that are open, also downwards."""
    task = call(play, bytes(100_000))
    server = await play.server(settings({_frames.INITIAL_WINDOW_SIZE: 1 << 20}))
    stream = (await server.next(_frames.HEADERS)).stream
    received = 0
    while received < _frames.WINDOW:
        received += len((await server.next(_frames.DATA)).payload)
    server.send(
        settings({_frames.INITIAL_WINDOW_SIZE: 70_000, _frames.MAX_FRAME_SIZE: 1 << 20}),
        _frames.window_update(0, 1 << 20),
    )
    part = await server.next(_frames.DATA)
    assert len(part.payload) == 70_000 - _frames.WINDOW
    server.send(_frames.window_update(stream, 1 << 20))
    part = await server.next(_frames.DATA)
    assert len(part.payload) == 100_005 - 70_000 > _frames.SIZE
    server.send(reply(stream, b""))
    await task


async def test_reply_larger_than_the_first_window_is_read(play: Play) -> None:
    """We announce a large window at once, of streams and of the link."""
    task = call(play)
    server = await play.server()
    assert _frames.number((await server.next(_frames.WINDOW_UPDATE)).payload) > 1 << 29
    stream, _ = await server.request()
    content = message(bytes(1 << 20))
    frames = [data(stream, content[n : n + 16_000]) for n in range(0, len(content), 16_000)]
    server.send(headers(stream, OK), *frames, headers(stream, DONE, TRAILERS))
    assert await task == bytes(1 << 20)


async def test_more_streams_than_allowed_are_refused_unsent(play: Play) -> None:
    """Such a call was certainly not carried out."""
    first = call(play)
    server = await play.server(settings({_frames.MAX_CONCURRENT_STREAMS: 1}))
    stream, _ = await server.request()
    server.send(frame(_frames.PING, 0, 0, bytes(8)))
    await server.next(_frames.PING)  # so the settings are known
    assert (await failure(call(play))).refused
    server.send(reply(stream, b"1"))
    assert await first == b"1"
    second = call(play)
    stream, _ = await server.request()
    server.send(reply(stream, b"2"))
    assert await second == b"2"


async def test_ping_is_answered_and_acknowledgements_are_not(play: Play) -> None:
    """A ping is sent back with its content."""
    task = call(play)
    server = await play.server()
    stream, _ = await server.request()
    server.send(frame(_frames.PING, _frames.ACK, 0, b"12345678"))
    server.send(frame(_frames.PING, 0, 0, b"abcdefgh"))
    ping = await server.next(_frames.PING)
    assert (ping.flags, ping.payload) == (_frames.ACK, b"abcdefgh")
    server.send(reply(stream, b""))
    await task


async def test_goaway_refuses_later_streams_and_lets_earlier_ones_end(play: Play) -> None:
    """What is above the last stream was certainly not carried out; the next call connects anew."""
    early, late = call(play), call(play)
    server = await play.server()
    first, _ = await server.request()
    second, _ = await server.request()
    server.send(frame(_frames.GOAWAY, 0, 0, first.to_bytes(4, "big") + bytes(4)))
    assert (await failure(late)).refused
    assert second > first
    server.send(reply(first, b"early"))
    assert await early == b"early"
    task = call(play)
    server = await play.server()
    stream, _ = await server.request()
    server.send(reply(stream, b"anew"))
    assert await task == b"anew"


@pytest.mark.parametrize(("code", "refused"), [(_frames.REFUSED_STREAM, True), (2, False)])
async def test_stream_that_is_reset_fails_alone(play: Play, code: int, *, refused: bool) -> None:
    """Only a stream that was refused was certainly not carried out."""
    one, other = call(play), call(play)
    server = await play.server()
    first, _ = await server.request()
    second, _ = await server.request()
    server.send(_frames.reset(first, code))
    assert (await failure(one)).refused is refused
    server.send(reply(second, b"other"))
    assert await other == b"other"


@pytest.mark.parametrize(
    ("pairs", "text", "refused"),
    [
        ([("grpc-status", "14"), ("grpc-message", "50%25 %C3%A9tcd")], "50% étcd", False),
        ([("grpc-status", "9"), ("grpc-message", "no")], "no", True),
        ([("grpc-status", "14"), ("grpc-message", "etcdserver: no leader")], "no leader", True),
        ([("grpc-status", "x")], "status -1", False),
        ([(":status", "404")], "HTTP 404", False),
    ],
)
async def test_reply_without_a_message_is_the_error_that_its_status_says(
    play: Play, pairs: list[tuple[str, str]], text: str, *, refused: bool
) -> None:
    """A status of another number than 0 may come at once, in the only headers."""
    task = call(play)
    server = await play.server()
    stream, _ = await server.request()
    rest = pairs if pairs[0][0] == ":status" else [*OK, *pairs]
    server.send(headers(stream, rest, TRAILERS))
    error = await failure(task)
    assert text in str(error)
    assert error.refused is refused


_GARBAGE: dict[str, Callable[[int], bytes]] = {
    "no frame": lambda _: b"HTTP/1.1 400 Bad Request\r\n\r\n" * 3,
    "a frame too large": lambda stream: (
        (1 << 20).to_bytes(3, "big") + bytes([0, 0, 0, 0, 0, stream])
    ),
    "headers that are none": lambda stream: frame(1, 4, stream, b"\xff\xff\xff\xff\xff\xff"),
    "a table that was forbidden": lambda stream: frame(1, 4, stream, b"\x3f\xe1\x1f\xbe"),
    "other frames between headers": lambda stream: frame(1, 0, stream, b"") + data(stream, b""),
    "headers that go on only": lambda stream: frame(9, 4, stream, b""),
    "headers without an end": lambda stream: (
        frame(1, 0, stream, b"") + frame(9, 0, stream, bytes(16_000)) * 5
    ),
    "a compressed message": lambda stream: headers(stream, OK) + data(stream, b"\1\0\0\0\1x"),
    "a message too long": lambda stream: headers(stream, OK) + data(stream, b"\0\x7f\0\0\0x"),
    "more padding than bytes": lambda stream: frame(0, 8, stream, b"\x09x"),
    "half a setting": lambda _: frame(4, 0, 0, b"\0\1\0"),
    "a window that cannot be": lambda _: settings({_frames.INITIAL_WINDOW_SIZE: 1 << 31}),
    "a frame size that cannot be": lambda _: settings({_frames.MAX_FRAME_SIZE: 100}),
    "windows without an end": lambda _: _frames.window_update(0, (1 << 31) - 1) * 2,
    "a reset without a code": lambda stream: frame(3, 0, stream, b""),
}


@pytest.mark.parametrize("what", _GARBAGE)
async def test_garbage_ends_the_link_and_the_call_is_unsure(play: Play, what: str) -> None:
    """Whatever a server sends, a call fails; and the next one has another link."""
    task = call(play)
    server = await play.server()
    stream, _ = await server.request()
    server.send(_GARBAGE[what](stream))
    assert not (await failure(task)).refused
    task = call(play)
    server = await play.server()
    stream, _ = await server.request()
    server.send(reply(stream, b"anew"))
    assert await task == b"anew"


@pytest.mark.parametrize("half", [True, False])
async def test_link_that_the_server_closes_fails_its_calls(play: Play, *, half: bool) -> None:
    """A call without a reply may have been carried out."""
    task = call(play)
    server = await play.server()
    await server.request()
    if half:
        server._writer.write_eof()
    else:
        server.close()
    assert not (await failure(task)).refused


async def test_call_without_a_reply_ends_in_time_and_is_cancelled_at_the_server(
    play: Play,
) -> None:
    """The server is told that nobody waits any more."""
    task = call(play, seconds=0.05)
    server = await play.server()
    stream, _ = await server.request()
    error = await failure(task)
    assert not error.refused
    assert "no answer" in str(error)
    reset = await server.next(_frames.RST_STREAM)
    assert (reset.stream, _frames.number(reset.payload)) == (stream, _frames.CANCEL)
    server.send(reply(stream, b"late"))
    task = call(play)
    stream, _ = await server.request()
    server.send(reply(stream, b"next"))
    assert await task == b"next"


async def test_call_to_a_closed_port_was_certainly_not_sent() -> None:
    """Nothing was sent, and the error says where to look."""
    connection = Connection("127.0.0.1:1", Settings(("127.0.0.1:1",)))
    error = await failure(asyncio.create_task(connection.call("KV/Txn", b"", 5)))
    assert error.refused
    assert "see host and port" in error.advice
    await connection.aclose()


async def test_calls_that_wait_for_the_same_link_each_end_in_their_time() -> None:
    """Whoever gives up first cancels nothing for the others."""
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        address = f"127.0.0.1:{full.getsockname()[1]}"
        others = [socket.socket() for _ in range(3)]
        for other in others:  # so that the next connection is not taken
            other.setblocking(False)
            other.connect_ex(full.getsockname())
        connection = Connection(address, Settings((address,)))
        waits = [
            asyncio.create_task(connection.call("KV/Txn", b"", seconds)) for seconds in (0.05, 0.1)
        ]
        for wait in waits:
            assert (await failure(wait)).refused
        wait = asyncio.create_task(connection.call("KV/Txn", b"", 20))
        await asyncio.sleep(0)
        await connection.aclose()
        assert (await failure(wait)).refused
        for other in others:
            other.close()


async def test_stream_carries_messages_both_ways_until_it_is_left(play: Play) -> None:
    """A stream whose connection is left fails its reader."""

    async def read() -> list[bytes]:
        found = list[bytes]()
        async with play.connection.stream("Watch/Watch", 5, (("token", "t"),)) as stream:
            stream.write(b"one")
            stream.write(b"two")
            with contextlib.suppress(CallError):
                while True:
                    found.append(await stream.read())
            with pytest.raises(CallError):
                stream.write(b"three")
        return found

    task = asyncio.create_task(read())
    server = await play.server()
    opened = await server.next(_frames.HEADERS)
    assert ("token", "t") in [(str(n), str(v)) for n, v in hpack.Decoder().decode(opened.payload)]
    sent = (await server.next(_frames.DATA)).payload
    while len(sent) < 16:
        sent += (await server.next(_frames.DATA)).payload
    assert sent == message(b"one") + message(b"two")
    both = message(b"a") + message(b"b")
    server.send(headers(opened.stream, OK), data(opened.stream, both))
    while play.connection._streams and not task.done():
        await asyncio.sleep(0)
        if any(not stream._messages for stream in play.connection._streams):
            break
    server.send(data(opened.stream, message(b"c")))
    await asyncio.sleep(0.05)
    play.connection.leave()
    assert await task == [b"a", b"b", b"c"]
    assert (await server.next(_frames.RST_STREAM)).stream == opened.stream


async def test_stream_that_the_server_ends_fails_with_its_status(play: Play) -> None:
    """The reason is that of the status."""

    async def read() -> None:
        async with play.connection.stream("Watch/Watch", 5) as stream:
            await stream.read()

    task = asyncio.create_task(read())
    server = await play.server()
    opened = await server.next(_frames.HEADERS)
    status = [("grpc-status", "14"), ("grpc-message", "etcdserver: no leader")]
    server.send(headers(opened.stream, [*OK, *status], TRAILERS))
    assert "no leader" in str(await failure(task))
