"""Keys and channels. All keys of one name share one hash slot: its name is in braces."""

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
    """The keys under one prefix, as text and encoded for a request."""

    def __init__(
        self,
        prefix: str,
        kinds: tuple[str, ...] = ("holders", "queue", "fence"),
        *,
        all_names: tuple[str, ...] = (),
        pattern: str = "*",
        value: str = "value",
    ) -> None:
        """``kinds`` are the ends of the keys of a name, ``value`` that of a posted value, and
        ``pattern`` matches one at least. ``all_names``: keys that all names share.
        """
        self.prefix = prefix
        self._kinds = kinds
        self._all_names = all_names
        self._pattern = pattern
        self._value = value
        self.channels = f"{prefix}:push:"
        # Cached, because names come back: the next waiter asks for the same lock.
        self.three = lru_cache(maxsize=4096)(self._three)
        self.holders = lru_cache(maxsize=4096)(self._holders)
        self.name = lru_cache(maxsize=4096)(self._name)

    def keys(self, name: str) -> list[str]:
        """All its keys: as a rule, of its holders, its queue and its fence."""
        stem = f"{self.prefix}:{{{escape(name)}}}:"
        return [*(f"{stem}{kind}" for kind in self._kinds), *self._all_names]

    def value(self, name: str) -> str:
        """The key of a posted value (see `Post`)."""
        return f"{self.prefix}:{{{escape(name)}}}:{self._value}"

    @property
    def pattern(self) -> str:
        """A pattern for the keys of names; ``[`` and the like are escaped in the prefix."""
        return re.sub(r"([][*?\\^])", r"\\\1", self.prefix) + ":{*}:" + self._pattern

    def _name(self, key: str) -> str:
        """The name that a key belongs to; a push carries the key of the holders."""
        escaped = key[len(self.prefix) + 2 : key.rindex("}")]
        return unescape(escaped) if "%" in escaped else escaped

    def client(self, client: str) -> str:
        """The key under which a client writes its host and process, for `status`."""
        return f"{self.prefix}:client:{client}"

    @property
    def protocols(self) -> str:
        """The key of the protocols that clients speak (see `_protocol`)."""
        return f"{self.prefix}:protocols"

    def shard_channel(self, tag: str, client: str) -> str:
        """The client's channel in the slot of this tag."""
        return f"{self.channels}{{{tag}}}:{client}"

    def barrier(self, client: str) -> str:
        """The key that a client writes before it waits for replicas: see `Barrier`."""
        return f"{self.prefix}:barrier:{client}"

    def tried(self, client: str) -> list[str]:
        """Three keys of the client's own, to try commands on, in the slot of `client`."""
        stem = f"{self.prefix}:{{{self.client(client)}}}"
        return [f"{stem}:holders", f"{stem}:queue", f"{stem}:fence"]

    def apart(self) -> tuple[str, str]:
        """Two keys of different slots, which nothing uses."""
        return f"{self.prefix}:{{a}}:apart", f"{self.prefix}:{{b}}:apart"

    def _holders(self, name: str) -> bytes:
        return bulk(self.keys(name)[0])

    def _three(self, name: str) -> bytes:
        """All its keys, and how many, encoded for a request."""
        keys = self.keys(name)
        return b"".join(map(bulk, (len(keys), *keys)))
