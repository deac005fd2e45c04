"""Where a test of the API runs: on each kind of lock store, or on a clock of its own."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import Callable, Coroutine
from typing import Any, ParamSpec, Protocol

import pytest

import aiolock
from aiolock._engine.engine import State
from aiolock._target import store_at
from aiolock.store import Store
from aiolock.stores.memory import MemoryServer
from tests.support.virtual import run

P = ParamSpec("P")

KINDS = ("memory", "sqlite", "redis", "postgres", "mysql", "etcd")


class World:
    """One empty lock store, and as many clients of it as a test wants: each one is a process."""

    def __init__(self, kind: str, url: str, prefix: str) -> None:
        self.kind = kind
        self._prefix = prefix
        self._target: Any = url
        if kind == "memory":
            self._target = MemoryServer()

    def client(self, **options: Any) -> aiolock.LockClient:
        """Another client, not opened yet."""
        return aiolock.connect(self._target, **{"prefix": self._prefix, **options})

    def store(self) -> Store:
        """Another link for a client, not opened yet."""
        return store_at(self._target, self._prefix)


def virtual(test: Callable[P, Coroutine[Any, Any, None]]) -> Callable[P, None]:
    """Run an async test on a `VirtualLoop`: hours pass in no time, and any hang is an error."""

    @functools.wraps(test)
    def run_it(*args: P.args, **kwargs: P.kwargs) -> None:
        run(test(*args, **kwargs))

    return run_it


class Seen(Protocol):
    """An object with a queue that can be inspected."""

    async def status(self) -> aiolock.Status: ...


async def queued(lock: Seen, count: int) -> None:
    """Return when so many wait for it, which is to say soon."""
    give_up = time.monotonic() + 20  # real time, not that of the loop's own clock
    while time.monotonic() < give_up:
        if len((await lock.status()).waiters) == count:
            return
        await asyncio.sleep(0)
    raise AssertionError(f"{count} should wait, and never do: {await lock.status()}")


async def empty(lock: Seen) -> None:
    """Wait until no client holds it or waits for it any more, which comes soon.

    Another client's release comes over another connection, so no status is surely later.
    """
    async with asyncio.timeout(10):
        while (status := await lock.status()).holders or status.waiters:  # noqa: ASYNC110 # no event
            await asyncio.sleep(0)


async def settled(turns: int = 20) -> None:
    """Let everything happen that is ready to."""
    for _ in range(turns):
        await asyncio.sleep(0)


async def check_what_an_opening_leaves(
    client: aiolock.LockClient, other: aiolock.LockClient
) -> None:
    """Check that leases of one opening do nothing in the next, where others have their numbers.

    They were broken, so their release names no fence: a late question may have queued the waiter
    again. Neither client is open yet.
    """
    go, working = asyncio.Event(), list[aiolock.Lease]()

    async def work() -> None:
        async with client.once("c", remember=60, ttl=20) as lease:
            assert lease is not None
            working.append(lease)
            with contextlib.suppress(asyncio.CancelledError):  # by its loss
                await go.wait()
            await go.wait()

    async def begin() -> list[aiolock.Lease]:
        locks = client.lock("a", ttl=20), client.rwlock("b", ttl=20).write()
        leases = [await asking(lock) for lock in locks]
        tasks.append(asyncio.create_task(work()))
        async with asyncio.timeout(30):
            while len(working) < len(tasks):  # noqa: ASYNC110  # no event
                await asyncio.sleep(0.001)
        return [*leases, working[-1]]

    tasks = list[asyncio.Task[None]]()
    async with asyncio.timeout(20), other, client:
        old = await begin()
        for lease, kind in zip(old, ("lock", "lock", "once"), strict=True):
            assert await other.break_(lease.name, kind=kind)
            await lease.lost
        await client.aclose()
        await client.open()
        new = await begin()
        numbers = [[lease._hold.waiter.seq for lease in leases] for leases in (old, new)]
        assert numbers[0] == numbers[1]
        for lease in old[:2]:
            assert not await lease.release()
            assert not await lease.verify()
            with pytest.raises(aiolock.LeaseLost):
                await lease.extend(20)
        with pytest.raises(aiolock.LeaseLost):
            await old[1].downgrade()
        go.set()
        with pytest.raises(aiolock.LeaseLost):
            await tasks[0]
        assert [await lease.verify() for lease in new[:2]] == [True, True]
        await tasks[1]
        async with other.once("c", remember=60) as done:
            assert done is None


def abandon(client: aiolock.LockClient) -> None:
    """Let a client go as if its process had ended: it closes nothing, and warns of nothing."""
    engine = client._engine
    engine.state = State.CLOSED
    for hold in list(engine.watchdog.holds.values()):
        hold.state = aiolock.LeaseState.RELEASED
    engine.watchdog.holds.clear()
    engine.watchdog.owned.clear()
    engine.watchdog.wheel.aclose()


def asking(lock: aiolock.Lock, timeout: float | None = None) -> asyncio.Task[aiolock.Lease]:
    """A task that asks for the lock on its own account, and gives the lease."""

    async def ask() -> aiolock.Lease:
        return await lock.acquire(timeout=timeout)

    return asyncio.create_task(ask())
