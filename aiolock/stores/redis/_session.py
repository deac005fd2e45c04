"""One Redis server through two connections, for commands and for pushes: opened and kept alive.

The commands are those of a subclass: `RedisStore`, or a member of a quorum.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from aiolock.copying import Uncopyable
from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Form, Heartbeat, Reconnected, WaiterId
from aiolock.store import Features
from aiolock.stores._link_state import LinkState
from aiolock.stores._opening import Opening
from aiolock.stores.redis import _replies
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._codec import stem
from aiolock.stores.redis._errors import (
    ClusterNodeError,
    Place,
    PushMissingError,
    Refusal,
    address_of,
    code_of,
    is_misconfigured,
    store_error,
)
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._protocol import AGAIN, PROTOCOL, SPOKEN, mismatch
from aiolock.stores.redis._reader import OnRefusal
from aiolock.stores.redis._replies import Present
from aiolock.stores.redis._scripts import bulk
from aiolock.stores.redis._sentinel import Address, is_managed
from aiolock.stores.redis._sentinel_watcher import SentinelWatcher
from aiolock.stores.redis._subscription import Subscription

log = logging.getLogger("aiolock")

HEARTBEAT: Final = 10.0
"""Seconds of silence on either connection, after which both are checked."""
HEARTBEAT_TIMEOUT: Final = 4.0
"""Seconds for the heartbeat's push to arrive."""
PUSH_TIMEOUT: Final = 1.5
"""Seconds for the first push to arrive, when a client opens; for each of `_TRIES`."""
_TRIES: Final = 3
CLOCK: Final = 60.0
"""Seconds after which the server's clock is read again, however busy the connections are."""
FORGET_CLIENT: Final = 3_600_000
"""Milliseconds for which a client's host and process are kept; written again twice as often."""
_MOST_STEMS: Final = 1024
"""Forms that are kept encoded."""


