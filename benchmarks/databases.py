"""Database servers of the benchmark's own, whose work is counted together with that of Redis.

Only one contestant works at a time, so the sum over all servers is the work of its own server.
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Generator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from benchmarks.redis_server import RedisServer, Tap, Usage
from tests.support.databases import DatabaseServer, MariaDBServer, PostgresServer

_ESTABLISHED = "01"
_LOCALHOST = "0100007F"
_LOGGED = re.compile(r"^\w+ 127\.0\.0\.1\((\d+)\) LOG:  (?:execute|statement)", re.MULTILINE)
"""What PostgreSQL logs of each statement: from which port it came."""
_TICK = os.sysconf("SC_CLK_TCK")
_ENDED = (FileNotFoundError, ProcessLookupError)
"""What a process has that has ended, or ends while we look."""


class Servers(RedisServer):
    """A Redis, and databases with their default settings: a commit is on disk before the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.postgres = PostgresServer(
            ("fsync=on", "max_connections=400", "log_line_prefix=%u %r ")
        )
        self.mariadb = MariaDBServer(
            ("--innodb-flush-log-at-trx-commit=1", "--max-connections=400")
        )
        self._stack = contextlib.ExitStack()

    @property
    def databases(self) -> Sequence[DatabaseServer]:
        """The servers beside Redis."""
        return self.postgres, self.mariadb

    def __enter__(self) -> Self:
        super().__enter__()
        self._stack.callback(super().__exit__)
        try:
            for each in self.databases:
                self._stack.enter_context(each)
        except BaseException:
            self._stack.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def keep_to(self, cores: set[int]) -> None:
        """Run the databases, with all that they start from now on, on these cores."""
        for process in self._processes():
            with contextlib.suppress(*_ENDED):
                for thread in Path(f"/proc/{process}/task").iterdir():
                    with contextlib.suppress(*_ENDED):
                        os.sched_setaffinity(int(thread.name), cores)

    def _processes(self) -> list[int]:
        parents = [each.pid for each in self.databases]
        children = [
            int(child)
            for parent in parents
            for child in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()
        ]
        return parents + children

    def usage(self) -> Usage:
        """The work of Redis and the databases so far; the memory is that of Redis."""
        used = super().usage()
        return replace(used, cpu=used.cpu + sum(map(_cpu, self._processes())))

    def addresses(self) -> set[str]:
        """The peers' ends of all open connections, to any server."""
        ports = {each.port for each in self.databases}
        lines = Path("/proc/net/tcp").read_text("ascii").splitlines()[1:]
        found = [line.split()[1:4] for line in lines]
        return super().addresses() | {
            f"tcp {remote}"
            for local, remote, state in found
            if state == _ESTABLISHED and int(local.rpartition(":")[2], 16) in ports
        }

    @contextlib.contextmanager
    def tap(self) -> Generator[Tap]:
        """Count the statements, too, for each of the connections that are open at the end."""
        log = self.postgres.folder / "log"
        with super().tap() as tap:
            self._log_statements("SET log_statement = 'all'", on=1)
            try:
                already = log.stat().st_size
                yield tap
                ports = _LOGGED.findall(log.read_bytes()[already:].decode("utf-8", "replace"))
                rows = self.mariadb.execute(
                    "SELECT SUBSTRING_INDEX(host, ':', -1) FROM mysql.general_log"
                    " JOIN information_schema.processlist ON id = thread_id"
                    " WHERE command_type = 'Query'"
                )
            finally:
                self._log_statements("RESET log_statement", on=0)
        for port in [*ports, *(port for (port,) in rows)]:
            address = f"tcp {_LOCALHOST}:{int(port):04X}"
            tap.by_address[address] = tap.by_address.get(address, 0) + 1

    def _log_statements(self, postgres: str, *, on: int) -> None:
        self.postgres.execute(f"ALTER SYSTEM {postgres}")
        self.postgres.execute("SELECT pg_reload_conf()")
        self.mariadb.execute(f"SET GLOBAL log_output = 'TABLE', GLOBAL general_log = {on}")
        self.mariadb.execute("TRUNCATE mysql.general_log")
        time.sleep(0.1)  # the server tells its processes, each of which looks before a statement


def _cpu(process: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    folder = Path(f"/proc/{process}")
    try:
        stat = (folder / "stat").read_text("ascii", "replace").rpartition(")")[2].split()
        threads = len(list((folder / "task").iterdir()))
        if threads == 1 and (exact := folder / "schedstat").exists():
            # Of many processes that do little each, the whole ticks would be nothing.
            own = int(exact.read_text("ascii").split()[0]) / 1e9
        else:
            own = sum(map(int, stat[11:13])) / _TICK
    except _ENDED:
        return 0.0  # then it counts with its parent
    return own + sum(map(int, stat[13:15])) / _TICK
