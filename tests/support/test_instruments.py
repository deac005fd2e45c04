"""Tests of what the other tests use: server, proxy, workers, virtual loop, cancellation."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import anyio
import hypothesis
import pytest
import redis.asyncio
from hypothesis import strategies as st

import aiolock
from aiolock._engine.acquisition import Phase
from tests.support import ablated, loops, selection
from tests.support.cancel import KINDS, Kind, Outcome, cancel_everywhere, run_cancelled, steps
from tests.support.failures import Peek, take, until, wait_until
from tests.support.procs import Worker
from tests.support.proxy import _CHUNK, _HELD_MAX, Proxy
from tests.support.servers import RedisServer
from tests.support.virtual import BEGINNING, Deadlock, VirtualLoop, run

ROOT = Path(__file__).parents[2]

# --- RedisServer


def test_server_answers_on_all_its_addresses() -> None:
    """A server answers on TCP, unix socket and TLS, with its password."""
    with RedisServer(password="secret", tls=True) as server:
        for url in (server.url, server.unix_url, server.tls_url):
            with redis.Redis.from_url(url) as client:
                assert client.ping()
        assert server.call("CONFIG", "GET", "save") == {"save": ""}
        parts = urlsplit(server.tls_url)
        trusted = ssl.create_default_context(cafile=parse_qs(parts.query)["ssl_ca_certs"][0])
        with (
            socket.create_connection((parts.hostname, parts.port)) as link,
            trusted.wrap_socket(link, server_hostname=parts.hostname) as secure,
        ):
            secure.sendall(b"PING\r\n")
            assert secure.recv(100).startswith(b"-NOAUTH")


def test_server_options_reach_its_command_line() -> None:
    """Options reach the server's command line, ACL users among them."""
    with RedisServer("--maxmemory", "5mb", "--user", "ann", "on", ">pw", "+ping") as server:
        assert server.call("CONFIG", "GET", "maxmemory") == {"maxmemory": str(5 << 20)}
        with redis.Redis(port=server.port, username="ann", password="pw") as client:
            assert client.ping()
            with pytest.raises(redis.exceptions.NoPermissionError):
                client.get("x")


def test_server_restarted_is_empty_and_keeps_its_port(own_server: RedisServer) -> None:
    """Killed or stopped, a server comes back empty at its port, which nobody else gets."""
    for end in (own_server.kill, own_server.stop, lambda: None):
        own_server.call("SET", "x", 1)
        url, before = own_server.url, own_server.call("INFO", "server")["run_id"]
        end()
        own_server.restart()
        assert own_server.url == url
        assert own_server.call("INFO", "server")["run_id"] != before
        assert own_server.call("DBSIZE") == 0
    own_server.kill()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", own_server.port))
    own_server.start()
    with pytest.raises(RuntimeError, match="running already"):
        own_server.start()


def test_server_paused_keeps_links_and_answers_after_resume(own_server: RedisServer) -> None:
    """A paused server keeps its links but answers only once it is resumed."""
    with socket.create_connection(("127.0.0.1", own_server.port)) as link:
        own_server.pause()
        link.sendall(b"PING\r\n")
        link.settimeout(0.05)
        with pytest.raises(TimeoutError):
            link.recv(100)
        own_server.resume()
        link.settimeout(5)
        assert link.recv(100) == b"+PONG\r\n"
    own_server.pause()
    own_server.stop()
    with pytest.raises(RuntimeError, match="not running"):
        own_server.pause()


