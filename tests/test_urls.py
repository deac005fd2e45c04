"""What is read of a URL, and that none of its secrets is ever shown, whatever is wrong with it."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import string
import traceback
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any, Final
from urllib.parse import quote

import pytest
import redis.asyncio
import redis.exceptions

import aiolock
import aiolock.sync
from aiolock._urls import Shown
from aiolock.cli.main import _parser, main
from aiolock.stores.redis._urls import pool_at
from tests.support.databases import MariaDBServer, PostgresServer, free_port
from tests.support.servers import RedisServer

MARKS: Final = f"{string.punctuation} "
"""All 33 characters of ASCII that are printed and neither letters nor digits."""
LEFT, RIGHT = "Zq7Xv9", "Wk3Jy8"
"""What is on both sides of the mark; no word has three characters of them in a row."""

URLS: Final = [
    "redis://app:{}@127.0.0.1:{port}/0",
    "redis://:{}@127.0.0.1:{port}",
    "redis://{}@127.0.0.1:{port}",
    "redis://127.0.0.1:{port}/0?password={}",
    "redis://127.0.0.1:{port}/0?username=app&password={}&socket_timeout=1",
    "redis://app:{}@127.0.0.1:notaport/0",
    "redis://app:{}@127.0.0.1:{port}/x",
    "redis://127.0.0.1:{port}/{}",
    "redis://app:{}@127.0.0.1:{port}/0?db=0&colour=1",
    "rediss://app:{}@127.0.0.1:{port}/0?ssl_cert_reqs=none",
    "rediss://app:{}@127.0.0.1:{port}/0?ssl_cert_reqs=CERT_NONE",
    "rediss://127.0.0.1:{port}/0?ssl_password={}&ssl_keyfile=/nowhere",
    "unix://app:{}@/nowhere/redis.sock",
    "unix:///nowhere/redis.sock?password={}",
    "valkey://app:{}@127.0.0.1:{port}/0",
    "redis+sentinel://app:{}@127.0.0.1:{port}/locks",
    "redis+sentinel://127.0.0.1:{port}/locks?sentinel_password={}",
    "redis+cluster://app:{}@127.0.0.1:{port},127.0.0.1:{port}",
    "redis+cluster://app:{}@127.0.0.1:{port}/1",
    "memory://app:{}@name",
    "memory://name/{}",
    "sqlite://app:{}@host/locks.db",
    "sqlite:///app:{}@host/locks.db",
    "sqlite:////app:{}@host/locks.db",
    "unix:///app:{}@host/0",
    "postgresql://app:{}@127.0.0.1:{port}/shop?connect_timeout=1",
    "postgresql://127.0.0.1:{port}/shop?connect_timeout=1&password={}",
    "postgresql://127.0.0.1:{port}/shop?password={}&connect_timeout=x",
    "postgresql://app@127.0.0.1:{port}/shop?sslpassword={}&connect_timeout=1",
    "postgresql://app:{}@127.0.0.1:notaport/shop",
    "postgresql://app@127.0.0.1:{port}/shop?pooled=1&listen_url=postgresql://app:{}@127.0.0.1:1/d",
    "mysql://app:{}@127.0.0.1:{port}/shop",
    "mysql://127.0.0.1:{port}/shop?password={}",
    "mysql://app:{}@127.0.0.1:{port}/a/b",
    "mariadb://app:{}@127.0.0.1:{port}/shop?poll=x",
    "etcd://app:{}@127.0.0.1:{port}/shop",
    "etcd://app:{}@127.0.0.1:{port}/shop?poll=x",
    "etcds://app:{}@127.0.0.1:{port}?ca=/nowhere",
    # Without a scheme, or nearly so.
    "app:{}@127.0.0.1:{port}",
    "{}@127.0.0.1",
    "{}",
    "{}://127.0.0.1",
    "redis:/app:{}@127.0.0.1",
    "redis//app:{}@127.0.0.1",
    "redis:app:{}@127.0.0.1",
    "redi://app:{}@127.0.0.1",
    "REDIS://app:{}@127.0.0.1",
    "https://app:{}@127.0.0.1",
    "postgresql+asyncpg://app:{}@127.0.0.1/shop",
    " redis://app:{}@127.0.0.1/0",
    "redis://app:{}@127.0.0.1/0\n",
    '"redis://app:{}@127.0.0.1/0"',
    "'redis://app:{}@127.0.0.1/0'",
    "redis://app:{}@[127.0.0.1]/0",
    "redis://app:{}@[::1/0",
    "redis://app:{}",
    "redis://app:{}@",
]


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    """All that is logged, by anybody, with tracebacks."""
    text = io.StringIO()
    handler, root = logging.StreamHandler(text), logging.getLogger()
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield text
    root.removeHandler(handler)
    root.setLevel(level)


def passwords() -> Iterator[tuple[str, str]]:
    """Passwords with each of the marks, and how they are written: as they are, and encoded."""
    for mark in MARKS:
        yield f"{LEFT}{mark}{RIGHT}", f"{LEFT}{mark}{RIGHT}"
        yield f"{LEFT}{mark}{RIGHT}", f"{LEFT}%{ord(mark):02X}{RIGHT}"
        yield f"12{mark}{RIGHT}", f"12{mark}{RIGHT}"  # as if it were a port
    yield f"{LEFT}ü{RIGHT}", f"{LEFT}%FC{RIGHT}"
    yield f"{LEFT}&db={RIGHT}", f"{LEFT}&db={RIGHT}"
    yield f"{LEFT}&{RIGHT}=1", f"{LEFT}&{RIGHT}=1"


def leaked(text: str) -> list[str]:
    """The runs of three characters of a password that are in this text."""
    return [
        part[at : at + 3] for part in (LEFT, RIGHT) for at in range(4) if part[at : at + 3] in text
    ]


def all_texts(error: BaseException) -> str:
    """All that an error may show, also to who looks at its parts.

    But not the lines of the source that a traceback shows: they have no values.
    """
    texts = ""
    seen: list[BaseException | None] = [error]
    for each in seen:
        if each is not None:
            texts += "".join(traceback.format_exception_only(each))
            texts += f"{each!r} {each.args!r} {vars(each)!r}"
            seen += [one for one in (each.__cause__, each.__context__) if one not in seen]
    return texts


async def opened(url: str | list[str]) -> str:
    """All that is shown by a client of this URL, from its making to its end."""
    shown = name = ""
    try:
        client = aiolock.connect(url)
        name = client.id  # which is random, and so may have anything in it
        shown += f"{client!r} {client._engine.store!r} {vars(client._engine.store)!r}"
        async with client:
            pass
    except (aiolock.StoreError, ValueError, ImportError) as error:
        shown += all_texts(error)
    return shown.replace(name, "") if name else shown


@pytest.mark.one_loop
@pytest.mark.parametrize("url", URLS, ids=lambda url: url.strip().replace("{}", "PW"))
def test_password_of_any_character_is_shown_nowhere(
    url: str, log: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither raw nor encoded, in no error, repr, traceback and line of the log."""
    monkeypatch.setenv("SSL_CERT_FILE", os.devnull)  # to read all of them takes a while each time
    # Tracebacks show lines of the source, not values: few of them, and read once, are enough.
    monkeypatch.setattr("asyncio.constants.DEBUG_STACK_DEPTH", 1)
    monkeypatch.setattr("linecache.checkcache", lambda *_: None)
    port = free_port()

    async def all_of_them() -> None:
        for number, (_, written) in enumerate(passwords()):
            # What the loop's debug mode shows more of does not go by the mark.
            asyncio.get_running_loop().set_debug(number % 12 == 0)
            if "@" in written and "@" not in url:
                continue  # it is a URL of the host behind that
            shown = await opened(url.replace("{port}", str(port)).replace("{}", written))
            assert shown
            assert leaked(shown) == [], written

    asyncio.run(all_of_them())
    assert leaked(log.getvalue()) == []


