"""Database servers of the benchmark's own, whose work is counted together with that of Redis.

Only one contestant works at a time, so the sum over all servers is the work of its own server.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

from benchmarks.redis_server import RedisServer, Usage
from tests.databases import DatabaseServer, MariaDBServer, PostgresServer

_ESTABLISHED = "01"
_TICK = os.sysconf("SC_CLK_TCK")


class Servers(RedisServer):
    """A Redis, and databases with their default settings: a commit is on disk before the answer."""

    def __init__(self) -> None:
        super().__init__()
        self.postgres = PostgresServer(("fsync=on", "max_connections=400"))
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
            for thread in Path(f"/proc/{process}/task").iterdir():
                with contextlib.suppress(ProcessLookupError):
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


def _cpu(process: int) -> float:
    """CPU seconds of a process and of its children that have ended."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text("ascii", "replace")
    except (FileNotFoundError, ProcessLookupError):  # it has ended, or ends while we read
        return 0.0  # then it counts with its parent
    return sum(map(int, stat.rpartition(")")[2].split()[11:15])) / _TICK
