"""Locks in any database that has documents and compare-and-swap, such as etcd or MongoDB.

`DocumentStore` is a whole store. You give it your `Database`: eight short methods, each of which is
one request. ``examples/document_store.py`` has them for a database in its own process.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from typing import Any, Final, Protocol

from aiolock.copying import Uncopyable
from aiolock.errors import StoreError
from aiolock.protocol import Deliver, Operation, Reconnected
from aiolock.store import Features
from aiolock.stores._by_name import ByName
from aiolock.stores._document import Document, Kept, about_us
from aiolock.stores._operations import Fetch, Part
from aiolock.stores._outcomes import refusal
from aiolock.stores._races import LOST, Races

_log: Final = logging.getLogger("aiolock")

__all__ = ["Database", "DocumentStore", "NotDone"]

PATIENCE: Final = 4.0
"""Seconds after which the database is given up. A request that waits for another one first, and
then for itself, has waited for 8; 9.5 is the most that is allowed."""
PAUSE: Final = 0.05
"""Seconds between two tries."""
_KNOWN: Final = 1000
"""Names whose documents are kept in memory as they were saved: those are not decoded again."""
_MOST_SKEW: Final = 60.0
"""Clocks that differ by more are wrong."""


class NotDone(OSError):  # it is one answer of three: done, not done, unknown
    """A request was certainly not carried out, and will not be: raised by a `Database`."""


class Database(Protocol):
    """Your database, as one client uses it.

    Each method is one request, and may raise an `OSError`: then nobody knows whether it was carried
    out, unless it is `NotDone`; and it is tried again for some seconds. Any other error is a fault,
    and is not tried again. A call may be cancelled.
    """

    async def load(self, key: str) -> tuple[str, int]:
        """The document and its version, "" and 0 if there is none: never an older version.

        (etcd: a linearizable range; Consul: ``?consistent``; DynamoDB: ``ConsistentRead``.)
        """
        ...

    async def swap(self, key: str, value: str, version: int, keep: float) -> bool:
        """Save it if the version is still this one, and keep it for at least ``keep`` seconds.

        Returns whether it was saved. No version of a key is ever used twice, except 0. (etcd: a
        transaction on ``mod_revision``; Consul: ``?cas``; DynamoDB: a condition on an attribute;
        MongoDB: a filter on a field.)
        """
        ...

    async def keys(self, prefix: str, after: str, most: int) -> Sequence[str]:
        """The next keys after ``after``, in order, that begin with ``prefix``: so many at most."""
        ...

    async def clock(self) -> int:
        """One clock for all clients, in microseconds since 1970.

        If the database has none, it is this client's own: see `DocumentStore`.
        """
        ...

    async def join(self, client: str, about: str) -> AsyncIterator[str]:
        """Begin to listen: yields each name that `notify` is called with for this client.

        From now on, until `leave` or the end of this process, `living` has the client and
        ``about``. The iterator ends, or raises an `OSError`, if that is lost; then it is called
        again. (etcd: a key with a lease, kept alive in the background, and a watch from the
        revision at which it was written.)
        """
        ...

    async def leave(self, client: str) -> None:
        """End that, as a crash of the process does."""
        ...

    async def living(self) -> Mapping[str, str]:
        """All clients that have joined and are alive, and the ``about`` of each."""
        ...

    async def notify(self, client: str, name: str) -> None:
        """Have the iterator of that client yield the name.

        (etcd: write a key that it watches.)
        """
        ...


class DocumentStore(Uncopyable):
    """Locks in documents, one for each name: a `~aiolock.Store`, for `aiolock.connect`.

    A document has the state of the name, its last fence, and the pushes that clients have not read
    yet. To carry out operations, the store loads it, changes it and swaps it; it starts again if
    another client was faster. The keys begin with ``prefix`` and ``/``.

    ``max_skew`` is for a database without a clock: by how many seconds the clocks of two clients
    may differ. A lease that is not renewed is then respected for so much longer.
    """

    features = Features()

    def __init__(
        self, database: Database, prefix: str = "aiolock", *, max_skew: float = 0.0
    ) -> None:
        self._database, self._prefix = database, f"{prefix}/"
        if not 0 <= max_skew <= _MOST_SKEW:
            raise ValueError(f"max_skew={max_skew!r} must be 0 to {_MOST_SKEW:g} seconds")
        self._slack = round(max_skew * 1_000_000)
        self._client = ""
        self._by_name = ByName(self._carry_out, self._names)
        self._unsure: dict[str, int] = {}
        """By name: a version on which a swap was sent whose reply is missing, perhaps for ever."""
        self._known: dict[str, tuple[str, Kept]] = {}
        """By name: the text that this client has saved last, and what is in it."""

    def __repr__(self) -> str:
        return f"<DocumentStore {self._database!r} prefix={self._prefix[:-1]!r}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self._client, self._deliver = client, deliver
        self._unsure, self._known = {}, {}
        try:
            async with asyncio.timeout(PATIENCE):
                names = await self._join()
        except OSError as error:  # a `TimeoutError` is one
            raise refusal("the database cannot be reached") from error
        self._by_name.begin(client)
        self._listening = self._by_name.start(self._listen(names))

    async def aclose(self) -> None:
        if self._by_name.is_open:
            self._listening.cancel()
            try:
                await self._by_name.end()
            finally:
                with contextlib.suppress(OSError):  # then the others find it dead later
                    async with asyncio.timeout(PATIENCE):
                        await self._database.leave(self._client)

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        return self._by_name.submit(operation)

    # Notifications

    async def _join(self) -> AsyncIterator[str]:
        return await self._database.join(self._client, about_us())

    async def _listen(self, names: AsyncIterator[str]) -> None:
        while True:
            try:
                async for name in names:
                    self.submit(Fetch(name)).add_done_callback(self._fetched)
            except OSError:
                pass
            except Exception:  # noqa: BLE001  # whatever it is, this client must not stay deaf
                _log.exception("aiolock: the notifications of %r have failed", self._database)
            # Other clients may have taken us for dead, and pushes may have been missed.
            await asyncio.sleep(PAUSE)
            try:
                names = await self._join()
            except OSError:
                continue
            except Exception:  # noqa: BLE001  # as above
                _log.exception("aiolock: %r cannot be joined", self._database)
                continue
            self._deliver(Reconnected())

    def _fetched(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() and self._by_name.is_open:
            self._deliver(Reconnected())

    async def _notify(self, clients: Iterable[str], name: str) -> None:
        # A client that was not reached is notified by the next one that finds a push for it.
        with contextlib.suppress(OSError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(self._database.notify(client, name) for client in clients))

    # The documents

    async def _names(self, start: str, most: int) -> Sequence[str]:
        own = self._prefix
        try:
            async with asyncio.timeout(PATIENCE):
                keys = await self._database.keys(own, own + start, most)
        except OSError as error:
            raise refusal("the database does not list its keys") from error
        return [key.removeprefix(own) for key in keys]

    async def _carry_out(self, name: str, parts: Sequence[Part]) -> Sequence[Any]:
        again, why, said = False, None, ""
        time = asyncio.get_running_loop().time
        races = Races(time() + PATIENCE)
        try:
            async with asyncio.timeout(PATIENCE):
                while True:
                    began = time()
                    again = again or name in self._unsure
                    try:
                        answers = await self._attempt(name, parts, again=again)
                    except OSError as error:
                        why, said = error, repr(error)
                        await asyncio.sleep(PAUSE)
                        continue
                    if answers is not None:
                        break
                    why, said = None, LOST
                    await asyncio.sleep(races.pause(time(), time() - began))
        except Exception as error:  # noqa: BLE001  # whatever it is, it may have been done
            failed = StoreError if again or name in self._unsure else refusal
            if not isinstance(error, TimeoutError):  # so it was not tried for too long
                why, said = None, ""
            raise failed(f"the database does not do it: {said or repr(error)}") from why or error
        if again and self._by_name.is_open:  # pushes of an attempt without a reply are lost
            self._deliver(Reconnected())
        return answers

    async def _attempt(
        self, name: str, parts: Sequence[Part], *, again: bool
    ) -> Sequence[Any] | None:
        key = self._prefix + name
        text, version = await self._database.load(key)
        if self._unsure.get(name) != version:  # that swap is over, with or without effect
            self._unsure.pop(name, None)
        # Not before: time would run backwards for the name, and a waiter that has just come might
        # pass for dead.
        now, living = await asyncio.gather(self._database.clock(), self._database.living())
        ours, known = self._known.pop(name, ("", text))
        document = Document(
            *(name, known if ours == text else text, self._client, now, living),
            again=again,
            slack=self._slack,
        )
        answers = [document.run(part) for part in parts]
        # A swap that is still under way has no effect on another version: so there has to be one.
        changed = document.changed(anyway=name in self._unsure)
        if changed is not None:
            earlier = name in self._unsure  # on this version, too
            self._unsure[name] = version
            try:
                swapped = await self._database.swap(key, changed.text, version, changed.keep)
            except NotDone:
                if not earlier:
                    del self._unsure[name]
                raise
            del self._unsure[name]
            if not swapped:
                return None
        if len(self._known) == _KNOWN:
            del self._known[next(iter(self._known))]
        self._known[name] = text if changed is None else changed.text, document.kept()
        for push in document.pushes:
            self._deliver(push.event)
        if document.mail:
            clients = {client for client, _ in document.mail}
            _ = self._by_name.start(self._notify(clients, name))
        return answers
