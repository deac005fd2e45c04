"""Sells orders under a lock of python-redis-lock: the program before the migration."""

import os
import time

from redis import Redis
from redis_lock import Lock  # type: ignore[import-untyped]  # has no types

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def sell(redis: Redis, order: object) -> None:
    """Take one from the stock: read, work, write."""
    left = int(redis.get("stock") or 0)
    time.sleep(0.001)
    redis.set("stock", left - 1)
    redis.rpush("sold", f"{order} before")


def main() -> None:
    """Sell what was ordered, one after the other."""
    with Redis.from_url(URL, decode_responses=True) as redis:
        while order := redis.lpop("orders"):
            with Lock(redis, "warehouse", expire=30, auto_renewal=True):
                sell(redis, order)


main()
