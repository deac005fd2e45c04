"""Cancel at every step of the event loop, in every way there is: nothing is left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest
import redis.asyncio
from fakeredis import FakeAsyncRedis

import aiolock
from aiolock import LockClient
from aiolock.stores.memory import MemoryServer
from tests.cancel import KINDS, Kind, Scenario, cancel_everywhere
from tests.servers import RedisServer

NAME = "cancelled at every step"


class Stand:
    """Two clients of one store, and a look at what is left in it."""

    def __init__(
        self, ours: LockClient, other: LockClient, left: Callable[[], Awaitable[list[str]]]
    ) -> None:
        self.ours = ours
        self.other = other
        self.left = left
        self.lock = ours.lock(NAME, ttl=60)
        self.others_lock = other.lock(NAME, ttl=60)

    async def check_nothing_is_left(self) -> None:
        # A later command of the same client is answered after all that it sent before.
        await self.lock.status()
        await self.others_lock.status()
        status = await self.lock.status()
        assert (status.holders, status.waiters) == ((), ())
        assert await self.left() == []
        for client in (self.ours, self.other):
            room = client._room
            assert not room._waiters
            assert not room._lines
            assert not room._unreleased
            assert not room.keeper.holds
            assert not room.keeper.owned
            assert not room.entered


@pytest.fixture(params=["memory", "fakeredis", "redis"])
async def stand(
    request: pytest.FixtureRequest, redis_server: RedisServer, prefix: str
) -> AsyncIterator[Stand]:
    """A stand on each store."""
    if request.param == "memory":
        server = MemoryServer()

        async def names() -> list[str]:
            return server.names()

        async with aiolock.connect(server) as ours, aiolock.connect(server) as other:
            yield Stand(ours, other, names)
        return
    driver: redis.asyncio.Redis = (
        FakeAsyncRedis()
        if request.param == "fakeredis"
        else redis.asyncio.Redis.from_url(redis_server.url)
    )

    async def keys() -> list[str]:
        found: list[Any] = await driver.keys(f"{prefix}:{{{NAME}}}:*")
        return [key.decode() for key in found if not key.endswith(b":fence")]

    try:
        async with (
            aiolock.connect(driver, prefix=prefix) as ours,
            aiolock.connect(driver, prefix=prefix) as other,
        ):
            yield Stand(ours, other, keys)
    finally:
        await driver.aclose()


KIND_IDS = [kind.name for kind in KINDS]


async def _everywhere(
    stand: Stand,
    kind: Kind,
    scenario: Scenario,
    after: Callable[[], Awaitable[object]] | None = None,
) -> int:
    """Run the scenario, cancelled at each step, and look each time at what is left."""
    ran = 0
    async for _ in cancel_everywhere(scenario, [kind]):
        if after is not None:
            await after()
        await stand.check_nothing_is_left()
        ran += 1
    if after is not None:
        await after()
    await stand.check_nothing_is_left()
    return ran


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_acquire_hold_and_release(stand: Stand, kind: Kind) -> None:
    """A free lock that is taken, held over an await, and released."""

    async def scenario() -> None:
        async with stand.lock:
            await asyncio.sleep(0)

    assert await _everywhere(stand, kind, scenario) >= 3


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_lease_by_hand(stand: Stand, kind: Kind) -> None:
    """The same by `acquire` and `release`, which the caller guards with try and finally."""

    async def scenario() -> None:
        lease = await stand.lock.acquire(timeout=30)
        assert lease is not None
        try:
            await lease.verify()
            await lease.extend(50)
        finally:
            await lease.release()

    assert await _everywhere(stand, kind, scenario) >= 4


@pytest.mark.parametrize("how", ["entered", "awaited"])
@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_multilock(stand: Stand, kind: Kind, how: str) -> None:
    """Several locks as one: of no step is it left with some of them."""
    both = stand.ours.multilock(f"{NAME}, the second", NAME, ttl=60)

    async def scenario() -> None:
        if how == "entered":
            async with both:
                await asyncio.sleep(0)
        else:
            lease = await both.acquire(timeout=30)
            assert lease is not None
            await lease.release()

    async def second_is_free() -> None:
        await stand.lock.status()  # answered after all that was sent before
        assert not await stand.other.lock(f"{NAME}, the second").locked()
        assert not stand.ours._room.entered

    assert await _everywhere(stand, kind, scenario, second_is_free) >= 3


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_not_waiting(stand: Stand, kind: Kind) -> None:
    """A try that does not wait, on a lock that is free."""

    async def scenario() -> None:
        lease = await stand.lock.acquire(blocking=False)
        assert lease is not None
        await lease.release()

    assert await _everywhere(stand, kind, scenario) >= 2


@pytest.mark.parametrize("kind", KINDS, ids=KIND_IDS)
async def test_queued_behind_another_client(stand: Stand, kind: Kind) -> None:
    """A waiter that is queued, then granted by another client's release, then releases.

    Among the steps is the one at which the grant is made, or on its way, or just arrived.
    """
    releasing: set[asyncio.Task[object]] = set()

    async def scenario() -> None:
        lease = await stand.others_lock.acquire()
        assert lease is not None

        async def hand_over() -> None:
            while not (await stand.others_lock.status()).waiters:
                await asyncio.sleep(0)
                if lease.state != "held":
                    return
            await lease.release()

        handing = asyncio.create_task(hand_over())
        releasing.add(handing)
        try:
            async with stand.lock:
                await asyncio.sleep(0)
        finally:
            handing.cancel()
            releasing.add(asyncio.create_task(lease.release()))

    async def settle() -> None:
        await asyncio.gather(*releasing, return_exceptions=True)
        releasing.clear()

    assert await _everywhere(stand, kind, scenario, after=settle) >= 4
