"""The notifier of a client: a datagram to it means that there are pushes to fetch.

It is a Unix socket beside the database. Where there are no such sockets, it is a UDP socket on the
loopback address, and the client writes down its port for the others.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Final

LONGEST_PATH: Final = 100
"""Bytes of a socket's path: Linux takes 107, macOS 103."""
_DESCRIPTORS: Final = Path("/proc/self/fd")
_LOCAL: Final = "127.0.0.1"
_SEVERAL: Final = 64


class Notifier:
    """The notifier of one client: its event loop listens; the code that made it closes it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._transport: asyncio.DatagramTransport | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        if sys.platform != "win32" and _is_reachable(path):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        else:
            self._socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket.settimeout(0)
        try:
            if self._socket.family == socket.AF_INET:
                self._socket.bind((_LOCAL, 0))
            else:
                with contextlib.suppress(FileNotFoundError):
                    path.unlink()
                with _reached(path) as where:
                    self._socket.bind(where)
                path.chmod(0o666)  # any user who may enter the directory may notify
        except BaseException:
            self._socket.close()
            raise

    @property
    def port(self) -> int:
        """The port of a UDP socket; 0 for a Unix socket."""
        is_local = self._socket.family == socket.AF_INET
        return int(self._socket.getsockname()[1]) if is_local else 0

    def is_gone(self) -> bool:
        """Whether its socket file was removed, so that no client can notify this one."""
        return not self.port and not self._path.exists()

    async def listen(self, notified: Callable[[], None]) -> None:
        """Call ``notified`` for each notification."""
        loop = asyncio.get_running_loop()
        if self.port:
            # This also works on the event loop of Windows, which has no `add_reader`.
            self._transport, _ = await loop.create_datagram_endpoint(
                lambda: _Datagrams(notified), sock=self._socket
            )
        else:
            loop.add_reader(self._socket, self._read, notified)
            self._loop = loop

    def _read(self, notified: Callable[[], None]) -> None:
        with contextlib.suppress(BlockingIOError):
            for _ in range(_SEVERAL):
                self._socket.recv(64)
        notified()

    def ignore(self) -> None:
        """Listen no more; called in the event loop that does. Idempotent."""
        if self._transport is not None:
            self._transport.close()
        if self._loop is not None:
            self._loop.remove_reader(self._socket)
        self._transport = self._loop = None

    def close(self) -> None:
        """Close the socket. Idempotent."""
        self._socket.close()

    def forget(self) -> None:
        """Close the child's copy of the parent's socket, without any effect on the parent."""
        with contextlib.suppress(OSError):
            os.close(self._socket.detach())


class _Datagrams(asyncio.DatagramProtocol):
    def __init__(self, notified: Callable[[], None]) -> None:
        self._notified = notified

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._notified()


def notify(path: Path, port: int) -> None:
    """Send a datagram to this path or port; if there is an unread one, that is enough."""
    # The socket is gone, or has unread datagrams already.
    with contextlib.suppress(FileNotFoundError, ConnectionRefusedError, BlockingIOError):
        if sys.platform == "win32" or port:
            _send(socket.AF_INET, (_LOCAL, port))
        else:
            with _reached(path) as where:
                _send(socket.AF_UNIX, where)


def _send(family: socket.AddressFamily, where: str | tuple[str, int]) -> None:
    with socket.socket(family, socket.SOCK_DGRAM) as caller:
        caller.settimeout(0)
        caller.sendto(b"!", where)


def _is_reachable(path: Path) -> bool:
    return len(os.fsencode(path)) <= LONGEST_PATH or _DESCRIPTORS.is_dir()


@contextlib.contextmanager
def _reached(path: Path) -> Generator[str]:
    """A path to it that is short enough for a socket: by an open directory, if need be."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        yield f"{_DESCRIPTORS}/{directory}/{path.name}"
    finally:
        os.close(directory)
