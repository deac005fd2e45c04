"""Follows Sentinel's messages about new masters, without waiting for a connection to break.

In a fail-over by hand the old master lives, and for ten more seconds takes writes that will be
forgotten. A master that hangs keeps its connections. And after a crash, a client should not sit out
a pause between two attempts to connect once there is a new master.
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
from aiolock.stores.redis._errors import Refusal, address_of
from aiolock.stores.redis._scripts import command
from aiolock.stores.redis._sentinel import Address, locate, sentinels_of
from aiolock.stores.redis._wire import Wire

log = logging.getLogger("aiolock")

_CHANNELS: Final = ("+switch-master", "+failover-state-reconf-slaves")
"""The message of any Sentinel about a finished fail-over; and that of the Sentinel that carries it
out, as soon as the new master is one. Telling the other replicas takes some time after that."""
_ANSWER: Final = 2.0
"""Seconds for a Sentinel to confirm the subscription."""
_SILENCE: Final = 5.0
"""Seconds of silence after which the Sentinel is asked; and for its answer, before it is left."""
_PAUSE: Final = 1.0
"""Seconds between two attempts to subscribe at a Sentinel, or to ask them where the master is."""


class SentinelWatcher:
    """A subscription to each Sentinel, renewed when it breaks.

    To each, because the Sentinel that carries out a fail-over has the news first. The others get it
    by a message that may be lost with the connections to the old master, and then two seconds
    later.

    A message is only a reason to ask all Sentinels (`locate`); so is a new subscription, because a
    message may have been missed. ``moved`` gets each answer.
    """

    def __init__(self, pool: ConnectionPool, moved: Callable[[Address], None]) -> None:
        self._pool = pool
        self._moved = moved
        self._warned = False
        self._closed = False
        self._news = asyncio.Event()
        self._tasks = [asyncio.create_task(self._ask(), name="aiolock ask Sentinel")]
        self._tasks += [
            asyncio.create_task(self._follow(each), name=f"aiolock follow {address_of(each)}")
            for each in sentinels_of(pool)
        ]

    async def _ask(self) -> None:
        """Ask once for all messages that have come meanwhile."""
        # Ends by the flag, too: a cancellation can get lost in a driver (cpython gh-86296).
        while not self._closed:
            await self._news.wait()
            self._news.clear()
            try:
                address = await locate(self._pool)
                if address is not None and not self._closed:
                    self._moved(address)
            except (RedisError, OSError) as error:
                log.debug("aiolock: %s", error)  # reported where a connection is needed
            except Exception:
                log.exception("aiolock: could not follow Sentinel, and tries again")
            else:
                continue
            # Ask again until there is an answer: the message is not repeated.
            self._news.set()
            await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311  # jitter

    async def _follow(self, sentinel: ConnectionPool) -> None:
        while not self._closed:
            subscribed = _Subscribed(self._news.set)
            try:
                await subscribed.begin(sentinel)
                self._news.set()
                if not self._closed:  # else the cancellation was lost
                    await subscribed.broken()
            except Exception as error:  # noqa: BLE001  # whatever it is, subscribe again
                self._warn_of(error)
            finally:
                await subscribed.aclose()
            await asyncio.sleep(_PAUSE * random.uniform(0.5, 1.0))  # noqa: S311  # jitter

    def _warn_of(self, error: Exception) -> None:
        if isinstance(error, Refusal) and not self._warned:
            self._warned = True
            log.warning(
                "aiolock: a Sentinel does not let us subscribe to %s (%s): a fail-over by hand may"
                " be noticed only when the old master steps down, some ten seconds later",
                " and ".join(_CHANNELS),
                error,
            )

    async def aclose(self) -> None:
        """Follow no more. Idempotent."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


class _Subscribed:
    """A connection to one Sentinel; ``news`` is called at each message."""

    def __init__(self, news: Callable[[], None]) -> None:
        self._news = news
        self._heard = False
        self._confirmed = asyncio.Event()
        self._broken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Fails when the connection ends."""
        self._wire: Wire | None = None

    async def begin(self, sentinel: ConnectionPool) -> None:
        """Connect, and return when the subscription is confirmed; raises what redis-py raises."""
        async with asyncio.timeout(_ANSWER):
            self._wire = await _wire.dial(sentinel, self._received, self._broke)
            self._wire.write(command("SUBSCRIBE", *_CHANNELS), at_once=True)
            await self._confirmed.wait()
        if self._broken.done():
            self._broken.result()

    def _received(self, message: Any) -> None:
        self._heard = True
        if isinstance(message, Refusal):
            self._broke(message)
        elif message[0] == b"message":
            self._news()
        elif message[0] == b"subscribe":
            self._confirmed.set()

    def _broke(self, error: Exception) -> None:
        self._confirmed.set()
        if not self._broken.done():
            self._broken.set_exception(error)

    async def broken(self) -> None:
        """Wait until the connection has ended or this Sentinel is silent, and raise the reason."""
        assert self._wire is not None
        asked = False
        while not await self._over_within(_SILENCE):
            if self._heard:
                asked = False
            elif asked:
                raise TimeoutError("this Sentinel is silent")
            else:
                asked = True
                self._wire.write(command("PING"), at_once=True)
            self._heard = False
        self._broken.result()

    async def _over_within(self, seconds: float) -> bool:
        over, _ = await asyncio.wait([self._broken], timeout=seconds)
        return bool(over)

    async def aclose(self) -> None:
        """Close the connection. Idempotent."""
        if self._wire is not None:
            self._wire.close()
            await self._wire.wait_closed()
        if not self._broken.cancel():
            self._broken.exception()  # retrieved, so that it is not logged
