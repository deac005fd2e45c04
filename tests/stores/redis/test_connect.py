"""Every way to connect to Redis, and what is said where it cannot be done."""

from __future__ import annotations

import asyncio
import contextlib
import importlib.metadata
import itertools
import logging
import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock

import anyio
import pytest
import redis.asyncio
import uvloop
from redis.asyncio.connection import Connection, ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import ExponentialBackoff

import aiolock
from aiolock.protocol import Break, Event, ReadPosted, ReadStatus
from aiolock.stores._opening import Opening
from aiolock.stores.redis import _replies, _scripts, _wire
from aiolock.stores.redis._encoding import Texts
from aiolock.stores.redis._errors import ACL_RULE
from aiolock.stores.redis._session import Session
from aiolock.testing import Peer
from tests.support.clusters import Cluster
from tests.support.failures import (
    Peek,
    check_nothing_left,
    check_works,
    command_link,
    linked,
    take,
    until,
)
from tests.support.proxy import Proxy
from tests.support.servers import RedisServer, store_on


@pytest.fixture(scope="module")
def module_server() -> Iterator[RedisServer]:
    """A server with a password, TLS and a unix socket."""
    with RedisServer(password="secret", tls=True) as server:
        yield server


@pytest.fixture
def locked_server(module_server: RedisServer, prefix: str) -> Iterator[RedisServer]:
    """That server, on which the test must leave nothing."""
    yield module_server
    check_nothing_left(module_server, prefix)


@pytest.fixture
def server(redis_server: RedisServer, prefix: str) -> Iterator[RedisServer]:
    """The shared server, open to all, on which the test must leave nothing."""
    yield redis_server
    check_nothing_left(redis_server, prefix)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What does not answer is given up ten times as fast."""
    monkeypatch.setattr("aiolock.stores.redis._deadlines.REPLY_TIMEOUT", 0.4)
    monkeypatch.setattr("aiolock.stores.redis._outbox.COMMAND_TIMEOUT", 1.0)
    monkeypatch.setattr("aiolock.stores.redis._deadlines.LOOK", 0.05)
    monkeypatch.setattr("aiolock.stores.redis._wire.CONNECT_TIMEOUT", 0.5)
    monkeypatch.setattr("aiolock.stores.redis._subscription.SUBSCRIBE_TIMEOUT", 0.5)


# --- URLs


@pytest.mark.parametrize("url", ["url", "unix_url", "tls_url"])
async def test_connect_by_tcp_unix_socket_or_tls_with_a_password_works(
    locked_server: RedisServer, prefix: str, url: str
) -> None:
    """TCP, a unix socket and TLS with a certificate of one's own, each with a password."""
    async with aiolock.connect(getattr(locked_server, url), prefix=prefix) as client:
        await check_works(client)


async def test_connect_with_a_database_uses_it_also_after_a_break(
    server: RedisServer, prefix: str
) -> None:
    """The database of the URL is the one that is used, again also after a break."""
    url = server.url.removesuffix("/0") + "/3"
    async with aiolock.connect(url, prefix=prefix) as client:
        await check_works(client)
        server.call("CLIENT", "KILL", "TYPE", "normal")
        async with client.lock("lock"):
            assert "db3" in server.call("INFO", "keyspace")
            assert server.call("KEYS", f"{prefix}:*") == []
        await client.lock("lock").locked()
    with redis.Redis(port=server.port, db=3, decode_responses=True) as raw:
        keys: Any = raw.keys(f"{prefix}:*")
        left = [key for key in keys if not key.endswith(":fence") and ":{" in key]
        assert [key for key in left if raw.zcount(key, "-inf", "(1e15")] == []
        assert all(raw.pttl(key) != -1 for key in keys)


async def test_connect_with_a_user_and_a_quoted_password_works(
    locked_server: RedisServer, prefix: str
) -> None:
    """User and password of the URL are used, and need not be simple."""
    password = "p@ss/w:rd"
    locked_server.call("ACL", "SETUSER", "ann", "on", f">{password}", "~*", "&*", "+@all")
    url = f"redis://ann:p%40ss%2Fw%3Ard@127.0.0.1:{locked_server.port}/0"
    async with aiolock.connect(url, prefix=prefix) as client:
        await check_works(client)
        assert "user=ann" in locked_server.call("CLIENT", "LIST", "TYPE", "pubsub")
        assert password not in repr(client)


