"""A store of your own, on a database that has nothing but documents and compare-and-swap.

    python examples/document_store.py

`Documents` stands in for the database: replace it by calls to etcd, Consul, DynamoDB or MongoDB.
`DocumentStore`, a hundred lines, stays as it is. It has a `Document` for each name, with its state,
its last fence and the pushes that clients have not read yet. It loads the document, changes it and
swaps it, and starts again if another client was faster. tests/stores/test_contract.py tests it as
it tests every store.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any, Final

import aiolock
from aiolock.protocol import Deliver, Reconnected
from aiolock.stores.authors import Document, Operation, OperationsByName, about_us, refusal

# --- Replace this: the database


class Documents:
    """Stands in for a database, in this process, some milliseconds away.

    Each method is one request, and may raise an `OSError`: then nobody knows whether it was carried
    out. Any other error is a fault, and is not tried again.
    """

    def __init__(self, latency: float = 0.002) -> None:
        self.latency = latency
        self.kept: dict[str, tuple[str, int, float]] = {}
        self._versions = itertools.count(1)
        self._sessions: dict[str, tuple[str, asyncio.Queue[str | None]]] = {}

    async def _travels(self) -> None:
        await asyncio.sleep(random.uniform(0, self.latency))

    def _current(self, key: str) -> tuple[str, int]:
        value, version, end = self.kept.get(key, ("", 0, 0.0))
        return (value, version) if end > time.monotonic() else ("", 0)

    async def get(self, key: str) -> tuple[str, int]:
        """The document and its version, "" and 0 if there is none: never an older version.

        (etcd: a linearizable range; Consul: ``?consistent``; DynamoDB: ``ConsistentRead``.)
        """
        await self._travels()
        current = self._current(key)
        await self._travels()
        return current

    async def swap(self, key: str, value: str, version: int, keep: float) -> bool:
        """Write it if the version is still this one, and keep it for at least this many seconds.

        No version is ever used twice. (etcd: a transaction on ``mod_revision``; Consul: ``?cas``;
        DynamoDB: a condition on an attribute; MongoDB: a filter on a field.)
        """
        await self._travels()
        if swapped := self._current(key)[1] == version:
            self.kept[key] = value, next(self._versions), time.monotonic() + keep
        await self._travels()
        return swapped

    async def keys(self, prefix: str, after: str, most: int) -> list[str]:
        """The next keys after ``after``, in order, that begin with ``prefix``."""
        await self._travels()
        found = [key for key in self.kept if key.startswith(prefix) and key > after]
        await self._travels()
        return heapq.nsmallest(most, found)

    async def clock(self) -> int:
        """One clock for all clients, in microseconds since 1970."""
        await self._travels()
        return time.time_ns() // 1000

    async def join(self, client: str, about: str) -> AsyncIterator[str]:
        """Begin a session of this process; yields what `ring` says to it from now on.

        The iterator ends if the session or the watch is lost. (etcd: a key with a lease, kept alive
        in the background, and a watch from the revision at which it was written.)
        """
        await self._travels()
        bell = asyncio.Queue[str | None]()
        self._sessions[client] = about, bell
        return self._rings(bell)

    async def _rings(self, bell: asyncio.Queue[str | None]) -> AsyncIterator[str]:
        while (name := await bell.get()) is not None:
            yield name

    async def leave(self, client: str) -> None:
        """End the session, as a crash of its process does."""
        _, bell = self._sessions.pop(client, ("", None))
        if bell is not None:
            bell.put_nowait(None)
        await self._travels()

    async def sessions(self) -> Mapping[str, str]:
        """All live clients, and what each said of itself."""
        await self._travels()
        return {client: about for client, (about, _) in self._sessions.items()}

    async def ring(self, client: str, name: str) -> None:
        """Tell a client that this document has something for it.

        (etcd: write a key that it watches.)
        """
        await self._travels()
        if client in self._sessions:
            self._sessions[client][1].put_nowait(name)


# --- Keep this: the store

PATIENCE: Final = 4.0
"""Seconds after which the database is given up. A request that waits for another one first, and
then for itself, has waited for 8; 9.5 is the most that is allowed."""
PAUSE: Final = 0.05


class DocumentStore(OperationsByName):
    """Locks in documents: a `Store`, for `aiolock.connect`."""

    def __init__(self, database: Documents, prefix: str = "aiolock") -> None:
        super().__init__()
        self._database, self._prefix = database, f"{prefix}/"

    async def open(self, client: str, deliver: Deliver) -> None:
        """Begin a session, and listen."""
        self._deliver = deliver
        self._unsure: dict[str, int] = {}
        """By name: a version on which a swap was sent whose reply is missing, perhaps for ever."""
        try:
            async with asyncio.timeout(PATIENCE):
                bell = await self._join(client)
        except OSError as error:  # a `TimeoutError` is one
            raise refusal("the database cannot be reached") from error
        self._begin(client)
        self._listening = self._start(self._listen(bell))

    async def aclose(self) -> None:
        """End the session, once all requests are done."""
        if self._is_open:
            self._listening.cancel()
            try:
                await self._end()
            finally:
                with contextlib.suppress(OSError):  # then the session ends by itself
                    async with asyncio.timeout(PATIENCE):
                        await self._database.leave(self._client)

    # The session, and its letters

    async def _join(self, client: str) -> AsyncIterator[str]:
        return await self._database.join(client, about_us())

    async def _listen(self, bell: AsyncIterator[str]) -> None:
        while True:
            with contextlib.suppress(OSError):
                async for name in bell:
                    # Any operation on a document takes the letters for this client out of it.
                    looking = self._call(Operation((name,), lambda _: None))
                    looking.add_done_callback(self._looked)
            # Other clients may have taken us for dead, and pushes may have been missed.
            await asyncio.sleep(PAUSE)
            with contextlib.suppress(OSError):
                bell = await self._join(self._client)
                self._deliver(Reconnected())

    def _looked(self, future: asyncio.Future[None]) -> None:
        if not future.cancelled() and future.exception() and self._is_open:
            self._deliver(Reconnected())

    async def _ring(self, clients: set[str], name: str) -> None:
        # A client that was not reached is rung again by the next one that finds a letter for it.
        with contextlib.suppress(OSError):
            async with asyncio.timeout(PATIENCE):
                await asyncio.gather(*(self._database.ring(client, name) for client in clients))

    # The documents

    async def _names(self, start: str, most: int) -> Sequence[str]:
        own = self._prefix
        try:
            async with asyncio.timeout(PATIENCE):
                keys = await self._database.keys(own, own + start, most)
        except OSError as error:
            raise refusal("the database does not list its keys") from error
        return [key.removeprefix(own) for key in keys]

    async def _carry_out(self, name: str, operations: Sequence[Operation]) -> Sequence[Any]:
        again, why, answers = False, None, None
        try:
            async with asyncio.timeout(PATIENCE):
                while answers is None:  # else another client was faster
                    again = again or name in self._unsure
                    try:
                        answers = await self._attempt(name, operations, again=again)
                    except OSError as error:
                        why = error
                        await asyncio.sleep(PAUSE)
        except Exception as error:  # noqa: BLE001  # whatever it is, it may have been done
            failed = aiolock.StoreError if again or name in self._unsure else refusal
            raise failed(f"the database does not do it: {why or error!r}") from why or error
        if again and self._is_open:  # pushes of an attempt that was made unheard are lost
            self._deliver(Reconnected())
        return answers

    async def _attempt(
        self, name: str, operations: Sequence[Operation], *, again: bool
    ) -> Sequence[Any] | None:
        key = self._prefix + name
        text, version = await self._database.get(key)
        if self._unsure.get(name) != version:  # that swap is over, with or without effect
            self._unsure.pop(name, None)
        # Not before: time would run backwards for the name, and a waiter that has just come might
        # pass for dead.
        now, living = await asyncio.gather(self._database.clock(), self._database.sessions())
        document = Document(text, self._client, now, living, again=again)
        answers = [operation.run(document) for operation in operations]
        # A swap that is still under way has no effect on another version: so there has to be one.
        changed = document.changed(anyway=name in self._unsure)
        if changed is not None:
            self._unsure[name] = version
            swapped = await self._database.swap(key, changed[0], version, changed[1])
            del self._unsure[name]
            if not swapped:
                return None
        for push in document.pushes:
            self._deliver(push.event(name))
        if document.mail:
            _ = self._start(self._ring({to for to, _ in document.mail}, name))
        return answers


# --- An example of its use


async def main() -> None:
    """Three clients, of five tasks each, take turns."""
    database = Documents()

    async def work(locks: aiolock.LockClient, who: str) -> None:
        async with locks.lock("order:42", timeout=20) as lease:
            print(f"{who} has it, fence {lease.fence}")

    async with contextlib.AsyncExitStack() as stack:
        clients = [aiolock.connect(DocumentStore(database)) for _ in range(3)]
        for client in clients:
            await stack.enter_async_context(client)
        await asyncio.gather(
            *(work(client, f"{n}.{task}") for n, client in enumerate(clients) for task in range(5))
        )


if __name__ == "__main__":
    asyncio.run(main())
