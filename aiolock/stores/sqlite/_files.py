"""The files of a database: their identity, and that all processes have the same ones.

SQLite finds its log and its index by their names alone. If one of the three files is removed while
it is in use, the processes diverge: those that have it open go on with data that no other sees. So
each transaction checks that they are still there, and one process at a time opens them.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Generator
from pathlib import Path
from typing import Final

from aiolock.errors import StoreError
from aiolock.stores.sqlite._filelock import show_open, take
from aiolock.stores.sqlite._lockers import who_has_locked

Identity = tuple[tuple[int, int] | None, ...]
"""Device and inode number of the file, its log and its index; None for one that is not there."""

_LOOK: Final = 0.005


class Files:
    """A database file, its log and its index."""

    def __init__(self, path: Path, directory: Path, given: Path) -> None:
        """``given``: the path in the URL, which led to ``path`` when the client was made."""
        self._paths = (path, *(path.with_name(f"{path.name}{suffix}") for suffix in _BESIDE))
        self._given = given
        self._guard = directory / "opening"

    def who_writes(self) -> str:
        """The process whose transaction keeps out the others, for a sentence."""
        return who_has_locked(self._paths[2], _WRITING)

    def identity(self) -> Identity:
        """The identity of the present files, and of the one to which the URL leads."""
        return tuple(map(_identity, (self._given, *self._paths[1:])))

    def check_given(self) -> None:
        """`StoreError` if the URL leads to another path than when the client was made."""
        now = Path(os.path.realpath(self._given))
        if now != self._paths[0]:
            raise StoreError(
                f"{self._given} leads to {now} now, and this client has {self._paths[0]}, where"
                " others do not find it: give the locks a path that stays, without a link that is"
                " switched, and open a new client"
            )

    def keep_open(self, guard: int) -> int | None:
        """The database file, open to be marked, and to be shown as open (`show_open`).

        None where that cannot be done, or where it is not there yet; ``guard`` is what
        `opened_by_one` gives.
        """
        # Without such locks, an open file does harm: to close it drops SQLite's own locks, also
        # those of other clients in this process. So this is tried where SQLite locks nothing.
        if not show_open(guard):
            return None
        try:
            return os.open(self._paths[0], os.O_RDONLY)
        except (FileNotFoundError, PermissionError):  # which SQLite says, too
            return None

    def remove(self, *which: tuple[int, int] | None) -> None:
        """Remove those of these that are still there, the database file first."""
        for path in self._paths:
            if (found := _identity(path)) is not None and found in which:
                path.unlink(missing_ok=True)

    @contextlib.contextmanager
    def opened_by_one(self, within: float) -> Generator[int]:
        """No other process opens or removes them in this body. Gives the open file that ensures it.

        If they cannot be opened, a directory that was made for that is removed again: nothing is
        left beside a file that is not ours.
        """
        until = time.monotonic() + within
        guard, made = None, False
        try:
            while guard is None:
                made |= self._make_directory()
                guard = self._taken(within, until)
            touch(guard)
            yield guard
        except BaseException:
            if made and guard is not None:  # while we have it, no other process works there
                with contextlib.suppress(OSError):
                    self._guard.unlink()
                    self._guard.parent.rmdir()
            raise
        finally:
            if guard is not None:
                os.close(guard)

    def _taken(self, within: float, until: float) -> int | None:
        """The file that one at a time has open and locked; None where it was removed meanwhile."""
        try:
            # Reading is enough for a lock, and all that another user may do with it.
            guard = os.open(self._guard, os.O_CREAT | os.O_RDONLY, 0o666)
        except FileNotFoundError:
            if time.monotonic() > until:
                raise
            return None
        try:
            self._wait_for(guard, within)
            if is_at(self._guard, guard):
                return guard
        except BaseException:
            os.close(guard)
            raise
        os.close(guard)
        return None

    def _wait_for(self, guard: int, within: float) -> None:
        """Wait for its lock, however many have it first, unless one has it for as long."""
        seen, until = self._trace(guard), time.monotonic() + within
        while not take(guard):  # to wait for it with a limit, one must poll
            if (now := self._trace(guard)) != seen:
                seen, until = now, time.monotonic() + within
            elif time.monotonic() > until:
                raise StoreError(
                    f"{who_has_locked(self._guard)} has been opening {self._paths[0]} for"
                    f" {within:g} s, and one at a time can do that"
                )
            time.sleep(_LOOK)

    def _trace(self, guard: int) -> tuple[int, ...]:
        """The times that change when another process has the lock: of the file or directory."""
        times = [os.fstat(guard).st_mtime_ns]
        with contextlib.suppress(FileNotFoundError):
            times.append(self._guard.parent.stat().st_mtime_ns)
        return tuple(times)

    def _make_directory(self) -> bool:
        """Make the directory; returns whether it was not there."""
        try:
            self._guard.parent.mkdir()
        except FileExistsError:
            return False
        return True


_WRITING: Final = 120
"""The byte of the index that SQLite locks while it writes."""
_BESIDE: Final = ("-wal", "-shm")


def touch(guard: int) -> None:
    """Show the processes that wait for the lock on this file that there is progress."""
    with contextlib.suppress(OSError):  # it is another user's: the directory's time shows it, later
        os.utime(guard)


def is_at(path: Path, file: int) -> bool:
    """Whether this open file is the one that is there."""
    try:
        return os.path.samestat(path.stat(), os.fstat(file))
    except FileNotFoundError:
        return False


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return found.st_dev, found.st_ino
