"""Fair shares on PostgreSQL: the accounts, which are an index beside the queue.

That the next waiter is the machine's is shown by tests/proof/test_postgres_model.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

import aiolock
from aiolock.protocol import GRANTS, MOST_AHEAD, PART, Form, ReadStatus, Rule
from aiolock.stores import postgres
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres import _reading
from aiolock.testing._peer import CLAIM, Peer
from tests.support import databases, versions
from tests.support.databases import PostgresServer
from tests.support.failures import until, wait_until
from tests.support.neighbours import Neighbour

pytestmark = pytest.mark.one_loop

Connection = psycopg.Connection[Any]


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    """A server of these tests' own, for what is counted there."""
    databases.need_postgres()
    with PostgresServer() as own:
        yield own


@pytest.fixture
def ada(server: PostgresServer) -> Iterator[Connection]:
    """A session of the only client that listens, on empty tables."""
    with contextlib.closing(server.connect()) as connection:
        tables = "names, waiters, grants, tombstones, accounts, virtual_times, clients"
        connection.execute(f"SET search_path = aiolock; TRUNCATE {tables}".encode())
        connection.execute("SET aiolock.in_parts = on")
        connection.execute("SELECT hello('ada', 20, 'here', 1)")
        yield connection


def lock_of(share: str, *, weight: int = 1000) -> Form:
    """The form of a lock."""
    return Form(CLAIM, share=share, weight=weight)


def permit_of(share: str, *, limit: int = 1, weight: int = 1000, priority: int = 0) -> Form:
    """The form of a semaphore."""
    return Form(
        *(CLAIM, True, Rule.PERMITS, 1, limit), share=share, weight=weight, priority=priority
    )


def acquire(connection: Connection, seq: int, form: Form, *, client: str = "ada") -> str:
    """Ask for the name ``x``; the first line of the answer."""
    found = connection.execute(
        "SELECT acquire('x', %s, %s, %s, 60000, 0, true, 0, 0)",
        (client, seq, codec.form(form).decode()),
    ).fetchone()
    assert found is not None
    return str(found[0]).split("\n")[0]


def release(connection: Connection, seq: int) -> None:
    """Release it, or leave the queue."""
    connection.execute("SELECT release('x', 'ada', %s, 0, true, 0)", (seq,))


def rows(connection: Connection, query: str) -> list[tuple[Any, ...]]:
    """What a query finds."""
    return connection.execute(query.encode()).fetchall()


def turns(connection: Connection, count: int) -> list[int]:
    """The numbers of the next holders of a lock, each of which releases it."""
    found = list[int]()
    for _ in range(count):
        ((holder,),) = rows(connection, "SELECT seq FROM grants")
        found.append(holder)
        release(connection, holder)
    return found


_KEPT = "SELECT (SELECT count(*) FROM accounts), (SELECT count(*) FROM virtual_times)"


def test_name_for_which_no_share_waits_has_no_accounts(ada: Connection) -> None:
    """Neither while it is held, nor after waiters have been granted, or have left."""
    for form in (lock_of, permit_of):
        assert acquire(ada, 1, form("a")).startswith("granted")
        assert rows(ada, _KEPT) == [(0, 0)]
        for seq, share in enumerate("abcb", 2):
            assert acquire(ada, seq, form(share)).startswith("queued")
        assert rows(ada, _KEPT) == [(3, 1)]
        for seq in (1, 2, 5):
            release(ada, seq)
        assert rows(ada, "SELECT DISTINCT seq FROM waiters") == [(4,)]
        release(ada, 4)
        assert rows(ada, _KEPT) == [(0, 0)]
        release(ada, 3)
        assert rows(ada, "SELECT FROM grants") == []


_OTHERS = (
    "SELECT count(*) FROM pg_stat_activity"
    " WHERE backend_type = 'client backend' AND pid <> pg_backend_pid()"
)
_READ = (
    "SELECT sum(coalesce(seq_scan, 0) + coalesce(idx_scan, 0))::int, sum(n_tup_ins)::int"
    " FROM pg_stat_user_tables WHERE relname IN ('accounts', 'virtual_times')"
)
_INDEX = "SELECT idx_scan FROM pg_stat_user_indexes WHERE indexrelname = 'waiters_by_share'"
_CALLS = (
    "SELECT funcname, calls FROM pg_stat_user_functions WHERE schemaname = 'aiolock'"
    " AND funcname ~ '^_(account|accounts|bytes|charge|ended|next|numbers)$'"
)


