"""The process that has locked a file, as far as the kernel shows it, for the texts of errors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_LOCKS: Final = Path("/proc/locks")


def who_has_locked(path: Path, byte: int = 0) -> str:
    """The process that has this byte to itself, for a sentence: that it is stopped, if it is."""
    try:
        found = path.stat()
        lines = _LOCKS.read_text("ascii").splitlines()
    except OSError:
        return "another process"
    where = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    for line in lines:
        _, *what, pid, file, first, last = line.split()
        covers = int(first) <= byte and (last == "EOF" or byte <= int(last))
        if file == where and covers and what[-1] == "WRITE" and "->" not in what and int(pid) > 0:
            stopped = ", which is stopped," if _is_stopped(pid) else ""
            return f"process {pid}{stopped}"
    return "another process"


def _is_stopped(pid: str) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace").rpartition(")")[2]
    except OSError:
        return False
    return state.split()[:1] in (["T"], ["t"])
