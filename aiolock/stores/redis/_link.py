"""A link that is kept up: it is dialled again whenever it breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool

from aiolock.backoff import Backoff
from aiolock.stores.redis._sentinel import Address, locate
from aiolock.stores.redis._wire import Wire, dial

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Link:
    """One connection to the server, replaced when it breaks.

    ``on_reply`` gets each message of the server; ``on_up`` is called when a new connection is ready
    to be written to, ``on_down`` with the reason when there is none any more, ``on_failing`` with
    the reason each time that it cannot be dialled again.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        *,
        on_reply: Callable[[Any], None],
        on_up: Callable[[], None],
        on_down: Callable[[Exception], None],
        on_failing: Callable[[Exception], None] | None = None,
    ) -> None:
        self._pool = pool
        self._on_reply = on_reply
        self._on_up = on_up
        self._on_down = on_down
        self._on_failing = on_failing
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True, at_once=True)
        self._closed = False
        self._redialling: asyncio.Task[None] | None = None
        self._round = 0
        """The number of the redialling that counts. (An eager task runs before it is stored.)"""
        self._dialling = set[asyncio.Task[None]]()
        """The current redialling, and earlier ones that were cancelled but have not ended."""
        self._address: Address | None = None
        """The address that it is, or is being, connected to, if Sentinel has told it."""
        self._announced: Address | None = None
        """The address that Sentinel has announced: the next to connect to, without asking."""
        self.wire: Wire | None = None

    async def open(self) -> None:
        """Connect for the first time; raises what redis-py raises."""
        wire = await self._dial(self._round)
        if self._closed:  # during the dialling
            wire.reset()
            raise ConnectionError("closed while it was being connected")
        self.wire = wire
        self._on_up()

    def proved(self) -> None:
        """The server answered properly, so after the next break it is dialled without delay."""
        self._backoff.reset()

    def drop(self, reason: Exception) -> None:
        """Give this connection up and dial another."""
        if self.wire is not None:
            self.wire.reset()
            self.wire, self._address = None, None
            self._on_down(reason)
        if self._redialling is None:
            self._dial_again()

    def follow(self, address: Address) -> None:
        """The master is at ``address``: leave any other server, and dial without a pause."""
        if address == self._address or self._closed:
            return
        self._backoff.reset()
        self._announced = address
        if self.wire is not None:
            self.drop(ConnectionError("Sentinel has another master"))
        else:
            self._dial_again()

    def _dial_again(self) -> None:
        if self._closed:
            return
        if self._redialling is not None:
            self._redialling.cancel()
        self._round += 1
        redial = self._redial(self._round)
        self._redialling = redialling = asyncio.create_task(redial, name="aiolock redial")
        self._dialling.add(redialling)
        redialling.add_done_callback(self._dialling.discard)

    async def _dial(self, number: int) -> Wire:
        self._address = None
        announced, self._announced = self._announced, None
        address = announced or await locate(self._pool)
        if number == self._round:
            self._address = address
        try:
            return await dial(self._pool, self._on_reply, self.drop, address)
        except BaseException:
            # A cancelled dialling may take its time, and another may have begun since.
            if number == self._round:
                self._address = None
            raise

    async def _redial(self, number: int) -> None:
        wire = None
        try:
            # Ends by the flag: a cancellation alone can get lost in a driver (cpython gh-86296).
            while wire is None and self._round == number and not self._closed:
                await asyncio.sleep(self._backoff.pause())
                try:
                    wire = await self._dial(number)
                except Exception as error:  # noqa: BLE001  # whatever it is, dial again
                    if self._on_failing is not None and self._round == number:
                        self._on_failing(error)
        finally:
            current = self._round == number
            if current:
                self._redialling = None
        if wire is not None:
            if self._closed or not current:
                wire.reset()
            else:
                self.wire = wire
                self._on_up()

    async def aclose(self) -> None:
        """Drop the connection and dial no more. Idempotent."""
        self._closed = True
        if self.wire is not None:
            wire, self.wire = self.wire, None
            wire.close()
            await wire.wait_closed()
        for dialling in self._dialling:
            dialling.cancel()
        if self._dialling:
            await asyncio.wait(self._dialling)
