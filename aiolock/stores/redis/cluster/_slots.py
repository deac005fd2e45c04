"""The slots of a cluster: those of keys and names, and redirects between nodes."""

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
"""The host of a node without a host name, in a cluster where names are preferred."""

Address = tuple[str, int]


def slot_of_key(key: bytes) -> int:
    """The slot of a key: that of the text in its first braces, if there is any."""
    start = key.find(b"{") + 1
    end = key.find(b"}", start) if start else -1
    return crc_hqx(key[start:end] if end > start else key, 0) % SLOTS


@lru_cache(maxsize=4096)
def slot_of(name: str) -> int:
    """The slot of all keys of a name."""
    return slot_of_key(f"{{{escape(name)}}}".encode())


def tag_in(slots: Container[int]) -> str:
    """The first number whose slot is one of these; there must be at least one."""
    return next(tag for tag in map(str, itertools.count()) if slot_of_key(tag.encode()) in slots)


class Redirect(NamedTuple):
    """A redirect to another node. The host is empty if it is the node's own host.

    It is `UNNAMED` if that node has no name.
    """

    code: str
    slot: int
    host: str
    port: int

    @classmethod
    def read(cls, refusal: Refusal) -> Redirect | None:
        """The redirect in a MOVED or ASK; None for any other refusal."""
        code = code_of(refusal)
        if code not in ("MOVED", "ASK"):
            return None
        _, slot, where = str(refusal).split(" ")[:3]
        host, _, port = where.rpartition(":")
        return cls(code, int(slot), host, int(port))
