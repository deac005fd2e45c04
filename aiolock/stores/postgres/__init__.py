"""Locks in PostgreSQL 13 and newer: the extra ``postgres``.

The schema is a text, for which no driver is needed: it may be printed where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from aiolock.errors import StoreError
from aiolock.stores.postgres import _schema

if TYPE_CHECKING:
    from aiolock.stores.postgres._settings import Settings
    from aiolock.stores.postgres._store import PostgresStore

__all__ = ["create_schema", "facts", "from_url", "schema"]

_TRIES: Final = 5
"""The most times to try to make the schema, while clients use the one that is there."""


def from_url(url: str, prefix: str) -> PostgresStore:
    """A store in the database at ``url``; `ValueError` for a URL that libpq does not take."""
    _check_driver()
    from aiolock.stores.postgres import _settings
    from aiolock.stores.postgres._store import PostgresStore

    return PostgresStore(_settings.from_url(url), prefix)


def schema(*roles: str) -> str:
    """The SQL of the schema, for its owner; it lets these roles use the locks and no more."""
    return _schema.statements() + "".join([_schema.rights(role) for role in roles])


def create_schema(url: str, *roles: str) -> str:
    """Run that SQL, in one transaction; returns where. `StoreError` if it cannot be done."""
    _check_driver()
    from aiolock.stores.postgres import _settings
    from aiolock.stores.postgres._errors import BUSY, failed, is_one_of

    settings = _settings.from_url(url)
    for _ in range(_TRIES - 1):
        try:
            _create_schema(settings, *roles)
        except StoreError as error:
            # Calls that are under way lock the same tables, in another order.
            if not is_one_of(failed(error.__cause__ or error), BUSY):
                raise
        else:
            return settings.listens_at.where
    _create_schema(settings, *roles)
    return settings.listens_at.where


def _create_schema(settings: Settings, *roles: str) -> None:
    import psycopg

    from aiolock.stores.postgres import _server
    from aiolock.stores.postgres._errors import Failed, not_made, shown_of, store_error

    making = False
    try:
        with psycopg.connect(settings.listens) as connection:
            settings.listens_at.connected(connection.info)
            connection.prepare_threshold = None
            which = connection.execute(_server.WHICH.encode()).fetchone()
            _server.check_version(str((which or [""])[0]))
            _server.check_row(connection.execute(_server.WRITES.encode()).fetchone())
            making = True
            # For this transaction only: a pooler gives the session to others afterwards.
            connection.execute(f"SET LOCAL {_schema.SEARCH_PATH}".encode())
            connection.execute("SET LOCAL client_min_messages = warning")
            connection.execute(schema(*roles).encode())
    except (psycopg.Error, Failed) as error:
        clean = shown_of(settings.listens).error(error)
        why = not_made(clean) if making else clean
        raise store_error(why, settings.listens_at, refused=True) from clean


async def facts(url: str) -> dict[str, str]:
    """The server's version and settings, for a report; no secrets. The driver's error if it cannot
    be asked.
    """
    _check_driver()
    from aiolock.stores.postgres import _settings
    from aiolock.stores.postgres._facts import facts_of

    return await facts_of(_settings.from_url(url))


def _check_driver() -> None:
    try:
        import psycopg as psycopg
    except ImportError as error:
        raise ImportError(
            "locks in PostgreSQL need psycopg 3: pip install 'aiolock-redis[postgres]'"
        ) from error
