"""The subscription: one channel for the whole client, on which the scripts push to it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any, Final, cast

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import InvalidResponse

from aiolock.stores._link_state import LinkState
from aiolock.stores.redis._companion import Companion, OnMessage
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._scripts import command
from aiolock.stores.redis._sentinel import Address

SUBSCRIBE_TIMEOUT: Final = 5.0


class Subscription:
    """Keeps a channel subscribed, on a connection that is dialled again when it breaks.

    ``on_push`` gets what is published on the channel; ``on_return`` is called when it is subscribed
    once more, so that pushes may have been missed.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        channel: str,
        links: LinkState,
        *,
        on_push: Callable[[bytes], None],
        on_return: Callable[[], None],
        companion: Companion | None = None,
    ) -> None:
        pass_on = self._on_message
        self._handle: OnMessage = (
            partial(companion.received, pass_on=pass_on) if companion else pass_on
        )
        self._link = Link(
            pool,
            on_reply=self._received,
            on_up=self._subscribe,
            on_down=self._down,
            on_failing=partial(links.failing, "subscription"),
        )
        self._request = command("SUBSCRIBE", channel)
        self._links = links
        self._on_push = on_push
        self._on_return = on_return
        self._companion = companion
        self.since: float | None = None
        """The time when the present server confirmed the subscription; None while it is not
        subscribed."""
        self._loop = asyncio.get_running_loop()
        self._subscribed: asyncio.Future[None] = self._loop.create_future()
        self._overdue: asyncio.TimerHandle | None = None
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
        wire = self._link.wire
        assert wire is not None
        if self._companion is not None:
            self._companion.connected(wire)
        wire.write(self._request, at_once=True)
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
        if self._companion is not None:
            self._companion.disconnected()
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
        self._handle(message)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, Refusal):
            self.drop(message)
        elif not isinstance(message, list) or not message:
            self.drop(InvalidResponse(f"not what a subscription gets: {message!r}"))
        elif message[0] == b"message":
            self._on_push(cast(bytes, message[2]))
        elif message[0] == b"subscribe":
            self.since = self.heard
            self._confirm()
            self._links.up("subscription")
            if not self._subscribed.done():
                self._subscribed.set_result(None)
            else:
                self._on_return()

    async def aclose(self) -> None:
        """Unsubscribe and disconnect. Idempotent."""
        self._confirm()
        if self._link.wire is not None:
            # Needed for fakeredis only: a server notices by itself that the connection ended.
            self._link.wire.write(b"*1\r\n$11\r\nUNSUBSCRIBE\r\n", at_once=True)
        await self._link.aclose()
