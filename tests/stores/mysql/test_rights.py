"""What users of MySQL and MariaDB may do, what is said where a right is missing, and to whom."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

import aiolock
from aiolock.cli.main import main
from aiolock.stores import mysql
from aiolock.stores.mysql import _link, _schema
from aiolock.stores.mysql._link import Link
from tests.support.databases import MariaDBServer
from tests.support.failures import check_works

NEEDED = {
    "aiolock_names": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "aiolock_inbox": ("SELECT", "INSERT", "DELETE"),
    "aiolock_clients": ("SELECT", "INSERT", "UPDATE", "DELETE"),
    "aiolock_meta": ("SELECT",),
}


class Place:
    """A database of the test's own on a server that it shares, and users that are its own."""

    def __init__(self, server: MariaDBServer) -> None:
        self.server = server
        self.name = f"my_{uuid.uuid4().hex[:8]}"
        server.execute(f"CREATE DATABASE {self.name}")
        self._users = dict[str, None]()

    def url(self, user: str = "root", query: str = "") -> str:
        """Where it is, for one of its users."""
        return self.server.url(user, query).replace("/shop", f"/{self.name}")

    def user(self, *hosts: str, kind: str = "USER") -> str:
        """Another user, of each of these hosts; or a role."""
        name = f"u{uuid.uuid4().hex[:8]}"
        for host in hosts or ("",):
            whom = f"{name}@'{host}'" if host else name
            self.server.execute(f"CREATE {kind} {whom}")
            self._users[f"{kind} {whom}"] = None
        return name

    def users(self) -> list[tuple[Any, ...]]:
        """All that the server has."""
        return self.server.execute("SELECT user, host FROM mysql.user ORDER BY user, host")

    def run(self, text: str) -> None:
        """Statements of the administrator's."""
        with (
            contextlib.closing(self.server.connect(database=self.name)) as connection,
            connection.cursor() as cursor,
        ):
            for each in text.split("; "):
                cursor.execute(each)

    def remove(self) -> None:
        """With its users."""
        self.server.execute(f"DROP DATABASE {self.name}")
        for each in self._users:
            self.server.execute(f"DROP {each}")


@pytest.fixture
def place(mariadb_server: MariaDBServer) -> Iterator[Place]:
    """A database without tables."""
    made = Place(mariadb_server)
    yield made
    made.remove()


def grants_in(text: object) -> str:
    """The statements that an error quotes."""
    found = re.search("(?:As the owner:|as an administrator,) (GRANT .*)", str(text))
    assert found is not None, text
    return found[1]


# --- Who is let in


