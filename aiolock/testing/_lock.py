"""The part of the suite about exclusive locks: what every store of them does."""

from __future__ import annotations

from aiolock.testing._leases import LeaseContract
from aiolock.testing._queueing import QueueContract
from aiolock.testing._status import StatusContract


class LockContract(QueueContract, LeaseContract, StatusContract):
    """The requirements of a store of locks, on one server or several: one test for each.

    For a store that offers only exclusive locks (see `Features`); for others, inherit from
    `StoreContract`, which says how.
    """
