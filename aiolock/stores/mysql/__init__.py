"""Locks in MySQL 8 and MariaDB 10.6 and newer: the extra ``mysql``."""

from __future__ import annotations

try:
    import pymysql
except ImportError as error:
    raise ImportError(
        "locks in MySQL or MariaDB need PyMySQL: pip install 'aiolock-redis[mysql]'"
    ) from error

from aiolock.stores.mysql import _schema, _settings
from aiolock.stores.mysql._errors import store_error
from aiolock.stores.mysql._link import Link
from aiolock.stores.mysql._store import MySQLStore

__all__ = ["MySQLStore", "create_schema", "from_url", "schema"]


def from_url(url: str, prefix: str) -> MySQLStore:
    """A store in the database at ``url``; `ValueError` says what is wrong with a URL."""
    return MySQLStore(_settings.from_url(url), prefix)


def schema(*roles: str) -> str:
    """The SQL of the tables, for their owner; it lets these users use the locks and no more."""
    return _schema.statements() + "".join([_schema.rights(role) for role in roles])


def create_schema(url: str, *roles: str) -> str:
    """Run that SQL; returns where. `StoreError` if it cannot be done."""
    settings = _settings.from_url(url)
    link = Link(settings)
    try:
        link.connect()
        link.run(*_schema.split(schema(*roles)))
    except (pymysql.Error, OSError) as error:
        raise store_error(error, settings, refused=True) from error
    finally:
        link.close()
    return settings.where
