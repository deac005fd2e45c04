"""Leases for documents, so that each goes by itself some time after nobody needs it any more."""

from __future__ import annotations

import asyncio
import math
from typing import Final

from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._lease import OwnLease
from aiolock.stores.etcd._own_leases import OwnLeases

_HOUR: Final = 3600
LONGEST: Final = 24 * _HOUR
"""Seconds for which a document with holds is kept: they are renewed in it before that ends."""


class Leftovers:
    """A few leases, each for many documents; none of them is kept alive.

    The first fence after a document has gone is the clock's. So it stays for an hour, by which the
    clocks of clients may differ.
    """

    def __init__(self, leases: OwnLeases) -> None:
        self._leases = leases
        self._loop = asyncio.get_running_loop()
        self._made = dict[int, tuple[float, OwnLease]]()
        """By seconds: until when it is used, and the lease, which lasts twice as long."""
        self._making = asyncio.Lock()

    async def lease(self, keep: float, until: float) -> int:
        """A lease that lasts for so many seconds at least."""
        seconds = _HOUR
        while seconds < min(keep, LONGEST if math.isinf(keep) else keep):
            seconds *= 2
        found = self._made.get(seconds)
        if found is None or found[0] < self._loop.time():
            async with self._making:
                found = self._made.get(seconds)
                if found is None or found[0] < self._loop.time():
                    lease = OwnLease(2 * seconds)
                    await self._leases.grant(lease, until)
                    found = self._made[seconds] = lease.sent + seconds, lease
        return found[1].id

    def doubt(self, error: CallError) -> None:
        """A swap was refused: if a lease of its is gone, as after a restore, others are made."""
        if error.lease:
            self._made.clear()
