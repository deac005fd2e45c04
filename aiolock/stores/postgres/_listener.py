"""The listening connection: it receives pushes, and shows others that its client is alive."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import psycopg

from aiolock.stores.postgres import _server
from aiolock.stores.postgres._errors import failed
from aiolock.stores.postgres._link import Connection, Link
from aiolock.stores.postgres._settings import OWN, Settings

log = logging.getLogger("aiolock")

_GOODBYE: Final = 1.0
"""Seconds for a pooled session to be cleared, when its connection is closed."""


class Listener:
    """Listens for one client, on another connection when this one breaks."""

    def __init__(
        self,
        settings: Settings,
        client: str,
        *,
        command: Callable[[], Awaitable[object]],
        on_push: Callable[[str], None],
        on_lost: Callable[[Exception], None],
        on_failing: Callable[[Exception], None],
        on_restored: Callable[[], None],
    ) -> None:
        """``command`` runs any command on the other connection of the client. ``on_push`` gets the
        pushes; ``on_lost`` the reason why there is no connection, ``on_failing`` why there is still
        none; ``on_restored`` is called when there is another one, and pushes may be lost.
        """
        self._settings = settings
        self._client = client
        self._command = command
        self._on_push = on_push
        self._on_lost = on_lost
        self._on_restored = on_restored
        self._loop = asyncio.get_running_loop()
        self._link = Link(
            settings.listens,
            greet=self._greet,
            on_up=self._on_up,
            on_down=self._on_down,
            on_failing=on_failing,
        )
        self._connection: Connection | None = None
        self._socket = -1
        self._opened = False
        self._ours = True
        """Whether the session is certainly ours, and ends with the connection."""
        self._connections = 0
        self.heartbeat = asyncio.Event()
        """Set when a heartbeat of this client to itself has arrived."""
        self.heartbeat_at = self._loop.time()
        """The time when it last arrived, or when listening began."""

    async def open(self) -> None:
        """Listen; raises what psycopg raises."""
        await self._link.open()
        self._opened = True

    async def _greet(self, connection: Connection) -> None:
        # Others check whether a connection holds this key. Each connection has a new one, so that
        # it need not wait until the server notices that the last one is gone.
        self._connections += 1
        key = self._connections << 40 | secrets.randbits(40)
        who = (self._client, key, socket.gethostname(), os.getpid())
        self._settings.listens_at.connected(connection.info)
        connection.prepare_threshold = None
        self._ours = await _server.is_ours(connection)
        if not self._ours:
            await self._check_kept(connection)
        try:
            await self._listen(connection, who)
        except Exception:
            await self._clear(connection)
            raise

    async def _check_kept(self, connection: Connection) -> None:
        """Raise `Failed` if a pooler shares our session with others: LISTEN would stay in it."""
        if self._settings.listens == self._settings.commands:
            # There may be no room in the pool for a third connection of this client.
            await _server.check_kept(connection, self._command)
        else:
            await _server.check_kept_beside(connection, self._settings.listens)

    async def _clear(self, connection: Connection) -> None:
        """Leave nothing in the session, if a pooler might keep it when the connection has ended."""
        if not self._ours:
            with contextlib.suppress(psycopg.Error, TimeoutError):
                async with asyncio.timeout(_GOODBYE):
                    await connection.execute("DISCARD ALL")

    async def _listen(self, connection: Connection, who: Sequence[object]) -> None:
        await connection.execute(f"SET statement_timeout = 3000; {OWN}".encode())
        await _server.check_writes(connection)
        await connection.execute("SELECT aiolock.hello(%s, %s, %s, %s)", who)
        await connection.execute(f'LISTEN "aiolock:{self._client}"'.encode())

    def _on_up(self, connection: Connection) -> None:
        self._connection = connection
        self._socket = connection.pgconn.socket
        self.heartbeat_at = self._loop.time()
        self._loop.add_reader(self._socket, self._readable)
        self._link.proved()
        if self._opened:
            self._on_restored()
        self._readable()  # pushes may have come while it was greeted

    def _on_down(self, reason: Exception) -> None:
        if self._connection is not None:
            self._connection = None
            self._loop.remove_reader(self._socket)
        self._on_lost(reason)

    def drop(self, reason: Exception) -> None:
        """Listen on another connection."""
        self._link.drop(reason)

    def _readable(self) -> None:
        connection = self._connection
        if connection is None:
            return
        try:
            connection.pgconn.consume_input()
            notified: list[bytes] = []
            while (each := connection.pgconn.notifies()) is not None:
                notified.append(each.extra)
        except psycopg.Error as error:
            self._link.drop(failed(error))
            return
        for text in notified:
            if text == b"beat":
                self.heartbeat_at = self._loop.time()
                self.heartbeat.set()
                continue
            try:
                self._on_push(text.decode("ascii"))
            except ValueError:
                log.warning("aiolock: not a push of this version's: %.200r", text)

    async def aclose(self) -> None:
        """Listen no more. Idempotent."""
        if (connection := self._connection) is not None:
            self._connection = None
            self._loop.remove_reader(self._socket)
            await self._clear(connection)
        await self._link.aclose()
