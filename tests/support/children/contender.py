"""A process whose tasks contend for two locks, and say when each was in, and with which fence."""

import asyncio
import sys

import aiolock
from tests.support import loops
from tests.support.procs import commands, say

HOLD = 0.005
"""Seconds in a body."""
TTL = 5.0


async def contend(client: aiolock.LockClient, who: int, name: str) -> None:
    """Enter, stay for a moment and leave, again and again."""
    lock = client.lock(name)
    while True:
        try:
            async with lock as lease:
                say("in", who=who, lock=name, fence=lease.fence)
                try:
                    await asyncio.sleep(HOLD)
                finally:
                    say("out", lock=name, fence=lease.fence)
        except aiolock.LeaseLost:
            say("lost", who=who, lock=name)
        except aiolock.StoreError as error:
            say("nobody knows", who=who, lock=name, error=str(error))


async def main(url: str, prefix: str) -> None:
    """Contend until the test says stop."""
    async with aiolock.connect(url, prefix=prefix, ttl=TTL) as client:
        say("ready")
        working = [asyncio.create_task(contend(client, n, "ab"[n % 2])) for n in range(6)]
        async for _ in commands():
            break
        for task in working:
            task.cancel()
        await asyncio.wait(working)
    say("closed")


if __name__ == "__main__":
    loops.run(main(*sys.argv[1:]))