# --- What cannot be used


async def fails(target: Any, pattern: str, prefix: str = "prefix") -> None:
    """Check that a client cannot be opened, and says why."""
    client = aiolock.connect(target, prefix=prefix)
    with pytest.raises(aiolock.StoreError) as caught:
        await client.open()
    assert re.search(pattern, str(caught.value), re.IGNORECASE | re.DOTALL)
    assert isinstance(caught.value.__cause__, redis.exceptions.RedisError | OSError)
    with pytest.raises(aiolock.ClientClosed):
        await client.lock("lock").acquire()
    await client.aclose()


@pytest.mark.parametrize(
    ("url", "pattern"),
    [
        pytest.param("redis://:wrong@127.0.0.1:{port}", "WRONGPASS|invalid", id="password"),
        pytest.param("redis://bob:secret@127.0.0.1:{port}", "WRONGPASS|invalid", id="user"),
        pytest.param("redis://127.0.0.1:{port}", "auth", id="no_password"),
        pytest.param("redis://:secret@127.0.0.1:{port}/99", "index|database", id="database"),
        pytest.param(
            "redis://:secret@127.0.0.1:{port}/99",
            r"127\.0\.0\.1:\d+ has no database 99",
            id="which_database",
        ),
        pytest.param("redis://:secret@127.0.0.1:{tls}", "clos|reset", id="plain_on_the_TLS_port"),
        pytest.param("rediss://:secret@127.0.0.1:{tls}", "certificate", id="unknown_authority"),
        pytest.param("unix:///nowhere/redis.sock", "No such file", id="no_socket"),
    ],
)
async def test_open_at_a_url_that_leads_nowhere_raises_store_error(
    locked_server: RedisServer, caplog: pytest.LogCaptureFixture, url: str, pattern: str
) -> None:
    """A URL that leads nowhere is a StoreError that says why, at once."""
    await fails(url.format(port=locked_server.port, tls=locked_server.tls_port), pattern)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


@pytest.mark.usefixtures("impatient")
async def test_open_by_tls_at_the_plain_port_raises_store_error(locked_server: RedisServer) -> None:
    """A server that does not understand TLS, and so says nothing, is a StoreError in the end."""
    await fails(f"rediss://:secret@127.0.0.1:{locked_server.port}", "in time")


async def test_open_at_a_port_without_a_listener_raises_store_error_naming_it() -> None:
    """A port on which nobody listens is a StoreError that names it."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
        await fails(f"redis://127.0.0.1:{port}", str(port))


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer with what was asked."""
    while data := await reader.read(1000):
        writer.write(data)


