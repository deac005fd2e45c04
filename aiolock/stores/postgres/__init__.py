"""Locks in PostgreSQL 13 and newer: the extra ``postgres``."""

from __future__ import annotations

try:
    import psycopg
except ImportError as error:
    raise ImportError(
        "locks in PostgreSQL need psycopg 3: pip install 'aiolock-redis[postgres]'"
    ) from error

from aiolock.stores.postgres import _schema, _settings
from aiolock.stores.postgres._errors import not_made, store_error
from aiolock.stores.postgres._store import PostgresStore

__all__ = ["PostgresStore", "create_schema", "from_url", "schema"]


def from_url(url: str, prefix: str) -> PostgresStore:
    """A store in the database at ``url``; `ValueError` for a URL that libpq does not take."""
    return PostgresStore(_settings.from_url(url), prefix)


def schema(*roles: str) -> str:
    """What makes the schema, for its owner; these roles may use the locks, and nothing else."""
    return _schema.statements() + "".join([_schema.rights(role) for role in roles])


def create_schema(url: str, *roles: str) -> str:
    """Run that, in one transaction; where it was. `StoreError` where it cannot be done."""
    settings = _settings.from_url(url)
    making = False
    try:
        with psycopg.connect(settings.listens) as connection:
            making = True
            connection.execute("SET client_min_messages = warning")
            connection.execute(schema(*roles).encode())
    except psycopg.Error as error:
        why = not_made(error) if making else error
        raise store_error(why, settings.place, refused=True) from error
    return settings.place.where
