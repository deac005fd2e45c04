"""A TCP proxy in front of a server, that breaks links on purpose.

It works on bare non-blocking sockets with the event loop's `add_reader`, without tasks, transports
or buffers of the loop. So an effect that a test asks for is there when the call returns.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from tests.support.servers import hold_port

_CHUNK = 1 << 16
_HELD_MAX = 1 << 20
_SUBSCRIBE = re.compile(
    rb"\*\d+\r\n\$\d+\r\n[SP]?SUBSCRIBE\r\n|LISTEN \""  # Redis, PostgreSQL
    # MySQL: the lock that shows by which connection a client is rung
    rb"|SELECT GET_LOCK\('aiolock:[\w-]{1,48}:bell'",
    re.IGNORECASE,
)
_SUBSCRIBE_SIZE = 100  # more than the pattern's longest match


@dataclass
class _Trap:
    """Waits for `left` more bytes or chunks of one link: `link`, else the first that has any."""

    left: int
    link: Link | None


# The data that one end has sent, b"" at the end of its stream, or None to cut the link.
_Piece = bytes | None
# Decides which part of a chunk goes on to the other end, and how many seconds later.
_Screen = Callable[[bytes], tuple[list[_Piece], float]]


class _Flow:
    """One direction of a link: reads `source`, holds back data that must wait, writes `sink`."""

    def __init__(
        self, link: Link, source: socket.socket, sink: socket.socket, screen: _Screen
    ) -> None:
        self._link = link
        self._source = source
        self._sink = sink
        self._screen = screen
        self._loop = asyncio.get_running_loop()
        # Data that waits to be written, and when it is due.
        self._queue: deque[tuple[float, _Piece]] = deque()
        self._held = 0
        self._timer: asyncio.TimerHandle | None = None
        self._flowing = False
        self._at_end = False

    @property
    def done(self) -> bool:
        return self._at_end and not self._queue

    def resume(self) -> None:
        self._flowing = True
        self._write()

    def pause(self) -> None:
        self._flowing = False
        self._loop.remove_reader(self._source)
        self._loop.remove_writer(self._sink)
        if self._timer is not None:
            self._timer.cancel()

    def _read(self) -> None:
        try:
            chunk = self._source.recv(_CHUNK)
        except BlockingIOError:
            return
        except OSError:
            self._link._lost(self)
            return
        self._at_end = not chunk
        pieces, delay = self._screen(chunk)
        for piece in pieces:
            self._queue.append((self._loop.time() + delay, piece))
            self._held += len(piece or b"")
        self._write()

    def _write(self) -> None:
        self._loop.remove_writer(self._sink)
        if self._timer is not None:
            self._timer.cancel()
        while self._queue and self._write_next():
            pass
        if not self._flowing:
            return  # the link has been cut meanwhile
        if not self._at_end and self._held < _HELD_MAX:
            self._loop.add_reader(self._source, self._read)
        else:
            self._loop.remove_reader(self._source)
        if self.done:
            self._link._end()

    def _write_next(self) -> bool:
        """Write the next data; if that cannot be done now, arrange for it and return False."""
        due, piece = self._queue[0]
        if due > self._loop.time():
            self._timer = self._loop.call_at(due, self._write)
            return False
        if piece is None:
            self._link._cut_client()
            return False
        try:
            if not piece:
                self._sink.shutdown(socket.SHUT_WR)
            sent = self._sink.send(piece) if piece else 0
        except BlockingIOError:
            self._loop.add_writer(self._sink, self._write)
            return False
        except OSError:
            self._link.cut()
            return False
        self._held -= sent
        self._queue.popleft()
        if sent < len(piece):
            self._queue.appendleft((due, piece[sent:]))
        return True


class Link:
    """One client's connection through the proxy, which a test may cut or deafen on its own."""

    def __init__(self, proxy: Proxy, client: socket.socket, server: socket.socket | None) -> None:
        self.is_subscription = False
        self._proxy = proxy
        self._ends = [client] if server is None else [client, server]
        self._flows: list[_Flow] = []
        if server is not None:
            self._flows = [
                _Flow(self, client, server, self._screen_request),
                _Flow(self, server, client, self._screen_reply),
            ]
        self._dead = False
        self._last = b""
        self._withheld: bytearray | None = None
        self.was_reset = False
        """Whether the client has ended it with a reset (RST)."""

    def withhold(self) -> None:
        """Keep the client's data from the server from now on, until `deliver`.

        This goes on after the client has gone: the data stands for data in a buffer on the way.
        """
        self._withheld = bytearray()

    def cut_client(self) -> None:
        """Reset the link towards the client alone; `deliver` passes on the withheld data."""
        assert self._withheld is not None
        if self._is_open and not self._dead:
            _reset_on_close(self._ends[0])
            self._leave_server()

    @property
    def withheld(self) -> int:
        """How many bytes are withheld."""
        return len(self._withheld or b"")

    async def deliver(self, most: int | None = None) -> bytes:
        """Pass on the withheld data of a client that has gone; return the server's answer to it.

        With ``most``, pass on only so many bytes, and drop the others.
        """
        assert not self._is_open, "the client is still there"
        assert self._withheld is not None
        server, loop = self._ends[1], asyncio.get_running_loop()
        await loop.sock_sendall(server, self._withheld[:most])
        server.shutdown(socket.SHUT_WR)
        answers = b""
        while chunk := await loop.sock_recv(server, _CHUNK):
            answers += chunk
        return answers

    def forget(self) -> None:
        """Close the server's end of a link whose client has gone."""
        self._ends[1].close()
        self._proxy.late.remove(self)

    def cut(self) -> None:
        """Reset the link now, towards both ends (RST); held up data is lost."""
        if self._is_open:
            for end in self._ends:
                _reset_on_close(end)
            self._close()

    def deaf(self, *, drop: bool = False) -> None:
        """Leave the link open but let nothing pass, until `hear`; with `drop`, never again."""
        self._dead = self._dead or drop
        if self._is_open:
            for flow in self._flows:
                flow.pause()

    def hear(self) -> None:
        """Let the link go on after `deaf`, with the held up data unless that is to be dropped."""
        for flow in self._flows:
            if self._is_open and not self._dead:
                flow.resume()

    @property
    def _is_open(self) -> bool:
        return self in self._proxy.links

    def _cut_client(self) -> None:
        # The server sees an ordinary end: a reset could overtake data that it has not read yet.
        _reset_on_close(self._ends[0])
        self._close()

    def _lost(self, flow: _Flow) -> None:
        """One end is gone, with a reset."""
        self.was_reset = self.was_reset or flow is self._flows[0]
        if self._withheld is not None and self.was_reset:
            self._leave_server()
        else:
            self.cut()

    def _leave_server(self) -> None:
        """The client is gone, and the server is not to know before it has all that was sent."""
        for flow in self._flows:
            flow.pause()
        self._ends[0].close()
        self._proxy.links.remove(self)
        self._proxy.late.append(self)

    def _close(self) -> None:
        for flow in self._flows:
            flow.pause()
        for end in self._ends:
            end.close()
        self._proxy.links.remove(self)

    def _end(self) -> None:
        if all(flow.done for flow in self._flows):
            self._close()

    def _screen_request(self, chunk: bytes) -> tuple[list[_Piece], float]:
        proxy = self._proxy
        proxy.bytes_to_server += len(chunk)
        if proxy.recording and chunk:
            proxy.requests.append(chunk)
        self._last = self._last[-_SUBSCRIBE_SIZE:] + chunk
        self.is_subscription = self.is_subscription or bool(_SUBSCRIBE.search(self._last))
        if self._withheld is not None:
            self._withheld += chunk
            if not chunk:
                self._leave_server()
            return [], 0.0
        pieces: list[_Piece] = [chunk]
        trap = proxy._cutting
        if chunk and trap is not None and trap.link in (None, self):
            trap.link, trap.left = self, trap.left - len(chunk)
            if trap.left <= 0:
                proxy._cutting = None
                pieces = [chunk[: len(chunk) + trap.left] or None, None]
        return pieces, proxy._delay_to_server

    def _screen_reply(self, chunk: bytes) -> tuple[list[_Piece], float]:
        proxy = self._proxy
        proxy.bytes_to_client += len(chunk)
        pieces: list[_Piece] = [chunk]
        trap = proxy._swallowing
        if chunk and trap is not None and trap.link in (None, self):
            trap.link, trap.left = self, trap.left - 1
            pieces = []
            if trap.left == 0:
                proxy._swallowing = None
                pieces = [None]
        return pieces, proxy._delay_to_client


