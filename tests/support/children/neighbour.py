"""A process that acquires locks as a test tells it to, with the aiolock of its environment.

Run by its path, with ``-I``, so that this tree's aiolock is found only if it is installed. It uses
only what all versions have.
"""

import asyncio
import json
import sys
from pathlib import Path

import aiolock

sys.path.append(str(Path(__file__).resolve().parents[3]))

from tests.support.procs import commands, say


class Neighbour:
    """A client, and the leases that it has."""

    def __init__(self, client: aiolock.LockClient) -> None:
        self._client = client
        self._leases: dict[str, aiolock.Lease] = {}

    async def acquire(self, name: str, who: str, **options: object) -> None:
        """Wait for a lock, and keep it."""
        lease = await self._client.lock(name, **options).acquire()  # type: ignore[arg-type]  # JSON
        assert lease is not None
        self._leases[who] = lease
        say(f"{who} holds", fence=lease.fence)

    async def release(self, who: str) -> None:
        """Release it, and say whether it was still held."""
        say(f"{who} released", held=await self._leases.pop(who).release())

    async def status(self, name: str) -> None:
        """Say which clients hold it, and which wait for it, in their order."""
        status = await self._client.lock(name).status()
        holders = [holder.client for holder in status.holders]
        say(f"{name} has", holders=holders, waiters=[waiter.client for waiter in status.waiters])


async def main(target: str, options: str) -> None:
    """Do what the test says until it closes the pipe."""
    async with (
        aiolock.connect(json.loads(target), **json.loads(options)) as client,
        asyncio.TaskGroup() as tasks,
    ):
        neighbour = Neighbour(client)
        say("ready", client=client.id, package=aiolock.__file__)
        async for command in commands():
            does = getattr(neighbour, command.pop("do"))
            tasks.create_task(does(**command))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
