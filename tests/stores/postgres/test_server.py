"""Which servers PostgreSQL's store refuses: look-alikes, and those that are read-only."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

import aiolock
from aiolock.cli.main import main
from aiolock.stores.postgres import _server
from aiolock.stores.postgres._errors import Failed
from tests.support import databases
from tests.support.databases import PostgresServer, Standby
from tests.support.failures import wait_until

pytestmark = pytest.mark.one_loop


@pytest.fixture
def server() -> Iterator[PostgresServer]:
    """A server of the test's own."""
    databases.need_postgres()
    with PostgresServer() as server:
        yield server


SERVE = (
    "PostgreSQL 15.14 (Debian 15.14-0+deb12u1) on x86_64-pc-linux-gnu, compiled by gcc 12.2.0",
    "PostgreSQL 13.0 on x86_64-pc-linux-musl, compiled by gcc (Alpine 9.3.0) 9.3.0, 64-bit",
    "PostgreSQL 18beta1 on aarch64-unknown-linux-gnu",
    "PostgreSQL 16devel on aarch64",
    "PostgreSQL 15.3 (EnterpriseDB Advanced Server 15.3.0) on x86_64-pc-linux-gnu",
    "PostgreSQL 15.2 - Percona Distribution on x86_64-pc-linux-gnu",
    "PostgreSQL 17.4, compiled by Visual C++ build 1942, 64-bit",
)
DO_NOT = (
    "CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27, go1.19.10)",
    "PostgreSQL 11.2-YB-2.20.1.0-b0 on x86_64-pc-linux-gnu, compiled by clang version 16.0.6",
    "PostgreSQL 15.2-YB-2.25.1.0-b0 on aarch64-unknown-linux-gnu, compiled by clang version 17",
    "PostgreSQL 8.0.2 on i686-pc-linux-gnu, compiled by GCC gcc 3.4.2, Redshift 1.0.12103",
    "PostgreSQL 12.12 (Greenplum Database 7.0.0 build commit:0a7a3566) on x86_64-pc-linux-gnu",
    "PostgreSQL 14.4 (Apache Cloudberry 2.0.0-incubating build dev) on x86_64-pc-linux-gnu",
    "PostgreSQL 13.14.0-RisingWave-1.7.0 (4f0f0f5)",
    "PostgreSQL 9.5.0 on x86_64-unknown-linux-gnu (Materialize 0.27.0)",
    "PostgreSQL 9.2.4 (openGauss 3.0.0 build 02c14696) on x86_64-unknown-linux-gnu",
    "CrateDB 5.4.3 (built cd1b3e6/2023-10-19T09:53:44Z, Linux 5.15 amd64, OpenJDK 64-Bit)",
    "",
)


@pytest.mark.parametrize("version", SERVE)
def test_check_version_of_a_postgresql_distribution_accepts_it(version: str) -> None:
    """As distributors write it."""
    _server.check_version(version)


@pytest.mark.parametrize("version", DO_NOT)
def test_check_version_of_a_look_alike_raises_failed(version: str) -> None:
    """It speaks the protocol, and has no advisory locks, or no LISTEN."""
    with pytest.raises(Failed, match="is not PostgreSQL"):
        _server.check_version(version)


def test_check_version_before_13_raises_failed() -> None:
    """With words, rather than with a function that is missing there."""
    with pytest.raises(Failed, match=r"PostgreSQL 12\.17 is too old"):
        _server.check_version("PostgreSQL 12.17 on x86_64-pc-linux-gnu")


