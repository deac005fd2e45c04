"""Facts about an SQLite file for a report: the version of the library, and its settings."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

_PRAGMAS: Final = ("user_version", "journal_mode", "page_count", "page_size")


def facts_of(path: Path) -> dict[str, str]:
    """The facts; `sqlite3.Error` if there is no such file. It is opened for reading only."""
    connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)
    try:
        found = {each: connection.execute(f"PRAGMA {each}").fetchone()[0] for each in _PRAGMAS}
    finally:
        connection.close()
    return {
        "server": f"SQLite {sqlite3.sqlite_version}",
        "schema": f"protocol {found.pop('user_version')}",
        **{key: str(value) for key, value in found.items()},
    }
