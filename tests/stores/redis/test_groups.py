"""Groups and shards in a Redis Cluster, and behind Sentinel."""

from __future__ import annotations

import asyncio
from contextlib import ExitStack

import aiolock
from aiolock import StoreError
from tests.support.clusters import Cluster
from tests.support.meetings import check_groups_and_shards
from tests.support.sentinels import Watched


async def test_groups_and_shards_in_a_cluster_work_across_its_nodes(
    cluster: Cluster, prefix: str
) -> None:
    """A group, what its members say, and its epoch are at any nodes."""
    url = f"redis+cluster://127.0.0.1:{cluster.masters[0].port}"
    await check_groups_and_shards(lambda: aiolock.connect(url, prefix=prefix))


async def test_members_behind_sentinel_are_all_there_again_after_a_failover(prefix: str) -> None:
    """They work there, and each is a member at the new master, with what it says."""
    with ExitStack() as stack:
        watched = Watched(stack)
        await watched.ready()
        await check_groups_and_shards(lambda: aiolock.connect(watched.url, prefix=prefix))
        async with (
            asyncio.timeout(60),
            aiolock.connect(watched.url, prefix=prefix) as ours,
            aiolock.connect(watched.url, prefix=prefix) as theirs,
            ours.group("w", data={"n": 1}, on_lost="rejoin") as one,
            theirs.group("w", data={"n": 2}, on_lost="rejoin") as two,
        ):
            await watched.fail_over()
            await watched.promoted()
            await asyncio.sleep(5)  # longer than it takes to be removed
            while True:
                try:
                    found = {member.id: dict(member.data) for member in await one.members()}
                except StoreError:
                    found = {}
                if found == {one.id: {"n": 1}, two.id: {"n": 2}}:
                    break
                await asyncio.sleep(0.1)
