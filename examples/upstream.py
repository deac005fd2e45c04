"""Workers that call an API which allows so many calls in any time: it answers 429 to the next one.

    AIOLOCK_URL=redis://localhost python examples/upstream.py     # in as many terminals as you like

All workers of all processes share one rate limit, so none of their calls is refused. The API here
is a stand-in, in each process.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from collections import deque

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
ALLOWED, IN_SECONDS = 100, float(os.environ.get("UPSTREAM_SECONDS", "60"))
BURST, LIMIT = 20, 75  # what is saved up, and what comes meanwhile; 5 for calls that are slow
JOBS = int(os.environ.get("UPSTREAM_JOBS", "150"))
WORKERS = 20


class Upstream:
    """The API: at most `ALLOWED` calls in any `IN_SECONDS`."""

    def __init__(self) -> None:
        self.refused = 0
        self._calls = deque[float]()

    async def call(self) -> None:
        """One call; counts it as refused if it is one too many."""
        now = time.monotonic()
        while self._calls and now - self._calls[0] >= IN_SECONDS:
            self._calls.popleft()
        if len(self._calls) >= ALLOWED:
            self.refused += 1
            return
        self._calls.append(now)
        await asyncio.sleep(random.uniform(0.01, 0.05))


async def work(client: aiolock.LockClient, upstream: Upstream, jobs: list[int]) -> None:
    """Take one job after the other, and call the API for each."""
    api = client.rate_limit("upstream", LIMIT, per=IN_SECONDS, burst=BURST)
    while jobs:
        job = jobs.pop(0)
        verdict = await api.acquire()
        await upstream.call()
        print(f"job {job} is done, {verdict.remaining} calls are left", flush=True)


async def main() -> None:
    """Do all jobs, as fast as the API allows."""
    upstream, jobs = Upstream(), [*range(JOBS)]
    async with aiolock.connect(URL) as client:
        await asyncio.gather(*(work(client, upstream, jobs) for _ in range(WORKERS)))
    print(f"all {JOBS} jobs are done, {upstream.refused} calls were refused")


if __name__ == "__main__":
    asyncio.run(main())