async def test_open_and_init_db_on_a_look_alike_are_refused_and_make_nothing(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """By what it says of itself, before anything is made or set there."""
    server.execute("DROP SCHEMA aiolock CASCADE")
    server.execute(
        "CREATE OR REPLACE FUNCTION pg_catalog.version() RETURNS text LANGUAGE sql AS"
        " $$ SELECT 'CockroachDB CCL v23.1.11 (x86_64-pc-linux-gnu, built 2023/09/27)' $$"
    )
    text = r"CockroachDB CCL v23\.1\.11.* is not PostgreSQL: .*two clients could have one lock"
    for query in ("", "?create=1", f"?pooled=1&listen_url={server.url()}"):
        with pytest.raises(aiolock.StoreError, match=text):
            await aiolock.connect(server.url(query=query)).open()
    assert main(["init-db", server.url()]) == 1
    assert "is not PostgreSQL" in capsys.readouterr().err
    assert server.execute("SELECT FROM pg_namespace WHERE nspname = 'aiolock'") == []


async def test_open_on_a_server_whose_advisory_locks_do_not_exclude_is_refused(
    server: PostgresServer,
) -> None:
    """Whatever it says that it is."""
    server.execute(
        "CREATE OR REPLACE FUNCTION aiolock._listens(c text) RETURNS boolean LANGUAGE sql AS"
        " $$ SELECT false $$"
    )
    with pytest.raises(aiolock.StoreError, match="advisory lock of one session is free to another"):
        await aiolock.connect(server.url("app")).open()


READ_ONLY = {
    "role": ("ALTER ROLE app SET", 'ALTER ROLE "app" RESET'),
    "database": ("ALTER DATABASE postgres SET", 'ALTER DATABASE "postgres" RESET'),
    "both": (
        "ALTER ROLE app IN DATABASE postgres SET",
        'ALTER ROLE "app" IN DATABASE "postgres" RESET',
    ),
    "all": ("ALTER ROLE ALL SET", "ALTER ROLE ALL RESET"),
    "server": ("ALTER SYSTEM SET", "ALTER SYSTEM RESET"),
}


@pytest.mark.parametrize("where", READ_ONLY)
async def test_open_on_a_read_only_default_names_the_setting_and_its_reset(
    server: PostgresServer, capsys: pytest.CaptureFixture[str], where: str
) -> None:
    """It is no standby: the error names the setting, and the statement that takes it back."""
    setting, resetting = READ_ONLY[where]
    url = server.url("app")
    server.execute(f"{setting} default_transaction_read_only = on")
    server.execute("SELECT pg_reload_conf()")
    with contextlib.closing(server.connect("app")) as app:
        show = "SHOW default_transaction_read_only"
        wait_until(lambda: app.execute(show).fetchone() == ("on",))
    text = rf"are read-only by default: .*: {resetting} default_transaction_read_only"
    for query in ("", f"?pooled=1&listen_url={url}"):
        with pytest.raises(aiolock.StoreError, match=text) as caught:
            await aiolock.connect(url + query).open()
        assert "standby" not in str(caught.value)
        assert caught.value.misconfigured
    assert main(["init-db", url]) == 1
    assert f"{resetting} default_transaction_read_only" in capsys.readouterr().err


async def test_open_with_a_read_only_listen_role_names_the_reset_of_that_role(
    server: PostgresServer,
) -> None:
    """Also where only the role of the second URL is, which writes who listens."""
    server.execute("CREATE ROLE ear LOGIN")
    server.execute("ALTER ROLE ear SET default_transaction_read_only = on")
    url = server.url("app", f"?pooled=1&listen_url={server.url('ear')}")
    with pytest.raises(aiolock.StoreError, match='ALTER ROLE "ear" RESET'):
        await aiolock.connect(url).open()


async def test_open_with_url_options_of_read_only_names_those_options(
    server: PostgresServer,
) -> None:
    """They are in the URL itself."""
    url = server.url("app", "?options=-c%20default_transaction_read_only%3Don")
    with pytest.raises(aiolock.StoreError, match="options= in the URL"):
        await aiolock.connect(url).open()


async def test_open_and_init_db_on_a_standby_are_refused_as_such(
    server: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the command as well, and where somebody is to listen there."""
    with Standby(server) as standby:
        text = "it is a standby.*target_session_attrs"
        listen = server.url("app", f"?pooled=1&listen_url={standby.url('app')}")
        for url in (standby.url("app"), listen):
            with pytest.raises(aiolock.StoreError, match=f":{standby.port}/.*{text}"):
                await aiolock.connect(url).open()
        assert main(["init-db", standby.url()]) == 1
        assert "it is a standby" in capsys.readouterr().err
