"""The files of a database: their identity, and that all processes have the same ones.

SQLite finds its log and its index by their names alone. If one of the three files is removed while
it is in use, the processes part: those that have it open go on with data that no other sees. So
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
from aiolock.stores.sqlite._filelock import take

Identity = tuple[tuple[int, int] | None, ...]
"""Device and inode number of the file, its log and its index; None for one that is not there."""

_LOOK: Final = 0.005


class Files:
    """A database file, its log and its index."""

    def __init__(self, path: Path, directory: Path) -> None:
        self._paths = (path, *(path.with_name(f"{path.name}{suffix}") for suffix in _BESIDE))
        self._guard = directory / "opening"

    def identity(self) -> Identity:
        """The identity of the present files."""
        return tuple(map(_identity, self._paths))

    def exists(self) -> bool:
        """Whether the file is there."""
        return self._paths[0].exists()

    def remove(self) -> None:
        """Remove those that are there, the database file first."""
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    @contextlib.contextmanager
    def opened_by_one(self, within: float) -> Generator[None]:
        """Meanwhile, no other process opens or removes them."""
        self._guard.parent.mkdir(exist_ok=True)
        until = time.monotonic() + within
        # Read access is enough for a lock, and another user may have no more.
        guard = os.open(self._guard, os.O_CREAT | os.O_RDONLY, 0o666)
        try:
            while not take(guard):  # polled, since a blocking lock has no time limit
                if time.monotonic() > until:
                    raise StoreError(
                        f"another process has been opening {self._paths[0]} for {within:g} s: see"
                        " whether it is stopped"
                    )
                time.sleep(_LOOK)
            yield
        finally:
            os.close(guard)


_BESIDE: Final = ("-wal", "-shm")


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino
