"""A connection that is kept up: it is made again whenever it breaks."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
import weakref
from collections.abc import Awaitable, Callable
from typing import Any, Final

import psycopg
from psycopg.conninfo import conninfo_to_dict

from aiolock.backoff import Backoff
from aiolock.stores.postgres._errors import Failed, shown_of

Connection = psycopg.AsyncConnection[Any]

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_GREETING: Final = 4.0
"""Seconds for a connection to be greeted, once it is made."""


class Link:
    """One connection to the server, replaced when it breaks.

    psycopg connects (hosts, TLS, authentication), and ``greet`` prepares the connection. Then
    ``on_up`` has it, until ``on_down`` is called with the reason why it is lost; then
    ``on_failing`` with the reason each time that no other can be made.
    """

    def __init__(
        self,
        conninfo: str,
        *,
        greet: Callable[[Connection], Awaitable[None]],
        on_up: Callable[[Connection], None],
        on_down: Callable[[Exception], None],
        on_failing: Callable[[Exception], None],
    ) -> None:
        self._conninfo = conninfo
        self._shown = shown_of(conninfo)
        known = conninfo_to_dict(conninfo)
        hosts = str(known.get("host") or known.get("hostaddr") or "").count(",") + 1
        # psycopg tries one host after the other: the server at the first may be gone.
        self._patience = _GREETING + hosts * float(known["connect_timeout"] or 0)
        self._greet = greet
        self._on_up = on_up
        self._on_down = on_down
        self._on_failing = on_failing
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True, at_once=True)
        self._closed = False
        self._redialling: asyncio.Task[None] | None = None
        self.connection: Connection | None = None
        self.error: Exception = Failed("not connected")
        """The reason why the last connection failed."""
        self.made: Connection | None = None
        """The last connection that was made, from before it is greeted: a child closes its copy."""
        self.shared = False
        """Whether a child has what was being made when it was forked."""
        with _fork:
            _all.add(self)

    async def open(self) -> None:
        """Connect for the first time; raises what psycopg raises."""
        await self._dial_and_enter()
        if self._closed:
            raise Failed("closed while it was being connected")

    async def _dial_and_enter(self) -> None:
        connection = await self._dial()
        if self._closed:  # during the dialling
            await connection.close()
        else:
            self._enter(connection)

    def _enter(self, connection: Connection) -> None:
        self.connection = connection
        try:
            self._on_up(connection)
        except BaseException:  # the connection is lost already
            self.connection = None
            connection.pgconn.finish()
            raise

    async def _dial(self) -> Connection:
        connection: Connection | None = None
        try:
            async with asyncio.timeout(self._patience):
                connection = await self._make()
                await self._greet(connection)
        except TimeoutError:
            await _close(connection)
            raise Failed(f"no connection within {self._patience:g} s") from None
        except BaseException as error:
            await _close(connection)
            if isinstance(error, Exception):
                raise self._shown.error(error)  # noqa: B904  # it is this error
            raise
        return connection

    async def _make(self) -> Connection:
        """A connection of which no child has a copy.

        A child forked while psycopg connects cannot close a socket that only psycopg has. Such a
        connection is closed, which ends it for the child as well, and another one is made.
        """
        while True:
            self.shared = False
            connection = await psycopg.AsyncConnection.connect(self._conninfo, autocommit=True)
            with _fork:
                self.made = connection
                shared = self.shared
            if not shared:
                return connection
            await connection.close()

    def proved(self) -> None:
        """The server answered properly, so after the next break it is dialled without delay."""
        self._backoff.reset()

    def drop(self, reason: Exception) -> None:
        """Give this connection up and make another."""
        connection, self.connection = self.connection, None
        if connection is not None:
            self.error = reason
            self._on_down(reason)
            connection.pgconn.finish()
        if self._redialling is None and not self._closed:
            self._redialling = asyncio.create_task(self._redial(), name="aiolock redial")

    async def _redial(self) -> None:
        try:
            while self.connection is None and not self._closed:
                await asyncio.sleep(self._backoff.pause())
                try:
                    await self._dial_and_enter()
                except Exception as error:  # noqa: BLE001  # whatever it is, dial again
                    self.error = error
                    self._on_failing(error)
        finally:
            self._redialling = None

    async def aclose(self) -> None:
        """Drop the connection and make no more. Idempotent."""
        self._closed = True
        connection, self.connection = self.connection, None
        if connection is not None:
            self._on_down(Failed("the client was closed"))
            await connection.close()
        if self._redialling is not None:
            self._redialling.cancel()
            await asyncio.wait([self._redialling])


async def _close(connection: Connection | None) -> None:
    if connection is not None:
        await connection.close()


_all: Final[weakref.WeakSet[Link]] = weakref.WeakSet()
_fork: Final = threading.RLock()
"""Held during a fork; it may be made by a signal handler, wherever this thread is."""


def _before_fork() -> None:
    _fork.acquire()


def _after_fork() -> None:
    for link in _all:
        link.shared = True
    _fork.release()


def _in_child() -> None:
    """Close the child's copies of the parent's connections, without a message to the server.

    Otherwise they would outlive the parent, whose waiters would count as alive. Their file numbers
    stay taken, so that no other file gets one that is still in use.
    """
    _fork.release()
    nothing = os.open(os.devnull, os.O_RDWR)
    for link in _all:
        if link.made is not None:
            with contextlib.suppress(psycopg.Error, OSError):  # it has no socket just now
                os.dup2(nothing, link.made.pgconn.socket, inheritable=False)
    os.close(nothing)


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
