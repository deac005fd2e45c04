"""Connections that no proxy can break, for a server says itself where to connect to.

They are closed by the servers that they lead to.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Protocol

import redis.asyncio
from redis.exceptions import RedisError

from tests.proof.chaos.faults import Fault


class Direct(Protocol):
    """The servers."""

    def masters(self) -> Sequence[redis.asyncio.Redis]:
        """Connections to all of them that have something."""
        ...

    async def clients(self, ports: set[int]) -> list[str]:
        """What they call their clients at these ports; [""] when one does not answer."""
        ...


class DirectDoor:
    """The servers, as one process at a time uses them."""

    def __init__(self, target: Direct, url: str) -> None:
        self._target = target
        self.url = url

    def visitor(self, pid: int) -> Callable[[], Awaitable[bool]]:
        theirs = _ports_of(pid)

        async def is_known() -> bool:
            return bool(await self._target.clients(theirs))

        return is_known

    async def strike(self, fault: Fault, pid: int) -> None:
        """Have all servers close its connections that are subscribed, or the others."""
        theirs, subscribed = _ports_of(pid), fault.kind == "kill_subscription"
        for admin in self._target.masters():
            with contextlib.suppress(RedisError, OSError):
                for client in await admin.client_list():
                    if port_of(client) in theirs and (int(client["sub"]) > 0) == subscribed:
                        await admin.client_kill_filter(_id=client["id"])


def port_of(client: dict[str, str]) -> int:
    """The port of a client; 0 if it came by the unix socket."""
    host, _, port = client["addr"].rpartition(":")
    return int(port) if host == "127.0.0.1" else 0


def _ports_of(pid: int) -> set[int]:
    """The local ports of a process's connections."""
    sockets: set[str] = set()
    with contextlib.suppress(OSError):  # it has ended
        for one in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                sockets.add(str(one.readlink()))
    lines = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
    rows = [line.split() for line in lines]
    return {int(row[1].partition(":")[2], 16) for row in rows if f"socket:[{row[9]}]" in sockets}
