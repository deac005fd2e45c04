"""Kinds of one name: each has a key space of its own; and each can be broken."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import aiolock
from aiolock import LeaseLost
from aiolock.stores.memory import MemoryServer
from aiolock.testing import FaultyStore
from tests.support.worlds import World, virtual

KINDS = (
    "semaphore",
    "event",
    "latch",
    "barrier",
    "once",
    "election",
    "elected",
    "periodic",
    "lock",
)


async def test_lock_named_like_another_kind_is_independent_of_it(
    client: aiolock.LockClient,
) -> None:
    """A lock whose name begins like another kind is a lock, and in nobody's way."""
    async with client.once("k", remember=60) as lease:
        assert lease is not None
    async with client.semaphore("k", 1), client.election("k").campaign("me"):
        await client.latch("k", 1).count_down()
        await client.event("k").set()
        for kind in KINDS:
            async with client.lock(f"{kind}:k", timeout=0):
                pass
        async with client.lock("k", timeout=0), client.periodic("k", every=3600):
            pass
        leader = await client.election("k").leader()
        assert leader is not None
        await client.latch("k", 1).wait(timeout=0)
        async with client.once("k", remember=60) as again:
            assert again is None


async def test_status_of_every_kind_has_the_name_its_user_gave(client: aiolock.LockClient) -> None:
    """A status is of the name that was asked for, whatever the store calls it."""
    things: list[Any] = [
        client.lock("k"),
        client.rwlock("k"),
        client.semaphore("k", 1),
        client.once("k", remember=1),
        client.periodic("k", every=1),
        client.event("k"),
        client.latch("k", 1),
        client.barrier("k", 2),
    ]
    for thing in things:
        assert (await thing.status()).name == thing.name == "k"


async def test_read_lock_is_not_held_nor_released_as_the_write_lock(
    client: aiolock.LockClient,
) -> None:
    """Who reads does not hold the write lock, and cannot release it; nor the other way round."""
    rates = client.rwlock("r")
    for inside, outside in ((rates.read(), rates.write()), (rates.write(), rates.read())):
        async with inside as lease:
            assert inside.held()
            assert not outside.held()
            with pytest.raises(aiolock.NotHeld):
                await outside.release()
            assert lease.state == "held"
    async with rates.read():
        assert not client.lock("r").held()
    async with rates.write() as lease:
        assert client.lock("r").held(), "a plain lock of this name is the write lock"
        await lease.downgrade()
        assert rates.read().held()
        assert not rates.write().held()


async def test_reentrant_rwlock_read_while_writing_releases_each_by_its_name(
    client: aiolock.LockClient,
) -> None:
    """Whoever writes a re-entrant lock, and then reads it, gives back each by its own name."""
    rates = client.rwlock("r", reentrant=True)
    async with rates.write() as written:
        assert not rates.read().held()
        read = await rates.read().acquire()
        assert rates.read().held()
        assert rates.write().held()
        await rates.read().release()
        assert (read.state, written.state) == ("released", "held")
        with pytest.raises(aiolock.NotHeld):
            await rates.read().release()
    assert not rates.write().held()


@pytest.mark.parametrize("kind", ["lock", "rwlock", "semaphore", "once", "periodic", "election"])
@virtual
async def test_break_of_every_kind_loses_the_lease_of_that_fence(kind: str) -> None:
    """Whatever is held can be taken from its holder, all at once or by its fence."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        things: dict[str, tuple[Any, Any]] = {
            "lock": (theirs.lock("a"), ours.lock("a")),
            "rwlock": (theirs.rwlock("a").read(), ours.rwlock("a")),
            "semaphore": (theirs.semaphore("a", 3), ours.semaphore("a", 3)),
            "once": (theirs.once("a", remember=9), ours.once("a", remember=9)),
            "periodic": (theirs.periodic("a", every=9), ours.periodic("a", every=9)),
            "election": (theirs.election("a").campaign("me"), ours.election("a")),
        }
        body, handle = things[kind]
        assert not await handle.break_()
        assert not await handle.break_(1)

        async def broken() -> None:
            async with body as held:
                assert not await handle.break_(held.fence + 1)
                assert await handle.break_(held.fence)
                await asyncio.sleep(1)

        with pytest.raises(LeaseLost, match="somebody broke it"):
            await broken()


@virtual
async def test_break_of_one_permit_by_its_fence_keeps_the_others() -> None:
    """By its fence one stuck permit is taken, and the others stay."""
    server = MemoryServer()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:
        permits = [await theirs.semaphore("s", 3).acquire() for _ in range(3)]
        assert await ours.semaphore("s", 3).break_(permits[1].fence)
        await asyncio.sleep(0)
        assert [lease.state for lease in permits] == ["held", "lost", "held"]
        assert await ours.semaphore("s", 3).break_()
        await asyncio.sleep(0)
        assert {lease.state for lease in permits} == {"lost"}


async def test_break_with_an_invalid_fence_raises_type_or_value_error(world: World) -> None:
    """What is no fence is refused before anything is sent."""
    faulty = FaultyStore(world.store())
    async with aiolock.connect(faulty) as client:
        for fence in ("1", 1.5, True):
            with pytest.raises(TypeError, match="fence must be an int"):
                await client.lock("a").break_(fence)  # type: ignore[arg-type]  # that is the point
        with pytest.raises(ValueError, match="fence must be from 1"):
            await client.lock("a").break_(0)
    assert faulty.calls == {"open": 1}
