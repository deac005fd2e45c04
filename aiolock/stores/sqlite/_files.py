"""The files of a database: which they are, and that all processes have the same.

SQLite knows its log and its index by their names alone. Whoever removes one of the three while they
are used parts the processes: those that have them open go on with what nobody else sees. So each
transaction looks whether they are still there, and they are opened by one process at a time.
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
"""Device and number of the file, its log and its index; None where there is none."""

_LOOK: Final = 0.005


class Files:
    """A database file, its log and its index."""

    def __init__(self, path: Path, directory: Path) -> None:
        self._paths = (path, *(path.with_name(f"{path.name}{suffix}") for suffix in _BESIDE))
        self._guard = directory / "opening"

    def identity(self) -> Identity:
        """Which they are now."""
        return tuple(map(_identity, self._paths))

    def exists(self) -> bool:
        """Whether the file is there."""
        return self._paths[0].exists()

    def remove(self) -> None:
        """Remove what is there of them, the file first."""
        for path in self._paths:
            with contextlib.suppress(FileNotFoundError):
                path.unlink()

    @contextlib.contextmanager
    def opened_by_one(self, within: float) -> Generator[None]:
        """Nobody else opens them, or removes them, meanwhile."""
        self._guard.parent.mkdir(exist_ok=True)
        until = time.monotonic() + within
        # To read is enough for a lock, and all that another user may do with it.
        guard = os.open(self._guard, os.O_CREAT | os.O_RDONLY, 0o666)
        try:
            while not take(guard):  # there is no waiting for it with a limit but to look again
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
