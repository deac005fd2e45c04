"""Ten thousand of everything, for tests that measure what becomes of the event loop."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import aiolock
from aiolock import ClientClosed
from tests.support.stretches import check_short

MANY: Final = 10_000
_AT_A_TIME: Final = 100
kept: Final = list[list[Any]]()
"""The leases that tests have taken, until the client is closed: one that is dropped is a fault."""


async def each(do: Callable[[int], Awaitable[Any]], count: int = MANY) -> list[Any]:
    """The results, of so many at a time."""
    found = list[Any]()
    for start in range(0, count, _AT_A_TIME):
        found += await asyncio.gather(*map(do, range(start, min(count, start + _AT_A_TIME))))
    kept.append(found)
    return found


async def begun(
    work: Callable[[int], Coroutine[Any, Any, None]], count: int = MANY
) -> list[asyncio.Task[None]]:
    """So many tasks, begun a part at a time."""
    tasks = list[asyncio.Task[None]]()
    while len(tasks) < count:
        numbers = range(len(tasks), min(count, len(tasks) + _AT_A_TIME))
        tasks += [asyncio.create_task(work(number)) for number in numbers]
        await asyncio.sleep(0.002)
    return tasks


async def waits(lock: aiolock.Lock) -> None:
    """Wait until the client is closed."""
    with contextlib.suppress(ClientClosed):
        async with lock:
            pass


async def all_wait(lock: aiolock.Lock, count: int = MANY) -> list[asyncio.Task[None]]:
    """So many tasks that wait for it."""
    tasks = await begun(lambda _: waits(lock), count)
    async with asyncio.timeout(60):
        while len((await lock.status()).waiters) < count:  # noqa: ASYNC110  # it sets no Event
            await asyncio.sleep(0.05)
    return tasks


async def look(client: aiolock.LockClient) -> None:
    """What the client does each second: it looks for what is new, and at last for what is slow."""
    monitor: Any = client._engine.slow_monitor
    clock = client._engine.watchdog.time
    for seconds in (0, 0, 60):
        if monitor._timer is not None:
            monitor._timer.cancel()
        monitor._time = lambda seconds=seconds: clock() + seconds
        monitor._look()
        async with asyncio.timeout(60):
            while monitor._under_way:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0)
    await asyncio.sleep(0.2)  # the answers to the labels that it has posted


def make_due(client: aiolock.LockClient, left: float) -> None:
    """Have all leases, of which the deadlines are then, renewed soon."""
    watchdog = client._engine.watchdog
    now = watchdog.time()
    for hold in watchdog.holds.values():
        hold.renewals = None
        hold.deadline = now + left
        watchdog.wheel.schedule(hold, now + 0.3, now)


async def are_renewed(client: aiolock.LockClient) -> None:
    """Return when all leases are renewed."""
    async with asyncio.timeout(60):  # once: ten thousand of them would keep the loop
        for hold in list(client._engine.watchdog.holds.values()):
            while not (hold.renewals and hold.renewals.confirmed):  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0.01)


def expire(client: aiolock.LockClient) -> None:
    """Have all leases end soon, at once."""
    watchdog = client._engine.watchdog
    now = watchdog.time()
    for hold in watchdog.holds.values():
        hold.deadline = now + 0.3
        watchdog.wheel.schedule(hold, hold.deadline, now)


async def check_readers(
    client: aiolock.LockClient, other: aiolock.LockClient, count: int = MANY, *, hold: bool = False
) -> None:
    """So many tasks wait for a writer, whose release lets all of them in.

    Each leaves at once, or when all have entered.
    """
    lock, leave, inside = other.rwlock("book"), asyncio.Event(), list[None]()
    tasks, writing = list[asyncio.Task[None]](), list[aiolock.Lease]()

    async def reads(_: int) -> None:
        async with client.rwlock("book").read():
            inside.append(None)
            if hold:
                await leave.wait()

    async def all_begin() -> None:
        leave.set()
        await asyncio.gather(*tasks)
        leave.clear()
        inside.clear()
        writing.append(await lock.write().acquire())
        tasks[:] = await begun(reads, count)
        async with asyncio.timeout(60):
            while len((await lock.status()).waiters) < count:  # noqa: ASYNC110  # it sets no Event
                await asyncio.sleep(0.05)

    def is_over() -> bool:
        return len(inside) == count and (hold or all(task.done() for task in tasks[::100]))

    async def all_enter() -> None:
        await writing.pop().release()
        async with asyncio.timeout(60):
            while not is_over():  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.05)

    try:
        await check_short(all_enter, all_begin)
    finally:
        leave.set()
        await asyncio.gather(*tasks)
