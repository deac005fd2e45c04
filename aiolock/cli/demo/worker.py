"""A worker process of the demo: its tasks take items from a stock, under a lock or without.

`Worker.take_item` is code that needs a lock, and `Worker.with_aiolock` is all that it takes to have
one. ``python -m aiolock.cli.demo.worker`` reads its settings from stdin, because a list of
processes would show the password in a URL, and writes its requests to a file beside the stock.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import sys
import threading
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic_ns
from typing import Final, Literal, TextIO, TypeAlias

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.lock import Lock as RedisPyLock
from redis.exceptions import LockNotOwnedError, RedisError

import aiolock

WORK: Final = 0.0005  # seconds
STOPPED: Final = "stopped"
"""The line with which a worker asks to be killed; any other says why it failed."""
Guard: TypeAlias = Literal["nothing", "aiolock", "redis-py"]
"""The lock under which items are taken."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a worker; the last ones are set for each run, and each worker."""

    url: str = field(repr=False)
    items: int
    requests: int
    """The number of requests at once."""
    workers: int
    ttl: float
    prefix: str = "aiolock-demo"
    guard: Guard = "nothing"
    kill: bool = False
    """Whether some workers stop with the lock held, to be killed."""
    stock: str = ""
    """The path of its file."""
    number: int = 0
    """The number of this worker."""

    @property
    def on_redis(self) -> bool:
        """Whether redis-py's `Lock` can be used as well."""
        return self.url.startswith(("redis://", "rediss://", "unix://"))


@dataclass(slots=True)
class Request:
    """One request for an item. Its times are of `monotonic_ns`, one clock for all processes."""

    asked: int
    queued: int = 0
    """When it was known that it has to wait; 0 if it had not."""
    entered: int = 0
    """When it had the lock, and its work began."""
    leaving: int = 0
    """When its work was done, and the release began."""
    killed: int = 0
    """When it stopped with the lock held, for its process to be killed."""
    fence: int = 0
    sold: bool = False


class Stock:
    """A number of items in a file. Any process may read and write it: nothing guards it.

    Each line is a number that was written, and the fence of its writer. The last one counts, and
    all of them tell what was sold. A line is within one page of memory: nobody reads half of one.
    """

    _LINE: Final = 64

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> int:
        """The number of items left."""
        with self.path.open("rb") as file:
            file.seek(-self._LINE, os.SEEK_END)
            return int(file.read().split()[0])

    def write(self, left: int, fence: int = 0) -> None:
        """Write the number of items left."""
        with self.path.open("ab") as file:
            file.write(f"{left} {fence}".ljust(self._LINE - 1).encode() + b"\n")

    def history(self) -> list[tuple[int, int]]:
        """All that was written: numbers and fences."""
        lines = [line.split() for line in self.path.read_text("utf-8").splitlines()]
        return [(int(left), int(fence)) for left, fence in lines]


class QueueTimes(aiolock.Observer):
    """Notes when a request was queued. Its label is the name of its task."""

    def __init__(self) -> None:
        self.requests: dict[str, Request] = {}

    def waiting(self, request: aiolock.LockRequest) -> None:
        """The lock was not free, and this acquisition is in the queue now."""
        if request.kind == "lock":
            self.requests[request.label].queued = monotonic_ns()


