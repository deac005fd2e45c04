"""The same push, once from each node: a cluster brings what is published to all its nodes."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Final

_MOST: Final = 4096
_LATE: Final = 10.0
"""Seconds after which the same text by another connection is taken for another push: those of
grants and losses never come again, so only what says "ask again" can be dropped in vain."""

_WORD: Final = b"p"
"""A client's word to itself, which proves the connection that it comes by."""


class Echoes:
    """What has come, by which connection, and when."""

    def __init__(self, time: Callable[[], float]) -> None:
        self._time = time
        self._seen = OrderedDict[bytes, tuple[object, float]]()

    def is_new(self, connection: object, push: bytes) -> bool:
        """Whether it came by this connection first, or by this one again."""
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
        """It is no more: whatever came by it may come by another one."""
        for push in [push for push, (by, _) in self._seen.items() if by is connection]:
            del self._seen[push]
