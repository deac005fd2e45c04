"""The masters of a cluster: connects to them, follows moving slots, and leaves former masters."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
from collections.abc import Sequence
from typing import Final

import anyio

from aiolock.errors import StoreError
from aiolock.protocol import AskAgain, Deliver, Reconnected
from aiolock.stores._link_state import LinkState
from aiolock.stores._opening import Opening
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import MismatchError, Refusal, code_of, is_half_done
from aiolock.stores.redis._health import HEARTBEAT_TIMEOUT
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._replies import Range
from aiolock.stores.redis.cluster._deduplicator import PushDeduplicator
from aiolock.stores.redis.cluster._node import Node
from aiolock.stores.redis.cluster._router import Router
from aiolock.stores.redis.cluster._seeds import Seeds
from aiolock.stores.redis.cluster._sharded import Tags
from aiolock.stores.redis.cluster._slots import SLOTS, Address, Redirect, slot_of_key
from aiolock.stores.redis.cluster._topology import Topology

log = logging.getLogger("aiolock")

NOW_AND_THEN: Final = 5.0
"""Seconds after which to ask for the slots again while all is well. For that long, a new master may
have slots of ours and consider our waiters there dead."""
_SOON: Final = 0.25
"""The same while a master cannot be reached: a replica may take its place."""
_LEAST: Final = 0.05
"""Seconds between two questions, at least."""
_ASKED: Final = 30.0
"""Seconds for which a node without slots is kept after a redirect to it."""


class Masters:
    """All masters that one opening of a client knows, and their events (see `Neighbours`)."""

    def __init__(self, seeds: Seeds, prefix: str, client: str, deliver: Deliver) -> None:
        self._seeds = seeds
        self._names = Names(prefix)
        self._client = client
        self._deliver = deliver
        self._loop = asyncio.get_running_loop()
        self._opening = Opening()
        self._links = LinkState(deliver)
        self._deduplicator = PushDeduplicator(self._loop.time)
        self._tags = Tags() if seeds.sharded else None
        self._news = asyncio.Event()
        """Set if there is a reason to ask for the slots."""
        self._following: asyncio.Task[None] | None = None
        self._leaving = set[asyncio.Task[None]]()
        """The tasks that disconnect from nodes that are gone."""
        self._asked: dict[Node, float] = {}
        """When a redirect last led to a node that may have no slots yet."""
        self._waits = False
        """Whether a waiter of ours has ever stood in a queue."""
        self.topology = Topology(seeds, prefix)
        self.router = Router(self.topology, self._news)

    # Opening and closing

    async def open(self) -> None:
        """Ask for the slots, and connect to one master; `StoreError` if none works."""
        await self._opening.run(self._open(), self.aclose)

    async def _open(self) -> None:
        try:
            self.learn(await self.topology.ask())
            await self._open_first()
            if self._closing:  # our cancellation was lost in a driver
                raise StoreError("the client was closed while it was opening")  # noqa: TRY301  # one place that cleans up
        except BaseException:
            self.router.closing = True
            with anyio.CancelScope(shield=True):
                await self._leave_all()
            raise
        self._links.observed = True
        self._following = asyncio.create_task(self._follow(), name="aiolock follow the cluster")

    @property
    def _closing(self) -> bool:
        return self.router.closing

    async def _open_first(self) -> None:
        """Connect to the master that keeps our host and process, or to another if it is down.

        A cluster that cannot work at all fails here.
        """
        home = self.topology.owners[slot_of_key(self._names.client(self._client).encode())]
        others = [node for node in self.topology.masters if node is not home]
        random.shuffle(others)
        failure: StoreError | None = None
        for node in [home, *others] if home else others:
            try:
                await node.open()
            except StoreError as error:
                if isinstance(error.__cause__, MismatchError):
                    raise  # another master may not know of it yet, but will
                failure = failure or error
            else:
                break
        else:
            raise failure or StoreError("a cluster without a master")
        if home is not None:
            home.dial()

    async def aclose(self) -> None:
        """Wait for what is under way, then leave all masters. Idempotent."""
        if self._opening.under_way:
            self.router.closing = True
            await self._opening.end()  # which disconnects
        if self._closing:
            return
        self.router.closing = True
        self._links.observed = False
        if self._following is not None:
            self._following.cancel()
            await asyncio.wait([self._following])
        await self._leave_all()

    async def _leave_all(self) -> None:
        nodes = self.topology.nodes
        pending = [each for node in nodes.values() for each in node.pending] + [
            *self.router.unrouted
        ]
        if under_way := [each.future for each in pending if not each.future.done()]:
            await asyncio.wait(under_way, timeout=HEARTBEAT_TIMEOUT)
        for each in pending:
            each.give_up()
        for task in list(self._leaving):
            task.cancel()
        if self._leaving:
            await asyncio.wait(self._leaving)
        # In a loop: the last answer of one may lead to another, which is then dialled.
        while left := [node for node in nodes.values() if not node.gone]:
            await asyncio.gather(*(node.leave() for node in left))
        nodes.clear()
        self.router.give_up()

    # The slots

    async def _follow(self) -> None:
        """Ask for the slots when there is a reason to, and now and then."""
        while not self._closing:
            troubled = any(node.down or node.error for node in self.topology.nodes.values())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(
                    _SOON if troubled or self.router.unrouted else NOW_AND_THEN
                ):
                    await self._news.wait()
            self._news.clear()
            try:
                self.learn(await self.topology.ask())
            except StoreError:
                pass  # no node answers: each operation fails with that
            except Exception:
                log.exception("aiolock: could not follow the cluster, and tries again")
            await asyncio.sleep(_LEAST)

    def is_missing(self) -> None:
        self._news.set()

    def learn(self, found: Sequence[Range]) -> None:
        """The masters have these slots now."""
        if self._closing:
            return
        owners: list[Node | None] = [None] * SLOTS
        for first, last, host, port in found:
            node = self._node_at((host, port))
            owners[first : last + 1] = [node] * (last + 1 - first)
        topology = self.topology
        for (old, new), slots in topology.replace(owners).items():
            new.inherit()
            if old.ready:
                new.takes_over = True
                new.dial()
            self.router.hand_on(old, slots)
        now = self._loop.time()
        masters = {*owners}
        for node in list(topology.nodes.values()):
            if node not in masters and self._asked.get(node, 0.0) < now - _ASKED:
                self._is_gone(node)
        for node in topology.nodes.values():
            node.slots_changed()
        if self._waits:
            self._dial_all()
        self.router.reroute_all()

    def _node_at(self, address: Address) -> Node:
        node = self.topology.nodes.get(address)
        if node is None:
            node = self.topology.nodes[address] = Node(
                *(self._seeds.pool(address), self._names, address, self._client, self._deliver),
                cluster=self,
                tags=self._tags,
            )
        return node

    def _is_gone(self, node: Node) -> None:
        """The node is no master any more: send its unanswered commands to others."""
        served = node.ready
        del self.topology.nodes[node.address]
        self._asked.pop(node, None)
        self.router.hand_on(node)
        self._deduplicator.forget(node)
        self._links.up(str(node.address))
        leaving = asyncio.create_task(node.leave(), name="aiolock leave a node")
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)
        if served:
            self._deliver(Reconnected())

    # Events of the nodes (see `Neighbours`)

    def redirected(self, node: Node, commands: list[Command], refusal: Refusal) -> None:
        redirect = Redirect.read(refusal)
        if redirect is None:
            node.hold(commands)
            if is_half_done(refusal):
                self._loop.call_soon(self._ask_anew, commands[0].key.decode())
            elif code_of(refusal) == "CLUSTERDOWN":
                self._news.set()
            return
        address = self.topology.named(redirect, node)
        if address is None:
            node.hold(commands)
            self._news.set()
            return
        other = self._node_at(address)
        other.inherit()
        asking = redirect.code == "ASK"
        self._asked[other] = self._loop.time()
        if not asking:
            self._news.set()
            self.topology.assign(redirect.slot, other)
            other.takes_over = not other.ready
        self.router.pass_on(commands, other, asking=asking)

    def _ask_anew(self, key: str) -> None:
        """Some of this name's keys were at another node in the middle of a script."""
        if not self._closing:
            self._deliver(AskAgain(self._names.name(key)))

    def is_ready(self, node: Node) -> None:
        self._links.up(str(node.address))
        if node.takes_over:
            node.takes_over = False
            self._deliver(Reconnected())  # until now we did not listen there, and counted as dead

    def waits(self) -> None:
        if not self._waits:
            self._waits = True
            self._dial_all()

    def _dial_all(self) -> None:
        """Dial all: a slot may move to any of them, and we count as dead where we do not listen."""
        for node in self.topology.masters:
            node.dial()

    def slots_of(self, node: Node) -> frozenset[int]:
        return self.topology.slots_of(node)

    def link(self, node: Node, error: Exception | None) -> None:
        if error is not None and node.down:
            self._links.failing(str(node.address), error)
        elif error is not None:
            self._news.set()
            self._links.down(str(node.address), error)
        else:
            self._links.up(str(node.address))

    def is_new(self, node: Node, push: bytes) -> bool:
        return self._deduplicator.is_new(node, push)
