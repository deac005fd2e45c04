"""The embedded store: the protocol's state machine in this process, by the event loop's clock.

An operation goes this way, which is also the order in which to read: `_store` (one client's link)
submits it to `_queue` (the operations of one event loop, in order, and not too many in one
iteration), and that has `_server` carry it out. The server has the states of all names, makes a
`aiolock.stores.machine.Step` for each operation, and delivers the pushes to the clients that
listen.

Beside this way: `_reading` reads long statuses and pages in parts, `_listing` has the names of a
page, and `_by_url` finds the server of a ``memory://`` URL.
"""

from __future__ import annotations

from aiolock.stores.memory._by_url import from_url, server_finder
from aiolock.stores.memory._server import MemoryServer
from aiolock.stores.memory._store import MemoryStore

__all__ = ["MemoryServer", "MemoryStore", "from_server", "from_url", "server_finder"]


def from_server(server: MemoryServer) -> MemoryStore:
    """A client's link to ``server``, which is a namespace of its own: no prefix is needed."""
    return MemoryStore(server)
