"""A master, and replicas that follow it through a proxy each, which can be cut off or held up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, Final

from tests.support.failures import until
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer

AT_ONCE: Final = ("--repl-diskless-sync-delay", "0")
"""So that a replica need not wait for others to come."""


class Replica(RedisServer):
    """A server that follows another one, through a proxy."""

    def __init__(self, link: Proxy) -> None:
        super().__init__(*AT_ONCE, "--replicaof", "127.0.0.1", str(link.port))
        self.link = link
        """The proxy that holds up, or cuts off, all that this replica gets."""

    def promote(self) -> None:
        """Make it a master, with the data that it has."""
        self.call("REPLICAOF", "NO", "ONE")

    def listens(self) -> bool:
        """Whether it has all that its master had when the link came up."""
        return bool(self.call("INFO", "replication").get("master_link_status") == "up")


class Cluster:
    """A master and its replicas, and the proxy through which clients come to the master."""

    def __init__(self, stack: AsyncExitStack, master: RedisServer, entrance: Proxy) -> None:
        self._stack = stack
        self.master = master
        self.entrance = entrance
        self.replicas: list[Replica] = []

    @property
    def url(self) -> str:
        """Through the entrance."""
        return self.entrance.url

    @property
    def replica(self) -> Replica:
        """The first."""
        return self.replicas[0]

    async def add(self, *, of: RedisServer | None = None) -> Replica:
        """Start a replica, of the master or of another server, and wait until it follows."""
        followed = of or self.master
        link = await self._stack.enter_async_context(Proxy(followed.port))
        before = following(followed)
        replica = self._stack.enter_context(Replica(link))
        await until(lambda: following(followed) > before and replica.listens(), within=30)
        if of is None:
            self.replicas.append(replica)
        return replica


def following(server: RedisServer) -> int:
    """How many replicas the server says follow it."""
    said: dict[str, Any] = server.call("INFO", "replication")
    return sum(
        isinstance(each, dict) and each.get("state") == "online"  # pyright: ignore[reportUnknownMemberType]
        for name, each in said.items()
        if name.startswith("slave")
    )


@asynccontextmanager
async def cluster(replicas: int = 1) -> AsyncIterator[Cluster]:
    """A master that so many follow."""
    async with AsyncExitStack() as stack:
        master = stack.enter_context(RedisServer(*AT_ONCE))
        entrance = await stack.enter_async_context(Proxy(master.port))
        made = Cluster(stack, master, entrance)
        for _ in range(replicas):
            await made.add()
        yield made
