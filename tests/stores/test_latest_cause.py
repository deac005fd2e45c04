"""A link that was cut, and cannot be made again for another reason: that one is told."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

import pytest

import aiolock
from tests.support.databases import MariaDBServer, PostgresServer, need_mariadb, need_postgres
from tests.support.sentinels import Watched
from tests.support.servers import RedisServer


class Rotating(NamedTuple):
    """A store whose password is changed, and whose connections are cut."""

    url: str
    rotate: Callable[[], object]
    """Change the password, and cut the connections that used the old one."""
    says: str
    """What is said to who comes with the old one."""


def on_redis(server: RedisServer, url: str) -> Rotating:
    """A user of that server, at a URL with its port."""
    server.call("ACL", "SETUSER", "app", "on", ">one", "~*", "&*", "+@all")

    def rotate() -> None:
        server.call("ACL", "SETUSER", "app", ">two", "<one")
        server.call("CLIENT", "KILL", "USER", "app")

    return Rotating(url, rotate, "invalid username-password|WRONGPASS")


@pytest.fixture(params=["redis", "cluster", "sentinel", "postgres", "mariadb"])
async def rotating(request: pytest.FixtureRequest) -> AsyncIterator[Rotating]:
    """Each store that has passwords."""
    with contextlib.ExitStack() as stack:
        match request.param:
            case "redis":
                server = stack.enter_context(RedisServer())
                yield on_redis(server, f"redis://app:one@127.0.0.1:{server.port}")
            case "cluster":
                server = request.getfixturevalue("lone_node")
                yield on_redis(server, f"redis+cluster://app:one@127.0.0.1:{server.port}")
            case "sentinel":
                watched = Watched(stack)
                await watched.ready()
                url = watched.url.replace("://", "://app:one@")
                yield on_redis(watched.master, url)
            case "postgres":
                need_postgres()
                postgres = stack.enter_context(PostgresServer())
                yield Rotating(
                    postgres.url("app"), lambda: locked_out(postgres), "not permitted to log in"
                )
            case _:
                need_mariadb()
                mariadb = stack.enter_context(MariaDBServer())
                yield Rotating(
                    mariadb.url("app"), lambda: another_password(mariadb), "Access denied"
                )


def locked_out(server: PostgresServer) -> None:
    """Its clients come without a password."""
    server.execute("ALTER ROLE app NOLOGIN")
    server.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = 'app'")


def another_password(server: MariaDBServer) -> None:
    """Its clients come without one."""
    server.execute("ALTER USER app IDENTIFIED BY 'two'")
    for number in server.connections():
        with contextlib.suppress(Exception):
            server.execute(f"KILL {number}")


@pytest.mark.one_loop
async def test_acquire_after_a_password_change_and_a_cut_names_the_password(
    rotating: Rotating, prefix: str
) -> None:
    """In the errors of those who have a timeout and of those who do not wait, within seconds."""
    async with aiolock.connect(rotating.url, prefix=prefix, answer_timeout=0.5) as client:
        async with client.lock("a"):
            pass
        await asyncio.to_thread(rotating.rotate)
        for options in ({"timeout": 0.5}, {"timeout": 0}):
            async with asyncio.timeout(20):
                while True:
                    with pytest.raises(aiolock.StoreError) as caught:
                        await client.lock("b").acquire(**options)
                    if re.search(rotating.says, str(caught.value)):
                        assert caught.value.misconfigured  # so that a task fails by it
                        cause = caught.value.__cause__
                        assert cause is not None
                        assert not isinstance(cause, aiolock.StoreError)  # it is the driver's
                        break
