"""One master of a cluster: a store like that of one server, which is connected to when needed."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Container
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol

import anyio
from redis.asyncio.connection import ConnectionPool

from aiolock.protocol import (
    Deliver,
    Event,
    Heartbeat,
    LinkChanged,
)
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._pending import PendingOperation
from aiolock.stores.redis._reader import OnRefusal
from aiolock.stores.redis._redirects import Redirects, slot_of_command
from aiolock.stores.redis._slots import SLOTS, Address, slot_of_key, tag_in
from aiolock.stores.redis._store import RedisStore

_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
ALL: Final = range(SLOTS)


@dataclass(frozen=True, slots=True, eq=False)
class _SentOn:
    """Redirected commands of one slot, and whether they come by an ASK."""

    commands: list[Command]
    asking: bool


class Neighbours(Protocol):
    """The callbacks of a node about the other nodes of its cluster."""

    def redirected(self, node: Node, commands: list[Command], refusal: Refusal) -> None:
        """The node has refused these commands, of one slot."""

    def is_ready(self, node: Node) -> None:
        """The node serves us from now on."""

    def is_missing(self) -> None:
        """A node cannot be reached: another may have its slots soon."""

    def waits(self) -> None:
        """A waiter of ours is in a queue."""

    def slots_of(self, node: Node) -> frozenset[int]:
        """The slots of the node, as far as they are known."""
        ...

    def link(self, node: Node, error: Exception | None) -> None:
        """A connection of the node broke; or (None) both are whole again."""

    def is_new(self, node: Node, push: bytes) -> bool:
        """Whether this push has not come by another node."""
        ...


class Node(RedisStore):
    """Locks on one master; operations that come before it serves us are kept until then."""

    def __init__(
        self, pool: ConnectionPool, prefix: str, address: Address, cluster: Neighbours
    ) -> None:
        super().__init__(pool, prefix)
        self.address = address
        self.ready = False
        self.gone = False
        """The node is no master any more, or the client is being closed."""
        self.down = False
        """Whether a connection to it is broken."""
        self.takes_over = False
        """It has got slots of another node that served us."""
        self.error: Exception | None = None
        """The last reason why it could not be connected to."""
        self._cluster = cluster
        self._slots_apart = True
        self._refusal_handler = self._make_redirects
        self._is_new = partial(cluster.is_new, self)
        self._queued = cluster.waits
        self._waiting: dict[PendingOperation | _SentOn, None] = {}
        """Operations, and commands from other nodes, in order, until it serves us."""
        self._inherits = False
        """It has got slots of another node while it was not connected to."""
        self._tag = ""
        """The last tag that was found, see `tag`."""
        self._wanted = False
        self._dialling: asyncio.Task[None] | None = None

    def _make_redirects(self, outbox: Outbox) -> OnRefusal:
        self._redirects = Redirects(outbox, partial(self._cluster.redirected, self))
        return self._redirects.on_refusal

    # Connecting

    def dial(self, client: str, deliver: Deliver) -> None:
        """Connect, until it serves us or is gone. Does nothing if that is under way."""
        if not self._wanted and not self.gone:
            self._wanted = True
            self._dialling = asyncio.create_task(
                self._dial(client, deliver), name="aiolock dial a node"
            )

    async def _dial(self, client: str, deliver: Deliver) -> None:
        pause = _FIRST_PAUSE
        # Ends by the flag, too: a cancellation alone can get lost in a driver (cpython gh-86296).
        while not self.gone:
            try:
                await self.open_now(client, deliver)
            except Exception as error:  # noqa: BLE001  # whatever it is, try again
                self.error = error
                self._cluster.is_missing()
                await asyncio.sleep(pause * random.uniform(0.5, 1.0))  # noqa: S311  # jitter
                pause = min(_LONGEST_PAUSE, 2 * pause)
            else:
                break

    async def open_now(self, client: str, deliver: Deliver) -> None:
        """Connect once; `StoreError` if that fails."""
        await self.open(client, partial(self._deliver_from_node, deliver))
        self._wanted = True
        self.error = None
        if not self.gone:
            self.ready = True
            if self._inherits:
                self._pipe.copies.elsewhere()
            self._go_on()  # before any newer operation
            self._cluster.is_ready(self)

    def _deliver_from_node(self, deliver: Deliver, event: Event) -> None:
        """Deliver an event of this node, which is one of several.

        `Reconnected` is for all names: it is not certain which names are here. A heartbeat is no
        event: a waiter that asks instead may wait at another node.
        """
        if isinstance(event, LinkChanged):
            self._link_changed(event.error)
        elif not isinstance(event, Heartbeat):
            deliver(event)

    def _link_changed(self, error: Exception | None) -> None:
        self._cluster.link(self, error)
        self.down = error is not None

    async def leave(self) -> None:
        """Disconnect; commands under way have been taken by another node, or are awaited.

        Idempotent. If cancelled, it disconnects without waiting.
        """
        self.gone = True
        try:
            if self._dialling is not None:
                self._dialling.cancel()
                await asyncio.wait([self._dialling])
            self.ready = False
            await self.aclose()
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                if self._dialling is not None:
                    await asyncio.wait([self._dialling])
                await self.aclose()
                await self._disconnect()  # `aclose` had begun, so it does nothing now
            raise

    # Operations before it serves us

    @property
    def pending(self) -> list[PendingOperation]:
        """The operations that wait until it serves us."""
        return [each for each in self._waiting if isinstance(each, PendingOperation)]

    def inherit(self) -> None:
        """It has got slots of another node, and they may go back to that one.

        A late copy of a command may reach that node, after its waiter has given up here.
        """
        self._inherits = True
        if self.ready:
            self._pipe.copies.elsewhere()

    def hold_back(self, pending: PendingOperation) -> None:
        """Start it as soon as this node serves us."""
        pending.wait_in(self._waiting)

    def take_over(self, commands: list[Command], *, asking: bool = False) -> None:
        """Carry out commands that were sent to another node, in order."""
        if self.ready:
            self._redirects.again(commands, asking=asking)
        else:
            self._waiting[_SentOn(commands, asking)] = None

    def hold(self, commands: list[Command]) -> None:
        """Carry these out in a moment, and after them any others of their slot."""
        self._redirects.hold(commands)

    def take(self, slots: Container[int] = ALL) -> tuple[list[Command], list[PendingOperation]]:
        """Take all unanswered commands and operations of these slots, for another node."""
        commands: list[Command] = self._redirects.take(slots) if self.ready else []
        pending = list[PendingOperation]()
        for each in list(self._waiting):
            if isinstance(each, PendingOperation):
                if each.slot in slots:
                    del self._waiting[each]
                    pending.append(each)
            elif slot_of_command(each.commands[0]) in slots:
                del self._waiting[each]
                commands += each.commands
        return commands, pending

    def _go_on(self) -> None:
        for each in list(self._waiting):
            if isinstance(each, PendingOperation):
                each.go(self)
            else:
                del self._waiting[each]
                self._redirects.again(each.commands, asking=each.asking)

    # Differences from a single server

    @property
    def tag(self) -> str:
        """A number whose slot belongs to this node; empty as long as it has no slots."""
        slots = self._cluster.slots_of(self)
        if not slots:
            return ""
        if not self._tag or slot_of_key(self._tag.encode()) not in slots:
            self._tag = tag_in(slots)
        return self._tag

    def _own_keys(self) -> list[str]:
        # The lowest tag, however the slots came here: each client must find the same key.
        slots = self._cluster.slots_of(self)
        return [f"{self._names.protocols}:{{{tag_in(slots)}}}"] if slots else []

    def slots_changed(self) -> None:
        """The slots of this node may have changed."""

    @property
    def _is_home(self) -> bool:
        """Whether the key of the client's host and process is kept here."""
        own = slot_of_key(self._names.client(self._client).encode())
        return own in self._cluster.slots_of(self)

    async def _introduce(self) -> None:
        if self._is_home:
            await super()._introduce()

    def _introduce_again(self, now: float) -> None:
        self._introduced = now
        if self._is_home:
            super()._introduce_again(now)

    async def _check_cluster(self) -> None:
        pass

    def _forget_us(self) -> None:
        if self._is_home:
            super()._forget_us()
