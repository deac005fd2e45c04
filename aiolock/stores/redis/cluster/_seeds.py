"""The nodes at which a cluster is asked for its topology, and how to connect to each node."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from redis.asyncio import RedisCluster
from redis.asyncio.connection import AbstractConnection, Connection, ConnectionPool, SSLConnection

from aiolock.stores.redis.cluster._slots import Address

_KEPT: Final = (
    *("username", "password", "credential_provider", "client_name"),
    *("socket_keepalive", "socket_keepalive_options", "connection_class"),
)
"""Options of a client's connections that are copied, with those that begin with ``ssl_``."""


def _as_is(address: Address) -> Address:
    return address


@dataclass(frozen=True, slots=True)
class Seeds:
    """The nodes that are asked first, and the options that all connections share."""

    addresses: tuple[Address, ...]
    kind: type[AbstractConnection]
    options: dict[str, Any] = field(repr=False)  # with the password
    remap: Callable[[Address], Address] = _as_is
    """Maps the address that a node gives to the one at which we reach it."""
    sharded: bool = False
    """Whether pushes are to stay within their shard (see `_sharded`)."""

    def pool(self, address: Address) -> ConnectionPool:
        """A pool of connections to the node there."""
        host, port = address
        return ConnectionPool(self.kind, host=host, port=port, **self.options)

    def __str__(self) -> str:
        scheme = "rediss" if issubclass(self.kind, SSLConnection) else "redis"
        nodes = ",".join(f"{host}:{port}" for host, port in self.addresses)
        return f"{scheme}+cluster://{nodes}{'?push=sharded' * self.sharded}"


def seeds_of(client: RedisCluster) -> Seeds:
    """The first nodes of a caller's client, with the options by which it connects."""
    untyped: Any = client
    given: dict[str, Any] = untyped.connection_kwargs
    options = {
        name: value
        for name, value in given.items()
        if value is not None and (name in _KEPT or name.startswith("ssl_"))
    }
    kind: type[AbstractConnection] = options.pop("connection_class", Connection)
    nodes = untyped.nodes_manager.startup_nodes.values()
    remap = getattr(untyped.nodes_manager, "address_remap", None) or _as_is
    return Seeds(tuple((node.host, int(node.port)) for node in nodes), kind, options, remap)
