"""The work of an owner of the tables: make them, and let users use the locks."""

from __future__ import annotations

from typing import Final

import pymysql
from pymysql.constants import ER

from aiolock.errors import StoreError
from aiolock.stores.mysql import _schema
from aiolock.stores.mysql._errors import (
    DENIED,
    NO_SUCH_TABLE,
    NO_SUCH_USER,
    code,
    may_not_make,
    store_error,
)
from aiolock.stores.mysql._link import Link
from aiolock.stores.mysql._settings import Settings

_DENIED: Final = (*DENIED, ER.DBACCESS_DENIED_ERROR)


def create(settings: Settings, *roles: str) -> None:
    """Make the tables, and let these users use them. `StoreError` where that cannot be done."""
    link = Link(settings)
    try:
        link.connect()
        make(link, settings, grants=bool(roles))
        for role in roles:
            _admit(link, settings, role)
    except StoreError:
        raise
    except (pymysql.Error, OSError) as error:
        if code(error) in _DENIED:
            raise may_not_make(error, settings, link.account, grants=bool(roles)) from error
        raise store_error(error, settings, link.account, refused=True) from error
    finally:
        link.close()


def is_made(link: Link) -> bool:
    """Whether the tables are there, of this version or of a later one, and we may use them."""
    found, error = link.run_until("SELECT MAX(protocol) FROM aiolock_meta")
    if error is None:
        # What is written there is written last.
        (((protocol,),),) = found
        return protocol is not None and protocol >= _schema.PROTOCOL
    if code(error) in (*DENIED, NO_SUCH_TABLE):
        return False
    raise error


def make(link: Link, settings: Settings, *, grants: bool = False) -> None:
    """Make the tables; ``grants``: rights are to be granted to others afterwards."""
    _, error = link.run_until(*_schema.split(_schema.statements()))
    if error is not None:
        if code(error) in _DENIED:
            raise may_not_make(error, settings, link.account, grants=grants) from error
        raise error


def _admit(link: Link, settings: Settings, role: str) -> None:
    """Let this user use the locks, if it exists: no user is made here."""
    _, error = link.run_until(*_schema.split(_schema.rights(role)))
    if error is None:
        return
    if code(error) in NO_SUCH_USER:
        raise StoreError(
            f"MySQL at {settings.where}: there is no user {_schema.account(role)}, whom the locks"
            f" are to be for: {_instead(link, role)}"
        ) from error
    raise error


def _instead(link: Link, role: str) -> str:
    """The advice about a user who does not exist."""
    name = role.rpartition("@")[0] or role
    # Not every user may look.
    found, _ = link.run_until(f"SELECT host FROM mysql.user WHERE user = {_schema.quoted(name)}")
    if hosts := [host for (host,) in found[0]] if found else []:
        there = [f"--role {name}@{host}" for host in sorted(hosts)]
        return f"say which you mean, {' or '.join(there)}"
    return f"make it first (CREATE USER {_schema.account(role)} ...), or say --role NAME@HOST"