def test_server_that_cannot_start_raises_with_its_log(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot start raises with its log, or says that there is no redis-server."""
    with pytest.raises(RuntimeError, match="no-such-option"), RedisServer("--no-such-option", "1"):
        pass
    monkeypatch.setenv("PATH", "")
    with pytest.raises(RuntimeError, match=r"need .* on PATH"):
        RedisServer()


@pytest.mark.parametrize("lacks", [False, True], ids=["setpriv", "setpriv_without_the_option"])
def test_server_and_worker_die_with_a_killed_parent(*, lacks: bool, tmp_path: Path) -> None:
    """A killed test process leaves no server and no worker behind, not even a stopped one."""
    if lacks:
        (tmp_path / "setpriv").write_text("#!/bin/sh\nexit 1\n")
        (tmp_path / "setpriv").chmod(0o755)
    path = f"{tmp_path}{os.pathsep}{os.environ['PATH']}"
    source = """if True:
        import asyncio
        from tests.support.procs import Worker
        from tests.support.servers import RedisServer

        async def main():
            async with Worker("-c", "import time; time.sleep(60)") as worker:
                worker.stop()
                with RedisServer() as server:
                    print(server.port, flush=True)
                    input()

        asyncio.run(main())
    """
    pipe = subprocess.PIPE
    with (
        tempfile.TemporaryDirectory() as place,
        subprocess.Popen(
            [sys.executable, "-c", source],
            env=os.environ | {"PYTHONPATH": str(ROOT), "TMPDIR": place, "PATH": path},
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
        ) as parent,
    ):
        assert parent.stdout is not None
        assert parent.stderr is not None
        port = int(parent.stdout.readline())
        with socket.create_connection(("127.0.0.1", port), timeout=5) as link:
            link.sendall(b"PING\r\n")
            assert link.recv(100) == b"+PONG\r\n"
            parent.kill()
            assert link.recv(100) == b""
        assert parent.stderr.read() == b""  # at its end: the worker, which shares it, is gone too


# --- Proxy


class Client:
    """A bare client: sends bytes, reads replies."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    async def ask(self, *words: str) -> bytes:
        """Send a command and return the first line of its reply."""
        self.send(*words)
        return await self.line()

    def send(self, *words: str) -> None:
        """Send a command."""
        self.writer.write(pack(*words))

    async def line(self) -> bytes:
        """Return the next line, or b"" at the end of the stream."""
        return (await asyncio.wait_for(self.reader.readline(), 5)).strip()

    async def is_reset(self) -> bool:
        """Whether the next thing to come is a reset."""
        try:
            await self.line()
        except ConnectionResetError:
            return True
        return False


def pack(*words: str) -> bytes:
    """Return a command as it goes over the wire."""
    parts = [f"*{len(words)}", *(f"${len(word)}\r\n{word}" for word in words), ""]
    return "\r\n".join(parts).encode()


@contextlib.asynccontextmanager
async def connect(proxy: Proxy) -> AsyncIterator[Client]:
    """Connect a client through the proxy."""
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port, limit=1 << 20)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()
        with contextlib.suppress(ConnectionError):
            await writer.wait_closed()


async def test_proxy_passes_bytes_unchanged_and_counts_them(proxy: Proxy) -> None:
    """Bytes pass unchanged, are counted, and recorded if asked."""
    proxy.recording = True
    async with connect(proxy) as one, connect(proxy) as two:
        assert await one.ask("PING") == b"+PONG"
        assert await two.ask("ECHO", "x" * 300_000) == b"$300000"
        assert len(await two.line()) == 300_000
        assert proxy.connections == len(proxy.links) == 2
        assert proxy.requests[0] == pack("PING")
        assert sum(map(len, proxy.requests)) == proxy.bytes_to_server > 300_000
        assert proxy.bytes_to_client == len(b"+PONG\r\n$300000\r\n\r\n") + 300_000
    async with redis.asyncio.Redis.from_url(proxy.url) as client:
        await client.set("x", 1)


async def test_proxy_passes_on_the_end_of_either_side(own_server: RedisServer) -> None:
    """The end of one side's stream ends the other's; without a server there is a reset."""
    async with Proxy(own_server.port) as proxy:
        async with connect(proxy) as client:
            assert await client.ask("QUIT") == b"+OK"
            assert await client.line() == b""
        async with connect(proxy) as client:
            client.send("PING")
            client.writer.write_eof()
            await client.line()
            await client.reader.read()
        assert proxy.links == []
        own_server.kill()
        with pytest.raises(ConnectionResetError):
            async with connect(proxy) as client:
                await client.line()


async def test_proxy_passes_large_replies_whole(proxy: Proxy) -> None:
    """Large replies wait at the server for a slow reader, and pass whole."""
    async with connect(proxy) as client:
        size = 8 << 20
        client.writer.write(pack("ECHO", "x" * size) * 3)
        (link,) = proxy.links
        replying = link._flows[1]
        await until(lambda: replying._held >= _HELD_MAX)  # nobody reads them
        passed = proxy.bytes_to_client
        await asyncio.sleep(0.05)
        assert proxy.bytes_to_client == passed < 3 * size
        assert replying._held < _HELD_MAX + _CHUNK
        replies = await asyncio.wait_for(client.reader.readexactly(3 * (size + 12)), 30)
        assert replies.count(b"x") == 3 * size


