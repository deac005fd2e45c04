"""A crawler that limits the requests under way at a host, over all its processes.

    AIOLOCK_URL=redis://localhost python examples/crawler.py http://localhost:8000/a ...

Start it several times: the processes share the permits, and the permits of a killed process come
back.
"""

from __future__ import annotations

import asyncio
import os
import sys

import httpx

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
LIMIT = int(os.environ.get("REQUESTS_AT_A_TIME", "3"))


async def visit(page: str, web: httpx.AsyncClient, locks: aiolock.LockClient) -> None:
    """Fetch one page once there is a permit for its host."""
    permits = locks.semaphore(f"requests to {httpx.URL(page).host}", LIMIT, ttl=10, timeout=60)
    try:
        async with permits:
            reply = await web.get(page)
        print(f"{page} {reply.status_code} {len(reply.content)} bytes", flush=True)
    except httpx.HTTPError as error:
        print(f"{page} failed: {error!r}", flush=True)
    except aiolock.LockError as error:  # no permit in time, or lost in the middle of the request
        print(f"{page} is put off: {error}", flush=True)


async def main(pages: list[str]) -> None:
    """Visit all pages, as fast as permits become free."""
    async with (
        httpx.AsyncClient(timeout=10, trust_env=False) as web,
        aiolock.connect(URL) as locks,
        asyncio.TaskGroup() as tasks,
    ):
        for page in pages:
            tasks.create_task(visit(page, web, locks))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1:]))
