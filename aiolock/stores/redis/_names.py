"""Keys and channels. All keys of one name share one hash slot: its name stands in braces."""

from __future__ import annotations

import re
from functools import lru_cache

from aiolock.stores.redis._scripts import bulk


def escape(name: str) -> str:
    """``name`` without braces, which would move its keys to another slot."""
    return name.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")


def unescape(name: str) -> str:
    """The name that was escaped."""
    return name.replace("%7D", "}").replace("%7B", "{").replace("%25", "%")


class Names:
    """The keys under one prefix, as text and as they stand in a request."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self.channels = f"{prefix}:push:"
        # Names come back: an order is locked, released, and asked for again by the next waiter.
        self.three = lru_cache(maxsize=4096)(self._three)
        self.holders = lru_cache(maxsize=4096)(self._holders)

    def keys(self, name: str) -> list[str]:
        """Holders, queue and fence."""
        stem = f"{self._prefix}:{{{escape(name)}}}"
        return [f"{stem}:holders", f"{stem}:queue", f"{stem}:fence"]

    def value(self, name: str) -> str:
        """Where a value is put up (see `Store.post`)."""
        return f"{self._prefix}:{{{escape(name)}}}:value"

    @property
    def pattern(self) -> str:
        """What all keys of names match; ``[`` and the like stand for themselves in a prefix."""
        return re.sub(r"([][*?\\^])", r"\\\1", self._prefix) + ":{*}:*"

    def name(self, key: str) -> str:
        """The name of which this is a key; a push carries that of its holders."""
        escaped = key[len(self._prefix) + 2 : key.rindex("}")]
        return unescape(escaped) if "%" in escaped else escaped

    def client(self, client: str) -> str:
        """Where a client writes its host and process, for `status` to show."""
        return f"{self._prefix}:client:{client}"

    @property
    def protocols(self) -> str:
        """Where clients write which protocol they speak (see `_protocol`)."""
        return f"{self._prefix}:protocols"

    def shard_channel(self, tag: str, client: str) -> str:
        """The client's channel of a slot, which the tag is of."""
        return f"{self.channels}{{{tag}}}:{client}"

    def barrier(self, client: str) -> str:
        """What a client writes before it waits for replicas: see `Barrier`."""
        return f"{self._prefix}:barrier:{client}"

    def tried(self, client: str) -> list[str]:
        """Three keys of the client's own, to try on: in the slot of what it writes of itself."""
        stem = f"{self._prefix}:{{{self.client(client)}}}"
        return [f"{stem}:holders", f"{stem}:queue", f"{stem}:fence"]

    def apart(self) -> tuple[str, str]:
        """Two keys of different slots, which nobody uses."""
        return f"{self._prefix}:{{a}}:apart", f"{self._prefix}:{{b}}:apart"

    def _holders(self, name: str) -> bytes:
        return bulk(self.keys(name)[0])

    def _three(self, name: str) -> bytes:
        return b"".join(map(bulk, (3, *self.keys(name))))