def test_waiters_without_a_share_read_no_account_and_call_no_function_for_it(
    server: PostgresServer,
) -> None:
    """A lock that is free, one for which others wait, a lease that ends, and a semaphore."""
    with contextlib.closing(server.connect()) as connection:
        connection.execute("SET search_path = aiolock; SET track_functions = 'all'")
        # One that has just ended may still report what an earlier test has done.
        wait_until(lambda: rows(connection, _OTHERS) == [(0,)])
        connection.execute("SELECT hello('ada', 20, 'here', 1), pg_stat_reset()")
        for form in (Form(CLAIM), Form(1), permit_of("")):
            for seq in range(6):
                acquire(connection, seq, form)
            for seq in (3, 0, 1, 2, 4, 5):
                release(connection, seq)
        acquire(connection, 7, lock_of("a"))
        release(connection, 7)
    with contextlib.closing(server.connect()) as connection:

        def counted() -> bool:
            return rows(connection, "SELECT sum(calls) > 20 FROM pg_stat_user_functions") == [
                (True,)
            ]

        wait_until(counted)
        assert rows(connection, _READ) == [(0, 0)]
        assert rows(connection, _INDEX) == [(0,)]
        # The share of the last one was read, and no more, since it was free.
        assert rows(connection, _CALLS) == [("_bytes", 1)]


def test_accounts_that_are_lost_let_others_come_first_and_leave_nobody(ada: Connection) -> None:
    """In order of arrival; and shares that come later have their turns."""
    for seq, share in enumerate("aaaab"):
        acquire(ada, seq, lock_of(share))
    ada.execute("TRUNCATE accounts, virtual_times")
    release(ada, 0)
    assert rows(ada, "SELECT seq FROM grants") == [(1,)]
    for seq, share in enumerate("cccd", 5):
        acquire(ada, seq, lock_of(share))
    assert sorted(turns(ada, 8)) == [*range(1, 9)]
    assert rows(ada, _KEPT) == [(0, 0)]


def test_account_of_waiters_that_somebody_removed_is_put_in_order(ada: Connection) -> None:
    """Its next waiter has its turn, or it is forgotten if there is none."""
    for seq, share in enumerate("aabbcd"):
        acquire(ada, seq, lock_of(share))
    ada.execute("DELETE FROM waiters WHERE seq IN (1, 2, 4)")
    assert turns(ada, 3) == [0, 3, 5]
    assert rows(ada, _KEPT) == [(0, 0)]


def test_permits_that_a_share_held_before_anybody_waited_count(ada: Connection) -> None:
    """Its account is opened with them, also if it had none meanwhile."""
    for seq, share in enumerate("aaab"):
        acquire(ada, seq, permit_of(share, limit=4))
    for seq, share in enumerate("bac", 4):
        acquire(ada, seq, permit_of(share, limit=4))
    expected = [(b"a", 3), (b"b", 1), (b"c", 0)]
    assert rows(ada, "SELECT share, held FROM accounts ORDER BY share") == expected
    release(ada, 5)  # of a, the only one that waits
    assert rows(ada, "SELECT share, held FROM accounts ORDER BY share") == expected[1:]
    release(ada, 0)
    acquire(ada, 5, permit_of("a", limit=4))
    expected = [(b"a", 2), (b"b", 1), (b"c", 1)]  # c has had its turn, which is remembered
    assert rows(ada, "SELECT share, held FROM accounts ORDER BY share") == expected


