"""Redis Sentinel: a client of the caller's that follows the master, and a master that changes."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import pytest
import redis.asyncio
from redis.asyncio.sentinel import Sentinel
from redis.exceptions import RedisError

import aiolock
from aiolock.stores.redis._scripts import command
from tests.support.failures import Peek, check_nothing_left, take, until
from tests.support.procs import tied
from tests.support.servers import BINARY, RedisServer, hold_port

CONFIG = """
bind 127.0.0.1
port {port}
dir {directory}
sentinel monitor locks 127.0.0.1 {master} 1
sentinel down-after-milliseconds locks 60000
sentinel failover-timeout locks 3000
"""


class Watched:
    """A master, a replica of it, and a sentinel that watches them."""

    def __init__(self, stack: ExitStack) -> None:
        options = ("--repl-diskless-sync-delay", "0")
        self.master = stack.enter_context(RedisServer(*options))
        replicaof = ("--replicaof", "127.0.0.1", str(self.master.port))
        self.replica = stack.enter_context(RedisServer(*options, *replicaof))
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sentinel-")))
        holder = stack.enter_context(hold_port())
        self.port = int(holder.getsockname()[1])
        config = directory / "sentinel.conf"
        config.write_text(
            CONFIG.format(port=self.port, directory=directory, master=self.master.port)
        )
        log = stack.enter_context((directory / "log").open("wb"))
        sentinel = subprocess.Popen(
            tied(BINARY, str(config), "--sentinel"),
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        stack.callback(sentinel.wait)
        stack.callback(sentinel.kill)

    async def call(self, *args: str) -> Any:
        """Run a command of the sentinel's; None where it cannot answer (yet)."""
        async with redis.asyncio.Redis(port=self.port, decode_responses=True) as sentinel:
            try:
                return await cast(Any, sentinel).execute_command("SENTINEL", *args)
            except RedisError:
                return None

    async def ready(self) -> None:
        """Wait until the sentinel can replace the master."""
        in_sync = "slave0"
        await until(lambda: in_sync in self.master.call("INFO", "replication"))
        await self._until_answer("REPLICAS", bool)

    async def fail_over(self, *, kill: bool) -> None:
        """Make the replica the master, and return when no other server takes writes."""
        if kill:
            self.master.kill()
            await self._patience(300)
        else:
            await self._until_answer("FAILOVER", lambda answer: answer == "OK")
        now = str(self.replica.port)
        await self._until_answer("GET-MASTER-ADDR-BY-NAME", lambda answer: now in answer)
        if kill:
            await self._patience(60_000)
        if not kill:
            # A sentinel would do this in 10 s, and then kill all connections; others do not.
            self.master.call("REPLICAOF", "127.0.0.1", now)
            await until(
                lambda: self.master.call("INFO", "replication")["master_link_status"] == "up"
            )

    async def _patience(self, milliseconds: int) -> None:
        """Have a server be taken for down when silent for so long: soon only if one was killed."""
        await self.call("SET", "locks", "down-after-milliseconds", str(milliseconds))

    async def _until_answer(self, command: str, accepts: Callable[[Any], bool]) -> None:
        async with asyncio.timeout(20):
            while not accepts(await self.call(command, "locks") or ""):  # noqa: ASYNC110 # as there
                await asyncio.sleep(0.01)


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    """Two servers and a sentinel of the test's own."""
    with ExitStack() as stack:
        watched = Watched(stack)
        await watched.ready()
        yield watched


@asynccontextmanager
async def master_of(*ports: int) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of the caller's that follows the master, by the sentinels at these ports."""
    untyped: Any = Sentinel
    sentinel = untyped([("127.0.0.1", port) for port in ports])
    async with sentinel.master_for("locks") as caller:
        yield caller
    for client in sentinel.sentinels:
        await client.aclose()


@pytest.fixture
async def caller(watched: Watched) -> AsyncIterator[redis.asyncio.Redis]:
    """A client of the caller's that follows the master."""
    async with master_of(watched.port) as caller:
        yield caller


