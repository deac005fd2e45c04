"""The places where the file may be: on a disk of this machine."""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path
from typing import Final

from aiolock.errors import StoreError

_NETWORK: Final = {
    "beegfs",
    "fuse.juicefs",
    "fuse.rclone",
    "gfs2",
    "gpfs",
    "ocfs2",
    "vboxsf",
    "virtiofs",
    "9p",
    "afs",
    "ceph",
    "cifs",
    "fuse.glusterfs",
    "fuse.s3fs",
    "fuse.sshfs",
    "glusterfs",
    "lustre",
    "ncpfs",
    "nfs",
    "nfs4",
    "smb3",
    "smbfs",
}


_MOUNTS: Final = "/proc/self/mounts"


def check_place(path: Path) -> None:
    """`StoreError` if other processes may not see its locks, or its directory is not there."""
    directory = path.parent
    if not directory.is_dir():
        raise StoreError(f"there is no directory {directory}: make it, for the locks in {path}")
    kind = _kind(os.path.realpath(directory))
    if kind in _NETWORK:
        raise StoreError(
            f"{path} is on a network file system ({kind}), where one machine does not see the locks"
            " of another: use a file on a disk of this machine, or a server"
        )


def check_file(path: Path) -> None:
    """`StoreError` if others may have the file by another name, where its log is another one."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return
    if found.st_nlink > 1 and stat.S_ISREG(found.st_mode):
        raise StoreError(
            f"{path} has {found.st_nlink} names (hard links), and SQLite finds its log by the name:"
            " processes that use another one would not see its locks. Remove the others"
        )
    if any(where == str(path) for where, _ in _mounted(_MOUNTS)):
        raise StoreError(
            f"{path} is mounted by itself, without its directory, in which its log and its clients"
            " are: another container would not see its locks. Mount the directory"
        )


def _mounted(mounts: str) -> list[tuple[str, str]]:
    """The mount points, and the types of their file systems; empty if not known."""
    try:
        lines = Path(mounts).read_text("utf-8", "replace").splitlines()
    except OSError:
        return []  # not Linux
    found: list[tuple[str, str]] = []
    for line in lines:
        _, where, what, *_ = line.split(" ")
        found.append((re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), where), what))
    return found


def _kind(directory: str, mounts: str = _MOUNTS) -> str:
    """The type of the file system; empty if that cannot be known."""
    found, kind = "", ""
    for place, what in _mounted(mounts):
        where = place.rstrip("/")
        inside = directory == where or directory.startswith(f"{where}/") or not where
        if inside and len(where) >= len(found):
            found, kind = where, what
    return kind
