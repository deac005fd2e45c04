"""Told by Sentinel of a new master, and not only by a connection to the old one that breaks.

In a fail-over by hand the old master lives, and takes writes for ten seconds more that will be
forgotten. One that hangs keeps its connections. And after a crash nobody should sit out a pause
between two attempts to connect once there is a new master.
"""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from aiolock.stores.redis import _wire
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._scripts import command
from aiolock.stores.redis._sentinel import Address, locate, sentinels_of
from aiolock.stores.redis._wire import Wire

log = logging.getLogger("aiolock")

_CHANNELS: Final = ("+switch-master", "+failover-state-reconf-slaves")
"""What any Sentinel says of a fail-over that is done; and the one that carries it out, as soon as
the new master is one: the other replicas are told first, and that takes some time."""
_ANSWER: Final = 2.0
"""Seconds for a Sentinel to confirm the subscription."""
_SILENCE: Final = 5.0
"""Seconds of silence after which the Sentinel is tried; and for its answer, before it is left."""
_PAUSE: Final = 1.0
"""Seconds between two rounds in which no Sentinel lets us subscribe."""


class Switches:
    """One subscription, to whichever Sentinel confirms it first, and another when it breaks.

    What it says is only a reason to ask all Sentinels (`locate`), and so is a new subscription, as
    a message may have been missed. ``moved`` gets each answer.
    """

    def __init__(self, pool: ConnectionPool, moved: Callable[[Address], None]) -> None:
        self._pool = pool
        self._moved = moved
        self._warned = False
        self._closed = False
        self._task = asyncio.create_task(self._follow(), name="aiolock follow Sentinel")

    async def _follow(self) -> None:
        # Ends by the flag, too: cancellation can get lost in a driver (cpython gh-86296).
        while not self._closed:
            told = await self._subscribe()
            if told is None:
                await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311  # jitter
                continue
            try:
                while not told.broken and not self._closed:
                    told.news.clear()
                    await self._ask()
                    await told.wait()
            finally:
                await told.aclose()

    async def _ask(self) -> None:
        try:
            address = await locate(self._pool)
        except (RedisError, OSError) as error:
            log.debug("aiolock: %s", error)  # who needs a connection asks, too, and says so
        else:
            if address is not None and not self._closed:
                self._moved(address)

    async def _subscribe(self) -> _Subscribed | None:
        """To all Sentinels at once; the first that confirms it is kept."""
        trying = {asyncio.create_task(_Subscribed.to(each)) for each in sentinels_of(self._pool)}
        left, kept = trying, None
        try:
            while left and kept is None:
                done, left = await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                for one in done:
                    self._warn_of(one.exception())
                kept = next((one for one in done if one.exception() is None), None)
        finally:
            for one in trying - {kept}:
                one.cancel()
                one.add_done_callback(_close)
        return kept.result() if kept else None

    def _warn_of(self, error: BaseException | None) -> None:
        if isinstance(error, Refusal) and not self._warned:
            self._warned = True
            log.warning(
                "aiolock: a Sentinel does not let us subscribe to %s (%s): a fail-over by hand is"
                " noticed only when the old master steps down, some ten seconds later",
                " and ".join(_CHANNELS),
                error,
            )

    async def aclose(self) -> None:
        """Follow no more. Idempotent."""
        self._closed = True
        self._task.cancel()
        await asyncio.wait([self._task])


class _Subscribed:
    """A connection to one Sentinel that has confirmed the subscription."""

    def __init__(self) -> None:
        self.news = asyncio.Event()
        """Set by a message, and by the end of the connection."""
        self.broken = False
        self._heard = False
        self._confirmed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wire: Wire | None = None

    @classmethod
    async def to(cls, sentinel: ConnectionPool) -> _Subscribed:
        made = cls()
        try:
            async with asyncio.timeout(_ANSWER):
                made._wire = await _wire.dial(sentinel, made._received, made._broke)
                made._wire.write(command("SUBSCRIBE", *_CHANNELS), at_once=True)
                await made._confirmed
        except BaseException:
            await made.aclose()
            raise
        return made

    def _received(self, message: Any) -> None:
        self._heard = True
        if isinstance(message, Refusal):
            self._broke(message)
        elif message[0] == b"message":
            self.news.set()
        elif message[0] == b"subscribe" and not self._confirmed.done():
            self._confirmed.set_result(None)

    def _broke(self, error: Exception) -> None:
        if not self._confirmed.done():
            self._confirmed.set_exception(error)
        self.broken = True
        self.news.set()

    async def wait(self) -> None:
        """Return when there is news, or no more connection."""
        assert self._wire is not None
        while not self.news.is_set():
            self._heard = False
            for silent in (False, True):
                try:
                    async with asyncio.timeout(_SILENCE):
                        await self.news.wait()
                except TimeoutError:
                    pass
                if self.news.is_set() or self._heard:
                    break
                if silent:
                    self._broke(TimeoutError("this Sentinel is silent"))
                else:
                    self._wire.write(command("PING"), at_once=True)

    async def aclose(self) -> None:
        self.end()
        if self._wire is not None:
            await self._wire.wait_closed()

    def end(self) -> None:
        """Close the connection, without waiting for that."""
        if self._wire is not None:
            self._wire.close()
        if not self._confirmed.cancel() and not self._confirmed.cancelled():
            self._confirmed.exception()  # seen


def _close(late: asyncio.Task[_Subscribed]) -> None:
    """One that was too late, or that failed."""
    if not late.cancelled() and late.exception() is None:
        late.result().end()
