"""The accidents: workers are killed while they hold the lock, and while they wait for it."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, TypeAlias

from redis.asyncio import Redis

import aiolock
from aiolock.cli.demo.crew import Crew
from aiolock.cli.demo.worker import Order


class Accident(NamedTuple):
    """When a holder stops with the lock in hand, and which worker is killed then."""

    victim: int
    holder: int
    left: float
    """The part of the items that is left then."""
    after_write: bool


_ACCIDENTS: Final = (
    Accident(victim=1, holder=1, left=0.75, after_write=False),
    # While worker 0 has the lock no other does: its victim certainly dies in the queue.
    Accident(victim=2, holder=0, left=0.5, after_write=False),
    Accident(victim=3, holder=3, left=0.25, after_write=True),
)

_SOON: Final = 0.005
"""Seconds between two looks at the queue."""


@dataclass(frozen=True, slots=True)
class Kill:
    """A worker that was killed, and the holder of the lock at that moment: it, or another."""

    worker: int
    pid: int
    holding: bool
    """Whether it held the lock; if not, its requests stood in the queue."""
    waiting: int
    """How many of its requests waited."""
    queue: int | None
    """How many requests waited in all; None if there is no queue."""
    wrote: bool
    """Whether the holder had written its sale."""
    fence: int
    """The fencing token of the holder."""
    entered: int
    """When the holder had entered (``time.monotonic_ns``)."""
    at: int
    """When the worker was killed."""
    lease: float = 0.0
    """Seconds that were left of a killed holder's lease."""


class Seen(NamedTuple):
    """The state of the lock, as seen from outside."""

    lease: float
    """Seconds that are left of the holder's lease."""
    queue: Counter[str] | None = None
    """How many requests of each client stand in the queue; None if there is no queue."""


Look: TypeAlias = Callable[[], Awaitable[Seen]]


def accidents(workers: int) -> list[Accident]:
    """The accidents that can happen to this many workers."""
    return [accident for accident in _ACCIDENTS if accident.victim < workers]


def arranged(orders: list[Order]) -> list[Order]:
    """The orders of all workers, with the stops for the accidents added."""
    orders = orders.copy()
    for accident in accidents(len(orders)):
        order = orders[accident.holder]
        stop_at = int(order.items * accident.left)
        orders[accident.holder] = replace(
            order, stop_at=stop_at, stop_after_write=accident.after_write
        )
    return orders


async def look(lock: aiolock.Lock) -> Seen:
    """Look at a lock of aiolock."""
    status = await lock.status()
    return Seen(
        lease=max((holder.remaining for holder in status.holders), default=0.0),
        queue=Counter(party.client for party in status.waiters),
    )


async def look_at_key(redis: Redis, key: str) -> Seen:
    """Look at a lock of redis-py, which does not know its waiters."""
    return Seen(lease=max(0, await redis.pttl(key)) / 1000)


async def kill(crew: Crew, look: Look, tell: Callable[[Kill], object]) -> list[Kill]:
    """Let the accidents happen, in the order in which their holders stop, until all is sold."""
    kills: list[Kill] = []
    to_come = {accident.holder: accident for accident in accidents(len(crew.workers))}
    while to_come and (stopped := await crew.next_stop()):
        holder, stop = stopped
        victim = crew.workers[to_come.pop(holder.number).victim]
        expected = victim.at_once - (victim is holder) if stop.left else 0
        queue = (await look()).queue
        while queue is not None and queue[victim.client] < expected and not victim.idle.is_set():
            # No request has found it sold out yet, so the last ones are on their way to the queue.
            await asyncio.sleep(_SOON)
            queue = (await look()).queue
        await victim.report()
        at = await victim.kill()
        kills.append(
            Kill(
                worker=victim.number,
                pid=victim.process.pid,
                holding=victim is holder,
                waiting=expected if queue is None else queue[victim.client],
                queue=None if queue is None else queue.total(),
                wrote=stop.wrote,
                fence=stop.fence,
                entered=stop.entered,
                at=at,
                # Read it only now, since the holder renewed it until its death.
                lease=(await look()).lease if victim is holder else 0.0,
            )
        )
        tell(kills[-1])
        if holder is not victim:
            holder.go_on()
    return kills
