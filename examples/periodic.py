"""A job that one of many instances runs in each period, in turn.

    AIOLOCK_URL=redis://localhost python examples/periodic.py     # in as many terminals as you like

Kill one of them at any time: the others go on. SIGTERM or Ctrl-C ends one after its run.
"""

from __future__ import annotations

import asyncio
import os
import signal
import time

import aiolock

URL = os.environ.get("AIOLOCK_URL", "redis://localhost")
EVERY = float(os.environ.get("EVERY_SECONDS", "5"))
WORK = float(os.environ.get("WORK_SECONDS", "1"))


async def clean_up() -> None:
    """The job, which must not run twice at a time, nor twice in a period."""
    print(f"{time.time():.2f} {os.getpid()} cleans up", flush=True)
    await asyncio.sleep(WORK)


async def main() -> None:
    """Take part until asked to end; a run that has begun is finished."""
    stopping = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(name, stopping.set)
    async with aiolock.connect(URL) as client:
        job = client.periodic("clean up", every=EVERY, ttl=10, max_hold=60)
        busy = asyncio.Lock()

        async def once() -> None:
            async with busy:
                await clean_up()

        print(f"{os.getpid()} takes part", flush=True)
        running = asyncio.create_task(job.run(once))
        ended = asyncio.create_task(stopping.wait())
        await asyncio.wait([running, ended], return_when=asyncio.FIRST_COMPLETED)
        async with busy:  # not in the middle of a run
            running.cancel()
        await asyncio.wait([running])


if __name__ == "__main__":
    asyncio.run(main())
