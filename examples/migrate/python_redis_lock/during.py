"""Sells orders under both locks.

While programs of python-redis-lock and of aiolock run side by side.
"""

import os
import time

from redis import Redis
from redis_lock import Lock  # type: ignore[import-untyped]  # has no types

import aiolock.sync

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def sell(redis: Redis, order: object) -> None:
    """Take one from the stock: read, work, write."""
    left = int(redis.get("stock") or 0)
    time.sleep(0.001)
    redis.set("stock", left - 1)
    redis.rpush("sold", f"{order} during")


def main() -> None:
    """Sell what was ordered, one after the other."""
    with (
        Redis.from_url(URL, decode_responses=True) as redis,
        aiolock.sync.connect(URL) as client,
    ):
        while order := redis.lpop("orders"):
            with (
                client.lock("warehouse", ttl=30, timeout=60),
                Lock(redis, "warehouse", expire=30, auto_renewal=True),
            ):
                sell(redis, order)


main()
