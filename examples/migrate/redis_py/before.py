"""Sells orders under a lock of redis-py: the program before the migration."""

import asyncio
import os

from redis.asyncio import Redis

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


async def sell(redis: Redis, order: object) -> None:
    """Take one from the stock: read, work, write."""
    left = int(await redis.get("stock") or 0)
    await asyncio.sleep(0.001)
    await redis.set("stock", left - 1)
    await redis.rpush("sold", f"{order} before")


async def main() -> None:
    """Sell what was ordered, one after the other."""
    async with Redis.from_url(URL, decode_responses=True) as redis:
        while order := await redis.lpop("orders"):
            async with redis.lock("warehouse", timeout=30, blocking_timeout=60):
                await sell(redis, order)


asyncio.run(main())