def test_shares_that_were_there_once_are_remembered_up_to_a_number(ada: Connection) -> None:
    """Those that are least ahead are forgotten first; all of them, when nobody waits."""
    count = MOST_AHEAD + 40
    acquire(ada, 0, lock_of("0"))
    acquire(ada, 1, lock_of("last", weight=10))
    for seq in range(2, count + 2):
        acquire(ada, seq, lock_of(str(seq), weight=1000 if seq % 2 else 500))
    for seq in range(count + 1):
        ((holder,),) = rows(ada, "SELECT seq FROM grants")
        if holder == 1:
            acquire(ada, 5000, lock_of("last", weight=10))  # it goes on waiting
        release(ada, holder)
        if seq % 50 == 0:
            ((kept, counted),) = rows(
                ada,
                "SELECT count(*) FILTER (WHERE ticket IS NULL), max(remembered)"
                " FROM accounts, virtual_times",
            )
            assert kept == counted <= MOST_AHEAD
    ((kept, least),) = rows(ada, "SELECT count(*), min(start) FROM accounts WHERE ticket IS NULL")
    assert kept == MOST_AHEAD
    assert least == 10_000  # of those of weight 1, some; of those of 0.5, all
    assert rows(ada, "SELECT count(*) FROM accounts WHERE start = 20000") == [(count // 2,)]
    release(ada, rows(ada, "SELECT seq FROM grants")[0][0])
    assert rows(ada, "SELECT seq FROM grants") == [(5000,)]
    assert rows(ada, _KEPT) == [(0, 0)]


def test_call_grants_and_looks_at_fewer_waiters_with_shares(ada: Connection) -> None:
    """Each costs as much as four others: others wait for the transaction."""
    for seq in range(GRANTS):
        acquire(ada, seq, permit_of(f"share {seq}"))
    ada.execute("SELECT resize('x', 'ada', 1, 1000, 60000, 't', 0)")
    assert rows(ada, "SELECT count(*) FROM grants") == [(1 + GRANTS // 4,)]
    ada.execute("UPDATE waiters SET client = 'dead'; UPDATE accounts SET client = 'dead'")
    ((before,),) = rows(ada, "SELECT count(*) FROM waiters")
    assert before > PART // 4
    ((answer,),) = rows(ada, "SELECT go_on('x', 'eve', 'advance', 0)")
    assert answer == "0\nrest advance"
    assert rows(ada, "SELECT count(*) FROM waiters") == [(before - PART // 4,)]


def test_call_removes_fewer_waiters_of_a_stuck_client_if_there_are_shares(ada: Connection) -> None:
    """Each may have a share of its own; what is left is removed by the next calls."""
    acquire(ada, 0, lock_of("a"), client="stuck")
    for seq in range(1, 100):
        acquire(ada, seq, lock_of(str(seq)), client="stuck")
    ada.execute("UPDATE grants SET ends = 1")
    acquire(ada, 1, lock_of("b"))
    assert rows(ada, "SELECT count(*) FROM waiters") == [(100 - PART // 4,)]
    assert rows(ada, "SELECT FROM grants") == []
    ((left,),) = rows(ada, "SELECT count(*) FROM accounts WHERE ticket IS NOT NULL")
    assert left == 100 - PART // 4


def test_sweep_forgets_the_accounts_of_dead_waiters_in_parts(ada: Connection) -> None:
    """And the name with the last of them."""
    for seq in range(GRANTS + 20):
        acquire(ada, seq, lock_of(str(seq)), client="dead")
    ada.execute("UPDATE names SET fence = 1, keep_until = 0; DELETE FROM grants")
    count, sweeps = GRANTS, 0
    while count >= 100:
        ((count,),) = rows(ada, "SELECT sweep(100)")
        sweeps += 1
    assert sweeps > 2
    assert rows(ada, _KEPT) == [(0, 0)]
    assert rows(ada, "SELECT FROM names") == []


def test_role_of_an_application_reads_no_account_and_puts_none_in_order(
    server: PostgresServer,
) -> None:
    """Only the functions that clients call are granted."""
    with contextlib.closing(psycopg.connect(server.url("app"), autocommit=True)) as app:
        for query in (
            "SELECT FROM aiolock.accounts",
            "DELETE FROM aiolock.virtual_times",
            "SELECT aiolock._account('x', 0, 'a', 1, 0)",
        ):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                app.execute(query.encode())


@pytest.mark.parametrize("encoding", ["SQL_ASCII", "LATIN1"])
async def test_share_of_any_characters_is_kept_in_a_database_of_any_encoding(
    server: PostgresServer, encoding: str
) -> None:
    """In the queue, in a status, and in the form of a grant that is pushed."""
    other = f"shares_{encoding.lower()}"
    server.execute(f"CREATE DATABASE {other} TEMPLATE template0 ENCODING '{encoding}'")
    url = f"postgresql://postgres@127.0.0.1:{server.port}/{other}"
    await asyncio.to_thread(postgres.create_schema, url)
    async with Peer(postgres.from_url(url, "aiolock")) as peer:
        form = lock_of("é ✓ 🙂'\\", weight=250)
        grant = await peer.take("x", peer.waiter(form))
        place = await peer.queue("x", peer.waiter(form))
        status = await peer.store.submit(ReadStatus("x"))
        for party in (*status.holders, *status.waiters):
            assert (party.share, party.weight) == (form.share, 0.25)
        await peer.release("x", grant)
        handed = await peer.handed()
        assert (handed.waiter, handed.form) == (place.waiter, form)


async def test_status_read_in_parts_has_each_waiter_at_its_place_in_its_share(
    server: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of a share are counted over all parts; those without are at their place in all."""
    monkeypatch.setattr(_reading, "_PARTIES", 3)
    async with Peer(postgres.from_url(server.url("app"), "places")) as peer:
        await peer.take("x", peer.waiter(lock_of("a")))
        for share in ("a", "b", "a", "", "a", "b", ""):
            await peer.queue("x", peer.waiter(lock_of(share)))
        status = await peer.store.submit(ReadStatus("x"))
        assert [holder.share for holder in status.holders] == ["a"]
        places = [(waiter.share, waiter.place) for waiter in status.waiters]
        assert places == [("a", 1), ("b", 1), ("a", 2), ("", 4), ("a", 3), ("b", 2), ("", 7)]


async def test_client_of_an_earlier_version_beside_shares_is_served_in_order(
    server: PostgresServer,
) -> None:
    """It reads no share in what it is told, and comes after all who came before it."""
    try:
        older = versions.other()
    except versions.Unavailable as error:
        pytest.skip(f"no other version: {error}")
    server.execute("CREATE DATABASE older")
    server.execute("CREATE ROLE ours LOGIN")
    url = f"postgresql://postgres@127.0.0.1:{server.port}/older"
    command = (older.python, "-I", "-m", "aiolock", "init-db", url, "--role", "ours")
    await asyncio.to_thread(subprocess.run, command, check=True, capture_output=True)
    url = url.replace("postgres@", "ours@")
    with pytest.raises(aiolock.StoreError, match=r"run `aiolock init-db URL` of the newer one"):
        await aiolock.connect(url).open()
    async with Neighbour(older.python, url, {}) as theirs:
        await theirs.acquire("x", "first")
        await theirs.ask("x", "second")
        await asyncio.to_thread(postgres.create_schema, url.replace("ours@", "postgres@"), "ours")
        async with Neighbour(Path(sys.executable), url, {}) as ours:
            for who, share in (("third", "a"), ("fourth", "a"), ("fifth", "b")):
                await ours.ask("x", who, share=share)
                await settled(theirs, ours, int(who == "fourth") + 2 * (who == "fifth") + 2)
            await theirs.ask("x", "last")
            await settled(theirs, ours, 5)
            order = [(theirs, "first"), (theirs, "second"), (ours, "third"), (ours, "fifth")]
            order += [(ours, "fourth"), (theirs, "last")]
            for (side, who), (heir, then) in itertools.pairwise(order):
                assert await side.release(who)
                await heir.holds(then)
            assert await theirs.release("last")


async def test_init_db_beside_a_transaction_on_its_tables_is_no_deadlock(
    server: PostgresServer,
) -> None:
    """A client has locked one table and wants another: it goes on, and then `init-db` does."""
    server.execute("CREATE DATABASE busy")
    url = f"postgresql://postgres@127.0.0.1:{server.port}/busy"
    await asyncio.to_thread(postgres.create_schema, url)
    with contextlib.closing(psycopg.connect(url)) as connection:
        for table in ("waiters", "grants"):
            drop = f"ALTER TABLE aiolock.{table} DROP COLUMN share, DROP COLUMN weight"
            connection.execute(drop.encode())
        connection.commit()
        connection.execute("LOCK TABLE aiolock.grants IN ROW EXCLUSIVE MODE")
        making = asyncio.create_task(asyncio.to_thread(postgres.create_schema, url))
        waits = "SELECT 1 FROM pg_stat_activity WHERE datname = 'busy' AND wait_event_type = 'Lock'"
        await until(lambda: server.execute(waits))
        # It would look for a deadlock before `init-db` does, whose time for that is a second.
        connection.execute("SET deadlock_timeout = '500ms'")
        connection.execute("LOCK TABLE aiolock.waiters IN ROW EXCLUSIVE MODE")
        assert not making.done()
        connection.commit()
        await making
        for table in ("waiters", "grants"):
            connection.execute(f"SELECT share, weight FROM aiolock.{table}".encode())


async def settled(theirs: Neighbour, ours: Neighbour, waiting: int) -> None:
    """Both see so many that wait."""
    for side in (theirs, ours):
        async with asyncio.timeout(20):
            while len((await side.status("x"))[1]) != waiting:  # noqa: ASYNC110  # another process
                await asyncio.sleep(0.01)


def test_form_has_numbers_for_its_share_only_if_it_has_one() -> None:
    """That of any other is written as before; a default weight is not written either."""
    assert codec.form(Form(3000)) == b"{3000,0,0,0,0,0,0,0,0,0,0,0}"
    assert codec.form(Form(3000, share="é")) == b"{3000,0,0,0,0,0,0,0,0,0,0,0,2,195,169}"
    assert codec.form(Form(3000, share="a", weight=7)).endswith(b",0,1,97,7}")
