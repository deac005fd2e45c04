"""Pushes: the texts that the scripts publish on a client's channel, and the events in them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

from aiolock.protocol import (
    AskAgain,
    Event,
    GrantLost,
    GrantPushed,
    OrderUnknown,
    ReleaseRequested,
    new,
)
from aiolock.stores.redis._codec import decode, waiter_of
from aiolock.stores.redis._names import Names

log = logging.getLogger("aiolock")


def read_push(names: Names, push: str) -> Event | None:
    """The event in a push; None for the client's push to itself, which proves both connections.

    `ValueError` for a text that is no push.
    """
    kind, _, rest = push.partition(" ")
    if kind == "g":
        waiter, fence, lease, now, key = rest.split(" ", 4)
        name = names.name(key)
        who, form, _ = decode(waiter)
        pushed: GrantPushed = new(GrantPushed, (name, who, form, int(fence), int(lease), int(now)))
        return pushed
    if kind == "l":
        grant, reason, key = rest.split(" ", 2)
        waiter, _, fence = grant.rpartition(":")
        who = waiter_of(waiter)
        return GrantLost(names.name(key), who, int(fence), reason)
    if kind == "d":
        return AskAgain(names.name(rest))
    if kind == "r":
        grant, key = rest.split(" ", 1)
        waiter, _, fence = grant.rpartition(":")
        who = waiter_of(waiter)
        return ReleaseRequested(names.name(key), who, int(fence))
    if kind == "v":
        waiter, key = rest.split(" ", 1)
        return OrderUnknown(names.name(key), waiter_of(waiter))
    if kind == "p":
        return None
    raise ValueError(f"no push of this kind: {kind!r}")


class Pushes:
    """Delivers the events in the pushes of either connection."""

    def __init__(self, read: Callable[[str], Any], deliver: Callable[[Any], None]) -> None:
        """``read`` reads a push, as `read_push`."""
        self._read = read
        self._deliver = deliver
        self._warned = False
        self.word = asyncio.Event()
        """Set when the client's push to itself has come."""

    def received(self, push: bytes) -> None:
        """Deliver the event in a push that the subscription got."""
        self.deliver(push.decode("utf-8", "replace"))

    def deliver(self, push: str) -> None:
        """Deliver the event in a push."""
        try:
            event = self._read(push)
        except ValueError:
            # Anyone with the right to publish can send anything here: that must not end the link.
            if not self._warned:
                self._warned = True
                log.warning("aiolock: ignores a push that is not one of aiolock's: %.100r", push)
        else:
            if event is None:
                self.word.set()
            else:
                self._deliver(event)
