"""Nothing keeps the event loop for long with ten thousand parties in any store that has I/O."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, Final

import pytest

import aiolock
from aiolock.store import FEW
from aiolock.stores.memory import MemoryServer
from tests.stretches import check_short
from tests.test_stretches import MANY, _kept, all_wait, each

pytestmark = [pytest.mark.one_loop, pytest.mark.long]

_SLOW: Final = 2000
"""Names or parties where each takes a store milliseconds; what takes long then grows in steps."""


@pytest.fixture(params=["sqlite", "postgres", "mariadb", "quorum", "cluster"])
def target(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    """Where a client connects to."""
    match request.param:
        case "sqlite":
            return f"sqlite:///{tmp_path}/locks.db"
        case "quorum":
            return [MemoryServer() for _ in range(3)]
        case "cluster":
            return request.getfixturevalue("cluster").url
        case _:
            return request.getfixturevalue(f"{request.param}_server").url("app")


@pytest.fixture
def connect(target: Any, prefix: str) -> Callable[[], aiolock.LockClient]:
    """Makes clients, without a log."""
    return lambda: aiolock.connect(target, prefix=prefix, ttl=60)


@pytest.fixture
async def client(connect: Callable[[], aiolock.LockClient]) -> AsyncIterator[aiolock.LockClient]:
    """The client that has them all."""
    async with connect() as client:
        yield client
    _kept.clear()


@pytest.fixture
async def other(connect: Callable[[], aiolock.LockClient]) -> AsyncIterator[aiolock.LockClient]:
    """One that has none."""
    async with connect() as client:
        yield client


async def test_names(client: aiolock.LockClient, other: aiolock.LockClient) -> None:
    """Ten thousand names, each of them held."""
    leases = await each(lambda number: client.lock(f"name:{number}").acquire())
    await check_short(other.snapshot)
    await check_short(other.names)
    found = await other.snapshot()
    assert [status.name for status in found] == sorted(f"name:{n}" for n in range(MANY))
    await each(lambda number: leases[number].release())


async def test_waiters(client: aiolock.LockClient, other: aiolock.LockClient) -> None:
    """One lock, for which ten thousand tasks of another client wait."""
    lock = other.lock("crowded")
    holds = await lock.acquire()
    tasks = await all_wait(client.lock("crowded"))
    await check_short(lock.status)
    await check_short(other.snapshot)
    status = await lock.status()
    assert [waiter.place for waiter in status.waiters] == list(range(1, MANY + 1))
    assert len({waiter.seq for waiter in status.waiters}) == MANY
    await client.aclose()
    await asyncio.gather(*tasks)
    await holds.release()


async def test_holders(client: aiolock.LockClient, other: aiolock.LockClient, target: Any) -> None:
    """A semaphore with thousands of permits, all of them taken; a read lock in a quorum."""
    if isinstance(target, list):
        pytest.skip("a quorum has no semaphores")
    await each(lambda _: client.semaphore("api", _SLOW).acquire(), _SLOW)
    semaphore = other.semaphore("api", _SLOW)
    await check_short(semaphore.status)
    await check_short(other.snapshot)
    few = await other._engine.runs.status("semaphore:api", waiters=False)
    assert (len(few.holders), few.more_holders) == (FEW, _SLOW - FEW)
    status = await semaphore.status()
    assert len({holder.seq for holder in status.holders}) == _SLOW
