"""Pushes that stay within their shard, for a large cluster: ``push=sharded``.

A push by PUBLISH goes to every node of a cluster. So the client subscribes to one more channel on
each master: a shard channel, in a slot that this master has. A push by SPUBLISH on it reaches that
shard only. A number in that slot, the tag, is part of each waiter's text, so that every script that
pushes to the waiter finds the channel.

Nothing depends on that channel. Listeners are counted on the plain one, as everywhere, and a push
that reaches no one on the shard channel is published on the plain one. So clients need not agree on
where the slots are, nor on which way of pushing they use; and a moving slot loses no push.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from redis.asyncio.connection import ConnectionPool

from aiolock.protocol import Deliver, Form, WaiterId
from aiolock.stores._link_state import LinkState
from aiolock.stores.redis._codec import tagged
from aiolock.stores.redis._errors import REDIRECTS, Refusal, code_of
from aiolock.stores.redis._names import Names
from aiolock.stores.redis._node import Neighbours, Node
from aiolock.stores.redis._scripts import bulk, command
from aiolock.stores.redis._slots import Address, slot_of
from aiolock.stores.redis._subscription import Subscription


class Tags:
    """The tag of each waiter: by the slot of its name, and by when it came.

    A waiter keeps its tag, which is part of its text, wherever its slot goes. Waiters that come
    after a move get that of the new master.
    """

    def __init__(self) -> None:
        self._of_slot: dict[int, list[tuple[int, str]]] = {}
        """For each slot: from which number of a waiter on it has which tag, in order."""
        self._last = 0
        """The highest number of a waiter so far."""

    def tag(self, slot: int, number: int, now: str) -> str:
        """The tag of the waiter of this number; ``now`` is that of the slot's present master."""
        self._last = max(self._last, number)
        tags = self._of_slot.setdefault(slot, [(0, now)])
        if tags[-1][1] != now:
            tags.append((self._last + 1, now))
        return next(tag for since, tag in reversed(tags) if since <= number)


class ShardSubscription(Subscription):
    """A subscription that also listens on the shard channel."""

    def __init__(
        self,
        pool: ConnectionPool,
        names: Names,
        client: str,
        deliver: Deliver,
        links: LinkState,
        *,
        again: Callable[[], None],
        is_new: Callable[[bytes], bool] | None,
        channel: Callable[[], str],
        has_moved: Callable[[], None],
    ) -> None:
        """``channel`` gives the present shard channel, empty if there is none.

        ``has_moved`` is called when its slot has gone to another node.
        """
        super().__init__(pool, names, client, deliver, links, again=again, is_new=is_new)
        self._channel = channel
        self._has_moved = has_moved
        self._listens_on = ""

    def listen(self) -> None:
        """Subscribe to the present shard channel, unless that was done."""
        channel = self._channel()
        if channel and channel != self._listens_on and self._link.wire is not None:
            self._listens_on = channel
            self._link.wire.write(command("SSUBSCRIBE", channel), at_once=True)

    def _subscribe(self) -> None:
        # Before the plain channel: a waiter that is counted there gets its pushes here.
        self._listens_on = ""
        self.listen()
        super()._subscribe()

    def _received(self, message: Any) -> None:
        if isinstance(message, Refusal) and code_of(message) in REDIRECTS:
            self.heard = self._loop.time()
            self._listens_on = ""  # tried again when the slots are known better
        else:
            super()._received(message)

    def _on_push(self, message: list[bytes]) -> None:
        if message[0] == b"smessage":
            self._pushed(message[2])
        elif message[0] == b"sunsubscribe":
            if message[1] == self._listens_on.encode():
                self._listens_on = ""
                self._has_moved()
        else:
            super()._on_push(message)


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
            *(self._pool, self._names, self._client, self._deliver, self._links),
            again=self._ask_whether_counted,
            is_new=self._is_new,
            channel=self._channel,
            has_moved=self._cluster.is_missing,
        )

    def _channel(self) -> str:
        return self._names.shard_channel(self.tag, self._client) if self.tag else ""

    def slots_changed(self) -> None:
        """The channel's slot may have gone to another node, or this node may have its first."""
        if self.ready:
            self._subscription.listen()

    def _text(self, name: str, waiter: WaiterId, form: Form) -> str:
        tag = self._tags.tag(slot_of(name), waiter.seq, self.tag)
        return tagged(super()._text(name, waiter, form), tag)

    def _presence_arguments(self) -> tuple[int, bytes]:
        count, arguments = super()._presence_arguments()
        channel = self._channel()
        return (count + 1, arguments + bulk(channel)) if channel else (count, arguments)
