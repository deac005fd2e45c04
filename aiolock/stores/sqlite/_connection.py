"""The connection to the file: checks that it is aiolock's, and the same for all processes."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any, Final

from aiolock.errors import StoreError
from aiolock.protocol import GrantLost
from aiolock.stores._codec import UNREADABLE, decode
from aiolock.stores._effects import Push
from aiolock.stores._protocols import spoken, works_beside
from aiolock.stores.sqlite import _clock
from aiolock.stores.sqlite._failures import name
from aiolock.stores.sqlite._filelock import hide_open, show_open
from aiolock.stores.sqlite._files import Files, Identity, touch
from aiolock.stores.sqlite._marks import Marks
from aiolock.stores.sqlite._places import check_file, check_place
from aiolock.stores.sqlite._presence import Presence
from aiolock.stores.sqlite._transaction import OVER_MINUTE, Transaction, left_for

VERSION: Final = 1
"""The protocol of this version: of the schema, and of what is written in it."""
BUSY: Final = 4.0
"""Seconds to wait for the transactions of other processes."""
_LOG: Final = 4 << 20
"""Bytes of the log, at most, that are kept when it is no longer needed."""
_OPENINGS: Final = 5
_SLICE: Final = 1.0
"""Seconds of waiting between looks for whether the others make progress."""
_LOOK: Final = 0.005
_PAGE: Final = 100
LOST: Final = "the SQLite file was removed or replaced, or its path leads to another one now"
"""The reason with which all leases of a client are lost."""

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
CREATE TABLE clock (boot TEXT NOT NULL, began INTEGER NOT NULL);
"""


