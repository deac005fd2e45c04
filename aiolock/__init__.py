"""Fair, cancellation-safe locks for asyncio programs that run in many processes.

::

    async with aiolock.connect("redis://localhost:6379/0") as client:
        async with client.lock("order:42", ttl=30, timeout=5) as lease:
            ...  # ours alone, in all processes; cancelled when the lease is lost

`connect` makes a client, one for each process. The client makes descriptions, which any number of
tasks share: `lock`, `rwlock`, `semaphore`, `rate_limit`, `multilock`, `path_lock`, `once`,
`periodic`, `election`, `group`, `shards`, `event`, `latch` and `barrier` (see `LockClient`).
``memory://`` needs no server and works within one event loop. A script that takes one lock does so
with `aiolock.lock`, without a client.
"""

import typing

from aiolock import observe as observe  # `aiolock.observe`, by its name
from aiolock._client import LockClient
from aiolock._connect import connect
from aiolock._engine.lease import Lease
from aiolock._engine.lease_state import LeaseState
from aiolock._locks.acquire_context import AcquireContext
from aiolock._locks.adoption import Adoption
from aiolock._locks.barrier import Barrier
from aiolock._locks.election import Election, Leader, Term
from aiolock._locks.event import Event
from aiolock._locks.group import Group
from aiolock._locks.group_changes import Changed, GroupChange, Joined, Left, Members
from aiolock._locks.group_view import Member
from aiolock._locks.latch import Latch
from aiolock._locks.lock import Lock
from aiolock._locks.membership import Membership
from aiolock._locks.multilock import MultiLease, MultiLock
from aiolock._locks.once import Once, Outcome
from aiolock._locks.path import PathLease, PathLock
from aiolock._locks.periodic import Periodic
from aiolock._locks.rate_limit import RateLimit, TokensContext, Verdict
from aiolock._locks.rwlock import RWLock
from aiolock._locks.semaphore import Semaphore
from aiolock._locks.shard import Shard
from aiolock._locks.shards import Shards
from aiolock._own_client import lock
from aiolock.errors import (
    AcquireTimeout,
    ClientClosed,
    LeaseLost,
    LimitMismatch,
    LockError,
    NotHeld,
    QueueFull,
    QuorumMismatch,
    ResultGone,
    StoreError,
    TokenSpent,
    Unsupported,
    WouldDeadlock,
)
from aiolock.lease_token import LeaseToken
from aiolock.observer import Blocked, Deadlock, LockRequest, Observer
from aiolock.protocol import Participant, Status
from aiolock.store import ServerStatus, Store

if typing.TYPE_CHECKING:
    from aiolock import sync as sync  # `aiolock.sync`, by its name
    from aiolock.page import web

__version__ = "0.1.0"

__all__ = [
    "AcquireContext",
    "AcquireTimeout",
    "Adoption",
    "Barrier",
    "Blocked",
    "Changed",
    "ClientClosed",
    "Deadlock",
    "Election",
    "Event",
    "Group",
    "GroupChange",
    "Joined",
    "Latch",
    "Leader",
    "Lease",
    "LeaseLost",
    "LeaseState",
    "LeaseToken",
    "Left",
    "LimitMismatch",
    "Lock",
    "LockClient",
    "LockError",
    "LockRequest",
    "Member",
    "Members",
    "Membership",
    "MultiLease",
    "MultiLock",
    "NotHeld",
    "Observer",
    "Once",
    "Outcome",
    "Participant",
    "PathLease",
    "PathLock",
    "Periodic",
    "QueueFull",
    "QuorumMismatch",
    "RWLock",
    "RateLimit",
    "ResultGone",
    "Semaphore",
    "ServerStatus",
    "Shard",
    "Shards",
    "Status",
    "Store",
    "StoreError",
    "Term",
    "TokenSpent",
    "TokensContext",
    "Unsupported",
    "Verdict",
    "WouldDeadlock",
    "connect",
    "lock",
    "web",
]


def __getattr__(name: str) -> object:
    """Import the parts that few programs need when they are first used."""
    if name == "web":
        from aiolock.page import web

        return web
    if name == "sync":
        import aiolock.sync

        return aiolock.sync
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _adopt() -> None:
    """Let tracebacks and reprs name each object as users import it, wherever it is defined."""
    for name in __all__:
        if name in globals():
            globals()[name].__module__ = __name__


_adopt()
del _adopt
