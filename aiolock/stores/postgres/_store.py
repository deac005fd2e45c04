"""The PostgreSQL store: each operation is one call of one function in the database."""

from __future__ import annotations

import asyncio
import itertools
import logging
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Final

import psycopg

from aiolock._adapters import ByMethods
from aiolock._turns import Backlog, in_parts
from aiolock.copying import Uncopyable
from aiolock.errors import StoreError
from aiolock.protocol import (
    BREAK_UNKNOWN,
    FEW,
    WAS_ABSENT,
    WAS_UNKNOWN,
    Answer,
    Deliver,
    Form,
    Page,
    Posted,
    Reconnected,
    Renewal,
    ReportHandoff,
    Status,
    WaiterId,
)
from aiolock.store import Features
from aiolock.stores._link_state import LinkState
from aiolock.stores._opening import Opening
from aiolock.stores._protocols import both
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres._codec import Value, number, numbers
from aiolock.stores.postgres._errors import Failed, is_misconfigured, store_error
from aiolock.stores.postgres._listener import Listener
from aiolock.stores.postgres._pipe import Pipe
from aiolock.stores.postgres._schema import PROTOCOL
from aiolock.stores.postgres._settings import Settings

log = logging.getLogger("aiolock")

HEARTBEAT: Final = 10.0
"""Seconds after which both connections are checked."""
HEARTBEAT_TIMEOUT: Final = 4.0
"""Seconds for the heartbeat that checks them to arrive."""
_SWEEP: Final = 60.0
"""Seconds between two sweeps of one client: a sweep removes expired rows."""
_SOON: Final = 0.01
"""Seconds until the next sweep, at least, if there may be more to remove."""
_PAGE: Final = 200
"""Names on one page of a snapshot."""
_PARTIES: Final = 128
"""Waiters, or holders, that are read at one moment; a page of a snapshot has some more."""
_DELIVERED: Final = 64
"""Pushes in one iteration of the event loop; others have a turn then."""
_SWEPT: Final = 100
"""Names that are checked in one sweep, and clients that are forgotten, at most."""


