"""The contract on the stores that need no server, by the package alone: what runs on any system.

`pytest --noconftest tests/proof/portable` runs it where the helpers of the other tests do not
work, as on Windows.
"""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

import aiolock
from aiolock.store import Store
from aiolock.stores.memory import MemoryServer, MemoryStore
from aiolock.stores.sqlite import SQLiteStore
from aiolock.testing import RunsContract, StoreContract

pytestmark = [pytest.mark.one_loop, pytest.mark.asyncio]


class TestMemory(StoreContract, RunsContract):
    """The store in plain Python."""

    @pytest.fixture(autouse=True)
    def _server(self) -> None:
        self._memory = MemoryServer()

    def store(self) -> Store:
        """Another link to the test's own server."""
        return MemoryStore(self._memory)


class TestSQLite(StoreContract, RunsContract):
    """A file."""

    @pytest.fixture(autouse=True)
    def _file(self, tmp_path: Path) -> None:
        self._path = tmp_path / "locks.db"

    def store(self) -> Store:
        """Another link to the test's own file."""
        return SQLiteStore(self._path, "portable")


_CHILD = """
import asyncio, sys, aiolock

async def main():
    async with aiolock.connect(sys.argv[1]) as client:
        async with client.lock("a", ttl=60):
            print("entered", flush=True)
            await asyncio.to_thread(sys.stdin.readline)
        print("left", flush=True)

asyncio.run(main())
"""


async def test_lock_in_sqlite_excludes_another_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its waiter enters when it is released there."""
    monkeypatch.chdir(tmp_path)  # a relative path is written the same on every system
    url = "sqlite:///./locks.db"
    pipes = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", _CHILD, url), stdin=pipes, stdout=pipes
    )
    assert child.stdin is not None
    assert child.stdout is not None
    async with asyncio.timeout(60), aiolock.connect(url) as client:
        assert await child.stdout.readline() == b"entered\n"
        assert await client.lock("a").try_acquire() is None
        waiting = asyncio.ensure_future(client.lock("a").acquire())
        child.stdin.write(b"\n")
        await child.stdin.drain()
        async with await waiting:
            assert (await child.stdout.readline()).strip() == b"left"
        assert await child.wait() == 0
