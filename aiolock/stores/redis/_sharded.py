"""Pushes that stay within their shard, where a cluster is large: ``push=sharded``.

What is published by PUBLISH goes to every node of a cluster. So the client is subscribed to one
channel more on each master: a shard channel, of a slot that this master has, on which SPUBLISH
reaches nobody but the shard. A number whose slot that is, the tag, goes with each waiter, so that
whichever client's script has something to say to it knows the channel.

Nothing rests on that channel. Who is alive is counted by the plain one, here as everywhere, and
what nobody hears on the shard channel is published as ever. So clients need not agree on where the
slots are, nor on how they want to be spoken to; and a slot that moves costs no push.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import ConnectionPool

from aiolock.store import Form, Inbox, Waiter
from aiolock.stores._links import Links
from aiolock.stores.redis._codec import tagged
from aiolock.stores.redis._errors import REDIRECTS, Refusal, code_of
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._node import Neighbours, Node
from aiolock.stores.redis._scripts import bulk, command
from aiolock.stores.redis._slots import Address, slot_of
from aiolock.stores.redis._subscription import Subscription


class Tags:
    """The tag of each waiter: by the slot of its name, and by when it came.

    A waiter keeps its tag, which is part of how it is written down, wherever its slot goes. Those
    that come after a move get that of the new master.
    """

    def __init__(self) -> None:
        self._of_slot: dict[int, list[tuple[int, str]]] = {}
        """From which number of a waiter on it is which tag, in order."""
        self._last = 0
        """The highest number of a waiter so far."""

    def tag(self, slot: int, number: int, now: str) -> str:
        """That of the waiter of this number; ``now`` is the tag of the slot's master."""
        self._last = max(self._last, number)
        tags = self._of_slot.setdefault(slot, [(0, now)])
        if tags[-1][1] != now:
            tags.append((self._last + 1, now))
        return next(tag for since, tag in reversed(tags) if since <= number)


class ShardSubscription(Subscription):
    """Listens on the shard channel, too."""

    def __init__(
        self,
        pool: ConnectionPool,
        names: Names,
        client: str,
        inbox: Inbox,
        links: Links,
        *,
        again: Callable[[], None],
        is_new: Callable[[bytes], bool] | None,
        channel: Callable[[], str],
        has_moved: Callable[[], None],
    ) -> None:
        """``channel`` says which that is now, empty where there is none.

        ``has_moved`` is called when its slot has gone to another node.
        """
        super().__init__(pool, names, client, inbox, links, again=again, is_new=is_new)
        self._channel = channel
        self._has_moved = has_moved
        self._listens_on = ""

    def listen(self) -> None:
        """Subscribe to the channel of now, unless that was done."""
        channel = self._channel()
        if channel and channel != self._listens_on and self._link.wire is not None:
            self._listens_on = channel
            self._link.wire.write(command("SSUBSCRIBE", channel), at_once=True)

    def _subscribe(self) -> None:
        # First: whoever is counted by the plain one is spoken to by this one.
        self._listens_on = ""
        self.listen()
        super()._subscribe()

    def _received(self, message: Any) -> None:
        if isinstance(message, Refusal) and code_of(message) in REDIRECTS:
            self.heard = self._loop.time()
            self._listens_on = ""  # tried again when the slots are known better
        else:
            super()._received(message)

    def _told(self, message: list[bytes]) -> None:
        if message[0] == b"smessage":
            self._pushed(message[2])
        elif message[0] == b"sunsubscribe":
            if message[1] == self._listens_on.encode():
                self._listens_on = ""
                self._has_moved()
        else:
            super()._told(message)


class ShardedNode(Node):
    """A master whose pushes to us go to its shard only."""

    _subscription: ShardSubscription

    def __init__(
        self,
        pool: ConnectionPool,
        prefix: str,
        address: Address,
        cluster: Neighbours,
        tags: Tags,
    ) -> None:
        super().__init__(pool, prefix, address, cluster)
        self._tags = tags

    def _make_subscription(self) -> Subscription:
        return ShardSubscription(
            *(self._pool, self._names, self._client, self._inbox, self._links),
            again=self._ask_whether_heard,
            is_new=self._is_new,
            channel=self._channel,
            has_moved=self._cluster.is_missing,
        )

    def _channel(self) -> str:
        return self._names.shard_channel(self.tag, self._client) if self.tag else ""

    def slots_changed(self) -> None:
        """That of the channel may have gone to another node, or this node has its first."""
        if self.ready:
            self._subscription.listen()

    def _text(self, name: str, waiter: Waiter, form: Form) -> str:
        tag = self._tags.tag(slot_of(name), waiter.seq, self.tag)
        return tagged(super()._text(name, waiter, form), tag)

    def _presence_arguments(self) -> tuple[int, bytes]:
        count, arguments = super()._presence_arguments()
        channel = self._channel()
        return (count + 1, arguments + bulk(channel)) if channel else (count, arguments)
