"""Locks in an SQLite file, for the processes of one machine: nothing to install, and no server."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import unquote, urlsplit

from aiolock.stores.sqlite._store import SQLiteStore

__all__ = ["SQLiteStore", "from_url"]


def from_url(url: str, prefix: str) -> SQLiteStore:
    """A store in the file of ``sqlite:///path/to/file``; `ValueError` for any other URL."""
    parts = urlsplit(url)
    path = unquote(parts.path)
    if parts.netloc or parts.fragment or "\0" in path or not path.strip("/") or path.endswith("/"):
        raise ValueError(
            f"an SQLite URL is sqlite:///absolute/path/of/a/file, with three slashes, not {url!r}"
        )
    if parts.query:
        raise ValueError(f"an SQLite URL takes no options: leave {parts.query!r} away")
    # SQLAlchemy writes four slashes before an absolute path: they are accepted, too.
    return SQLiteStore(Path(f"/{path.lstrip('/')}"), prefix)
