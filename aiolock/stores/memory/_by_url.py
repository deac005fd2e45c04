"""The servers of ``memory://`` URLs: one for each event loop and name."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

from aiolock._urls import parse
from aiolock.copying import Uncopyable
from aiolock.protocol import Deliver, Operation
from aiolock.store import Features
from aiolock.stores._outcomes import closed
from aiolock.stores.memory._server import MemoryServer
from aiolock.stores.memory._store import MemoryStore

_servers: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, MemoryServer]] = (
    WeakKeyDictionary()
)


class MemoryStoreByUrl(Uncopyable):
    """The store of a ``memory://`` URL: its server is the event loop's own, found on opening."""

    features = Features()

    def __init__(self, name: str) -> None:
        self._name = name
        self._store: MemoryStore | None = None

    def __repr__(self) -> str:
        return f"<MemoryStore memory://{self._name}>"

    async def open(self, client: str, deliver: Deliver) -> None:
        self._store = MemoryStore(_server(self._name))
        await self._store.open(client, deliver)

    async def aclose(self) -> None:
        if self._store is not None:
            await self._store.aclose()

    def submit(self, operation: Operation[Any]) -> asyncio.Future[Any]:
        return closed() if self._store is None else self._store.submit(operation)


def from_url(url: str, prefix: str) -> MemoryStoreByUrl:
    """``memory://`` or ``memory://name``: one server per event loop and name."""
    return MemoryStoreByUrl(_name_in(url, prefix))


def server_finder(url: str, prefix: str) -> Callable[[], MemoryServer]:
    """A function that finds the server of a URL, in the event loop that runs then."""
    return partial(_server, _name_in(url, prefix))


def _server(name: str) -> MemoryServer:
    servers = _servers.setdefault(asyncio.get_running_loop(), {})
    return servers.setdefault(name, MemoryServer())


def _name_in(url: str, prefix: str) -> str:
    parts = parse(url, "memory:// or memory://name")
    parts.no_user()
    parts.no_options()
    ((host, port), *others) = parts.addresses
    if parts.path not in ("", "/") or port or others:
        raise parts.wrong("a memory URL has a name at most")
    return f"{host}/{prefix}"
