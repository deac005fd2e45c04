"""PostgreSQL and MariaDB servers of the tests' own, as an ordinary user."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, Self

import psycopg
import pymysql
import pytest

from tests.support.procs import freeze
from tests.support.servers import hold_port


@cache
def binaries() -> Path | None:
    """Where PostgreSQL's programs are: `POSTGRES_BIN`, the newest that Debian has, or on PATH."""
    if chosen := os.environ.get("POSTGRES_BIN"):
        return Path(chosen)
    installed = Path("/usr/lib/postgresql").glob("*/bin/initdb")
    versions = sorted(installed, key=lambda path: [int(n) for n in re.findall(r"\d+", str(path))])
    if versions:
        return versions[-1].parent
    found = shutil.which("initdb")
    return Path(found).resolve().parent if found else None


def need_postgres() -> None:
    """Skip the test where there is no PostgreSQL."""
    if not binaries():
        pytest.skip("no PostgreSQL here: `make test` installs it where it may")


def need_mariadb() -> None:
    """Skip the test where there is no MariaDB."""
    if not mariadb_binaries():
        pytest.skip("no MariaDB here: `make test` installs it where it may")


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


TEMPLATES: Final = "AIOLOCK_TEST_TEMPLATES"
"""The variable that names the folder for them, if that is not the one for temporary files."""


def free_port() -> int:
    """A port of 127.0.0.1 on which no program listens now."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
        return port


class DatabaseServer(ABC):
    """A throw-away server on a free port of 127.0.0.1; used with ``with``.

    Its owner may do everything, the user `app` may use the locks and no more.
    """

    def __init__(self) -> None:
        self._held = hold_port()
        self.port: int = self._held.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        # Not in pytest's folder, which no other user may enter; and with a path fit for a socket.
        self.folder = Path(tempfile.mkdtemp(prefix="aiolock-db-"))
        self.data = self.folder / "data"
        self._log = self.folder / "log"

    @property
    def pid(self) -> int:
        """Its first process."""
        assert self._process is not None
        return self._process.pid

    @property
    def as_whom(self) -> dict[str, Any]:
        """Such servers do not run as root."""
        if os.geteuid() != 0:
            return {}
        nobody = pwd.getpwnam("nobody")
        return {"user": nobody.pw_uid, "group": nobody.pw_gid, "extra_groups": ()}

    @property
    def _environment(self) -> dict[str, str]:
        # Several at once must not take each other's temporary tables.
        return os.environ | {"LC_ALL": "C", "TZ": "UTC", "TMPDIR": str(self.folder)}

    def run(self, program: str | Path, *arguments: object) -> None:
        """A program of the server's."""
        subprocess.run(
            [str(program), *map(str, arguments)],
            check=True,
            capture_output=True,
            cwd=self.folder,
            env=self._environment,
            **self.as_whom,
        )

    def __enter__(self) -> Self:
        if owner := self.as_whom:
            os.chown(self.folder, owner["user"], owner["group"])
        try:
            self.make()
            self.start()
            self.prepare()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._held.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def make(self) -> None:
        """The files of a new server: a copy of those that this machine has made once."""
        program, *options = map(str, self.maker())
        made_with = f"{program} {Path(program).stat().st_mtime_ns} {options}"
        kept = os.environ.get(TEMPLATES) or tempfile.gettempdir()
        template = Path(kept) / f"aiolock-{self.folder.owner()}-{_hash(made_with)}"
        if template.exists() and template.owner() == self.folder.owner():
            self.run("cp", "-a", template, self.data)
            return
        self.run(program, *options, self.data_option.format(self.data))
        ready = self.folder / "template"
        self.run("cp", "-a", self.data, ready)
        with contextlib.suppress(OSError):  # another process was faster
            ready.rename(template)

    @abstractmethod
    def maker(self) -> Sequence[str | Path]:
        """The command that makes the files of a server, without their folder."""

    data_option: ClassVar[str]
    """How it is told where."""

    @abstractmethod
    def command(self) -> Sequence[str]:
        """The command that runs it."""

    @abstractmethod
    def try_it(self) -> bool:
        """Whether it takes connections."""

    @abstractmethod
    def prepare(self) -> None:
        """Make the schema, and a user that may use it."""

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        with self._log.open("ab") as log:
            self._process = process = subprocess.Popen(
                self.command(),
                stdout=log,
                stderr=log,
                cwd=self.folder,
                env=self._environment,
                **self.as_whom,
            )
        deadline = time.monotonic() + 60
        while not self.try_it():
            alive = process.poll() is None and time.monotonic() < deadline
            assert alive, self._log.read_text()
            time.sleep(0.02)

    # The owner's ways to stop it
    signals: ClassVar[dict[str, signal.Signals]]

    def stop(self, how: str = "immediate") -> None:
        """Stop it: "fast", or "immediate", which is a crash. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(self.signals[how])
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def restart(self, how: str = "fast") -> None:
        """Stop it and start it."""
        self.stop(how)
        self.start()

    @contextlib.contextmanager
    def stopped(self) -> Iterator[None]:
        """All its processes stand still; the kernel takes connections and bytes."""
        assert self._process is not None
        parent = self._process.pid
        freeze(parent)  # first, so that it starts no more of them
        pids = [parent, *_children(parent)]
        _send(signal.SIGSTOP, pids)
        deadline = time.monotonic() + 30
        try:
            while not all(_stands_still(pid) for pid in pids):
                assert time.monotonic() < deadline, f"not all of {pids} have stopped"
                time.sleep(0.001)
            yield
        finally:
            _send(signal.SIGCONT, pids)


class PostgresServer(DatabaseServer):
    """Owned by the user `postgres`."""

    settings = (
        "fsync=off",  # it is killed as a process, and the kernel keeps what it has written
        "max_connections=200",
        "dynamic_shared_memory_type=mmap",  # in its folder: what is killed leaves nothing elsewhere
        "autovacuum_naptime=1s",
    )
    signals: ClassVar = {"fast": signal.SIGINT, "immediate": signal.SIGQUIT}
    data_option = "--pgdata={}"

    def __init__(self, settings: Sequence[str] = ()) -> None:
        super().__init__()
        found = binaries()
        assert found is not None
        self._bin = found
        self._settings = (*self.settings, *settings)

    def url(self, user: str = "postgres", query: str = "") -> str:
        """Where it is, for one of its users."""
        return f"postgresql://{user}@127.0.0.1:{self.port}/postgres{query}"

    def maker(self) -> Sequence[str | Path]:
        options = ("--auth=trust", "--username=postgres", "--no-sync", "--encoding=UTF8")
        # Its log is in files of 1 MiB instead of 16: all that is made is copied for each server.
        return (self._bin / "initdb", "--locale=C", "--wal-segsize=1", *options)

    def prepare(self) -> None:
        """Make the schema, and a role that may use it."""
        from aiolock.stores import postgres  # here: an ablation imports what its test needs

        self.execute("CREATE ROLE app LOGIN")
        postgres.create_schema(self.url(), "app")

    def command(self) -> Sequence[str]:
        settings = [option for each in self._settings for option in ("-c", each)]
        return [
            *(str(self._bin / "postgres"), "-D", str(self.data), "-p", str(self.port)),
            *("-h", "127.0.0.1", "-k", str(self.folder), *settings),
        ]

    def try_it(self) -> bool:
        try:
            self.connect().close()
        except psycopg.OperationalError:
            return False
        return True

    def connect(self, user: str = "postgres") -> psycopg.Connection[Any]:
        """A connection for the test, that commits each statement."""
        return psycopg.connect(self.url(user), autocommit=True, connect_timeout=5)

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """One statement of the owner's, and its rows."""
        with contextlib.closing(self.connect()) as connection:
            cursor = connection.execute(statement.encode(), values or None)
            return cursor.fetchall() if cursor.description else []

    def backends(self) -> list[int]:
        """The processes that serve the application's connections."""
        rows = self.execute("SELECT pid FROM pg_stat_activity WHERE usename = 'app' ORDER BY 1")
        return [pid for (pid,) in rows]


