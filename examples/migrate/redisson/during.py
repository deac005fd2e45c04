"""Sells orders under both locks: while programs of Redisson and of aiolock run side by side."""

import asyncio
import os
import time
from uuid import uuid4

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("REDIS_URL", "redis://localhost:6379/0")


async def sell(redis: Redis, order: object) -> None:
    """Take one from the stock: read, work, write."""
    left = int(await redis.get("stock") or 0)
    await asyncio.sleep(0.001)
    await redis.set("stock", left - 1)
    await redis.rpush("sold", f"{order} during")


class JavaLock:
    """Redisson's ``RLock``, as its clients in Java keep it; in Python, it asks again by itself."""

    TAKE = """
        if redis.call('EXISTS', KEYS[1]) == 1 then return redis.call('PTTL', KEYS[1]) end
        redis.call('HINCRBY', KEYS[1], ARGV[1], 1)
        redis.call('PEXPIRE', KEYS[1], ARGV[2])
        return nil
    """
    GIVE_BACK = """
        if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
        redis.call('DEL', KEYS[1])
        redis.call('PUBLISH', KEYS[2], '0')  -- wakes the waiters in Java
        return 1
    """

    def __init__(self, redis: Redis, name: str, *, lease_time: float, wait_time: float) -> None:
        self._take = redis.register_script(self.TAKE)
        self._give_back = redis.register_script(self.GIVE_BACK)
        self._keys = [name, f"redisson_lock__channel:{{{name}}}"]
        self._owner = f"{uuid4()}:1"  # the client, and the thread there
        self._lease_time, self._wait_time = int(lease_time * 1000), wait_time

    async def __aenter__(self) -> None:
        last = time.monotonic() + self._wait_time
        while await self._take(self._keys, [self._owner, self._lease_time]) is not None:
            if time.monotonic() > last:  # not within a try, which may have taken it
                raise TimeoutError(f"{self._keys[0]} is locked")
            await asyncio.sleep(0.05)  # those in Java wait for a message instead

    async def __aexit__(self, *_: object) -> None:
        await self._give_back(self._keys, [self._owner])


async def main() -> None:
    """Sell what was ordered, one after the other."""
    async with (
        Redis.from_url(URL, decode_responses=True) as redis,
        aiolock.connect(URL) as client,
    ):
        while order := await redis.lpop("orders"):
            async with (
                client.lock("warehouse", ttl=30, timeout=60),
                JavaLock(redis, "warehouse", lease_time=30, wait_time=60),
            ):
                await sell(redis, order)


asyncio.run(main())
