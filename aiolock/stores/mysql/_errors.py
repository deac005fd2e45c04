"""The texts of a `StoreError` about the server: where it is, what is wrong, and what to do."""

from __future__ import annotations

from typing import Final

import pymysql
from pymysql.constants import CR, ER

from aiolock.errors import StoreError
from aiolock.stores.mysql._schema import rights, rights_of_an_owner
from aiolock.stores.mysql._settings import Settings

_KILLED: Final = 1927  # MariaDB: the connection was killed
_IDLE: Final = 4031  # MySQL: it was idle for too long
_READ_ONLY: Final = (ER.OPTION_PREVENTS_STATEMENT, 1792, 1836)
_LOST: Final = (
    *(CR.CR_CONNECTION_ERROR, CR.CR_CONN_HOST_ERROR, CR.CR_SERVER_GONE_ERROR, CR.CR_SERVER_LOST),
    *(CR.CR_SERVER_LOST_EXTENDED, CR.CR_MALFORMED_PACKET, CR.CR_COMMANDS_OUT_OF_SYNC),
    *(ER.SERVER_SHUTDOWN, ER.NET_READ_ERROR, ER.NET_READ_INTERRUPTED, _KILLED, _IDLE),
    *(ER.CON_COUNT_ERROR, ER.TOO_MANY_USER_CONNECTIONS, *_READ_ONLY),
)
"""Codes after which another connection may help: to this server, or to its successor."""
_IN_THE_WAY: Final = (ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK, ER.QUERY_INTERRUPTED)
"""Codes of a conflict with others that passes; an ended statement also notifies a listener."""
MAY_NOT_KILL: Final = (ER.KILL_DENIED_ERROR, ER.SPECIFIC_ACCESS_DENIED_ERROR)
"""Codes for a KILL of another user's connection."""
NO_SUCH_THREAD: Final = ER.NO_SUCH_THREAD
DENIED: Final = (ER.TABLEACCESS_DENIED_ERROR, ER.COLUMNACCESS_DENIED_ERROR)
"""Codes for a right that is missing to a table."""
NO_SUCH_USER: Final = (ER.PASSWORD_NO_MATCH, ER.CANT_CREATE_USER_WITH_GRANT)
"""Codes for a GRANT to a user who does not exist."""
NO_SUCH_TABLE: Final = ER.NO_SUCH_TABLE
_MISCONFIGURED: Final = (
    *(ER.ACCESS_DENIED_ERROR, ER.DBACCESS_DENIED_ERROR, ER.BAD_DB_ERROR, ER.NO_SUCH_TABLE),
    *(*DENIED, 1665),
)
"""Codes that last until a password, a right, the tables or the binary log is changed."""
_INIT: Final = "run `aiolock init-db URL` as an owner of the database"
_ADVICE: Final = {
    ER.ACCESS_DENIED_ERROR: "see the user and the password in the URL",
    ER.DBACCESS_DENIED_ERROR: "this user may not use the database: see the name; as an owner,"
    " `aiolock init-db URL --role USER` gives what it takes",
    ER.BAD_DB_ERROR: "the database is not there: see the URL",
    ER.NO_SUCH_TABLE: f"aiolock's tables are not there: {_INIT}",
    ER.BAD_FIELD_ERROR: "aiolock's tables are of an earlier version: as their owner, remove them"
    " while nobody uses them, and run `aiolock init-db URL`",
    ER.CON_COUNT_ERROR: "it takes no more connections: each client needs two (max_connections)",
    ER.TOO_MANY_USER_CONNECTIONS: "this user may have no more connections: each client needs two",
    ER.LOCK_WAIT_TIMEOUT: "a row of aiolock's tables was locked for too long: find the session"
    " that does it (SHOW ENGINE INNODB STATUS)",
    ER.NET_PACKET_TOO_LARGE: "what is known of one name, its queue perhaps or a value, is longer"
    " than a packet may be: raise max_allowed_packet",
    1665: "let it write its binary log by rows (binlog_format=ROW)",
    **dict.fromkeys(_READ_ONLY, "it is read-only, a replica perhaps: connect to the primary"),
}


def code(error: BaseException) -> int:
    """The number of an error of the server or of PyMySQL; 0 if it has none."""
    number = error.args[0] if isinstance(error, pymysql.Error) and error.args else 0
    return number if isinstance(number, int) else 0


def is_lost(error: BaseException) -> bool:
    """Whether the connection is of no more use.

    That is so when the network failed, or when PyMySQL no longer understands the server.
    """
    return not code(error) or code(error) in _LOST


def is_in_the_way(error: BaseException) -> bool:
    """Whether a conflict with others made it fail, which passes; it was rolled back."""
    return code(error) in _IN_THE_WAY


def is_too_long(error: BaseException) -> bool:
    """Whether a statement is longer than the server takes; the connection may be up."""
    return code(error) == ER.NET_PACKET_TOO_LARGE


def is_misconfigured(error: BaseException) -> bool:
    """Whether it lasts until the configuration is changed, here or at the server."""
    return code(error) in _MISCONFIGURED


def store_error(
    error: BaseException, settings: Settings, account: str, *, refused: bool
) -> StoreError:
    """The error that the caller gets.

    ``account`` is the user as the server knows it; ``refused``: nothing was done.
    """
    if isinstance(error, StoreError):
        error.refused = refused
        return error
    number = code(error)
    advice = _ADVICE.get(number, "")
    if not number and isinstance(error, OSError) and not isinstance(error, StoreError):
        advice = "see host and port in the URL, and whether the server runs"
    if number in DENIED:
        advice = "this user lacks a right. As the owner: " + " ".join(rights(account).split())
    result = _error(error, settings, advice)
    result.refused = refused
    return result


def may_not_make(
    error: BaseException, settings: Settings, account: str, *, grants: bool
) -> StoreError:
    """The error for a user who may not make the tables, or not grant rights to others."""
    needed = rights_of_an_owner(settings.database, account, grants=grants)
    advice = f"who makes the tables needs more: as an administrator, {needed}"
    result = _error(error, settings, advice)
    result.refused = True
    return result


def _error(error: BaseException, settings: Settings, advice: str) -> StoreError:
    text = f"MySQL at {settings.where}: {_text(error)}"
    result = StoreError(f"{text}: {advice}" if advice else text)
    result.__cause__ = error
    result.misconfigured = is_misconfigured(error)
    return result


def _text(error: BaseException) -> str:
    said = error.args[1] if isinstance(error, pymysql.Error) and len(error.args) > 1 else error
    return " ".join(str(said).split()) or type(error).__name__
