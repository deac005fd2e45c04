"""Transactions of Django and locks: which of the two ends first."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from typing import Any, Final, overload

from django.db import connections, transaction

from aiolock.sync import Lease, Lock, MultiLease, MultiLock, PathLease, PathLock, Semaphore
from aiolock.sync.transactions import ignore_transactions, refuse_in_transaction

_MARK: Final = "_non_atomic_requests"
"""Where Django looks for the databases whose ``ATOMIC_REQUESTS`` a view is exempt from."""


@overload
def hold_until_commit(lock: Lock | Semaphore, *, using: str | None = None) -> Lease: ...


@overload
def hold_until_commit(lock: PathLock, *, using: str | None = None) -> PathLease: ...


@overload
def hold_until_commit(lock: MultiLock, *, using: str | None = None) -> MultiLease: ...


def hold_until_commit(
    lock: Lock | Semaphore | MultiLock | PathLock, *, using: str | None = None
) -> Lease | MultiLease:
    """Acquire a lock of `sync_client` within a transaction, and hold it until that has ended.

    Released after the commit, in the order of ``transaction.on_commit``; after a rollback; and, as
    a lock that PostgreSQL takes in a transaction, after a rollback to a savepoint that is older
    than the lock. What was written in between is seen by the next holder, or was never there. It
    returns the lease; errors are those of ``lock.acquire()``, with its ``timeout``.

    Where there is a choice, take the lock first, and begin the transaction in its body: this one
    waits with an open transaction, with its connection and the locks of its rows. Read after it
    what you change: at ``REPEATABLE READ`` and above, what was read before it may be of an older
    snapshot, and so may all that is read after. A loss of the lock stops neither the thread nor the
    commit: call ``lease.check()`` at the end of the transaction.

    `RuntimeError` if no ``atomic()`` of this database is open in this thread. In a `TestCase`
    nothing is committed: use ``captureOnCommitCallbacks(execute=True)``, or `TransactionTestCase`.

    :param using: the alias of the database; the default one, if None.
    """
    if not isinstance(lock, Lock | MultiLock | PathLock | Semaphore):
        raise TypeError(
            "hold_until_commit() takes a lock for threads, as sync_client().lock(...), not"
            f" {lock!r}"
        )
    connection = transaction.get_connection(using)
    if not connection.in_atomic_block:
        raise RuntimeError(
            f"{lock!r} is to be held until the commit, but no transaction of the database"
            f" {connection.alias!r} is open in this thread: use `with lock, transaction.atomic():`"
        )
    with ignore_transactions():
        lease = lock.acquire()
    transaction.on_commit(_End(lease), using, robust=True)
    return lease


class _End:
    """The end of a transaction: Django calls it after a commit, and drops it after a rollback.

    So nothing else may refer to it.
    """

    def __init__(self, lease: Lease | MultiLease) -> None:
        self._release = weakref.finalize(self, _release, lease)

    def __call__(self) -> None:
        """Release the lease, if that has not been done."""
        self._release()


def _release(lease: Lease | MultiLease) -> None:
    with ignore_transactions():  # after a rollback to a savepoint, one is still open
        for each in [lease] if isinstance(lease, Lease) else lease.leases.values():
            each.release_nowait()


class Outside(set[str]):
    """The exemption from ``ATOMIC_REQUESTS`` of a view that begins those transactions itself.

    Django sees one from all databases; the members are those that the view has asked for.
    """

    def __contains__(self, alias: object) -> bool:
        return True

    def asked_for(self, alias: str) -> bool:
        """Whether the view is exempt for other reasons than ours."""
        return super().__contains__(alias)


def begins_outside(view: Callable[..., Any], call: Callable[..., Any]) -> bool:
    """Let Django begin no transaction around ``call``, which calls ``view`` in one of its own.

    False if the view has been told already, as by another lock in it: that one begins it.
    """
    exempt: Iterable[str] = getattr(view, _MARK, ())
    if isinstance(exempt, Outside):
        return False
    setattr(call, _MARK, Outside(exempt))
    return True


def atomic_requests(request: Any) -> ExitStack:
    """Begin the transactions that Django has not begun around the view of this request."""
    match = getattr(request, "resolver_match", None)
    exempt = getattr(getattr(match, "func", None), _MARK, None)
    with ExitStack() as stack:
        if isinstance(exempt, Outside):
            for alias, database in connections.settings.items():
                if database["ATOMIC_REQUESTS"] and not exempt.asked_for(alias):
                    stack.enter_context(transaction.atomic(using=alias))
        return stack.pop_all()


def refuse_around(what: object) -> None:
    """`RuntimeError` if a transaction is open around a view that holds this."""
    refuse_in_transaction(
        what,
        instead="Put the decorator on the view that urls.py names, above @transaction.atomic: then"
        " ATOMIC_REQUESTS begins in its body. In a class, that is"
        ' @method_decorator(locked(...), name="dispatch")',
    )
