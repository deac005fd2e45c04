"""The accidents: workers are killed while they hold the lock, and while they wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from aiolock import Lock
from aiolock.cli.demo.crew import Crew, Worker
from aiolock.cli.demo.worker import Order


class Accident(NamedTuple):
    """When the holder stops with the lock in hand, so that the victim can be killed."""

    victim: int
    holder: int
    left: float
    """The part of the items that is left then."""
    after_write: bool


_ACCIDENTS: Final = (
    Accident(victim=1, holder=1, left=0.75, after_write=False),
    # While worker 0 has the lock nobody else does: its victim dies in the queue for certain.
    Accident(victim=2, holder=0, left=0.5, after_write=False),
    Accident(victim=3, holder=3, left=0.25, after_write=True),
)

_SOON: Final = 0.005
"""Seconds between two looks at the queue."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed, and who held the lock at that moment: it, or another."""

    worker: int
    pid: int
    holding: bool
    """It held the lock; else its requests stood in the queue."""
    waiting: int
    """How many of its requests stood in the queue."""
    queue: int
    """How many did in all."""
    wrote: bool
    """The holder had written its sale."""
    fence: int
    """The fencing token of the holder."""
    entered: int
    """When the holder had entered (``time.monotonic_ns``)."""
    at: int
    """When the worker was killed."""


def accidents(workers: int) -> list[Accident]:
    """Those that can happen to so many workers."""
    return [accident for accident in _ACCIDENTS if accident.victim < workers]


def arranged(orders: list[Order]) -> list[Order]:
    """The orders of all workers, with the stops for the accidents put in."""
    orders = orders.copy()
    for accident in accidents(len(orders)):
        order = orders[accident.holder]
        stop_at = int(order.items * accident.left)
        orders[accident.holder] = replace(
            order, stop_at=stop_at, stop_after_write=accident.after_write
        )
    return orders


async def kill(crew: Crew, lock: Lock, tell: Callable[[Kill], object]) -> list[Kill]:
    """Let all accidents happen, in the order in which their holders stop."""
    kills: list[Kill] = []
    to_come = {accident.holder: accident for accident in accidents(len(crew.workers))}
    while to_come:
        holder, stop = await crew.stopped.get()
        victim = crew.workers[to_come.pop(holder.number).victim]
        waiting, queue = await _in_queue(victim, lock)
        expected = victim.at_once - (victim is holder) if stop.left else 0
        while waiting < expected and not victim.idle.is_set():
            # Nobody has found it sold out yet, so the last ones are on their way into the queue.
            await asyncio.sleep(_SOON)
            waiting, queue = await _in_queue(victim, lock)
        await victim.report()
        kills.append(
            Kill(
                worker=victim.number,
                pid=victim.process.pid,
                holding=victim is holder,
                waiting=waiting,
                queue=queue,
                wrote=stop.wrote,
                fence=stop.fence,
                entered=stop.entered,
                at=await victim.kill(),
            )
        )
        tell(kills[-1])
        if holder is not victim:
            holder.go_on()
    return kills


async def _in_queue(worker: Worker, lock: Lock) -> tuple[int, int]:
    """How many of its requests stand in the queue, and how many of anybody's."""
    waiters = (await lock.status()).waiters
    return sum(party.client == worker.client for party in waiters), len(waiters)
