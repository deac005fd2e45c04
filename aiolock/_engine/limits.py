"""What a store does not offer is refused where it is described, before anything is sent."""

from __future__ import annotations

import math

from aiolock.errors import Unsupported
from aiolock.store import ALL_KINDS, Limited, Store


class Limits:
    """Those of one store; of most there are none."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._offers, self._longest = ALL_KINDS, math.inf
        if isinstance(store, Limited):
            self._offers = store.offers
            self._longest = math.inf if store.longest_ttl is None else store.longest_ttl

    def check_kind(self, kind: str, name: object) -> None:
        """`Unsupported` where the store does not offer this kind."""
        if kind in self._offers:
            return
        assert isinstance(self._store, Limited)
        why = self._store.why_not(kind)
        error = Unsupported(f"there is no {kind} {name!r} on {self._store!r}: {why}")
        error.kind, error.name = kind, str(name)
        raise error

    def check_ttl(self, ttl: float) -> None:
        """`ValueError` where the store keeps no lease for so many seconds."""
        if ttl > self._longest:
            raise ValueError(
                f"ttl={ttl:g} s is more than the longest_ttl={self._longest:g} s of"
                f" {self._store!r}: a shorter ttl is renewed for as long as it is held"
            )
