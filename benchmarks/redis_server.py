"""A `redis-server` of the benchmark's own, and its figures of the work that it did."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import redis

from benchmarks.rounds import quantile

# The shell ends the server when its standard input closes, so that a benchmark which is killed
# leaves no server behind.
_TIED = 'redis-server "$@" & server=$!; cat; kill $server; wait $server'


@dataclass(frozen=True)
class Usage:
    """The server's use up to one moment."""

    cpu: float
    """Seconds of CPU time."""
    memory: int
    """Bytes allocated."""


class RedisServer:
    """A `redis-server` without persistence, on a free port of 127.0.0.1; used with ``with``.

    The arguments go to its command line.
    """

    def __init__(self, *args: str) -> None:
        self._args = args
        if shutil.which("redis-server") is None:
            raise RuntimeError("the benchmarks need redis-server on PATH")
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self.url = f"redis://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._folder = tempfile.TemporaryDirectory(prefix="redis-")
        self._socket = Path(self._folder.name, "socket")
        options = ["--bind", "127.0.0.1", "--port", str(self.port), "--unixsocket", self._socket]
        options += ["--save", "", "--appendonly", "no", "--dir", self._folder.name]
        options += ["--maxclients", "15000", *self._args]
        self._process = subprocess.Popen(
            ["sh", "-c", _TIED, "sh", *map(str, options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is for the benchmark, which then ends the server
        )
        # Not over TCP: the peers' connections are counted there.
        self._control: Any = redis.Redis(unix_socket_path=str(self._socket), decode_responses=True)
        deadline = time.monotonic() + 10
        while True:
            try:
                self._control.ping()
            except redis.RedisError as error:
                if self._process.poll() is not None or time.monotonic() > deadline:
                    self.__exit__()
                    raise RuntimeError("redis-server does not start") from error
                time.sleep(0.01)
            else:
                return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        finally:
            self._process.kill()
            self._folder.cleanup()

    @property
    def pid(self) -> int:
        """Its process."""
        return int(self._control.info("server")["process_id"])

    @property
    def version(self) -> str:
        """The version the server calls itself."""
        return str(self._control.info("server")["redis_version"])

    def usage(self) -> Usage:
        """The server's use so far."""
        info = self._control.info()
        return Usage(
            cpu=info["used_cpu_user"] + info["used_cpu_sys"],
            memory=info["used_memory"],
        )

    def addresses(self) -> set[str]:
        """The peers' ends of open connections, without the benchmark's own."""
        clients = self._control.client_list()
        return {client["addr"] for client in clients if str(self._socket) not in client["addr"]}

    def forget(self) -> None:
        """Put the server in the state after a restart: empty, and with no connection."""
        with self._control.pipeline(transaction=True) as at_once:
            at_once.flushall()
            at_once.client_kill_filter(_type="pubsub")
            at_once.client_kill_filter(_type="normal", skipme=True)
            at_once.execute()

    def tap(self) -> contextlib.AbstractContextManager[Tap]:
        """See `tapped`."""
        return tapped(str(self._socket), self._control.echo)


@contextlib.contextmanager
def tapped(path: str, echo: Callable[[str], object]) -> Generator[Tap]:
    """Listen to every command that arrives at the server with this unix socket.

    It slows the server down: time nothing under it. The result is complete after the end of the
    ``with``. ``echo`` makes the server say something back, by another connection.
    """
    with socket.socket(socket.AF_UNIX) as link:
        link.settimeout(30)
        link.connect(path)
        link.sendall(b"MONITOR\r\n")
        assert link.recv(5) == b"+OK\r\n"
        tap = Tap()
        yield tap
        end = f"end-of-tap-{time.monotonic_ns()}"
        echo(end)
        heard = bytearray()
        while end.encode() not in heard:
            heard += link.recv(1 << 20)
        tap.listen(heard.decode("utf-8", "replace"))


class Tap:
    """The commands that clients sent while it was open; calls of scripts do not count."""

    def __init__(self) -> None:
        self.commands: dict[str, int] = {}
        self.by_address: dict[str, int] = {}
        self.scripts: dict[str, int] = {}
        """How often each script was called, by its digest."""

    def listen(self, heard: str) -> None:
        """Count the lines of MONITOR: ``+<time> [<db> <address>] "<command>" ...``."""
        for line in heard.splitlines():
            _, _, rest = line.partition("[")
            origin, _, command = rest.partition("] ")
            who = origin.partition(" ")[2]
            if command and who != "lua" and not who.startswith("unix:"):
                name, *arguments = command.split(" ", 2)
                name = name.strip('"').upper()
                self.commands[name] = self.commands.get(name, 0) + 1
                self.by_address[who] = self.by_address.get(who, 0) + 1
                if name == "EVALSHA" and arguments:
                    digest = arguments[0].strip('"')
                    self.scripts[digest] = self.scripts.get(digest, 0) + 1

    @property
    def total(self) -> int:
        """How many commands clients sent."""
        return sum(self.commands.values())


async def c_floor(server: RedisServer, *, requests: int, runs: int = 5) -> float:
    """Microseconds of one PING round trip by `redis-benchmark -c 1`, a client written in C.

    The median of several short runs. Of each, the mean or the median of its round trips, whichever
    is lower: a busy machine spoils the mean, and the median comes rounded up to the next 8 µs.
    """
    return quantile([await _ping(server, requests) for _ in range(runs)], 0.5)


async def _ping(server: RedisServer, requests: int) -> float:
    process = await asyncio.create_subprocess_exec(
        *("redis-benchmark", "-h", "127.0.0.1", "-p", str(server.port)),
        *("-c", "1", "-n", str(requests), "-t", "ping_mbulk", "--csv"),
        stdout=asyncio.subprocess.PIPE,
        env=os.environ | {"LC_ALL": "C"},
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    header, line = (row.replace('"', "").split(",") for row in output.decode().splitlines()[-2:])
    result = dict(zip(header, line, strict=True))
    took = (1e6 / float(result["rps"]), 1e3 * float(result["p50_latency_ms"]))
    if not any(took):  # over before its clock, which counts milliseconds, has moved
        return await _ping(server, 10 * requests)
    return min(each for each in took if each)
