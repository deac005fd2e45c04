"""Which clients are alive: each has a file beside the database, locked while its process lives.

The kernel drops a lock with the process that has it, however that ends. The file holds what the
client's metadata.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from pathlib import Path
from typing import Final, NamedTuple

from aiolock.stores.sqlite import _notifier
from aiolock.stores.sqlite._filelock import is_taken, take
from aiolock.stores.sqlite._files import is_at
from aiolock.stores.sqlite._notifier import Notifier

_MOST: Final = 1000
"""Clients whose files' contents are kept in memory."""
_TRIES: Final = 100
_ORPHAN: Final = 60.0
"""Seconds after which a socket without a file is an orphan: a client makes its socket first."""


class Metadata(NamedTuple):
    """The metadata of a client."""

    host: str
    pid: int
    port: int
    """The port of its notifier; 0 for a Unix socket."""


class Presence:
    """One client's place in the directory of all clients of a database."""

    def __init__(self, directory: Path, client: str) -> None:
        self.directory = directory
        self._client = client
        self._lock: int | None = None
        self.notifiers: list[Notifier] = []
        """The notifiers. Others use the last one; the listening loop closes those before it."""
        self._metadata = dict[str, Metadata]()

    # This client

    def enter(self) -> None:
        """Be visible to others as alive, until its files are removed. `OSError` if it fails."""
        self.directory.mkdir(exist_ok=True)
        for _ in range(_TRIES):
            if not self.notifiers or self.notifiers[-1].is_gone():
                self.notifiers.append(Notifier(self._socket(self._client)))
            if not self._is_listed():
                if self._lock is not None:
                    os.close(self._lock)
                self._lock = None
                metadata = Metadata(socket.gethostname(), os.getpid(), self.notifiers[-1].port)
                self._lock = self._list(json.dumps(metadata).encode())
            if self.is_there():  # else another client has removed the unlocked file
                return
        raise OSError(errno.EBUSY, "others remove its files again and again", str(self.directory))

    def _list(self, metadata: bytes) -> int | None:
        """Make the file, and lock it; None if another client has removed it at once."""
        path = self._file(self._client)
        file = os.open(path, os.O_CREAT | os.O_RDWR, 0o666)
        try:
            if hasattr(os, "fchmod"):
                os.fchmod(file, 0o644)  # others open it to see whether it is locked
            os.ftruncate(file, 0)
            os.write(file, metadata)
            # A client that cleans up may hold the lock just now, and even be stopped meanwhile.
            if take(file):
                return file
        except BaseException:
            os.close(file)
            raise
        os.close(file)
        with contextlib.suppress(OSError):
            path.unlink()
        return None

    def is_there(self) -> bool:
        """Whether others can see and notify it: its files have not been removed."""
        return self._is_listed() and not self.notifiers[-1].is_gone()

    def _is_listed(self) -> bool:
        return self._lock is not None and is_at(self._file(self._client), self._lock)

    def leave(self) -> None:
        """Remove its files. Idempotent."""
        for notifier in self.notifiers:
            notifier.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._remove(self._client)

    def forget(self) -> None:
        """Close the child's copies of the parent's files, without any effect on the parent.

        A lock that a child shares would last as long as the child.
        """
        for notifier in self.notifiers:
            notifier.forget()
        if self._lock is not None:
            os.close(self._lock)
        self._lock = None
        self.notifiers.clear()

    # Other clients

    def listens(self, client: str) -> bool:
        """Whether that client's process lives. `OSError` if that cannot be known."""
        if client == self._client:
            return self._lock is not None
        try:
            file = os.open(self._file(client), os.O_RDONLY)
        except FileNotFoundError:
            return False
        try:
            return is_taken(file)
        finally:
            os.close(file)

    def others(self) -> list[str]:
        """The other clients that are alive."""
        clients = (path.stem for path in self.directory.glob("*.lock"))
        return [each for each in clients if each != self._client and self.listens(each)]

    def metadata(self, client: str) -> Metadata:
        """The metadata of this client; empty if it is gone."""
        known = self._metadata.get(client)
        if known is None:
            try:
                known = Metadata(*json.loads(self._file(client).read_text("utf-8")))
            except (OSError, ValueError, TypeError):
                return Metadata("", 0, 0)
            if len(self._metadata) >= _MOST:
                self._metadata.clear()
            self._metadata[client] = known
        return known

    def notify(self, client: str) -> None:
        """Notify it that there are pushes to fetch."""
        _notifier.notify(self._socket(client), self.metadata(client).port)

    def notify_all(self) -> None:
        """Notify all others, so that they look at the file."""
        for client in self.others():
            with contextlib.suppress(OSError):  # it looks by itself, a little later
                self.notify(client)

    def clean_up(self) -> None:
        """Remove the files of clients that are gone."""
        now = time.time()
        for path in self.directory.iterdir():
            if path.stem == self._client:
                continue
            with contextlib.suppress(OSError):  # another client has removed it
                if path.suffix == ".lock":
                    self._clean_up(path)
                elif _is_orphan(path, now):
                    path.unlink()

    def _clean_up(self, path: Path) -> None:
        file = os.open(path, os.O_RDONLY)
        try:
            # While we hold the lock, no client can be alive by this file, so it may be removed.
            if take(file) and is_at(path, file):
                self._remove(path.stem)
        finally:
            os.close(file)

    def _remove(self, client: str) -> None:
        for path in (self._socket(client), self._file(client)):
            with contextlib.suppress(OSError):
                path.unlink()

    def _file(self, client: str) -> Path:
        return self.directory / f"{client}.lock"

    def _socket(self, client: str) -> Path:
        return self.directory / f"{client}.sock"


def _is_orphan(path: Path, now: float) -> bool:
    """Whether this is a socket whose client is gone."""
    if path.suffix != ".sock" or path.with_suffix(".lock").exists():
        return False
    return now - path.stat().st_mtime > _ORPHAN