async def test_proxy_cuts_all_links_or_one(proxy: Proxy) -> None:
    """A cut resets the links in question, even one not taken yet, and no others."""
    async with connect(proxy) as one, connect(proxy) as two, connect(proxy) as three:
        for client in (one, two):
            await client.ask("PING")
        link = proxy.links[0]
        for _ in range(2):  # the second time in vain
            link.cut()
            link.deaf()
            link.hear()
        assert await one.is_reset()
        assert await two.ask("PING") == b"+PONG"
        proxy.cut()
        assert await two.is_reset()
        assert await three.is_reset()
        assert proxy.links == []
    async with connect(proxy) as client:
        assert await client.ask("PING") == b"+PONG"


async def test_proxy_that_refuses_keeps_its_links(proxy: Proxy) -> None:
    """New connections can be refused while the links go on."""
    async with connect(proxy) as client:
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.1", proxy.port)
        assert await client.ask("PING") == b"+PONG"
        proxy.accept()
        async with connect(proxy) as other:
            assert await other.ask("PING") == b"+PONG"


async def test_proxy_deaf_delays_requests_until_it_hears(
    proxy: Proxy, redis_server: RedisServer, prefix: str
) -> None:
    """What is sent to a deaf proxy passes later, on all links or on the one in question."""
    async with connect(proxy) as one, connect(proxy) as two:
        await one.ask("PING")
        proxy.deaf()
        one.send("INCR", prefix)
        two.send("INCR", prefix)
        async with connect(proxy) as three:
            three.send("INCR", prefix)
            await asyncio.sleep(0.02)
            assert redis_server.call("GET", prefix) is None
            assert len(proxy.links) == 3
            proxy.hear()
            assert {await client.line() for client in (one, two, three)} == {b":1", b":2", b":3"}
            proxy.links[1].deaf()
            two.send("INCR", prefix)
            assert await one.ask("INCR", prefix) == b":4"
            proxy.links[1].hear()
            assert await two.line() == b":5"


async def test_proxy_deaf_with_drop_keeps_links_dead_until_cut(
    proxy: Proxy, redis_server: RedisServer, prefix: str
) -> None:
    """Dropped links stay dead, open, and unnoticed by the server, until they are cut."""
    async with connect(proxy) as one, connect(proxy) as two:
        await one.ask("SUBSCRIBE", prefix)
        await two.ask("PING")
        proxy.deaf(drop=True)
        two.send("INCR", prefix)
        async with connect(proxy) as three:
            three.send("INCR", prefix)
            await asyncio.sleep(0.02)
            proxy.hear()
            async with connect(proxy) as four:
                assert await four.ask("PING") == b"+PONG"
        assert redis_server.call("GET", prefix) is None
        one.writer.close()
        await one.writer.wait_closed()
        await asyncio.sleep(0.02)
        assert redis_server.call("PUBLISH", prefix, "x") == 1  # the server hasn't noticed
        proxy.cut()
        assert await two.is_reset()
        async with connect(proxy) as five:
            async with asyncio.timeout(30):
                while redis_server.call("PUBLISH", prefix, "x"):
                    await five.ask("PING")


async def test_proxy_delay_adds_up_over_both_directions_in_order(proxy: Proxy) -> None:
    """Delays add up over both directions and keep the order."""
    async with connect(proxy) as client:
        for there, back in ((0.03, 0.0), (0.0, 0.03), (0.03, 0.03), (0.0, 0.0)):
            proxy.delay(to_server=there, to_client=back)
            start = time.monotonic()
            client.send("ECHO", "a")
            await asyncio.sleep(0)
            client.send("ECHO", "b")
            assert [await client.line() for _ in range(4)] == [b"$1", b"a", b"$1", b"b"]
            passed = time.monotonic() - start
            assert passed >= there + back
            assert passed < there + back + 5


async def test_proxy_swallow_replies_executes_commands_and_cuts_the_link(
    proxy: Proxy, redis_server: RedisServer, prefix: str
) -> None:
    """The commands are executed, the replies vanish, and only that link is cut."""
    async with connect(proxy) as one, connect(proxy) as two:
        proxy.swallow_replies(1)
        one.send("INCR", prefix)
        assert await one.is_reset()
        assert redis_server.call("GET", prefix) == "1"
        assert await two.ask("PING") == b"+PONG"
        async with connect(proxy) as three:
            await three.ask("PING")
            proxy.swallow_replies(2, link=proxy.links[1])
            assert await two.ask("PING") == b"+PONG"
            three.send("INCR", prefix)
            async with asyncio.timeout(30):
                while redis_server.call("GET", prefix) != "2":
                    await two.ask("PING")
            three.send("INCR", prefix)
            assert await three.is_reset()
            assert redis_server.call("GET", prefix) == "3"


