"""Three Sentinels, a master and two replicas, all of them real, to be killed and failed over."""

from __future__ import annotations

import asyncio
import contextlib
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

from tests.failures import until
from tests.procs import freeze, tied
from tests.servers import BINARY, RedisServer, hold_port

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
        with (self._path / "log").open("wb") as log:
            self._process = subprocess.Popen(
                tied(BINARY, str(config), "--sentinel"),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._stack.callback(self._process.wait)
        self._stack.callback(self._process.kill)

    def pause(self) -> None:
        """Stop it in its tracks: its kernel still takes connections."""
        freeze(self._process.pid)

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
        while True:
            for replica in self.replicas:
                # Whoever promotes it closes its connections.
                with contextlib.suppress(RedisError, OSError):
                    if replica.call("ROLE")[0] == "master":
                        return replica
            await asyncio.sleep(0.01)

    async def replaced(self) -> float:
        """When the first of the Sentinels says that there is another master."""
        old = str(self.master.port)
        asking = {asyncio.create_task(_other_than(each, old)) for each in self.sentinels}
        done, left = await asyncio.wait(asking, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)
        return min(task.result() for task in done)


async def _other_than(sentinel: SentinelServer, port: str) -> float:
    await answers(sentinel, "GET-MASTER-ADDR-BY-NAME", lambda said: said[1] != port)
    return time.monotonic()


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
