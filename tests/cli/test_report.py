"""``aiolock check --report``: what a maintainer asks, and nothing secret."""

from __future__ import annotations

import asyncio
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

import aiolock
from aiolock.cli import report
from tests.support.commands import Cli
from tests.support.servers import RedisServer, hold_port

SECRET = "hunter2"


async def test_check_report_prints_versions_and_the_server_before_the_check(
    cli: Cli, redis_server: RedisServer
) -> None:
    """In parts that can be pasted into an issue; then the check itself."""
    code, output, errors = await cli.here("check", "--report")
    assert (code, errors) == (0, "")
    parts = [line for line in output.splitlines() if line.endswith(":")]
    assert parts == ["versions:", "store:", "check:"]
    words = {tuple(line.split(maxsplit=1)) for line in output.splitlines()}
    assert {("aiolock", aiolock.__version__), ("redis", version("redis"))} <= words
    assert {("kind", "redis"), ("maxmemory_policy", "noeviction"), ("role", "master")} <= words
    assert str(redis_server.port) not in output
    assert output.splitlines()[-1] == "ok"


async def test_check_report_of_an_unreachable_server_prints_no_secret_and_exits_69(
    prefix: str,
) -> None:
    """That it was not asked, and of the URL its kind and the names of its options."""
    with hold_port() as held:
        port = held.getsockname()[1]
        url = f"redis://{SECRET}:{SECRET}@127.0.0.1:{port}/0?client_name={SECRET}"
        code, output, errors = await Cli(url, prefix).here("check", "--report")
    assert code == 69
    assert "not asked: ConnectionError" in output
    assert "client_name" in output
    assert SECRET not in output + errors
    assert str(port) not in output  # the error of the check has it


async def test_report_on_a_redis_without_the_right_to_info_names_the_refusal(
    own_server: RedisServer,
) -> None:
    """The rest of the report is there."""
    own_server.call("ACL", "SETUSER", "app", "on", f">{SECRET}", "~*", "&*", "+@all", "-info")
    url = own_server.url.replace("redis://", f"redis://app:{SECRET}@")
    found = await report.report(url)
    assert found["store"]["INFO refused"].startswith("server (NoPermissionError), memory")
    assert SECRET not in report.text(found)


@pytest.mark.parametrize("kind", ["postgres_server", "mariadb_server"])
async def test_report_on_a_database_has_its_version_and_schema(
    request: pytest.FixtureRequest, kind: str, prefix: str
) -> None:
    """As the users that applications have."""
    server: Any = request.getfixturevalue(kind)
    url: str = server.url("app")
    async with aiolock.connect(url, prefix=prefix) as client:
        (protocol,) = client.protocols
    found = (await report.report(url))["store"]
    assert found["server"].startswith(("PostgreSQL ", "MariaDB "))
    assert found["schema"] == f"protocol {protocol}"
    assert found["max_connections"].isdecimal()


async def test_report_on_etcd_has_its_version(request: pytest.FixtureRequest) -> None:
    """That of the server in use."""
    server: Any = request.getfixturevalue("etcd_server")
    found = (await report.report(server.url()))["store"]
    assert found["server"].startswith("etcd 3.")
    assert found["servers in the URL"] == "1"


async def test_report_on_sqlite_reads_the_file_and_makes_none(tmp_path: Path) -> None:
    """One that is not there stays so; no path is shown."""
    url = f"sqlite:///{tmp_path}/locks.db"
    assert (await report.report(url))["store"]["server"] == "not asked: OperationalError"
    assert not list(tmp_path.iterdir())
    async with aiolock.connect(url):
        pass
    found = await report.report(url)
    assert found["store"]["server"].startswith("SQLite 3.")
    assert found["store"]["journal_mode"] == "wal"
    assert str(tmp_path) not in report.text(found)


async def test_report_on_a_server_that_hangs_ends_in_time(
    own_server: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that cannot be asked."""
    monkeypatch.setattr(report, "_SECONDS", 0.05)
    own_server.pause()
    found = await asyncio.wait_for(report.report(own_server.url), 20)
    assert found["store"]["server"] == "not asked: TimeoutError"
