"""Where such a file may be: on a disk of this machine."""

from __future__ import annotations

import os
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


def _kind(directory: str, mounts: str = "/proc/self/mounts") -> str:
    """The type of the file system; empty if that cannot be known."""
    try:
        lines = Path(mounts).read_text("utf-8", "replace").splitlines()
    except OSError:
        return ""  # not Linux
    found, kind = "", ""
    for line in lines:
        _, where, what, *_ = line.split(" ")
        where = where.replace("\\040", " ").rstrip("/")
        inside = directory == where or directory.startswith(f"{where}/") or not where
        if inside and len(where) >= len(found):
            found, kind = where, what
    return kind
