"""Tests of how a member of a cluster is cut off from the others."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from contextlib import AsyncExitStack

import pytest

import aiolock
from tests.support import etcds
from tests.support.etcds import EtcdServer
from tests.support.partitions import Partition


async def fence_of(client: aiolock.LockClient) -> int:
    """That of another lease. While a leader is elected, a new request may get no answer in time."""
    async with asyncio.timeout(40):
        while True:
            with contextlib.suppress(aiolock.StoreError):
                async with client.lock("x", timeout=20) as lease:
                    return lease.fence


@pytest.mark.alone  # a leader is elected in real time
@pytest.mark.skipif(sys.platform != "linux", reason="who has dialled, only Linux tells")
async def test_member_that_is_cut_off_has_no_leader_until_it_is_healed() -> None:
    """The others elect a leader, and a client of the one that is cut off goes to them."""
    etcds.need_etcd()
    async with AsyncExitStack() as stack:
        cluster = EtcdServer(3)
        partition = Partition(cluster)
        await partition.open(stack)
        stack.callback(cluster.__exit__)
        await asyncio.to_thread(cluster.start)
        leader = await asyncio.to_thread(cluster.leader)
        first = cluster.nodes.index(leader)
        async with aiolock.connect(cluster.url(first=first)) as client:
            before = await fence_of(client)
            partition.cut_off(leader)
            after = await fence_of(client)
            assert after > before
            with pytest.raises(RuntimeError):
                await asyncio.to_thread(
                    cluster.ctl, "put", "x", "1", "--command-timeout=1s", node=leader
                )
            partition.heal()
            await asyncio.to_thread(leader.wait_ready)
            assert await fence_of(client) > after
