"""What the page on security says of rights: that they are enough is tested with each store."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pymysql
import pytest

import aiolock
from aiolock.stores.mysql import _schema as mysql_schema
from aiolock.stores.postgres import _schema as postgres_schema
from tests.support import etcds
from tests.support.databases import MariaDBServer, PostgresServer
from tests.support.etcds import EtcdServer
from tests.support.failures import Peek, check_works, take
from tests.support.servers import RedisServer
from tests.support.worlds import asking


async def test_postgres_role_can_use_locks_and_reaches_no_table(
    postgres_server: PostgresServer, prefix: str
) -> None:
    """The role of an application calls functions, and reaches no table, also by their parts."""
    tables = postgres_server.execute("SELECT tablename FROM pg_tables WHERE schemaname = 'aiolock'")
    parts = postgres_server.execute(
        "SELECT proname, oid::regprocedure::text, pronargs FROM pg_proc"
        " WHERE pronamespace = 'aiolock'::regnamespace AND prosecdef"
    )
    # What runs with its owner's rights is what an application may call, and nothing else.
    assert {name for name, *_ in parts} <= set(postgres_schema.functions())
    async with aiolock.connect(postgres_server.url("app"), prefix=prefix) as client:
        await check_works(client)
    with contextlib.closing(postgres_server.connect("app")) as app:
        assert tables
        for (table,) in tables:
            for order in (
                f"SELECT FROM aiolock.{table}",
                f"DELETE FROM aiolock.{table}",
                f"DROP TABLE aiolock.{table}",
            ):
                with pytest.raises(psycopg.errors.InsufficientPrivilege):
                    app.execute(order.encode())
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            app.execute("CREATE FUNCTION aiolock.mine() RETURNS int LANGUAGE sql AS 'SELECT 1'")


async def test_mysql_user_can_use_locks_and_change_nothing_else(
    mariadb_server: MariaDBServer, prefix: str
) -> None:
    """The user of an application changes rows of three tables, and nothing else."""
    mariadb_server.execute("CREATE TABLE IF NOT EXISTS orders (id INT)")
    async with aiolock.connect(mariadb_server.url("app"), prefix=prefix) as client:
        await check_works(client)
    with (
        contextlib.closing(mariadb_server.connect("app")) as app,
        app.cursor() as cursor,
    ):
        orders = [f"DROP TABLE {table}" for table in mysql_schema._TABLES]
        orders += ["SELECT * FROM orders", "INSERT INTO aiolock_meta VALUES (9)"]
        orders += ["CREATE TABLE mine (id INT)", "SET GLOBAL max_connections = 10"]
        for order in orders:
            with pytest.raises(pymysql.Error, match="denied"):
                cursor.execute(order)


async def test_etcd_user_can_use_locks_and_reaches_no_other_key() -> None:
    """The user of an application writes the keys of the locks, and reads or writes no other."""
    page = (Path(__file__).parents[2] / "docs/stores/etcd.md").read_text("utf-8")
    granted = re.search(r"grant-permission (locks .+)$", page, re.MULTILINE)
    assert granted is not None
    etcds.need_etcd()
    with EtcdServer() as server:
        for name in ("root", "locks"):
            server.ctl("role", "add", name)
        server.ctl("role", "grant-permission", *granted[1].split())
        for user, role in (("root", "root"), ("app", "locks")):
            server.ctl("user", "add", f"{user}:secret")
            server.ctl("user", "grant-role", user, role)
        server.ctl("auth", "enable")
        async with aiolock.connect(server.url(login="app:secret@")) as client:
            await check_works(client)
        for order in (
            *(("put", "orders", "1"), ("get", "", "--prefix"), ("del", "aiolock/v")),
            ("user", "add", "mine:secret"),
        ):
            with pytest.raises(RuntimeError, match="permission denied"):
                server.ctl(*order, login="app:secret")


@pytest.fixture
def umask() -> Iterator[None]:
    """What the process makes is its user's alone."""
    before = os.umask(0o077)
    yield
    os.umask(before)


@pytest.mark.skipif(os.name != "posix", reason="there are no modes")
async def test_sqlite_files_under_umask_077_are_closed_to_others(
    tmp_path: Path, umask: None
) -> None:
    """With a umask of 077 nobody else reads the file, or enters the directory of the clients."""
    path = tmp_path / "locks.db"
    async with aiolock.connect(f"sqlite:///{path}") as client:
        await check_works(client)
        made = {each.name: stat.S_IMODE(each.stat().st_mode) for each in tmp_path.iterdir()}
    assert made.pop("locks.db.clients") == 0o700
    assert "locks.db" in made
    assert not any(mode & 0o077 for mode in made.values()), made


async def test_forged_grant_on_redis_is_lost_at_its_first_renewal(
    redis_server: RedisServer, prefix: str
) -> None:
    """Who may publish makes a waiter enter, until its first renewal; the holder keeps the lock."""
    peek = Peek(redis_server, prefix, "lock:a")
    async with (
        aiolock.connect(redis_server.url, prefix=prefix) as ann,
        aiolock.connect(redis_server.url, prefix=prefix) as bob,
    ):
        lease = await take(ann.lock("a", ttl=60))
        waiting = asking(bob.lock("a"))
        await peek.queued(1)
        (waiter,) = peek.queue()
        seconds, micros = redis_server.call("TIME")
        now = 1_000_000 * int(seconds) + int(micros)
        forged = f"g {waiter} {now + 10**9} 3000 {now} {prefix}:{{lock:a}}:holders"
        assert redis_server.call("PUBLISH", f"{prefix}:push:{bob.id}", forged) == 1
        stolen = await asyncio.wait_for(waiting, 10)
        await asyncio.wait_for(stolen.lost.wait(), 10)
        assert await lease.verify()
        assert await lease.release()