@pytest.mark.parametrize("slow", [0.0, 0.01])
async def test_proxy_cut_after_passes_so_many_bytes_and_no_more(
    proxy: Proxy, redis_server: RedisServer, prefix: str, slow: float
) -> None:
    """The server gets what was let through, and not the rest."""
    proxy.delay(to_server=slow)
    for done in range(1, 6):
        async with connect(proxy) as one, connect(proxy) as two:
            command = pack("INCR", prefix)
            proxy.cut_after(len(command) + 10)
            one.writer.write(command * 3)
            with contextlib.suppress(ConnectionResetError):
                assert await one.line() == f":{done}".encode()
                assert await one.is_reset()
            async with asyncio.timeout(30):
                while redis_server.call("GET", prefix) != str(done):
                    assert await two.ask("PING") == b"+PONG"


async def test_proxy_link_is_a_subscription_by_its_commands(proxy: Proxy) -> None:
    """A link is a subscription by its commands, however they are cut up, not by its data."""
    async with connect(proxy) as one, connect(proxy) as two, connect(proxy) as three:
        assert await one.ask("EVAL", "return 'SUBSCRIBE'", "0") == b"$9"
        half = pack("subscribe", "x")
        two.writer.write(half[:11])
        await asyncio.sleep(0.01)
        two.writer.write(half[11:])
        await two.line()
        await three.ask("PSUBSCRIBE", "x*")
        assert [link.is_subscription for link in proxy.links] == [False, True, True]


async def test_peek_queued_returns_after_the_client_has_read_its_answer(
    proxy: Proxy, redis_server: RedisServer, prefix: str
) -> None:
    """Once `Peek.queued` returns, a client behind a proxy has read that it is queued."""
    peek = Peek(redis_server, prefix)
    async with aiolock.connect(proxy.url, prefix=prefix) as client, client.lock("lock"):
        before = proxy.bytes_to_server
        waiting = asyncio.create_task(take(client.lock("lock")))
        async with asyncio.timeout(30):
            while proxy.bytes_to_server == before:  # noqa: ASYNC110  # a proxy sets no Event
                await asyncio.sleep(0)
        # So that the answer is there, and nothing of this process has read it.
        wait_until(peek.queue)
        await peek.queued(1)
        (attempt,) = client._engine.waiters.acquisitions["lock:lock"].values()
        assert attempt.phase is Phase.QUEUED
        waiting.cancel()
        await asyncio.wait([waiting])


def test_proxy_and_worker_on_uvloop_work(redis_server: RedisServer) -> None:
    """Proxy and workers serve uvloop too."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def main() -> None:
        async with Proxy(redis_server.port) as proxy:
            async with connect(proxy) as one, connect(proxy) as two:
                assert await one.ask("PING") == b"+PONG"
                assert await two.ask("PING") == b"+PONG"
                proxy.deaf()
                one.send("PING")
                proxy.hear()
                assert await one.line() == b"+PONG"
                proxy.delay(to_client=0.01)
                assert await one.ask("PING") == b"+PONG"
                proxy.swallow_replies(1)
                one.send("PING")
                assert await one.is_reset()
                proxy.refuse()
                proxy.accept()
                proxy.cut()
                assert await two.is_reset()
            async with connect(proxy) as client:
                await client.ask("QUIT")
                await client.reader.read()
            assert proxy.connections == 3
        async with Worker("-c", "import sys; sys.exit(3)") as worker:
            assert await worker.wait() == 3
        async with Worker("-c", ECHO) as worker:
            await worker.send({"x": 1})
            await worker.expect("echo")
            worker.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# --- Worker

ECHO = """
    import asyncio, sys
    from tests.support.procs import commands, say

    async def main():
        say("ready", args=sys.argv[1:])
        async for command in commands():
            say("echo", **command)
        say("bye")

    asyncio.run(main())
