"""The Redis store: locks on one server, where each operation is one call of one script."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
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
from aiolock.store import Features, Receiver, Submitted
from aiolock.stores.redis import _scripts as scripts
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._companion import Companion
from aiolock.stores.redis._encoding import Call, Encoding, Texts
from aiolock.stores.redis._encoding_rare import RareEncoding
from aiolock.stores.redis._errors import Place, address_of
from aiolock.stores.redis._lone_node import is_node
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._outbox import not_after, tombstone
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._protocol import PROTOCOL
from aiolock.stores.redis._reading import StatusReader
from aiolock.stores.redis._replies import Asked
from aiolock.stores.redis._scripts import ACQUIRE, RELEASE, bulk
from aiolock.stores.redis._sentinel import Address, is_managed
from aiolock.stores.redis._session import MakePipe, Session
from aiolock.stores.redis._sharing import Sharing, learn

Value = TypeVar("Value")

_MOST_NAMES: Final = 4096
"""Names for which the arguments are kept encoded."""
_NEWCOMER: Final = bulk(0)
"""The ticket of a newcomer, which has none."""
_CLOSES: Final = bulk(1)
_CLOSES_AS_LOST: Final = bulk(2)
_CLOSES_NOTHING: Final = bulk(0)
_NO_COPIES: Final = bulk(0)
"""The stamp of a release without which no copies can come: see `RetryWindow`."""
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
        """Whether a script may use keys of one slot only (of one shard, then): see `_lone_node`."""
        self.features = Features(in_order=lambda: not self._slots_apart, protocols=self._protocols)

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
        self.receiving = operations.receiving
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

    form: Form | None = None
    stem = b""
    """The beginning of their texts; the number follows."""
    keys = b""
    """The keys of the name."""
    ttl = limit = -1
    head = b""
    """The arguments of an `Acquire` for that ttl and limit of waiters, up to the waiter."""
    joins: bytes | None = None
    """The same, if several newcomers may ask in one call."""


class _Question(Command):
    """An `Acquire`: only a newcomer's, which may be left unsent, has a ``waiter``."""

    script, count, must_run, takes = ACQUIRE, 10, False, bytes
    stamp = staticmethod(not_after)


class _Ending(Command):
    """A `Release`."""

    script, count, takes = RELEASE, 8, int
    stamp = staticmethod(tombstone)


