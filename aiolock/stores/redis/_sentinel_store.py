"""Locks on the master that Sentinel names: a store that is told where the master is."""

from __future__ import annotations

import asyncio
from typing import Protocol, TypeVar

from redis.asyncio.connection import ConnectionPool

from aiolock.copying import Uncopyable
from aiolock.protocol import Deliver, Operation
from aiolock.store import Features
from aiolock.stores.redis._sentinel import Address
from aiolock.stores.redis._sentinel_watcher import SentinelWatcher

Value = TypeVar("Value")


class MasterStore(Protocol):
    """A store on a master that may be replaced by another server."""

    features: Features

    async def open(self, client: str, deliver: Deliver) -> None: ...

    async def aclose(self) -> None: ...

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]: ...

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""


class SentinelStore(Uncopyable):
    """A store around another, which follows the Sentinels while it is open."""

    def __init__(self, store: MasterStore, pool: ConnectionPool) -> None:
        """``pool`` is the one that the store connects by."""
        self.store = store
        self.features = store.features
        self._pool = pool
        self._watcher: SentinelWatcher | None = None
        self._closing = False

    def __repr__(self) -> str:
        return repr(self.store)

    async def open(self, client: str, deliver: Deliver) -> None:
        self._closing = False
        await self.store.open(client, deliver)
        self.receiving = getattr(self.store, "receiving", {})
        if not self._closing:  # it may have been closed just as it was open
            self._watcher = SentinelWatcher(self._pool, self.store.follow)

    async def aclose(self) -> None:
        self._closing = True
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            await watcher.aclose()
        await self.store.aclose()

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        return self.store.submit(operation)
