"""One file for all: what is refused, and what is noticed, where processes would have others."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Final

import pytest

import aiolock
from aiolock._engine.diagnostics import slow_monitor
from aiolock.protocol import ReadPosted
from aiolock.stores.sqlite import _places, _session
from tests.support.failures import take

LINUX: Final = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such locks")


@pytest.fixture(autouse=True)
def no_labels(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or whoever puts one up notices what an idle client is to notice."""
    monkeypatch.setattr(slow_monitor, "_EVERY", 3600.0)


@pytest.fixture
def directory() -> Iterator[Path]:
    """Near enough for a socket."""
    with tempfile.TemporaryDirectory(prefix="aiolock-") as name:
        yield Path(name)


@pytest.fixture
def path(directory: Path) -> Path:
    """Where the locks of a test are."""
    return directory / "locks.db"


def url(path: Path) -> str:
    """The path, for `connect`."""
    return f"sqlite:///{path}"


def remove(path: Path, *suffixes: str) -> None:
    """Remove the file, and what is beside it, or some of that."""
    for suffix in suffixes or ("", "-wal", "-shm", ".clients"):
        beside = Path(f"{path}{suffix}")
        if beside.is_dir():
            shutil.rmtree(beside)
        else:
            beside.unlink()


async def refused(path: Path) -> str:
    """Why a client cannot be opened there."""
    with pytest.raises(aiolock.StoreError) as caught:
        async with aiolock.connect(url(path)):
            pass
    assert caught.value.refused
    return str(caught.value)


_HOLDS = """
import asyncio, sys
import aiolock

async def main():
    async with aiolock.connect("sqlite:///" + sys.argv[1]) as client:
        async with client.lock("x", ttl=30):
            print("in", flush=True)
            await asyncio.sleep(60)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def holder(path: Path) -> AsyncGenerator[subprocess.Popen[str]]:
    """Another process, that holds the lock ``x``."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", _HOLDS, str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert await asyncio.to_thread(process.stdout.readline) == "in\n"
        yield process
    finally:
        process.kill()
        await asyncio.to_thread(process.communicate)


@LINUX
@pytest.mark.one_loop
async def test_file_with_a_second_hard_link_is_refused(path: Path) -> None:
    """The log is beside the one name, and not beside the other."""
    async with aiolock.connect(url(path)):
        os.link(path, path.with_name("linked.db"))
        assert "has 2 names (hard links)" in await refused(path.with_name("linked.db"))
    assert "has 2 names (hard links)" in await refused(path)
    path.with_name("linked.db").unlink()
    async with aiolock.connect(url(path)) as client, client.lock("x"):
        pass


@LINUX
@pytest.mark.one_loop
async def test_file_mounted_by_itself_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As Docker mounts it: its log would be another one in each container."""
    mounts = path.with_name("mounts")
    named = str(path).replace("/", "\\057", 1)
    mounts.write_text(f"disk / ext4 rw 0 0\ndisk {named} ext4 rw 0 0\n")
    monkeypatch.setattr(_places, "_MOUNTS", str(mounts))
    path.touch()
    assert "is mounted by itself" in await refused(path)
    mounts.unlink()  # no `/proc`
    async with aiolock.connect(url(path)):
        pass


@LINUX
@pytest.mark.one_loop
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount")
async def test_file_bind_mounted_elsewhere_is_refused_there_and_its_holder_goes_on(
    path: Path,
) -> None:
    """Whoever has the file where it is goes on."""
    inside = path.with_name("inside")
    inside.mkdir()
    (inside / "locks.db").touch()
    async with aiolock.connect(url(path)) as client:
        lease = await take(client.lock("x", ttl=30))
        script = (
            f"mount --bind '{path}' '{inside}/locks.db' && exec '{sys.executable}' -P -c '{_HOLDS}'"
            f" '{inside}/locks.db'"
        )
        command = ["unshare", "--mount", "--propagation", "private", "sh", "-c", script]
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True)
        if "Operation not permitted" in done.stderr or "permission denied" in done.stderr:
            pytest.skip("this root may not mount")
        assert "StoreError" in done.stderr
        assert "is mounted by itself" in done.stderr
        assert await lease.verify()


@LINUX
@pytest.mark.one_loop
async def test_file_moved_while_in_use_is_refused_at_its_new_place(path: Path) -> None:
    """Its log was not moved: what was locked last is not to be seen there."""
    moved = path.with_name("moved.db")
    async with holder(path):
        path.rename(moved)
        assert "is in use by another path" in await refused(moved)
    async with aiolock.connect(url(moved)):
        pass


async def test_directory_link_switched_while_in_use_loses_all_leases_at_once(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a deployment does. Others would find another file by that URL."""
    monkeypatch.setattr(_session, "HEARTBEAT", 0.05)
    for release in ("one", "two"):
        (directory / release).mkdir()
    current, switched = directory / "current", directory / "switched"
    current.symlink_to("one")
    async with aiolock.connect(url(current / "locks.db")) as client:
        lease = await take(client.lock("x", ttl=3600))
        switched.symlink_to("two")
        switched.rename(current)
        await asyncio.wait_for(lease.lost.wait(), 5)
        for _ in range(2):
            with pytest.raises(aiolock.StoreError, match=r"leads to .*two/locks.db now") as caught:
                await take(client.lock("y"))
            assert caught.value.refused
        async with aiolock.connect(url(current / "locks.db")) as new, new.lock("x", timeout=2):
            pass
        switched.symlink_to("one")
        switched.rename(current)
        async with client.lock("y", timeout=5):  # it is its file again
            pass


