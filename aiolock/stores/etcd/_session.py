"""One client's time with the cluster, from opening to closing: what its parts are joined by."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Final

from aiolock._futures import retrieve
from aiolock._turns import Backlog
from aiolock.protocol import (
    AskAgain,
    Deliver,
    Finish,
    Operation,
    Reconnected,
    Release,
    Renew,
    ReportHandoff,
)
from aiolock.stores._batches import Batches
from aiolock.stores._by_name import ByName
from aiolock.stores._link_state import LinkState
from aiolock.stores._outcomes import refusal
from aiolock.stores.etcd._documents import Documents
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._holds import Hold, Holds
from aiolock.stores.etcd._keep_alive import KeepAlive
from aiolock.stores.etcd._keys import Keys
from aiolock.stores.etcd._letters import events_in
from aiolock.stores.etcd._messages import range_request
from aiolock.stores.etcd._outcome import Outcomes
from aiolock.stores.etcd._own_leases import OwnLeases
from aiolock.stores.etcd._presence import Presence
from aiolock.stores.etcd._registry import Registry
from aiolock.stores.etcd._renewals import Renewals
from aiolock.stores.etcd._replies import Event, read_status
from aiolock.stores.etcd._servers import PATIENCE, Servers
from aiolock.stores.etcd._settings import Settings
from aiolock.stores.etcd._swaps import AT_ONCE, MOST, Outcome, Swap, Swaps
from aiolock.stores.etcd._watch import Watch

_OLDEST: Final = (3, 4)
"""The oldest version of etcd: it compares leases, and ends a watch without a leader."""
_GIVES_UP: Final = 8.0
"""Seconds after which the opening fails, and within which closing ends."""
_PAUSE: Final = 0.5
"""Seconds after which work in the background is begun again."""
_TOGETHER: Final = 32
"""Names that are asked about again in one iteration of the event loop; others have a turn then."""
_LINK: Final = "watch"

log = logging.getLogger("aiolock")


class Session:
    """One client, from opening to closing."""

    def __init__(
        self,
        settings: Settings,
        prefix: str,
        client: str,
        deliver: Deliver,
        clock: Callable[[], int],
    ) -> None:
        self._client, self._deliver = client, deliver
        self._loop = asyncio.get_running_loop()
        self._tasks = set[asyncio.Task[Any]]()
        self._keys = keys = Keys(settings.folder, prefix)
        self._links = LinkState(deliver)
        self._servers = servers = Servers(settings)
        self._keep_alive = KeepAlive(servers, self._start)
        self.leases = leases = OwnLeases(
            *(servers, self._keep_alive, keys, client), start=self._start
        )
        self._registry = registry = Registry(keys, self._lease_ended)
        self._holds = holds = Holds(self._expire)
        self._outcomes = Outcomes(holds, leases)
        self.swaps = Swaps(servers, keys, client)
        self._presence = Presence(
            *(client, keys, servers),
            swaps=self.swaps,
            registry=registry,
            leases=leases,
            joined_again=self._joined_again,
        )
        self._documents = Documents(
            *(client, keys, servers),
            swaps=self.swaps,
            batches=Batches[Swap, Outcome](
                self.swaps.send, self._start, most=MOST, at_once=AT_ONCE
            ),
            registry=registry,
            leases=leases,
            presence=self._presence,
            outcomes=self._outcomes,
            start=self._start,
            waits=self._waits,
            deliver=deliver,
            clock=clock,
        )
        self._by_name = ByName(self._documents.carry_out, self._documents.names)
        self._renewals = Renewals(holds, leases, self._by_name.submit)
        self._watch = Watch(servers, self, up=self._watches, down=self._does_not_watch)
        self._waiting = set[str]()
        """The names that waiters of this client wait for."""
        self._asking = False
        self._to_ask = Backlog(self._ask, most=_TOGETHER)
        """Those of them that are to ask again."""

    def _start(self, work: Any) -> asyncio.Task[Any]:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        retrieve(task)

    # Opening and closing

    async def open(self) -> None:
        """Connect, and become known; `StoreError` says why that fails."""
        try:
            async with asyncio.timeout(_GIVES_UP):
                await self._open()
        except BaseException as error:
            await self._close()
            if isinstance(error, CallError):
                raise error.store_error(self._keys.root.decode(), refused=True) from error
            if isinstance(error, TimeoutError):
                raise refusal("etcd does not answer", error) from error
            raise

    async def _open(self) -> None:
        until = self._loop.time() + PATIENCE
        await self._check(until)
        revision = await self._presence.join(until)
        own = self._keys.letters(self._client)
        self._watch.start([own, self._keys.presences, self._keys.holds], revision + 1)
        for work in (self._watch.run, self._presence.run):
            _ = self._start(self._keep_running(work))
        await self._watch.opened.wait()
        self._by_name.begin(self._client)
        self._links.observed = True

    async def _keep_running(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Go on with it whatever it raises: without it, the client would be deaf, or seem dead."""
        while True:
            try:
                await work()
            except Exception:
                log.exception("aiolock: a fault in the store in etcd, which goes on")
            await asyncio.sleep(_PAUSE)
            try:
                await self.on_gap()  # something may have been missed
            except CallError:
                self._joined_again()  # so that all waiters ask, until they are answered
            except Exception:
                log.exception("aiolock: a fault in the store in etcd, which goes on")
                self._joined_again()

    async def _check(self, until: float) -> None:
        reply = await self._servers.call("Maintenance/Status", b"", until=until, opening=True)
        status = read_status(reply)
        version = tuple(int(part) for part in status.version.split(".")[:2] if part.isdigit())
        if version < _OLDEST:
            error = refusal(f"etcd {status.version} is too old: 3.4 or newer is needed")
            error.misconfigured = True
            raise error

    async def aclose(self) -> None:
        """Carry out what was submitted, then leave."""
        self._links.observed = False
        try:
            await self._by_name.end()
        finally:
            try:
                with contextlib.suppress(CallError, TimeoutError):  # then others find it dead later
                    async with asyncio.timeout(PATIENCE):
                        await self._presence.leave()
            finally:
                await self._close()

    async def _close(self) -> None:
        self._holds.stop()
        self._keep_alive.stop()
        while tasks := list(self._tasks):  # one that is cancelled may have started another
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        await self._servers.aclose()

    # Operations

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        """Start the operation; the future of its answer."""
        if isinstance(operation, Renew) and self._by_name.is_open:
            return self._start(self._renewals.carry_out(operation, self._loop.time()))
        if isinstance(operation, Release | Finish):
            self._holds.ends(operation.name, operation.waiter)
        elif isinstance(operation, ReportHandoff):
            self._holds.ends(operation.name, operation.source)
        return self._by_name.submit(operation)

    def _expire(self, hold: Hold) -> None:
        """End a hold that was not renewed in time: its lease may live on, for others."""
        if self._by_name.is_open:
            name, waiter, fence = hold.grant
            release = Release(name, waiter, hold.form, fence, lost=bool(hold.form.after_loss))
            self._by_name.submit(release).add_done_callback(retrieve)

    # What the watch reports

    def on_events(self, events: Sequence[Event]) -> None:
        """See `Reader`."""
        own = self._keys.letters(self._client)
        for event in events:
            key, text, _, lease = event.key_value
            if not key.startswith(own):
                self._registry.changed(event)
                if event.deleted:
                    self._is_gone(key)
            elif not event.deleted:
                self._read_letter(text, lease)

    def _is_gone(self, key: bytes) -> None:
        """If the key was our own, others do not see us any more, or what our holds live with.

        Its lease has ended; or somebody has removed the key, and the documents, too.
        """
        if self._by_name.is_open:
            if key == self._keys.presence(self._client):
                mark = self.swaps.mark
                _ = self._start(self._presence.rewrite(mark, self._loop.time() + PATIENCE))
            elif self.leases.is_gone(key):
                self._joined_again()

    def _read_letter(self, text: bytes, lease: int) -> None:
        missed = False
        for event in events_in(text):
            delivered = self._outcomes.pushed(event, lease)
            if delivered is not None:
                self._deliver(delivered)
            missed = missed or delivered is None
        if missed:
            self._deliver(Reconnected())

    async def on_gap(self) -> int:
        """See `Reader`."""
        until = self._loop.time() + PATIENCE
        own = self._keys.presence(self._client)
        found = await self._presence.read_all(until, range_request(own))
        self._joined_again()
        return found.revision + 1

    def _watches(self) -> None:
        self._links.up(_LINK)

    def _does_not_watch(self, error: CallError) -> None:
        failure = error.store_error(self._keys.root.decode(), refused=False)
        self._links.down(_LINK, failure)

    def _joined_again(self) -> None:
        """Letters may have been missed, and others may have taken us for dead."""
        self._holds.doubt()
        if self._by_name.is_open:
            self._deliver(Reconnected())

    def _waits(self, name: str, waits: bool) -> None:  # noqa: FBT001  # a callback
        if waits:
            self._waiting.add(name)
        else:
            self._waiting.discard(name)

    def _lease_ended(self) -> None:
        """A client has died, or a hold of it has ended: have our waiters look at that."""
        if not self._asking and self._waiting:
            self._asking = True
            self._loop.call_soon(self._ask_again)

    def _ask_again(self) -> None:
        self._asking = False
        self._to_ask.add(self._waiting)

    def _ask(self, name: str) -> None:
        if self._by_name.is_open and name in self._waiting:
            self._deliver(AskAgain(name))
