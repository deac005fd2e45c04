"""The servers of a cluster: one of them is used at a time, and left when it does not answer."""

from __future__ import annotations

import asyncio
from typing import Final

from aiolock.backoff import Backoff
from aiolock.stores.etcd._connection import Connection, Metadata
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._login import Login
from aiolock.stores.etcd._settings import Settings

TRY: Final = 1.5
"""Seconds after which a server without an answer is left for another one."""
PATIENCE: Final = 4.0
"""Seconds after which the cluster is given up. An operation that waits for another one first, and
then for itself, has waited for 8; 9.5 is the most that is allowed."""
_PAUSES: Final = 0.02, 0.3
"""Seconds between two tries, the first and the longest."""


class Servers:
    """The cluster as one client uses it.

    All that a client does goes through the same server: calls and streams leave it together, since
    one that cannot reach the others still takes calls, and has nothing to report.
    """

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._loop = asyncio.get_running_loop()
        self._login = Login(settings)
        self._left = dict[Connection, asyncio.Task[None]]()
        """Those that were left, and the tasks that close them after what is under way."""
        self._at = 0
        self.count = len(settings.addresses)
        self.connection = self._connect()

    def _connect(self) -> Connection:
        return Connection(self._settings.addresses[self._at % self.count], self._settings)

    def leave(self, connection: Connection) -> None:
        """Go on with the next server, if this connection is still the one in use."""
        if connection is self.connection:
            self._at += 1
            self.connection = self._connect()
            connection.leave()
            closing = self._loop.create_task(connection.aclose(TRY), name="aiolock etcd close")
            self._left[connection] = closing
            closing.add_done_callback(lambda _: self._left.pop(connection))

    async def call(
        self,
        method: str,
        request: bytes,
        *,
        until: float,
        repeatable: bool = True,
        opening: bool = False,
    ) -> bytes:
        """The reply to a request; `CallError` if no server has answered by then.

        One that is not ``repeatable`` is sent again only if it certainly was not carried out. When
        ``opening``, each server is tried once if none of them can be connected to.
        """
        backoff, hopeless = Backoff(*_PAUSES, jitter=True), 0
        while True:
            connection = self.connection
            try:
                return await self._try(connection, method, request, until)
            except CallError as error:
                hopeless += error.misconfigured or (opening and error.refused)
                lasting = error.lasting or error.lease or hopeless >= self.count
                if lasting and not error.token:
                    raise
                if not error.token:
                    self.leave(connection)
                pause = 0.0 if error.token else backoff.pause()
                if not (error.refused or repeatable) or self._loop.time() + pause >= until:
                    raise
            await asyncio.sleep(pause)

    async def _try(
        self, connection: Connection, method: str, request: bytes, until: float
    ) -> bytes:
        seconds = max(min(TRY, until - self._loop.time()), 0.05)
        metadata = await self._login.metadata(connection, seconds)
        try:
            return await connection.call(method, request, seconds, metadata)
        except CallError as error:
            if error.token:
                self._login.forget(metadata)
            raise

    async def metadata(self, connection: Connection) -> Metadata:
        """What a stream has to carry."""
        return await self._login.metadata(connection, TRY)

    def forget_token(self, used: Metadata) -> None:
        """A stream was refused for its token."""
        self._login.forget(used)

    async def aclose(self) -> None:
        """End all connections."""
        left = list(self._left.items())
        for _, closing in left:
            closing.cancel()
        if left:
            await asyncio.wait([closing for _, closing in left])
        # A task that was cancelled before its first step has closed nothing.
        await asyncio.gather(*(each.aclose() for each in (self.connection, *dict(left))))