"""


async def test_worker_messages_go_both_ways_in_order() -> None:
    """Messages go both ways, and each kind is read in its own order."""
    async with Worker("-W", "error", "-c", ECHO, "a", "b") as worker:
        start = time.monotonic()
        await worker.send({"n": 1})
        await worker.send({"n": 2})
        assert (await worker.expect("echo"))["n"] == 1
        assert (await worker.expect("ready"))["args"] == ["a", "b"]
        message = await worker.expect("echo")
        assert message["n"] == 2
        assert start < message["t"] < time.monotonic()
        assert [entry["event"] for entry in worker.history] == ["ready", "echo", "echo"]
        with pytest.raises(TimeoutError, match="no 'more' within"):
            await worker.expect("more", within=0.01)


async def test_worker_that_has_ended_keeps_its_messages_and_takes_none() -> None:
    """A worker's exit code and last words are known; nothing can be sent to it any more."""
    source = (
        "from tests.support.procs import *; say('a'); print('stray'); say('b'); raise SystemExit(4)"
    )
    async with Worker("-c", source) as worker:
        assert await worker.wait() == 4
        await worker.expect("b")
        with pytest.raises(EOFError, match=r"ended \(4\) without 'c'"):
            await worker.expect("c")
        assert [entry["event"] for entry in worker.history] == ["a", "print", "b"]
        with pytest.raises(BrokenPipeError):
            await worker.send({})


async def test_worker_that_ends_before_its_pipes_are_connected_is_awaited(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A worker may have ended before the event loop has so much as begun to listen to it."""
    loop = asyncio.get_running_loop()
    if loops.chosen() == "uvloop":
        pytest.skip("uvloop asks for no pipes one by one")
    connect = loop.connect_read_pipe

    async def late(protocol: Callable[[], Any], pipe: Any) -> Any:
        transport = protocol().proc  # of the subprocess
        async with asyncio.timeout(10):
            while transport.get_returncode() is None:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.005)
        return await connect(protocol, pipe)

    monkeypatch.setattr(loop, "connect_read_pipe", late)
    async with Worker("-c", "raise SystemExit(4)") as worker:
        assert await worker.wait() == 4
    assert not caplog.records  # where the event loop says what failed in it


async def test_worker_of_a_module_runs_with_its_arguments() -> None:
    """A worker can be a module with arguments."""
    async with Worker("-m", "json.tool", "--help") as worker:
        assert await worker.wait() == 0
        assert (await worker.expect("print"))["text"].startswith("usage")


async def test_worker_can_be_stopped_continued_and_killed() -> None:
    """A worker stands still while stopped, and is gone when killed or left."""
    async with Worker("-c", ECHO) as worker, Worker("-c", ECHO) as other:
        await worker.expect("ready")
        worker.stop()
        await worker.send({"n": 1})
        await other.send({"n": 2})
        await other.expect("echo")
        with pytest.raises(TimeoutError):
            await worker.expect("echo", within=0.02)
        worker.cont()
        await worker.expect("echo")
        worker.kill()
        assert await worker.wait() == -signal.SIGKILL
        other.stop()
        pid = other.pid
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_worker_messages_are_read_while_the_test_waits() -> None:
    """A worker's messages are taken in while the test waits for something else."""
    source = (
        "from tests.support.procs import say\nfor n in range(2000): say('tick', n=n, pad='x' * 100)"
    )
    async with Worker("-c", source) as worker:
        assert await worker.wait() == 0
        assert [entry["n"] for entry in worker.history] == list(range(2000))


# --- An ablated test


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere there is no /proc to look for them in"
)
def test_end_servers_ends_only_processes_of_its_folder(tmp_path: Path) -> None:
    """Whatever is at work in the test's folder is ended, and nothing else is."""
    sleep = (sys.executable, "-c", "import time; print(flush=True); time.sleep(60)")
    with (
        subprocess.Popen([*sleep, f"--data={tmp_path}/data"], stdout=subprocess.PIPE) as server,
        subprocess.Popen(sleep, stdout=subprocess.PIPE) as it,
    ):
        try:
            # Until it has begun, the kernel may not yet say what its arguments are.
            for begun in (server.stdout, it.stdout):
                assert begun is not None
                assert begun.readline() == b"\n"
            ablated.end_servers(str(tmp_path))
            assert server.wait(10) == -signal.SIGKILL
            assert it.poll() is None
        finally:
            server.kill()
            it.kill()


# --- Hypothesis


@pytest.mark.parametrize(("making", "trying"), [(0.2, 0.0), (0.0, 0.3)])
def test_hypothesis_examples_that_are_slow_do_not_fail(making: float, trying: float) -> None:
    """On a busy machine it takes a while to make one, or to try it, and that is no failure."""

    def made(number: int) -> int:
        time.sleep(making)
        return number

    @hypothesis.settings(max_examples=8)
    @hypothesis.given(st.integers().map(made))
    def tried(number: int) -> None:
        assert isinstance(number, int)
        time.sleep(trying)

    tried()


