"""Who waits with a lower number is before those with a higher one."""

from __future__ import annotations

import asyncio
import re

import pytest

import aiolock
from aiolock.protocol import PRIORITY, Reconnected
from aiolock.stores.postgres import _schema
from aiolock.stores.redis import _scripts
from tests.support.worlds import World, queued


async def test_priority_orders_waiters_by_number_then_by_arrival(world: World) -> None:
    """Lower numbers first, and among equals who came first; whichever process they are in."""
    entered = list[str]()
    async with world.client() as ours, world.client() as theirs:

        async def enter(client: aiolock.LockClient, priority: int, who: str) -> None:
            async with client.lock("p", priority=priority):
                entered.append(who)

        tasks = list[asyncio.Task[None]]()
        wanted = [(5, "f"), (0, "c"), (5, "g"), (-9, "a"), (0, "d"), (1, "e"), (-9, "b")]
        async with ours.lock("p"):
            for number, (priority, who) in enumerate(wanted, start=1):
                client = (ours, theirs)[number % 2]
                tasks.append(asyncio.create_task(enter(client, priority, who)))
                await queued(ours.lock("p"), number)
            waiters = (await theirs.lock("p").status()).waiters
            assert [party.place for party in waiters] == [1, 2, 3, 4, 5, 6, 7]
            assert all(abs(party.since - waiters[0].since) < 60 for party in waiters)
        await asyncio.gather(*tasks)
        assert entered == ["a", "b", "c", "d", "e", "f", "g"]


async def test_priority_of_a_waiter_that_asks_again_keeps_its_place(world: World) -> None:
    """Who asks again keeps its place among those of its priority, and before those of a higher."""
    entered = list[tuple[int, str]]()
    async with world.client() as ours, world.client() as theirs:

        async def enter(client: aiolock.LockClient, priority: int, who: str) -> None:
            async with client.lock("p", priority=priority):
                entered.append((priority, who))

        async with ours.lock("p"):
            tasks = list[asyncio.Task[None]]()
            wanted = [(3, "first"), (3, "second"), (-3, "first"), (-3, "second")]
            for number, (priority, who) in enumerate(wanted, start=1):
                client = theirs if who == "first" else ours
                tasks.append(asyncio.create_task(enter(client, priority, who)))
                await queued(ours.lock("p"), number)
            before = (await ours.lock("p").status()).waiters
            for _ in range(3):
                theirs._engine.waiters.deliver(Reconnected())
                await theirs.lock("p").status()
            after = (await ours.lock("p").status()).waiters
            assert [each.seq for each in after] == [each.seq for each in before]
        await asyncio.gather(*tasks)
        assert entered == [(-3, "first"), (-3, "second"), (3, "first"), (3, "second")]


@pytest.mark.parametrize("priority", [10, -10, 0.5, True, "1", None])
def test_priority_that_is_no_small_int_is_refused(priority: object) -> None:
    """It is a small whole number; the error says which."""
    client = aiolock.connect("memory://")
    with pytest.raises((TypeError, ValueError), match="priority must be"):
        client.lock("p", priority=priority)  # type: ignore[arg-type]  # that is the test


def test_priority_step_of_the_redis_script_equals_that_of_the_protocol() -> None:
    """The script and the function that make tickets have the number of the protocol."""
    ticket = {"redis": _scripts.ACQUIRE.source, "postgres": _schema.statements()}
    for store, source in ticket.items():
        assert re.search(rf"\b{PRIORITY}\b", source), store