@pytest.mark.one_loop
@pytest.mark.parametrize("scheme", ["postgresql", "mysql", "redis"])
def test_password_that_begins_like_a_port_is_refused_as_ambiguous(scheme: str) -> None:
    """Before the slash is a host with a port, for all that is known, and behind it a database."""
    with pytest.raises(ValueError, match="an @ behind the first /"):
        aiolock.connect(f"{scheme}://app:12/{LEFT}@127.0.0.1")


@pytest.mark.one_loop
def test_password_in_a_list_of_urls_is_shown_nowhere(log: io.StringIO) -> None:
    """Of any server of a quorum, and with a URL that is in the list twice."""
    port = free_port()
    for _, written in passwords():
        for last in ("redis://app:{}@h:{port}/1", "app:{}@h", "redis://app:{}@h:{port}/x"):
            urls = [f"redis://127.0.0.1:{port}", f"redis://app:{written}@h:{port}/1"]
            urls.append(last.replace("{port}", str(port)).replace("{}", written))
            with pytest.raises(ValueError, match=r"written|twice|begins") as caught:
                aiolock.connect(urls)
            assert leaked(all_texts(caught.value)) == [], written
    assert leaked(log.getvalue()) == []


@pytest.mark.one_loop
@pytest.mark.parametrize("command", ["ls", "check", "init-db", "init-quorum", "web", "demo"])
def test_command_with_a_wrong_url_shows_no_password(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is printed about a URL that is wrong."""
    monkeypatch.setattr("aiolock.cli.main._parser", cache(_parser))  # most of the time went there
    for _, written in passwords():
        for url in ("redis://app:{}@h:x/0", "app:{}@h", "{}@h", "postgresql://app:{}@h:x/d"):
            given = url.replace("{}", written)
            argv = [command, "--url", given]
            if command.startswith("init"):
                argv = [command, given]
            if command == "init-quorum":
                argv += ["redis://h", "redis://h:x/", "--yes"]
            assert main(argv) != 0
            printed = capsys.readouterr()
            assert leaked(printed.out + printed.err) == [], given


@pytest.mark.one_loop
def test_init_db_with_a_dash_takes_the_url_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So that no list of processes shows its password."""
    monkeypatch.delenv("AIOLOCK_URL", raising=False)
    assert main(["init-db", "-"]) == 1
    assert "begins with postgresql://" in capsys.readouterr().err
    monkeypatch.setenv("AIOLOCK_URL", f"postgresql://{LEFT}:{RIGHT}@127.0.0.1:{free_port()}/shop")
    assert main(["init-db", "-"]) == 1
    printed = capsys.readouterr().err
    assert "PostgreSQL at 127.0.0.1" in printed
    assert RIGHT not in printed


@pytest.mark.one_loop
def test_init_quorum_of_servers_that_repeat_the_password_shows_none(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As those do that do not know HELLO or AUTH. Of several errors it prints the first alone."""
    with RedisServer("--rename-command", "HELLO", "", "--rename-command", "AUTH", "") as server:
        urls = [f"redis://app:{LEFT}@{host}:{server.port}" for host in ("127.0.0.1", "localhost")]
        assert main(["init-quorum", *urls, f"redis://127.0.0.1:{free_port()}", "--yes"]) == 69
    (line,) = capfd.readouterr().err.splitlines()
    assert "rename-command" in line
    assert leaked(line) == []


@pytest.mark.one_loop
async def test_password_of_the_environment_is_kept_by_no_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An error of psycopg keeps all that was connected with."""
    monkeypatch.setenv("PGPASSWORD", f"{LEFT}{RIGHT}")
    shown = await opened(f"postgresql://app@127.0.0.1:{free_port()}/shop")
    assert "StoreError" in shown
    assert leaked(shown) == []


@asynccontextmanager
async def echoing(prefix: bytes, *, escape: bool = False) -> AsyncGenerator[int]:
    """A server that repeats what it is sent, as an error or as it is."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1000):
            said = repr(data).encode() if escape else data
            writer.write(prefix + said.replace(b"\r\n", b" ") + b"\r\n")
        writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.sleep(0)


@pytest.mark.one_loop
@pytest.mark.parametrize("prefix", [b"-ERR unknown command, args: ", b"-", b""])
@pytest.mark.parametrize("escape", [False, True])
async def test_password_that_a_server_repeats_is_shown_nowhere(
    prefix: bytes, escape: bool, log: io.StringIO
) -> None:
    """As Redis does with a command that it does not know: it may be the one with the password."""
    async with echoing(prefix, escape=escape) as port:
        for password in (f"{LEFT}\t'\"\\{RIGHT}", f"{LEFT}ü{RIGHT}", f"{LEFT}%2F{RIGHT}"):
            shown = await opened(f"redis://app:{quote(password)}@127.0.0.1:{port}")
            assert "StoreError" in shown
            assert leaked(shown) == []
    assert leaked(log.getvalue()) == []


@pytest.mark.one_loop
@pytest.mark.parametrize("name", ["AUTH", "HELLO"])
async def test_password_with_auth_or_hello_renamed_is_shown_nowhere(
    name: str, log: io.StringIO
) -> None:
    """A Redis that does not know AUTH or HELLO quotes its arguments."""
    with RedisServer("--rename-command", name, "") as server:
        for password in (f"{LEFT}/{RIGHT}", f"{LEFT}'{RIGHT}"):
            url = f"redis://app:{quote(password, safe='')}@127.0.0.1:{server.port}"
            shown = await opened(url)
            assert "StoreError" in shown
            assert "is not shown" not in shown
            assert leaked(shown) == []
            caller = redis.asyncio.Redis(
                port=server.port, username="app", password=password, protocol=3
            )
            with pytest.raises(aiolock.StoreError) as caught:
                await aiolock.connect(caller).open()
            assert leaked(all_texts(caught.value)) == []
            await caller.aclose()
    assert leaked(log.getvalue()) == []


@pytest.mark.one_loop
async def test_password_that_is_refused_is_shown_nowhere(
    postgres_server: PostgresServer, mariadb_server: MariaDBServer, log: io.StringIO
) -> None:
    """By each kind of server."""
    with RedisServer(password="another") as server:
        for mark in "/@:#? ":
            password = quote(f"{LEFT}{mark}{RIGHT}", safe="")
            for url in (
                f"redis://app:{password}@127.0.0.1:{server.port}",
                f"redis+cluster://app:{password}@127.0.0.1:{server.port}",
                f"postgresql://nobody:{password}@127.0.0.1:{postgres_server.port}/postgres",
                f"mysql://nobody:{password}@127.0.0.1:{mariadb_server.port}/shop",
            ):
                shown = await opened(url)
                assert "StoreError" in shown
                assert leaked(shown) == []
    assert leaked(log.getvalue()) == []


@pytest.mark.one_loop
def test_password_of_a_sync_client_is_shown_nowhere(log: io.StringIO) -> None:
    """Which opens in another thread."""
    client = aiolock.sync.connect(f"redis://app:{LEFT}{RIGHT}@127.0.0.1:{free_port()}")
    with pytest.raises(aiolock.StoreError) as caught:
        client.open()
    shown = repr(client) + all_texts(caught.value) + log.getvalue()
    assert leaked(shown.replace(client.id, "")) == []


@pytest.mark.one_loop
class TestShown:
    """What is taken out of a driver's text."""

    def test_text_with_part_of_a_secret_has_stars(self) -> None:
        """Also of one that is cut off, and nothing else is."""
        shown = Shown([f"{LEFT}/{RIGHT}"])
        assert shown.text(f"no such host: {RIGHT}") == "no such host: ***"
        assert shown.text(f"at '{LEFT[:3]}', not 'Zq'") == "at '***', not 'Zq'"

    def test_text_with_a_secret_that_is_public_stays(self) -> None:
        """A password that is the name of the user, too, or a usual word, hides neither."""
        shown = Shown(["postgres"], ["postgres"])
        text = 'password authentication failed for user "postgres"'
        assert shown.text(text) == text
        assert Shown(["password"]).text(text) == text

    def test_error_with_a_secret_has_stars_in_all_its_parts(self) -> None:
        """Its arguments, notes, causes and contexts, and those of a group."""
        secret = LEFT + RIGHT
        inner = OSError(5, secret, secret)
        inner.add_note(secret)
        error: Exception = redis.exceptions.ConnectionError(secret)
        error.__cause__, error.__context__ = ExceptionGroup("some", [inner]), ValueError(secret)
        shown = Shown([secret])
        clean: Any = shown.error(error)
        assert leaked(all_texts(clean)) == []

    def test_error_with_a_secret_in_an_attribute_loses_the_attribute(self) -> None:
        """Some drivers keep all that they connect with."""
        error: Any = ValueError("refused")
        error.settings, error.number = {"password": LEFT}, 7
        assert Shown([LEFT]).error(error) is error
        assert vars(error) == {"settings": None, "number": 7}

    def test_error_that_cannot_be_changed_is_replaced(self) -> None:
        """By one that names its type."""

        class StubbornError(Exception):
            def __str__(self) -> str:
                return LEFT

        def connect() -> None:
            try:
                refuse()
            except StubbornError as error:
                raise Shown([LEFT]).error(error)  # noqa: B904  # as drivers' errors are raised

        def refuse() -> None:
            raise StubbornError

        with pytest.raises(ConnectionError) as caught:
            connect()
        assert str(caught.value) == "StubbornError, whose text is not shown"
        assert leaked("".join(traceback.format_exception(caught.value))) == []

    def test_error_whose_command_arguments_are_cut_is_not_replaced(self) -> None:
        """What is cut from it once need not be cut again: so its exception is not replaced."""
        error = redis.exceptions.ResponseError("no 'AUTH', with args beginning with: 'app' 'x'")
        assert Shown([]).error(error) is error
        assert str(error) == "no 'AUTH', with args beginning with: ***"


OF_REDIS: Final = ("redis", "rediss", "valkey", "valkeys")
OF_SERVERS: Final = (*OF_REDIS, "redis+cluster", "rediss+cluster", "redis+sentinel")
OF_ALL: Final = (*OF_SERVERS, "postgresql", "postgres", "mysql", "mariadb", "etcd", "etcds")


def each_of(schemes: tuple[str, ...], *cases: tuple[str, str]) -> list[Any]:
    """Each case with each scheme; a Sentinel's URL and a database's have a path."""
    return [
        pytest.param(f"{scheme}://{rest}", match, id=f"{scheme}://{rest}")
        for scheme in schemes
        for rest, match in cases
    ]


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("url", "match"),
    [
        *each_of(
            OF_ALL,
            ("h:0/d", r"port of address 1 .* from 1 to 65535"),
            ("h:70000/d", r"port of address 1 .* from 1 to 65535"),
            ("h:99999999999999999999/d", r"port of address 1"),
            ("h:/d", r"address 1 in this URL is no host and port"),
            ("h:x/d", r"address 1 in this URL is no host and port"),
            ("h:+1/d", r"address 1 in this URL is no host and port"),
            ("h:\N{FULLWIDTH DIGIT ONE}/d", r"address 1 in this URL is no host and port"),
            ("a..b/d", r"address 1 in this URL is no host"),
            (f"{'a' * 64}/d", r"address 1 in this URL is no host"),
            ("[::1/d", r"address 1 in this URL is no host"),
            ("::1/d", r"address 1 in this URL is no host"),
            ("[127.0.0.1]/d", r"address 1 in this URL is no host"),
            ("[h]/d", r"address 1 in this URL is no host"),
            ("u:p@x@h/d", r"more than one @"),
            ("h/d#x", r"with a #"),
            ("h/%zz", r"% in this URL"),
            ("h/d?a%FF=1", r"not UTF-8"),
            ("h/d?x", r"name=value"),
            ("h/d?=x", r"name=value"),
            ("h/d?a=1&&b=2", r"name=value"),
            ("h/d?colour=blue", r"there is no option 'colour'"),
            ("h/d ", r"a blank"),
            ("h/d\u200b", r"invisible"),
        ),
        *each_of(
            OF_REDIS,
            ("h/abc", r"not a number"),
            ("h/1/2", r"not a number"),
            ("h/-1", r"not a number"),
            ("h/01", r"not a number"),
            ("h/+1", r"not a number"),
            ("h/%31", r"not a number"),
            ("h/1?db=2", r"its database twice"),
            ("h?db=x", r"db must be a whole number"),
            ("h?db=1&db=1", r"an option 'db' is in this URL twice"),
            ("h,g", r"is of one server"),
            ("u:p@h?password=x", r"has a password twice"),
            ("h?socket_timout=1", r"did you mean 'socket_timeout'"),
            ("h?socket_timeout=-1", r"socket_timeout must be a number, 0 or more, not '-1'"),
            ("h?socket_keepalive=maybe", r"socket_keepalive must be one of"),
            ("h?retry_on_error=x", r"no option 'retry_on_error'"),
            ("", r"names no host"),
            ("/0", r"names no host"),
            ("/localhost", r"names no host .*: did you mean \w+://localhost\?"),
            ("/localhost:6379/0", r"did you mean \w+://localhost:6379/0\?"),
        ),
        *each_of(("rediss",), ("h?ssl_cert_reqs=None", r"did you mean ssl_cert_reqs=none\?")),
        *each_of(("rediss",), ("h?ssl_cert_reqs=CERT_NONE", r"did you mean ssl_cert_reqs=none\?")),
        *each_of(("rediss",), ("h?ssl_ca_certs=/nowhere/ca.pem", r"ssl_ca_certs= .* not there")),
        *each_of(("redis",), ("h?ssl_cert_reqs=none", r"for TLS, which needs rediss://")),
        *each_of(("redis+cluster", "redis+sentinel"), ("h/0?ssl=true", r"for TLS, .* rediss://")),
        *each_of(("rediss",), ("h?ssl_certs_reqs=none", r"did you mean 'ssl_cert_reqs'")),
        *each_of(
            ("unix",),
            ("run/redis.sock", r"begins with a slash"),
            ("", r"names no socket"),
            ("/run/", r"names no socket"),
            ("/run/redis.sock?path=/x", r"no option 'path'"),
        ),
        *each_of(
            ("redis+cluster", "redis+sentinel"),
            ("h,,g/0", r"address 2 in this URL is no host"),
            ("h,g:0/0", r"port of address 2"),
            ("/0", r"names no host"),
        ),
        *each_of(("redis+cluster",), ("h/0/0", r"no databases"), ("h?db=1", r"no databases")),
        *each_of(("redis+sentinel",), ("h/s/1/2", r"not a number"), ("h", r"which service")),
        *each_of(("memory",), ("a:1", r"a name at most"), ("a,b", r"a name at most")),
        *each_of(
            ("postgresql", "postgres"),
            ("h/a/b", r"without a slash"),
            ("h/d?host=g", r"its host twice"),
            ("u@h/d?user=v", r"its user twice"),
            ("h/d?ssl=yes", r"ssl must be one of true"),
            ("h/d?sslmod=require", r"did you mean 'sslmode'"),
            ("h/d?sslmode=requir", r"did you mean sslmode=require\?"),
            ("h/d?sslmode=verify-full&sslrootcert=/nowhere", r"sslrootcert= .* not there"),
            ("h/d?target_session_attrs=rw", r"target_session_attrs must be one of any, read-write"),
            ("h/d?create=maybe", r"create must be 0 or 1, not 'maybe'"),
            ("h/d?pooled=1&listen_url=h", r"listen_url=, begins with one of postgresql://"),
            ("h/d?pooled=1&listen_url=postgresql://h:0/d", r"port of address 1"),
            ("h/d?pooled=1&listen_url=postgresql://h/d%3Fcreate=1", r"no option"),
        ),
        *each_of(
            ("mysql", "mariadb"),
            ("h,g/d", r"is of one server"),
            ("/d", r"names no host"),
            ("h/d/", r"name of the database"),
            ("h/d?charset=utf8", r"no option 'charset'"),
            ("h/d?poll=nan", r"poll must be a number"),
        ),
    ],
)
def test_url_that_is_not_understood_raises_value_error_naming_the_part(
    url: str, match: str
) -> None:
    """Nothing is left out or guessed: it is a ValueError before any I/O."""
    with pytest.raises(ValueError, match=match):
        aiolock.connect(url)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("10.0.0.7", r"did you mean redis://10\.0\.0\.7\?"),
        ("[::1]:6379/0", r"did you mean redis://\[::1\]:6379/0\?"),
        ("db.example:5432", r"did you mean postgresql://db\.example:5432\?"),
        ("db:3306", r"did you mean mysql://db:3306\?"),
        ("REDIS://h", r"did you mean redis://\?"),
        ("redi://h", r"did you mean redis://\? The URL"),
        ("tcp://h", r"did you mean redis://\?"),
        ("postgresql+asyncpg://h/d", r"did you mean postgresql://\?"),
        ("mysql+pymysql://h/d", r"did you mean mysql://\?"),
        ("redis:/h", r"two slashes, as redis://"),
        ("redis//h", r"two slashes, as redis://"),
        ("redis:h", r"two slashes, as redis://"),
        ('"redis://h"', r"blanks or quotes around"),
        (" redis://h", r"blanks or quotes around"),
        ("s3cret", r"no scheme"),
        ("\n", r"is empty"),
    ],
)
def test_url_with_an_unknown_scheme_suggests_the_one_meant(url: str, match: str) -> None:
    """Only with what is certainly a host, or a scheme that there is."""
    with pytest.raises(ValueError, match=match):
        aiolock.connect(url)


