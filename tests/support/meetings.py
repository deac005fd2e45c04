"""What groups and shards do on any store, in a minute at most."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable

import aiolock
from aiolock import LockClient
from tests.support.groups import Seen


async def check_groups_and_shards(connect: Callable[[], LockClient]) -> None:
    """Two clients join, change, are removed and come back; shards move between them."""
    async with asyncio.timeout(60), connect() as ours, connect() as theirs:
        group = theirs.group("w")
        async with Seen(group) as seen:
            async with ours.group("w", data={"n": 1}, on_lost="rejoin") as me:
                await seen.until(2)
                await me.update({"n": 2})
                await seen.until(3)
                async with theirs.group("w") as other:
                    await seen.until(4)
                    assert [member.id for member in await me.members()] == [me.id, other.id]
                await seen.until(5)
                assert await group.break_(me.fence)
                while not await group.members():  # noqa: ASYNC110  # nothing announces it
                    await asyncio.sleep(0.05)
                assert [member.data for member in await group.members()] == [{"n": 2}]
                assert (await group.members())[0].id == me.id
            while await group.members():  # noqa: ASYNC110  # nothing announces it
                await asyncio.sleep(0.05)
        assert seen.kinds[:5] == ["Members", "Joined", "Changed", "Joined", "Left"]
        epochs = [change.epoch for change in seen.changes]
        assert epochs == sorted(epochs)
        await _check_shards(ours, theirs)


async def _check_shards(*clients: LockClient) -> None:
    held = dict[int, LockClient]()

    async def run(client: LockClient) -> None:
        async def serve(shard: aiolock.Shard) -> None:
            assert shard.index not in held
            held[shard.index] = client
            try:
                await shard.giving_up.wait()
            finally:
                del held[shard.index]

        await client.shards("t", 6, settle=0.2).run(serve)

    async def until(*sizes: int) -> None:
        async with asyncio.timeout(30):
            while sorted(Counter(held.values()).values()) != [*sizes]:  # noqa: ASYNC110  # as above
                await asyncio.sleep(0.02)

    tasks = [asyncio.create_task(run(clients[0]))]
    await until(6)
    tasks.append(asyncio.create_task(run(clients[1])))
    await until(3, 3)
    tasks[0].cancel()
    await until(6)
    tasks[1].cancel()
    await asyncio.wait(tasks)
    assert not held
