"""A cluster of three masters with a replica each: slots move, masters fail and come back."""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack, ExitStack
from typing import Final

import redis.asyncio
from redis.exceptions import RedisError

from aiolock.stores.redis.cluster._slots import slot_of_key
from tests.proof.chaos.faults import ATTACKS, Fault
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Door
from tests.proof.chaos.targets.direct import DirectDoor
from tests.proof.chaos.targets.redis import RedisTarget, admin_of
from tests.support.clusters import Cluster, Node

_PROMOTED_WITHIN: Final = 60.0


class ClusterTarget(RedisTarget):
    """A cluster. `RedisTarget` looks at all that are masters now."""

    attack = ATTACKS["cluster"]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self._history = history
        servers = stack.enter_context(ExitStack())
        self._cluster = await asyncio.to_thread(Cluster, servers, 3, 1)
        self._admins = {
            node: await stack.enter_async_context(admin_of(node)) for node in self._cluster.nodes
        }
        self._pairs = list(zip(self._cluster.masters, self._cluster.replicas, strict=True))
        """Each master, and its replica."""

    async def door(self, stack: AsyncExitStack) -> Door:
        return DirectDoor(self, self._cluster.url)

    def masters(self) -> Sequence[redis.asyncio.Redis]:
        return [self._admins[master] for master, _ in self._pairs]

    async def settled(self) -> None:
        pass

    async def strike(self, fault: Fault) -> None:
        number = fault.dice % len(self._pairs)
        master, replica = self._pairs[number]
        match fault.kind:
            case "crash_master":
                await self._crash(number, fault.seconds)
            case "fail_over":
                await self._fail_over(number)
            case "freeze":  # for less than the others wait for it
                master.pause()
                await asyncio.sleep(fault.seconds)
                master.resume()
            case "kill_connections":
                await self._admins[master].client_kill_filter(_type="normal")
            case "move_slot":
                await self._move_slot(fault)
            case "restart_replica":
                replica.kill()
                await asyncio.sleep(fault.seconds)
                replica.start()
                await self._until_linked(replica)
            case _:
                raise AssertionError(fault.kind)

    async def _crash(self, number: int, seconds: float) -> None:
        """Kill a master; it comes back as the replica of what was its own."""
        old, new = self._pairs[number]
        ranges = await asyncio.to_thread(old.call, "CLUSTER", "SLOTS")
        slots = [[first, last] for first, last, master, *_ in ranges if master[1] == old.port]
        since = time.monotonic_ns()
        old.kill()
        await self._cluster.promoted(new, within=_PROMOTED_WITHIN)
        self._pairs[number] = new, old
        await asyncio.sleep(seconds)
        await asyncio.to_thread(old.start)
        now, micros = await self._admins[new].time()
        fence = now * 1_000_000 + micros
        self._history.note("failed_over", since=since, fence=fence, slots=slots)
        await self._until_linked(old)

    async def _fail_over(self, number: int) -> None:
        """By hand: the master hands over all that it has, so nothing may be forgotten."""
        old, new = self._pairs[number]
        await self._cluster.fail_over(new, within=_PROMOTED_WITHIN)
        self._pairs[number] = new, old
        await self._until_linked(old)

    async def _move_slot(self, fault: Fault) -> None:
        """That of something which is kept, to another master, key by key."""
        dice = random.Random(fault.dice)
        keys = await asyncio.to_thread(self._cluster.keys, "*:holders")
        if not keys:
            return
        slot = slot_of_key(dice.choice(sorted(keys)).encode())
        source = await asyncio.to_thread(self._cluster.at, slot)
        target = dice.choice([master for master, _ in self._pairs if master is not source])
        await asyncio.to_thread(self._cluster.begin_move, slot, source, target)
        await asyncio.sleep(fault.seconds / 2)
        await asyncio.to_thread(self._cluster.move_keys, slot, source, target)
        await asyncio.sleep(fault.seconds / 2)
        await asyncio.to_thread(self._cluster.move_keys, slot, source, target)
        await asyncio.to_thread(self._cluster.end_move, slot, source, target)

    async def _until_linked(self, replica: Node) -> None:
        """Return when it follows its master."""
        async with asyncio.timeout(_PROMOTED_WITHIN):
            while True:
                with contextlib.suppress(RedisError, OSError):
                    said = await self._admins[replica].info("replication")
                    if said.get("master_link_status") == "up":
                        return
                await asyncio.sleep(0.02)


def make() -> ClusterTarget:
    """The target."""
    return ClusterTarget()