@pytest.mark.parametrize("role", ["nix", "nix@10.%", "it's", "root@nowhere"])
def test_init_db_for_a_role_that_does_not_exist_creates_no_user(
    place: Place, role: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A user who is not there is an error: no account without a password comes of a typing error.

    MariaDB makes one by a GRANT, unless it is told not to.
    """
    before = place.users()
    assert main(["init-db", place.url(), "--role", role]) == 1
    assert f"there is no user {_schema.account(role)}" in capsys.readouterr().err
    assert place.users() == before


def test_init_db_for_a_user_of_several_hosts_asks_which_one(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error says which there are; the one that is meant can be said."""
    name = place.user("10.%", "127.0.0.1")
    assert main(["init-db", place.url(), "--role", name]) == 1
    told = capsys.readouterr().err
    assert f"say which you mean, --role {name}@10.% or --role {name}@127.0.0.1" in told
    assert main(["init-db", place.url(), "--role", f"{name}@10.%"]) == 0
    ((grant,), *_) = place.server.execute(f"SHOW GRANTS FOR {name}@'10.%'")[1:]
    assert "aiolock" in grant


async def test_create_schema_for_a_mariadb_role_needs_an_at_sign_after_its_name(
    place: Place,
) -> None:
    """MariaDB's, which has no host, can be let in as well, if that is said."""
    role, user = place.user(kind="ROLE"), place.user()
    for public in ("public", role):
        with pytest.raises(aiolock.StoreError, match=f"there is no user '{public}'@'%'"):
            mysql.create_schema(place.url(), public)
    with pytest.raises(aiolock.StoreError, match=f"say which you mean, --role {role}@$"):
        mysql.create_schema(place.url(), role)
    mysql.create_schema(place.url(), f"{role}@")
    place.server.execute(f"GRANT {role} TO {user}")
    place.server.execute(f"SET DEFAULT ROLE {role} FOR {user}")
    async with aiolock.connect(place.url(user)) as client, client.lock("x"):
        pass


def test_init_db_by_an_owner_without_access_to_users_creates_no_user(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who owns a database need not have the right to see the users; nobody is made all the same."""
    owner, other = place.user(), place.user("10.%")
    place.run(f"GRANT ALL ON {place.name}.* TO {owner} WITH GRANT OPTION")
    before = place.users()
    assert main(["init-db", place.url(owner), "--role", other]) == 1
    assert f"there is no user '{other}'@'%', whom" in capsys.readouterr().err
    assert place.users() == before
    assert main(["init-db", place.url(owner), "--role", f"{other}@10.%"]) == 0


def test_create_schema_on_mysql_8_creates_no_user_and_sets_a_known_sql_mode(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MySQL 8 has another error for it, and does not know the mode that forbids it."""
    run_until = Link.run_until

    def as_mysql(link: Link, *statements: str) -> Any:
        if statements[0].startswith("GRANT"):
            text = "You are not allowed to create a user with GRANT"
            return [], pymysql.OperationalError(1410, text)
        return run_until(link, *statements)

    monkeypatch.setattr(Link, "run_until", as_mysql)
    with pytest.raises(aiolock.StoreError, match="there is no user 'nix'@'%', whom"):
        mysql.create_schema(place.url(), "nix")
    (mode,) = (each for each in _link._SESSION if "sql_mode" in each)
    for version, modes in {
        "8.0.36": "STRICT_ALL_TABLES",
        "10.6.1-MariaDB": "STRICT_ALL_TABLES,NO_AUTO_CREATE_USER",
    }.items():
        with (
            contextlib.closing(place.server.connect()) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute(mode.replace("VERSION()", f"'{version}'"))
            cursor.execute("SELECT @@sql_mode")
            assert cursor.fetchone() == (modes,)


# --- What a client may do


async def test_open_without_a_needed_right_quotes_the_grant_that_restores_it(place: Place) -> None:
    """One that is missing is an error when the client opens, which quotes what gives it."""
    mysql.create_schema(place.url())
    user = place.user("127.0.0.1")
    whom = f"{user}@'127.0.0.1'"
    for table, rights in NEEDED.items():
        place.run(f"GRANT {', '.join(rights)} ON {table} TO {whom}")
    async with aiolock.connect(place.url(user)) as client:
        await check_works(client)  # nothing else is needed
    for table, rights in NEEDED.items():
        for right in rights:
            place.run(f"REVOKE {right} ON {table} FROM {whom}")
            with pytest.raises(aiolock.StoreError, match=f"{right} command denied") as told:
                async with aiolock.connect(place.url(user)):
                    pass  # it is closed where a right that is missing goes unnoticed
            assert table in str(told.value).partition("GRANT")[0]
            assert isinstance(told.value.__cause__, pymysql.Error)
            assert told.value.refused
            quoted = grants_in(told.value)
            assert f" ON {table} TO '{user}'@'127.0.0.1';" in quoted
            place.run(quoted)
            async with aiolock.connect(place.url(user)):
                pass


async def test_acquire_after_a_right_was_revoked_quotes_the_grant_that_restores_it(
    place: Place,
) -> None:
    """The error quotes what gives it back, to the account that the server has let in."""
    user = place.user("127.0.0.1")
    mysql.create_schema(place.url(), f"{user}@127.0.0.1")
    async with aiolock.connect(place.url(user)) as client, client.lock("y"):
        place.run(f"REVOKE UPDATE ON aiolock_names FROM {user}@'127.0.0.1'")
        with pytest.raises(aiolock.StoreError, match="UPDATE command denied") as told:
            await client.lock("x").acquire()
        place.run(grants_in(told.value))
        async with client.lock("x"):
            pass


# --- Who makes the tables


def test_init_db_without_the_right_to_create_quotes_a_grant_that_suffices(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """The error quotes what lets it: and that does, in this database alone."""
    user, other = place.user(), place.user()
    for roles in ([], ["--role", other]):
        place.server.execute(f"GRANT SELECT ON `{place.name}`.* TO {user}")  # to connect
        assert main(["init-db", place.url(user), *roles]) == 1
        told = capsys.readouterr().err
        quoted = grants_in(told)
        assert quoted.startswith("GRANT CREATE, ")
        assert f"`{place.name.replace('_', chr(92) + '_')}`.*" in quoted
        assert ("WITH GRANT OPTION" in quoted) == bool(roles)
        place.server.execute(quoted)
        assert main(["init-db", place.url(user), *roles]) == 0
        capsys.readouterr()
    stranger = place.user()
    assert main(["init-db", place.url(stranger)]) == 1
    assert "GRANT CREATE, " in capsys.readouterr().err


async def test_create_1_without_the_right_to_create_fails_unless_tables_are_right(
    place: Place,
) -> None:
    """With `create=1` as well; and where the tables are right nothing is made, so all is well."""
    user = place.user()
    url = place.url(user, "?create=1")
    place.server.execute(f"GRANT SELECT ON `{place.name}`.* TO {user}")
    with pytest.raises(aiolock.StoreError, match="CREATE command denied") as told:
        await aiolock.connect(url).open()
    assert grants_in(told.value).startswith("GRANT CREATE, ")
    assert told.value.refused
    mysql.create_schema(place.url(), user)
    place.server.execute(f"REVOKE SELECT ON `{place.name}`.* FROM {user}")
    async with aiolock.connect(url) as client, client.lock("x"):
        pass
    place.run("DELETE FROM aiolock_meta")
    with pytest.raises(aiolock.StoreError, match="denied"):
        await aiolock.connect(url).open()
    with pytest.raises(aiolock.StoreError, match="protocol 0 is spoken there"):
        await aiolock.connect(place.url(user)).open()
    async with aiolock.connect(place.url(query="?create=1")) as client, client.lock("x"):
        pass


async def test_grant_quoted_by_a_failed_create_1_lets_the_client_open(place: Place) -> None:
    """After that one statement a client with `create=1` opens, and works."""
    user = place.user()
    place.server.execute(f"GRANT SELECT ON `{place.name}`.* TO {user}")
    url = place.url(user, "?create=1")
    with pytest.raises(aiolock.StoreError) as told:
        await aiolock.connect(url).open()
    place.server.execute(grants_in(told.value))
    async with aiolock.connect(url) as client, client.lock("x"):
        pass


@pytest.mark.parametrize("which", ["postgresql", "mysql"])
def test_init_db_print_without_a_driver_prints_and_init_db_url_fails(which: str) -> None:
    """It is a text: whoever reads it first, or hands it to an owner, need not have installed it."""
    program = (
        "import sys; sys.modules['pymysql'] = sys.modules['psycopg'] = None\n"
        "from aiolock.cli.main import main\n"
        f"assert main(['init-db', '--print', '{which}', '--role', 'app']) == 0\n"
        f"sys.exit(main(['init-db', '{which}://x/y']))\n"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    assert "GRANT SELECT" in done.stdout or "GRANT USAGE" in done.stdout
    assert "pip install 'aiolock-redis[" in done.stderr
