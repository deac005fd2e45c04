"""The embedded store: the protocol's state machine in this process, by the event loop's clock."""

from __future__ import annotations

from aiolock.stores.memory._by_url import from_url, server_finder
from aiolock.stores.memory._server import MemoryServer
from aiolock.stores.memory._store import MemoryStore

__all__ = ["MemoryServer", "MemoryStore", "from_server", "from_url", "server_finder"]


def from_server(server: MemoryServer) -> MemoryStore:
    """A client's link to ``server``, which is a namespace of its own: no prefix is needed."""
    return MemoryStore(server)
