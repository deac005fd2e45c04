"""Marks by which each client shows others which file and directory it has open.

SQLite finds its log and its index by the name of the file: processes that have one file by two
names, or of which some have files that were removed since, do not see what the others write. So
each client marks which of them it has open. A mark is a lock on one byte that stands for it, far
behind all contents: the kernel shows it to every process, in any container, and removes it with the
process. Only Linux has such locks (see `_filelock`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Hashable
from pathlib import Path
from typing import Final

from aiolock.stores.sqlite._filelock import is_marked, mark

_FAR: Final = 1 << 61
_SPACE: Final = 1 << 32
"""Bytes for the marks of one kind, of which two must not meet by chance."""


class Marks:
    """The marks of one client."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._directory: int | None = None
        """The directory, open for as long as the files are marked."""

    def set_place(self, file: int) -> None:
        """Mark that this open file, the database, is used at its place."""
        mark(file, _FAR + self._place())

    def is_elsewhere(self, file: int) -> bool:
        """Whether another client uses this open file at another place."""
        return _is_marked_but_at(file, _FAR, self._place())

    def is_shared(self, file: int) -> bool:
        """Whether another client uses this open file at the same place."""
        return is_marked(file, _FAR + self._place(), 1)

    def _place(self) -> int:
        beside = self._path.parent.stat()
        return _byte(beside.st_dev, beside.st_ino, self._path.name)

    def set_files(self, files: Hashable) -> None:
        """Mark that these are the files that this client has open by that name."""
        self.clear()
        self._directory = self._opened()
        if self._directory is not None:
            mark(self._directory, self._first + _byte(files))

    def others_remain(self, files: Hashable) -> bool:
        """Whether another client has other files open by that name: those that were there."""
        directory = self._opened()
        if directory is None:
            return False
        try:
            return _is_marked_but_at(directory, self._first, _byte(files))
        finally:
            os.close(directory)

    def clear(self) -> None:
        """Remove the mark of the files. Idempotent."""
        if self._directory is not None:
            os.close(self._directory)
            self._directory = None

    @property
    def _first(self) -> int:
        return _FAR + (_byte(self._path.name) >> 4) * _SPACE

    def _opened(self) -> int | None:
        with contextlib.suppress(PermissionError):  # its entries may be used, but not listed
            return os.open(self._path.parent, os.O_RDONLY)
        return None


def _is_marked_but_at(file: int, first: int, at: int) -> bool:
    before = at and is_marked(file, first, at)
    return bool(before) or is_marked(file, first + at + 1, _SPACE - at - 1)


def _byte(*what: Hashable) -> int:
    """The number that stands for it."""
    return int.from_bytes(hashlib.blake2b(repr(what).encode(), digest_size=4).digest())
