"""The runs of the demo: worker processes contend for a stock, and some of them are killed."""

from __future__ import annotations

import asyncio
import json
import secrets
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

from redis.exceptions import RedisError

import aiolock
from aiolock.cli.demo.worker import STOPPED, Guard, Request, Settings, Stock, redis_client


class Kind(NamedTuple):
    """A kind of run."""

    name: str
    """The name of its column in the table, and of its figures in JSON."""
    title: str
    guard: Guard
    kill: bool = False
    seconds: float | None = None
    """It is ended after this time."""


NO_LOCK: Final = Kind("no lock", "Without a lock", "nothing")
# It polls, which may take long.
REDIS_PY: Final = Kind("redis-py", "With redis-py's own Lock", "redis-py", seconds=10.0)
AIOLOCK: Final = Kind("aiolock", "With aiolock", "aiolock")
WITH_KILLS: Final = Kind("killed", "With aiolock, while workers are killed", "aiolock", kill=True)

VICTIMS: Final = {
    1: {2: "with requests in the queue", 1: "with the lock held, before its write"},
    3: {3: "with the lock held, after its write"},
}
"""The workers that are killed when this one has stopped with the lock held."""


@dataclass(slots=True)
class Run:
    """The record of a run."""

    kind: Kind
    items: int
    requests: list[Request] = field(default_factory=list[Request])
    """Those that were answered, and those of killed holders."""
    history: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])
    """All that was written to the stock: the truth about what was sold."""
    killed: set[int] = field(default_factory=set[int])
    """The workers that were killed."""
    commands: int = 0
    """What the server got for locks meanwhile; 0 if that is not known."""

    @property
    def sold(self) -> int:
        """The number of items that were sold."""
        return len(self.history) - 1

    @property
    def left(self) -> int:
        """The stock at the end."""
        return self.history[-1][0]


async def compare(settings: Settings, folder: Path) -> list[Run]:
    """Make all runs. However this ends, no worker stays, and nothing is left on the server."""
    if settings.items < 1 or not 1 <= settings.workers <= settings.requests:
        raise ValueError("there must be an item, a worker, and a request for each worker")
    settings = replace(settings, prefix=f"aiolock-demo-{secrets.token_hex(4)}")
    client = aiolock.connect(settings.url, prefix=settings.prefix, ttl=settings.ttl)
    if not settings.on_redis and not settings.url.startswith("sqlite://"):
        raise ValueError("the demo runs on Redis, or on an SQLite file")
    async with client:  # says what is wrong with the server
        print(
            f"Processes: {settings.workers}, requests: {settings.requests:,},"
            f" stock: {settings.items:,} items.\n"
            "Each reads the stock, works, writes it less one."
        )
        if not settings.on_redis:
            return [await contend(kind, settings, folder) for kind in kinds(settings)]
        async with redis_client(settings.url, 1) as redis:
            try:
                runs: list[Run] = []
                for kind in kinds(settings):
                    before = await count_commands(redis, kind)
                    runs.append(await contend(kind, settings, folder))
                    runs[-1].commands = await count_commands(redis, kind) - before
                return runs
            finally:
                await remove_keys(redis, settings.prefix)


def kinds(settings: Settings) -> list[Kind]:
    """The runs that are possible."""
    with_redis = [REDIS_PY] if settings.on_redis else []
    with_kills = [WITH_KILLS] if settings.workers > 1 else []  # one is to live
    return [NO_LOCK, *with_redis, AIOLOCK, *with_kills]


async def contend(kind: Kind, settings: Settings, folder: Path) -> Run:
    """Let worker processes take items until nothing is left."""
    print(f"\n{kind.title}" + f" (lease: {settings.ttl:g} s)" * kind.kill, flush=True)
    run, stock = Run(kind, settings.items), Stock(folder / kind.name)
    stock.write(settings.items)
    settings = replace(settings, guard=kind.guard, kill=kind.kill, stock=str(stock.path))
    workers: list[Process] = []
    try:
        while len(workers) < settings.workers:
            workers.append(await start(replace(settings, number=len(workers))))
        async with asyncio.timeout(kind.seconds):
            await asyncio.gather(*(follow(number, workers, run) for number in range(len(workers))))
    except TimeoutError:
        print(f"  ended after {kind.seconds:g} s")
    finally:
        for worker in workers:
            assert worker.stdin is not None
            worker.stdin.close()  # which ends it
        await asyncio.gather(*(worker.wait() for worker in workers))
    run.history = stock.history()
    run.requests = read_requests(folder, kind)
    print(f"  {run.sold:,} of {run.items:,} items sold, {run.left:,} left in stock")
    if run.sold + run.left != run.items:
        print("  (requests overwrote each other's numbers)")
    return run


def read_requests(folder: Path, kind: Kind) -> list[Request]:
    """The requests on record, of all workers."""
    records = [path.read_text("utf-8") for path in folder.glob(f"{kind.name}-*")]
    return [Request(**json.loads(line)) for line in "".join(records).splitlines()]


async def start(settings: Settings) -> Process:
    """Start a worker."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aiolock.cli.demo.worker"),
        stdin=PIPE,
        stdout=PIPE,
        start_new_session=True,  # Ctrl-C is for the demo, which ends its workers
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(asdict(settings)).encode() + b"\n")
    return process


async def follow(number: int, workers: Sequence[Process], run: Run) -> None:
    """Follow a worker to its end; kill workers when it has stopped with the lock held."""
    process = workers[number]
    assert process.stdout is not None
    async for line in process.stdout:
        if (text := line.decode().rstrip()) != STOPPED:
            raise aiolock.StoreError(f"worker {number}: {text}")
        for victim, state in VICTIMS[number].items():
            if victim < len(workers) and workers[victim].returncode is None:
                print(f"  worker {victim} is killed {state}", flush=True)
                run.killed.add(victim)
                workers[victim].kill()
    if await process.wait() != 0 and number not in run.killed:
        raise aiolock.StoreError(f"worker {number} failed")


# Any: redis-py has only partial types for these commands.


async def count_commands(redis: Any, kind: Kind) -> int:
    """The commands that the server got for such locks so far; 0 if it does not tell."""
    # The scripts of aiolock set values too, which are no commands of a client.
    names = ("eval", "evalsha", "set") if kind.guard == "redis-py" else ("eval", "evalsha")
    with suppress(RedisError, OSError):
        stats = await redis.info("commandstats")
        return sum(stats.get(f"cmdstat_{name}", {"calls": 0})["calls"] for name in names)
    return 0


async def remove_keys(redis: Any, prefix: str) -> None:
    """Remove what killed workers have left. If the server is gone, it expires."""
    with suppress(RedisError, OSError):
        async with asyncio.timeout(5):
            async for key in redis.scan_iter(f"{prefix}:*", count=1000):
                await redis.delete(key)
