"""Sells orders under a lock of aiolock: the program after the migration."""

import os
import time

from redis import Redis

import aiolock.sync

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


def sell(redis: Redis, order: object) -> None:
    """Take one from the stock: read, work, write."""
    left = int(redis.get("stock") or 0)
    time.sleep(0.001)
    redis.set("stock", left - 1)
    redis.rpush("sold", f"{order} after")


def main() -> None:
    """Sell what was ordered, one after the other."""
    with (
        Redis.from_url(URL, decode_responses=True) as redis,
        aiolock.sync.connect(URL) as client,
    ):
        while order := redis.lpop("orders"):
            with client.lock("warehouse", ttl=30, timeout=60):
                sell(redis, order)


main()
