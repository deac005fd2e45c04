"""A lock on an open file, which the kernel takes away with the process that has it."""

from __future__ import annotations

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
