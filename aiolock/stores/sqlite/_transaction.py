"""One transaction: the states of names are loaded, changed and saved.

Pushes for clients of other processes are written down with them.
"""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable
from typing import Any, Final

from aiolock.protocol import Page, ReadPage, ReadStatus, Status
from aiolock.stores._codec import UNREADABLE, decode, decode_push, encode, encode_push
from aiolock.stores._effects import Push
from aiolock.stores._operations import Part, run_part
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.sqlite._presence import Presence

_KEPT: Final = 600_000_000
"""Microseconds for which an unused name is kept, after all of its state has ended."""
_PAGE: Final = 100
"""Names on one page of a snapshot: other processes wait while a page is read."""
_SWEPT: Final = 256
"""Names, and pushes for dead clients, that are removed in one sweep."""
OVER_MINUTE: Final = "max(over, changed) / 60000000"
"""The minute in which all of the state of a name had ended. There is an index of it."""
_OVER: Final = (
    "SELECT name, state FROM names"  # noqa: S608  # of a constant
    f" WHERE {OVER_MINUTE} < ? ORDER BY {OVER_MINUTE} LIMIT ?"
)


class Transaction:
    """Operations on the states of names, all of which are saved together or not at all."""

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
        self.pushes: list[Push] = []

    def run(self, part: Part) -> Any:
        """Carry out a part of an operation; its answer."""
        if isinstance(part, ReadPage):
            return self._page(part.start)
        name = part.name
        if not name:
            return None  # a `Fetch`
        known = self._states.get(name)
        if known is None:
            row = self._database.execute(
                "SELECT state FROM names WHERE name = ?", (self._key(name),)
            ).fetchone()
            text = "" if row is None else row[0]
            known = self._states[name] = (decode(text) if text else NameState()), text
        step = self._step(name, known[0])
        answer = run_part(step, part, again=False)  # what has failed here was not carried out
        self._fence = step.fence
        self.pushes += step.pushes
        return answer

    def _step(self, name: str, state: NameState) -> Step:
        return Step(*(name, state, self._now(), self.listens, self._fence), metadata=self._metadata)

    def _page(self, start: str) -> Page:
        self.save()  # earlier operations of this transaction must be visible
        first = bytes.fromhex(start) or self._key("")
        rows = self._database.execute(
            "SELECT name, state FROM names WHERE name > ? AND name < ? ORDER BY name LIMIT ?",
            (first, self._prefix.encode() + b"\1", _PAGE),
        ).fetchall()
        statuses: list[Status] = []
        for key, text in rows:
            # An unreadable state of a later version must not hide the others.
            with contextlib.suppress(*UNREADABLE):
                name = key.decode().partition("\0")[2]
                statuses.append(self._step(name, decode(text)).status(ReadStatus(name)))
        return Page(statuses, rows[-1][0].hex() if len(rows) == _PAGE else "")

    def save(self) -> None:
        """Write down what has changed since it was loaded or saved."""
        for name, (state, before) in self._states.items():
            key, text = self._key(name), "" if state.idle else encode(state)
            if text == before:
                continue
            self._states[name] = state, text
            if not text:
                self._database.execute("DELETE FROM names WHERE name = ?", (key,))
                continue
            self._database.execute(
                "INSERT INTO names VALUES (?, ?, ?, ?) ON CONFLICT (name) DO UPDATE"
                " SET state = excluded.state, over = excluded.over, changed = excluded.changed",
                (key, text, 1000 * state.over, self._now()),
            )
        if self._fence != self._last_fence:
            self._database.execute("UPDATE fence SET last = ?", (self._fence,))
            self._last_fence = self._fence

    def send(self, push: Push) -> None:
        """Leave a push for a client of another process."""
        self._database.execute(
            "INSERT INTO inbox (client, name, push) VALUES (?, ?, ?)",
            (push.client, f"{self._prefix}\0{push.event.name}", encode_push(push)),
        )

    def remove(self, client: str, last: int) -> None:
        """Remove the pushes left for this client, up to this one."""
        self._database.execute("DELETE FROM inbox WHERE client = ? AND id <= ?", (client, last))

    def sweep(self) -> bool:
        """Remove pushes for dead clients, and the names that expired first.

        Returns whether there may be more. A name for which a client waits comes again later.
        """
        more, now = self._forget_pushes(), self._now()
        rows = self._database.execute(
            _OVER,
            ((now - _KEPT) // 60_000_000, _SWEPT),
        ).fetchall()
        for name, text in rows:
            if self._is_waited_for(text):
                self._database.execute("UPDATE names SET changed = ? WHERE name = ?", (now, name))
            else:
                self._database.execute("DELETE FROM names WHERE name = ?", (name,))
        return more or len(rows) == _SWEPT

    def _forget_pushes(self) -> bool:
        """Remove some pushes for dead clients; whether there may be more."""
        left, client = _SWEPT, ""
        while left > 0:
            (after,) = self._database.execute(
                "SELECT min(client) FROM inbox WHERE client > ?", (client,)
            ).fetchone()
            if after is None:
                return False
            client = after
            if not self.listens(client):
                left -= self._database.execute(
                    "DELETE FROM inbox WHERE id IN"
                    " (SELECT id FROM inbox WHERE client = ? ORDER BY id LIMIT ?)",
                    (client, left),
                ).rowcount
        return True

    def _is_waited_for(self, text: str) -> bool:
        try:
            return any(self.listens(waiter.client) for _, waiter in decode(text).queue)
        except UNREADABLE:
            return True  # a later version wrote it, and will decide

    def _key(self, name: str) -> bytes:
        return f"{self._prefix}\0{name}".encode()

    def listens(self, client: str) -> bool:
        """Whether the client is alive; asked once in this transaction."""
        if client not in self._alive:
            self._alive[client] = self._presence.listens(client)
        return self._alive[client]

    def _metadata(self, client: str) -> tuple[str, int]:
        return self._presence.metadata(client)[:2]


def left_for(database: sqlite3.Connection, client: str, after: int) -> tuple[list[Push], int]:
    """The pushes that others have left for this client behind that one, and the last one's number.

    Numbers are never used again in one file.
    """
    rows = database.execute(
        "SELECT id, name, push FROM inbox WHERE client = ? AND id > ? ORDER BY id", (client, after)
    ).fetchall()
    found: list[Push] = []
    for _, name, text in rows:
        # An unreadable push of a later version must not stop the others.
        with contextlib.suppress(*UNREADABLE):
            found.append(decode_push(text, name.partition("\0")[2]))
    return found, rows[-1][0] if rows else after