# --- VirtualLoop


def test_virtual_loop_time_jumps_to_the_next_timer() -> None:
    """Time jumps exactly to the next timer."""

    async def main() -> list[float]:
        loop = asyncio.get_running_loop()
        times = [loop.time()]
        await asyncio.sleep(3600)
        times.append(loop.time())
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await loop.create_future()
        times.append(loop.time())
        await asyncio.gather(*(asyncio.sleep(n * 100_000) for n in range(5)))
        times.append(loop.time())
        return times

    assert run(main()) == [0, 3600, 3600.3, 403600.3]


def test_virtual_loop_time_begins_at_a_fixed_date() -> None:
    """The day goes by the loop, from the same moment in each run: it may rest on no real one."""

    async def main() -> float:
        await asyncio.sleep(3600)
        return time.time()

    before = time.time()
    assert run(main()) == run(main()) == BEGINNING + 3600
    assert time.time() >= before > BEGINNING + 3600


def test_virtual_loop_with_an_endless_wait_raises_deadlock() -> None:
    """A wait that nothing can end raises at once, naming the task."""

    async def waits_for_ever() -> None:
        await asyncio.sleep(1)
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="waits_for_ever"):
        run(waits_for_ever())


def test_virtual_loop_with_a_seed_runs_in_a_repeatable_order() -> None:
    """A seed gives another order, always the same."""

    async def main() -> str:
        seen: list[str] = []

        async def walk(name: str) -> None:
            for _ in range(3):
                seen.append(name)
                await asyncio.sleep(0)

        await asyncio.gather(*(walk(name) for name in "abc"))
        return "".join(seen)

    assert run(main()) == "abcabcabc"
    orders = [run(main(), seed) for seed in range(50)]
    assert orders == [run(main(), seed) for seed in range(50)]
    assert len(set(orders)) > 25


def test_virtual_run_that_leaves_a_task_fails() -> None:
    """A task left running fails the run."""

    async def main() -> None:
        task = asyncio.create_task(asyncio.sleep(1), name="the one that is left")
        assert not task.done()

    with pytest.raises(AssertionError, match="the one that is left"):
        run(main())


@pytest.mark.parametrize(
    "touch",
    [
        lambda: asyncio.open_connection("localhost", 80),
        lambda: asyncio.to_thread(print),
        lambda: asyncio.create_subprocess_exec("true"),
        lambda: asyncio.get_running_loop().getaddrinfo("localhost", 80),
    ],
)
def test_virtual_loop_refuses_io_threads_and_processes(
    touch: Callable[[], Coroutine[Any, Any, Any]],
) -> None:
    """I/O, threads and processes are refused clearly."""

    async def main() -> None:
        await touch()

    with pytest.raises(RuntimeError, match="has no I/O"):
        run(main())


def test_virtual_loop_closed_unused_leaves_nothing_open() -> None:
    """A loop that was never run leaves nothing open."""
    VirtualLoop(seed=1).close()


# --- cancel at every step

KIND = pytest.mark.parametrize("kind", KINDS, ids=str)