def _send(number: signal.Signals, pids: Sequence[int]) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):  # it has ended by itself
            os.kill(pid, number)


def _stands_still(pid: int) -> bool:
    """Whether it runs no more: its threads go on for a moment after the signal was sent."""
    try:
        states = [
            (thread / "stat").read_text().rpartition(") ")[2][0]
            for thread in Path(f"/proc/{pid}/task").iterdir()
        ]
    except OSError:
        return not Path(f"/proc/{pid}").exists()  # it has ended by itself; or one thread has
    return set(states) <= set("TZX")


def _children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


class Standby(PostgresServer):
    """Another server that follows the first one."""

    def __init__(self, primary: PostgresServer) -> None:
        super().__init__()
        self._primary = primary

    def make(self) -> None:
        """A copy of the other's files."""
        where = ("-h", "127.0.0.1", "-p", self._primary.port, "-U", "postgres")
        self.run(
            self._bin / "pg_basebackup", "-D", self.data, "-R", "-c", "fast", "--no-sync", *where
        )

    def prepare(self) -> None:
        """It has what the other one has."""

    def wait_for(self, primary: PostgresServer) -> None:
        """Return when it has all that the other one has now."""
        ((written,),) = primary.execute("SELECT pg_current_wal_lsn()::text")
        deadline = time.monotonic() + 60
        while not self.execute("SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", written)[0][0]:
            assert time.monotonic() < deadline
            time.sleep(0.01)

    def promote(self) -> None:
        """It is the primary from now on."""
        self.run(self._bin / "pg_ctl", "promote", "-D", self.data, "-w")


