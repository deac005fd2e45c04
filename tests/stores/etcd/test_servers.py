"""Servers that are not there, that want a certificate, a login or a right, or that are full."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence

import pytest

import aiolock
from aiolock import StoreError
from aiolock.stores.etcd._failures import CallError
from aiolock.stores.etcd._replies import Event
from aiolock.stores.etcd._servers import Servers
from aiolock.stores.etcd._settings import from_url
from aiolock.stores.etcd._store import EtcdStore
from aiolock.stores.etcd._watch import Watch
from tests.support.etcds import EtcdServer, need_etcd

LONG = 60


def session_of(client: aiolock.LockClient) -> EtcdStore:
    """The store of a client."""
    store = client._engine.store
    while not isinstance(store, EtcdStore):
        store = store._store  # type: ignore[attr-defined]  # of a wrapper
    return store


async def works(url: str, prefix: str) -> None:
    """Check that locks can be used."""
    async with (
        aiolock.connect(url, prefix=prefix) as ours,
        aiolock.connect(url, prefix=prefix) as theirs,
    ):
        async with ours.lock("a", ttl=LONG):
            waiting = asyncio.create_task(theirs.lock("a", ttl=LONG, timeout=20).acquire())
            async with asyncio.timeout(30):
                while not (await ours.lock("a").status()).waiters:  # noqa: ASYNC110  # no event
                    await asyncio.sleep(0.005)
        await (await waiting).release()


# Addresses


async def test_open_finds_the_server_that_is_there(etcd_server: EtcdServer, prefix: str) -> None:
    """Servers that do not answer are left for the next one."""
    (address,) = etcd_server.addresses
    await works(f"etcd://127.0.0.1:1,127.0.0.1:2,{address}", prefix)


async def test_open_without_a_server_raises_refused_in_time() -> None:
    """The error says where nobody listens; nothing is left behind."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    client = aiolock.connect("etcd://127.0.0.1:1,127.0.0.1:2")
    with pytest.raises(StoreError, match=r"127\.0\.0\.1:[12].*see host and port") as raised:
        await client.open()
    assert raised.value.refused
    assert loop.time() - begun < 9.5