async def test_directory_link_switched_under_an_idle_client_loses_its_lease(
    directory: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if nothing else tells it, such as that the others do not see it any more."""
    monkeypatch.setattr(_session, "HEARTBEAT", 0.05)
    monkeypatch.setattr(_session.Session, "_look", lambda _: None)
    for release in ("one", "two"):
        (directory / release).mkdir()
    current, switched = directory / "current", directory / "switched"
    current.symlink_to("one")
    async with aiolock.connect(url(current / "locks.db")) as client:
        lease = await take(client.lock("x", ttl=3600))
        await asyncio.sleep(0.5)  # the first sweep, which would notice it, is over
        switched.symlink_to("two")
        switched.rename(current)
        await asyncio.wait_for(lease.lost.wait(), 5)


@LINUX
@pytest.mark.one_loop
@pytest.mark.parametrize("suffixes", [(), ("", "-wal", "-shm"), ("",)], ids=str)
async def test_removed_file_lets_a_newcomer_in_after_its_holders_lost_their_leases(
    path: Path, suffixes: tuple[str, ...]
) -> None:
    """However long its lease would have lasted."""
    async with aiolock.connect(url(path)) as ours:
        leases = [await take(ours.lock(f"n{number}", ttl=3600)) for number in range(150)]
        remove(path, *suffixes)
        async with aiolock.connect(url(path)) as newcomer:
            assert {lease.state for lease in leases} == {"lost"}
            async with newcomer.lock("n7", timeout=0):
                pass


@LINUX
@pytest.mark.one_loop
async def test_replaced_file_lets_a_newcomer_in_after_its_holder_lost_its_lease(path: Path) -> None:
    """A backup that was put in its place knows nothing of what was granted since."""
    async with aiolock.connect(url(path)):
        pass
    shutil.copy(path, path.with_name("backup.db"))
    async with aiolock.connect(url(path)) as ours:
        lease = await take(ours.lock("x", ttl=3600))
        path.with_name("backup.db").rename(path)
        async with aiolock.connect(url(path)) as newcomer:
            assert lease.state == "lost"
            async with newcomer.lock("x", timeout=0):
                pass


@LINUX
@pytest.mark.one_loop
async def test_removed_log_lets_the_earlier_client_join_the_newcomers_file(path: Path) -> None:
    """Whoever had it before joins them, and does not take their log away."""
    async with aiolock.connect(url(path)) as ours:
        lease = await take(ours.lock("x", ttl=3600))
        remove(path, "-wal")
        async with aiolock.connect(url(path)) as newcomer:
            assert lease.state == "lost"
            second = await take(newcomer.lock("y", ttl=3600))
            async with ours.lock("z", timeout=5):
                pass
            assert await second.verify()
            assert await ours.lock("y").locked()


@LINUX
@pytest.mark.one_loop
async def test_removed_file_of_a_stopped_holder_is_refused_until_the_holder_ends(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may still count on its lock when it goes on."""
    monkeypatch.setattr("aiolock.stores.sqlite._connection.BUSY", 0.3)
    async with holder(path) as process:
        await asyncio.sleep(0.1)
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        remove(path)
        assert "was removed or replaced while it was in use" in await refused(path)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        async with aiolock.connect(url(path)) as client, client.lock("x", timeout=0):
            pass


@LINUX
async def test_removed_file_of_a_holder_with_a_blocked_loop_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its thread notices, and does not leave the file before its leases are known as lost."""
    monkeypatch.setattr("aiolock.stores.sqlite._connection.BUSY", 0.5)
    command = [sys.executable, "-P", "-c", _HOLDS, str(path)]
    async with aiolock.connect(url(path)) as ours:
        lease = await take(ours.lock("x", ttl=3600))
        remove(path)
        asked = ours._engine.store.submit(ReadPosted("y"))  # its thread notices at once
        done = subprocess.run(command, capture_output=True, check=False, text=True)
        assert "while it was in use" in done.stderr, done.stderr
        await asyncio.wait_for(lease.lost.wait(), 5)
        with contextlib.suppress(aiolock.StoreError):
            await asked


@pytest.mark.one_loop
async def test_file_set_back_raises_store_error_and_loses_its_leases(path: Path) -> None:
    """What it knew then holds from now on; a holder is told at its next renewal."""
    async with aiolock.connect(url(path)) as client:
        async with client.lock("x"):
            pass
        lease = await take(client.lock("y", ttl=0.6))
        with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("UPDATE fence SET last = last - 1000000")
            database.execute("DELETE FROM names")
            database.execute("COMMIT")
        seen: list[str] = []
        async with asyncio.timeout(30):
            while not seen:
                try:
                    await client.lock("z").status()
                except aiolock.StoreError as error:
                    seen.append(str(error))
                if lease.state == "lost":
                    break
        assert "was set back" in "".join(seen)
        await asyncio.wait_for(lease.lost.wait(), 5)
        async with client.lock("y", timeout=5) as second:
            assert second.fence > lease.fence


@pytest.mark.one_loop
async def test_idle_client_whose_file_stays_keeps_its_leases(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However often it looks, and whoever else opens and closes the file."""
    monkeypatch.setattr(_session, "HEARTBEAT", 0.01)
    async with aiolock.connect(url(path)) as client:
        lease = await take(client.lock("x", ttl=3600))
        for _ in range(5):
            async with aiolock.connect(url(path)):
                await asyncio.sleep(0.05)
        assert lease.state == "held"
