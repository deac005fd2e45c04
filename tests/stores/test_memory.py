"""The memory store carries out many operations in parts, as if one after the other."""

from __future__ import annotations

import asyncio
import gc
from itertools import pairwise
from typing import Any, TypeVar
from weakref import ref

import pytest

import aiolock
from aiolock import StoreError
from aiolock.protocol import (
    Break,
    Operation,
    Posted,
    ReadPage,
    ReadPosted,
    ReadStatus,
    RequestRelease,
)
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.stores.memory._queue import PART
from aiolock.testing import Peer
from tests.support.worlds import settled, virtual

Value = TypeVar("Value")

MANY = 1000
"""Operations at once: several parts."""


def done(asked: list[asyncio.Future[Any]]) -> int:
    """How many of them are answered."""
    return sum(each.done() for each in asked)


@virtual
async def test_operations_at_once_are_carried_out_in_parts() -> None:
    """Each iteration of the loop has its part, and they are answered in order, as they are few."""
    async with Peer(MemoryStore(MemoryServer())) as ann:
        asked: list[asyncio.Future[Any]] = [ann.ask(f"name:{n}") for n in range(MANY)]
        answered = [0]
        while answered[-1] < MANY:
            await asyncio.sleep(0)
            answered.append(done(asked))
            assert all(each.done() for each in asked[: answered[-1]])
    parts = [after - before for before, after in pairwise(answered)]
    assert max(parts) == PART


@virtual
async def test_operations_that_push_are_fewer_in_a_part() -> None:
    """A push costs its client as much as an operation costs the server."""
    server = MemoryServer()
    async with Peer(MemoryStore(server)) as ann, Peer(MemoryStore(server)) as ben:
        for number in range(MANY):
            await ann.take(f"name:{number}")
            await ben.queue(f"name:{number}")
        asked = [
            ann.store.submit(Break(f"name:{number}", [server._fence])) for number in range(MANY)
        ]
        await asyncio.sleep(0)
        most = done(asked)
        asked = [ann.store.submit(RequestRelease(f"name:{number}")) for number in range(MANY)]
        assert most == PART
        while not all(each.done() for each in asked):
            before = server.pushed
            await asyncio.sleep(0)
            assert server.pushed - before <= PART


@virtual
async def test_clients_of_one_server_are_served_in_the_order_of_their_questions() -> None:
    """Also those that ask while the questions of others are still to be carried out."""
    server, entered = MemoryServer(), list[int]()
    async with aiolock.connect(server) as ours, aiolock.connect(server) as theirs:

        async def enter(number: int) -> None:
            async with (ours, theirs)[number % 2].lock("a"):
                entered.append(number)

        async with asyncio.TaskGroup() as tasks:
            for number in range(MANY):
                tasks.create_task(enter(number))
                if number % 300 == 299:
                    await asyncio.sleep(0)
    assert entered == list(range(MANY))
    assert not server.names()


@pytest.mark.parametrize("steps", range(6))
@virtual
async def test_acquire_cancelled_before_it_is_carried_out_leaves_nothing(steps: int) -> None:
    """Their releases come behind it, so nothing is left."""
    server = MemoryServer()
    async with aiolock.connect(server) as client:

        async def enter(number: int) -> None:
            async with client.lock(f"name:{number}"):
                await asyncio.Event().wait()

        tasks = [asyncio.create_task(enter(number)) for number in range(MANY)]
        for _ in range(steps):
            await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        assert all(task.cancelled() for task in tasks)
        await settled(50)
        assert not server.names()
        assert not client._engine.watchdog.holds


@virtual
async def test_close_with_pending_operations_still_carries_them_out() -> None:
    """They were asked for before, so they are carried out, and answered."""
    server = MemoryServer()
    async with Peer(MemoryStore(server)) as ann:
        grants = [await ann.take(f"name:{number}") for number in range(MANY)]
        asked = [ann.release(f"name:{number}", grant) for number, grant in enumerate(grants)]
        await ann.store.aclose()
        with pytest.raises(StoreError, match="closed"):
            await ann.ask("b")
        await asyncio.gather(*asked)
        assert not server.names()


@virtual
async def test_status_read_behind_pending_operations_includes_their_effect() -> None:
    """Also one that is so large that it is read in parts; and so is a snapshot."""
    server = MemoryServer()
    async with Peer(MemoryStore(server)) as ann:
        grant = await ann.take("a")
        for _ in range(MANY):
            await ann.queue("a")
        asked = [ann.ask("a") for _ in range(MANY)]
        assert len((await ann.store.submit(ReadStatus("a"))).waiters) == 2 * MANY
        await asyncio.gather(*asked)
        asked = [ann.ask("b") for _ in range(MANY)]
        names = {
            status.name: len(status.waiters) for status in (await ann.store.submit(ReadPage()))[0]
        }
        assert names == {"a": 2 * MANY, "b": MANY - 1}
        await asyncio.gather(*asked)
        await ann.release("a", grant)


@virtual
async def test_operation_that_raises_in_a_later_part_fails_alone() -> None:
    """Its caller gets the error, and the others their answers."""

    class Failing(MemoryServer):
        def run(self, operation: Operation[Value], copies_until: int = 0) -> Value:
            if operation.name == "fails":
                raise ZeroDivisionError
            return super().run(operation, copies_until)

    server, absent = Failing(), Posted(0, "")
    async with Peer(MemoryStore(server)) as ann:
        asked = [ann.store.submit(ReadPosted("x")) for _ in range(PART)]
        asked += [ann.store.submit(ReadPosted("fails")) for _ in range(2)]
        asked[-1].cancel()
        asked.append(ann.store.submit(ReadPosted("x")))
        await settled()
        assert [each.result() for each in asked[:PART]] == [absent] * PART
        with pytest.raises(ZeroDivisionError):
            await asked[-3]
        assert asked[-2].cancelled()
        assert await asked[-1] == absent
        assert await ann.take("a")


def test_server_after_a_loop_ends_with_pending_operations_serves_the_next() -> None:
    """The next loop that uses the server does not wait for them."""
    server = MemoryServer()

    async def ask(name: str) -> list[asyncio.Future[Any]]:
        ann = await Peer(MemoryStore(server)).__aenter__()
        return [ann.ask(f"{name}:{number}") for number in range(MANY)]

    async def all_are_answered() -> None:
        await asyncio.gather(*await ask("b"))

    asyncio.run(ask("a"))
    asyncio.run(all_are_answered())
    names = server.names()
    assert 0 < sum(name.startswith("a:") for name in names) < MANY
    assert sum(name.startswith("b:") for name in names) == MANY


@pytest.mark.parametrize("url", ["memory://", "memory://name"])
def test_memory_url_server_after_its_loop_ended_does_not_keep_the_loop(url: str) -> None:
    """It is found by the loop, and goes with it, as do the turns that long work has there."""
    loops = list[ref[asyncio.AbstractEventLoop]]()

    async def use() -> None:
        loops.append(ref(asyncio.get_running_loop()))
        async with aiolock.connect(url) as client, client.multilock(*map(str, range(MANY))):
            assert len(await client.names()) == MANY

    asyncio.run(use())
    gc.collect()
    assert loops[0]() is None
