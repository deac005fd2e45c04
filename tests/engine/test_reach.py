"""Leases that nobody can reach, generators that were thrown away, bodies left by others."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import re
import subprocess
import sys
import textwrap
import warnings
from collections.abc import AsyncIterator
from weakref import ref

import pytest

import aiolock
from aiolock import NotHeld
from aiolock.stores.memory import MemoryServer
from tests.support.worlds import settled, virtual


@pytest.fixture
async def client() -> AsyncIterator[aiolock.LockClient]:
    """A client of a store of its own."""
    async with aiolock.connect(MemoryServer()) as client:
        yield client


async def _collected() -> None:
    gc.collect()
    await settled()


async def test_lease_dropped_after_its_task_ended_ends_with_a_warning(
    client: aiolock.LockClient,
) -> None:
    """Once its task has ended, and nobody has it, a lease ends; a warning names the lock."""

    async def forget() -> None:
        await client.lock("forgotten").acquire()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        await asyncio.create_task(forget())
        await _collected()
    (warning,) = caught
    assert issubclass(warning.category, ResourceWarning)
    assert re.search("'forgotten'.*nobody can release", str(warning.message))
    assert not await client.lock("forgotten").locked()
    assert not client._engine.watchdog.holds
    assert not client._engine.watchdog.owned


async def test_lease_dropped_while_warnings_are_errors_ends(
    client: aiolock.LockClient, recwarn: pytest.WarningsRecorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ends, whatever becomes of the warning."""
    unraisable = list[object]()
    monkeypatch.setattr(sys, "unraisablehook", unraisable.append)

    async def forget() -> None:
        await client.lock("forgotten").acquire()

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        await asyncio.create_task(forget())
        await _collected()
    assert len(unraisable) == 1
    assert not recwarn
    assert not client._engine.watchdog.holds
    assert not await client.lock("forgotten").locked()


def test_lease_dropped_after_its_loop_closed_warns_that_it_lasts_to_expiry() -> None:
    """Where the event loop is closed nobody can release it: the warning does not say so."""

    async def take() -> aiolock.Lease:
        client = aiolock.connect(MemoryServer())
        await client.open()
        return await client.lock("forgotten").acquire()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        lease = asyncio.run(take())
        del lease
        gc.collect()
    assert any(
        "'forgotten'" in (text := str(each.message)) and "until its lease ends" in text
        for each in caught
    )


async def test_lease_dropped_by_a_living_task_can_be_released_by_the_lock(
    client: aiolock.LockClient,
) -> None:
    """While its task lives a lease may be thrown away: the task releases it by the lock."""
    lock = client.lock("a")
    await lock.acquire()
    await _collected()
    assert lock.held()
    assert await lock.release()


async def test_lease_passed_on_outlives_the_task_that_acquired_it(
    client: aiolock.LockClient,
) -> None:
    """A lease that somebody has outlives the task that acquired it."""

    async def take() -> aiolock.Lease:
        return await client.lock("a").acquire()

    lease = await asyncio.create_task(take())
    await _collected()
    assert lease.state == "held"
    assert await client.lock("a").locked()
    assert await lease.release()


async def test_watchdog_of_a_held_lease_keeps_no_task_that_has_ended(
    client: aiolock.LockClient,
) -> None:
    """What is held does not keep the task alive that acquired it."""

    async def take() -> aiolock.Lease:
        return await client.lock("a").acquire()

    task = asyncio.create_task(take())
    alive = ref(task)
    lease = await task
    await settled()
    assert not any(owner is task for owner in client._engine.watchdog.owned)
    del task
    await _collected()
    assert alive() is None
    assert await lease.release()


async def test_watchdog_watches_a_task_with_many_leases_once(client: aiolock.LockClient) -> None:
    """However many leases a task holds, its end is looked out for once, and no more at last."""
    task = asyncio.current_task()
    assert task is not None
    leases = [await client.lock(f"{number}").acquire() for number in range(100)]
    assert list(client._engine.watchdog.watched) == [task]
    assert task.remove_done_callback(client._engine.watchdog.forgotten._owner_ended) == 1
    task.add_done_callback(client._engine.watchdog.forgotten._owner_ended)
    for lease in leases:
        await lease.release()
    assert not client._engine.watchdog.watched
    assert task.remove_done_callback(client._engine.watchdog.forgotten._owner_ended) == 0


