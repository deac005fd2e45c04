"""One transaction: the states of the names that are asked for are loaded, changed and saved.

What is to be told to clients of other processes is written down with them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from typing import Final, TypeVar

from aiolock.store import Page, Status
from aiolock.stores._codec import UNREADABLE, decode, decode_push, encode, encode_push
from aiolock.stores._operations import Told
from aiolock.stores.machine import NameState, Step
from aiolock.stores.sqlite._presence import Presence

Value = TypeVar("Value")

_KEPT: Final = 600_000_000
"""Microseconds for which a name is kept that nobody asks for, once all is over that was known."""
_PAGE: Final = 100
"""Names of which a snapshot tells at a time: so long the other processes wait."""
_SWEPT: Final = 100
"""Names that are looked at together, to see whether they can be forgotten."""


class Transaction:
    """Operations on the states of names, all of which are saved together or not at all."""

    again = False
    """What fails here has certainly not been done."""

    def __init__(
        self,
        database: sqlite3.Connection,
        presence: Presence,
        prefix: str,
        clock: Callable[[], int],
        fence: int,
    ) -> None:
        self._database = database
        self._presence = presence
        self._prefix = prefix
        self._now = clock
        self._states = dict[str, tuple[NameState, str]]()
        self._alive = dict[str, bool]()
        self._fence = self._last_fence = fence
        self.pushes: list[Told] = []

    def step(self, name: str, operation: Callable[[Step], Value]) -> Value:
        """Carry out an operation of the state machine."""
        known = self._states.get(name)
        if known is None:
            row = self._database.execute(
                "SELECT state FROM names WHERE name = ?", (self._key(name),)
            ).fetchone()
            text = "" if row is None else row[0]
            known = self._states[name] = (decode(text) if text else NameState()), text
        step = Step(known[0], self._now(), self.listens, self._fence, self._says)
        answer = operation(step)
        self._fence = step.fence
        self.pushes += [Told(name, push) for push in step.pushes]
        return answer

    def snapshot(self, start: str) -> Page:
        """The status of some names; see `Store.snapshot`."""
        self.save()  # what was done before, in this transaction, is to be seen
        first = bytes.fromhex(start) or self._key("")
        rows = self._database.execute(
            "SELECT name, state FROM names WHERE name > ? AND name < ? ORDER BY name LIMIT ?",
            (first, self._prefix.encode() + b"\1", _PAGE),
        ).fetchall()
        statuses: list[Status] = []
        for key, text in rows:
            # What a later version has written is no reason to show nothing.
            with contextlib.suppress(*UNREADABLE):
                name = key.decode().partition("\0")[2]
                step = Step(decode(text), self._now(), self.listens, self._fence, self._says)
                statuses.append(step.status(name))
        return Page(statuses, rows[-1][0].hex() if len(rows) == _PAGE else "")

    def save(self) -> None:
        """Write down what has changed."""
        for name, (state, before) in self._states.items():
            key = self._key(name)
            if state.idle:
                if before:
                    self._database.execute("DELETE FROM names WHERE name = ?", (key,))
                continue
            text = encode(state)
            if text != before:
                ends = [holder.end + holder.form.closes for holder in state.holders.values()]
                over = 1000 * max(state.until, *ends, 0) if ends else 1000 * state.until
                self._database.execute(
                    "INSERT INTO names VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE"
                    " SET state = excluded.state, over = excluded.over, changed = excluded.changed",
                    (key, text, over, self._now()),
                )
        if self._fence != self._last_fence:
            self._database.execute("UPDATE fence SET last = ?", (self._fence,))

    def send(self, told: Told) -> None:
        """Leave a push for a client of another process."""
        client = told.push.waiter.client
        self._database.execute(
            "INSERT INTO inbox (client, name, push) VALUES (?, ?, ?)",
            (client, f"{self._prefix}\0{told.name}", encode_push(told.push)),
        )

    def fetch(self, client: str) -> list[Told]:
        """What others have left for this client."""
        rows = self._database.execute(
            "SELECT id, name, push FROM inbox WHERE client = ? ORDER BY id", (client,)
        ).fetchall()
        if rows:
            self._database.execute(
                "DELETE FROM inbox WHERE client = ? AND id <= ?", (client, rows[-1][0])
            )
        found: list[Told] = []
        for _, name, text in rows:
            # What a later version has left is no reason to hear no more.
            with contextlib.suppress(*UNREADABLE):
                found.append(Told(name.partition("\0")[2], decode_push(text)))
        return found

    def sweep(self) -> None:
        """Forget what was left for the dead; and some of the names that nobody will ask for.

        It goes on where whoever did it last has come to.
        """
        for (client,) in self._database.execute("SELECT DISTINCT client FROM inbox").fetchall():
            if not self.listens(client):
                self._database.execute("DELETE FROM inbox WHERE client = ?", (client,))
        now = self._now()
        rows = self._database.execute(
            "SELECT name, state, over, changed FROM names, swept WHERE name > swept.last"
            " ORDER BY name LIMIT ?",
            (_SWEPT,),
        ).fetchall()
        for name, text, over, changed in rows:
            if over < now and changed < now - _KEPT and not self._is_waited_for(text):
                self._database.execute("DELETE FROM names WHERE name = ?", (name,))
        last = rows[-1][0] if len(rows) == _SWEPT else b""
        self._database.execute("UPDATE swept SET last = ? WHERE last <> ?", (last, last))

    def _is_waited_for(self, text: str) -> bool:
        try:
            return any(self.listens(waiter.client) for _, waiter in decode(text).queue)
        except UNREADABLE:
            return True  # of a later version, which will know what it is

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}\0{name}".encode()

    def listens(self, client: str) -> bool:
        """Whether it does, as far as this transaction is concerned."""
        if client not in self._alive:
            self._alive[client] = self._presence.listens(client)
        return self._alive[client]

    def _says(self, client: str) -> tuple[str, int]:
        return self._presence.says(client)[:2]
