"""The subscription: one channel for the whole client, on which the scripts push to it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import InvalidResponse

from aiolock.protocol import (
    AskAgain,
    Deliver,
    Event,
    GrantLost,
    GrantPushed,
    OrderUnknown,
    Reconnected,
    ReleaseRequested,
)
from aiolock.stores._link_state import LinkState
from aiolock.stores.redis._codec import decode, waiter_of
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._scripts import bulk
from aiolock.stores.redis._sentinel import Address

log = logging.getLogger("aiolock")

SUBSCRIBE_TIMEOUT: Final = 5.0


class Subscription:
    """Keeps the client's channel subscribed, and delivers the events in its pushes.

    ``again`` is called when it is subscribed once more.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        names: Names,
        client: str,
        deliver: Deliver,
        links: LinkState,
        *,
        again: Callable[[], None],
        is_new: Callable[[bytes], bool] | None = None,
    ) -> None:
        """``is_new``: whether a push has not already come over another connection."""
        self._link = Link(
            pool,
            on_reply=self._received,
            on_up=self._subscribe,
            on_down=self._down,
            on_failing=partial(links.failing, "subscription"),
        )
        self._request = b"*2\r\n$9\r\nSUBSCRIBE\r\n" + bulk(names.channels + client)
        self._names = names
        self._deliver = deliver
        self._links = links
        self._again = again
        self.since: float | None = None
        """The time when the present server confirmed the subscription; None while it is not
        subscribed."""
        self._is_new = is_new
        self._loop = asyncio.get_running_loop()
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._overdue: asyncio.TimerHandle | None = None
        self._warned = False
        self.word = asyncio.Event()
        """Set when the client's push to itself has come."""
        self.heard = self._loop.time()

    async def open(self) -> None:
        """Connect and subscribe; returns when the server has confirmed it."""
        await self._link.open()
        await self._subscribed

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""
        self._link.follow(address)

    def proved(self) -> None:
        """The server of the commands counts it, so after the next break it is dialled at once.

        A mere confirmation may come from another server: then it would be dialled again and again
        without a pause.
        """
        self._link.proved()

    def _subscribe(self) -> None:
        assert self._link.wire is not None
        self._link.wire.write(self._request, at_once=True)
        self._overdue = self._loop.call_later(
            SUBSCRIBE_TIMEOUT, self.drop, TimeoutError("the server does not confirm SUBSCRIBE")
        )

    def drop(self, reason: Exception) -> None:
        """Give this connection up, subscribe again on another."""
        if not self._subscribed.done():
            self._subscribed.set_exception(reason)
        self._link.drop(reason)

    def _down(self, reason: Exception) -> None:
        self.since = None
        self._confirm()
        self._links.down("subscription", reason)
        if not self._subscribed.done():
            self._subscribed.set_exception(reason)

    def _confirm(self) -> None:
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None

    def _received(self, message: Any) -> None:
        self.heard = self._loop.time()
        if isinstance(message, Refusal):
            self.drop(message)
        elif not isinstance(message, list) or not message:
            self.drop(InvalidResponse(f"not what a subscription gets: {message!r}"))
        else:
            self._on_push(cast(list[bytes], message))

    def _on_push(self, message: list[bytes]) -> None:
        if message[0] == b"message":
            self._pushed(message[2])
        elif message[0] == b"subscribe":
            self.since = self.heard
            self._confirm()
            self._links.up("subscription")
            if not self._subscribed.done():
                self._subscribed.set_result(None)
            else:
                self._deliver(Reconnected())
                self._again()

    def _pushed(self, push: bytes) -> None:
        if self._is_new is None or self._is_new(push):
            self.deliver(push.decode("utf-8", "replace"))

    def deliver(self, push: str) -> None:
        """Deliver the event in a push, from either connection."""
        try:
            event = self._read(push)
        except ValueError:
            # Anyone with the right to publish can send anything here: that must not end the link.
            if not self._warned:
                self._warned = True
                log.warning("aiolock: ignores a push that is not one of aiolock's: %.100r", push)
        else:
            if event is not None:
                self._deliver(event)

    def _read(self, push: str) -> Event | None:
        """The event that this push encodes, if any; `ValueError` for a text that is no push."""
        kind, _, rest = push.partition(" ")
        if kind == "g":
            waiter, fence, lease, now, key = rest.split(" ", 4)
            name = self._names.name(key)
            who, form, _ = decode(waiter)
            return GrantPushed(name, who, form, int(fence), int(lease), int(now))
        if kind == "l":
            grant, reason, key = rest.split(" ", 2)
            waiter, _, fence = grant.rpartition(":")
            who = waiter_of(waiter)
            return GrantLost(self._names.name(key), who, int(fence), reason)
        if kind == "d":
            return AskAgain(self._names.name(rest))
        if kind == "r":
            grant, key = rest.split(" ", 1)
            waiter, _, fence = grant.rpartition(":")
            who = waiter_of(waiter)
            return ReleaseRequested(self._names.name(key), who, int(fence))
        if kind == "v":
            waiter, key = rest.split(" ", 1)
            return OrderUnknown(self._names.name(key), waiter_of(waiter))
        if kind == "p":
            self.word.set()
            return None
        raise ValueError(f"no push of this kind: {kind!r}")

    async def aclose(self) -> None:
        """Unsubscribe and disconnect. Idempotent."""
        self._confirm()
        if self._link.wire is not None:
            # Needed for fakeredis only: a server notices by itself that the connection ended.
            self._link.wire.write(b"*1\r\n$11\r\nUNSUBSCRIBE\r\n", at_once=True)
        await self._link.aclose()
