"""Leaving the body without waiting for the answer to the release: ``lock(confirm=False)``."""

from __future__ import annotations

import asyncio

import pytest

import aiolock
from aiolock import LeaseLost
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.testing import FaultyStore
from tests.support.worlds import settled, virtual


@virtual
@pytest.mark.parametrize("lost", ["", "known", "unknown"])
async def test_exit_without_confirm_takes_no_time_and_raises_or_logs_a_loss(
    lost: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It takes no time; a loss that is known is raised, and one that the answer tells is logged."""
    server = MemoryServer()
    faulty = FaultyStore(MemoryStore(server))
    loop = asyncio.get_running_loop()
    async with aiolock.connect(faulty) as ours, aiolock.connect(server) as theirs:

        async def hold() -> None:
            async with ours.lock("a", confirm=False) as lease:
                faulty.hold("release")
                if lost == "unknown":
                    faulty.lose("push")
                if lost:
                    assert await theirs.lock("a").break_(lease.fence)
                    await asyncio.sleep(0)

        began = loop.time()
        if lost == "known":
            with pytest.raises(LeaseLost, match="broke"):
                await asyncio.create_task(hold())
        else:
            await asyncio.create_task(hold())
        assert loop.time() - began < 0.1
        async with theirs.lock("a", timeout=0):
            faulty.resume()
            await settled()
    assert ("lost before it was released" in caplog.text) == (lost == "unknown")


@virtual
async def test_acquire_after_an_exit_without_confirm_comes_behind_the_release() -> None:
    """It comes to the store after the release."""
    async with aiolock.connect(MemoryServer()) as client:
        lock = client.lock("a", confirm=False)
        for _ in range(3):
            async with lock, client.lock("b", timeout=0, confirm=False):
                pass