async def http(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer as a web server."""
    await reader.read(1000)
    writer.write(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n")


async def ok(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer OK to everything."""
    while data := await reader.read(1000):
        writer.write(b"+OK\r\n" * data.count(b"*"))


async def nil(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer that there is nothing."""
    while data := await reader.read(1000):
        writer.write(b"$-1\r\n" * data.count(b"*"))


async def silence(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer nothing at all."""
    await reader.read()


async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Close at once."""


@asynccontextmanager
async def listening(serve: Serve) -> AsyncIterator[int]:
    """Listen on a port, and do something with each connection."""
    handlers: set[asyncio.Task[None]] = set()

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        handlers.add(task)
        try:
            await serve(reader, writer)
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        if handlers:
            await asyncio.wait(handlers)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("serve", [echo, http, ok, nil, silence, hang_up])
async def test_open_at_a_server_that_is_not_redis_raises_store_error(
    serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """What listens but is not Redis is a StoreError soon, whatever it answers."""
    async with listening(serve) as port:
        async with asyncio.timeout(5):
            await fails(f"redis://127.0.0.1:{port}", "")
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []


async def test_open_at_a_replica_raises_store_error_with_readonly(server: RedisServer) -> None:
    """A replica is a StoreError that says that it is read-only."""
    with RedisServer("--replicaof", "127.0.0.1", str(server.port)) as replica:
        await fails(replica.url, "READONLY")


@pytest.mark.one_loop
async def test_open_of_a_sentinel_url_at_a_plain_server_says_no_sentinel(
    server: RedisServer,
) -> None:
    """It says that this is no Sentinel, and not that Redis is too old."""
    await fails(f"redis+sentinel://127.0.0.1:{server.port}/locks", "no Sentinel: use redis://")


@pytest.mark.one_loop
@pytest.mark.parametrize("name", ["EVALSHA", "PUBLISH", "TIME", "ZRANGE", "SUBSCRIBE"])
async def test_open_at_a_server_without_a_command_names_rename_command(name: str) -> None:
    """Where a command is missing, in a script or by itself, the configuration is pointed at."""
    with RedisServer("--rename-command", name, "") as server:
        await fails(server.url, rf"lacks a command .* fakeredis\[lua\].* rename-command .*{name}")


@pytest.mark.one_loop
@pytest.mark.parametrize("tls", [False, True])
async def test_open_at_a_full_server_names_maxclients(tls: bool) -> None:
    """A server that takes no more clients is named as such, or as a cause, each time."""
    with RedisServer("--maxclients", "12", tls=tls) as server:
        async with contextlib.AsyncExitStack() as stack:
            for _ in range(12):
                stack.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            await until(lambda: refuses(server.port))
            for _ in range(5):
                await fails(server.tls_url if tls else server.url, "maxclients")


def refuses(port: int) -> bool:
    """Whether the server has as many clients as it takes."""
    with socket.create_connection(("127.0.0.1", port)) as one:
        one.settimeout(0.2)
        with contextlib.suppress(OSError):
            return one.recv(1000).startswith(b"-ERR max")
    return True


@pytest.mark.one_loop
async def test_open_with_a_missing_ca_file_names_ssl_ca_certs(module_server: RedisServer) -> None:
    """The file of a client's own options is named, and no socket."""
    async with redis.asyncio.Redis(
        port=module_server.tls_port, ssl=True, ssl_ca_certs="/nowhere/ca.pem"
    ) as caller:
        await fails(caller, "TLS options is not there: see ssl_ca_certs")


async def test_open_at_a_node_of_a_cluster_names_the_url_to_use(cluster: Cluster) -> None:
    """One of several nodes is a StoreError with the URL to use, whatever slots it has."""
    for node in cluster.masters:
        use = rf"node of a Redis Cluster: use redis\+cluster://127.0.0.1:{node.port}"
        for _ in range(8):  # each client has a key of its own, which may be in a slot of this one
            await fails(node.url, use)
        await fails(node.url.removesuffix("0") + "1", f"{use}|has no database 1")  # Valkey 9


async def test_open_at_a_lone_cluster_node_needs_no_cluster_right(
    lone_node: RedisServer, prefix: str
) -> None:
    """A cluster of one serves a user, too, who may not ask how many there are."""
    rule = ["on", ">pw", *ACL_RULE.format(prefix=prefix).split()]
    lone_node.call("ACL", "SETUSER", "bob", *rule)
    url = f"redis://bob:pw@127.0.0.1:{lone_node.port}"
    async with (
        aiolock.connect(url, prefix=prefix) as client,
        client.lock("a") as one,
        client.lock("b") as other,
    ):
        assert await one.verify()
        assert await other.verify()


@pytest.mark.parametrize("counted", [True, False])
async def test_open_with_a_subscription_at_another_server_raises_store_error(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch, counted: bool
) -> None:
    """Where commands and subscription end at different servers a client does not open."""
    monkeypatch.setattr("aiolock.stores.redis._session.PUSH_TIMEOUT", 0.1)
    with RedisServer() as second:
        ports = itertools.cycle([server.port, second.port])

        class InTurn(Connection):
            def __init__(self, **options: Any) -> None:
                super().__init__(**options | {"port": next(ports)})

        pool = ConnectionPool(connection_class=InTurn)
        client = aiolock.connect(redis.asyncio.Redis(connection_pool=pool), prefix=prefix)
        # A proxy may say that somebody hears what nobody does.
        channel = f"{prefix}:push:{client.id}" if counted else "something else"
        with redis.Redis(port=server.port) as raw, raw.pubsub() as listener:
            listener.subscribe(channel)
            assert listener.get_message(timeout=5)
            with pytest.raises(aiolock.StoreError, match="on another server"):
                await client.open()
        await until(lambda: connections(second) == 0)


async def test_open_with_a_subscription_that_breaks_counts_it_again(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A subscription that breaks just when it is counted is counted when it is there again."""
    monkeypatch.setattr("aiolock.stores.redis._session.PUSH_TIMEOUT", 0.7)
    introduce = Session._introduce

    async def introduce_and_break(session: Session) -> None:
        await introduce(session)
        session.subscription.drop(ConnectionResetError("broken"))

    monkeypatch.setattr(Session, "_introduce", introduce_and_break)
    store = store_on(server.url, prefix)
    await store.open("me", unheeded)
    assert store.session.health.counted
    await store.aclose()


async def test_open_at_a_server_that_may_evict_locks_logs_a_warning(
    own_server: RedisServer, prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Where a full server would evict locks, opening warns of it, and else it does not."""
    for limit, policy, warns in [
        ("0", "allkeys-lru", False),
        ("100mb", "noeviction", False),
        ("100mb", "volatile-ttl", True),
        ("100mb", "allkeys-lru", True),
    ]:
        own_server.call("CONFIG", "SET", "maxmemory", limit)
        own_server.call("CONFIG", "SET", "maxmemory-policy", policy)
        caplog.clear()
        async with aiolock.connect(own_server.url, prefix=prefix):
            assert (f"maxmemory-policy is {policy}" in caplog.text) is warns


# --- ACL

RULE = ACL_RULE.format(prefix="prefix").split()
RIGHTS = [word for word in RULE if word != "resetchannels"]  # it is no right: it takes some away
BLANK = ("reset", "on", ">pw", "resetchannels")  # Redis 6.2 gives new users all channels


@pytest.fixture(scope="module")
def acl_server() -> Iterator[RedisServer]:
    """A server that knows all scripts already, from a client with more rights."""
    with RedisServer() as server:
        for script in vars(_scripts).values():
            if isinstance(script, _scripts.Script):
                server.call("SCRIPT", "LOAD", script.source)
        yield server


async def test_acl_rule_alone_is_enough_for_every_operation(acl_server: RedisServer) -> None:
    """With just the rights of the rule everything works."""
    acl_server.call("ACL", "SETUSER", "least", "reset", "on", ">pw", *RULE)
    url = f"redis://least:pw@127.0.0.1:{acl_server.port}/3"
    async with aiolock.connect(url, prefix="prefix") as client:
        await check_works(client)
        # And where the scripts have to be told.
        acl_server.call("SCRIPT", "FLUSH")
        await check_works(client)


@pytest.mark.parametrize("right", RIGHTS)
async def test_open_without_one_right_of_the_acl_rule_names_the_rule(
    acl_server: RedisServer, right: str
) -> None:
    """Without any one of the rights opening fails, names the rule, and leaves nothing for ever."""
    rights = [other for other in RIGHTS if other != right]
    acl_server.call("ACL", "SETUSER", "less", *BLANK, *rights)
    url = f"redis://less:pw@127.0.0.1:{acl_server.port}/3"
    await fails(url, re.escape(ACL_RULE.format(prefix="prefix")))
    with redis.Redis(port=acl_server.port, db=3, decode_responses=True) as raw:
        left: Any = raw.keys("*")
        for_ever = [key for key in left if raw.pttl(key) == -1]
        raw.flushdb()
    assert for_ever == []


# --- The caller's own client

Options = dict[str, Any]


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({}, id="default"),
        pytest.param({"decode_responses": True}, id="decode_responses"),
        pytest.param({"decode_responses": True, "protocol": 3}, id="protocol_3_decoded"),
        pytest.param({"protocol": 3}, id="protocol_3"),
        pytest.param({"max_connections": 1}, id="max_connections_1"),
        pytest.param({"single_connection_client": True}, id="single_connection_client"),
        pytest.param({"client_name": "caller"}, id="client_name"),
        pytest.param({"encoding": "utf-16"}, id="encoding"),
        pytest.param({"health_check_interval": 1, "socket_timeout": 0.1}, id="health_check"),
        pytest.param({"retry": Retry(ExponentialBackoff(), 3)}, id="retry"),
    ],
)
async def test_connect_with_a_callers_client_of_any_options_works(
    server: RedisServer, prefix: str, options: Options
) -> None:
    """A client of the caller's serves whatever its options, and stays the caller's."""
    async with redis.asyncio.Redis(port=server.port, **options) as caller:
        await caller.ping()
        async with aiolock.connect(caller, prefix=prefix) as client:
            await check_works(client)
            async with client.lock("lock"):
                await caller.ping()
        assert await caller.ping()


async def test_connection_looks_up_the_redis_py_version_only_once(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection reads no files to tell the server which redis-py it is."""
    one, other = (aiolock.connect(server.url, prefix=prefix) for _ in range(2))
    async with one:
        await check_works(one)
    monkeypatch.setattr(importlib.metadata, "version", Mock(side_effect=AssertionError))
    # In the tests, this one does not come as far as that.
    monkeypatch.setattr("redis.utils.get_lib_version", Mock(side_effect=AssertionError))
    async with other:
        await check_works(other)


def test_driver_of_a_caller_with_its_own_lib_name_adds_nothing() -> None:
    """A caller that tells a server which library it is has its way."""
    assert not _wire._driver({"lib_name": "caller"})


async def test_connect_with_a_callers_exhausted_blocking_pool_works(
    server: RedisServer, prefix: str
) -> None:
    """A blocking pool whose only connection is in use does not block us, nor we it."""
    pool = redis.asyncio.BlockingConnectionPool.from_url(server.url, max_connections=1, timeout=1)
    async with redis.asyncio.Redis(connection_pool=pool) as caller:
        blpop: Any = caller.blpop(["nothing"], timeout=0)  # typed for both kinds of client
        popping: asyncio.Task[Any] = asyncio.create_task(blpop)
        await until(lambda: "cmd=blpop" in server.call("CLIENT", "LIST"))
        async with aiolock.connect(caller, prefix=prefix) as client:
            await check_works(client)
        assert not popping.done()
        server.call("RPUSH", "nothing", "something")
        assert await popping
        server.call("DEL", "nothing")
    await pool.disconnect()


async def test_connect_with_a_callers_tls_client_and_password_works(
    locked_server: RedisServer, prefix: str
) -> None:
    """What the caller's client knows of TLS and passwords is used."""
    async with redis.asyncio.Redis.from_url(locked_server.tls_url) as caller:
        async with aiolock.connect(caller, prefix=prefix) as client:
            await check_works(client)
        assert await caller.ping()


async def test_open_with_a_callers_wrong_password_raises_store_error(
    locked_server: RedisServer,
) -> None:
    """A client that cannot connect is a StoreError, and is left as it was."""
    port = locked_server.port
    async with redis.asyncio.Redis(port=port, username="late", password="its own") as caller:
        before = dict(caller.connection_pool.connection_kwargs)
        await fails(caller, "WRONGPASS|invalid")
        assert caller.connection_pool.connection_kwargs == before
        locked_server.call("ACL", "SETUSER", "late", "on", ">its own", "+ping")
        try:
            assert await caller.ping()
        finally:
            locked_server.call("ACL", "DELUSER", "late")


@pytest.mark.parametrize("kind", [redis.Redis, redis.RedisCluster])
def test_connect_with_a_blocking_client_raises_type_error(kind: type) -> None:
    """A client that would block the event loop is refused."""
    caller: Any = object.__new__(kind)  # to make one in earnest takes a cluster
    with pytest.raises(TypeError, match=rf"blocking.*asyncio\.{kind.__name__}"):
        aiolock.connect(caller)


# --- Opening and closing


def unheeded(_: Event) -> None:
    """Deliver it to nobody."""


def connections(server: RedisServer) -> int:
    """How many connections a server has, but for the one that asks."""
    return len(server.call("CLIENT", "LIST").strip().splitlines()) - 1


async def test_store_that_was_closed_opens_again(server: RedisServer, prefix: str) -> None:
    """A store that was closed opens anew, as often as one likes."""
    store = store_on(server.url, prefix)
    await store.aclose()
    for _ in range(3):
        await store.open("me", unheeded)
        assert store.session.health.counted
        assert (await store.submit(ReadPosted("x"))).count == 0
        await store.aclose()
        await store.aclose()


@pytest.mark.parametrize("loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_store_that_was_closed_opens_again_in_another_event_loop(
    server: RedisServer, prefix: str, loop: Any
) -> None:
    """Also in the event loop that comes after the one that it was closed in."""
    store = store_on(server.url, prefix)

    async def main() -> None:
        await store.open("me", unheeded)
        assert store.session.health.counted
        assert (await store.submit(ReadPosted("x"))).count == 0
        await store.aclose()

    for _ in range(2):
        with asyncio.Runner(loop_factory=loop) as runner:
            runner.run(main())


@pytest.mark.parametrize("turns", [0, 1, 2, 3, 5, 8, 13, 21, 34, 55])
@pytest.mark.parametrize("how", ["closed", "cancelled", "scope"])
async def test_open_closed_or_cancelled_at_any_step_leaves_no_connection(
    own_server: RedisServer, prefix: str, turns: int, how: str
) -> None:
    """A store that is closed, or whose opening is cancelled, leaves no connection behind."""
    store = store_on(own_server.url, prefix)
    scope = anyio.CancelScope()

    async def opens() -> None:
        with scope:
            await store.open("me", unheeded)

    opening = asyncio.create_task(opens())
    for _ in range(turns):
        await asyncio.sleep(0)
    if how == "closed":
        await store.aclose()
    elif how == "cancelled":
        opening.cancel()
    else:
        scope.cancel()
    for error in await asyncio.gather(opening, return_exceptions=True):
        assert error is None or isinstance(error, asyncio.CancelledError | aiolock.StoreError)
    await store.aclose()
    await until(lambda: connections(own_server) == 0)


async def test_aclose_after_a_cancelled_open_waits_for_its_end(
    proxy: Proxy, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is left of a cancelled opening is waited for, and does nothing to the next."""
    client = aiolock.connect(proxy.url, prefix=prefix)
    store: Any = client._engine.store
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT_TIMEOUT", 0.2)
    opening = asyncio.create_task(client.open())
    async with asyncio.timeout(30):
        while not (store._session is not None and store.session.pipe.outbox.sent):  # noqa: ASYNC110  # each turn counts
            await asyncio.sleep(0)
    proxy.deaf()
    opening.cancel()
    await until(lambda: store.session.closing)
    await client.aclose()
    assert [task for task in asyncio.all_tasks() if task.get_name() == "aiolock open"] == []
    assert opening.cancelled()
    proxy.hear()
    async with client, client.lock("lock") as lease:
        assert await lease.verify()


async def test_open_during_aclose_keeps_its_new_connections(proxy: Proxy, prefix: str) -> None:
    """The end of one opening takes no connection from the next."""
    store = store_on(proxy.url, prefix)
    await store.open("me", unheeded)
    before = store.session.subscription
    await linked(proxy)
    commands = command_link(proxy)
    commands.deaf()
    closing = asyncio.create_task(store.aclose())
    await until(lambda: store.session.closing)
    await store.open("me", unheeded)
    commands.hear()
    await closing
    assert before._link.wire is None
    assert store.session.subscription._link.wire is not None
    await store.aclose()


class Slow:
    """An opening that never ends by itself, and takes its time to clean up."""

    def __init__(self) -> None:
        self.opening = Opening()
        self.cleaned = asyncio.Event()
        self.state = "new"

    async def run(self) -> str:
        """Open it; the state when that has returned, or was cancelled."""
        with contextlib.suppress(asyncio.CancelledError, aiolock.StoreError):
            await self.opening.run(self._steps(), self._aclose)
        return self.state

    async def end(self) -> str:
        """Stop it; the state when that has returned, or was cancelled."""
        with contextlib.suppress(asyncio.CancelledError):
            await self.opening.end()
        return self.state

    async def _steps(self) -> None:
        self.state = "opens"
        try:
            await asyncio.Event().wait()
        finally:
            self.state = "cleans up"
            await self.cleaned.wait()
            self.state = "clean"

    async def _aclose(self) -> None:
        raise AssertionError("it was never open")


@pytest.mark.parametrize("how", ["run, run", "run, end", "end, end"])
async def test_opening_that_is_stopped_returns_only_when_it_is_cleaned_up(how: str) -> None:
    """However often it is stopped, and whoever is cancelled that waits for its end."""
    slow = Slow()
    tasks = [asyncio.create_task(slow.run())]
    await until(lambda: slow.state == "opens")
    if how == "end, end":
        tasks.append(asyncio.create_task(slow.end()))
    else:
        tasks[0].cancel()
    await until(lambda: slow.state == "cleans up")
    if how == "run, end":
        tasks.append(asyncio.create_task(slow.end()))
    else:
        tasks[-1].cancel()
    for _ in range(5):
        await asyncio.sleep(0)
    slow.cleaned.set()
    assert await asyncio.gather(*tasks) == ["clean"] * len(tasks)


# --- What a client leaves and costs


async def test_keys_of_a_lock_all_expire_and_not_before_its_lease(
    server: RedisServer, prefix: str
) -> None:
    """Should all clients vanish, their keys go too, but none before the lease it speaks of."""
    async with aiolock.connect(server.url, prefix=prefix) as client:
        for ttl in (5, 30, 3600):
            lease = await take(client.lock("lock", ttl=ttl))
            waiting = asyncio.create_task(take(client.lock("lock", ttl=ttl)))
            await Peek(server, prefix).queued(1)
            for _ in range(2):
                keys: list[str] = server.call("KEYS", f"{prefix}:*")
                left = {key: server.call("PTTL", key) / 1000 for key in keys}
                assert all(seconds > 0 for seconds in left.values())
                # The label of a client, posted once an acquisition lasts for a second or two, has
                # holders as well.
                of_lock = f"{prefix}:{{lock:lock}}"
                assert {f"{of_lock}:{kind}" for kind in ("holders", "fence", "queue")} < set(left)
                assert left[f"{of_lock}:holders"] > lease.remaining()
                await lease.extend(2 * ttl)
            await lease.release()
            lease = await asyncio.wait_for(waiting, 5)
            await lease.release()


async def test_client_has_two_connections_however_many_locks_it_uses(
    own_server: RedisServer, prefix: str
) -> None:
    """A process has two connections, however many wait and hold; closed, it has none."""
    assert connections(own_server) == 0
    peeks = [Peek(own_server, prefix, f"lock:{name}") for name in range(10)]
    async with aiolock.connect(own_server.url, prefix=prefix) as client:
        assert connections(own_server) == 2

        async def work(name: str) -> None:
            async with client.lock(name):
                await asyncio.sleep(0)

        leases = [await take(client.lock(str(name))) for name in range(10)]
        async with asyncio.TaskGroup() as tasks:
            for number in range(200):
                tasks.create_task(work(str(number % 10)))
            for peek in peeks:
                await peek.queued(20)
            assert connections(own_server) == 2
            for lease in leases:
                await lease.release()
        assert connections(own_server) == 2
    await until(lambda: connections(own_server) == 0)
    check_nothing_left(own_server, prefix)


def _sent(requests: bytes, script: _scripts.Script) -> int:
    """How often a script was called, by its digest or with its source."""
    return requests.count(script.digest.encode()) + requests.count(script.source.encode())


@pytest.mark.parametrize(
    ("waiters", "place", "every"),
    [
        pytest.param(1, 1, 0.5, id="one_that_is_next"),
        pytest.param(1, 2, 0.1, id="one_behind_another_client"),
        pytest.param(50, 1, 0.5, id="fifty"),
    ],
)
async def test_idle_waiters_ask_at_most_once_in_each_interval(
    server: RedisServer,
    prefix: str,
    monkeypatch: pytest.MonkeyPatch,
    *,
    waiters: int,
    place: int,
    every: float,
) -> None:
    """The next in line asks no more than once in 10 s; one further back every 3 s.

    With each question in silence comes the heartbeat. All times are a twentieth of the real ones,
    but for those after which the waiters are labelled, once and together.
    """
    monkeypatch.setattr("aiolock._engine.waiters.CLAIM", 150)
    monkeypatch.setattr("aiolock._engine.backstop.CLAIM", 150)
    monkeypatch.setattr("aiolock._engine.backstop.KEEP_ALIVE", 3.0)
    monkeypatch.setattr("aiolock.stores.redis._health.HEARTBEAT", 0.5)
    peek = Peek(server, prefix)
    async with (
        Proxy(server.port) as proxy,
        aiolock.connect(server.url, prefix=prefix, ttl=1.5) as other,
        aiolock.connect(proxy.url, prefix=prefix, ttl=1.5) as client,
    ):
        lease = await take(other.lock("lock"))
        ahead = [asyncio.create_task(take(other.lock("lock"))) for _ in range(place - 1)]
        await peek.queued(place - 1)
        waiting = [asyncio.create_task(take(client.lock("lock"))) for _ in range(waiters)]
        await peek.queued(place - 1 + waiters)
        known = client._engine.waiters._queues
        await until(lambda: sum(len(queue.acquisitions) for queue in known.values()) == waiters)
        proxy.recording = True
        start = time.monotonic()
        await asyncio.sleep(1.4)
        # A question is the heartbeat, sooner or later: where one is under way already when the
        # heart is to beat, that goes out by itself.
        await until(lambda: _sent(b"".join(proxy.requests), _scripts.ACQUIRE_HEARTBEAT))
        proxy.recording = False
        sent = b"".join(proxy.requests)
        lasted = time.monotonic() - start
        asked = sent.count(_scripts.ACQUIRE.digest.encode())
        beaten = _sent(sent, _scripts.ACQUIRE_HEARTBEAT) + _sent(sent, _scripts.PRESENCE)
        assert asked + beaten <= 2 + lasted / every  # one at either end of that time
        assert beaten <= 1 + lasted / 0.5
        labelled = _sent(sent, _scripts.POST)  # after a second or two, for who asks for a status
        assert labelled <= 1
        assert sent.count(b"EVAL") == asked + beaten + labelled
        for waiter in (*ahead, *waiting):
            await lease.release()
            lease = await asyncio.wait_for(waiter, 5)
        await lease.release()


async def test_handoff_to_a_client_that_cannot_be_counted_is_not_skipped(
    server: RedisServer, prefix: str
) -> None:
    """Where one client's listening cannot be counted, nobody takes its waiters for dead."""
    blind = store_on(server.url, prefix)
    async with (
        Peer(store_on(server.url, prefix)) as ann,
        Peer(blind) as bob,
        Peer(store_on(server.url, prefix)) as cat,
    ):
        # As where the server does not count subscribers.
        texts = blind.operations._texts = Texts(bob.client, blind=True)
        blind.operations._encoding._texts = texts
        blind.operations._encoding._text = texts.text
        blind.operations._encoded.clear()
        grant = await ann.take("n")
        waiting = [await bob.queue("n"), await cat.queue("n")]
        await bob.store.aclose()
        await ann.sees_end_of(cat)
        status = await ann.store.submit(ReadStatus("n"))
        assert [party.alive for party in status.waiters] == [True, False]
        await ann.release("n", grant)
        (holder,) = (await ann.store.submit(ReadStatus("n"))).holders
        assert (holder.client, holder.alive) == (bob.client, True)
        assert waiting[0].waiter.client == bob.client
        assert await ann.store.submit(Break("n", [holder.fence])) == 1


@pytest.mark.parametrize("when", ["before", "meanwhile"])
async def test_subscription_not_counted_is_dropped_only_if_confirmed_before(
    server: RedisServer, prefix: str, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """That nobody heard us says something only where we were subscribed all the while."""
    store = store_on(server.url, prefix)
    async with Peer(store):
        subscription = store.session.subscription
        wire, since = subscription._link.wire, subscription.since
        counted: asyncio.Future[_replies.Present] = asyncio.get_running_loop().create_future()
        monkeypatch.setattr(store.session.health, "presence", lambda: counted)
        if when == "meanwhile":
            subscription.since = None  # and confirmed before the answer comes
        store.session.health.ask_whether_counted()
        subscription.since = since
        counted.set_result(_replies.Present(heard=0, now=0))
        await asyncio.sleep(0)
        dropped = subscription._link.wire is not wire
        assert dropped == (when == "before")
        monkeypatch.undo()
        await until(lambda: subscription.since is not None)
