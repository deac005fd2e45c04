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
import random
import sys
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic_ns
from typing import Any, Final, Literal, TextIO, TypeAlias

from redis.asyncio import ConnectionPool, Redis
from redis.asyncio.connection import parse_url
from redis.asyncio.lock import Lock as RedisPyLock
from redis.exceptions import LockNotOwnedError, RedisError

import aiolock
from aiolock.cli.demo import Options

LOCK: Final = "stock"
WORK: Final = 0.0005  # seconds
Guard: TypeAlias = Literal["nothing", "aiolock", "redis-py"]
"""The lock under which items are taken."""


@dataclass(frozen=True, slots=True)
class Settings:
    """The settings of a worker."""

    options: Options
    prefix: str
    guard: Guard
    stop: bool
    """Whether some workers stop with the lock held, to be killed."""
    stock: str
    """The path of its file."""
    worker: int
    """The number of this one."""


def share(whole: int, worker: int, workers: int) -> int:
    """The part of a worker in all items, or in all requests at once."""
    return whole * (worker + 1) // workers - whole * worker // workers


@dataclass(slots=True)
class Request:
    """One request for an item. Its times are of `monotonic_ns`, one clock for all processes."""

    worker: int
    task: int
    number: int
    """Its number among the requests of its worker."""
    asked: int
    queued: int = 0
    """When it was known that it has to wait; 0 if it had not."""
    entered: int = 0
    """When it had the lock, and its work began."""
    leaving: int = 0
    """When its work was done, and the release began."""
    fence: int = 0
    sold: bool = False
    lost: bool = False
    """Whether its lease ended before its work."""


class Stock:
    """A number of items in a file. Any process may read and write it: nothing guards it.

    Each line is a number that was written, and the fence of its writer. The last one counts, and
    all of them tell what was sold.
    """

    _LINE: Final = 40

    def __init__(self, path: Path) -> None:
        self.path = path

    async def read(self) -> int:
        """The number of items left."""
        await asyncio.sleep(0)  # a database does not answer at once either
        with self.path.open("rb") as file:
            file.seek(-self._LINE, os.SEEK_END)
            return int(file.read(self._LINE).split()[0])

    async def write(self, left: int, fence: int = 0) -> None:
        """Write the number of items left."""
        await asyncio.sleep(0)
        with self.path.open("ab") as file:
            file.write(f"{left} {fence}".ljust(self._LINE - 1).encode() + b"\n")

    def count_sold(self) -> int:
        """The number of items that were sold so far."""
        return self.path.stat().st_size // self._LINE - 1

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
        left = await self.stock.read()
        await self.perhaps_stop(request, left)
        if left > 0:
            await asyncio.sleep(WORK)  # ask the bank, send the mail
            await self.stock.write(left - 1, request.fence)
            request.sold = True
            await self.perhaps_stop(request, left)
        request.leaving = monotonic_ns()

    async def with_aiolock(self, request: Request) -> None:
        """Take an item under a lock of aiolock, which all tasks of the process share."""
        try:
            async with self.lock as lease:
                request.fence = lease.fence
                await self.take_item(request)
        except aiolock.LeaseLost:
            request.lost = True

    async def with_redis_py(self, request: Request, redis: Redis) -> None:
        """Take an item under redis-py's `Lock`, which has no queue."""
        key, ttl = f"{self.settings.prefix}:redis-py", self.settings.options.ttl
        lock = RedisPyLock(redis, key, timeout=ttl)
        while not await lock.acquire(blocking=False):  # just what its acquire() does
            request.queued = request.queued or monotonic_ns()
            await asyncio.sleep(float(lock.sleep))
        await self.take_item(request)
        try:
            await lock.release()
        except LockNotOwnedError:
            request.lost = True

    async def run_task(self, task: int, numbers: Iterator[int]) -> None:
        """Make one request after the other, until nothing is left."""
        if self.settings.options.workers > 1:  # let the requests of all workers mix
            spread = self.settings.options.requests / 10_000
            await asyncio.sleep(spread * random.random())  # noqa: S311  # no secret
        for number in numbers:
            request = Request(self.settings.worker, task, number, asked=monotonic_ns())
            self.times.requests[str(task)] = request
            if self.settings.guard == "nothing":
                await self.take_item(request)
            elif self.redis is None:
                await self.with_aiolock(request)
            else:
                await self.with_redis_py(request, self.redis)
            print(json.dumps(asdict(request)), file=self.record, flush=True)
            if not request.sold and not request.lost:
                return

    async def run(self) -> None:
        """Run all tasks to their end."""
        options, worker = self.settings.options, self.settings.worker
        numbers: Iterator[int] = itertools.count()
        if self.settings.guard == "nothing":
            # As many requests as under a lock: one for each item, and the last one of each task.
            total = options.items + options.requests
            numbers = iter(range(share(total, worker, options.workers)))
        async with asyncio.TaskGroup() as group:
            for task in range(share(options.requests, worker, options.workers)):
                group.create_task(self.run_task(task, numbers), name=str(task))

    async def perhaps_stop(self, request: Request, left: int) -> None:
        """Keep the lock until the demo kills this process, if it is worker 1 or 3, and time."""
        items = self.settings.options.items
        before_write = left <= items * 3 // 4
        # If nothing is left, there will be no write.
        after_write = left <= items // 4 and (request.sold or left == 0)
        if self.settings.stop and {1: before_write, 3: after_write}.get(request.worker):
            report(stopped=asdict(request), left=left)
            await asyncio.Event().wait()


