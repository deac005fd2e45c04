"""A batch in parts: each worker loads one, all meet, and a reporter waits for the end.

    export AIOLOCK_URL=redis://localhost
    python examples/batch.py 2026-11-21 report &
    for part in 0 1 2; do python examples/batch.py 2026-11-21 $part & done

The share of a part is not known before all parts are loaded, so the workers meet at a barrier. A
latch counts the parts that are written, by name: if a worker is started again and writes its part a
second time, the part is counted once.
"""

from __future__ import annotations

import asyncio
import os
import sys

from redis.asyncio import Redis

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
PARTS = 3
PATIENCE = 600.0  # seconds, after which the others will not come any more


def say(text: str) -> None:
    """Print it now, also into a pipe."""
    print(text, flush=True)


async def load(day: str, part: str, redis: Redis, locks: aiolock.LockClient) -> None:
    """Load one part; once all are loaded, write its share of the whole."""
    total = sum(range(int(part) * 100, int(part) * 100 + 100))  # your own: files, queries, ...
    await redis.hset(f"totals:{day}", part, str(total))
    say(f"part {part} is loaded")
    await locks.barrier(f"loaded:{day}", PARTS).wait(timeout=PATIENCE)
    whole = sum(map(int, await redis.hvals(f"totals:{day}")))
    await redis.hset(f"shares:{day}", part, f"{100 * total / whole:.1f}")
    missing = await locks.latch(f"shares:{day}", PARTS).count_down(part)
    say(f"part {part} is done, {missing} are missing")


async def report(day: str, redis: Redis, locks: aiolock.LockClient) -> None:
    """Wait until every part is done; a push tells when."""
    await locks.latch(f"shares:{day}", PARTS).wait(timeout=PATIENCE)
    for part in range(PARTS):
        share = str(await redis.hget(f"shares:{day}", str(part)))
        say(f"part {part} is {share} %")


async def main(day: str, role: str) -> None:
    """Load a part or report; a timeout of the others ends the process with an error."""
    async with Redis.from_url(URL, decode_responses=True) as redis, aiolock.connect(redis) as locks:
        if role == "report":
            await report(day, redis, locks)
        else:
            await load(day, role, redis, locks)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
