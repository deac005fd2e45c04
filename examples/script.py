"""The smallest use: `python examples/script.py`, in several terminals at once."""

import asyncio
import os

import aiolock


async def main() -> None:
    """Wait for our turn, at most five seconds, and work while we hold the lock."""
    url = os.environ.get("AIOLOCK_URL", "memory://")
    async with aiolock.connect(url) as client, client.lock("report", timeout=5) as lease:
        print(f"we hold {lease.name!r}, fence {lease.fence}")


asyncio.run(main())
