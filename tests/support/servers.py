"""A real `redis-server` for tests, on a free port, to be killed, stopped, paused and restarted.

The environment variable `REDIS_SERVER` names another one: ``REDIS_SERVER=valkey-server make test``.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.support.procs import freeze, tied

if TYPE_CHECKING:
    from aiolock.stores.redis import RedisStore

BINARY: Final = os.environ.get("REDIS_SERVER", "redis-server")
"""The server that is tested, which is also a Sentinel: ``BINARY config --sentinel``."""


def hold_port() -> socket.socket:
    """Return a socket that keeps a free port of 127.0.0.1 reserved for as long as it is open.

    The socket never listens. So on Linux another socket may bind the port too and listen on it,
    while the kernel gives the port to nobody else, even when that other socket is gone for a while.
    """
    holder = socket.socket()
    holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    holder.bind(("127.0.0.1", 0))
    return holder


def store_on(url: str, prefix: str) -> RedisStore:
    """A store on one server, by its URL."""
    # Here: an ablation imports what its test needs.
    from aiolock.stores.redis import RedisStore, from_url

    store = from_url(url, prefix)
    assert isinstance(store, RedisStore)
    return store


_BUS: Final = 10_000
"""So much higher is the port on which a node of a cluster speaks to the others."""


def hold_bus_port() -> list[socket.socket]:
    """The same, and for the port of the node's bus."""
    found: list[socket.socket] = []
    while not found:
        holder = hold_port()
        bus = socket.socket()
        bus.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            bus.bind(("127.0.0.1", holder.getsockname()[1] + _BUS))
        except (OSError, OverflowError):  # taken, or no port at all
            bus.close()
            holder.close()
        else:
            found = [holder, bus]
    return found