@dataclass(frozen=True, slots=True)
class Worker:
    """The tasks of this process, and what they share."""

    settings: Settings
    stock: Stock
    lock: aiolock.Lock
    times: QueueTimes
    record: TextIO
    """The file of the requests that were answered."""
    redis: Redis | None
    """The client for redis-py's `Lock`."""

    async def take_item(self, request: Request) -> None:
        """Read, work, write: right only while no other task does the same."""
        request.entered = monotonic_ns()
        left = self.stock.read()
        if left > 0:
            await asyncio.sleep(WORK)  # ask the bank, send the mail
            await self.perhaps_stop(1, left, request)
            self.stock.write(left - 1, request.fence)
            request.sold = True
            await self.perhaps_stop(3, left, request)
        request.leaving = monotonic_ns()

    async def with_aiolock(self, request: Request) -> None:
        """Take an item under a lock of aiolock, which all tasks of the process share."""
        async with self.lock as lease:
            request.fence = lease.fence
            await self.take_item(request)

    async def with_redis_py(self, request: Request, redis: Redis) -> None:
        """Take an item under redis-py's `Lock`, which has no queue."""
        lock = RedisPyLock(redis, f"{self.settings.prefix}:redis-py", timeout=self.settings.ttl)
        while not await lock.acquire(blocking=False):  # just what its acquire() does
            request.queued = request.queued or monotonic_ns()
            await asyncio.sleep(float(lock.sleep))
        await self.take_item(request)
        await lock.release()

    async def run_task(self, task: int) -> None:
        """Make one request after the other, until nothing is left."""
        await asyncio.sleep(task / 10_000)  # the requests of all workers mix
        options = self.settings
        # Without a lock it may never come to that.
        most = options.items // options.requests + 1 if options.guard == "nothing" else None
        for _ in itertools.repeat(None, most) if most else itertools.repeat(None):
            request = self.times.requests[str(task)] = Request(asked=monotonic_ns())
            try:
                if options.guard == "nothing":
                    await self.take_item(request)
                elif self.redis is None:
                    await self.with_aiolock(request)
                else:
                    await self.with_redis_py(request, self.redis)
            except (aiolock.LeaseLost, LockNotOwnedError):
                continue  # the lease has ended before the work
            self.note(request)
            if not request.sold:
                return

    def note(self, request: Request) -> None:
        """Write it down, at once: this process may be killed."""
        print(json.dumps(asdict(request)), file=self.record, flush=True)

    async def perhaps_stop(self, number: int, left: int, request: Request) -> None:
        """Keep the lock until this process is killed, if it is this worker, and time.

        Worker 1 does so with 3/4 of the stock left, worker 3 with 1/4.
        """
        if not self.settings.kill or self.settings.number != number:
            return
        if left <= self.settings.items * (4 - number) // 4:
            request.killed = monotonic_ns()
            self.note(request)
            print(STOPPED, flush=True)
            await asyncio.Event().wait()


async def work(settings: Settings, record: TextIO) -> None:
    """Run the tasks, together with the other workers."""
    times = QueueTimes()
    redis = redis_client(settings.url, settings.requests) if settings.guard == "redis-py" else None
    async with aiolock.connect(
        settings.url, prefix=settings.prefix, ttl=settings.ttl, observer=times
    ) as client:
        stock = Stock(Path(settings.stock))
        worker = Worker(settings, stock, client.lock("stock"), times, record, redis)
        await client.barrier(settings.stock, settings.workers).wait()  # all are ready
        tasks = [
            asyncio.create_task(worker.run_task(task), name=str(task))
            for task in range(settings.number, settings.requests, settings.workers)
        ]
        await asyncio.gather(*tasks)


def redis_client(url: str, connections: int) -> Redis:
    """A client of redis-py: its `Lock` takes a connection for each task that waits."""
    pool = ConnectionPool(**parse_url(url))
    pool.max_connections = connections  # whatever the URL says
    return Redis.from_pool(pool)


def main() -> int:
    """Run one worker; returns the exit code."""
    settings = Settings(**json.loads(sys.stdin.readline() or os._exit(1)))
    # Stdin is closed when the demo ends, however it does. (`sys.stdin` is locked while it is read.)
    threading.Thread(target=lambda: os.read(0, 1) or os._exit(1), daemon=True).start()
    try:
        with Path(f"{settings.stock}-{settings.number}").open("w", encoding="utf-8") as record:
            asyncio.run(work(settings, record))
    except (aiolock.LockError, RedisError) as failure:
        print(" ".join(str(failure).split()), flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
