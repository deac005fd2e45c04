"""etcd's own lock service (`v3lockpb`), over one connection: a lease for each task.

The messages and the connection are those of aiolock's store: so only the locks differ.
"""

# ruff: noqa: D102  # the protocol tells what a method does

from __future__ import annotations

import asyncio
import contextlib
import itertools
from contextlib import AbstractAsyncContextManager
from types import TracebackType

from aiolock.stores.etcd import _settings
from aiolock.stores.etcd._connection import Connection, Metadata
from aiolock.stores.etcd._headers import request_block
from aiolock.stores.etcd._messages import lease_grant_request, lease_request
from aiolock.stores.etcd._replies import read_lease
from aiolock.stores.etcd._wire import as_bytes, data, fields, integer

TTL = 30
PATIENCE = 120.0
"""Seconds for which a call may wait."""


class _Link(Connection):
    """A connection whose methods are written with their services in full."""

    def _block(self, method: str, metadata: Metadata) -> bytes:
        return request_block(f"/{method}", self.address, metadata, tls=False)


class Lock:
    """One task's, with a lease of its own: the owner of a lock is a lease."""

    def __init__(self, link: _Link, name: str, lease: int) -> None:
        self._link, self._lease = link, lease
        self._request = data(1, name.encode()) + integer(2, lease)
        self._key = b""

    async def __aenter__(self) -> None:
        reply = await self._link.call("v3lockpb.Lock/Lock", self._request, PATIENCE)
        self._key = next(as_bytes(value) for number, value in fields(reply) if number == 2)

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._link.call("v3lockpb.Lock/Unlock", data(1, self._key), PATIENCE)


class Peer:
    """``url`` is an etcd URL; its first server is used."""

    def __init__(self, *, url: str) -> None:
        self._url = url
        self._leases: list[int] = []
        self._next = itertools.cycle(self._leases)

    async def open(self, url: str, tasks: int) -> None:  # noqa: ARG002  # its own
        settings = _settings.from_url(self._url)
        self._link = _Link(settings.addresses[0], settings)
        self._alive = asyncio.create_task(self._keep_alive())
        await asyncio.gather(*(self._grant() for _ in range(tasks)))

    async def _grant(self) -> None:
        request = lease_grant_request(TTL, 0)
        reply = await self._link.call("etcdserverpb.Lease/LeaseGrant", request, PATIENCE)
        self._leases.append(read_lease(reply).id)

    async def _keep_alive(self) -> None:
        method = "etcdserverpb.Lease/LeaseKeepAlive"
        while True:
            await asyncio.sleep(TTL / 3)
            async with self._link.stream(method, PATIENCE) as stream:
                for lease in self._leases:
                    stream.write(lease_request(lease))
                    await stream.read()

    async def lock(self, name: str) -> AbstractAsyncContextManager[object]:
        return Lock(self._link, name, next(self._next))

    async def close(self) -> None:
        self._alive.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._alive
        await self._link.aclose()
