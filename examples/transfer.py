"""Transfers between accounts, in any number of processes: the sum of all stays the same.

    AIOLOCK_URL=redis://localhost python examples/transfer.py     # in two terminals at once

Each transfer needs two locks, and no two transfers wait for each other for ever.
"""

from __future__ import annotations

import asyncio
import os
import random

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
TRANSFERS = int(os.environ.get("TRANSFERS", "100"))
ACCOUNTS = ("ada", "bob", "cyd", "dee")
AT_A_TIME = 4  # transfers of one process

# Both or none, and none if a holder with a higher fence has written.
SAVE = """
    for number, account in ipairs(KEYS) do
        local fence = redis.call('HGET', account, 'fence') or 0
        if tonumber(ARGV[2 * number]) < tonumber(fence) then
            return 0
        end
    end
    for number, account in ipairs(KEYS) do
        redis.call('HSET', account, 'balance', ARGV[2 * number - 1], 'fence', ARGV[2 * number])
    end
    return 1
"""


async def transfer(
    amount: int, source: str, target: str, redis: Redis, locks: aiolock.LockClient
) -> None:
    """Move money; no other transfer touches either account meanwhile."""
    names = [f"account:{source}", f"account:{target}"]
    async with locks.multilock(*names, ttl=10, timeout=30) as lease:
        before = [int(await redis.hget(name, "balance") or 0) for name in names]
        await asyncio.sleep(0.002)  # without the locks, others would read the old balances now
        after = [before[0] - amount, before[1] + amount]
        fences = [lease.leases[name].fence for name in names]
        save = redis.register_script(SAVE)
        if await save(keys=names, args=[after[0], fences[0], after[1], fences[1]]):
            print(f"{amount} from {source} to {target}", flush=True)


async def main() -> None:
    """Carry out this many transfers, several at a time."""
    async with Redis.from_url(URL, decode_responses=True) as redis, aiolock.connect(redis) as locks:
        for name in ACCOUNTS:
            await redis.hsetnx(f"account:{name}", "balance", "100")
        todo = iter(range(TRANSFERS))

        async def consume() -> None:
            for _ in todo:
                source, target = random.sample(ACCOUNTS, 2)
                await transfer(random.randint(1, 9), source, target, redis, locks)

        await asyncio.gather(*(consume() for _ in range(AT_A_TIME)))


if __name__ == "__main__":
    asyncio.run(main())
