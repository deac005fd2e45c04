"""A worker that polls its part of the tenants: start some, kill some, and each is polled by one.

    AIOLOCK_URL=redis://localhost python examples/shards.py a     # and b, c, on other hosts

After SIGTERM or Ctrl-C a worker ends its present poll, and the others take its tenants.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
TENANTS = [f"tenant {number}" for number in range(int(os.environ.get("TENANTS", "500")))]
SHARDS = int(os.environ.get("SHARDS", "64"))
TTL = float(os.environ.get("TTL_SECONDS", "10"))  # after which those of a killed worker are served


async def poll(me: str, tenant: str, fence: int) -> None:
    """What only one worker may do for a tenant; the storage refuses a lower fence."""
    print(f"{me} polls {tenant} with {fence}", flush=True)
    await asyncio.sleep(0.01)


async def main(me: str) -> None:
    """Take part until we are told to stop."""
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)

    async def serve(shard: aiolock.Shard) -> None:
        tenants = [tenant for tenant in TENANTS if tenant in shard]
        while not shard.giving_up.is_set():
            for tenant in tenants:
                await poll(me, tenant, shard.fence)
            await asyncio.sleep(0.2)

    async with (
        aiolock.connect(URL) as client,
        client.group("workers", data={"name": me}, ttl=TTL, on_lost="rejoin") as member,
    ):
        shards = client.shards("tenants", SHARDS, group=member, ttl=TTL)
        serving = asyncio.create_task(shards.run(serve))
        stopped = asyncio.create_task(stopping.wait())
        await asyncio.wait({serving, stopped}, return_when=asyncio.FIRST_COMPLETED)
        for task in (serving, stopped):
            task.cancel()
        await asyncio.wait([serving, stopped])
    if not serving.cancelled():
        serving.result()  # raises: it has ended by itself


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
