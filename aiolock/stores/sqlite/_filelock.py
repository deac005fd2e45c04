"""A lock on an open file, which the kernel takes away with the process that has it."""

from __future__ import annotations

import contextlib
import os
import sys

if sys.platform == "win32":  # pragma: no cover  # written, but never tried
    import msvcrt

    _FAR = 1 << 30
    """A locked byte cannot be read by others, so lock one that is far behind the contents."""

    def take(file: int) -> bool:
        """Lock it; True if that succeeds. Others hold it only for the moment of a look."""
        os.lseek(file, _FAR, os.SEEK_SET)
        try:
            msvcrt.locking(file, msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True

    def is_taken(file: int) -> bool:
        """Whether another process, or another descriptor of this one, has locked it."""
        if not take(file):
            return True
        os.lseek(file, _FAR, os.SEEK_SET)
        msvcrt.locking(file, msvcrt.LK_UNLCK, 1)
        return False

else:
    import fcntl
    import struct

    _Lock = struct.Struct("hhqqi")
    _SHARED = 0x40000002, 510
    """Where SQLite locks a database file: shared while it has that open, and exclusively while it
    closes the file as the last. The first byte, and how many."""

    def take(file: int) -> bool:
        """Lock it; True if that succeeds. Others hold it only for the moment of a look."""
        return _lock(file, fcntl.LOCK_EX)

    def is_taken(file: int) -> bool:
        """Whether another process, or another descriptor of this one, has locked it."""
        # Shared, so that two processes that look at once do not take each other for the owner.
        return not _lock(file, fcntl.LOCK_SH)

    def _lock(file: int, how: int) -> bool:
        try:
            fcntl.flock(file, how | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True


def show_open(file: int) -> bool:
    """Show SQLite in any process that a process has this database open, until `hide_open`.

    It has such a lock of its own. But that belongs to the process, and the kernel drops it as soon
    as the process closes the file anywhere, after a look into it, say. This one belongs to the open
    file. Only Linux has such locks: elsewhere, and on a file system without them, this is False.
    """
    return _set(file, "F_RDLCK", *_SHARED)


def hide_open(file: int) -> None:
    """Undo `show_open`, before SQLite closes it: otherwise no process would ever be the last."""
    _set(file, "F_UNLCK", *_SHARED)


def mark(file: int, at: int) -> bool:
    """Mark a byte of a file or directory, until it is closed; any number of processes may.

    False where there are no such locks.
    """
    return _set(file, "F_RDLCK", at, 1)


def is_marked(file: int, first: int, count: int) -> bool:
    """Whether another open file has marked one of these bytes. Marks of ``file`` do not count."""
    if sys.platform != "linux" or not count:
        return False
    question = _Lock.pack(fcntl.F_WRLCK, os.SEEK_SET, first, count, 0)
    try:
        answer = fcntl.fcntl(file, fcntl.F_OFD_GETLK, question)
    except OSError:
        return False
    return bool(_Lock.unpack(answer)[0] != fcntl.F_UNLCK)


def _set(file: int, kind: str, first: int, count: int) -> bool:
    if sys.platform == "linux":
        lock = _Lock.pack(getattr(fcntl, kind), os.SEEK_SET, first, count, 0)
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
            return True
    return False
