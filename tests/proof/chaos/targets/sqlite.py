"""A file of the run's own, and the files of those who use it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sqlite3
import tempfile
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any, Final

import aiolock
from aiolock.stores._codec import decode
from aiolock.stores._state import NameState
from aiolock.stores.redis._codec import encode
from aiolock.stores.sqlite import _clock
from aiolock.stores.sqlite._presence import Presence
from tests.proof.chaos.faults import ATTACKS, Fault
from tests.proof.chaos.history import History
from tests.proof.chaos.targets import Kept, Silent, Standing

_PATIENCE: Final = 8.0
"""Seconds to wait for the others' transactions, when something is to be broken."""
_ANSWERS_WITHIN: Final = 2.0
_FORGET: Final = ("DELETE FROM names", "DELETE FROM inbox", "UPDATE fence SET last = 0")


class SQLiteDoor:
    """The file, as one process at a time uses it."""

    def __init__(self, path: Path) -> None:
        self._directory = path.with_name(f"{path.name}.clients")
        self.url = f"sqlite:///{path}"

    def visitor(self, pid: int) -> Callable[[], Awaitable[bool]]:
        theirs = [path.stem for path in self._directory.glob("*.lock") if _pid(path) == pid]
        presence = Presence(self._directory, "")

        async def is_known() -> bool:
            return any(map(presence.listens, theirs))

        return is_known

    async def strike(self, fault: Fault, pid: int) -> None:
        suffix = {"unlisted": ".lock", "unrung": ".sock"}[fault.kind]
        for path in self._directory.glob("*.lock"):
            if _pid(path) == pid:
                path.with_suffix(suffix).unlink(missing_ok=True)


class _Owner:
    """A connection to look and to break with, in threads; it does one thing at a time.

    Whoever is cancelled does not wait for the thread. It may still be at work when the connection
    is to be closed, and whoever closes one that is at work ends this whole process.
    """

    def __init__(self, path: Path, patience: float) -> None:
        self._mutex = threading.Lock()
        self._database = sqlite3.connect(
            path, isolation_level=None, timeout=patience, check_same_thread=False
        )

    def run(self, *statements: str) -> list[Any]:
        """The rows of the last of these."""
        rows: list[Any] = []
        with self._mutex:
            for statement in statements:
                rows = self._database.execute(statement).fetchall()
        return rows

    def close(self) -> None:
        """Disconnect. Idempotent."""
        with self._mutex:
            self._database.close()


class SQLiteTarget:
    """A file that others lock, read and clear."""

    attack = ATTACKS["sqlite"]

    async def start(self, stack: AsyncExitStack, history: History) -> None:
        self._history = history
        self._stack = stack
        directory = stack.enter_context(tempfile.TemporaryDirectory(prefix="aiolock-"))
        self._path = Path(directory) / "locks.db"
        async with aiolock.connect(f"sqlite:///{self._path}"):
            pass  # so that it is there
        self._admin = self._connect(_ANSWERS_WITHIN)
        self._reader = self._connect(_ANSWERS_WITHIN)
        began = dict(self._reader.run("SELECT boot, began FROM clock"))
        self._now = _clock.clock(began.get(_clock.boot()))

    def _connect(self, patience: float) -> _Owner:
        """One more connection."""
        owner = _Owner(self._path, patience)
        self._stack.callback(owner.close)
        return owner

    async def door(self, stack: AsyncExitStack) -> SQLiteDoor:
        return SQLiteDoor(self._path)

    # Looking

    async def ping(self) -> None:
        """Write, as everybody has to."""
        with _silent():
            await asyncio.to_thread(self._admin.run, "BEGIN IMMEDIATE", "COMMIT")

    async def standing(self) -> Standing:
        found = Standing(self._now(), {}, {})
        for name, state in await self._states():
            holders = [
                f"{encode(grant.waiter, holder.form, blind=False)}:{grant.fence}"
                for grant, holder in state.holders.items()
                if holder.end > found.now // 1000 and not holder.is_reserved
            ]
            if holders:
                found.holders[name] = holders
            if state.queue:
                found.queues[name] = [
                    encode(waiter, state.waiting[waiter][1], blind=False)
                    for _, waiter in state.queue
                ]
        return found

    async def kept(self) -> Sequence[Kept]:
        now = self._now() // 1000
        kept: list[Kept] = []
        for name, state in await self._states():
            holders = [holder for holder in state.holders.values() if holder.end > now]
            last = max([state.until, *(holder.end for holder in holders)])
            kept.append(
                Kept(
                    *(name, max(0, last - now)),
                    holders=[holder.client for holder in holders],
                    waiters=[waiter.client for _, waiter in state.queue],
                )
            )
        return kept

    async def _states(self) -> list[tuple[str, NameState]]:
        """All names, as they are at one time."""
        with _silent():
            rows = await asyncio.to_thread(self._reader.run, "SELECT name, state FROM names")
        return [(name.partition(b"\0")[2].decode(), decode(state)) for name, state in rows]

    # Breaking

    async def strike(self, fault: Fault) -> None:
        owner = self._connect(_PATIENCE)
        try:
            await self._strike(fault, lambda text: asyncio.to_thread(owner.run, text))
        finally:
            await asyncio.to_thread(owner.close)

    async def _strike(self, fault: Fault, execute: Callable[[str], Awaitable[Any]]) -> None:
        match fault.kind:
            case "checkpoint":
                await execute("PRAGMA wal_checkpoint(TRUNCATE)")
            case "vacuum":
                await execute("VACUUM")
            case "locked" | "locked_long":
                await execute("BEGIN IMMEDIATE")
                await asyncio.sleep(fault.seconds)
                await execute("ROLLBACK")
            case "read":
                await execute("BEGIN")
                await execute("SELECT count(*) FROM names")
                await asyncio.sleep(fault.seconds)
                await execute("COMMIT")
            case "forget":
                since = time.monotonic_ns()
                await execute("BEGIN IMMEDIATE")
                for statement in _FORGET:
                    await execute(statement)
                await execute("COMMIT")
                self._history.note("wiped", since=since, fence=self._now())

    async def settled(self) -> None:
        """Nothing comes late."""


def make() -> SQLiteTarget:
    """The target."""
    return SQLiteTarget()


def _pid(path: Path) -> int:
    """Of the process whose file that is; 0 if it is gone."""
    try:
        return int(json.loads(path.read_text("utf-8"))[1])
    except (OSError, ValueError):
        return 0


@contextlib.contextmanager
def _silent() -> Iterator[None]:
    """Say so when somebody else has it locked."""
    try:
        yield
    except sqlite3.OperationalError as error:
        raise Silent from error
