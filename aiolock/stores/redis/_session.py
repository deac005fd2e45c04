"""One opening of a client at one Redis server: two connections, for commands and for pushes."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from aiolock._futures import retrieve
from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Reconnected
from aiolock.stores._link_state import LinkState
from aiolock.stores._opening import Opening
from aiolock.stores.redis._companion import Companion
from aiolock.stores.redis._errors import (
    Place,
    PushMissingError,
    code_of,
    is_misconfigured,
    store_error,
)
from aiolock.stores.redis._health import HEARTBEAT_TIMEOUT, HealthCheck
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._presence import Presence
from aiolock.stores.redis._protocol import mismatch
from aiolock.stores.redis._pushes import Pushes, read_push
from aiolock.stores.redis._scripts import PRESENCE
from aiolock.stores.redis._sentinel import Address
from aiolock.stores.redis._subscription import Subscription

log = logging.getLogger("aiolock")

PUSH_TIMEOUT: Final = 1.5
"""Seconds for the first push to arrive, when a client opens; for each of `_TRIES`."""
_TRIES: Final = 3

Step = Callable[[], Awaitable[None]]
"""One step of an opening."""
MakePipe = Callable[..., Pipeline]
"""`Pipeline`, or a function that makes one with more arguments."""


async def _no_step() -> None:
    pass


def _nothing() -> None:
    pass


class Session:
    """A client's connections to one Redis (or Valkey), opened once, and kept alive."""

    def __init__(
        self,
        pool: ConnectionPool,
        names: Names,
        client: str,
        deliver: Deliver,
        *,
        presence: Presence | None = None,
        read: Callable[[str], Any] | None = None,
        make_pipe: MakePipe = Pipeline,
        companion: Companion | None = None,
    ) -> None:
        """``read`` reads a push, as `read_push`. ``companion`` shares the subscription's
        connection.
        """
        self._names = names
        self._place = Place.of(pool, names.prefix)
        self._deliver = deliver
        self._opening = Opening()
        self.closing = False
        self.patience = HEARTBEAT_TIMEOUT
        """Seconds to wait for the commands under way when it is closed."""
        self._links = links = LinkState(deliver, is_misconfigured)
        self.presence = presence or Presence(names, client)
        self._pushes = Pushes(read or partial(read_push, names), deliver)
        self.subscription = Subscription(
            *(pool, names.channels + client, links),
            on_push=self._pushes.received,
            on_return=self._subscribed_again,
            companion=companion,
        )
        self.pipe = make_pipe(
            *(pool, names.prefix),
            probe=self.presence.present,
            on_push=self._pushes.deliver,
            on_lost=partial(links.down, "commands"),
            on_failing=partial(links.failing, "commands"),
            on_regained=_nothing,
            on_restored=self._back,
        )
        self.health = HealthCheck(self.pipe, self.subscription, self.presence, deliver)

    async def open(self, *, register: Step = _no_step, check: Step = _no_step) -> None:
        """Connect; `StoreError` if that fails.

        ``register`` is called before any other command is sent, ``check`` before it is open.
        """
        await self._opening.run(self._open(register, check), self.aclose)

    async def _open(self, register: Step, check: Step) -> None:
        try:
            await self.pipe.open()
            await register()
            await self.subscription.open()
            if self.presence.is_home:
                await self._introduce()
            await check()
            counted = await self._check_pushes()
            if self.closing:  # our cancellation was lost in a driver
                raise StoreError("the client was closed while it was opening")  # noqa: TRY301  # one place that cleans up
        except BaseException as error:
            self.closing = True
            self.health.stop()
            await self.disconnect()
            if isinstance(error, RedisError | OSError) and not isinstance(error, StoreError):
                raise store_error(error, self._place) from error
            raise
        self.health.counted = counted
        self._links.observed = True
        self.pipe.be_patient()
        self.health.start()
        if not counted:
            log.warning(
                "aiolock: the server does not count subscribers: a dead waiter costs a claim"
            )

    def follow(self, address: Address) -> None:
        """The master is at ``address``.

        The subscription moves first: where it is missing, our waiters count as dead.
        """
        self.subscription.follow(address)
        self.pipe.follow(address)

    def _back(self, heard: int | None) -> None:
        """The command connection works again: ask for pushes that came with lost replies.

        Also check that it leads to the server where we are subscribed. After a fail-over it may
        not, and the new server would consider our waiters dead.
        """
        self._links.up("commands")
        if self.health.counted is not None and not self.closing:
            if heard == 0:
                self.health.ask_whether_counted()  # the subscription may have moved meanwhile
            self._deliver(Reconnected())

    def _subscribed_again(self) -> None:
        self._deliver(Reconnected())
        self.health.ask_whether_counted()

    async def aclose(self) -> None:
        """Wait for the commands under way, then disconnect. Idempotent."""
        if self._opening.under_way:
            self.closing = True
            await self._opening.end()  # which disconnects
        if self.closing:
            return
        self.closing = True
        self._links.observed = False
        if self.presence.is_home:
            self.pipe.call(PRESENCE, *self.presence.farewell()).add_done_callback(retrieve)
        self.health.stop()
        await self.disconnect()

    async def disconnect(self) -> None:
        """Close the connections, without a farewell."""
        await self.pipe.aclose(timeout=self.patience)
        await self.subscription.aclose()

    # The steps of an opening

    async def _introduce(self) -> None:
        try:
            policy, _ = await self.health.introduce()
        except StoreError as error:
            # A full server is no reason to fail: locks that are held can still be released.
            if not isinstance(error.__cause__, Exception) or code_of(error.__cause__) != "OOM":
                raise
            log.warning("aiolock: %s", error)
        else:
            if policy not in ("", "noeviction"):
                log.warning(
                    "aiolock: maxmemory-policy is %s: a full server may evict locks that are held."
                    " Use noeviction, or a server of their own for locks.",
                    policy,
                )

    async def _check_pushes(self) -> bool:
        """Check that a push published by our commands reaches us; True if we are counted.

        It is tried more than once: a subscription that breaks just now is back in a moment, and
        without it our waiters could not be distinguished from dead ones.
        """
        word = self._pushes.word
        # First in full, then by digest: EVAL and EVALSHA are two rights.
        counted = await self._is_counted()
        for _ in range(_TRIES):
            word.clear()
            counted = await self._is_counted()
            try:
                async with asyncio.timeout(PUSH_TIMEOUT):
                    await word.wait()
            except TimeoutError:
                continue
            if counted:
                return True
        if not word.is_set():
            raise store_error(
                PushMissingError("what is published there does not come to us"), self._place
            )
        return False

    async def _is_counted(self) -> bool:
        """Whether our listener is counted; `StoreError` if clients with another protocol exclude
        ours.
        """
        present = await self.health.presence()
        if (error := mismatch(present.others)) is not None:
            raise store_error(error, self._place)
        self.health.others = present.others
        return present.heard > 0