class Session(Uncopyable):
    """A client's link to one Redis (or Valkey)."""

    _probe_script = scripts.PRESENCE
    """The script that is called first on each new connection."""
    _admitted: Callable[[Any], None] | None = None
    """Gets that script's answer; if set, a server that refuses the script is asked nothing else."""
    _patience = HEARTBEAT_TIMEOUT
    """Seconds to wait for the commands under way when it is closed."""

    def __init__(self, pool: ConnectionPool, prefix: str) -> None:
        self._pool = pool
        self._prefix = prefix
        self._names = Names(prefix)
        self._channels = bulk(self._names.channels)
        self.features = Features(protocols=self._protocols)
        self._stems: dict[int, tuple[Form, str]] = {}
        """By the id of a form, which is kept with it: hashing the form would take longer."""
        self._closing = True
        self._beating = False
        """The next request of a waiter serves as the heartbeat, too."""
        self._opening = Opening()
        self._timer: asyncio.TimerHandle | None = None
        self._hearing: asyncio.TimerHandle | None = None
        """Checks, after a heartbeat, whether its push has arrived."""
        self._switches: SentinelWatcher | None = None
        """Set only if the master is found by Sentinel."""
        self._slots_apart = False
        """Whether the server is one of a cluster, where a script may use keys of one slot only."""
        self._refusal_handler: Callable[[Outbox], OnRefusal] | None = None
        self._queued: Callable[[], None] | None = None
        self.others: tuple[int, ...] = ()
        """The protocols of other clients here, if they are not ours."""
        self._is_new: Callable[[bytes], bool] | None = None
        """Set for a node of a cluster with several."""

    def _protocols(self) -> tuple[int, ...]:
        return PROTOCOL, *self.others

    def __repr__(self) -> str:
        where = self._pool.connection_kwargs
        server = where.get("path") or f"{where.get('host', '?')}:{where.get('port', '?')}"
        if is_managed(self._pool):
            server = address_of(self._pool)
        return f"<{type(self).__name__} {server} db={where.get('db', 0)} prefix={self._prefix!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self._closing = False
        self._stems.clear()
        self._counted: bool | None = None
        self._uncounted = False
        """The subscription was not counted, and so was dialled again."""
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._deliver = deliver
        self._links = LinkState(deliver, is_misconfigured)
        self._subscription = self._make_subscription()
        self._pipe = Pipeline(
            self._pool,
            self._prefix,
            probe=self._probe_arguments,
            probe_script=self._probe_script,
            on_admitted=self._admitted,
            on_push=self._subscription.deliver,
            on_lost=self._lost,
            on_failing=self._failing,
            on_regained=self._again,
            on_restored=self._back,
            on_queued=self._queued,
            refusal_handler=self._refusal_handler,
        )
        self._introduced = self._marked = self._loop.time()
        await self._opening.run(self._open(), self.aclose)

    async def _open(self) -> None:
        try:
            await self._pipe.open()
            await self._check_server()
            await self._subscription.open()
            await self._introduce()
            await self._check_cluster()
            counted = await self._check_pushes()
            self._check_opening()
        except BaseException as error:
            self._closing = True
            await self._disconnect()
            if isinstance(error, RedisError | OSError) and not isinstance(error, StoreError):
                raise store_error(error, Place.of(self._pool, self._prefix)) from error
            raise
        self._counted = counted
        self._links.observed = True
        self._pipe.be_patient()
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        if is_managed(self._pool):
            self._switches = SentinelWatcher(self._pool, self._moved)
        if not counted:
            log.warning(
                "aiolock: the server does not count subscribers: a dead waiter costs a claim"
            )

    def _check_opening(self) -> None:
        if self._closing:  # our cancellation was lost in a driver
            raise StoreError("the client was closed while it was opening")

    def _make_subscription(self) -> Subscription:
        return Subscription(
            *(self._pool, self._names, self._client, self._deliver, self._links),
            again=self._ask_whether_counted,
            is_new=self._is_new,
        )

    async def _check_server(self) -> None:
        """Called when the command connection is open for the first time, before the other one."""

    def _lost(self, reason: Exception) -> None:
        """The command connection broke."""
        self._links.down("commands", reason)

    def _failing(self, reason: Exception) -> None:
        """The command connection could not be made again."""
        self._links.failing("commands", reason)

    def _again(self) -> None:
        """The commands are about to go on, on another connection."""

    def _back(self, heard: int | None) -> None:
        """The command connection works again: ask for pushes that came with lost replies.

        Also check that it leads to the server where we are subscribed. After a fail-over it may
        not, and the new server would consider our waiters dead.
        """
        self._links.up("commands")
        if self._counted is not None and not self._closing:
            if heard == 0:
                self._ask_whether_counted()  # the subscription may have moved meanwhile
            self._deliver(Reconnected())

    def _moved(self, address: Address) -> None:
        """Sentinel has announced the master's address.

        The subscription moves first: where it is missing, our waiters count as dead.
        """
        self._subscription.follow(address)
        self._pipe.follow(address)

    async def aclose(self) -> None:
        if self._opening.under_way:
            self._closing = True
            await self._opening.end()  # which disconnects
        if self._closing:
            return
        self._closing = True
        self._links.observed = False
        self._forget_us()
        if self._timer is not None:
            self._timer.cancel()
        await self._disconnect()

    def _forget_us(self) -> None:
        # No push to ourselves: it would be unread when the subscription ends.
        values = (1, self._names.client(self._client), self._names.channels, "p", 1, "")
        arguments = b"".join(map(bulk, values))
        self._pipe.call(scripts.PRESENCE, len(values), arguments).add_done_callback(ignore)

    async def _disconnect(self) -> None:
        # Those of this opening: while we wait, the store may be opened again.
        switches, pipe, subscription = self._switches, self._pipe, self._subscription
        self._switches = None
        if switches is not None:
            await switches.aclose()
        await pipe.aclose(timeout=self._patience)
        await subscription.aclose()

    # The encoding of waiters

    def _text(self, name: str, waiter: WaiterId, form: Form) -> str:
        """The text of this waiter (see `_codec`)."""
        known = self._stems.get(id(form))
        if known is None:
            if len(self._stems) >= _MOST_STEMS:
                self._stems.clear()
            known = self._stems[id(form)] = form, stem(form, self._client, blind=self._blind)
        return f"{known[1]}{waiter.seq}"

    @property
    def _blind(self) -> bool:
        """Whether this client's waiters must never count as dead: its listeners cannot be
        counted.
        """
        return not self._counted

    def who(self, client: str) -> asyncio.Future[bytes]:
        """A client's metadata; empty if it has written none."""
        arguments = bulk(1) + bulk(self._names.client(client))
        return self._pipe.call(scripts.WHO, 2, arguments)

    def _presence(self) -> asyncio.Future[Present]:
        self._marked = self._loop.time()
        return self._pipe.call(scripts.PRESENCE, *self._presence_arguments())

    def _probe_arguments(self) -> tuple[int, bytes]:
        return self._presence_arguments()

    def _presence_arguments(self) -> tuple[int, bytes]:
        keys = self._own_keys()
        values = (len(keys), *keys, self._names.channels + self._client, "p", SPOKEN, PROTOCOL)
        return len(values), b"".join(map(bulk, values))

    def _own_keys(self) -> list[str]:
        """The keys of this server itself: the one with the protocols in use."""
        return [self._names.protocols]

    def _say_who_we_are(self) -> asyncio.Future[_replies.Opened]:
        keys = [*self._names.tried(self._client), self._names.client(self._client)]
        who = (f"{socket.gethostname()} {os.getpid()}", FORGET_CLIENT)
        arguments = b"".join(map(bulk, (4, *keys, *who)))
        # In full, so that a user without a right to EVAL fails now, not after a SCRIPT FLUSH.
        return self._pipe.call(scripts.OPEN, 7, arguments, in_full=True)

    async def _introduce(self) -> None:
        self._introduced = self._loop.time()
        try:
            policy, _ = await self._say_who_we_are()
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

    async def _check_cluster(self) -> None:
        """Find out whether keys of two slots are refused; `StoreError` for one of several masters.

        A cluster with one master serves like any server; so does a proxy that shows a cluster as
        one server, whatever is behind it.
        """
        keys = b"".join(map(bulk, (2, *self._names.apart())))
        nothing = b"".join(map(bulk, ("-", 0, "-", 0)))
        try:
            await self._pipe.call(scripts.RENEW, 7, keys + nothing, expires=True)
        except StoreError as error:
            if not isinstance(error.__cause__, Refusal) or code_of(error.__cause__) != "CROSSSLOT":
                raise
        else:
            return
        self._slots_apart = True
        masters = {(each.host, each.port) for each in await self.slots()}
        if len(masters) > 1:
            raise store_error(
                ClusterNodeError(f"it is one of {len(masters)} masters"),
                Place.of(self._pool, self._prefix),
            )

    def slots(self) -> asyncio.Future[list[_replies.Range]]:
        """The slots of each master; empty if there is no cluster, or the user may not ask."""
        values = (len(own := self._own_keys()), *own)
        return self._pipe.call(scripts.SLOTS, len(values), b"".join(map(bulk, values)))

    async def _check_pushes(self) -> bool:
        """Check that a push published by our commands reaches us; True if we are counted.

        It is tried more than once: a subscription that breaks just now is back in a moment, and
        without it our waiters could not be distinguished from dead ones.
        """
        # First in full, then by digest: EVAL and EVALSHA are two rights.
        counted = await self._is_counted()
        for _ in range(_TRIES):
            self._subscription.word.clear()
            counted = await self._is_counted()
            try:
                async with asyncio.timeout(PUSH_TIMEOUT):
                    await self._subscription.word.wait()
            except TimeoutError:
                continue
            if counted:
                return True
        if not self._subscription.word.is_set():
            raise store_error(
                PushMissingError("what is published there does not come to us"),
                Place.of(self._pool, self._prefix),
            )
        return False

    async def _is_counted(self) -> bool:
        """Whether our listener is counted; `StoreError` if clients with another protocol exclude
        ours.
        """
        present = await self._presence()
        if (error := mismatch(present.others)) is not None:
            raise store_error(error, Place.of(self._pool, self._prefix))
        self.others = present.others
        return present.heard > 0

    def _beat(self) -> None:
        """Check both connections if either was silent: the reply proves one, the push both."""
        now = self._loop.time()
        if now - self._introduced > FORGET_CLIENT / 2000:
            self._introduce_again(now)
        silent = min(self._pipe.quiet_since, self._subscription.heard)
        due = min(silent + HEARTBEAT, self._pipe.copies.clock_read + CLOCK)
        if now < due:
            self._timer = self._loop.call_at(due, self._beat)
            return
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        self._beating = True
        if now - self._marked < AGAIN:
            self._deliver(Heartbeat())
        if self._beating:  # no request has served as the heartbeat
            self._beating = False
            self._ask_whether_counted()
        # Counted from now, not from the reply: both connections may be dead.
        self._hearing = self._loop.call_later(HEARTBEAT_TIMEOUT, self._check_heard, now)

    def _introduce_again(self, now: float) -> None:
        self._introduced = now
        self._say_who_we_are().add_done_callback(ignore)

    def _ask_whether_counted(self) -> None:
        if not self._closing:
            self._presence().add_done_callback(partial(self._beaten, self._subscription.since))

    def _beaten(self, since: float | None, present: asyncio.Future[Present]) -> None:
        if present.cancelled():
            return
        if (failure := present.exception()) is not None:
            # The pipe deals with its own connection. A server that refuses it pushes nothing.
            if isinstance(failure.__cause__, Refusal) and self._hearing is not None:
                self._hearing.cancel()
            return
        if self._closing:
            return
        self.others = present.result().others
        if (error := mismatch(self.others)) is not None:
            # The key of protocols was lost, and others came. They also refuse our next connection.
            self._pipe.drop(error)
            return
        # The count proves nothing if the subscription was not there, or was renewed meanwhile.
        stayed = since is not None and since == self._subscription.since
        if stayed:
            self._on_count(present.result().heard)

    def _on_count(self, heard: int) -> None:
        """The server of the commands has counted the listeners of our channel."""
        if heard > 0 or not self._counted:
            self._uncounted = False
            self._subscription.proved()
        elif not self._uncounted:
            self._uncounted = True
            self._subscription.drop(ConnectionError("the server has lost our subscription"))
        else:
            # It was dialled again, so the address leads to another server than the commands'.
            self._uncounted = False
            self._pipe.drop(ConnectionError("our pushes come from another server"))

    def _check_heard(self, sent: float) -> None:
        if not self._closing and self._subscription.heard < sent:
            self._subscription.drop(TimeoutError("no push for a heartbeat"))


def ignore(done: asyncio.Future[Any]) -> None:
    """Ignore a failed heartbeat: the connection that failed is dealt with elsewhere."""
    if not done.cancelled():
        done.exception()