@pytest.mark.one_loop
@pytest.mark.parametrize(
    ("url", "host", "port"),
    [
        ("redis://[::1]:7/0", "::1", 7),
        ("redis://[fe80::1%25eth0]", "fe80::1%eth0", 6379),
        ("redis://münchen.example", "münchen.example", 6379),
        ("redis://my_host-1.svc.", "my_host-1.svc.", 6379),
        ("redis://u:a:b@h/", "h", 6379),
    ],
)
def test_redis_url_with_any_host_gives_that_host_and_port(url: str, host: str, port: int) -> None:
    """With the usual port, unless it has one."""
    options = pool_at(url).connection_kwargs
    assert (options["host"], options["port"]) == (host, port)


@pytest.mark.one_loop
@pytest.mark.parametrize("mark", [mark for mark in MARKS if mark not in "/?#@% "])
def test_redis_url_with_a_raw_password_takes_the_password_as_it_is(mark: str) -> None:
    """What has no meaning there is taken as it is, and a plus sign is no blank."""
    for url in (f"redis://u:a{mark}b@h", f"redis://h?password=a{mark}b"):
        if mark != "&" or "?" not in url:
            assert pool_at(url).connection_kwargs["password"] == f"a{mark}b"


@pytest.mark.one_loop
def test_redis_url_options_are_converted_to_their_types() -> None:
    """As redis-py gives them to its connections."""
    pool = pool_at("redis://h?db=3&socket_timeout=1.5&socket_keepalive=no&client_name=a%20b")
    assert pool.connection_kwargs.items() >= {
        ("db", 3),
        ("socket_timeout", 1.5),
        ("socket_keepalive", False),
        ("client_name", "a b"),
    }