async def work(settings: Settings, record: TextIO) -> None:
    """Run the tasks, together with the other workers."""
    url, ttl, times = settings.options.url, settings.options.ttl, QueueTimes()
    redis = redis_client(url, settings.options.requests) if settings.guard == "redis-py" else None
    async with aiolock.connect(url, prefix=settings.prefix, ttl=ttl, observer=times) as client:
        stock, lock = Stock(Path(settings.stock)), client.lock(LOCK)
        worker = Worker(settings, stock, lock, times, record, redis)
        await client.barrier(settings.stock, settings.options.workers).wait()  # all are ready
        await worker.run()


def redis_client(url: str, connections: int) -> Redis:
    """A client of redis-py: its `Lock` takes a connection for each task that waits."""
    pool = ConnectionPool(**parse_url(url))
    pool.max_connections = connections  # whatever the URL says
    return Redis.from_pool(pool)


def report(**message: Any) -> None:
    """Report to the demo, at once: this process may be killed."""
    try:
        print(json.dumps(message), flush=True)
    except BrokenPipeError:
        os._exit(1)


class WorkerError(Exception):
    """A worker has failed; the text says why."""


def reason(failure: BaseException) -> str:
    """A failure in one line; a bug is raised again."""
    match failure:
        case BaseExceptionGroup(exceptions=(first, *_)):
            return reason(first)
        case aiolock.LockError() | RedisError() | WorkerError():
            return " ".join(str(failure).split())
        case _:
            raise failure from None


def end_with_demo() -> None:
    """End this process when the demo itself was killed: nobody can write to stdin any more."""
    os.read(0, 1)  # not `sys.stdin`, which is locked while it is read, also when Python ends
    os._exit(1)


def main() -> int:
    """Run one worker; returns the exit code."""
    given = json.loads(sys.stdin.readline() or os._exit(1))  # the demo was killed before
    threading.Thread(target=end_with_demo, daemon=True).start()
    settings = Settings(Options(**given.pop("options")), **given)
    try:
        with Path(f"{settings.stock}-{settings.worker}").open("w", encoding="utf-8") as record:
            asyncio.run(work(settings, record))
    except Exception as failure:  # noqa: BLE001  # a bug is raised again
        report(failed=reason(failure))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
