"""The runs of the demo: worker processes contend for a stock, and some of them are killed."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import shutil
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import AsyncExitStack, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import monotonic, monotonic_ns
from typing import Any, Final, NamedTuple, TextIO

from redis.asyncio import Redis
from redis.exceptions import NoPermissionError, RedisError

import aiolock
from aiolock.cli.demo import Options
from aiolock.cli.demo.worker import (
    LOCK,
    Guard,
    Request,
    Settings,
    Stock,
    WorkerError,
    redis_client,
    share,
)

_QUEUED_WITHIN: Final = 30.0
"""Seconds for a worker's requests to be in the queue."""


class Kind(NamedTuple):
    """A kind of run: its name in JSON, its lock, its column in the table, its title."""

    name: str
    guard: Guard
    column: str
    title: str
    kill: bool = False
    seconds: float = math.inf
    """It is ended after this time."""


WITHOUT_LOCK: Final = Kind("without_lock", "nothing", "no lock", "Without a lock")
WITH_LOCK: Final = Kind("with_lock", "aiolock", "aiolock", "With aiolock")
WITH_KILLS: Final = Kind(
    "with_kills", "aiolock", "with kills", "With aiolock, while workers are killed", kill=True
)
# It polls, which may take long.
REDIS_PY: Final = Kind(
    "redis_py_lock", "redis-py", "redis-py Lock", "With redis-py's own Lock", seconds=10.0
)

VICTIMS: Final = {1: (2, 1), 3: (3,)}
"""The workers that are killed while this one has stopped with the lock held."""


class Kill(NamedTuple):
    """A worker that was killed, and the request that held the lock then."""

    worker: int
    waiting: int
    """The number of its requests in the queue."""
    holder: Request
    at: int

    @property
    def holding(self) -> bool:
        """Whether it held the lock itself."""
        return self.worker == self.holder.worker

    def __str__(self) -> str:
        if not self.holding:
            return f"worker {self.worker} with {self.waiting} requests in the queue"
        when = "after" if self.holder.sold else "before"
        return f"worker {self.worker} with the lock held, {when} its write"


@dataclass(slots=True)
class Run:
    """The record of a run."""

    kind: Kind
    items: int
    tasks: int
    requests: list[Request] = field(default_factory=list[Request])
    """Those that were answered: not that of a killed holder, for one."""
    kills: list[Kill] = field(default_factory=list[Kill])
    history: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """All that was written to the stock: the truth about what was sold."""
    commands: int | None = None
    """What the server got for locks meanwhile, if that is known."""

    @property
    def sold(self) -> int:
        """The number of items that were sold."""
        return len(self.history) - 1

    @property
    def left(self) -> int:
        """The stock at the end."""
        return self.history[-1][0]


class Progress:
    """Prints lines, and on a terminal one more below them, which is rewritten."""

    def __init__(self, out: TextIO | None) -> None:
        self._out = out

    def line(self, text: str) -> None:
        """Print a line that stays."""
        self.show("")
        if self._out is not None:
            print(text, file=self._out, flush=True)

    def show(self, text: str) -> None:
        """Rewrite the last line, if this is a terminal. What does not fit is cut."""
        if self._out is not None and self._out.isatty():
            width = shutil.get_terminal_size().columns - 1
            print(f"\r\x1b[K{text[:width]}", end="", file=self._out, flush=True)


async def compare(options: Options, folder: Path, progress: Progress) -> list[Run]:
    """Make all runs. However this ends, no worker stays, and nothing is left on the server."""
    prefix = f"aiolock-demo-{secrets.token_hex(4)}"
    redis: Redis | None = None
    async with AsyncExitStack() as stack:
        if options.on_redis:
            redis = await stack.enter_async_context(redis_client(options.url, 1))
            stack.push_async_callback(remove_keys, redis, prefix)
        client = aiolock.connect(options.url, prefix=prefix, ttl=options.ttl)
        await stack.enter_async_context(client)
        contention = Contention(options, prefix, folder, client.lock(LOCK), progress)
        progress.line(
            f"Contention on {options.server}, processes: {options.workers}, requests at once:"
            f" {options.requests:,}\nEach request reads the stock, does some work, and writes it"
            " back less one."
        )
        runs: list[Run] = []
        for kind in kinds(options):
            before = await count_commands(redis, kind)
            runs.append(await contention.run(kind))
            after = await count_commands(redis, kind)
            runs[-1].commands = None if before is None or after is None else after - before
        return runs


def kinds(options: Options) -> list[Kind]:
    """The runs that are possible."""
    found = [WITHOUT_LOCK, WITH_LOCK, *([WITH_KILLS] if options.kill else [])]
    return [*found, REDIS_PY] if options.on_redis else found


