"""Three Sentinels, a master and two replicas, all of them real, to be killed and failed over.

And Sentinels that say what the test wants, for what real ones do seldom.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, Self

import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from aiolock.stores.redis._scripts import command
from tests.support.failures import until
from tests.support.procs import freeze, tied
from tests.support.servers import BINARY, RedisServer, hold_port

SERVICE: Final = "locks"
_DOWN_AFTER: Final = 1000
"""Milliseconds of silence after which a Sentinel takes a server for down."""
_CONFIG: Final = """
bind 127.0.0.1
port {port}
dir {directory}
sentinel myid {id}
sentinel monitor {service} 127.0.0.1 {master} 2
sentinel down-after-milliseconds {service} {down_after}
sentinel failover-timeout {service} 10000
"""


class SentinelServer:
    """One Sentinel, which is told of all others: else they look for each other for two seconds."""

    def __init__(self, stack: ExitStack, number: int) -> None:
        self._stack = stack
        self._path = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sentinel-")))
        self.port = int(stack.enter_context(hold_port()).getsockname()[1])
        self.id = str(number) * 40

    def start(self, master: RedisServer, replicas: list[RedisServer], others: list[Self]) -> None:
        """Start it; it answers soon."""
        config = self._path / "sentinel.conf"
        lines = [f"sentinel known-replica {SERVICE} 127.0.0.1 {r.port}" for r in replicas]
        lines += [f"sentinel known-sentinel {SERVICE} 127.0.0.1 {o.port} {o.id}" for o in others]
        text = _CONFIG.format(
            port=self.port,
            directory=self._path,
            id=self.id,
            service=SERVICE,
            master=master.port,
            down_after=_DOWN_AFTER,
        )
        config.write_text(text + "\n".join(lines) + "\n")
        self._stack.callback(self.kill)
        self._launch()

    def _launch(self) -> None:
        with (self._path / "log").open("ab") as log:
            self._process = subprocess.Popen(
                tied(BINARY, str(self._path / "sentinel.conf"), "--sentinel"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def pause(self) -> None:
        """Stop it in its tracks: its kernel still takes connections."""
        freeze(self._process.pid)

    def resume(self) -> None:
        """Let it go on."""
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """Kill it, and return when it is gone."""
        self._process.kill()
        self._process.wait()

    def restart(self) -> None:
        """Start it again, with what it had written down."""
        self.kill()
        self._launch()

    async def call(self, *args: str) -> Any:
        """Run a command of the Sentinel's; None where it cannot answer (yet)."""
        async with redis.asyncio.Redis(
            port=self.port, decode_responses=True, socket_timeout=1, retry=Retry(NoBackoff(), 0)
        ) as client:
            try:
                return await client.execute_command("SENTINEL", *args)  # type: ignore[no-untyped-call]
            except (RedisError, OSError):
                return None


class Watched:
    """A master, its two replicas, and the three Sentinels, of which two must agree."""

    def __init__(self, stack: ExitStack, *options: str) -> None:
        options = ("--repl-diskless-sync-delay", "0", *options)
        self.master = stack.enter_context(RedisServer(*options))
        replicaof = ("--replicaof", "127.0.0.1", str(self.master.port))
        self.replicas = [stack.enter_context(RedisServer(*options, *replicaof)) for _ in range(2)]
        self.sentinels = [SentinelServer(stack, number) for number in range(3)]
        for sentinel in self.sentinels:
            others = [other for other in self.sentinels if other is not sentinel]
            sentinel.start(self.master, self.replicas, others)

    @property
    def url(self) -> str:
        """The URL of the service, with all Sentinels."""
        hosts = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        return f"redis+sentinel://{hosts}/{SERVICE}"

    async def ready(self) -> None:
        """Wait until the replicas have all, and each Sentinel knows that it can do with them."""
        await until(lambda: self.master.call("INFO", "replication").get("connected_slaves") == 2)
        for sentinel in self.sentinels:
            await answers(sentinel, "CKQUORUM", lambda said: said.startswith("OK 3"))
            await answers(sentinel, "REPLICAS", _all_good)

    async def fail_over(self) -> None:
        """As an operator does: ``SENTINEL FAILOVER``."""
        await answers(self.sentinels[0], "FAILOVER", lambda said: said == "OK")

    async def promoted(self) -> RedisServer:
        """Return the replica that has become a master, as soon as one has."""
        async with asyncio.timeout(60):
            while True:
                for replica in self.replicas:
                    # A promotion closes its connections.
                    with contextlib.suppress(RedisError, OSError):
                        if replica.call("ROLE")[0] == "master":
                            return replica
                await asyncio.sleep(0.01)

    def now_master(self, new: RedisServer) -> None:
        """From now on this is the master, and the one before is a replica."""
        self.replicas = [server for server in (self.master, *self.replicas) if server is not new]
        self.master = new

    async def agreed(self, *, but: int = 0) -> None:
        """Return when all of the Sentinels, but so many of the first, say that it is another."""
        old = str(self.master.port)
        for sentinel in self.sentinels[but:]:
            await answers(sentinel, "GET-MASTER-ADDR-BY-NAME", lambda said: said[1] != old)

    async def replaced(self) -> float:
        """When the first of the Sentinels says that there is another master."""
        old = str(self.master.port)
        known: list[float] = []

        async def look(sentinel: SentinelServer) -> None:
            async with asyncio.timeout(20):
                while not known:
                    said = await sentinel.call("GET-MASTER-ADDR-BY-NAME", SERVICE)
                    if said and said[1] != old:
                        known.append(time.monotonic())
                    await asyncio.sleep(0.01)

        # None is cancelled while it connects: redis-py would leave a socket behind.
        await asyncio.gather(*map(look, self.sentinels))
        return min(known)


