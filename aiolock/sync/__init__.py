"""The same locks for threads: scripts, Django views, Celery tasks, notebooks.

::

    client = aiolock.sync.connect("redis://localhost:6379/0")

    with client.lock("order:42", ttl=30, timeout=5) as lease:
        ...  # ours alone, in all processes; renewed while the thread works

It has all that `aiolock` has, without ``await``: names, options, errors and guarantees are the
same, and threads exclude tasks and other processes. The one difference is that nothing can stop a
thread whose lock was lost, so the thread must check for it (see `Lease.check`).

A transaction begins and ends in the body of a lock. Within one of Django, which can be seen, all
that is held, and `Event.set` and `Latch.count_down`, raise `RuntimeError`.
"""

from aiolock.sync._adoption import Adoption
from aiolock.sync._client import LockClient, connect
from aiolock.sync._group import Group, Membership, Shard, Shards
from aiolock.sync._jobs import Election, Once, Periodic
from aiolock.sync._lease import Flag, Lease, MultiLease, PathLease, Term
from aiolock.sync._locks import Lock, MultiLock, PathLock, RWLock, Semaphore
from aiolock.sync._meeting import Barrier, Event, Latch
from aiolock.sync._own_client import lock
from aiolock.sync._rate_limit import RateLimit

__all__ = [
    "Adoption",
    "Barrier",
    "Election",
    "Event",
    "Flag",
    "Group",
    "Latch",
    "Lease",
    "Lock",
    "LockClient",
    "Membership",
    "MultiLease",
    "MultiLock",
    "Once",
    "PathLease",
    "PathLock",
    "Periodic",
    "RWLock",
    "RateLimit",
    "Semaphore",
    "Shard",
    "Shards",
    "Term",
    "connect",
    "lock",
]


def _adopt() -> None:
    """Let tracebacks and reprs name each object as users import it, wherever it is defined."""
    for name in __all__:
        globals()[name].__module__ = __name__


_adopt()
del _adopt
