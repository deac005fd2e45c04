"""Everything aiolock raises.

::

    LockError
    ├── AcquireTimeout   (TimeoutError)          the lock did not become ours in the time given
    ├── LeaseLost                                the lock was taken from us while we held it
    ├── NotHeld          (RuntimeError)          this task holds no such lock
    ├── WouldDeadlock    (RuntimeError)          this task would wait for itself
    ├── LimitMismatch    (ValueError)            others use this name with another limit, or count
    ├── QueueFull                                as many wait already as ``max_waiters`` allows
    ├── StoreError       (ConnectionError)       the store did not say yes or no: nobody knows
    │   └── QuorumMismatch                       others use this server in another list of servers
    ├── Unsupported      (NotImplementedError)   the store does not offer this kind of lock
    └── ClientClosed     (RuntimeError)          the client is not open, not here, or not any more

Each is also the builtin in brackets, so code that knows nothing of aiolock can catch it. Wrong
arguments are plain ``ValueError`` and ``TypeError``, raised before anything is sent.
"""

from aiolock.store import Party


class LockError(Exception):
    """The base of every error that aiolock raises."""

    name: str = ""
    """The name of the lock it speaks of; empty where it speaks of none."""
    kind: str = ""
    """What that is: ``"lock"``, ``"semaphore"``, ``"latch"``…"""


class AcquireTimeout(LockError, TimeoutError):
    """The lock did not become ours in the time given; nothing is left in its queue."""

    waited: float = 0.0
    """For how many seconds it was waited for; 0.0 where it was only tried."""
    holders: tuple[Party, ...] = ()
    """Who held it when we left; empty where nobody did, or where it is not known."""


class LeaseLost(LockError):
    """The lock was taken from us while we held it: somebody else may hold it now.

    What the body did since is not protected by the lock; that is what ``lease.fence`` is for.
    """

    fence: int = 0
    """The fencing token of the grant that was lost."""


class NotHeld(LockError, RuntimeError):
    """The current task does not hold this lock, so there is nothing to release."""


class WouldDeadlock(LockError, RuntimeError):
    """The current task would wait for itself for ever.

    It holds this lock already; or it holds another one, for which a task of this client waits
    that, by whatever detour, holds this one. An `asyncio.timeout` that would end one of these waits
    is not seen: give the lock a ``timeout``.
    """


class LimitMismatch(LockError, ValueError):
    """Those who use a semaphore, latch or barrier must declare the same number; these do not."""


class QueueFull(LockError):
    """As many are waiting for the lock already as ``max_waiters`` allows."""


class StoreError(LockError, ConnectionError):
    """The store did not say yes or no, so nobody knows; the driver's error is ``__cause__``.

    Never raised for "somebody else has it". After it nothing is held, and what may have arrived
    at the store all the same is given back.
    """

    refused: bool = False
    """Whether the store has certainly not carried it out: it refused it, or never got it."""

    _under_way: bool = False
    """Whether it is waited for no more, but may still be answered."""


class QuorumMismatch(StoreError):
    """A server is a member of another quorum than this client says: see `connect`.

    All who use it must give the same list of servers, the same ``longest_ttl`` and ``durable``:
    else two majorities need not meet, and two may hold the same lock.
    """


class Unsupported(LockError, NotImplementedError):
    """The store does not offer what was described; it says why, and what there is instead.

    Raised where it is described (`LockClient.semaphore`, say), before anything is sent.
    """


class ClientClosed(LockError, RuntimeError):
    """The client is not open: not yet, not any more, or not in this process and event loop."""
