"""Sells orders under a lock of aioredlock: the program before the migration, on Python 3.11."""

import asyncio
import os

from aioredlock import Aioredlock  # type: ignore[import-not-found,import-untyped,unused-ignore]  # Python 3.11 only
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
    manager = Aioredlock([URL], retry_count=1000)
    async with Redis.from_url(URL, decode_responses=True) as redis:
        while order := await redis.lpop("orders"):
            async with await manager.lock("warehouse", lock_timeout=30):
                await sell(redis, order)
    await manager.destroy()


asyncio.run(main())
