"""Pushes: a connection that listens for them, and shows others that its client is alive."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable

import psycopg

from aiolock.stores.postgres._errors import failed
from aiolock.stores.postgres._link import Connection, Link
from aiolock.stores.postgres._settings import STAYS, Settings

log = logging.getLogger("aiolock")


class Ear:
    """Listens for one client, on another connection when this one breaks."""

    def __init__(
        self,
        settings: Settings,
        client: str,
        *,
        heard: Callable[[str], None],
        lost: Callable[[Exception], None],
        failing: Callable[[Exception], None],
        back: Callable[[], None],
    ) -> None:
        """``heard`` gets the pushes; ``lost`` the reason why there is no connection,
        ``failing`` why there is still none; ``back`` is called when there is another one, and
        pushes may be lost.
        """
        self._client = client
        self._heard = heard
        self._lost = lost
        self._back = back
        self._loop = asyncio.get_running_loop()
        self._link = Link(
            settings.listens, greet=self._greet, up=self._up, down=self._down, failing=failing
        )
        self._connection: Connection | None = None
        self._socket = -1
        self._opened = False
        self._connections = 0
        self.word = asyncio.Event()
        """Set when a word of this client to itself has come."""
        self.word_at = self._loop.time()
        """When it last came, or when this began to listen."""

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
        connection.prepare_threshold = None
        await connection.execute(f"SET statement_timeout = 3000; {STAYS}".encode())
        try:
            await connection.execute("SELECT aiolock.hello(%s, %s, %s, %s)", who)
        except psycopg.Error as error:
            why = failed(error)
            why.role = connection.info.user
            raise why from error
        await connection.execute(f'LISTEN "aiolock:{self._client}"'.encode())

    def _up(self, connection: Connection) -> None:
        self._connection = connection
        self._socket = connection.pgconn.socket
        self.word_at = self._loop.time()
        self._loop.add_reader(self._socket, self._readable)
        self._link.proved()
        if self._opened:
            self._back()
        self._readable()  # pushes may have come while it was greeted

    def _down(self, reason: Exception) -> None:
        if self._connection is not None:
            self._connection = None
            self._loop.remove_reader(self._socket)
        self._lost(reason)

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
                self.word_at = self._loop.time()
                self.word.set()
                continue
            try:
                self._heard(text.decode("ascii"))
            except ValueError:
                log.warning("aiolock: not a push of this version's: %.200r", text)

    async def aclose(self) -> None:
        """Listen no more. Idempotent."""
        await self._link.aclose()
