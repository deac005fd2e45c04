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

    def check_ttl(self, ttl: float, *, default: bool = False) -> None:
        """`ValueError` where the store keeps no lease for so many seconds.

        ``default``: as many as `connect` takes where none are given.
        """
        if ttl > self._longest:
            which = ", which connect() takes where none is given," if default else ""
            give = f"give connect() a ttl= of {self._longest:g} s at most; " if default else ""
            raise ValueError(
                f"ttl={ttl:g} s{which} is more than the longest_ttl={self._longest:g} s of"
                f" {self._store!r}: {give}a shorter ttl is renewed for as long as it is held"
            )
