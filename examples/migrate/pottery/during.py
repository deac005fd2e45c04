"""Sells orders under both locks: while programs of pottery and of aiolock run side by side."""

import asyncio
import os

from pottery import AIORedlock
from redis.asyncio import Redis

import aiolock

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


async def sell(redis: Redis, order: object) -> None:
    """Take one from the stock: read, work, write."""
    left = int(await redis.get("stock") or 0)
    await asyncio.sleep(0.001)
    await redis.set("stock", left - 1)
    await redis.rpush("sold", f"{order} during")


async def main() -> None:
    """Sell what was ordered, one after the other."""
    async with (
        Redis.from_url(URL, decode_responses=True) as redis,
        aiolock.connect(URL) as client,
    ):
        while order := await redis.lpop("orders"):
            lock = AIORedlock(
                key="warehouse",
                masters={redis},
                auto_release_time=30,
                context_manager_timeout=60,
            )
            async with client.lock("warehouse", ttl=30, timeout=60), lock:
                await sell(redis, order)


asyncio.run(main())
