"""Locks on Redis 6.2 and newer, or Valkey.

Read `_store` first: a table from each type of operation to what sends it. Then `_encoding` and
`_encoding_rare` (the script and its arguments), ``lua/`` (the scripts, which `_scripts` puts
together), `_replies`.

* Commands: `_pipeline` is one connection for all tasks, made of `_outbox` (writes), `_queue` (keeps
  over a break), `_reader` (pairs replies), `_deadlines` and `_link` (connects, by `_wire`).
* Events: `_subscription` is the connection for pushes, and `_pushes` reads them.
* Both connections: `_session` opens them, `_presence` says who we are, and `_health` checks them.
* Stores around that store: `_sentinel_store` (a master that Sentinel names) and `_replicated` (only
  what replicas have confirmed). `cluster` has a session for each master.
* `_member` is a server of a quorum, on the same pipeline, with the scripts in ``lua/quorum``.
"""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.connection import ConnectionPool

from aiolock.store import Store
from aiolock.stores.redis._barrier import Replicas
from aiolock.stores.redis._member import RedisMember
from aiolock.stores.redis._new_quorum import NewQuorum, new_quorum
from aiolock.stores.redis._replicated import ReplicatedStore
from aiolock.stores.redis._sentinel import is_managed
from aiolock.stores.redis._sentinel_store import MasterStore, SentinelStore
from aiolock.stores.redis._store import RedisStore
from aiolock.stores.redis._urls import is_of_a_cluster, pool_at, seeds_at
from aiolock.stores.redis.cluster._seeds import Seeds, seeds_of
from aiolock.stores.redis.cluster._store import ClusterStore

__all__ = [
    "ClusterStore",
    "NewQuorum",
    "RedisStore",
    "facts",
    "from_client",
    "from_url",
    "member_at",
    "member_of",
    "new_quorum",
]


def from_url(url: str, prefix: str, replicas: Replicas | None = None) -> Store:
    """A store on the server at ``url``, or on a cluster.

    With ``replicas`` it confirms only what this many replicas have, too. `ValueError` for an
    invalid URL.
    """
    if is_of_a_cluster(url):
        return _on_cluster(seeds_at(url), prefix, replicas)
    return _on(pool_at(url), prefix, replicas)


def _on(pool: ConnectionPool, prefix: str, replicas: Replicas | None) -> Store:
    store: MasterStore
    if replicas is None:
        store = RedisStore(pool, prefix)
    else:
        store = ReplicatedStore(pool, prefix, replicas)
    return SentinelStore(store, pool) if is_managed(pool) else store


def _on_cluster(seeds: Seeds, prefix: str, replicas: Replicas | None) -> ClusterStore:
    if replicas is not None:
        raise ValueError(
            "replicas are waited for at one server, or one that Sentinel finds, and not in a"
            " cluster: leave them out"
        )
    return ClusterStore(seeds, prefix)


async def facts(url: str) -> dict[str, str]:
    """The server's version and settings, for a report; no secrets. The driver's error if it cannot
    be asked; of a cluster, the first node is asked.
    """
    from aiolock.stores.redis._facts import facts_of

    if not is_of_a_cluster(url):
        return await facts_of(pool_at(url))
    seeds = seeds_at(url)
    return await facts_of(seeds.pool(seeds.addresses[0]))


def member_at(url: str, prefix: str) -> RedisMember:
    """The server at ``url`` as a member of a quorum. `ValueError` for an invalid URL."""
    return RedisMember(pool_at(url), prefix)


def member_of(client: object, prefix: str) -> RedisMember:
    """The server of ``client`` as a member of a quorum; the client itself is left alone."""
    _check_client(client)
    if not isinstance(client, redis.asyncio.Redis):
        raise TypeError(f"a member of a quorum is one server, not a {type(client).__name__}")
    pool: ConnectionPool = client.connection_pool
    # By the name of its module: it is imported only if it is used.
    modules = {base.__module__ for base in pool.connection_class.__mro__}
    if any(module.partition(".")[0] == "fakeredis" for module in modules):
        raise TypeError(
            "a fakeredis cannot be a server of a quorum: it has no INFO, which tells whether a"
            " server was restarted. For tests take three MemoryServer() of aiolock.stores.memory"
        )
    return RedisMember(pool, prefix)


def from_client(client: object, prefix: str, replicas: Replicas | None = None) -> Store:
    """A store that connects as ``client`` does, and leaves the client itself alone."""
    _check_client(client)
    if isinstance(client, redis.asyncio.RedisCluster):
        return _on_cluster(seeds_of(client), prefix, replicas)
    if not isinstance(client, redis.asyncio.Redis):
        raise TypeError(f"aiolock takes a redis.asyncio.Redis, not {type(client).__name__}")
    pool: ConnectionPool = client.connection_pool
    return _on(pool, prefix, replicas)


def _check_client(client: object) -> None:
    if isinstance(client, redis.Redis | redis.RedisCluster):
        kind = "Redis" if isinstance(client, redis.Redis) else "RedisCluster"
        raise TypeError(
            f"this is a blocking redis.{kind}, which would stop the event loop:"
            f" pass a redis.asyncio.{kind}, or a URL"
        )