class RedisServer:
    """A `redis-server` child process, without persistence, on 127.0.0.1 and on a unix socket.

    `RedisServer("--maxmemory", "5mb", password=..., tls=True)`: the positional arguments go to the
    command line of `redis-server` (an ACL user: `"--user", "name", "on", ">pw", "+@all"`). Used
    with `with`, at whose end it is killed. Its methods block, for some 20 ms (`stop`: up
    to 100), and so serve sync and async tests alike. Start it in the main thread: on Linux, it dies
    with the thread that has started it, so it never outlives the tests.
    """

    def __init__(
        self, *args: str, password: str | None = None, tls: bool = False, cluster: bool = False
    ) -> None:
        if shutil.which(BINARY) is None:
            raise RuntimeError(f"these tests need {BINARY} on PATH (Debian: redis-server)")
        self.password = password
        self._args = args
        self._dir = tempfile.TemporaryDirectory(prefix="aiolock-")
        self._path = Path(self._dir.name)
        if cluster:
            self._args += ("--cluster-enabled", "yes")
        self._holders = [hold_port() for _ in range(2 if tls else 1)]
        self._bus: list[socket.socket] = []
        if cluster:
            self._holders[0].close()
            self._holders[0], *self._bus = hold_bus_port()
        self._process: subprocess.Popen[bytes] | None = None
        if tls:
            self._make_certificate()

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Kill the server, and give back its port and its directory."""
        self.kill()
        for holder in (*self._holders, *self._bus):
            holder.close()
        self._dir.cleanup()

    @property
    def port(self) -> int:
        """The plain TCP port, the same after a restart."""
        return int(self._holders[0].getsockname()[1])

    @property
    def tls_port(self) -> int:
        """The TLS port of a server that was made with `tls=True`."""
        return int(self._holders[1].getsockname()[1])

    @property
    def socket_path(self) -> str:
        """The path of the unix socket."""
        return str(self._path / "socket")

    @property
    def ca_path(self) -> str:
        """The path of the certificate that signed the TLS server's own."""
        return str(self._path / "ca.pem")

    @property
    def url(self) -> str:
        """The URL of the TCP port, with the password if there is one."""
        return f"redis://{self._login}127.0.0.1:{self.port}/0"

    @property
    def unix_url(self) -> str:
        """The URL of the unix socket, with the password if there is one."""
        return f"unix://{self._login}{self.socket_path}?db=0"

    @property
    def tls_url(self) -> str:
        """The URL of the TLS port, with the certificate to trust and the password, if any."""
        return f"rediss://{self._login}127.0.0.1:{self.tls_port}/0?ssl_ca_certs={self.ca_path}"

    @property
    def dump(self) -> Path:
        """The file in which the server saves, if it is told to, and which it loads."""
        return self._path / "dump.rdb"

    @property
    def _login(self) -> str:
        return f":{self.password}@" if self.password else ""

    def start(self) -> None:
        """Start the server, which must not be running, and wait until it answers."""
        self.launch()
        self.wait_ready()

    def launch(self) -> None:
        """Start the server, which must not be running; it does not answer yet."""
        if self._process is not None:
            raise RuntimeError("the server is running already")
        options = [
            "--bind",
            "127.0.0.1",
            "--port",
            str(self.port),
            "--save",
            "",
            "--appendonly",
            "no",
        ]
        options += ["--dir", str(self._path), "--unixsocket", self.socket_path]
        if self.password:
            options += ["--requirepass", self.password]
        if len(self._holders) > 1:
            options += ["--tls-port", str(self.tls_port), "--tls-ca-cert-file", self.ca_path]
            options += ["--tls-cert-file", str(self._path / "server.pem")]
            options += [
                "--tls-key-file",
                str(self._path / "server.key"),
                "--tls-auth-clients",
                "no",
            ]
        with (self._path / "log").open("ab") as log:
            self._process = subprocess.Popen(
                tied(BINARY, *options, *self._args),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def stop(self) -> None:
        """Ask the server to end (SIGTERM), even if it is paused, and wait until it has."""
        if self._process is not None:
            self._process.terminate()
            self.resume()
            try:
                self._process.wait(10)
            finally:
                self.kill()

    def kill(self) -> None:
        """Kill the server (SIGKILL), if it is running, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill the server, if it is running, and start it again: empty, at the same port."""
        self.kill()
        self.start()

    def pause(self) -> None:
        """Stop the server in its tracks (SIGSTOP): its kernel still takes connections and bytes."""
        freeze(self._running.pid)

    def resume(self) -> None:
        """Let a paused server go on (SIGCONT)."""
        self._running.send_signal(signal.SIGCONT)

    def call(self, *args: str | bytes | float) -> Any:
        """Run one command on a connection of its own, as the default user; return its reply."""
        try:
            return self._client.execute_command(*args)
        finally:
            self._client.connection_pool.disconnect()

    @cached_property
    def _client(self) -> Any:
        """Made once: that takes ten times as long as a command. It stays connected to nothing."""
        return redis.Redis(
            unix_socket_path=self.socket_path,
            password=self.password,
            decode_responses=True,
            socket_timeout=5,
            retry=Retry(NoBackoff(), 0),
            driver_info=None,  # tells the server nothing about itself
        )

    def wait_ready(self) -> None:
        """Wait until the server answers, at most 60 seconds."""
        deadline = time.monotonic() + 60
        while not self._answers():
            gone = self._running.poll() is not None
            if gone or time.monotonic() > deadline:
                log = (self._path / "log").read_text(errors="replace")[-2000:]
                self.kill()
                what = "ended at once" if gone else "did not answer within 60 s"
                raise RuntimeError(f"{BINARY} {what}, its log:\n{log}")
            time.sleep(0.002)

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as link:
            link.settimeout(1)
            try:
                link.connect(self.socket_path)
                link.sendall(b"PING\r\n")
                return link.recv(64).startswith((b"+PONG", b"-NOAUTH", b"-NOPERM"))
            except OSError:
                return False

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process

    def _make_certificate(self) -> None:
        import trustme  # here, because it takes a while and few tests need it

        authority = trustme.CA()
        authority.cert_pem.write_to_path(self.ca_path)
        certificate = authority.issue_cert("127.0.0.1", "localhost")
        certificate.cert_chain_pems[0].write_to_path(os.fspath(self._path / "server.pem"))
        certificate.private_key_pem.write_to_path(os.fspath(self._path / "server.key"))