@dataclass(frozen=True, slots=True)
class Contention:
    """What all runs share."""

    options: Options
    prefix: str
    folder: Path
    lock: aiolock.Lock
    progress: Progress
    killed: set[Process] = field(default_factory=set[Process])

    async def run(self, kind: Kind) -> Run:
        """Let worker processes take items until nothing is left."""
        self.progress.line(f"\n{kind.title}")
        run = Run(kind, self.options.items, self.options.requests)
        stock = Stock(self.folder / kind.name)
        await stock.write(run.items)
        workers: list[Process] = []
        try:
            while len(workers) < self.options.workers:
                worker = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-m", "aiolock.cli.demo.worker"),
                    stdin=PIPE,
                    stdout=PIPE,
                    start_new_session=True,  # Ctrl-C is for the demo, which ends its workers
                )
                workers.append(worker)
            async with asyncio.TaskGroup() as group:
                following = {
                    group.create_task(self.follow(number, workers, stock, run))
                    for number in range(len(workers))
                }
                ends = monotonic() + kind.seconds
                while following and monotonic() < ends:
                    self.progress.show(f"  {stock.count_sold():,} of {run.items:,} items sold")
                    _, following = await asyncio.wait(following, timeout=0.1)
                await self.end(workers)
        finally:
            await self.end(workers)
        run.history = stock.history()
        for record in self.folder.glob(f"{kind.name}-*"):
            lines = record.read_text("utf-8").splitlines()
            run.requests += [Request(**json.loads(line)) for line in lines]
        self.progress.line(f"  {run.sold:,} of {run.items:,} items sold")
        return run

    async def follow(self, worker: int, workers: Sequence[Process], stock: Stock, run: Run) -> None:
        """Follow a worker to its end; kill workers when it has stopped with the lock held."""
        process = workers[worker]
        assert process.stdin is not None
        assert process.stdout is not None
        settings = Settings(
            self.options, self.prefix, run.kind.guard, run.kind.kill, str(stock.path), worker
        )
        process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
        async for line in process.stdout:
            match json.loads(line):
                case {"stopped": request, "left": left}:
                    for victim in VICTIMS[worker]:
                        if victim < len(workers) and workers[victim].returncode is None:
                            waiting = await self.wait_for_queue(victim, workers, worker, left)
                            kill = Kill(victim, waiting, Request(**request), monotonic_ns())
                            await self.end([workers[victim]])
                            run.kills.append(kill)
                            lease = f"; lease: {self.options.ttl:g} s" if kill.holding else ""
                            self.progress.line(f"  SIGKILL for {kill}{lease}")
                case message:
                    raise WorkerError(f"worker {worker}: {message['failed']}")
        if await process.wait() != 0 and process not in self.killed:
            raise WorkerError(f"worker {worker} has ended (exit code {process.returncode})")

    async def wait_for_queue(
        self, victim: int, workers: Sequence[Process], holder: int, left: int
    ) -> int:
        """Wait until all requests of a worker are in the queue, but for that of the holder.

        At most `_QUEUED_WITHIN` seconds: a store has no event for this, so the status is read.
        """
        tasks = share(self.options.requests, victim, len(workers))
        loop = asyncio.get_running_loop()
        until = loop.time() + _QUEUED_WITHIN
        while True:
            waiters = (await self.lock.status()).waiters
            waiting = sum(waiter.pid == workers[victim].pid for waiter in waiters)
            # There are fewer if no item is left, or if the machine is too busy to ask for all.
            if waiting >= tasks - (victim == holder) or left == 0 or loop.time() > until:
                return waiting
            await asyncio.sleep(0.005)

    async def end(self, workers: Sequence[Process]) -> None:
        """SIGKILL for those that still run."""
        for process in workers:
            # Once only: asyncio complains about a second one to a process that is dead already.
            if process.returncode is None and process not in self.killed:
                self.killed.add(process)
                process.kill()
        await asyncio.gather(*(process.wait() for process in workers))


# Any: redis-py has only partial types for these commands.


async def count_commands(redis: Any, kind: Kind) -> int | None:
    """The commands that the server got for such locks so far; None if that is not known."""
    # The scripts of aiolock set values too, which are no commands of a client.
    names = ("cmdstat_eval", "cmdstat_evalsha", "cmdstat_set")[
        : 3 if kind.guard == "redis-py" else 2
    ]
    with suppress(NoPermissionError):
        stats = await redis.info("commandstats") if redis else None
        return stats and sum(stats[name]["calls"] for name in names if name in stats)
    return None


async def remove_keys(redis: Any, prefix: str) -> None:
    """Remove what killed workers have left. If the server is gone, it expires."""
    with suppress(RedisError, OSError):
        async with asyncio.timeout(5):
            async for key in redis.scan_iter(f"{prefix}:*", count=1000):
                await redis.delete(key)
