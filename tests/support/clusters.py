"""A Redis Cluster of real servers, to move slots in, to fail over and to break."""

from __future__ import annotations

import asyncio
import contextlib
import re
import subprocess
import time
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any, Final

from redis.crc import key_slot
from redis.exceptions import RedisError

from tests.support.servers import BINARY, RedisServer

SLOTS: Final = 16384
_VERSION: Final = subprocess.run([BINARY, "--version"], capture_output=True, check=False).stdout
SHARDS: Final = not re.search(rb"v=[1-6]\.", _VERSION)
"""Whether the server has shard channels: Redis 7.0 and Valkey have them."""
PUSHES: Final = ("broadcast", "sharded") if SHARDS else ("broadcast",)
"""What the option of a URL may be by which pushes go."""
NODE_TIMEOUT: Final = 2000
"""Milliseconds of silence after which a node is taken for down, and a replica takes its place."""


class Node(RedisServer):
    """One server of a cluster."""

    def __init__(self, *options: str) -> None:
        super().__init__(
            "--cluster-node-timeout",
            str(NODE_TIMEOUT),
            "--repl-diskless-sync-delay",
            "0",
            *options,
            cluster=True,
        )

    @property
    def id(self) -> str:
        """By which the others know it."""
        return str(self.call("CLUSTER", "MYID"))

    @property
    def is_master(self) -> bool:
        """Whether it is one, by what it says itself; also where it does not answer."""
        try:
            return bool(self.call("ROLE")[0] == "master")
        except (RedisError, OSError):
            return False


class Cluster:
    """Masters that share the slots evenly, and so many replicas of each.

    It is joined without tools: slots are given, epochs set, nodes introduced. Its methods block for
    a moment, but for those that wait.
    """

    def __init__(self, stack: ExitStack, masters: int, replicas: int = 0) -> None:
        self.masters = [stack.enter_context(Node()) for _ in range(masters)]
        self.replicas = [stack.enter_context(Node()) for _ in range(masters * replicas)]
        self.nodes = [*self.masters, *self.replicas]
        bounds = [SLOTS * n // masters for n in range(masters + 1)]
        for number, (node, first, end) in enumerate(
            zip(self.masters, bounds, bounds[1:], strict=False), 1
        ):
            add_slots(node, range(first, end))
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number)
        for node in self.nodes[1:]:
            node.call("CLUSTER", "MEET", "127.0.0.1", self.masters[0].port)
        self._wait_until_known()
        for number, replica in enumerate(self.replicas):
            replica.call("CLUSTER", "REPLICATE", self.masters[number % masters].id)
        self.wait_ready()

    @property
    def url(self) -> str:
        """The URL of the cluster, with all nodes."""
        return f"redis+cluster://{','.join(f'127.0.0.1:{n.port}' for n in self.nodes)}"

    @property
    def live(self) -> list[Node]:
        """Those that answer."""
        found: list[Node] = []
        for node in self.nodes:
            with contextlib.suppress(RedisError, OSError):
                node.call("PING")
                found.append(node)
        return found

    def owner(self, name: str) -> Node:
        """The master that has this name's slot."""
        return self.at(key_slot(name.encode()))

    def at(self, slot: int) -> Node:
        """The master that has this slot, as most nodes see it."""
        seen: dict[int, int] = {}
        for node in self.live:
            for first, last, master, *_ in node.call("CLUSTER", "SLOTS"):
                if first <= slot <= last:
                    seen[master[1]] = seen.get(master[1], 0) + 1
        port = max(seen, key=lambda each: seen[each])
        return next(node for node in self.nodes if node.port == port)

    def keys(self, pattern: str) -> list[str]:
        """The keys of all masters."""
        return [key for node in self.live if node.is_master for key in node.call("KEYS", pattern)]

    def _wait_until_known(self) -> None:
        for node in self.nodes:
            _wait(lambda node=node: _info(node)["cluster_known_nodes"] == str(len(self.nodes)))

    def wait_ready(self) -> None:
        """Wait until all nodes are of one mind, and the replicas have all there is."""
        ids = {master.id for master in self.masters}
        for node in self.nodes:
            _wait(lambda node=node: _info(node)["cluster_state"] == "ok")
            _wait(lambda node=node: _masters(node) == ids)
        for replica in self.replicas:
            _wait(
                lambda replica=replica: (
                    replica.call("INFO", "replication").get("master_link_status") == "up"
                )
            )

    # Slots that move, as `redis-cli --cluster reshard` does it

    def begin_move(self, slot: int, source: Node, target: Node) -> None:
        """It is importing, and migrating: from now on new keys come to the target."""
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", source.id)
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", target.id)

    def move_keys(self, slot: int, source: Node, target: Node) -> None:
        """Those that are there now."""
        while keys := source.call("CLUSTER", "GETKEYSINSLOT", slot, 100):
            source.call("MIGRATE", "127.0.0.1", target.port, "", 0, 5000, "KEYS", *keys)

    def end_move(self, slot: int, source: Node, target: Node) -> None:
        """It is the target's."""
        for node in (target, source, *self.live):
            if node.is_master:
                node.call("CLUSTER", "SETSLOT", slot, "NODE", target.id)

    def move(self, slot: int, source: Node, target: Node) -> None:
        """All of that."""
        self.begin_move(slot, source, target)
        self.move_keys(slot, source, target)
        self.end_move(slot, source, target)

    async def promoted(self, *nodes: Node, within: float = 30.0) -> Node:
        """Wait until one of these is a master, at most so many seconds; which."""
        async with asyncio.timeout(within):
            while True:
                for node in nodes:
                    if node.is_master:
                        return node
                await asyncio.sleep(0.01)

    async def fail_over(self, replica: Node, within: float = 30.0) -> None:
        """Have its master hand over to it, at most within so many seconds."""
        async with asyncio.timeout(within):
            while not replica.is_master:  # it gives up after some seconds, on a busy machine
                with contextlib.suppress(RedisError):  # … is under way
                    await asyncio.to_thread(replica.call, "CLUSTER", "FAILOVER")
                with contextlib.suppress(TimeoutError):
                    await self.promoted(replica, within=6)


def add_slots(node: RedisServer, slots: range) -> None:
    """These are the node's; Redis 6.2 takes no ranges."""
    try:
        node.call("CLUSTER", "ADDSLOTSRANGE", slots[0], slots[-1])
    except RedisError:
        node.call("CLUSTER", "ADDSLOTS", *slots)


def names_in(slots: range | Sequence[int], count: int) -> list[str]:
    """So many names of these slots."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        if key_slot(str(number).encode()) in slots:
            found.append(str(number))
        number += 1
    return found


def _info(node: Node) -> dict[str, Any]:
    said: Any = node.call("CLUSTER", "INFO")
    if isinstance(said, dict):
        return said
    return dict(line.split(":", 1) for line in said.split())


def _masters(node: Node) -> set[str]:
    return {master[2] for _, _, master, *_ in node.call("CLUSTER", "SLOTS")}


def _wait(seen: Any) -> None:
    deadline = time.monotonic() + 30
    while not seen():
        if time.monotonic() > deadline:
            raise RuntimeError("the cluster is not ready after 30 s")
        time.sleep(0.05)  # it takes two seconds
