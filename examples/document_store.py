"""A store of your own, on a database that has nothing but documents and compare-and-swap.

    python examples/document_store.py

`Documents` stands in for the database: replace it by calls to etcd, Consul, DynamoDB or MongoDB.
`aiolock.stores.documents` has the store, and says what each method must do.
tests/stores/test_contract.py tests it as it tests every store.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
import itertools
import random
import time
from collections.abc import AsyncIterator, Mapping

import aiolock
from aiolock.stores.documents import DocumentStore


class Documents:
    """A `Database` that stands in for one: in this process, some milliseconds away."""

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

    async def load(self, key: str) -> tuple[str, int]:
        """The document and its version."""
        await self._travels()
        current = self._current(key)
        await self._travels()
        return current

    async def swap(self, key: str, value: str, version: int, keep: float) -> bool:
        """Save it, if the version is still this one."""
        await self._travels()
        if swapped := self._current(key)[1] == version:
            self.kept[key] = value, next(self._versions), time.monotonic() + keep
        await self._travels()
        return swapped

    async def keys(self, prefix: str, after: str, most: int) -> list[str]:
        """The next keys."""
        await self._travels()
        found = [key for key in self.kept if key.startswith(prefix) and key > after]
        await self._travels()
        return heapq.nsmallest(most, found)

    async def clock(self) -> int:
        """One clock for all clients."""
        await self._travels()
        return time.time_ns() // 1000

    async def join(self, client: str, about: str) -> AsyncIterator[str]:
        """Begin a session; yields the names of its notifications."""
        await self._travels()
        inbox = asyncio.Queue[str | None]()
        self._sessions[client] = about, inbox
        return self._read(inbox)

    async def _read(self, inbox: asyncio.Queue[str | None]) -> AsyncIterator[str]:
        while (name := await inbox.get()) is not None:
            yield name

    async def leave(self, client: str) -> None:
        """End the session."""
        _, inbox = self._sessions.pop(client, ("", None))
        if inbox is not None:
            inbox.put_nowait(None)
        await self._travels()

    async def living(self) -> Mapping[str, str]:
        """All clients that have a session."""
        await self._travels()
        return {client: about for client, (about, _) in self._sessions.items()}

    async def notify(self, client: str, name: str) -> None:
        """Notify a client."""
        await self._travels()
        if client in self._sessions:
            self._sessions[client][1].put_nowait(name)


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
