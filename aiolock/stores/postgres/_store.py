"""The PostgreSQL store: each operation is one call of one function in the database."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import psycopg

from aiolock._futures import retrieve
from aiolock._turns import Backlog
from aiolock.copying import Uncopyable
from aiolock.errors import StoreError
from aiolock.protocol import (
    Deliver,
    Operation,
    ReadPage,
    ReadStatus,
    Reconnected,
    ReportHandoff,
    RequestRelease,
)
from aiolock.store import Features
from aiolock.stores._link_state import LinkState
from aiolock.stores._opening import Opening
from aiolock.stores._protocols import both
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres._calls import ENCODE, Call, Encoder, count, text
from aiolock.stores.postgres._codec import number
from aiolock.stores.postgres._errors import Failed, is_misconfigured, store_error
from aiolock.stores.postgres._listener import Listener
from aiolock.stores.postgres._pipeline import Pipeline
from aiolock.stores.postgres._reading import StatusReader
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
_DELIVERED: Final = 64
"""Pushes in one iteration of the event loop; others have a turn then."""
_SWEPT: Final = 100
"""Names that are checked in one sweep, and clients that are forgotten, at most."""
_CLOCK: Final = Call("clock", "", (), text)


class PostgresStore(Uncopyable):
    """Locks in one PostgreSQL database, through two connections: commands, and pushes."""

    def __init__(self, settings: Settings, prefix: str) -> None:
        self._settings = settings
        self._prefix = prefix
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
        self._encoder = Encoder(self._prefix, client)
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._links = links = LinkState(deliver, is_misconfigured)
        self._pushes = Backlog[Callable[[], object]](lambda push: push(), most=_DELIVERED)
        """The pushes to deliver: one answer may have a hundred of them."""
        self._pipe = Pipeline(
            self._settings,
            on_pushes=self._on_pushes,
            on_lost=partial(links.down, "commands"),
            on_failing=partial(links.failing, "commands"),
            on_restored=self._back,
        )
        self._reader = StatusReader(self._pipe.call, self._prefix)
        self._listener = Listener(
            *(self._settings, client),
            command=lambda: self._pipe.call(_CLOCK),
            on_push=self._on_push,
            on_lost=partial(links.down, "listening"),
            on_failing=partial(links.failing, "listening"),
            on_restored=self._listens_again,
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
        answer = await self._pipe.call(Call("beat", "", [self._me], text))
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
        self._pipe.call(Call("bye", "", [self._me], text)).add_done_callback(retrieve)
        await self._disconnect()

    async def _disconnect(self) -> None:
        await self._pipe.aclose(timeout=HEARTBEAT_TIMEOUT)
        await self._listener.aclose()
        self._pushes.clear()

    # Pushes

    def _on_pushes(self, name: str, pushes: Sequence[str]) -> None:
        if any(push.startswith(codec.REST) for push in pushes):
            for rest in [push for push in pushes if push.startswith(codec.REST)]:
                call = self._encoder.go_on(name, rest.removeprefix(codec.REST))
                self._pipe.call(call).add_done_callback(retrieve)
            pushes = [push for push in pushes if not push.startswith(codec.REST)]
        self._pushes.add([partial(self._deliver_push, push, name) for push in pushes])

    def _deliver_push(self, push: str, name: str) -> None:
        try:
            self._deliver(codec.event(push, self._client, name))
        except Exception:
            # It may be a push of a later version: its answer must be delivered all the same.
            log.exception("aiolock: a push of PostgreSQL's could not be delivered: %.200r", push)

    def _on_push(self, text: str) -> None:
        event = codec.event(text, self._client)
        if not event.name:
            raise ValueError("it speaks of no name")
        prefix, _, name = bytes.fromhex(event.name).decode().partition("\0")
        if prefix == self._prefix and not self._closing:
            self._pushes.add([partial(self._deliver, event._replace(name=name))])

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
        self._pipe.call(Call("beat", "", [self._me], text)).add_done_callback(retrieve)
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
        sweep = Call("sweep", "", [number(_SWEPT)], count)
        self._pipe.call(sweep).add_done_callback(self._has_swept)

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

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        encode = ENCODE.get(type(operation))
        if encode is not None:
            return self._pipe.call(encode(self._encoder, operation))
        match operation:
            case RequestRelease():
                return asyncio.ensure_future(self._request(operation))
            case ReadStatus():
                return asyncio.ensure_future(self._reader.status(operation))
            case ReadPage():
                return asyncio.ensure_future(self._reader.page(operation))
            case ReportHandoff():
                # Never asked for: no waiter knows which one is before it, so no client hands off.
                refused = StoreError("the PostgreSQL store supports no local hand-off")
                refused.refused = True
                never: asyncio.Future[Any] = self._loop.create_future()
                never.set_exception(refused)
                return never
            case _:
                raise TypeError(f"no store has {operation!r}")

    async def _request(self, asked: RequestRelease) -> int:
        """Ask the holders, not too many in one call."""
        told, behind = await self._pipe.call(self._encoder.request(asked))
        while behind:
            more, behind = await self._pipe.call(self._encoder.request_on(asked, behind))
            told += more
        return int(told)
