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
from typing import Any, cast

from aiolock.stores.redis._companion import Companion, OnMessage
from aiolock.stores.redis._errors import REDIRECTS, Refusal, code_of
from aiolock.stores.redis._scripts import command
from aiolock.stores.redis._wire import Wire


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


class ShardChannel:
    """The shard channel at one master, on the connection of the subscription (a `Companion`)."""

    def __init__(
        self,
        channel: Callable[[], str],
        has_moved: Callable[[], None],
        deduplicated: Companion,
    ) -> None:
        """``channel`` gives the present shard channel, empty if there is none.

        ``has_moved`` is called when its slot has gone to another node. ``deduplicated`` gets every
        message of any channel.
        """
        self._channel = channel
        self._has_moved = has_moved
        self._deduplicated = deduplicated
        self._wire: Wire | None = None
        self._listens_on = ""

    def listen(self) -> None:
        """Subscribe to the present shard channel, unless that was done."""
        channel = self._channel()
        if channel and channel != self._listens_on and self._wire is not None:
            self._listens_on = channel
            self._wire.write(command("SSUBSCRIBE", channel), at_once=True)

    def connected(self, wire: Wire) -> None:
        # Before the plain channel: a waiter that is counted there gets its pushes here.
        self._wire, self._listens_on = wire, ""
        self.listen()

    def disconnected(self) -> None:
        self._wire = None

    def received(self, message: Any, pass_on: OnMessage) -> None:
        if isinstance(message, Refusal) and code_of(message) in REDIRECTS:
            self._listens_on = ""  # tried again when the slots are known better
        elif isinstance(message, list) and message[:1] == [b"smessage"]:
            self._deduplicated.received([b"message", *cast(list[bytes], message)[1:]], pass_on)
        elif isinstance(message, list) and message[:1] == [b"sunsubscribe"]:
            if message[1] == self._listens_on.encode():
                self._listens_on = ""
                self._has_moved()
        else:
            self._deduplicated.received(message, pass_on)
