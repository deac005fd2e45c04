"""The connection to the file: that it is ours, and that all processes have the same one."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import Any, Final

from aiolock.errors import StoreError
from aiolock.stores._protocols import spoken, works_beside
from aiolock.stores.sqlite import _clock
from aiolock.stores.sqlite._failures import name
from aiolock.stores.sqlite._files import Files, Identity
from aiolock.stores.sqlite._places import check_place
from aiolock.stores.sqlite._presence import Presence
from aiolock.stores.sqlite._transaction import Transaction

VERSION: Final = 1
"""The protocol of this version: of the schema, and of what is written in it."""
BUSY: Final = 4.0
"""Seconds to wait for the transactions of other processes."""
_LOG: Final = 4 << 20
"""Bytes of the log, at most, that stay when it is not needed any more."""
_OPENINGS: Final = 5

_SCHEMA: Final = """
CREATE TABLE names (
    name BLOB PRIMARY KEY,
    state TEXT NOT NULL,
    over INTEGER NOT NULL,
    changed INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE inbox (
    id INTEGER PRIMARY KEY AUTOINCREMENT,
    client TEXT NOT NULL,
    name TEXT NOT NULL,
    push TEXT NOT NULL
);
CREATE INDEX inbox_of ON inbox (client, id);
CREATE TABLE fence (last INTEGER NOT NULL);
INSERT INTO fence VALUES (0);
CREATE TABLE swept (last BLOB NOT NULL);
INSERT INTO swept VALUES (x'');
CREATE TABLE clock (boot TEXT NOT NULL, began INTEGER NOT NULL);
"""


class Connection:
    """One connection, which is opened again where the file is another one."""

    def __init__(self, path: Path, prefix: str, presence: Presence) -> None:
        self._path = path
        self._name = name(path)
        self._prefix = prefix
        self._presence = presence
        self._files = Files(path, presence.directory)
        self._database: sqlite3.Connection | None = None
        self._identity: Identity | None = None
        """Of the files that are open; None if others are to be opened."""
        self._patience = BUSY
        self.protocol = VERSION
        """The newest of those who have used the file."""

    def open(self) -> None:
        """Open what is there now; make it where there is nothing."""
        self.close()
        check_place(self._path)
        with self._files.opened_by_one(BUSY):
            for _ in range(_OPENINGS):
                if self._is_opened():
                    return
        raise StoreError(f"{self._name} is removed again and again: see who does that")

    def _is_opened(self) -> bool:
        """Whether what was opened is what is there now: it may have to be waited for."""
        if not self._files.exists():
            # A log without its file is none, and an error to SQLite.
            self._files.remove()
        before = self._files.identity()[0]
        database = self._database = sqlite3.connect(
            self._path,
            isolation_level=None,
            timeout=BUSY,
            check_same_thread=False,  # a fork closes it, in whichever thread it is made
        )
        try:
            self._set_up(database)
            identity = self._files.identity()
        except BaseException:
            self.close()
            raise
        if None in identity or before not in (None, identity[0]):
            self.close()
            return False
        self._identity, self._patience = identity, BUSY
        return True

    def _set_up(self, database: sqlite3.Connection) -> None:
        self._check(database)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{self._name} cannot keep a write-ahead log: it says {mode!r}")
        # A power cut ends all processes that lock here, and what they hold, as well.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA journal_size_limit = {_LOG}")
        database.execute("BEGIN IMMEDIATE")
        try:
            found = self._check(database)
            if found == 0:
                for statement in _SCHEMA.split(";\n"):
                    database.execute(statement)
            if found < VERSION:
                database.execute(f"PRAGMA user_version = {VERSION}")
            self.protocol = max(found, VERSION)
            self._set_clock(database)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _check(self, database: sqlite3.Connection) -> int:
        """The protocol of what is in it, 0 for nothing. `StoreError` if it is not for us."""
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not version and tables:
            raise StoreError(
                f"{self._name} holds something else: give the locks a file of their own"
            )
        if version and not works_beside(VERSION, version):
            raise StoreError(
                f"{self._name} holds locks of another version of aiolock: upgrade those who use it"
                " one protocol after the other; or stop them all and remove it, or take another"
                f" file (protocol {version} is spoken there; {spoken(VERSION)})"
            )
        return int(version)

    def _set_clock(self, database: sqlite3.Connection) -> None:
        """Have the clock that all processes have, since this start of the machine."""
        row = database.execute("SELECT boot, began FROM clock").fetchone()
        (fence,) = database.execute("SELECT last FROM fence").fetchone()
        boot = _clock.boot()
        if row is None or (row[0] != boot and not self._presence.others()):
            # It goes on from what it showed last, should the wall clock be wrong after the start.
            began = max(_clock.wall(), fence) - _clock.since_boot() if boot else 0
            row = boot, began
            database.execute("DELETE FROM clock")
            database.execute("INSERT INTO clock VALUES (?, ?)", row)
        elif row[0] and not boot:
            raise StoreError(
                f"leases in {self._name} end by the time since the machine was started, which this"
                " process is not shown (/proc/sys/kernel/random/boot_id, or a time namespace)"
            )
        self._began = row
        self._clock = _clock.clock(row[1] if row[0] else None)

    def follow(self) -> bool:
        """Open the files again where they are others: somebody has removed ours. Whether it had to.

        Then nothing may be known there of any name. (That the number of the file is the same tells
        nothing: a new one may have got it, once nobody had the old one open.)
        """
        identity = self._files.identity()
        if identity == self._identity:
            return False
        if self._identity is not None and identity[0] == self._identity[0]:
            # The file without its log, or its index: whoever has it open is on its own. So
            # everybody is to have another one.
            with self._files.opened_by_one(BUSY):
                if self._files.identity() == identity:
                    self._files.remove()
        self.open()
        return True

    def is_whole(self) -> bool:
        """Whether what is open is what is there."""
        return self._identity is not None and self._identity == self._files.identity()

    def close(self) -> None:
        """Have nothing open. Idempotent."""
        self._identity = None
        if self._database is not None:
            self._database.close()
            self._database = None

    def wait_for(self, patience: float) -> None:
        """Wait so many seconds for the transactions of others, from now on."""
        if patience != self._patience:
            self.execute(f"PRAGMA busy_timeout = {int(1000 * patience)}")
            self._patience = patience

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Carry out a statement."""
        assert self._database is not None
        return self._database.execute(statement, parameters)

    def begin(self) -> Transaction:
        """Keep out all other processes, until `commit` or `roll_back`."""
        assert self._database is not None
        self.execute("BEGIN IMMEDIATE")
        try:
            if self.execute("PRAGMA user_version").fetchone() != (self.protocol,):
                self.protocol = self._check(self._database)  # of a later version than was here
            fence, *clock = self.execute("SELECT last, boot, began FROM fence, clock").fetchone()
            if tuple(clock) != self._began:
                # Somebody who has taken all of us for dead has begun anew.
                self._set_clock(self._database)
            return Transaction(self._database, self._presence, self._prefix, self._clock, fence)
        except BaseException:
            self.roll_back()
            raise

    def commit(self) -> None:
        """Have done what was done."""
        self.execute("COMMIT")

    def roll_back(self) -> None:
        """Have done nothing. Idempotent: some errors have seen to that."""
        if self._database is not None and self._database.in_transaction:
            self.execute("ROLLBACK")
