"""The measurements of aiolock alone: no other lock can do this, or says that it can."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import measures
from benchmarks.catalogue import Contestant
from benchmarks.crew import workers
from benchmarks.measures import Holding, Waiting
from benchmarks.redis_server import RedisServer


@dataclass(frozen=True)
class Ours:
    """The measurements of aiolock alone."""

    lone_waiter: float
    """Commands a second of a process whose only waiter waits."""
    commands: dict[int, float]
    """For each acquire and release, with so many tasks of one process on one name."""
    holding: Holding
    leases: int
    watched: float
    """Seconds for which the leases were held and watched."""
    lines: list[Waiting] = field(default_factory=list[Waiting])
    """Queues of different lengths."""
    restarted: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    """Microseconds for each waiter until all are through, in queues of different lengths, after the
    server was restarted and had forgotten them."""


async def measure(
    server: RedisServer,
    contestant: Contestant,
    python: Path,
    *,
    leases: int = 10_000,
    watched: float,
    lengths: Sequence[int] = (100, 1_000, 10_000),
    rounds: int,
) -> Ours:
    """The promised numbers of leases and waiters, a single waiter, and commands of a few tasks."""
    connecting = asyncio.Lock()
    async with workers(contestant, python) as (worker,):
        commands = {
            tasks: (await measures.commands(server, worker, tasks=tasks, times=20)).commands
            for tasks in (2, 4, 50)
        }
    async with workers(contestant, python, 3) as (holder, *pair):
        holding, lone = await asyncio.gather(
            measures.holding(server, holder, connecting, leases=leases, watch=watched),
            measures.waiters(server, pair, connecting, watch=watched),
        )
    async with workers(contestant, python, len(lengths)) as crew:
        lines = await measures.waiting(
            server,
            dict(zip(lengths, crew, strict=True)),
            batch=min(lengths),
            rounds=rounds,
            watch=0,
        )
    async with workers(contestant, python) as (worker,):
        restarted = await measures.restarted(
            server, worker, lengths[-2:], rounds=max(1, rounds // 5)
        )
    return Ours(lone, commands, holding, leases, watched, lines, restarted)
