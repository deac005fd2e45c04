"""No locks, but what the stores in databases are compared with: bare statements and procedures."""

from __future__ import annotations

from dataclasses import replace

from aiolock.stores.postgres._settings import PINNED
from benchmarks.catalogue import Contestant
from benchmarks.databases import Servers

DELAY = 2000
"""Microseconds that each commit of the writers takes more: `commit_delay`."""

# As aiolock asks for a free lock: a claim of 3 s, a lease of 30 s.
_FORM = "'{3000,0,0,0,0,0,0,0,0,0,0,0}'"
_ACQUIRE = f"SELECT aiolock.acquire($1, 'bare', 1, {_FORM}, 30000, 0, true, 0, 0)"
_RELEASE = "SELECT aiolock.release($1, 'bare', 1, split_part($2, ' ', 2)::bigint, true, 0, true)"
_FLUSH = "SELECT aiolock.flush()"

TWO_TRIPS = Contestant(
    "two bare round trips, libpq",
    "pipeline",
    settings={"enter": ["SELECT 1"], "leave": ["SELECT 1"]},
    remark="a prepared `SELECT 1`, twice, on a connection as aiolock has it: no lock",
    waits=False,
)
A_SYNC_EACH = Contestant(
    "aiolock’s functions, a Sync each",
    "pipeline",
    settings={"enter": [_ACQUIRE], "leave": [_RELEASE, _FLUSH]},
    remark="on one connection, flushed; nothing is gathered",
    waits=False,
)
ASYNCPG_POOL = Contestant(
    "aiolock’s functions, asyncpg 0.32.0, a pool of 8",
    "asyncpg_pool",
    ("asyncpg==0.32.0",),
    settings={"enter": _ACQUIRE, "leave": _RELEASE},
    remark="flushed",
    waits=False,
)
NOT_NOTIFIED = Contestant(
    "writers that notify nobody",
    "pipeline",
    settings={"enter": [], "leave": ["SELECT write_and_push($1, 'me')", _FLUSH], "each": True},
    remark=f"each has a connection and a row; `commit_delay={DELAY}`",
    waits=False,
)
NOTIFIED = replace(
    NOT_NOTIFIED,
    title="writers that notify in a transaction of its own, as aiolock",
    settings={"enter": [], "leave": ["SELECT write_and_push($1, 'ear0')", _FLUSH], "each": True},
)
INLINE = replace(
    NOT_NOTIFIED,
    title="writers that notify in the transaction that writes",
    settings={"enter": [], "leave": ["SELECT write_and_push($1, 'ear0')"], "each": True},
)
WRITERS = (NOT_NOTIFIED, NOTIFIED, INLINE)
PROCEDURES = Contestant(
    "stored procedures, aiomysql 0.3.2, a pool of 8",
    "aiomysql_pool",
    ("aiomysql==0.3.2",),
    settings={"enter": "CALL bare_acquire(%s)", "leave": "CALL bare_release(%s)"},
    remark="in MariaDB, a call for each: a lease, a fence and a queue, for a lock only",
    waits=False,
)
IN_A_ROW = replace(
    PROCEDURES,
    title="stored procedures, aiomysql 0.3.2, one connection",
    settings={**PROCEDURES.settings, "connections": 1},
)
BARE_INSERT = Contestant(
    "a bare committed insert",
    "aiomysql_pool",
    ("aiomysql==0.3.2",),
    settings={"enter": "INSERT INTO bare_rows (name) VALUES (%s)"},
    remark="in MariaDB: no lock",
    waits=False,
)
ON_POSTGRES = (TWO_TRIPS, A_SYNC_EACH, ASYNCPG_POOL, *WRITERS)
ON_MARIADB = (PROCEDURES, IN_A_ROW, BARE_INSERT)

