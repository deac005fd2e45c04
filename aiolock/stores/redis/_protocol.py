"""Which protocols are spoken under a prefix: clients of other versions may be there as well.

One key of the prefix (of each master, in a cluster) is a sorted set of the protocols, scored by
when a client of each was here last. Every client writes its own there when it connects, and with
its heartbeat. The script does not where it finds one that ours does not work beside: see
`_protocols`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiolock.stores._protocols import spoken, works_beside
from aiolock.stores.redis._errors import MismatchError

PROTOCOL: Final = 1
"""That of this version: of keys, scripts, waiters' ids and pushes."""
SPOKEN: Final = 600_000
"""Milliseconds for which a protocol counts as spoken after a client of it was here."""
AGAIN: Final = 120.0
"""Seconds after which ours is written again, however busy the connections are."""


def mismatch(others: Sequence[int]) -> MismatchError | None:
    """Why we may not be here, if any of these is not to be beside us."""
    apart = [other for other in others if not works_beside(PROTOCOL, other)]
    if not apart:
        return None
    which = " and ".join(map(str, sorted(apart)))
    return MismatchError(f"protocol {which} is spoken there; {spoken(PROTOCOL)}")