class Connection:
    """One connection, which is opened again when the file was replaced."""

    def __init__(self, path: Path, prefix: str, presence: Presence, given: Path) -> None:
        """``given``: the path in the URL, which has led to ``path``."""
        self._path = path
        self._name = name(path)
        self._prefix = prefix
        self._presence = presence
        self._files = Files(path, presence.directory, given)
        self._marks = Marks(path)
        self._database: sqlite3.Connection | None = None
        self._kept_open: int | None = None
        self._guard: int | None = None
        """The lock for which other openers wait, while we are opening the files."""
        self._identity: Identity | None = None
        """The identity of the open files; None if they must be opened again."""
        self._patience = BUSY
        self._last_fence = 0
        """The last fence that was granted by it, when it was last looked at."""
        self.last_number = 0
        """The number of the last push in the file, when it was opened."""
        self.protocol = VERSION
        """The newest protocol of those that have used the file."""

    def open(self) -> None:
        """Open the file that is there now; make it if there is none."""
        self.close()
        self._files.check_given()
        check_place(self._path)
        check_file(self._path)
        with self._files.opened_by_one(BUSY) as guard:
            self._guard = guard
            try:
                for _ in range(_OPENINGS):
                    if self._is_opened(guard):
                        return
            finally:
                self._guard = None
        raise StoreError(f"{self._name} is removed again and again: find the process that does it")

    def _is_opened(self, guard: int) -> bool:
        """Open it, which may have to wait; False if the file was replaced meanwhile."""
        identity = self._files.identity()
        self._keep_open(guard)  # before SQLite looks into it
        if self._are_others_replaced(identity):
            return False
        before = identity[0]
        if before is None:
            # A log without its file is useless, and an error to SQLite.
            self._files.remove(*identity)
        database = self._database = sqlite3.connect(
            self._path,
            isolation_level=None,
            timeout=min(BUSY, _SLICE),
            check_same_thread=False,  # a fork closes it, in whatever thread the fork is made
        )
        try:
            self._set_up(database)
            identity = self._files.identity()
            self._keep_open(guard)
            if self._kept_open is not None:
                show_open(self._kept_open)
        except BaseException:
            self.close()
            raise
        if None in identity or before not in (None, identity[0]) or not self._is_kept(identity):
            self.close()
            return False
        self._marks.set_files(identity)
        self._identity, self._patience = identity, BUSY
        self._last_fence = 0
        return True

    def _keep_open(self, guard: int) -> None:
        """Mark the file as open at this place; `StoreError` if it is open at another one."""
        if self._kept_open is not None:
            return
        file = self._kept_open = self._files.keep_open(guard)
        if file is not None:
            self._marks.set_place(file)
            if self._marks.is_elsewhere(file):
                self.close()
                raise StoreError(
                    f"{self._name} is in use by another path: by another name, or in another"
                    " directory (it was moved, or the file alone is mounted). Each path has a log"
                    " of its own, so one would not see what the other locks. Let all use one path,"
                    " and mount its directory"
                )

    def _is_kept(self, identity: Identity) -> bool:
        """Whether what is kept open is the file that was opened."""
        if self._kept_open is None:
            return True
        found = os.fstat(self._kept_open)
        return (found.st_dev, found.st_ino) == identity[0]

    def _are_others_replaced(self, identity: Identity) -> bool:
        """Whether others had files before these; they have closed them, and lost their leases.

        If a part is missing, the rest is not whole; and a log may be that of another file.
        """
        if not self._marks.others_remain(identity):
            return False
        is_theirs = self._kept_open is not None and self._marks.is_shared(self._kept_open)
        self._presence.notify_all()
        until = time.monotonic() + BUSY
        while self._marks.others_remain(identity):
            if time.monotonic() > until:
                self.close()
                raise StoreError(
                    f"{self._name} was removed or replaced while it was in use, and a client has"
                    f" had the one before for {BUSY:g} s since, though each looks once a second:"
                    " it may still count on what it holds there. Its process may be stopped, or"
                    " its event loop blocked: end it"
                )
            time.sleep(_LOOK)
        self.close()
        self._files.remove(*identity[0 if is_theirs else 1 :])
        return True

    def held_by(self, client: str) -> Generator[list[Push]]:
        """The losses of all that a client holds in the open files, some names at a time."""
        last, end = f"{self._prefix}\0".encode(), f"{self._prefix}\1".encode()
        while self._database is not None:
            rows = self.execute(
                "SELECT name, state FROM names WHERE name > ? AND name < ? ORDER BY name LIMIT ?",
                (last, end, _PAGE),
            ).fetchall()
            lost: list[Push] = []
            for key, text in rows:
                with contextlib.suppress(*UNREADABLE):
                    name = key.decode().partition("\0")[2]
                    for waiter, fence in decode(text).holders:
                        if waiter.client == client:
                            lost.append(Push(client, GrantLost(name, waiter, fence, LOST)))
            yield lost
            if len(rows) < _PAGE:
                return
            last = rows[-1][0]

    def _set_up(self, database: sqlite3.Connection) -> None:
        self._check(database)
        (mode,) = database.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StoreError(f"{self._name} cannot keep a write-ahead log: it says {mode!r}")
        # A power cut also ends all processes that lock here, and so all that they hold.
        database.execute("PRAGMA synchronous = NORMAL")
        database.execute(f"PRAGMA journal_size_limit = {_LOG}")
        self._keep_out(database, BUSY)
        try:
            found = self._check(database)
            if found == 0:
                for statement in _SCHEMA.split(";\n"):
                    database.execute(statement)
            database.execute(f"CREATE INDEX IF NOT EXISTS names_over ON names ({OVER_MINUTE})")
            if found < VERSION:
                database.execute(f"PRAGMA user_version = {VERSION}")
            self.protocol = max(found, VERSION)
            numbers = "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = 'inbox'"
            (self.last_number,) = database.execute(numbers).fetchone()
            self._set_clock(database)
            database.execute("COMMIT")
        except BaseException:
            if database.in_transaction:
                database.execute("ROLLBACK")
            raise

    def _check(self, database: sqlite3.Connection) -> int:
        """The protocol of its contents, 0 for an empty file; `StoreError` if we cannot use it."""
        (version,) = database.execute("PRAGMA user_version").fetchone()
        (tables,) = database.execute("SELECT count(*) FROM sqlite_schema").fetchone()
        if not version and tables:
            raise StoreError(
                f"{self._name} holds something else: give the locks a file of their own"
            )
        if version and not works_beside(VERSION, version):
            raise StoreError(
                f"{self._name} holds locks of another version of aiolock: upgrade its programs"
                " one protocol after the other; or stop them all and remove it, or take another"
                f" file (protocol {version} is spoken there; {spoken(VERSION)})"
            )
        return int(version)

    def _set_clock(self, database: sqlite3.Connection) -> None:
        """Take the clock that all processes share, for this start of the machine."""
        row = database.execute("SELECT boot, began FROM clock").fetchone()
        boot = _clock.boot()
        if row is None or (row[0] != boot and not self._presence.others()):
            # It continues from its last reading, in case the wall clock is wrong after the start:
            # that of the last grant, or of a later renewal. (All names are read, but only here.)
            readings = "SELECT last, coalesce((SELECT max(changed) FROM names), 0) FROM fence"
            fence, changed = database.execute(readings).fetchone()
            began = max(_clock.wall(), fence, changed) - _clock.since_boot() if boot else 0
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
        """Open the files again if any of them was replaced or removed; True if so.

        Then the new file may know nothing of any name. (The same inode number proves nothing: a new
        file may get it once no process has the old one open.)
        """
        before, identity = self._identity, self._files.identity()
        if identity == before:
            return False
        self.close()  # a process that is opening the new ones waits for that
        if before is not None:
            # If the file is the same, but its log or index is not, a process that has them open is
            # cut off from the others: all of them must get a new file. A log that is the same is
            # not that of a new file.
            same = identity[0] == before[0]
            old = [each for each in identity if each is not None and (same or each in before)]
            if old:
                with self._files.opened_by_one(BUSY):
                    # Unless another process has made new ones. SQLite has removed parts, if we
                    # were last.
                    now = self._files.identity()
                    if all(new in (None, seen) for new, seen in zip(now, identity, strict=True)):
                        self._files.remove(*old)
        self.open()
        return True

    def is_whole(self) -> bool:
        """Whether the open files are the ones that are there."""
        return self._identity is not None and self._identity == self._files.identity()

    def close(self) -> None:
        """Close all. Idempotent."""
        with contextlib.suppress(OSError):
            if self.is_whole():
                # Before SQLite closes: if it is the last, it removes the log, and no process must
                # take that for a removal by others. Otherwise behind that: it would remove a new
                # log.
                self._marks.clear()
        self._identity = None
        if self._kept_open is not None:
            # Before SQLite closes: otherwise our own lock would keep it from being the last, and
            # the log would be left.
            hide_open(self._kept_open)
        if self._database is not None:
            self._database.close()
            self._database = None
        if self._kept_open is not None:  # only now may it be opened at another place
            os.close(self._kept_open)
            self._kept_open = None
        self._marks.clear()

    def wait_for(self, patience: float) -> None:
        """Wait this many seconds for the transactions of others, from now on."""
        if patience != self._patience:
            self.execute(f"PRAGMA busy_timeout = {int(1000 * min(patience, _SLICE))}")
            self._patience = patience

    def execute(self, statement: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """Carry out a statement."""
        assert self._database is not None
        return self._database.execute(statement, parameters)

    def left_for(self, client: str, after: int) -> tuple[list[Push], int]:
        """`left_for` on this connection. It waits for no transaction, and sees committed pushes."""
        assert self._database is not None
        return left_for(self._database, client, after)

    def begin(self) -> Transaction:
        """Keep out all other processes, until `commit` or `roll_back`."""
        assert self._database is not None
        self._keep_out(self._database, self._patience)
        try:
            if self.execute("PRAGMA user_version").fetchone() != (self.protocol,):
                self.protocol = self._check(self._database)  # a later version has come
            fence, *clock = self.execute("SELECT last, boot, began FROM fence, clock").fetchone()
            self._check_fence(fence)
            if tuple(clock) != self._began:
                # Another process found no live client, and has set the clock anew.
                self._set_clock(self._database)
            return Transaction(self._database, self._presence, self._prefix, self._clock, fence)
        except BaseException:
            self.roll_back()
            raise

    def _keep_out(self, database: sqlite3.Connection, patience: float) -> None:
        """Begin a transaction: wait for those of others, and for one of them ``patience`` seconds.

        SQLite does not wait in a queue: on a busy machine others may be quicker several times.
        """
        began = progressed = time.monotonic()
        version: tuple[int] | None = None
        while True:
            try:
                database.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY:
                    raise
                now, seen = time.monotonic(), database.execute("PRAGMA data_version").fetchone()
                if version not in (None, seen):
                    progressed = now
                    if self._guard is not None:
                        touch(self._guard)
                version = seen
                if now - progressed >= patience:
                    who = self._files.who_writes()
                    text = (
                        f"{who} has kept {self._name} locked for {patience:g} s, in one transaction"
                    )
                elif now - began >= 2 * patience and self._guard is None:
                    text = f"others have kept {self._name} locked for {2 * patience:g} s, in turn"
                else:
                    continue
                raise StoreError(text) from error
            else:
                return

    def _check_fence(self, fence: int) -> None:
        if fence < self._last_fence:
            self.close()
            raise StoreError(
                f"{self._name} was set back, as by a backup that is restored over it: what was"
                " granted since is forgotten. End all programs that use it before you restore it"
            )
        self._last_fence = fence

    def commit(self) -> None:
        """Commit the transaction."""
        self.execute("COMMIT")

    def roll_back(self) -> None:
        """Undo the transaction. Idempotent: after some errors SQLite has done so already."""
        if self._database is not None and self._database.in_transaction:
            self.execute("ROLLBACK")
