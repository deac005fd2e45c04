"""Locks on Redis 6.2 and newer, or Valkey."""

from __future__ import annotations

import redis
import redis.asyncio
from redis.asyncio.connection import ConnectionPool

from aiolock.stores.redis._barrier import Replicas
from aiolock.stores.redis._replicated import ReplicatedStore
from aiolock.stores.redis._store import RedisStore
from aiolock.stores.redis._urls import pool_at

__all__ = ["RedisStore", "from_client", "from_url"]


def from_url(url: str, prefix: str, replicas: Replicas | None = None) -> RedisStore:
    """A store on the server at ``url``; `ValueError` for a URL that cannot be right.

    With ``replicas`` it gives only what so many replicas have.
    """
    return _on(pool_at(url), prefix, replicas)


def _on(pool: ConnectionPool, prefix: str, replicas: Replicas | None) -> RedisStore:
    return RedisStore(pool, prefix) if replicas is None else ReplicatedStore(pool, prefix, replicas)


def from_client(client: object, prefix: str, replicas: Replicas | None = None) -> RedisStore:
    """A store that connects as ``client`` does, and leaves the client itself alone."""
    if isinstance(client, redis.Redis):
        raise TypeError(
            "this is a blocking redis.Redis, which would stop the event loop:"
            " pass a redis.asyncio.Redis, or a URL"
        )
    if isinstance(client, redis.RedisCluster | redis.asyncio.RedisCluster):
        raise TypeError(
            "Redis Cluster is not supported yet: pass a redis.asyncio.Redis of one server, or of"
            " Sentinel.master_for"
        )
    if not isinstance(client, redis.asyncio.Redis):
        raise TypeError(f"aiolock takes a redis.asyncio.Redis, not {type(client).__name__}")
    pool: ConnectionPool = client.connection_pool
    return _on(pool, prefix, replicas)