class Operations:
    """The operations of one client at one server: ``table[type(operation)](operation)``."""

    def __init__(self, session: Session, names: Names, client: str, texts: Texts) -> None:
        self._loop = asyncio.get_running_loop()
        self._pipe = session.pipe
        self._health = session.health
        self._names = names
        self._texts, self._tag = texts, texts.tag
        self._encoded = defaultdict[str, _Encoded](_Encoded)
        self._channels = bulk(names.channels)
        self._reader = StatusReader(session.pipe, names, session.presence.own_keys)
        self._encoding = Encoding(names, texts)
        self._rare = RareEncoding(names, client, texts)
        self._calls = self._encoding.calls | self._rare.calls
        self._outbox = session.pipe.outbox
        self._of_shares = dict[str, None]()
        self._outbox.on_shares = partial(learn, names, self._of_shares, self._encoded)
        self._time, self._copies = self._outbox.time, self._outbox.copies
        self._post = self._outbox.post
        self._asks = ACQUIRE.heads[_Question.count + 1]
        self._releases = RELEASE.heads[_Ending.count + 1]
        self.receiving: Mapping[type[Operation[Any]], Callable[[Any, Receiver[Any]], Submitted]] = {
            Acquire: self._acquire,
            Release: self._release,
            ReportHandoff: self._report,
        }
        self.table: dict[type[Operation[Any]], Callable[[Any], asyncio.Future[Any]]] = {
            Acquire: partial(self._submit, self._acquire),
            Release: partial(self._submit, self._release),
            RequestRelease: self._request_release,
            ReadStatus: self._read_status,
            ReadPage: self._read_page,
            **dict.fromkeys(self._calls, self._call),
        }

    def _submit(
        self, start: Callable[[Any, Receiver[Any]], Command], operation: Acquire | Release
    ) -> asyncio.Future[Any]:
        answer = Prompt(loop=self._loop)
        start(operation, answer)
        return answer

    def _acquire(self, operation: Acquire, receiver: Receiver[Answer]) -> Command:
        # Flat, as `_release`: each acquisition comes here.
        name, waiter, form, ttl, ticket, wait, limit = operation
        known = self._encoded[name]
        if known.form is not form or known.ttl != ttl or known.limit != limit:
            if form.share or name in self._of_shares:
                return self._sharing.acquire(operation, receiver)
            self._encode(known, name, form)
            known.ttl, known.limit = ttl, limit
            known.head = self._encoding.head(name, ttl, form.closes, limit)
            known.joins = known.head if form.plain and not (form.priority or limit) else None
        text = b"%b%d" % (known.stem, waiter.seq)
        if self._tag is not None:
            text = self._tag(name, waiter, text.decode()).encode()
        own = b"$%d\r\n%b\r\n" % (len(text), text)
        command = _Question()
        command.receiver = receiver
        command.born = command.sent = now = self._time()
        if ticket or not wait or self._health.beating:
            self._ask_rarely(command, operation, known, own)
            return command
        command.waiter, command.asks_for, command.joins = own, waiter, known.joins
        command.arguments = arguments = known.head + own + _NEWCOMER
        copies = self._copies
        if now < copies.stamp_until and ACQUIRE in self._outbox.known:
            self._post(command, self._asks + arguments + copies.stamp)
        else:
            self._post(command)
        return command

    def _ask_rarely(
        self, command: Command, operation: Acquire, known: _Encoded, own: bytes
    ) -> None:
        """Send a question other than that of a newcomer who waits, or one with a heartbeat."""
        if self._health.beating:
            command.script, self._health.beating = scripts.ACQUIRE_HEARTBEAT, False
        place = operation.ticket if operation.wait else -1
        command.arguments = known.head + own + bulk(place)
        if not operation.ticket:  # only a newcomer's question may be left unsent
            command.waiter = own
            if operation.wait:
                command.asks_for, command.joins = operation.waiter, known.joins
        self._post(command)

    def _release(self, operation: Release, receiver: Receiver[int]) -> Command:
        name, waiter, form, fence, entered, _ = operation
        known = self._encoded[name]
        if known.form is not form:
            if form.share or name in self._of_shares:
                return self._sharing.release(operation, receiver)
            self._encode(known, name, form)
        text = b"%b%d" % (known.stem, waiter.seq)
        if self._tag is not None:
            text = self._tag(name, waiter, text.decode()).encode()
        grant = b"%d" % fence
        arguments = b"%b$%d\r\n%b\r\n$%d\r\n%b\r\n%b"
        arguments %= known.keys, len(text), text, len(grant), grant, self._channels
        command = _Ending()
        command.receiver = receiver
        command.born = command.sent = self._time()
        if not entered or not fence or form.closes:
            own = b"$%d\r\n%b\r\n" % (len(text), text)
            self._release_rarely(command, operation, arguments, own)
            return command
        command.arguments = arguments = arguments + _CLOSES_NOTHING
        if RELEASE in self._outbox.known and not self._copies.copies_may_arrive:
            self._post(command, self._releases + arguments + _NO_COPIES)
        else:
            self._post(command)
        return command

    def _release_rarely(
        self, command: Command, operation: Release, arguments: bytes, own: bytes
    ) -> None:
        """Send a release that names no grant, or that closes the lock, or of a late grant."""
        fence, closes = operation.fence, _CLOSES_NOTHING
        if not operation.entered and fence:
            # A grant that came too late: its waiter asks again, so it must not be marked as gone.
            command.count, command.stamp, closes = 9, None, _GIVEN_BACK
        elif operation.entered and operation.form.closes:
            closes = _CLOSES_AS_LOST if operation.lost else _CLOSES
        command.arguments = arguments + closes
        if not fence and self._pipe.forget(own):
            self._loop.call_soon(command.receiver.resolve, WAS_ABSENT)
        else:
            self._post(command)

    def _report(self, operation: ReportHandoff, receiver: Receiver[int]) -> Command:
        script, count, arguments, _, _ = self._encoding.report_handoff(operation)
        command = Command.of(script, count, arguments, receiver, self._time(), must_run=True)
        command.stamp = not_after
        self._post(command)
        return command

    @cached_property
    def _sharing(self) -> Sharing:
        return Sharing(self._pipe, self._names, self._texts, self._encoded)

    def _encode(self, known: _Encoded, name: str, form: Form) -> None:
        """Encode what is the same for all waiters of this name and form."""
        if len(self._encoded) > _MOST_NAMES:
            del self._encoded[next(iter(self._encoded))]  # the one that was encoded first
        known.form, known.ttl = form, -1
        known.stem = self._texts.stem(form).encode("ascii")
        known.keys = self._names.three(name)

    def acquire_again(self, operation: Acquire) -> asyncio.Future[Answer]:
        """Ask for a waiter that was answered before: also without a ticket it is no newcomer.

        The server may have a grant for it. If it gives up before this is sent, its release must be
        sent all the same.
        """
        answer = Prompt(loop=self._loop)
        self._sharing.acquire(operation, answer, again=True)
        return answer

    def _call(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        return self._send(self._calls[operation.__class__](operation))

    def _send(self, call: Call) -> asyncio.Future[Any]:
        script, count, arguments, expires, tombstone = call
        return self._pipe.call(
            script, count, arguments, expires=expires, leaves_tombstone=tombstone
        )

    def _request_release(self, operation: RequestRelease) -> asyncio.Future[int]:
        return asyncio.ensure_future(self._ask_holders(operation))

    async def _ask_holders(self, operation: RequestRelease) -> int:
        """Ask them to release it, not too many in one command."""
        asked: Asked = await self._send(self._rare.request_release(operation, (b"", b"")))
        told, behind = asked
        while behind is not None:
            asked = await self._send(self._rare.request_release(operation, behind))
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
