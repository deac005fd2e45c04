"""Tenants with documents: each is edited by itself, and a tenant is deleted with all of them.

    AIOLOCK_URL=redis://localhost python examples/tenants.py     # in two terminals at once

Edits of different documents do not wait for each other. Who deletes a tenant waits for those that
edit one of its documents, and those that come later find that it is gone.
"""

from __future__ import annotations

import asyncio
import os
import random

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
TENANTS = int(os.environ.get("TENANTS", "5"))
DOCUMENTS = 4
EDITORS = 8  # of one process


async def edit(tenant: int, number: int, redis: Redis, locks: aiolock.LockClient) -> bool:
    """Edit one document; False if its tenant is gone."""
    async with locks.path_lock(f"shop/{tenant}/doc/{number}", timeout=30) as lease:
        if await redis.sismember("deleted", str(tenant)):
            return False
        name = f"doc:{tenant}:{number}"
        edits = int(await redis.hget(name, "edits") or 0)
        await asyncio.sleep(random.uniform(0, 0.01))  # without the lock, it could be deleted now
        await redis.hset(name, mapping={"edits": edits + 1, "fence": lease.fence})
        return True


async def delete(tenant: int, redis: Redis, locks: aiolock.LockClient) -> None:
    """Delete a tenant and all its documents; nobody edits one of them meanwhile."""
    async with locks.path_lock(f"shop/{tenant}", timeout=30):
        if await redis.sadd("deleted", str(tenant)):
            names = [name async for name in redis.scan_iter(f"doc:{tenant}:*")]
            await asyncio.sleep(0.01)  # without the lock, others would write documents now
            if names:
                await redis.delete(*names)
            print(f"deleted tenant {tenant} and {len(names)} documents", flush=True)


async def main() -> None:
    """Edit documents, several at a time, until all tenants are deleted."""
    async with Redis.from_url(URL, decode_responses=True) as redis, aiolock.connect(redis) as locks:

        async def edit_until_all_is_gone() -> None:
            left = list(range(TENANTS))
            while left:
                tenant = random.choice(left)
                if not await edit(tenant, random.randrange(DOCUMENTS), redis, locks):
                    left.remove(tenant)

        async with asyncio.TaskGroup() as group:
            for _ in range(EDITORS):
                group.create_task(edit_until_all_is_gone())
            for tenant in range(TENANTS):
                await asyncio.sleep(0.05)
                await delete(tenant, redis, locks)


if __name__ == "__main__":
    asyncio.run(main())
