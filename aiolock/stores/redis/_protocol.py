"""The protocols in use under a prefix: clients of other versions may be there as well.

One key of the prefix (one for each master of a cluster) is a sorted set of the protocols. The score
is when a client of that protocol was last here. Every client writes its own when it connects, and
with its heartbeat. The script does not, if it finds a protocol that ours does not work beside: see
`_protocols`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from aiolock.stores._protocols import spoken, works_beside
from aiolock.stores.redis._errors import MismatchError

PROTOCOL: Final = 1
"""The protocol of this version: its keys, scripts, waiters' ids and pushes."""
SPOKEN: Final = 600_000
"""Milliseconds for which a protocol counts as used after a client of it was here."""
AGAIN: Final = 120.0
"""Seconds after which our protocol is written again, however busy the connections are."""


def mismatch(others: Sequence[int]) -> MismatchError | None:
    """The error if any of these protocols does not work beside ours; None if all do."""
    apart = [other for other in others if not works_beside(PROTOCOL, other)]
    if not apart:
        return None
    which = " and ".join(map(str, sorted(apart)))
    return MismatchError(f"protocol {which} is spoken there; {spoken(PROTOCOL)}")
