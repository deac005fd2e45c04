"""Locks on Redis 6.2 and newer, or Valkey."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.connection import ConnectionPool

from aiolock.stores.redis._cluster import ClusterStore
from aiolock.stores.redis._seeds import seeds_of
from aiolock.stores.redis._store import RedisStore
from aiolock.stores.redis._urls import is_of_a_cluster, pool_at, seeds_at

__all__ = ["ClusterStore", "RedisStore", "from_client", "from_url"]


def from_url(url: str, prefix: str) -> RedisStore | ClusterStore:
    """A store on the server at ``url``, or on a cluster.

    `ValueError` for a URL that cannot be right.
    """
    if is_of_a_cluster(url):
        return ClusterStore(seeds_at(url), prefix)
    return RedisStore(pool_at(url), prefix)


def from_client(client: object, prefix: str) -> RedisStore | ClusterStore:
    """A store that connects as ``client`` does, and leaves the client itself alone."""
    if isinstance(client, redis.Redis | redis.RedisCluster):
        kind = type(client).__name__
        raise TypeError(
            f"this is a blocking redis.{kind}, which would stop the event loop:"
            f" pass a redis.asyncio.{kind}, or a URL"
        )
    if isinstance(client, redis.asyncio.RedisCluster):
        return ClusterStore(seeds_of(client), prefix)
    if not isinstance(client, redis.asyncio.Redis):
        raise TypeError(f"aiolock takes a redis.asyncio.Redis, not {type(client).__name__}")
    pool: ConnectionPool = client.connection_pool
    return RedisStore(pool, prefix)
