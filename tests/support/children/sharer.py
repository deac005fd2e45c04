"""A process that takes part in shards, and says what it holds: url, prefix, ttl."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys

import aiolock
from tests.support.procs import say

SHARDS = 24
EVERY = 0.05
"""Seconds after which a body says that it still holds its shard."""


async def serve(shard: aiolock.Shard) -> None:
    """Say what is held, as long as the lease certainly lasts."""
    try:
        while not shard.giving_up.is_set():
            if shard.lease.remaining() > 0:
                say("holds", shard=shard.index, fence=shard.fence)
            await asyncio.sleep(EVERY)
    finally:
        say("ends", shard=shard.index, fence=shard.fence)


async def main(url: str, prefix: str, ttl: float) -> None:
    """Take part until SIGTERM."""
    stopping = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopping.set)
    async with aiolock.connect(url, prefix=prefix) as client:
        running = asyncio.create_task(client.shards("t", SHARDS, ttl=ttl).run(serve))
        await stopping.wait()
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], float(sys.argv[3])))
