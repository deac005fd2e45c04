"""The Redis store: each operation of the protocol is one call of one script."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import RedisError

from aiolock.errors import StoreError
from aiolock.store import (
    NOBODY,
    Answer,
    Inbox,
    Party,
    Posted,
    Renewal,
    Status,
    WaiterId,
)
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._mailbox import Mailbox
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._pipe import Pipe, store_error
from aiolock.stores.redis._scripts import bulk

log = logging.getLogger("aiolock")

HEARTBEAT: Final = 10.0
"""Seconds of silence on either connection, after which both are tried."""
HEARTBEAT_TIMEOUT: Final = 4.0
"""Seconds for the heartbeat's push to arrive."""
_FORGET_CLIENT: Final = 3_600_000
"""Milliseconds for which host and process of a client are kept; written again twice as often."""


class RedisStore:
    """Locks on one Redis (or Valkey), through two connections: commands, and pushes."""

    def __init__(self, pool: ConnectionPool, prefix: str) -> None:
        self._pool = pool
        self._prefix = prefix
        self._names = Names(prefix)
        self._channels = bulk(self._names.channels)
        self._terms = lru_cache(maxsize=1024)(self._encode_terms)
        self._closing = False
        self._timer: asyncio.TimerHandle | None = None

    def __repr__(self) -> str:
        where = self._pool.connection_kwargs
        server = where.get("path") or f"{where.get('host', '?')}:{where.get('port', '?')}"
        return f"<RedisStore {server} db={where.get('db', 0)} prefix={self._prefix!r}>"

    async def open(self, client: str, inbox: Inbox) -> bool:
        self._closing = False
        self._counted: bool | None = None
        self._client = client
        self._loop = asyncio.get_running_loop()
        self._inbox = inbox
        self._mailbox = Mailbox(self._pool, self._names, client, inbox)
        self._pipe = Pipe(self._pool, self._prefix, told=self._mailbox.deliver, back=self._back)
        self._introduced = self._loop.time()
        try:
            await self._pipe.open()
            await self._mailbox.open()
            await self._introduce()
            # Twice: in full, and then by its digest, which is another right.
            await self._presence()
            self._counted = await self._presence() > 0
        except BaseException as error:
            await self.aclose()
            if isinstance(error, RedisError | OSError) and not isinstance(error, StoreError):
                raise store_error(error, self._prefix) from error
            raise
        self._pipe.patient = True
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        if not self._counted:
            log.warning(
                "aiolock: the server does not count subscribers: a dead waiter costs a claim"
            )
        return self._counted

    def _back(self) -> None:
        """The commands have a connection again: what came with a lost reply must be asked for.

        And see whether it is to where we are subscribed: after a fail-over it is not, and there
        our waiters would pass for dead.
        """
        if self._counted:
            self._presence().add_done_callback(self._beaten)
        if self._counted is not None:
            self._inbox.reconnected()

    async def aclose(self) -> None:
        if self._closing:
            return
        self._closing = True
        if self._counted is not None:
            self._presence(forget_in=1).add_done_callback(_ignore)
        if self._timer is not None:
            self._timer.cancel()
        await self._pipe.aclose(timeout=HEARTBEAT_TIMEOUT)
        await self._mailbox.aclose()

    # The operations

    def acquire(
        self, name: str, waiter: str, ttl: int, *, ticket: int, wait: bool, max_waiters: int
    ) -> asyncio.Future[Answer]:
        place = str(ticket if wait else -1)
        asked = f"${len(waiter)}\r\n{waiter}\r\n${len(place)}\r\n{place}\r\n".encode("ascii")
        arguments = self._names.three(name) + asked + self._terms(ttl, max_waiters)
        return self._pipe.call(scripts.ACQUIRE, 9, arguments, sure=False)

    def release(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        grant = f"${len(waiter)}\r\n{waiter}\r\n${len(str(fence))}\r\n{fence}\r\n".encode("ascii")
        arguments = self._names.three(name) + grant + self._channels
        return self._pipe.call(scripts.RELEASE, 7, arguments)

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool]]:
        keys = [self._names.holders(renewal.name) for renewal in renewals]
        values = [
            bulk(f"{renewal.waiter}:{renewal.fence}") + bulk(renewal.ttl) for renewal in renewals
        ]
        arguments = b"".join((bulk(len(keys)), *keys, *values))
        return self._pipe.call(scripts.RENEW, 1 + 3 * len(keys), arguments)

    def status(self, name: str) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._status(name))

    def finish(self, name: str, waiter: str, fence: int, keep: int) -> asyncio.Future[int]:
        keys = b"".join(map(bulk, (2, *self._names.keys(name)[:2])))
        values = b"".join(map(bulk, (waiter, fence, keep)))
        return self._pipe.call(scripts.FINISH, 7, keys + values + self._channels)

    def request(self, name: str) -> asyncio.Future[int]:
        arguments = bulk(1) + self._names.holders(name) + self._channels
        return self._pipe.call(scripts.REQUEST, 3, arguments)

    def downgrade(self, name: str, waiter: str, fence: int) -> asyncio.Future[int]:
        arguments = self._names.three(name) + bulk(waiter) + bulk(fence) + self._channels
        return self._pipe.call(scripts.DOWNGRADE, 7, arguments)

    def resize(self, name: str, declared: int, limit: int, keep: int) -> asyncio.Future[int]:
        values = b"".join(map(bulk, (declared, limit, keep)))
        arguments = self._names.three(name) + values + self._channels
        return self._pipe.call(scripts.RESIZE, 8, arguments)

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, keep: int
    ) -> asyncio.Future[int]:
        keys = (4, *self._names.keys(name), self._names.value(name))
        values = (token, count, declared, value, keep)
        arguments = b"".join(map(bulk, keys + values)) + self._channels
        return self._pipe.call(scripts.POST, 11, arguments)

    def read(self, name: str) -> asyncio.Future[Posted]:
        keys = (2, self._names.keys(name)[0], self._names.value(name))
        return self._pipe.call(scripts.READ, 3, b"".join(map(bulk, keys)))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        values = b"".join(map(bulk, fences))
        arguments = self._names.three(name) + self._channels + values
        return self._pipe.call(scripts.BREAK, 5 + len(fences), arguments)

    def _encode_terms(self, ttl: int, max_waiters: int) -> bytes:
        """The arguments that are the same for every waiter of a lock."""
        return bulk(ttl) + bulk(max_waiters) + self._channels

    async def _status(self, name: str) -> Status:
        keys = b"".join(map(bulk, (2, *self._names.keys(name)[:2])))
        now, held, queued, limit = await self._pipe.call(scripts.STATUS, 3, keys)
        grants = [(*grant.decode().rpartition(":"), int(end)) for grant, end in _pairs(held)]
        waiters = [(WaiterId.parse(who.decode()), int(since)) for who, since in _pairs(queued)]
        ends = [(WaiterId.parse(who), int(fence), end) for who, _, fence, end in grants]
        holders = sorted(
            (held for held in ends if held[0].client != NOBODY), key=lambda held: held[1]
        )
        closed = [(end - now / 1000) / 1000 for w, _, end in ends if w.client == NOBODY]
        known = await self._who({w.client for w, *_ in holders} | {w.client for w, _ in waiters})
        return Status(
            name,
            tuple(
                Party(
                    w.client,
                    *known[w.client],
                    fence / 1e6,
                    0,
                    fence,
                    (end - now / 1000) / 1000,
                    shared=w.shared,
                    permits=w.permits,
                )
                for w, fence, end in holders
            ),
            tuple(
                Party(
                    w.client,
                    *known[w.client],
                    since / 1e6,
                    place,
                    shared=w.shared,
                    permits=w.permits,
                )
                for place, (w, since) in enumerate(waiters, start=1)
            ),
            max(closed, default=0.0),
            None if limit < 0 else limit,
        )

    async def _who(self, clients: set[str]) -> dict[str, tuple[str, int]]:
        if not clients:
            return {}
        keys = b"".join(map(bulk, (len(clients), *map(self._names.client, clients))))
        said = await self._pipe.call(scripts.CLIENTS, 1 + len(clients), keys)
        known: dict[str, tuple[str, int]] = {}
        for client, text in zip(clients, said, strict=True):
            host, _, pid = text.decode("utf-8", "replace").rpartition(" ")
            known[client] = (host, int(pid or 0))
        return known

    # Opening, and keeping both connections alive

    def _presence(self, forget_in: int = _FORGET_CLIENT) -> asyncio.Future[int]:
        key, channel = self._names.client(self._client), self._names.channels + self._client
        arguments = b"".join(map(bulk, (1, key, channel, "p", forget_in)))
        return self._pipe.call(scripts.PRESENCE, 5, arguments)

    def _say_who_we_are(self) -> asyncio.Future[str]:
        keys = [*self._names.keys(f"open {self._client}"), self._names.client(self._client)]
        who = (f"{socket.gethostname()} {os.getpid()}", _FORGET_CLIENT)
        arguments = b"".join(map(bulk, (4, *keys, *who)))
        # In full, so that a user who may not EVAL learns it now and not after a SCRIPT FLUSH.
        return self._pipe.call(scripts.OPEN, 7, arguments, in_full=True)

    async def _introduce(self) -> None:
        self._introduced = self._loop.time()
        try:
            policy = await self._say_who_we_are()
        except StoreError as error:
            # What is held elsewhere can still be released, so a full server is no reason to fail.
            if "out of memory" not in str(error):
                raise
            log.warning("aiolock: %s", error)
        else:
            if policy not in ("", "noeviction"):
                log.warning(
                    "aiolock: maxmemory-policy is %s: a full server may evict locks that are held."
                    " Use noeviction, or a server of their own for locks.",
                    policy,
                )

    def _beat(self) -> None:
        """Try both connections when either has been silent: the reply proves one, the push both."""
        now = self._loop.time()
        if now - self._introduced > _FORGET_CLIENT / 2000:
            self._introduced = now
            self._say_who_we_are().add_done_callback(_ignore)
        due = min(self._pipe.quiet_since, self._mailbox.heard) + HEARTBEAT
        if now < due:
            self._timer = self._loop.call_at(due, self._beat)
            return
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        self._presence().add_done_callback(self._beaten)
        # From now, not from the reply: both links may be dead, and each is seen to by itself.
        self._loop.call_later(HEARTBEAT_TIMEOUT, self._check_heard, now)

    def _beaten(self, heard: asyncio.Future[int]) -> None:
        if heard.cancelled() or heard.exception() is not None or self._closing:
            return  # the pipe sees to its own connection
        if heard.result() == 0 and self._counted:
            self._mailbox.drop(ConnectionError("the server has lost our subscription"))

    def _check_heard(self, sent: float) -> None:
        if not self._closing and self._mailbox.heard < sent:
            self._mailbox.drop(TimeoutError("no push for a heartbeat"))


def _pairs(flat: list[bytes]) -> zip[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)


def _ignore(done: asyncio.Future[Any]) -> None:
    """A heartbeat that failed is no news: the connection is seen to where it failed."""
    if not done.cancelled():
        done.exception()
