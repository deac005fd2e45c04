"""A real cluster and processes: what moves, fails over or is killed, and what that breaks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from aiolock.stores.redis.cluster._slots import slot_of
from tests.support.clusters import PUSHES, Cluster, Node
from tests.support.contests import contest, tell

SLACK = 1.0
"""Seconds for which a busy machine may keep any of these processes waiting."""


@pytest.fixture
def replicated() -> Iterator[Cluster]:
    """Three masters and a replica of each, of the test's own."""
    with ExitStack() as stack:
        yield Cluster(stack, masters=3, replicas=1)


def of(cluster: Cluster, name: str) -> tuple[Node, Node]:
    """The master of a lock, and its replica."""
    master = cluster.owner(f"lock:{name}")
    return master, cluster.replicas[cluster.masters.index(master)]


@pytest.mark.parametrize("push", PUSHES)
async def test_slot_moves_under_contention_lose_no_lease(
    replicated: Cluster, prefix: str, push: str
) -> None:
    """As they are moved by hand, under contention: nothing is lost, and nobody meets."""
    async with contest(f"{replicated.url}?push={push}", prefix) as going:
        began = time.monotonic()
        for name in "ab":
            slot = slot_of(f"lock:{name}")
            source, _ = of(replicated, name)
            target = next(node for node in replicated.masters if node is not source)
            await asyncio.to_thread(replicated.begin_move, slot, source, target)
            await asyncio.sleep(0.1)
            for _ in range(2):
                await asyncio.to_thread(replicated.move_keys, slot, source, target)
                await asyncio.sleep(0.1)
            await asyncio.to_thread(replicated.end_move, slot, source, target)
        await going.goes_on()
        tell(going, began, "moved", time.monotonic() - began)
        assert not going.overlaps()
        assert not going.said("lost")
        going.check(since=began, until=began)


async def test_failover_by_hand_under_contention_lets_no_bodies_overlap(
    replicated: Cluster, prefix: str
) -> None:
    """A master hands all that it has over to its replica: nothing is forgotten."""
    async with contest(f"{replicated.url}?push={PUSHES[0]}", prefix) as going:
        master, replica = of(replicated, "a")
        began = time.monotonic()
        await replicated.fail_over(replica)
        promoted = time.monotonic()
        await going.goes_on()
        tell(going, began, "promoted", promoted - began)
        assert not master.is_master
        assert not going.overlaps()
        assert not going.said("lost")
        going.check(since=began, until=began)


async def test_master_killed_under_contention_is_replaced_by_its_replica(
    replicated: Cluster, prefix: str
) -> None:
    """Hand-offs go on with its replica; what that has not heard of is forgotten, but no fence."""
    async with contest(f"{replicated.url}?push={PUSHES[-1]}", prefix) as going:
        master, replica = of(replicated, "a")
        began = time.monotonic()
        master.kill()
        await replicated.promoted(replica)
        promoted = time.monotonic()
        await going.goes_on(within=30)
        resumed = going.resumed(began)
        tell(going, began, "promoted", promoted - began, "after that", resumed - promoted)
        going.check(since=began - SLACK, until=resumed + SLACK)
