"""Locks in MySQL 8 and MariaDB 10.6 and newer: the extra ``mysql``.

The schema is a text, for which no driver is needed: it may be printed where there is none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from aiolock.stores.mysql import _schema

if TYPE_CHECKING:
    from aiolock.stores.mysql._store import MySQLStore

__all__ = ["create_schema", "facts", "from_url", "schema"]


def from_url(url: str, prefix: str) -> MySQLStore:
    """A store in the database at ``url``; `ValueError` says what is wrong with a URL."""
    _check_driver()
    from aiolock.stores.mysql import _settings
    from aiolock.stores.mysql._store import MySQLStore

    return MySQLStore(_settings.from_url(url), prefix)


def schema(*roles: str) -> str:
    """The SQL of the tables, for their owner; it lets these users use the locks and no more."""
    return _schema.statements() + "".join([_schema.rights(role) for role in roles])


def create_schema(url: str, *roles: str) -> str:
    """Run that SQL; returns where. `StoreError` if it cannot be done, or a user does not exist."""
    _check_driver()
    from aiolock.stores.mysql import _owner, _settings

    settings = _settings.from_url(url)
    _owner.create(settings, *roles)
    return settings.where


async def facts(url: str) -> dict[str, str]:
    """The server's version and settings, for a report; no secrets. The driver's error if it cannot
    be asked.
    """
    _check_driver()
    from aiolock.stores.mysql import _settings
    from aiolock.stores.mysql._facts import facts_of

    return await facts_of(_settings.from_url(url))


def _check_driver() -> None:
    try:
        import pymysql as pymysql
    except ImportError as error:
        raise ImportError(
            "locks in MySQL or MariaDB need PyMySQL: pip install 'aiolock-redis[mysql]'"
        ) from error
