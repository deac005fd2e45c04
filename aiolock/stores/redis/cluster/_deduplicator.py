"""Duplicates of pushes: each node delivers the same push, since a cluster sends it to all nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final, cast

from aiolock.stores.redis._companion import OnMessage
from aiolock.stores.redis._wire import Wire

_MOST: Final = 4096
_LATE: Final = 10.0
"""Seconds after which the same text by another connection counts as another push. Pushes of grants
and losses are never repeated, so at worst a request to ask again is dropped."""

_WORD: Final = b"p"
"""The beginning of a client's push to itself, which proves the connection that it comes by."""


class PushDeduplicator:
    """The pushes that have come, with the connection and time of each."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._seen = OrderedDict[bytes, tuple[object, float]]()

    def is_new(self, connection: object, push: bytes) -> bool:
        """Whether this push has not come before, except by this very connection."""
        if push == _WORD:
            return True
        now = self._time()
        first = self._seen.get(push)
        if first is not None and first[0] is not connection and now - first[1] < _LATE:
            return False
        self._seen[push] = connection, now
        self._seen.move_to_end(push)
        if len(self._seen) > _MOST:
            self._seen.popitem(last=False)
        return True

    def forget(self, connection: object) -> None:
        """The connection is gone: a push that came by it may now come by another one."""
        for push in [push for push, (by, _) in self._seen.items() if by is connection]:
            del self._seen[push]


class Deduplicated:
    """The pushes of one subscription that have not come by another (a `Companion`)."""

    def __init__(self, is_new: Callable[[bytes], bool]) -> None:
        self._is_new = is_new

    def connected(self, wire: Wire) -> None:
        pass

    def disconnected(self) -> None:
        pass

    def received(self, message: Any, pass_on: OnMessage) -> None:
        of_channel = cast(list[bytes], message) if isinstance(message, list) else []
        if of_channel[:1] != [b"message"] or self._is_new(of_channel[2]):
            pass_on(message)
