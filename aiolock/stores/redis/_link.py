"""A link that is kept up: dialled, and dialled again whenever it breaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool

from aiolock.stores.redis._sentinel import dial
from aiolock.stores.redis._wire import Wire

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Link:
    """One connection to the server, replaced when it breaks.

    ``received`` gets what the server sends; ``up`` is called when a new connection is ready to be
    written to, ``down`` when there is none any more, with the reason.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        received: Callable[[Any], None],
        up: Callable[[], None],
        down: Callable[[Exception], None],
    ) -> None:
        self._pool = pool
        self._received = received
        self._up = up
        self._down = down
        self._pause = 0.0
        self._closed = False
        self._redialling: asyncio.Task[None] | None = None
        self.wire: Wire | None = None
        self.error: Exception = ConnectionError("not connected")
        """Why there was no connection the last time that there was none."""

    async def open(self) -> None:
        """Connect for the first time; raises what redis-py raises."""
        wire = await dial(self._pool, self._received, self.drop)
        if self._closed:  # meanwhile
            wire.reset()
            raise ConnectionError("closed while it was being connected")
        self.wire = wire
        self._up()

    def proved(self) -> None:
        """The server answered as it should: the next break is a new one, mended without delay."""
        self._pause = 0.0

    def drop(self, reason: Exception) -> None:
        """Give this connection up and dial another."""
        if self.wire is not None:
            self.wire.reset()
            self.wire, self.error = None, reason
            self._down(reason)
        if self._redialling is None and not self._closed:
            self._redialling = asyncio.create_task(self._redial(), name="aiolock redial")

    async def _redial(self) -> None:
        try:
            # Ends by the flag: cancellation alone can get lost in a driver (cpython gh-86296).
            while self.wire is None and not self._closed:
                await asyncio.sleep(self._pause * random.uniform(0.5, 1.0))  # noqa: S311  # jitter
                self._pause = min(_LONGEST_PAUSE, max(_FIRST_PAUSE, 2 * self._pause))
                try:
                    wire = await dial(self._pool, self._received, self.drop)
                except Exception as error:  # noqa: BLE001  # whatever it is, dial again
                    self.error = error
                else:
                    self.wire = wire
        finally:
            self._redialling = None
        if self.wire is not None:
            if self._closed:
                self.wire.reset()
            else:
                self._up()

    async def aclose(self) -> None:
        """Drop the connection and dial no more. Idempotent."""
        self._closed = True
        if self.wire is not None:
            wire, self.wire = self.wire, None
            wire.close()
            await wire.wait_closed()
        if self._redialling is not None:
            self._redialling.cancel()
            await asyncio.wait([self._redialling])