async def after(ticks: int, value: str = "") -> str:
    """Wait for a future that is done some turns of the event loop later."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[str] = loop.create_future()

    def tick(left: int) -> None:
        if left:
            loop.call_soon(tick, left - 1)
        elif not future.done():
            future.set_result(value)

    tick(ticks)
    return await future


async def three_steps() -> str:
    """Yield to the event loop three times."""
    await after(1)
    await asyncio.sleep(0)
    return await after(3, "done")


async def collect(kind: Kind, scenario: Callable[[], Coroutine[Any, Any, Any]]) -> list[Outcome]:
    """Return all outcomes of one kind."""
    return [outcome async for outcome in cancel_everywhere(scenario, [kind], patience=5)]


def test_cancel_everywhere_on_uvloop_reaches_each_step() -> None:
    """The instrument works on uvloop."""
    uvloop = pytest.importorskip("uvloop", reason="uvloop is not installed")

    async def main() -> list[int]:
        return [outcome.step async for outcome in cancel_everywhere(three_steps)]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == [1, 2, 3] * len(KINDS)


async def test_steps_counts_each_yield_and_raises_the_error_of_the_scenario() -> None:
    """Each yield of the scenario counts, and its error passes."""
    assert await steps(three_steps) == 3

    async def fails() -> None:
        await asyncio.sleep(0)
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await steps(fails)


@KIND
async def test_cancel_everywhere_cancels_once_at_each_step_in_order(kind: Kind) -> None:
    """Each step is struck once, in order, by every kind."""
    reached: list[int] = []

    async def scenario() -> str:
        reached.append(0)
        for _ in range(3):
            await after(2)
            reached[-1] += 1
        await asyncio.sleep(0)
        reached[-1] += 1
        return "done"

    outcomes = await collect(kind, scenario)
    assert [outcome.step for outcome in outcomes] == [1, 2, 3, 4]
    if kind.name == "native-resumed":  # strikes one step later, so the last one comes too late
        assert [outcome.delivered for outcome in outcomes] == [True, True, True, False]
        assert [outcome.end for outcome in outcomes] == ["cancelled"] * 3 + ["finished"]
        assert reached == [1, 2, 3, 4, 4]
    else:
        assert all(outcome.delivered and outcome.end == "cancelled" for outcome in outcomes)
        assert reached == [0, 1, 2, 3, 4]


@KIND
async def test_run_cancelled_of_each_kind_strikes_at_its_own_moment(kind: Kind) -> None:
    """A strike comes before, after or just when what the scenario awaits is done."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[None] = loop.create_future()
    seen: list[str] = []

    def look() -> None:
        seen.append("cancelled" if future.cancelled() else "done" if future.done() else "waiting")

    def finish() -> None:
        if not future.done():
            future.set_result(None)

    async def scenario() -> None:
        """Wait for the future, and look at it whenever something happens."""
        loop.call_soon(look)
        loop.call_later(0.01, finish)
        try:
            await future
            seen.append("resumed")
            await asyncio.sleep(0)
        except asyncio.CancelledError:
            look()
            raise

    outcome = await run_cancelled(kind, 1, scenario)
    assert outcome.end == "cancelled"
    expected = {
        "native-at-once": ["cancelled", "cancelled"],
        "native-ready": ["waiting", "done"],
        "native-resumed": ["waiting", "resumed", "done"],
    }
    assert seen == expected.get(kind.name, ["waiting", "cancelled"])


@KIND
async def test_cancel_everywhere_of_a_swallowed_cancellation_reports_finished(kind: Kind) -> None:
    """A swallowed cancellation counts as delivered, and the run as finished."""

    async def scenario() -> str:
        try:
            await after(2)
            await after(2)
        except asyncio.CancelledError:
            return "swallowed"
        return "undisturbed"

    for outcome in await collect(kind, scenario):
        assert outcome.end == "finished"
        assert outcome.value == ("swallowed" if outcome.delivered else "undisturbed")
        assert outcome.delivered or kind.name == "native-resumed"


@KIND
async def test_cancel_everywhere_of_a_task_that_swallows_reports_delivered(kind: Kind) -> None:
    """A cancellation swallowed by an awaited task counts as delivered too."""

    async def swallower() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await after(2)

    async def scenario() -> str:
        await asyncio.create_task(swallower())
        return "finished"

    for outcome in await collect(kind, scenario):
        assert outcome.delivered == (kind.name != "native-resumed")
        # Then the other task has ended, or not begun yet, so it cannot swallow anything.
        not_begun = kind.name == "native-at-once" and loops.chosen() != "eager"
        alone = kind.name == "native-ready" or not_begun
        assert outcome.end == ("cancelled" if alone else "finished")


@KIND
async def test_cancel_everywhere_of_an_error_when_cancelled_reports_raised(kind: Kind) -> None:
    """An error in place of the cancellation is reported as the scenario's own."""

    async def scenario() -> None:
        try:
            await after(1)
            await after(1)
        except asyncio.CancelledError:
            raise TimeoutError("mine") from None

    outcomes = await collect(kind, scenario)
    assert [outcome.end for outcome in outcomes[:1]] == ["raised"]
    for outcome in outcomes:
        assert outcome.delivered == (outcome.end == "raised")
        if outcome.delivered:
            assert str(outcome.error) == "mine"


@KIND
async def test_cancel_everywhere_allows_scopes_and_shielded_cleanup(kind: Kind) -> None:
    """Scopes inside the scenario and shielded clean-up go with every kind."""
    cleaned: list[str] = []

    async def scenario() -> None:
        try:
            async with asyncio.timeout(60), asyncio.TaskGroup() as group:
                group.create_task(after(4))
                await after(2)
        finally:
            with anyio.CancelScope(shield=True):
                await after(3)
                cleaned.append("x")

    outcomes = await collect(kind, scenario)
    assert len(cleaned) >= len(outcomes) >= 3
    assert outcomes[0].end == "cancelled"


