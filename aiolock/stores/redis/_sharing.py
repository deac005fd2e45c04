"""Acquires and releases of names with shares: their scripts also have the keys of the order among
shares.

Other names do without them, because each key of a call takes the server some time. A script that
would have needed them leaves the rest of its work to another call, which has them, and the reply
says so: then the name is one of these, for this client.
"""

from __future__ import annotations

import asyncio
from collections.abc import MutableMapping
from functools import lru_cache, partial
from typing import Any, Final

from aiolock.protocol import WAS_ABSENT, Acquire, Answer, Release
from aiolock.store import Receiver
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._encoding import Texts
from aiolock.stores.redis._names import Names, escape
from aiolock.stores.redis._outbox import not_after, tombstone
from aiolock.stores.redis._pipeline import Pipeline
from aiolock.stores.redis._replies import answer, was, was_before
from aiolock.stores.redis._scripts import KEPT, Script, bulk

ACQUIRE: Final = Script("acquire", answer, shares=True)
RELEASE: Final = Script("release", was, was_before, pushes=True, shares=True)

_MOST_NAMES: Final = 4096
"""Names of which it is known that others use shares."""


def keys_with_shares(names: Names, name: str) -> list[str]:
    """All keys of a name, and those of the order among shares."""
    stem = f"{names.prefix}:{{{escape(name)}}}:"
    return [*names.keys(name), f"{stem}line", f"{stem}shares"]


def with_shares(names: Names, name: str) -> bytes:
    """The same, and how many, encoded for a request."""
    keys = keys_with_shares(names, name)
    return b"".join(map(bulk, (len(keys), *keys)))


def learn(
    names: Names, known: MutableMapping[str, None], encoded: MutableMapping[str, Any], key: bytes
) -> None:
    """Others use shares for the name with this key: its keys are passed from now on."""
    if len(known) >= _MOST_NAMES:
        del known[next(iter(known))]
    name = names.name(key.decode())
    known[name] = None
    encoded.pop(name, None)


class Sharing:
    """These operations of one client at one server."""

    def __init__(
        self, pipe: Pipeline, names: Names, texts: Texts, encoded: MutableMapping[str, Any]
    ) -> None:
        """``encoded`` has what was encoded for names without shares: these need it no more."""
        self._loop = asyncio.get_running_loop()
        self._pipe, self._outbox = pipe, pipe.outbox
        self._keys = lru_cache(maxsize=1024)(partial(with_shares, names))
        self._text = texts.text
        self._channels = bulk(names.channels)
        self._encoded = encoded

    def acquire(
        self, operation: Acquire, receiver: Receiver[Answer], *, again: bool = False
    ) -> Command:
        """``again``: its waiter was answered before, so also without a ticket it is no newcomer."""
        name, waiter, form, ttl, ticket, wait, limit = operation
        self._encoded.pop(name, None)
        own = bulk(self._text(name, waiter, form))
        values = bulk(ttl) + bulk(ttl + KEPT + form.closes) + bulk(limit) + self._channels
        arguments = self._keys(name) + values + own + bulk(ticket if wait else -1)
        now = self._outbox.time()
        command = Command.of(ACQUIRE, 12, arguments, receiver, now, must_run=False)
        command.stamp, command.takes = not_after, bytes
        if not (ticket or again):  # only a newcomer's question may be left unsent
            command.waiter = own
        self._outbox.post(command)
        return command

    def release(self, operation: Release, receiver: Receiver[int]) -> Command:
        name, waiter, form, fence, entered, lost = operation
        self._encoded.pop(name, None)
        own = bulk(self._text(name, waiter, form))
        closes = 1 + lost if entered and form.closes else 0
        values = own + bulk(fence) + self._channels + bulk(closes)
        arguments, now = self._keys(name) + values, self._outbox.time()
        command = Command.of(RELEASE, 10, arguments, receiver, now, must_run=True)
        command.stamp, command.takes = tombstone, int
        if fence and not entered:
            # A grant that came too late: its waiter asks again, so it must not be marked as gone.
            command.count, command.stamp = 11, None
            command.arguments += bulk(0)
        if not fence and self._pipe.forget(own):
            self._loop.call_soon(receiver.resolve, WAS_ABSENT)
        else:
            self._outbox.post(command)
        return command
