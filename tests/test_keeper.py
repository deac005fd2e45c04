"""The watchdog's alarm clock."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

import pytest

import aiolock
from aiolock.store import Renewal
from aiolock.stores.memory import MemoryServer
from tests.virtual import run


def test_a_long_lease_put_off_does_not_delay_a_short_one() -> None:
    """Renewing one lease sets the alarm for its next turn, and others may be due before that."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client, contextlib.AsyncExitStack() as stack:
            for number in range(20):
                lock = client.lock(f"long {number}", ttl=6 + number * 0.37)
                await stack.enter_async_context(lock)
            async with client.lock("short", ttl=0.3) as lease:
                await asyncio.sleep(8)
                assert lease.state == "held"

    run(play())


def test_many_leases_are_renewed_in_few_calls(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand leases of one ttl are four calls of 256 or so, not a thousand."""

    async def play() -> None:
        server = MemoryServer()
        calls: list[int] = []
        renew = server.renew

        def counted(renewals: Sequence[Renewal]) -> list[bool]:
            calls.append(len(renewals))
            return renew(renewals)

        monkeypatch.setattr(server, "renew", counted)
        async with aiolock.connect(server, ttl=30) as client, contextlib.AsyncExitStack() as stack:
            for number in range(1000):
                await stack.enter_async_context(client.lock(f"lock {number}"))
            await asyncio.sleep(10.0)
            assert sum(calls) == 1000
            assert len(calls) <= 5

    run(play())


def test_the_jitter_is_not_the_same_for_every_turn() -> None:
    """Processes that started together do not renew together for ever."""

    async def play() -> set[float]:
        async with aiolock.connect(MemoryServer(), ttl=3) as client, client.lock("n"):
            found = set()
            for _ in range(20):
                await asyncio.sleep(1)
                found.add(client._room.keeper._jitter)
            return found

    assert len(run(play())) > 5


def test_nested_bodies_of_one_task_are_cancelled_once() -> None:
    """A re-entrant lock that is lost leaves the body's own error, and no cancellation behind."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client:
            lock = client.lock("n", reentrant=True)

            async def body() -> None:
                async with lock as lease, lock:
                    client._room.keeper.lose(lease._hold, "broken")
                    raise ValueError("the body's own")

            with pytest.raises(ValueError, match="the body's own"):
                await body()
            task = asyncio.current_task()
            assert task is not None
            assert task.cancelling() == 0
            await asyncio.sleep(0)

    run(play())