@KIND
async def test_run_cancelled_of_a_scenario_that_hangs_fails(kind: Kind) -> None:
    """A scenario that does not end is found out, and cancelled again."""
    forever = asyncio.get_running_loop().create_future()

    async def scenario() -> None:
        try:
            await after(1)
            await after(1)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await forever

    with pytest.raises(AssertionError, match="hangs"):
        await run_cancelled(kind, 1, scenario, patience=0.5)  # it is to be cancelled before
    while len(asyncio.all_tasks()) > 1:  # noqa: ASYNC110  # what was cancelled again, and ends
        await asyncio.sleep(0)


@KIND
async def test_run_cancelled_of_a_scenario_that_uncancels_fails(kind: Kind) -> None:
    """A scenario that undoes a cancel request which was not its own is found out."""

    async def scenario() -> None:
        try:
            await after(2)
            await after(2)
        except asyncio.CancelledError:
            task = asyncio.current_task()
            assert task is not None
            while task.uncancel():
                pass
            raise

    with pytest.raises(AssertionError, match=r"cancelling.. is 0 after 1 request|the scope gave"):
        await run_cancelled(kind, 1, scenario)


async def test_run_cancelled_of_a_replaced_cancellation_fails() -> None:
    """A scope that no longer recognises its cancellation is found out."""

    async def scenario() -> None:
        with contextlib.suppress(asyncio.CancelledError):
            await after(2)
        raise asyncio.CancelledError("another")

    anyio_kind = KINDS[-1]
    with pytest.raises(AssertionError, match="the scope gave CancelledError"):
        await run_cancelled(anyio_kind, 1, scenario)


@KIND
async def test_cancel_everywhere_of_a_scenario_that_fails_or_never_yields_fails(kind: Kind) -> None:
    """A scenario that fails undisturbed, or never yields, is found out."""

    async def scenario() -> None:
        await after(1)
        raise OSError("broken")

    with pytest.raises(OSError, match="broken"):
        await collect(kind, scenario)

    async def never_yields() -> None:
        pass

    with pytest.raises(AssertionError, match="never yields"):
        await collect(kind, never_yields)


@KIND
def test_cancel_everywhere_on_a_virtual_loop_reaches_each_step(kind: Kind) -> None:
    """The instrument works on the virtual loop, shuffled or not."""

    async def scenario() -> None:
        for _ in range(3):
            await asyncio.sleep(100)

    async def main() -> list[Outcome]:
        return [o async for o in cancel_everywhere(scenario, [kind], patience=1000)]

    for seed in (None, 1, 2):
        assert [outcome.step for outcome in run(main(), seed)] == [1, 2, 3]


# --- the fixtures


def test_fixture_for_left_tasks_fails_a_test_that_leaves_one(tmp_path: Path) -> None:
    """An async test that leaves a task running fails, counting what its fixtures end."""
    (tmp_path / "test_it.py").write_text(
        """if True:
        import asyncio, pytest

        @pytest.fixture
        async def helper():
            task = asyncio.create_task(asyncio.sleep(60))
            yield
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

        async def test_clean(helper):
            await asyncio.sleep(0)

        async def test_leaves_one():
            asyncio.create_task(asyncio.sleep(60), name="forgotten")
            await asyncio.sleep(0)

        def test_sync():
            pass
        """
    )
    options = ["-p", "tests.conftest", "-o", "asyncio_mode=auto", "-p", "no:cacheprovider"]
    result = subprocess.run(
        [sys.executable, "-m", "pytest", *options, str(tmp_path)],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "3 passed, 1 error" in result.stdout, result.stdout + result.stderr
    assert "the test has left tasks running" in result.stdout
    assert "forgotten" in result.stdout


@pytest.mark.parametrize(
    ("about", "store"), [("redis", "redis"), ("fakeredis", "redis"), ("mariadb", "mysql")]
)
def test_stores_of_a_test_are_those_of_its_parameters(
    request: pytest.FixtureRequest, about: str, store: str
) -> None:
    """By what it is given: so it is left out where that store is."""
    assert selection.stores_of(request.node) == {store}


def test_chosen_with_an_unknown_store_raises_value_error() -> None:
    """It is an error, not a run without tests."""
    with pytest.raises(ValueError, match="no store oracle"):
        selection.chosen("redis,oracle")
