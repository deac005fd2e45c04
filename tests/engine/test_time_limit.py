"""The limits of acquisitions: many share a timer, and each ends at its own time."""

from __future__ import annotations

import asyncio
import time

import pytest

import aiolock
from aiolock._engine import time_limit
from aiolock._engine.time_limit import TimeLimit, TimeLimits
from aiolock.stores.memory import MemoryServer
from tests.support.virtual import VirtualLoop, run


async def waits(lock: aiolock.Lock, timeout: float) -> float:
    """How long it waits for a lock that another holds."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(aiolock.AcquireTimeout):
        await lock.acquire(timeout=timeout)
    return loop.time() - began


def test_limits_of_one_length_share_a_timer_and_each_ends_in_time() -> None:
    """They begin one after another; some end early, among them the first."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client, client.lock("a", ttl=60):
            tasks = list[asyncio.Task[float]]()
            for _ in range(10):
                tasks.append(asyncio.create_task(waits(client.lock("a", ttl=60), 5)))
                await asyncio.sleep(0.1)
            limits = client._engine.acquirer.limits
            ((length, line),) = limits._lines.items()
            assert (length, len(line.limits), line.armed) == (5, 10, True)
            for task in (tasks[0], tasks[4]):
                task.cancel()
            done = await asyncio.gather(*tasks, return_exceptions=True)
            waited = [each for each in done if isinstance(each, float)]
            assert len(waited) == 8
            assert all(5 <= each < 5.01 for each in waited), waited
            await asyncio.sleep(6)
            assert not limits._lines, "the timer of a length ends with it"

    run(play())


def test_limits_of_many_lengths_have_timers_that_end_with_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As of what is left of a deadline: each is another length, and leaves no timer behind."""
    monkeypatch.setattr(time_limit, "_LENGTHS", 2)

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client, client.lock("a", ttl=60):
            lock = client.lock("a", ttl=60)
            lengths = [3 + number / 7 for number in range(6)]
            tasks = [asyncio.create_task(waits(lock, length)) for length in lengths]
            await asyncio.sleep(0)
            engine = client._engine
            assert len(engine.acquirer.limits._lines) == 2
            waited = await asyncio.gather(*tasks)
            assert waited == pytest.approx(lengths, abs=0.01)
            free = client.lock("b")
            before = timers()
            for number in range(50):
                async with free.acquire(timeout=10 + number):
                    pass
            assert timers() <= before + 10, "a limit that has ended keeps its timer"

    run(play())


async def test_limit_of_a_client_that_was_open_before_the_time_was_frozen_ends(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As by freezegun, which replaces `time.monotonic`, but leaves event loops the real one."""
    real = time.monotonic
    async with aiolock.connect(MemoryServer()) as client, client.lock("a"):
        with monkeypatch.context() as frozen:
            frozen.setattr(asyncio.BaseEventLoop, "time", lambda _: real())
            frozen.setattr(time, "monotonic", lambda: 1e9)
            async with asyncio.timeout(5):
                await asyncio.create_task(waits(client.lock("a"), 0.01))


def timers() -> int:
    """How many timers are set and not cancelled."""
    scheduled: list[asyncio.TimerHandle] = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
    return sum(not each.cancelled() for each in scheduled)


def test_limits_that_pass_together_end_in_parts() -> None:
    """Ten thousand waiters of one length do not end in one iteration of the loop."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client, client.lock("a", ttl=60):
            lock, loop = client.lock("a", ttl=60), asyncio.get_running_loop()
            assert isinstance(loop, VirtualLoop)
            tasks = [asyncio.create_task(waits(lock, 5)) for _ in range(1000)]
            most = before = 0
            await asyncio.sleep(4.9)
            loop.advance(0.2)
            while not all(task.done() for task in tasks):
                await asyncio.sleep(0)
                ended = sum(task.done() for task in tasks)
                most, before = max(most, ended - before), ended
            assert loop.time() < 5.2
            assert 0 < most <= 2 * time_limit._TOGETHER

    run(play())


def test_limit_that_never_began_ends_without_effect() -> None:
    """As when a signal's handler raises between the two."""

    async def play() -> None:
        async with aiolock.connect(MemoryServer()) as client, client.lock("a") as lease:
            limit = TimeLimit(lease._hold, 5, 1, None)
            limit.end()
            limits = TimeLimits()
            limits.begin(limit)
            limit.end()
            limit.end()
            limits.close()

    run(play())
