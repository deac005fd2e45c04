"""The texts of a `StoreError` about the file; after each of them nothing was done."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Final

from aiolock.errors import StoreError
from aiolock.stores._outcomes import refusal

_ADVICE: Final = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_READONLY: "cannot be written to: give this user the right to write to the file"
    " and to its directory",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened: its directory must be there, and writable for this"
    " user",
    sqlite3.SQLITE_NOTADB: "is no database: give the locks a file of their own",
    sqlite3.SQLITE_CORRUPT: "is damaged: remove it, and its -wal and -shm, when no program uses it",
    sqlite3.SQLITE_FULL: "has no room: its disk is full, or this user may use no more of it",
    sqlite3.SQLITE_IOERR: "cannot be read or written",
}


def name(path: Path) -> str:
    """The name of the file, for a sentence."""
    return f"the SQLite file {path}"


def failure(path: Path, error: BaseException | None) -> StoreError:
    """The error that the caller gets."""
    if isinstance(error, StoreError):
        error.refused = True
        return error
    what = name(path)
    if isinstance(error, sqlite3.Error):
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        text = f"{what} {_ADVICE.get(code, 'cannot be used')} ({error})"
    elif isinstance(error, OSError):
        where = f": {error.filename}" if error.filename else ""
        text = f"{what} cannot be used ({error.strerror or error}{where})"
    else:
        text = f"{what} could not carry that out: {error!r}"
    return refusal(text, error)