class PgBouncer:
    """A pooler in front of a server: a session for each transaction, or for each connection."""

    def __init__(
        self,
        server: PostgresServer,
        *,
        mode: Literal["transaction", "session", "statement"] = "transaction",
        settings: Sequence[str] = (),
    ) -> None:
        """``settings`` are lines of its configuration, beside those that tests need."""
        self._server = server
        self._mode = mode
        self._settings = settings
        self._held = hold_port()
        self.port: int = self._held.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, query: str = "") -> str:
        """Where it is."""
        return f"postgresql://app@127.0.0.1:{self.port}/postgres{query}"

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()
        self._held.close()

    def start(self) -> None:
        """Start it, and wait until it takes connections."""
        folder = self._server.folder
        (folder / "users").write_text('"app" ""\n')
        config = folder / "pgbouncer.ini"
        config.write_text(
            f"[databases]\npostgres = host=127.0.0.1 port={self._server.port}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {self.port}\n"
            f"unix_socket_dir =\nauth_type = trust\nauth_file = {folder}/users\n"
            f"pool_mode = {self._mode}\nignore_startup_parameters = extra_float_digits,options\n"
            f"default_pool_size = 4\nlogfile = {folder}/pgbouncer.log\n"
            + "".join(f"{each}\n" for each in self._settings)
        )
        program = shutil.which("pgbouncer")
        assert program is not None
        self._process = subprocess.Popen(
            [program, str(config)],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            **self._server.as_whom,
        )
        deadline = time.monotonic() + 60
        while True:
            try:
                psycopg.connect(self.url(), connect_timeout=5).close()
            except psycopg.OperationalError:
                assert self._process.poll() is None, (folder / "pgbouncer.log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """End it. Idempotent."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()

    def restart(self) -> None:
        """End it and start it: every connection through it is broken."""
        self.stop()
        self.start()


@cache
def mariadb_binaries() -> tuple[Path, Path] | None:
    """Where MariaDB's server is, and what makes its files: also where PATH has no `sbin`."""
    path = f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin"
    server = shutil.which("mariadbd", path=path)
    install = shutil.which("mariadb-install-db", path=path)
    return (Path(server), Path(install)) if server and install else None


class MariaDBServer(DatabaseServer):
    """Owned by the user `root`."""

    settings = (
        "--innodb-flush-log-at-trx-commit=2",  # the kernel keeps what a killed process has written
        "--innodb-buffer-pool-size=32M",
        "--innodb-log-file-size=16M",
        "--max-connections=300",
        "--skip-name-resolve",
    )
    signals: ClassVar = {"fast": signal.SIGTERM, "immediate": signal.SIGKILL}
    data_option = "--datadir={}"

    def __init__(self, settings: Sequence[str] = ()) -> None:
        super().__init__()
        found = mariadb_binaries()
        assert found is not None
        self._server, self._install = found
        self._settings = (*self.settings, *settings)
        self.socket = self.folder / "s"

    def url(self, user: str = "root", query: str = "") -> str:
        """Where it is, for one of its users."""
        return f"mysql://{user}@127.0.0.1:{self.port}/shop{query}"

    def maker(self) -> Sequence[str | Path]:
        options = ("--auth-root-authentication-method=normal", "--skip-test-db")
        # With its settings, so that the first start need not change the size of the log.
        return (self._install, "--no-defaults", *options, *self._settings)

    def command(self) -> Sequence[str]:
        return [
            *(str(self._server), "--no-defaults", f"--datadir={self.data}", f"--port={self.port}"),
            *("--bind-address=127.0.0.1", f"--socket={self.socket}"),
            *self._settings,
        ]

    def try_it(self) -> bool:
        try:
            self.connect(database=None).close()
        except pymysql.OperationalError:
            return False
        return True

    def prepare(self) -> None:
        from aiolock.stores import mysql  # here: an ablation imports what its test needs

        with (
            contextlib.closing(self.connect(database=None)) as connection,
            connection.cursor() as cursor,
        ):
            cursor.execute("CREATE DATABASE shop")
            cursor.execute("CREATE USER app")
        mysql.create_schema(self.url(), "app")

    def connect(
        self, user: str = "root", database: str | None = "shop"
    ) -> pymysql.Connection[pymysql.cursors.Cursor]:
        """A connection for the test, that commits each statement."""
        return pymysql.connect(
            host="127.0.0.1",
            port=self.port,
            user=user,
            database=database,
            autocommit=True,
            connect_timeout=5,
            ssl_disabled=True,  # else each loads all of the system's certificates, for 40 ms
        )

    def execute(self, statement: str, *values: object) -> list[tuple[Any, ...]]:
        """One statement of the owner's, and its rows."""
        with contextlib.closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, values or None)
            return list(cursor.fetchall())

    def connections(self) -> list[int]:
        """What the server calls the application's."""
        rows = self.execute("SELECT id FROM information_schema.processlist WHERE user = 'app'")
        return sorted(number for (number,) in rows)
