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
    """Show SQLite in any process that somebody has this database open, until ``file`` is closed.

    It has such a lock of its own. But that belongs to the process, and the kernel drops it as soon
    as the process closes the file anywhere, after a look into it, say. This one belongs to the open
    file. Only Linux has such locks: elsewhere, and on a file system without them, this is False.
    """
    if sys.platform == "linux":
        lock = struct.pack("hhqqi", fcntl.F_RDLCK, os.SEEK_SET, *_SHARED, 0)
        with contextlib.suppress(OSError):
            fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
            return True
    return False
