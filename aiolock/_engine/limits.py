"""The limits of a store, checked when a lock is described, before anything is sent."""

from __future__ import annotations

import math

from aiolock.errors import Unsupported
from aiolock.store import Store


class Limits:
    """The limits of one store; most stores have none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.prefix = ""
        """The prefix of the keys, for `LeaseToken`."""
        features = store.features
        self._missing = features.missing
        self._longest = math.inf if features.longest_ttl is None else features.longest_ttl

    def check_kind(self, kind: str, name: object) -> None:
        """`Unsupported` if the store does not offer this kind, or this option: ``share``."""
        why = self._missing.get(kind)
        if why is None:
            return
        of = " of" if kind == "share" else ""
        error = Unsupported(f"there is no {kind}{of} {name!r} on {self._store!r}: {why}")
        error.kind, error.name = kind, str(name)
        raise error

    def check_ttl(self, ttl: float) -> None:
        """`ValueError` if the store keeps no lease of so many seconds."""
        if ttl > self._longest:
            raise ValueError(
                f"ttl={ttl:g} s is more than the longest_ttl={self._longest:g} s of"
                f" {self._store!r}: a shorter ttl is renewed for as long as it is held"
            )
