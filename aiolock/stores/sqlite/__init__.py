"""Locks in an SQLite file, for the processes of one machine: nothing to install, and no server."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from aiolock._urls import parse
from aiolock.stores.sqlite._store import SQLiteStore

__all__ = ["SQLiteStore", "facts", "from_url"]

_EXAMPLE: Final = (
    "sqlite:////absolute/path/locks.db, with four slashes, or sqlite:///./locks.db, relative to the"
    " working directory of now"
)


def from_url(url: str, prefix: str) -> SQLiteStore:
    """A store in the file of ``sqlite:////path/to/file``; `ValueError` for any other URL.

    A relative path begins with ``./`` or ``../``, so that nobody gets one unawares: in another
    working directory it is another file, and its locks are others.
    """
    parts = parse(url, _EXAMPLE)
    parts.no_user()
    parts.no_options()
    path = parts.decoded(parts.path[1:])
    if parts.addresses[0].host:
        raise parts.wrong("an SQLite URL has no host: its path begins behind three slashes")
    if path in ("", ":memory:"):
        raise parts.wrong("an SQLite URL names a file; for locks in one process, use memory://")
    if not path.startswith(("/", "./", "../")):
        raise parts.wrong("the path of this SQLite URL does not say whether it is an absolute one")
    if path.startswith("//") or path.endswith("/") or not path.strip("./"):
        raise parts.wrong("the path of this SQLite URL is not that of a file")
    return SQLiteStore(Path(path).absolute(), prefix)


async def facts(url: str) -> dict[str, str]:
    """SQLite's version and the file's settings, for a report; no paths. `sqlite3.Error` if the file
    cannot be read.
    """
    from aiolock.stores.sqlite._facts import facts_of

    return facts_of(from_url(url, "aiolock")._path)
