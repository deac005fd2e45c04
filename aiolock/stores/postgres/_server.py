"""The other end of a connection: the server, and whose session it is.

A connection may lead to a pooler, whose sessions others use as well. So nothing is set in a session
before it is certain that it is ours.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable
from typing import Any, Final, NoReturn

import psycopg

from aiolock.stores.postgres._errors import Failed
from aiolock.stores.postgres._link import Connection
from aiolock.stores.postgres._schema import quoted

OLDEST: Final = 13
"""The first supported version of PostgreSQL."""
WHICH: Final = "SELECT pg_catalog.version(), pg_catalog.pg_backend_pid()"
"""The SQL for `check_version`, with the process that serves the session; any server answers it."""
WRITES: Final = (
    "SELECT pg_catalog.current_setting('transaction_read_only'), pg_catalog.pg_is_in_recovery(),"
    " current_user::pg_catalog.text, pg_catalog.current_database()::pg_catalog.text,"
    " (SELECT source FROM pg_catalog.pg_settings"
    " WHERE name OPERATOR(pg_catalog.=) 'default_transaction_read_only')"
)
"""The SQL for `check_row`."""
_TRANSACTION: Final = (
    "SELECT pg_catalog.pg_backend_pid(), virtualtransaction FROM pg_catalog.pg_locks"
    " WHERE pid OPERATOR(pg_catalog.=) pg_catalog.pg_backend_pid()"
    " AND locktype OPERATOR(pg_catalog.=) 'virtualxid'"
)
"""The SQL for the process that serves a transaction, and its number there: "backend/number"."""
_OTHERS: Final = re.compile(
    r"-YB-|Yugabyte|Cockroach|Redshift|Greenplum|Cloudberry|Materialize|RisingWave|QuestDB|CrateDB"
    r"|Gauss|DSQL|Spanner",
    re.IGNORECASE,
)
"""Servers that speak PostgreSQL's protocol, and lack its advisory locks, LISTEN or row locks."""
_ELSEWHERE: Final = (1, 2, 1, 2, 3)
"""The numbers of transactions elsewhere between two of a session that might be shared.

A pooler gives the next transaction the session that was idle for the shortest time, or for the
longest. With one and with two in between, neither order always leads back to the same session.
"""
_GAPS: Final = 2
"""Gaps between the numbers of our transactions that prove that others have some, too: one may be
the server's own."""


def check_version(version: str) -> None:
    """Raise `Failed` unless its version string is that of a supported PostgreSQL."""
    short = " ".join(version.split()).partition(" on ")[0][:80]
    number = re.match(r"PostgreSQL (\d+)", version)
    if number is None or _OTHERS.search(version):
        raise Failed(f"{short} is not PostgreSQL", "AL006")
    if int(number[1]) < OLDEST:
        raise Failed(f"{short} is too old", "AL007")


def check_row(row: Any) -> None:
    """Raise `Failed`, with what to do, where transactions are read-only; ``row``: of `WRITES`."""
    read_only, standby, role, database, source = row
    if read_only != "on":
        return
    if standby:
        raise Failed("it is a standby, which does not write", "25006")
    setting = "default_transaction_read_only"
    ours, its = quoted(role), quoted(database)
    whose, where = {
        "user": (f"of the role {role}", f"ALTER ROLE {ours} RESET {setting}"),
        "database": (f"in the database {database}", f"ALTER DATABASE {its} RESET {setting}"),
        "database user": (
            f"of the role {role} in the database {database}",
            f"ALTER ROLE {ours} IN DATABASE {its} RESET {setting}",
        ),
        "global": ("of all roles", f"ALTER ROLE ALL RESET {setting}"),
        "client": ("of this connection", "options= in the URL, or the variable PGOPTIONS"),
        "session": ("of this session of a pooler", "whoever uses the same pool has set it there"),
    }.get(source, ("of this server", f"ALTER SYSTEM RESET {setting}; SELECT pg_reload_conf()"))
    failure = Failed(f"transactions {whose} are read-only by default", "AL004")
    failure.advice = f"locks need {setting} = off: {where}"
    raise failure


async def is_ours(connection: Connection) -> bool:
    """Whether the session is certainly ours; raises `Failed` if the server is not supported.

    A server tells each connection which process serves it, for requests to cancel. A pooler
    names none, or one of its own making: it answers such requests itself.
    """
    version, pid = await _row(connection, WHICH)
    check_version(version)
    return bool(pid == connection.info.backend_pid)


async def check_writes(connection: Connection) -> None:
    """Raise `Failed`, with what to do, if its transactions are read-only."""
    check_row(await _row(connection, WRITES))


async def check_kept_beside(connection: Connection, conninfo: str) -> None:
    """`check_kept`, with a connection that is made for it."""
    async with await psycopg.AsyncConnection[Any].connect(conninfo, autocommit=True) as other:
        await check_kept(connection, lambda: other.execute("SELECT 1"))


async def check_kept(connection: Connection, elsewhere: Callable[[], Awaitable[object]]) -> None:
    """Raise `Failed` if others have transactions in the session of this connection, too.

    For a connection that leads to a pooler. ``elsewhere`` runs a transaction on another connection
    to it. Nothing is changed in any session.
    """
    gaps = 0
    pid, last = await _transaction(connection)
    for times in _ELSEWHERE:
        for _ in range(times):
            await elsewhere()
        now_pid, now = await _transaction(connection)
        gaps += now != last + 1
        if now_pid != pid or gaps >= _GAPS:
            _refuse()
        last = now


def _refuse() -> NoReturn:
    raise Failed("a pooler is in front of it, where others use the same sessions", "AL005")


async def _transaction(connection: Connection) -> tuple[int, int]:
    pid, number = await _row(connection, _TRANSACTION)
    return pid, int(number.partition("/")[2])


async def _row(connection: Connection, statement: str) -> Any:
    row = await (await connection.execute(statement.encode())).fetchone()
    if row is None:
        raise Failed("an empty answer")
    return row
