"""Sells orders under a lock of aiolock: the program after the migration."""

import asyncio
import os

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


async def sell(redis: Redis, order: object) -> None:
    """Take one from the stock: read, work, write."""
    left = int(await redis.get("stock") or 0)
    await asyncio.sleep(0.001)
    await redis.set("stock", left - 1)
    await redis.rpush("sold", f"{order} after")


async def main() -> None:
    """Sell what was ordered, one after the other."""
    async with (
        Redis.from_url(URL, decode_responses=True) as redis,
        aiolock.connect(URL) as client,
    ):
        while order := await redis.lpop("orders"):
            async with client.lock("warehouse", ttl=30, timeout=60):
                await sell(redis, order)


asyncio.run(main())
