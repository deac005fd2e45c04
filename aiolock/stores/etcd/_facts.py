"""Facts about etcd for a report: the version of the server in use, and how many there are."""

from __future__ import annotations

import asyncio
from typing import Final

from aiolock.stores.etcd._servers import PATIENCE, Servers
from aiolock.stores.etcd._settings import Settings
from aiolock.stores.etcd._wire import as_int, as_text, fields

_VERSION: Final = 2
_DATABASE: Final = 3
"""Numbers of the fields in the reply to ``Maintenance.Status``."""


async def facts_of(settings: Settings) -> dict[str, str]:
    """The facts; `CallError` if no server answers."""
    servers = Servers(settings)
    try:
        until = asyncio.get_running_loop().time() + PATIENCE
        reply = await servers.call("Maintenance/Status", b"", until=until, opening=True)
    finally:
        await servers.aclose()
    found = dict(fields(reply))
    return {
        "server": f"etcd {as_text(found[_VERSION])}",
        "servers in the URL": str(servers.count),
        "TLS": str(settings.tls is not None),
        "database": f"{as_int(found.get(_DATABASE, 0)):,} bytes",
    }