class PostgresStore(ByMethods, Uncopyable):
    """Locks in one PostgreSQL database, through two connections: commands, and pushes."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
        self._resizes = itertools.count(1)
        self._closing = True
        self._opening = Opening()
        self._timer: asyncio.TimerHandle | None = None
        self._sweeper: asyncio.TimerHandle | None = None
        """The timer of the next sweep; there is one at most."""
        self.features = Features(protocols=self._protocols)

    def _protocols(self) -> tuple[int, ...]:
        return both(PROTOCOL, PROTOCOL if self._closing else self._pipe.protocol)

    def __repr__(self) -> str:
        return f"<PostgresStore {self._settings.place.where} prefix={self._prefix!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self._closing = False
        self._client = client
        self._me = client.encode()
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._links = links = LinkState(deliver, is_misconfigured)
        self._pushes = Backlog[Callable[[], object]](lambda push: push(), most=_DELIVERED)
        """The pushes to deliver: one answer may have a hundred of them."""
        self._pipe = Pipe(
            self._settings,
            on_pushes=self._on_pushes,
            lost=partial(links.down, "commands"),
            failing=partial(links.failing, "commands"),
            back=self._back,
        )
        self._listener = Listener(
            *(self._settings, client),
            command=lambda: self._call("clock", "", [], _text),
            on_push=self._on_push,
            lost=partial(links.down, "listening"),
            failing=partial(links.failing, "listening"),
            back=self._listens_again,
        )
        self._opened = False
        await self._opening.run(self._open(), self.aclose)

    async def _open(self) -> None:
        place = self._settings.place
        try:
            await self._pipe.open()
            place = self._settings.listens_at
            await self._listener.open()
            place = self._settings.place
            await self._check_delivery()
        except BaseException as error:
            self._closing = True
            await self._disconnect()
            if isinstance(error, StoreError):  # of a command
                error.refused = True
                raise
            if isinstance(error, psycopg.Error | Failed | OSError):
                raise store_error(error, place, refused=True) from error
            raise
        self._opened = self._links.observed = True
        self._swept_at = self._loop.time()
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        self._sweep_in(_SWEEP)

    async def _check_delivery(self) -> None:
        """Check that pushes of our commands arrive where we listen."""
        answer = await self._call("beat", "", [self._me], _text)
        try:
            async with asyncio.timeout(HEARTBEAT_TIMEOUT):
                await self._listener.heartbeat.wait()
        except TimeoutError:
            raise Failed(
                "what is notified there does not come to us: listen_url must be the same database"
            ) from None
        if answer.endswith(" f"):
            raise Failed("an advisory lock of one session is free to another there", "AL006")

    async def aclose(self) -> None:
        if self._opening.under_way:
            self._closing = True
            await self._opening.end()  # which disconnects
        if self._closing:
            return
        self._closing = True
        self._links.observed = False
        for timer in (self._timer, self._sweeper):
            if timer is not None:
                timer.cancel()
        # With this probability, clients that are open only for a moment do their share of sweeps.
        if random.random() * _SWEEP < self._loop.time() - self._swept_at:  # noqa: S311
            self._sweep()
        self._call("bye", "", [self._me], _text).add_done_callback(_ignore)
        await self._disconnect()

    async def _disconnect(self) -> None:
        await self._pipe.aclose(timeout=HEARTBEAT_TIMEOUT)
        await self._listener.aclose()
        self._pushes.clear()

    # Pushes

    def _on_pushes(self, name: str, pushes: Sequence[str]) -> None:
        self._pushes.add([partial(self._deliver_push, push, name) for push in pushes])

    def _deliver_push(self, push: str, name: str) -> None:
        try:
            self._deliver(codec.event(push, self._client, name))
        except Exception:
            # It may be a push of a later version: its answer must be delivered all the same.
            log.exception("aiolock: a push of PostgreSQL's could not be delivered: %.200r", push)

    def _on_push(self, text: str) -> None:
        key, push = codec.push(text, self._client)
        if key is None:
            raise ValueError("it speaks of no name")
        prefix, _, name = bytes.fromhex(key).decode().partition("\0")
        if prefix == self._prefix and not self._closing:
            self._pushes.add([partial(self._deliver, push.event(name))])

    def _back(self) -> None:
        """The command connection works again: ask for pushes that came with lost answers."""
        self._links.up("commands")
        if self._opened and not self._closing:
            self._deliver(Reconnected())

    def _listens_again(self) -> None:
        self._links.up("listening")
        self._deliver(Reconnected())

    def _beat(self) -> None:
        """Check both connections: the answer proves one, the heartbeat that arrives proves both."""
        now = self._loop.time()
        self._timer = self._loop.call_later(HEARTBEAT, self._beat)
        self._call("beat", "", [self._me], _text).add_done_callback(_ignore)
        self._loop.call_later(HEARTBEAT_TIMEOUT, self._check_answered, now)

    def _check_answered(self, sent: float) -> None:
        if not self._closing and self._listener.heartbeat_at < sent:
            self._listener.drop(Failed("no heartbeat has arrived"))

    def _sweep_in(self, seconds: float) -> None:
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._sweeper = self._loop.call_later(seconds, self._sweep)

    def _sweep(self) -> None:
        """Have the server remove some of the expired rows."""
        self._swept_at = self._loop.time()
        self._call("sweep", "", [number(_SWEPT)], _count).add_done_callback(self._has_swept)

    def _has_swept(self, done: asyncio.Future[int]) -> None:
        """Go on soon if there may be more, after as long as that took: others have work, too."""
        failure = None if done.cancelled() else done.exception()
        more = not done.cancelled() and failure is None and done.result() >= _SWEPT
        if not self._closing:
            if failure is not None:
                log.warning("aiolock: PostgreSQL did not remove expired rows: %s", failure)
            took = self._loop.time() - self._swept_at
            self._sweep_in(max(_SOON, took) if more else _SWEEP)

    # The operations

    def _call(
        self,
        function: str,
        name: str,
        arguments: Sequence[Value],
        decode: Callable[[str, bool], Any],
        *,
        must_run: bool = True,
        expires: bool = False,
        leaves_tombstone: bool = False,
    ) -> asyncio.Future[Any]:
        return self._pipe.call(
            function,
            name,
            arguments,
            decode,
            must_run=must_run,
            expires=expires,
            leaves_tombstone=leaves_tombstone,
        )

    def _key(self, name: str) -> bytes:
        return codec.bytea(codec.key(self._prefix, name))

    def acquire(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        ttl: int,
        *,
        ticket: int,
        wait: bool,
        max_waiters: int,
    ) -> asyncio.Future[Answer]:
        arguments = (
            *(self._key(name), self._me, number(waiter.seq), codec.form(form), number(ttl)),
            *(number(ticket), number(wait), number(max_waiters)),
        )
        return self._call("acquire", name, arguments, _answer, must_run=False, expires=True)

    def release(
        self,
        name: str,
        waiter: WaiterId,
        form: Form,
        fence: int,
        *,
        entered: bool = True,
        lost: bool = False,
    ) -> asyncio.Future[int]:
        arguments = (
            *(self._key(name), self._me, number(waiter.seq), number(fence)),
            None if entered and lost else number(entered),
        )
        if fence and not entered:
            # A grant that came too late: its waiter asks again, so it must not be marked as gone.
            return self._call("release", name, (*arguments, b"0"), _was)
        return self._call("release", name, arguments, _was, leaves_tombstone=True)

    def report_handoff(self, passed: ReportHandoff) -> asyncio.Future[int]:
        """Never called: no waiter knows which one is before it, so no client hands a lock off."""
        never: asyncio.Future[int] = self._loop.create_future()
        refused = StoreError("the PostgreSQL store supports no local hand-off")
        refused.refused = True
        never.set_exception(refused)
        return never

    def renew(self, renewals: Sequence[Renewal]) -> asyncio.Future[list[bool | None]]:
        names = b",".join([b'"\\%b"' % self._key(renewal.name) for renewal in renewals])
        arguments = (
            *(b"{%b}" % names, self._me, numbers([renewal.waiter.seq for renewal in renewals])),
            numbers([renewal.fence for renewal in renewals]),
            numbers([renewal.ttl for renewal in renewals]),
        )
        return self._call("renew", "", arguments, _held, expires=True)

    def status(self, name: str, *, waiters: bool = True) -> asyncio.Future[Status]:
        return asyncio.ensure_future(self._status(name) if waiters else self._few(name))

    def snapshot(self, start: str = "") -> asyncio.Future[Page]:
        return asyncio.ensure_future(self._snapshot(start))

    async def _ask(
        self,
        name: str,
        *,
        waiters: int = 0,
        behind: tuple[int, str, int] = codec.FIRST,
        before: int = 0,
        holders: int = 0,
        fence: int = 0,
    ) -> codec.Part:
        """A part of the status: so many waiters behind a place, so many holders behind a fence."""
        ticket, client, seq = behind
        arguments = (
            *(self._key(name), number(waiters), number(ticket), client.encode(), number(seq)),
            *(number(holders), number(fence)),
        )
        part: codec.Part = await self._call(
            "status", name, arguments, lambda text, _: codec.part(name, text, before)
        )
        return part

    async def _few(self, name: str) -> Status:
        part = await self._ask(name, holders=FEW)
        few = len(part.status.holders)
        return replace(part.status, more_holders=part.holding - few if few == FEW else 0)

    async def _status(self, name: str) -> Status:
        return await self._read(name, await self._ask(name, waiters=_PARTIES, holders=_PARTIES))

    async def _read(self, name: str, part: codec.Part) -> Status:
        """The status that begins with this part; see `ReadStatus` for one of many parties."""
        waiters = [*part.status.waiters]
        if max(len(waiters), len(part.status.holders)) < _PARTIES:
            return part.status
        while len(part.status.waiters) == _PARTIES:
            part = await self._ask(name, waiters=_PARTIES, behind=part.last, before=len(waiters))
            waiters += part.status.waiters
        part = await self._ask(name, holders=_PARTIES)
        holders = [*part.status.holders]
        while len(part.status.holders) == _PARTIES:
            part = await self._ask(name, holders=_PARTIES, fence=holders[-1].fence)
            holders += part.status.holders
        return await in_parts(codec.joined(name, waiters, holders, part.status))

    async def _snapshot(self, start: str) -> Page:
        own = codec.key(self._prefix, "")
        behind = bytes.fromhex(start) or own
        arguments = (codec.bytea(own), codec.bytea(behind), number(_PAGE), number(_PARTIES))
        found: codec.Parts = await self._call(
            "snapshot", "", arguments, lambda text, _: codec.page(text)
        )
        parts, more = found
        return Page([await self._read(part.status.name, part) for part in parts], more)

    def finish(
        self, name: str, waiter: WaiterId, form: Form, fence: int, remember: int
    ) -> asyncio.Future[int]:
        arguments = (
            *(self._key(name), self._me, number(waiter.seq), number(fence), number(remember)),
        )
        return self._call("finish", name, arguments, _was, leaves_tombstone=True)

    def request(self, name: str) -> asyncio.Future[int]:
        return self._call("request", name, (self._key(name), self._me), _count, expires=True)

    def downgrade(self, name: str, waiter: WaiterId, form: Form, fence: int) -> asyncio.Future[int]:
        arguments = (self._key(name), self._me, number(waiter.seq), number(fence))
        return self._call("downgrade", name, arguments, _count)

    def resize(self, name: str, declared: int, limit: int, remember: int) -> asyncio.Future[int]:
        token = f"{self._client}.{next(self._resizes)}".encode()
        arguments = (
            *(self._key(name), self._me, number(declared), number(limit), number(remember), token),
        )
        return self._call("resize", name, arguments, _count, expires=True)

    def post(
        self, name: str, count: int, *, token: str, declared: int, value: str, remember: int
    ) -> asyncio.Future[int]:
        arguments = (
            *(self._key(name), self._me, number(count), token.encode(), number(declared)),
            *(codec.bytea(value.encode()), number(remember)),
        )
        return self._call("post", name, arguments, _count, expires=True)

    def read(self, name: str) -> asyncio.Future[Posted]:
        return self._call("read", name, (self._key(name),), lambda text, _: codec.posted(text))

    def break_(self, name: str, fences: Sequence[int]) -> asyncio.Future[int]:
        return self._call("break_", name, (self._key(name), self._me, numbers(fences)), _broken)


def _text(text: str, _: bool) -> str:  # noqa: FBT001  # a callback, as those below
    return text


def _answer(text: str, _: bool) -> Answer:  # noqa: FBT001
    return codec.answer(text)


def _count(text: str, _: bool) -> int:  # noqa: FBT001
    return int(text)


def _held(text: str, _: bool) -> list[bool]:  # noqa: FBT001
    return codec.held(text)


def _was(text: str, again: bool) -> int:  # noqa: FBT001
    """Decode a release or the like: the first copy may have done what the second finds done."""
    was = int(text)
    return WAS_UNKNOWN if again and was == WAS_ABSENT else was


def _broken(text: str, again: bool) -> int:  # noqa: FBT001
    """Decode a break: the first copy may have broken what the second does not find."""
    broken = int(text)
    return BREAK_UNKNOWN if again and not broken else broken


def _ignore(done: asyncio.Future[Any]) -> None:
    """Ignore a failed heartbeat: the connection that failed is dealt with elsewhere."""
    if not done.cancelled():
        done.exception()
