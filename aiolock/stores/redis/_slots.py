"""The slots of a cluster: of keys, of names, and where the servers say that they are."""

from __future__ import annotations

import itertools
from binascii import crc_hqx
from collections.abc import Container
from functools import lru_cache
from typing import Final, NamedTuple

from aiolock.stores.redis._errors import Refusal, code_of
from aiolock.stores.redis._names import escape

SLOTS: Final = 16384
UNNAMED: Final = "?"
"""What a node is called that has no name, where nodes are known by their names."""

Address = tuple[str, int]


def slot_of_key(key: bytes) -> int:
    """The slot of a key: that of what stands in its first braces, if anything does."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start) if start else -1
    return crc_hqx(key[start:end] if end > start else key, 0) % SLOTS


@lru_cache(maxsize=4096)
def slot_of(name: str) -> int:
    """The slot of all keys of a name."""
    return slot_of_key(f"{{{escape(name)}}}".encode())


def tag_in(slots: Container[int]) -> str:
    """The first number whose slot is one of these, of which there must be any."""
    return next(tag for tag in map(str, itertools.count()) if slot_of_key(tag.encode()) in slots)


class Redirect(NamedTuple):
    """Where a node sends a command on to; the host is empty where that is the node's own.

    It is `UNNAMED` where that node has no name.
    """

    code: str
    slot: int
    host: str
    port: int

    @classmethod
    def read(cls, refusal: Refusal) -> Redirect | None:
        """What MOVED or ASK says; None for any other answer."""
        code = code_of(refusal)
        if code not in ("MOVED", "ASK"):
            return None
        _, slot, where = str(refusal).split(" ")[:3]
        host, _, port = where.rpartition(":")
        return cls(code, int(slot), host, int(port))
