"""One master of a cluster, which is connected to when it is needed."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Protocol, TypeVar

import anyio
from redis.asyncio.connection import ConnectionPool

from aiolock.backoff import Backoff
from aiolock.protocol import (
    Deliver,
    Event,
    Heartbeat,
    LinkChanged,
    Operation,
    WaiterId,
)
from aiolock.stores.redis._codec import tagged
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._encoding import Texts
from aiolock.stores.redis._errors import Refusal
from aiolock.stores.redis._lone_node import slots
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._presence import Presence
from aiolock.stores.redis._reader import OnRefusal
from aiolock.stores.redis._replies import Range
from aiolock.stores.redis._scripts import METADATA, bulk
from aiolock.stores.redis._session import Session
from aiolock.stores.redis._store import Operations
from aiolock.stores.redis.cluster._deduplicator import Deduplicated
from aiolock.stores.redis.cluster._pending import PendingOperation
from aiolock.stores.redis.cluster._redirects import Redirects, slot_of_command
from aiolock.stores.redis.cluster._sharded import ShardChannel, Tags
from aiolock.stores.redis.cluster._slots import SLOTS, Address, slot_of, slot_of_key, tag_in

Value = TypeVar("Value")

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


class Node:
    """One master, for one client; what comes before it serves us is kept until then."""

    def __init__(  # noqa: PLR0917  # where it is, whose it is, what is around it
        self,
        pool: ConnectionPool,
        names: Names,
        address: Address,
        client: str,
        deliver: Deliver,
        cluster: Neighbours,
        *,
        tags: Tags | None = None,
    ) -> None:
        """``tags`` are those of the client's waiters, if pushes go to their shard only."""
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
        self._pool = pool
        self._names = names
        self._client = client
        self._deliver = deliver
        self._cluster = cluster
        self._tags = tags
        self._channel: ShardChannel | None = None
        self._session: Session | None = None
        self._waiting: dict[PendingOperation | _SentOn, None] = {}
        """Operations, and commands from other nodes, in order, until it serves us."""
        self._inherits = False
        """It has got slots of another node while it was not connected to."""
        self._tag = ""
        """The last tag that was found, see `tag`."""
        self._wanted = False
        self._dialling: asyncio.Task[None] | None = None

    # Connecting

    @property
    def session(self) -> Session:
        """That of the last try to connect."""
        assert self._session is not None, "it was never tried"
        return self._session

    def dial(self) -> None:
        """Connect, until it serves us or is gone. Does nothing if that is under way."""
        if not self._wanted and not self.gone:
            self._wanted = True
            self._dialling = asyncio.create_task(self._dial(), name="aiolock dial a node")

    async def _dial(self) -> None:
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, jitter=True)
        # Ends by the flag, too: a cancellation alone can get lost in a driver (cpython gh-86296).
        while not self.gone:
            try:
                await self.open()
            except Exception as error:  # noqa: BLE001  # whatever it is, try again
                self.error = error
                self._cluster.is_missing()
                await asyncio.sleep(backoff.pause())
            else:
                break

    async def open(self) -> None:
        """Connect once; `StoreError` if that fails."""
        self._session = session = self._make_session()
        await session.open()
        self._wanted = True
        self.error = None
        if not self.gone:
            self._serve(session)

    def _make_session(self) -> Session:
        deduplicated = Deduplicated(partial(self._cluster.is_new, self))
        if self._tags is not None:
            self._channel = ShardChannel(
                self._shard_channel, self._cluster.is_missing, deduplicated
            )
        return Session(
            *(self._pool, self._names, self._client, self._deliver_from_node),
            presence=Presence(
                *(self._names, self._client),
                own_keys=self._own_keys,
                is_home=self._is_home,
                second_channel=self._shard_channel if self._tags is not None else None,
            ),
            make_pipe=partial(
                Pipeline,
                refusal_handler=self._make_redirects,
                on_queued=self._cluster.waits,
            ),
            companion=self._channel or deduplicated,
        )

    def _make_redirects(self, outbox: Outbox) -> OnRefusal:
        self._redirects = Redirects(outbox, partial(self._cluster.redirected, self))
        return self._redirects.on_refusal

    def _serve(self, session: Session) -> None:
        """Start what was kept, before any newer operation."""
        self._pipe = session.pipe
        tag = None if self._tags is None else partial(self._tagged, self._tags)
        texts = Texts(self._client, blind=not session.health.counted, tag=tag)
        self._table = Operations(session, self._names, self._client, texts).table
        self.ready = True
        if self._inherits:
            self._pipe.copies.elsewhere()
        for each in list(self._waiting):
            if isinstance(each, PendingOperation):
                each.go(self)
            else:
                del self._waiting[each]
                self._redirects.again(each.commands, asking=each.asking)
        self._cluster.is_ready(self)

    def _deliver_from_node(self, event: Event) -> None:
        """Deliver an event of this node, which is one of several.

        `Reconnected` is for all names: it is not certain which names are here. A heartbeat is no
        event: a waiter that asks instead may wait at another node.
        """
        if isinstance(event, LinkChanged):
            self._cluster.link(self, event.error)
            self.down = event.error is not None
        elif not isinstance(event, Heartbeat):
            self._deliver(event)

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
            if self._session is not None:
                await self._session.aclose()
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                if self._dialling is not None:
                    await asyncio.wait([self._dialling])
                if self._session is not None:
                    await self._session.aclose()
                    await self._session.disconnect()  # `aclose` had begun, so it does nothing now
            raise

    # Operations

    def submit(self, operation: Operation[Value]) -> asyncio.Future[Value]:
        """Start the operation at this master, which serves us."""
        return self._table[operation.__class__](operation)

    def metadata(self, client: str) -> asyncio.Future[bytes]:
        """A client's metadata; empty if it has written none."""
        return self._pipe.call(METADATA, 2, bulk(1) + bulk(self._names.client(client)))

    def slots(self) -> asyncio.Future[list[Range]]:
        """The slots of each master, as this one knows them."""
        return slots(self._pipe, self.session.presence)

    @property
    def others(self) -> tuple[int, ...]:
        """The protocols of other clients here, if they are not ours."""
        return self._session.health.others if self._session is not None else ()

    # Operations before it serves us, and commands of other nodes

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

    # The slots of this node

    @property
    def tag(self) -> str:
        """A number whose slot belongs to this node; empty as long as it has no slots."""
        slots = self._cluster.slots_of(self)
        if not slots:
            return ""
        if not self._tag or slot_of_key(self._tag.encode()) not in slots:
            self._tag = tag_in(slots)
        return self._tag

    def slots_changed(self) -> None:
        """The channel's slot may have gone to another node, or this node may have its first."""
        if self.ready and self._channel is not None:
            self._channel.listen()

    def _own_keys(self) -> Sequence[str]:
        # The lowest tag, however the slots came here: each client must find the same key.
        slots = self._cluster.slots_of(self)
        return [f"{self._names.protocols}:{{{tag_in(slots)}}}"] if slots else []

    def _is_home(self) -> bool:
        """Whether the key of the client's host and process is kept here."""
        own = slot_of_key(self._names.client(self._client).encode())
        return own in self._cluster.slots_of(self)

    def _shard_channel(self) -> str:
        return self._names.shard_channel(self.tag, self._client) if self.tag else ""

    def _tagged(self, tags: Tags, name: str, waiter: WaiterId, text: str) -> str:
        return tagged(text, tags.tag(slot_of(name), waiter.seq, self.tag))
