"""Rates that many processes read, and that one process fetches anew.

    export AIOLOCK_URL=redis://localhost
    python examples/cache.py refresh &
    python examples/cache.py read                                 # in as many terminals as you like

Readers do not wait for each other, and none of them sees a mixture of old and new rates.
"""

from __future__ import annotations

import asyncio
import os
import sys

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
EVERY = float(os.environ.get("EVERY_SECONDS", "2"))
USE = float(os.environ.get("USE_SECONDS", "0.1"))  # for how long somebody needs what he has read
READERS = 3  # in one process
CURRENCIES = ("EUR", "GBP", "JPY")


async def read(redis: Redis) -> str:
    """All rates, one after the other."""
    return " ".join([str(await redis.get(f"rate:{currency}")) for currency in CURRENCIES])


async def use(redis: Redis, rates: aiolock.RWLock) -> None:
    """Read again and again, beside the other readers."""
    while True:
        async with rates.read():
            print(f"uses {await read(redis)}", flush=True)
            await asyncio.sleep(USE)


async def refresh(redis: Redis, rates: aiolock.RWLock) -> None:
    """Fetch all rates alone, then let others read, and read as well."""
    while True:
        async with rates.write() as lease:
            edition = await redis.incr("rates:edition")
            for currency in CURRENCIES:
                await asyncio.sleep(0.01)  # somebody's slow API
                await redis.set(f"rate:{currency}", edition)
            await lease.downgrade()  # nobody has written in between, and nobody does yet
            print(f"archives {await read(redis)}", flush=True)
            await asyncio.sleep(USE)
        await asyncio.sleep(EVERY)


async def main(role: str) -> None:
    """Refresh or read, until interrupted."""
    async with Redis.from_url(URL, decode_responses=True) as redis, aiolock.connect(redis) as locks:
        rates = locks.rwlock("rates", ttl=10)
        if role == "refresh":
            await refresh(redis, rates)
        else:
            await asyncio.gather(*(use(redis, rates) for _ in range(READERS)))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