def test_warning_of_a_dropped_lease_in_dev_mode_names_the_line() -> None:
    """Under -X dev the warning says in which line."""
    program = """
        import asyncio, gc, aiolock

        async def forget(client):
            await client.lock("forgotten").acquire()  # the line

        async def main():
            async with aiolock.connect("memory://") as client:
                await asyncio.create_task(forget(client))
                gc.collect()
                await asyncio.sleep(0)

        asyncio.run(main())
    """
    done = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=50,
        check=True,
    )
    assert "ResourceWarning: the lock 'forgotten'" in done.stderr
    assert "acquired at <string>:5" in done.stderr


async def test_client_dropped_without_close_warns() -> None:
    """A client that nobody closes says so."""
    client = aiolock.connect(MemoryServer())
    await client.open()
    engine = client._engine
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del client
        gc.collect()
    (warning,) = caught
    assert issubclass(warning.category, ResourceWarning)
    assert str(warning.message).startswith("unclosed <LockClient")
    await engine.aclose(None)


@pytest.mark.parametrize("kind", ["semaphore", "reading"])
@pytest.mark.parametrize("others", [0, 1, 3])
async def test_generator_dropped_half_way_releases_its_lease(
    client: aiolock.LockClient, kind: str, others: int
) -> None:
    """A generator left half way is closed by another task, and gives back what it had entered."""
    shared = client.semaphore("s", 5) if kind == "semaphore" else client.rwlock("s").read()
    leave = asyncio.Event()

    async def numbers() -> AsyncIterator[int]:
        async with shared:
            yield 1
            yield 2

    async def stay() -> None:
        async with shared:
            await leave.wait()

    async def start() -> None:
        async for _ in numbers():
            break  # nobody closes it

    staying = [asyncio.create_task(stay()) for _ in range(others)]
    await settled()
    await asyncio.create_task(start())
    await _collected()
    assert len((await shared.status()).holders) == others
    leave.set()
    await asyncio.gather(*staying)
    assert not (await shared.status()).holders
    assert not len(client._engine.entered)


async def test_generator_closed_by_another_holder_ends_its_own_permit(
    client: aiolock.LockClient,
) -> None:
    """Who closes another's generator, in a body of the same semaphore, keeps its own permit."""
    shared = client.semaphore("s", 5)
    leases: list[aiolock.Lease] = []

    async def numbers() -> AsyncIterator[int]:
        async with shared as lease:
            leases.append(lease)
            yield 1

    generator = numbers()
    await asyncio.create_task(anext(generator))  # type: ignore[arg-type]  # it is a coroutine
    async with shared as ours:
        await generator.aclose()  # type: ignore[attr-defined]  # it is a generator
        assert ours.state == "held"
        assert leases[0].state == "released"
        assert len((await shared.status()).holders) == 1
    assert not (await shared.status()).holders


@virtual
async def test_exit_stack_closed_in_another_task_ends_its_own_permit() -> None:
    """A body entered by a fixture in one task may be left in another, beside bodies of the same."""
    async with aiolock.connect(MemoryServer()) as client:
        shared = client.semaphore("s", 5)
        stack = contextlib.AsyncExitStack()
        entered = await asyncio.create_task(stack.enter_async_context(shared))
        async with shared as ours:
            await stack.aclose()
            assert (ours.state, entered.state) == ("held", "released")


@virtual
async def test_aexit_by_hand_releases_the_last_entered_first() -> None:
    """Called by hand, the last that was entered is left first; one too many is NotHeld."""
    async with aiolock.connect(MemoryServer()) as client:
        shared = client.semaphore("s", 5)

        async def enter() -> aiolock.Lease:
            return await shared.__aenter__()

        async def leave() -> None:
            await shared.__aexit__(None, None, None)

        first, second = await enter(), await enter()
        await leave()
        assert (first.state, second.state) == ("held", "released")
        await leave()
        assert first.state == "released"
        with pytest.raises(NotHeld, match="has not entered"):
            await leave()
