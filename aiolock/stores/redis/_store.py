"""The Redis store: locks on one server, where each operation is one call of one script."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final, TypeVar

from redis.asyncio.connection import ConnectionPool

from aiolock._prompt import Prompt
from aiolock.copying import Uncopyable
from aiolock.protocol import (
    WAS_ABSENT,
    Acquire,
    Answer,
    Deliver,
    Form,
    Operation,
    Page,
    ReadPage,
    ReadStatus,
    Release,
    Renew,
    ReportHandoff,
    RequestRelease,
    Status,
)
from aiolock.store import Features, Receiver
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._companion import Companion
from aiolock.stores.redis._encoding import Call, Encoding, Texts
from aiolock.stores.redis._errors import Place, address_of
from aiolock.stores.redis._lone_node import is_node
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._outbox import not_after, tombstone
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._protocol import PROTOCOL
from aiolock.stores.redis._reading import StatusReader
from aiolock.stores.redis._replies import Asked
from aiolock.stores.redis._scripts import bulk
from aiolock.stores.redis._sentinel import Address, is_managed
from aiolock.stores.redis._session import MakePipe, Session

Value = TypeVar("Value")

_MOST_NAMES: Final = 4096
"""Names for which the arguments are kept encoded."""
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
        texts = Texts(client, blind=not session.health.counted)
        self.operations = operations = Operations(session, self._names, client, texts)
        self.submit_to = operations.submit_to
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


class _Encoded:
    """What the arguments of all waiters of one name and form have in common."""

    stem = ""
    """The beginning of their texts; the number follows."""
    encoded = b""
    """The same, encoded."""
    length = 0
    """Its characters."""
    keys = b""
    """The keys of the name."""
    ttl = limit = -1
    head = b""
    """The arguments of an `Acquire` for that ttl and limit of waiters, up to the waiter."""
    joins = False
    """Whether several newcomers may ask in one call."""

    def __init__(self, form: Form) -> None:
        self.form = form


class Operations:
    """The operations of one client at one server: ``table[type(operation)](operation)``."""

    def __init__(self, session: Session, names: Names, client: str, texts: Texts) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = session.pipe
        self._health = session.health
        self._names = names
        self._texts, self._tag = texts, texts.tag
        self._encoded = dict[str, _Encoded]()
        # Numbers of so many digits are those from the one to below the other.
        self._digits = self._from = self._below = 0
        self._channels = bulk(names.channels)
        self._reader = StatusReader(session.pipe, names, session.presence.own_keys)
        self._encoding = Encoding(names, client, texts)
        self._post, self._time = session.pipe.outbox.post, session.pipe.outbox.time
        self.table: dict[type[Operation[Any]], Callable[[Any], asyncio.Future[Any]]] = {
            Acquire: self._submit,
            Release: self._submit,
            RequestRelease: self._request_release,
            ReadStatus: self._read_status,
            ReadPage: self._read_page,
            **dict.fromkeys(self._encoding.calls, self._call),
        }

    def _submit(self, operation: Acquire | Release) -> asyncio.Future[Any]:
        answer = Prompt(loop=self._loop)
        self.submit_to(operation, answer)
        return answer

    def submit_to(  # noqa: C901, PLR0912, PLR0915  # flat: each acquisition comes here, twice
        self, operation: Acquire | Release | ReportHandoff, receiver: Receiver[Any]
    ) -> Command:
        """Start it; the receiver gets its answer."""
        if type(operation) is ReportHandoff:  # cheaper than `isinstance`
            return self._report(operation, receiver)
        name, waiter, form = operation.name, operation.waiter, operation.form
        known = self._encoded[name] if name in self._encoded else None  # noqa: SIM401  # no call
        if known is None or known.form is not form:
            known = self._encode(name, form)
        seq = waiter.seq
        who = f"{known.stem}{seq}"
        if self._tag is not None:
            who = self._tag(name, waiter, who)
            own = bulk(who)
        else:
            if not self._from <= seq < self._below:
                self._measure(seq)
            own = b"$%d\r\n%b%d\r\n" % (known.length + self._digits, known.encoded, seq)
        command = Command()
        command.receiver = receiver
        command.born = command.sent = self._time()
        if type(operation) is Release:
            fence = b"%d" % operation.fence
            command.script, command.count, command.stamp = scripts.RELEASE, 8, tombstone
            grant = b"%b%b$%d\r\n%b\r\n%b"
            command.arguments = grant % (known.keys, own, len(fence), fence, self._channels)
            if not operation.entered and operation.fence:
                # A grant that came too late: its waiter asks again, so it must not be marked as
                # gone.
                command.count, command.stamp = 9, None
                command.arguments += _GIVEN_BACK
            elif operation.entered and form.closes:
                command.arguments += _CLOSES_AS_LOST if operation.lost else _CLOSES
            else:
                command.arguments += _CLOSES_NOTHING
            if not operation.fence and self._pipe.forget(who):
                self._loop.call_soon(receiver.resolve, WAS_ABSENT)
            else:
                self._post(command)
            return command
        _, _, _, ttl, ticket, wait, limit = operation
        if known.ttl != ttl or known.limit != limit:
            known.ttl, known.limit = ttl, limit
            known.head = self._encoding.head(name, ttl, form.closes, limit)
        command.script, command.count, command.stamp = scripts.ACQUIRE, 10, not_after
        command.must_run, command.own = False, own
        if self._health.beating:
            command.script, self._health.beating = scripts.ACQUIRE_HEARTBEAT, False
        if ticket or not wait:
            command.arguments = known.head + own + bulk(ticket if wait else -1)
        else:
            command.arguments = known.head + own + _NEWCOMER
            command.asks_for = waiter
            if known.joins and not limit:
                command.joins = known.head
        if not ticket:  # only a newcomer's question may be left unsent
            command.waiter = who
        self._post(command)
        return command

    def _measure(self, seq: int) -> None:
        """The digits of this number, and of others near it."""
        self._digits = len(str(seq))
        self._from, self._below = 10 ** (self._digits - 1) if seq else 0, 10**self._digits

    def _report(self, operation: ReportHandoff, receiver: Receiver[int]) -> Command:
        script, count, arguments, _, _ = self._encoding.report_handoff(operation)
        command = Command.of(script, count, arguments, receiver, self._time(), must_run=True)
        command.stamp = not_after
        self._post(command)
        return command

    def _encode(self, name: str, form: Form) -> _Encoded:
        """What is the same for all waiters of this name and form."""
        if len(self._encoded) >= _MOST_NAMES:
            del self._encoded[next(iter(self._encoded))]  # the one that was encoded first
        known = self._encoded[name] = _Encoded(form)
        known.stem = self._texts.stem(form)
        known.encoded = known.stem.encode("ascii")
        known.length = len(known.stem)
        known.keys = self._names.three(name)
        known.joins = form.plain and not form.priority
        return known

    def acquire_again(self, operation: Acquire) -> asyncio.Future[Answer]:
        """Ask for a waiter that was answered before: also without a ticket it is no newcomer.

        The server may have a grant for it. If it gives up before this is sent, its release must be
        sent all the same.
        """
        name, form = operation.name, operation.form
        place = bulk(operation.ticket if operation.wait else -1)
        own = bulk(self._texts.text(name, operation.waiter, form)) + place
        head = self._encoding.head(name, operation.ttl, form.closes, operation.max_waiters)
        return self._pipe.call(scripts.ACQUIRE, 10, head + own, must_run=False, expires=True)

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