async def test_open_of_what_is_no_etcd_raises_store_error() -> None:
    """A server of another kind is no reason to hang."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(10)
        writer.write(b"-ERR unknown command\r\n" * 9)
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        with pytest.raises(StoreError, match=r"etcd at 127\.0\.0\.1"):
            await aiolock.connect(f"etcd://127.0.0.1:{port}").open()


# TLS


@pytest.fixture(scope="module")
def tls_server() -> Iterator[EtcdServer]:
    """A server that asks its clients for a certificate."""
    need_etcd()
    with EtcdServer(tls=True) as server:
        yield server


async def test_tls_with_a_client_certificate_works(tls_server: EtcdServer, prefix: str) -> None:
    """The server is checked by its CA, and the client by its certificate."""
    await works(tls_server.url(), prefix)


async def test_tls_with_another_ca_is_misconfigured(tls_server: EtcdServer) -> None:
    """A server whose certificate is not of the CA is not trusted."""
    url = f"etcds://{tls_server.addresses[0]}"
    with pytest.raises(StoreError, match="not of the CA in the URL") as raised:
        await aiolock.connect(url).open()
    assert raised.value.misconfigured


async def test_tls_without_a_client_certificate_fails(tls_server: EtcdServer) -> None:
    """A server that asks for a certificate does not answer without one."""
    assert tls_server.certificates is not None
    url = f"etcds://{tls_server.addresses[0]}?ca={tls_server.certificates.ca}"
    with pytest.raises(StoreError):
        await aiolock.connect(url).open()


@pytest.mark.parametrize("scheme", ["etcd", "etcds"])
async def test_tls_on_one_side_only_fails(
    tls_server: EtcdServer, etcd_server: EtcdServer, scheme: str
) -> None:
    """A client that speaks TLS to a server that does not, or the other way round."""
    server = tls_server if scheme == "etcd" else etcd_server
    with pytest.raises(StoreError):
        await aiolock.connect(f"{scheme}://{server.addresses[0]}").open()


# Users


@pytest.fixture(scope="module")
def users() -> Iterator[EtcdServer]:
    """A server where users have rights: root all, `app` those for locks below ``mine/``."""
    need_etcd()
    with EtcdServer(1, "--auth-token-ttl=2") as server:
        for user in ("root", "app"):
            server.ctl("user", "add", f"{user}:s3cret:{user}")
            server.ctl("role", "add", user)
            server.ctl("user", "grant-role", user, user)
        server.ctl("role", "grant-permission", "app", "--prefix=true", "readwrite", "mine/")
        server.ctl("auth", "enable")
        yield server


LOGIN = "app:s3cret%3Aapp@"


async def test_user_with_rights_to_the_prefix_can_use_locks(users: EtcdServer) -> None:
    """The rights that the page names are enough."""
    await works(users.url("/mine", login=LOGIN), "a")


async def test_token_that_has_expired_is_renewed(users: EtcdServer) -> None:
    """Simple tokens end after a while without use, and with the server."""
    async with aiolock.connect(users.url("/mine", login=LOGIN), prefix="t") as client:
        session = session_of(client)._session
        assert session is not None
        login = session._servers._login
        for _ in range(2):
            login._token = "expired.1"  # no token
            async with client.lock("a", ttl=LONG):
                pass
        assert login._token != "expired.1"


async def test_watch_whose_token_has_expired_gets_a_new_one(users: EtcdServer) -> None:
    """It is refused as if a right were missing: then it asks for another token by itself."""

    class Nobody:
        def on_events(self, events: Sequence[Event]) -> None: ...

        async def on_gap(self) -> int:
            return 1

    downs = list[CallError]()
    servers = Servers(from_url(users.url("/mine", login=LOGIN)))
    watch = Watch(servers, Nobody(), up=lambda: None, down=downs.append)
    watch.start([b"mine/watched"], 1)
    servers._login._token = "expired.1"
    running = asyncio.create_task(watch.run())
    try:
        async with asyncio.timeout(10):
            await watch.opened.wait()
        assert len(downs) == 1, downs
    finally:
        running.cancel()
        await asyncio.wait([running])
        await servers.aclose()


async def test_server_that_has_restarted_gets_a_new_token(prefix: str) -> None:
    """Its tokens are forgotten, those of streams, too; what is held stays held."""
    with EtcdServer(1) as server:
        server.ctl("user", "add", "root:root")
        server.ctl("auth", "enable")
        url = server.url(login="root:root@")
        async with aiolock.connect(url, prefix=prefix) as client:
            lease = await client.lock("a", ttl=LONG).acquire()
            (node,) = server.nodes
            await asyncio.to_thread(node.kill)
            await asyncio.to_thread(server.restart, node)
            await asyncio.to_thread(node.wait_ready)
            async with asyncio.timeout(30):
                while True:
                    try:
                        assert await lease.verify()
                        break
                    except StoreError:
                        await asyncio.sleep(0.05)
            assert await lease.release()


@pytest.mark.parametrize(
    ("login", "path", "match"),
    [
        ("app:wrong@", "/mine", "see the user and the password"),
        ("", "/mine", "put a user and a password into the URL"),
        (LOGIN, "/theirs", "grant-permission ROLE --prefix readwrite theirs/a/v1/"),
    ],
)
async def test_user_without_a_right_is_misconfigured(
    users: EtcdServer, login: str, path: str, match: str
) -> None:
    """The error says what is missing, at once, and nothing that is secret."""
    loop = asyncio.get_running_loop()
    begun = loop.time()
    with pytest.raises(StoreError, match=match) as raised:
        await aiolock.connect(users.url(path, login=login), prefix="a").open()
    assert raised.value.misconfigured
    assert raised.value.refused
    for secret in ("s3cret", "wrong"):
        assert secret not in f"{raised.value!r} {raised.value.__cause__!r}"
    assert loop.time() - begun < 3  # it is not tried again


async def test_login_where_everybody_may_do_everything_works(
    etcd_server: EtcdServer, prefix: str
) -> None:
    """As with etcd's own clients."""
    await works(etcd_server.url(login="some:body@"), prefix)


# No space


def _fill(server: EtcdServer) -> None:
    """Write until nothing may be written any more."""
    for number in range(100):
        try:
            server.ctl("put", f"filler{number}", "x" * 100_000)
        except RuntimeError as error:
            assert "space exceeded" in str(error)  # noqa: PT017  # any write may be the last
            return
    raise AssertionError("there is still space")


async def test_server_without_space_refuses_clearly_and_keeps_what_is_held(prefix: str) -> None:
    """No lock can be taken or released, but what is held is renewed, and the error helps."""
    with EtcdServer(1, "--quota-backend-bytes=1000000") as server:
        async with aiolock.connect(server.url(), prefix=prefix) as client:
            lease = await client.lock("held", ttl=3).acquire()
            await asyncio.to_thread(_fill, server)
            with pytest.raises(StoreError, match=r"quota is used up.*alarm disarm") as raised:
                await client.lock("a", ttl=LONG).acquire()
            assert raised.value.refused
            await asyncio.sleep(3.5)
            assert lease.state is aiolock.LeaseState.HELD
            with pytest.raises(StoreError, match="quota is used up"):
                await aiolock.connect(server.url()).open()
            await asyncio.to_thread(server.ctl, "del", "--prefix", "filler")
            await asyncio.to_thread(server.compact)
            await asyncio.to_thread(server.ctl, "defrag")
            await asyncio.to_thread(server.ctl, "alarm", "disarm")
            assert await lease.release()
            async with client.lock("a", ttl=LONG):
                pass
