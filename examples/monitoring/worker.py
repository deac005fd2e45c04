"""A worker that has something to show: locks that several want, and their metrics over HTTP.

    python examples/monitoring/worker.py     # then look at http://localhost:8000/metrics

`compose.yaml` starts two of them on one Redis, with Prometheus and Grafana. AIOLOCK_URL says where
the locks are, METRICS_PORT on which port to serve; SIGTERM or Ctrl-C ends it.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import Awaitable, Callable

from prometheus_client import start_http_server

import aiolock

URL = os.environ.get("AIOLOCK_URL", "memory://")
PORT = int(os.environ.get("METRICS_PORT", "8000"))

Job = Callable[[aiolock.LockClient], Awaitable[None]]


async def pay(locks: aiolock.LockClient) -> None:
    """Many want a few orders, for a moment each."""
    async with locks.lock(f"order:{random.randrange(3)}", timeout=2):
        await asyncio.sleep(random.uniform(0.01, 0.08))


async def sell(locks: aiolock.LockClient) -> None:
    """All want the same stock, and few have the patience."""
    async with locks.lock("stock:apple", timeout=0.1, max_waiters=5):
        await asyncio.sleep(random.uniform(0.02, 0.06))


async def ask_partner(locks: aiolock.LockClient) -> None:
    """The partner allows two calls at a time."""
    async with locks.semaphore("partner api", 2, timeout=5):
        await asyncio.sleep(random.expovariate(5))


async def report(locks: aiolock.LockClient) -> None:
    """One at a time, and it takes long."""
    async with locks.lock("report:daily", max_hold=60):
        await asyncio.sleep(random.uniform(2, 6))


async def keep_at(job: Job, pause: float, locks: aiolock.LockClient) -> None:
    """Do it again and again, with pauses of ``pause`` seconds on average."""
    while True:
        try:
            await job(locks)
        except (aiolock.AcquireTimeout, aiolock.QueueFull):
            pass  # the metrics count them
        except aiolock.LockError as error:
            print(f"{job.__name__}: {error}", flush=True)
        await asyncio.sleep(random.expovariate(1 / pause))


async def main() -> None:
    """Work until we are told to stop."""
    server, _ = start_http_server(PORT)
    print(f"metrics on http://localhost:{server.server_port}/metrics", flush=True)
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    observer = aiolock.observe.prometheus()
    async with aiolock.connect(URL, ttl=10, label="worker", observer=observer) as locks:
        jobs: list[tuple[Job, float]] = [
            *[(pay, 0.2)] * 8,
            *[(sell, 0.3)] * 8,
            *[(ask_partner, 0.5)] * 6,
            *[(report, 5.0)] * 2,
        ]
        tasks = [asyncio.create_task(keep_at(job, pause, locks)) for job, pause in jobs]
        await stopping.wait()
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    asyncio.run(main())
