"""Fair, cancellation-safe locks for asyncio programs that run in many processes."""

from aiolock._client import LockClient, connect
from aiolock._hold import LeaseState
from aiolock._lease import Lease
from aiolock._lock import Acquisition, Lock
from aiolock._multi import MultiLease, MultiLock
from aiolock._once import Once
from aiolock._periodic import Periodic
from aiolock.errors import (
    AcquireTimeout,
    ClientClosed,
    LeaseLost,
    LockError,
    NotHeld,
    QueueFull,
    StoreError,
    WouldDeadlock,
)
from aiolock.store import Party, Status, Store

__version__ = "0.1.0"

__all__ = [
    "AcquireTimeout",
    "Acquisition",
    "ClientClosed",
    "Lease",
    "LeaseLost",
    "LeaseState",
    "Lock",
    "LockClient",
    "LockError",
    "MultiLease",
    "MultiLock",
    "NotHeld",
    "Once",
    "Party",
    "Periodic",
    "QueueFull",
    "Status",
    "Store",
    "StoreError",
    "WouldDeadlock",
    "connect",
]