@pytest.fixture
def hung() -> Iterator[int]:
    """The port of a sentinel that was stopped: it takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("how", ["master_killed", "master_demoted"])
async def test_failover_keeps_leases_and_waiters_on_the_new_master(
    watched: Watched, caller: redis.asyncio.Redis, prefix: str, how: str
) -> None:
    """After a fail-over leases and waiters are on the new master; nobody enters out of turn."""
    before, after = Peek(watched.master, prefix), Peek(watched.replica, prefix)
    inside: list[int] = []
    fences: list[int] = []

    async def work(client: aiolock.LockClient, number: int) -> None:
        async with client.lock("lock") as lease:
            inside.append(number)
            assert inside == [number]
            fences.append(lease.fence)
            # What another client was pushed at the same time would have arrived before the reply.
            assert await lease.verify()
            await asyncio.sleep(0)
            inside.remove(number)

    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(aiolock.connect(caller, prefix=prefix))
            for _ in range(4)
        ]
        lease = await take(clients[0].lock("lock"))
        fences.append(lease.fence)
        working: list[asyncio.Task[None]] = []
        for number, client in enumerate(clients[1:]):
            working.append(asyncio.create_task(work(client, number)))
            await before.queued(number + 1)
        # Replication is asynchronous: what had not arrived would be lost with the master.
        await until(lambda: after.queue() == before.queue() and after.holders())
        await watched.fail_over(kill=how == "master_killed")
        assert await lease.verify()
        assert await lease.release()
        async with asyncio.timeout(20):
            await asyncio.gather(*working)
        assert fences == sorted(set(fences))
        async with clients[0].lock("new"):
            assert Peek(watched.replica, prefix, "lock:new").holders()
    await works(caller)
    check_nothing_left(watched.replica, prefix)


async def works(caller: redis.asyncio.Redis) -> None:
    """See that the caller's own client goes on working.

    On a busy machine the sentinel may think for a moment that the new master is down, too.
    """
    async with asyncio.timeout(20):
        while True:
            with contextlib.suppress(RedisError):
                assert await caller.ping()
                return
            await asyncio.sleep(0.05)


async def test_sentinel_that_hangs_delays_neither_open_nor_failover(
    watched: Watched, hung: int, prefix: str
) -> None:
    """A sentinel that hangs, the first of all, keeps nobody from the others, or the new master."""
    before, after = Peek(watched.master, prefix), Peek(watched.replica, prefix)
    async with AsyncExitStack() as stack:
        caller = await stack.enter_async_context(master_of(hung, watched.port))
        start = time.monotonic()
        holder, waiter = [
            await stack.enter_async_context(aiolock.connect(caller, prefix=prefix))
            for _ in range(2)
        ]
        assert time.monotonic() - start < 4  # redis-py alone would take 5 s for each connection
        lease = await take(holder.lock("lock"))
        waiting = asyncio.create_task(take(waiter.lock("lock")))
        await before.queued(1)
        await until(lambda: after.queue() == before.queue() and after.holders())
        await watched.fail_over(kill=True)
        async with asyncio.timeout(8):
            assert await lease.release()
            second = await waiting
        assert second.fence > lease.fence
        assert await second.release()
    check_nothing_left(watched.replica, prefix)


async def test_open_without_a_master_tells_the_answer_of_each_sentinel(
    watched: Watched, hung: int, prefix: str
) -> None:
    """Where no sentinel says who is the master, the error tells what each of them said."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        refusing = taken.getsockname()[1]
        untyped: Any = Sentinel
        sentinel = untyped([("127.0.0.1", port) for port in (hung, refusing, watched.port)])
        async with sentinel.master_for("others") as caller:
            start = time.monotonic()
            with pytest.raises(aiolock.StoreError, match="Sentinels") as caught:
                await aiolock.connect(caller, prefix=prefix).open()
            assert time.monotonic() - start < 3
    for said in (f":{hung}: no answer", f":{refusing}: Error 111", "No such master"):
        assert said in str(caught.value)


async def test_sentinel_master_of_the_latest_failover_that_is_up_is_used(
    watched: Watched, prefix: str
) -> None:
    """Of several masters it is that of the latest fail-over; of one that is down it is none."""

    def says(epoch: int, port: int, flags: str) -> bytes:
        known = {
            "ip": "127.0.0.1",
            "port": str(port),
            "flags": flags,
            "config-epoch": str(epoch),
            "num-other-sentinels": "2",
        }
        return command(*[word for pair in known.items() for word in pair])

    async with AsyncExitStack() as stack:
        ports: list[int] = []
        for epoch, port, flags in (
            (1, watched.replica.port, "master"),
            (3, watched.master.port, "master"),
            (4, 1, "master,s_down,o_down"),
        ):
            answers = {
                b"CLIENT\r\n": b"+OK\r\n",
                b"MASTER\r\n": says(epoch, port, flags),
                b"GET-MASTER-ADDR-BY-NAME\r\n": command("127.0.0.1", port),
            }

            async def serve(
                reader: asyncio.StreamReader,
                writer: asyncio.StreamWriter,
                answers: dict[bytes, bytes] = answers,
            ) -> None:
                while line := await reader.readline():
                    writer.write(answers.get(line, b""))
                writer.close()

            server = await asyncio.start_server(serve, "127.0.0.1", 0)
            stack.callback(server.close)
            ports.append(server.sockets[0].getsockname()[1])
        caller = await stack.enter_async_context(master_of(*ports))
        async with aiolock.connect(caller, prefix=prefix) as client, client.lock("lock"):
            assert Peek(watched.master, prefix).holders()
