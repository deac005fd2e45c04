"""A gateway to a model of which so many requests may be under way at once, for all tenants.

    AIOLOCK_URL=redis://localhost python examples/quota.py acme:12 globex:1 initech:2*3

Each argument is a tenant, the number of its requests, and its weight if that is not 1. Start it
several times: the processes share the quota, and the tenants take turns over all of them.
"""

from __future__ import annotations

import asyncio
import os
import sys

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
QUOTA = int(os.environ.get("REQUESTS_AT_A_TIME", "3"))
SECONDS = float(os.environ.get("USE_SECONDS", "1"))


async def ask(locks: aiolock.LockClient, tenant: str, weight: float) -> None:
    """One request of a tenant."""
    quota = locks.semaphore(
        "requests to the model",
        QUOTA,
        share=tenant,
        weight=weight,
        max_waiters=100,  # of this tenant: nobody else is refused because it asks too much
        timeout=60,
    )
    try:
        async with quota:
            print(f"{tenant} asks", flush=True)
            await asyncio.sleep(SECONDS)  # here the model answers
    except aiolock.QueueFull:
        print(f"{tenant} has too many requests", flush=True)
    except aiolock.LockError as error:  # no turn in time, or the permit was lost
        print(f"{tenant} is put off: {error}", flush=True)


async def main(wanted: list[str]) -> None:
    """Send all requests of all tenants at once."""
    async with aiolock.connect(URL) as locks, asyncio.TaskGroup() as tasks:
        for tenant, number, weight in map(parsed, wanted):
            for _ in range(number):
                tasks.create_task(ask(locks, tenant, weight))


def parsed(argument: str) -> tuple[str, int, float]:
    """A tenant, how many requests it has, and its weight."""
    tenant, _, rest = argument.partition(":")
    number, _, weight = rest.partition("*")
    return tenant, int(number), float(weight or 1)


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
