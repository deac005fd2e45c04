"""A client's operations on the file: all that have gathered are carried out in one transaction.

`BEGIN IMMEDIATE` keeps out all other processes meanwhile. After the commit, the clients that have
pushes to fetch are notified. A notified client reads its pushes without a transaction of its own,
so it does not wait for those of others; the next one that it makes removes them.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Generator, Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from aiolock.stores._effects import Push
from aiolock.stores._operations import Fetch, Part
from aiolock.stores._outcomes import CarriedOut, Held, Outcome, failed, in_halves
from aiolock.stores.sqlite import _connection
from aiolock.stores.sqlite._connection import Connection
from aiolock.stores.sqlite._failures import failure
from aiolock.stores.sqlite._presence import Presence
from aiolock.stores.sqlite._transaction import Transaction

_IN_PASSING: Final = 0.1
"""Seconds to wait for other processes, for work that can be done later as well."""


class _Failed(Exception):
    """An operation cannot be carried out, though the file can be used."""


class Database:
    """The database of one client. One thread uses it; only a fork may close the connection."""

    def __init__(
        self,
        path: Path,
        prefix: str,
        client: str,
        presence: Presence,
        given: Path,
        *,
        lost: Callable[[Iterable[Sequence[Push]]], object],
        replaced: Callable[[], object],
    ) -> None:
        """``given``: the path in the URL, which has led to ``path``.

        ``lost`` must make these losses known, before it returns. ``replaced`` is called when the
        file is another one, which has no state of any name.
        """
        self._path = path
        self._client = client
        self._presence = presence
        self._lost = lost
        self._replaced = replaced
        self._connection = Connection(path, prefix, presence, given)
        self._read = self._removed = 0
        """The client's last push that was read, and the last that was removed."""
        self.more = False
        """Whether the last sweep may have left more to remove."""
        self._mutex = threading.Lock()
        """Held while the thread works here, so that a fork finds nothing half-done."""
        with _one_fork:  # a fork goes through all of them, in whatever thread it is made
            _all.add(self)

    @property
    def protocol(self) -> int:
        """The newest protocol of those that have used the file."""
        return self._connection.protocol

    def open(self) -> None:
        """Make the file if there is none; `StoreError` if it cannot be used."""
        with self._mutex:
            try:
                self._connection.open()
            except (sqlite3.Error, OSError) as error:
                raise failure(self._path, error) from error

    def close(self) -> None:
        """Close the file, and remove this client's pushes, which will not be fetched."""
        with self._mutex:
            with contextlib.suppress(sqlite3.Error, OSError):  # else another client's sweep does
                if self._connection.is_whole():
                    self._connection.wait_for(_IN_PASSING)
                    self._connection.execute("DELETE FROM inbox WHERE client = ?", (self._client,))
            self._connection.close()

    @contextlib.contextmanager
    def no_fork(self) -> Generator[None]:
        """No process is forked in this body: for work with files that a child must close."""
        with self._mutex:
            yield

    def look(self) -> None:
        """Check whether the file is still the one that others find."""
        with self._mutex, contextlib.suppress(sqlite3.Error, OSError):  # an operation fails with it
            self._follow()

    def carry_out(self, parts: Sequence[Part]) -> CarriedOut:
        """Carry out these, in order: all in one transaction."""
        with self._mutex:
            if all(type(part) is Fetch for part in parts):
                return self._only_fetch(len(parts))
            return self._carry_out(parts, _connection.BUSY)

    def sweep(self) -> Sequence[Push]:
        """Remove expired rows, if other processes leave time for it."""
        with self._mutex:
            done = self._carry_out((), _IN_PASSING, sweep=True)
        self.more = any(outcome.answer for outcome in done.outcomes)
        return done.pushes

    def _only_fetch(self, times: int) -> CarriedOut:
        try:
            self._follow()
            pushes, self._read = self._connection.left_for(self._client, self._read)
        except Exception as error:  # noqa: BLE001  # no error may end the thread
            return CarriedOut(failed(failure(self._path, error), times), [], served=False)
        return CarriedOut([Outcome(None)] * times, pushes)

    def _follow(self) -> None:
        if self._connection.is_whole():
            return
        # Others find other files than ours, and wait until we have left these: what we hold by
        # them is lost, first of all.
        self._lost(self._connection.held_by(self._client))
        if self._connection.follow():
            # It may be the same file, as after a fork. Another one has no pushes for us before we
            # have asked for anything there, so they have higher numbers than any that it has given.
            last = self._connection.last_number
            self._read, self._removed = min(self._read, last), min(self._removed, last)
            self._replaced()

    def _carry_out(
        self, parts: Sequence[Part], patience: float, *, sweep: bool = False
    ) -> CarriedOut:
        try:
            self._follow()
            self._connection.wait_for(patience)
            answers, pushes, theirs, held = self._together(parts, sweep=sweep)
        except _Failed as fault:
            if len(parts) == 1:
                return CarriedOut([Outcome(None, failure(self._path, fault.__cause__))], [])
            # One of them cannot be carried out: find it, and carry out the others.
            return in_halves(parts, lambda half: self._carry_out(half, patience))
        except Exception as error:  # noqa: BLE001  # no error may end the thread
            return CarriedOut(failed(failure(self._path, error), len(parts)), [], served=False)
        for client in theirs:
            # It is committed. A client that is not reached asks by itself, later.
            with contextlib.suppress(Exception):
                self._presence.notify(client)
        return CarriedOut([Outcome(answer) for answer in answers], pushes, held=held)

    def _together(
        self, parts: Sequence[Part], *, sweep: bool
    ) -> tuple[list[Any], list[Push], dict[str, None], float]:
        """The answers, the pushes for this client, and the other clients to notify.

        Last, the seconds for which it has kept all others out.
        """
        transaction = self._connection.begin()
        held = Held()
        try:
            pushes, last = self._connection.left_for(self._client, self._read)
            if last > self._removed:
                transaction.remove(self._client, last)
            answers = [_carried_out(part, transaction) for part in parts]
            if sweep:
                answers.append(transaction.sweep())
            transaction.save()
            theirs = dict[str, None]()
            for push in transaction.pushes:
                if push.client == self._client:
                    pushes.append(push)
                elif transaction.listens(push.client):
                    transaction.send(push)
                    theirs[push.client] = None
            self._connection.commit()
        except BaseException:
            self._connection.roll_back()
            raise
        self._read = self._removed = last
        return answers, pushes, theirs, held.seconds()

    # Forks: SQLite tracks file locks per process, and a child would count on its parent's

    def before_fork(self) -> None:
        """Close what a child would inherit."""
        self._mutex.acquire()
        self._connection.close()

    def after_fork(self) -> None:
        """Go on; what is needed is opened again."""
        self._mutex.release()

    def in_child(self) -> None:
        """Leave all to the parent, which goes on."""
        self._mutex.release()
        self._presence.forget()


def _carried_out(part: Part, transaction: Transaction) -> Any:
    try:
        return transaction.run(part)
    except (sqlite3.Error, OSError):
        raise
    except Exception as error:
        raise _Failed from error


_all: Final[weakref.WeakSet[Database]] = weakref.WeakSet()
_one_fork: Final = threading.Lock()
_forking: Final[list[Database]] = []


def _before_fork() -> None:
    _one_fork.acquire()
    _forking.extend(_all)
    for database in _forking:
        database.before_fork()


def _after_fork() -> None:
    for database in _forking:
        database.after_fork()
    _forking.clear()
    _one_fork.release()


def _in_child() -> None:
    for database in _forking:
        database.in_child()
    _forking.clear()
    _one_fork.release()


if hasattr(os, "register_at_fork"):  # not on Windows, which cannot fork
    os.register_at_fork(before=_before_fork, after_in_parent=_after_fork, after_in_child=_in_child)
