"""The errors that aiolock raises.

::

    LockError
    ├── AcquireTimeout   (TimeoutError)          the lock did not become ours in the time given
    ├── LeaseLost                                the lock was taken from us while we held it
    ├── TokenSpent                               the token of a detached lease is worth nothing
    ├── NotHeld          (RuntimeError)          this task holds no such lock
    ├── WouldDeadlock    (RuntimeError)          this task would wait for itself
    ├── LimitMismatch    (ValueError)            others use this name with another limit, or count
    ├── QueueFull                                as many wait already as ``max_waiters`` allows
    ├── StoreError       (ConnectionError)       the store did not answer, or refused
    │   ├── ResultGone                           the work is done, but the store has no result of it
    │   └── QuorumMismatch                       others use this server in another list of servers
    ├── Unsupported      (NotImplementedError)   the store does not offer this kind of lock
    └── ClientClosed     (RuntimeError)          the client is not open, not here, or not any more

Each is also the builtin in brackets, so code that knows nothing of aiolock can catch it. Wrong
arguments raise plain ``ValueError`` and ``TypeError``, before anything is sent.
"""

from aiolock.protocol import Participant


class LockError(Exception):
    """The base of all errors that aiolock raises."""

    name: str = ""
    """The name of the lock that the error is about; empty if it is not about one lock."""
    kind: str = ""
    """The kind of that lock: ``"lock"``, ``"semaphore"``, ``"latch"``…"""


class AcquireTimeout(LockError, TimeoutError):
    """The lock did not become ours in the time given; nothing is left in its queue."""

    waited: float = 0.0
    """How many seconds the caller waited; 0.0 if it only tried."""
    holders: tuple[Participant, ...] = ()
    """The holders at the time of the error, 16 at most; empty if there were none, or they are not
    known. If the acquisition only tried, the holder whose lease ends first."""
    more_holders: int = 0
    """How many more holders there were; 0 if it only tried."""
    retry_after: float | None = None
    """For a rate limit: the seconds in which the tokens are there, if nobody takes them before."""


class LeaseLost(LockError):
    """The lock was lost while we held it: another client may hold it now.

    The lock does not protect what the body has done since then. `Lease.fence` does, if the storage
    checks it.
    """

    fence: int = 0
    """The fencing token of the grant that was lost."""
    closed: bool = False
    """It was lost because the client that held it was closed, as when its program ends."""


class TokenSpent(LockError):
    """The token of a detached lease is worth nothing any more: see `LockClient.adopt`.

    It was adopted or discarded before, its time has ended, or somebody broke the lock.
    """

    fence: int = 0
    """The fencing token of the lease that was detached."""


class NotHeld(LockError, RuntimeError):
    """The current task does not hold this lock, so there is nothing to release."""


class WouldDeadlock(LockError, RuntimeError):
    """The current task would wait for itself for ever.

    It holds this lock already; or it holds another lock for which a task of this client waits,
    directly or through further tasks, and one of those tasks holds this lock. An `asyncio.timeout`
    around one of these waits is not taken into account: give the lock a ``timeout``.

    A task holds every lock that it has acquired, even if it has given the lease to another task.
    But in a cycle of several tasks, that other task may release the lease. So there, a lock counts
    only in the body of an ``async with``; otherwise the cycle is only logged, after a second.
    """


class LimitMismatch(LockError, ValueError):
    """All users of a semaphore, rate limit, latch or barrier declare the same; these do not."""


class QueueFull(LockError):
    """As many are waiting for the lock already as ``max_waiters`` allows."""


class StoreError(LockError, ConnectionError):
    """The store did not answer, or refused; the driver's error is ``__cause__``.

    Without an answer, the outcome is unknown. Never raised because another client has the lock.
    After it nothing is held: if the command did reach the store, its grant is given back.
    """

    refused: bool = False
    """Whether the store has certainly not carried the command out: refused, or never received."""

    misconfigured: bool = False
    """Whether it lasts until the configuration is changed: a password, a permission, a version.

    Trying again does not help then. Also false if the store does not know.
    """

    _under_way: bool = False
    """Whether the store may still carry out the command, whose answer is not awaited any more."""


class ResultGone(StoreError):
    """The work is done already, but the store has no result of it: see `Once.outcome`.

    The result was lost, or the work was done by ``async with``, which has none. For a caller that
    needs no result, that is a success.
    """


class QuorumMismatch(StoreError):
    """A server is a member of another quorum than that of this client: see `connect`.

    All its users must give the same list of servers, the same ``longest_ttl`` and ``durable``.
    Otherwise two majorities may have no server in common, and two clients may hold the same lock.
    """

    misconfigured = True


class Unsupported(LockError, NotImplementedError):
    """The store does not offer this kind of lock; the text explains why, and names an alternative.

    Raised by the method that describes the lock (such as `LockClient.semaphore`), before anything
    is sent.
    """


class ClientClosed(LockError, RuntimeError):
    """The client is not open: not yet, no longer, or not in this process and event loop."""

    closed: bool = False
    """Whether it was closed, as when its program ends. If not, it has not been opened here."""

    def __init__(self, *args: object, closed: bool = False) -> None:
        super().__init__(*args)
        self.closed = closed
