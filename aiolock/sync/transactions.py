"""Transactions of Django that are open in this thread: a lock must not be released before they end.

A lock that is entered within a transaction ends before it, and the next holder reads what was there
before. Django knows its transactions, so this is an error and not a lost update. There is no error
in a program that has not imported Django.
"""

from __future__ import annotations

import sys
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Final

__all__ = ["check_released", "ignore_transactions", "open_transaction", "refuse_in_transaction"]

_ignored: Final = ContextVar("aiolock.transactions.ignored", default=False)


@contextmanager
def ignore_transactions() -> Generator[None, None, None]:
    """Let locks be taken and released while a transaction of Django is open.

    For a lock that protects something else than the database: a printer, the rate of calls of an
    API. Without this, `aiolock.sync` raises `RuntimeError` there.
    """
    token = _ignored.set(True)
    try:
        yield
    finally:
        _ignored.reset(token)


def refuse_in_transaction(
    what: object,
    otherwise: str = "it would be released",
    instead: str = "Take the lock first, and begin the transaction in its body:"
    " `with lock, transaction.atomic(): ...`, in a view with @transaction.non_atomic_requests",
) -> None:
    """`RuntimeError` if a transaction is open in this thread."""
    if (database := open_transaction()) is not None:
        raise RuntimeError(
            f"{what!r} is used in a transaction of the database {database!r} (ATOMIC_REQUESTS, or"
            f" atomic(), or no autocommit): {otherwise} before that is committed, and others would"
            f" not see what it has written. {instead}. If it is about something else than this"
            " database:"
            " `with aiolock.integrations.django.ignore_transactions(): ...`"
        )


def check_released(what: object, *, failing: bool | None = None) -> None:
    """`RuntimeError`, which rolls it back, if a transaction is open when a lock was released.

    None is raised beside the error of a body that is ``failing``. Without it, an error that is
    being handled counts as that: it may be on its way through a ``finally``.
    """
    if failing is None:
        failing = sys.exc_info()[0] is not None
    if not failing and (database := open_transaction()) is not None:
        raise RuntimeError(
            f"{what!r} was released in a transaction of the database {database!r} that is not"
            " committed yet, and others would not see what it has written: end the transaction"
            " first, and then release the lock"
        )


def open_transaction() -> str | None:
    """The alias of a database with a transaction of this thread; None if there is none."""
    django: Any = sys.modules.get("django.db")
    if django is None or _ignored.get():
        return None
    connections = getattr(django, "connections", None)
    settings = getattr(sys.modules.get("django.conf"), "settings", None)
    if connections is None or settings is None or not settings.configured:
        return None  # it is being imported, or not in use
    for connection in connections.all(initialized_only=True):
        if _is_open(connection):
            alias: str = connection.alias
            return alias
    return None


def _is_open(connection: Any) -> bool:
    if connection.in_atomic_block:
        # The blocks of a `TestCase` stand for the test's database; `durable` ignores them as well.
        blocks = connection.atomic_blocks
        return not all(getattr(block, "_from_testcase", False) for block in blocks)
    if connection.connection is None or connection.autocommit:
        return False
    # Without autocommit a query begins a transaction, and Django does not know of it.
    driver = connection.connection
    if (info := getattr(driver, "info", None)) is not None:  # psycopg
        return bool(info.transaction_status)
    return bool(getattr(driver, "in_transaction", True))  # sqlite3; others do not tell
