"""The Redis store: locks on one server, where each operation is one call of one script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from redis.asyncio.connection import ConnectionPool

from aiolock.copying import Uncopyable
from aiolock.protocol import (
    WAS_ABSENT,
    Acquire,
    Answer,
    Deliver,
    Operation,
    Page,
    ReadPage,
    ReadStatus,
    Release,
    Renew,
    RequestRelease,
    Status,
)
from aiolock.store import Features
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._companion import Companion
from aiolock.stores.redis._encoding import Call, Encoding, Text, waiter_texts
from aiolock.stores.redis._errors import Place, address_of
from aiolock.stores.redis._lone_node import is_node
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._protocol import PROTOCOL
from aiolock.stores.redis._reading import StatusReader
from aiolock.stores.redis._replies import Asked
from aiolock.stores.redis._scripts import bulk
from aiolock.stores.redis._sentinel import Address, is_managed
from aiolock.stores.redis._session import MakePipe, Session

Value = TypeVar("Value")

_NEWCOMER: Final = bulk(0)
"""The ticket of a newcomer, which has none."""
_CLOSES: Final = bulk(1)
_CLOSES_AS_LOST: Final = bulk(2)
_CLOSES_NOTHING: Final = bulk(0)
_GIVEN_BACK: Final = bulk(0) + bulk(0)
"""The last arguments of a release: it does not close the lock, and no copies can come."""


class RedisStore(Uncopyable):
    """Locks on one Redis (or Valkey), through two connections: one for commands, one for pushes."""

    def __init__(
        self,
        pool: ConnectionPool,
        prefix: str,
        *,
        make_pipe: MakePipe = Pipeline,
        companion: Companion | None = None,
    ) -> None:
        """``make_pipe`` and ``companion`` are as of `Session`."""
        self._pool = pool
        self._names = Names(prefix)
        self._make_pipe = make_pipe
        self._companion = companion
        self._session: Session | None = None
        self._slots_apart = False
        """Whether a script may use keys of one slot only: see `_lone_node`."""
        self.features = Features(protocols=self._protocols)

    def _protocols(self) -> tuple[int, ...]:
        return PROTOCOL, *(self._session.health.others if self._session else ())

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {shown(self._pool, self._names.prefix)}>"

    @property
    def session(self) -> Session:
        """That of the last opening."""
        assert self._session is not None, "it was never opened"
        return self._session

    async def open(self, client: str, deliver: Deliver) -> None:
        self._session = session = Session(
            *(self._pool, self._names, client, deliver),
            make_pipe=self._make_pipe,
            companion=self._companion,
        )
        await session.open(check=partial(self._check_cluster, session))
        text = waiter_texts(client, blind=not session.health.counted)
        self.operations = operations = Operations(session, self._names, client, text)
        self._table = table = operations.table
        if self._slots_apart:
            table[Renew] = partial(one_by_one, table[Renew])

    async def _check_cluster(self, session: Session) -> None:
        place = Place.of(self._pool, self._names.prefix)
        self._slots_apart = await is_node(session.pipe, self._names, session.presence, place)

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        return self._table[operation.__class__](operation)

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""
        if self._session is not None:
            self._session.follow(address)

    async def aclose(self) -> None:
        if self._session is not None:
            await self._session.aclose()


class Operations:
    """The operations of one client at one server: ``table[type(operation)](operation)``."""

    def __init__(self, session: Session, names: Names, client: str, text: Text) -> None:
        self._pipe = session.pipe
        self._health = session.health
        self._names = names
        self._text = text
        self._channels = bulk(names.channels)
        self._reader = StatusReader(session.pipe, names, session.presence.own_keys)
        self._encoding = Encoding(names, client, text)
        self.table: dict[type[Operation[Any]], Callable[[Any], asyncio.Future[Any]]] = {
            Acquire: self._acquire,
            Release: self._release,
            RequestRelease: self._request_release,
            ReadStatus: self._read_status,
            ReadPage: self._read_page,
            **dict.fromkeys(self._encoding.calls, self._call),
        }

    def _acquire(self, operation: Acquire) -> asyncio.Future[Answer]:
        form, ticket, limit = operation.form, operation.ticket, operation.max_waiters
        who = self._text(operation.name, operation.waiter, form)
        head = self._encoding.head(operation.name, operation.ttl, form.closes, limit)
        own = f"${len(who)}\r\n{who}\r\n".encode("ascii")
        newcomer = operation.wait and not ticket
        place = _NEWCOMER if newcomer else bulk(ticket if operation.wait else -1)
        joins = newcomer and form.plain and not (form.priority or limit)
        health = self._health
        script, health.beating = (
            scripts.ACQUIRE_HEARTBEAT if health.beating else scripts.ACQUIRE,
            False,
        )
        return self._pipe.call(
            script,
            10,
            head + own + place,
            must_run=False,
            expires=True,
            waiter="" if ticket else who,  # only a newcomer's question may be left unsent
            joins=head if joins else None,
        )

    def acquire_again(self, operation: Acquire) -> asyncio.Future[Answer]:
        """Ask for a waiter that was answered before: also without a ticket it is no newcomer.

        The server may have a grant for it. If it gives up before this is sent, its release must be
        sent all the same.
        """
        name, form = operation.name, operation.form
        place = bulk(operation.ticket if operation.wait else -1)
        own = bulk(self._text(name, operation.waiter, form)) + place
        head = self._encoding.head(name, operation.ttl, form.closes, operation.max_waiters)
        return self._pipe.call(scripts.ACQUIRE, 10, head + own, must_run=False, expires=True)

    def _release(self, operation: Release) -> asyncio.Future[int]:
        name, form, fence = operation.name, operation.form, operation.fence
        who = self._text(name, operation.waiter, form)
        if not fence and self._pipe.forget(who):
            unsent: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            unsent.set_result(WAS_ABSENT)
            return unsent
        grant = f"${len(who)}\r\n{who}\r\n${len(str(fence))}\r\n{fence}\r\n".encode("ascii")
        arguments = self._names.three(name) + grant + self._channels
        if fence and not operation.entered:
            # A grant that came too late: its waiter asks again, so it must not be marked as gone.
            return self._pipe.call(scripts.RELEASE, 9, arguments + _GIVEN_BACK)
        if operation.entered and form.closes:
            arguments += _CLOSES_AS_LOST if operation.lost else _CLOSES
        else:
            arguments += _CLOSES_NOTHING
        return self._pipe.call(scripts.RELEASE, 8, arguments, leaves_tombstone=True)

    def _call(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        return self._send(self._encoding.calls[operation.__class__](operation))

    def _send(self, call: Call) -> asyncio.Future[Any]:
        script, count, arguments, expires, tombstone = call
        return self._pipe.call(
            script, count, arguments, expires=expires, leaves_tombstone=tombstone
        )

    def _request_release(self, operation: RequestRelease) -> asyncio.Future[int]:
        return asyncio.ensure_future(self._ask_holders(operation))

    async def _ask_holders(self, operation: RequestRelease) -> int:
        """Ask them to release it, not too many in one command."""
        asked: Asked = await self._send(self._encoding.request_release(operation, (b"", b"")))
        told, behind = asked
        while behind is not None:
            asked = await self._send(self._encoding.request_release(operation, behind))
            more, behind = asked
            told += more
        return told

    def _read_status(self, operation: ReadStatus) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._reader.status(operation.name, waiters=operation.waiters))

    def _read_page(self, operation: ReadPage) -> asyncio.Future[Page]:
        return asyncio.ensure_future(self._reader.page(operation.start))


def one_by_one(
    renew: Callable[[Renew], asyncio.Future[list[bool | None]]], operation: Renew
) -> asyncio.Future[list[bool | None]]:
    """Renew each lease by itself: a script may not use keys of several slots."""
    if len(operation.renewals) == 1:
        return renew(operation)
    parts = [renew(Renew([each])) for each in operation.renewals]
    return asyncio.ensure_future(_together(parts))


async def _together(parts: Sequence[asyncio.Future[list[bool | None]]]) -> list[bool | None]:
    """The answers of renewals of one lease each, as those of one: None for each that has failed.

    If all of them fail, so does this.
    """
    await asyncio.wait(parts)
    if all(part.exception() for part in parts):
        await parts[0]  # raises it
    return [None if part.exception() else part.result()[0] for part in parts]


def shown(pool: ConnectionPool, prefix: str) -> str:
    """A server, its database and the prefix, as text for people."""
    where = pool.connection_kwargs
    server = where.get("path") or f"{where.get('host', '?')}:{where.get('port', '?')}"
    if is_managed(pool):
        server = address_of(pool)
    return f"{server} db={where.get('db', 0)} prefix={prefix!r}"