_POSTGRES = (
    "CREATE ROLE bare LOGIN SUPERUSER",
    *(f"ALTER ROLE bare SET {name} = {value}" for name, value in PINNED.items()),
    "CREATE ROLE writer LOGIN SUPERUSER",
    f"ALTER ROLE writer SET commit_delay = {DELAY}",
    "ALTER ROLE writer SET commit_siblings = 0",
    "ALTER ROLE writer SET bare.flushed = on",
    "CREATE ROLE inline_writer LOGIN SUPERUSER",
    f"ALTER ROLE inline_writer SET commit_delay = {DELAY}",
    "ALTER ROLE inline_writer SET commit_siblings = 0",
    "CREATE TABLE writes (name bytea PRIMARY KEY, count int NOT NULL) WITH (fillfactor = 50)",
    """
    CREATE FUNCTION write_and_push(n bytea, who text) RETURNS text LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM aiolock._begin(n, coalesce(current_setting('bare.flushed', true), '') = 'on');
        INSERT INTO writes AS w VALUES (n, 1) ON CONFLICT (name) DO UPDATE SET count = w.count + 1;
        PERFORM aiolock._push(n, who, 'me', 'done 1');
        RETURN aiolock._own();
    END $$
    """,
)
_MARIADB = (
    "CREATE TABLE bare_rows (id BIGINT AUTO_INCREMENT PRIMARY KEY, name VARBINARY(200) NOT NULL)",
    """
    CREATE TABLE bare_locks (
        name VARBINARY(200) PRIMARY KEY, fence BIGINT NOT NULL, holder BIGINT, ends BIGINT NOT NULL)
    """,
    """
    CREATE TABLE bare_waiters (
        name VARBINARY(200), ticket BIGINT, client BIGINT NOT NULL, PRIMARY KEY (name, ticket))
    """,
    """
    CREATE PROCEDURE bare_acquire(n VARBINARY(200))
    BEGIN
        DECLARE f, h, t, us BIGINT;
        START TRANSACTION;
        SELECT fence, holder INTO f, h FROM bare_locks WHERE name = n FOR UPDATE;
        IF f IS NULL THEN
            COMMIT;
            INSERT IGNORE INTO bare_locks VALUES (n, 0, NULL, 0);
            START TRANSACTION;
            SELECT fence, holder INTO f, h FROM bare_locks WHERE name = n FOR UPDATE;
        END IF;
        SET us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
        SELECT MAX(ticket) INTO t FROM bare_waiters WHERE name = n;
        IF h IS NULL AND t IS NULL THEN
            SET f = GREATEST(us, f + 1);
            UPDATE bare_locks SET fence = f, holder = 1, ends = us + 30000000 WHERE name = n;
        ELSE
            SET f = 0;
            INSERT INTO bare_waiters VALUES (n, GREATEST(us, COALESCE(t + 1, 0)), 1);
        END IF;
        COMMIT;
        SELECT f;
    END
    """,
    """
    CREATE PROCEDURE bare_release(n VARBINARY(200))
    BEGIN
        DECLARE f, t, c, us BIGINT;
        START TRANSACTION;
        SELECT fence INTO f FROM bare_locks WHERE name = n AND holder = 1 FOR UPDATE;
        SET us = TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6));
        SELECT ticket, client INTO t, c FROM bare_waiters WHERE name = n ORDER BY ticket LIMIT 1;
        DELETE FROM bare_waiters WHERE name = n AND ticket = t;
        UPDATE bare_locks SET holder = c, fence = IF(c IS NULL, f, GREATEST(us, f + 1)),
            ends = us + 3000000 WHERE name = n;
        COMMIT;
        SELECT f;
    END
    """,
)


def prepare(servers: Servers) -> None:
    """Make the roles, tables and procedures for these."""
    servers.postgres.execute("CREATE DATABASE elsewhere")
    servers.postgres.execute(";".join(_POSTGRES))
    with servers.mariadb.connect() as connection, connection.cursor() as cursor:
        for statement in _MARIADB:
            cursor.execute(statement)


def targets(servers: Servers) -> dict[Contestant, dict[str, object]]:
    """Each of them, and where its server is."""
    users = dict.fromkeys(WRITERS, "writer") | {INLINE: "inline_writer"}
    postgres = servers.postgres
    return {
        **{each: {"url": postgres.url(users.get(each, "bare"))} for each in ON_POSTGRES},
        **{each: {"port": servers.mariadb.port} for each in ON_MARIADB},
    }