def _reset_on_close(end: socket.socket) -> None:
    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


class Proxy:
    """A TCP proxy on a free port of 127.0.0.1, in front of the server at `host` and `port`.

    Used with `async with`. `links` are the open ones in the order they came, `late` those whose
    client has gone while what it sent was withheld from the server. The counters are of
    all links since the start: `connections`, and the bytes read from each side. `requests` are the
    chunks that clients sent while `recording` is true.
    """

    def __init__(self, port: int, host: str = "127.0.0.1", *, recording: bool = False) -> None:
        self.links: list[Link] = []
        self.late: list[Link] = []
        self.connections = 0
        self.bytes_to_server = 0
        self.bytes_to_client = 0
        self.recording = recording
        self.requests: list[bytes] = []
        self._target = host, port
        self._listener: socket.socket | None = None
        self._deaf = False
        self._drop = False
        self._delay_to_server = 0.0
        self._delay_to_client = 0.0
        self._cutting: _Trap | None = None
        self._swallowing: _Trap | None = None

    async def __aenter__(self) -> Self:
        self._loop = asyncio.get_running_loop()
        self._holder = hold_port()
        self.port: int = self._holder.getsockname()[1]
        self.accept()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.refuse()
        self.cut()
        for link in self.late:
            link._ends[1].close()
        self._holder.close()

    @property
    def url(self) -> str:
        """The URL of the proxy, for a Redis server without a password."""
        return f"redis://127.0.0.1:{self.port}/0"

    def accept(self) -> None:
        """Take new connections (again, after `refuse`), at the same port."""
        if self._listener is None:
            self._listener = socket.create_server(("127.0.0.1", self.port), backlog=512)
            self._listener.setblocking(False)
            self._loop.add_reader(self._listener, self._take)

    def lead_to(self, port: int) -> None:
        """Have new connections go to another server; those there are stay where they are."""
        self._take()
        self._target = self._target[0], port

    def refuse(self) -> None:
        """Have new connections refused until `accept`; the links go on."""
        if self._listener is not None:
            self._take()
            self._loop.remove_reader(self._listener)
            self._listener.close()
            self._listener = None

    def cut(self) -> None:
        """Reset all links now (RST); new connections are taken as before."""
        self._take()
        for link in list(self.links):
            link.cut()

    def deaf(self, *, drop: bool = False) -> None:
        """Leave all links open but let nothing pass, on new ones neither, until `hear`.

        Without `drop`, what is sent meanwhile is held up and passes later. With it, the links are
        dead for good, as if each end had lost the other without a word; links made after `hear` are
        not, while those made before it never come to the server's notice.
        """
        self._take()
        self._deaf, self._drop = True, drop
        for link in self.links:
            link.deaf(drop=drop)

    def hear(self) -> None:
        """Let all links go on, except those that were dropped."""
        self._take()
        self._deaf = self._drop = False
        for link in list(self.links):
            link.hear()

    def delay(self, *, to_server: float = 0.0, to_client: float = 0.0) -> None:
        """Hold up, by so many seconds, all data from now on in each direction."""
        self._delay_to_server = to_server
        self._delay_to_client = to_client

    def swallow_replies(self, chunks: int, link: Link | None = None) -> None:
        """Drop the next so many chunks from the server on one link, then reset it to the client.

        The link is `link`, else the first on which one comes.
        """
        self._swallowing = _Trap(chunks, link)

    def cut_after(self, size: int, link: Link | None = None) -> None:
        """Let just so many more bytes pass to the server on one link, then reset it to the client.

        The link is `link`, else the first on which any come.
        """
        self._cutting = _Trap(size, link)

    def _take(self) -> None:
        while self._listener is not None:
            try:
                client, _ = self._listener.accept()
            except BlockingIOError:
                return
            self.connections += 1
            server = None
            if not self._drop:
                try:
                    server = socket.create_connection(self._target, timeout=5)
                except OSError:
                    _reset_on_close(client)
                    client.close()
                    continue
            for end in (client, server):
                if end is not None:
                    end.setblocking(False)
                    end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            link = Link(self, client, server)
            self.links.append(link)
            if self._deaf:
                link.deaf(drop=self._drop)
            else:
                link.hear()
