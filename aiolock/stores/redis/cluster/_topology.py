"""The topology of a cluster: which master has which slot, according to its nodes."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterable
from itertools import groupby
from typing import Any, Final

from redis.exceptions import RedisError

from aiolock.errors import StoreError
from aiolock.stores.redis import _wire
from aiolock.stores.redis._errors import Place, Refusal, address_of, store_error
from aiolock.stores.redis._replies import Range, ranges
from aiolock.stores.redis._scripts import command
from aiolock.stores.redis.cluster._node import Node
from aiolock.stores.redis.cluster._seeds import Seeds
from aiolock.stores.redis.cluster._slots import SLOTS, UNNAMED, Address, Redirect

_ANSWER: Final = 2.0
"""Seconds for a node to answer which slots there are."""


class Topology:
    """The masters, and the slots of each."""

    def __init__(self, seeds: Seeds, prefix: str) -> None:
        self._seeds = seeds
        self._prefix = prefix
        self.nodes: dict[Address, Node] = {}
        self.owners: list[Node | None] = [None] * SLOTS
        self.version = 0
        """Counts the changes."""
        self._slots: dict[Node, frozenset[int]] = {}
        self._slots_version = 0

    def slots_of(self, node: Node) -> frozenset[int]:
        """The slots of a node."""
        if self._slots_version != self.version:
            found: dict[Node, set[int]] = {}
            # A master has few runs of slots: one by one would take twice as long.
            for owner, run in groupby(range(SLOTS), self.owners.__getitem__):
                if owner is not None:
                    found.setdefault(owner, set()).update(run)
            self._slots = {owner: frozenset(slots) for owner, slots in found.items()}
            self._slots_version = self.version
        return self._slots.get(node, frozenset())

    @property
    def masters(self) -> list[Node]:
        """The nodes that have slots, in an order that lasts while there is no change."""
        return sorted(
            {owner for owner in self.owners if owner is not None}, key=lambda node: node.address
        )

    def assign(self, slot: int, node: Node) -> None:
        """The node has this slot now."""
        if self.owners[slot] is not node:
            self.owners[slot] = node
            self.version += 1

    def replace(self, owners: list[Node | None]) -> dict[tuple[Node, Node], set[int]]:
        """Take over a node's answer; returns the slots that went from one node to another.

        A slot that no node has stays where it was, until another node has it.
        """
        moved: dict[tuple[Node, Node], set[int]] = {}
        if owners != self.owners:
            self.version += 1
            for slot, (old, new) in enumerate(zip(self.owners, owners, strict=True)):
                if new is None:
                    owners[slot] = old
                elif old is not None and old is not new:
                    moved.setdefault((old, new), set()).add(slot)
            self.owners = owners
        return moved

    async def ask(self) -> list[Range]:
        """The slots according to any of the nodes; those that we are connected to are asked first.

        `StoreError` if none answers.
        """
        ready = [node for node in self.nodes.values() if node.ready and not node.down]
        random.shuffle(ready)
        for node in ready:
            try:
                async with asyncio.timeout(_ANSWER):
                    found = await node.slots()
            except (StoreError, TimeoutError):
                continue
            if found:
                return self._placed(found, node.address)
        others = [*self.nodes, *self._seeds.addresses]
        random.shuffle(others)
        error: StoreError | None = None
        for address in dict.fromkeys(others):
            try:
                return self._placed(await self._ask(address), address)
            except StoreError as failure:
                error = failure
        raise error or StoreError("a cluster without a node")

    async def _ask(self, address: Address) -> list[Range]:
        pool = self._seeds.pool(address)
        answered: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

        def received(reply: Any) -> None:
            if not answered.done():
                answered.set_result(reply)

        def broken(error: Exception) -> None:
            if not answered.done():
                answered.set_exception(error)

        try:
            async with asyncio.timeout(_ANSWER):
                wire = await _wire.dial(pool, received, broken)
                try:
                    wire.write(command("CLUSTER", "SLOTS"), at_once=True)
                    reply = await answered
                finally:
                    wire.close()
                    await wire.wait_closed()
            if isinstance(reply, Refusal):
                raise reply
            found = ranges(reply)
        except (RedisError, OSError) as error:
            raise store_error(error, Place.of(pool, self._prefix, cluster=True)) from error
        except (AttributeError, TypeError, ValueError, IndexError) as error:
            text = f"Redis at {address_of(pool)} does not say which slots its cluster has"
            raise StoreError(text) from error
        if not found:
            raise StoreError(
                f"Redis at {address_of(pool)} is a node of a cluster that has no slots yet: join it"
                " with its other nodes first"
            )
        return found

    def _placed(self, found: Iterable[Range], said_by: Address) -> list[Range]:
        """The ranges, with addresses at which the nodes are reached from here."""
        placed = list[Range]()
        for first, last, host, port in found:
            placed.append(Range(first, last, *self.reached((host or said_by[0], port))))
        return placed

    def named(self, redirect: Redirect, by: Node) -> Address | None:
        """The address of a redirect; None if it is missing and cannot be found."""
        host, port = redirect.host, redirect.port
        if host == UNNAMED:
            # That node has no host name: find it by its port, if no other node has the same port.
            hosts = {known for known, at in self.nodes if at == port}
            return (hosts.pop(), port) if len(hosts) == 1 else None
        return self.reached((host or by.address[0], port))

    def reached(self, address: Address) -> Address:
        """The address at which a node is reached from here, by the address that it gives."""
        return self._seeds.remap(address)