def _all_good(replicas: Any) -> bool:
    return len(replicas) == 2 and all(
        each["flags"] == "slave" and each["master-link-status"] == "ok" for each in replicas
    )


async def answers(sentinel: SentinelServer, command: str, accepts: Callable[[Any], bool]) -> None:
    """Ask a Sentinel about the service until its answer is right, for 20 seconds at most."""
    async with asyncio.timeout(20):
        while not (  # noqa: ASYNC110  # nothing announces it
            (said := await sentinel.call(command, SERVICE)) and accepts(said)
        ):
            await asyncio.sleep(0.01)


class ScriptedSentinel:
    """A Sentinel that knows of the master, and says, what the test wants; used with ``async with``.

    Like a real one it closes nothing by itself, and confirms a subscription.
    """

    def __init__(self, master: RedisServer) -> None:
        self.master = master
        self.epoch = 1
        self.refuses = False
        """Refuse all subscriptions."""
        self.not_voting = False
        """It answers nothing, and takes connections still."""
        self.subscriptions = 0
        """How many it has confirmed."""
        self.asked = 0
        """How often it was asked for the master."""
        self.pinged = 0
        self._subscribers = dict[asyncio.StreamWriter, list[str]]()
        self._serving = set[asyncio.Task[None]]()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port: int = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.hang_up()
        for serving in self._serving:
            serving.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    @property
    def subscribers(self) -> int:
        """How many are subscribed now."""
        return len(self._subscribers)

    @property
    def connections(self) -> int:
        """How many there are."""
        return len(self._serving)

    def say(self, channel: str) -> None:
        """Publish what happens in a fail-over; what the message says, nobody reads."""
        for subscriber, channels in self._subscribers.items():
            if channel in channels:
                subscriber.write(command("message", channel, SERVICE))

    def hang_up(self) -> None:
        """Close the connections of all subscribers."""
        for subscriber in self._subscribers:
            subscriber.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            while (line := await reader.readline()).startswith(b"*"):
                words: list[str] = []
                for _ in range(int(line[1:])):
                    size = int((await reader.readline())[1:])
                    words.append((await reader.readexactly(size + 2))[:-2].decode())
                if not self.not_voting:
                    writer.write(self._answer(words, writer))
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._subscribers.pop(writer, None)
            self._serving.discard(task)
            writer.close()

    def _answer(self, words: list[str], writer: asyncio.StreamWriter) -> bytes:
        match words:
            case ["SENTINEL", "MASTER", _]:
                self.asked += 1
                known = {"ip": "127.0.0.1", "port": self.master.port, "flags": "master"}
                known |= {"config-epoch": self.epoch, "num-other-sentinels": 2}
                return command(*[str(word) for pair in known.items() for word in pair])
            case ["SENTINEL", "GET-MASTER-ADDR-BY-NAME", _]:
                return command("127.0.0.1", str(self.master.port))
            case ["SUBSCRIBE", *_] if self.refuses:
                return b"-NOPERM this user has no permissions to access one of the channels\r\n"
            case ["SUBSCRIBE", *channels]:
                self.subscriptions += 1
                self._subscribers[writer] = channels
                confirmed = [command("subscribe", channel, "1") for channel in channels]
                return b"".join(confirmed)
            case ["PING"]:
                self.pinged += 1
                return command("pong", "")
            case _:
                return b"+OK\r\n"
