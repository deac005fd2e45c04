"""One transaction: the states of names are loaded and locked, changed, and saved.

It takes two messages to the server, and one commit for all operations in it.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple

from aiolock.protocol import Page, ReadPage, ReadStatus
from aiolock.stores._codec import UNREADABLE, decode, encode, encode_push
from aiolock.stores._effects import Push
from aiolock.stores._holders import RESERVED
from aiolock.stores._operations import Part, run_part
from aiolock.stores._state import NameState
from aiolock.stores.machine import Step
from aiolock.stores.mysql._errors import is_in_the_way, is_lost
from aiolock.stores.mysql._link import Link

NOW: Final = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""The server's time, in µs. Not `SYSDATE` or `NOW`, which give a local time."""
CLOCK: Final = f"SELECT {NOW}"
"""A statement of its own, because the time stands still within one: here the row locks have been
waited for already."""
_LONGEST: Final = 200
"""Bytes of a name that is its own id."""
_PAGE: Final = 200
"""Names on one page of a snapshot."""
_ASKED_AT_ONCE: Final = 100
"""Clients that are checked in one statement for being alive."""
_TRIES: Final = 10
"""The most tries to make missing rows: another client may remove them at the same moment."""
_LEFT_AT_ONCE: Final = 100
"""Pushes in one statement, which must not be longer than the server takes: there may be as many as
there are waiters."""


class Failed(Exception):
    """An operation cannot be carried out, though the server can be used."""

    def __init__(self, why: BaseException) -> None:
        super().__init__()
        self.why = why


class Guard(NamedTuple):
    """Statements around a transaction, by which it ends if we are stopped in the middle."""

    before: Sequence[str] = ()
    after: Sequence[str] = ()


class Presence(NamedTuple):
    """Whether a client is alive, and its listener."""

    alive: bool
    """Whether its connection for commands is up."""
    notifier: int | None
    """The connection by which it is notified, if that is up."""


class Loaded:
    """The state of one name, with what it was before."""

    __slots__ = ("before", "fence", "last_fence", "state")

    def __init__(self, state: bytes, fence: int) -> None:
        self.before = state
        self.last_fence = self.fence = fence
        self.state: NameState | None = None
        """Decoded when it is used: an unreadable one must not stop operations on others."""


class Transaction:
    """Operations on the states of names, all of which are saved together or not at all."""

    def __init__(
        self,
        link: Link,
        prefix: str,
        client: str,
        *,
        in_grace: Callable[[int], bool],
        metadata: dict[str, tuple[str, int]],
        again: bool = False,
    ) -> None:
        """``in_grace``: whether all clients count as alive at that time (µs), after a start.

        ``again``: all of it may have been done already, with the answer lost.
        """
        self._link = link
        self._prefix = prefix
        self._client = client
        self._in_grace = in_grace
        self._known_to_say = metadata
        self._again = again
        self._names = dict[str, Loaded]()
        self._states: list[NameState] = []
        """The states that were used."""
        self._presence = dict[str, Presence]()
        self.now = 0
        """The server's clock, in µs, when all rows were locked."""
        self.pushes: list[Push] = []

    # Loading

    def load(self, names: Iterable[str], guard: Guard) -> None:
        """Load and lock the states of these names; raises `Failed` if a row cannot be made."""
        ids = {key(self._prefix, name): name for name in names}
        if not ids:
            self.now = int(self._link.run(CLOCK)[0][0][0])
            return
        wanted = ", ".join(f"x'{each.hex()}'" for each in sorted(ids))
        for _ in range(_TRIES):
            *_, rows, ((now,),) = self._link.run(
                *guard.before,
                "START TRANSACTION",
                "SELECT n.id, n.fence, n.state, n.head,"
                " IS_USED_LOCK(CONCAT('aiolock:', n.head)),"
                " IS_USED_LOCK(CONCAT('aiolock:', n.head, ':bell'))"
                f" FROM aiolock_names AS n FORCE INDEX (PRIMARY) WHERE n.id IN ({wanted})"
                " ORDER BY n.id FOR UPDATE",
                CLOCK,
            )
            if len(rows) == len(ids):
                break
            # Rows that are not there cannot be locked. A separate transaction makes them, always in
            # the same order, so that no two transactions block each other.
            found = {row[0] for row in rows}
            new = [
                f"(x'{each.hex()}', {blob(full(self._prefix, ids[each]))}, '')"
                for each in sorted(ids.keys() - found)
            ]
            self._make(new, guard)
        else:
            warnings = self._link.run("SHOW WARNINGS")[0]  # of the statement that made them
            said = "; ".join(dict.fromkeys(text for _, _, text in warnings))
            why = f"it makes no row of this name in aiolock_names: {said or 'it does not say why'}"
            raise Failed(LookupError(why))
        self.now = int(now)
        for each, fence, state, head, alive, notifier in rows:
            self._names[ids[each]] = Loaded(state, fence)
            self._presence[head] = Presence(alive is not None, notifier)

    def _make(self, rows: Sequence[str], guard: Guard) -> None:
        """Make these rows, unless they are there."""
        _, failure = self._link.run_until(
            "ROLLBACK",
            *guard.after,
            f"INSERT IGNORE INTO aiolock_names (id, name, state) VALUES {', '.join(rows)}",
        )
        if failure is None:
            return
        if is_lost(failure) or is_in_the_way(failure):
            raise failure
        raise Failed(failure) from failure

    # Changing

    def run(self, part: Part) -> Any:
        """Carry out a part of an operation; its answer."""
        if isinstance(part, ReadPage):
            return self._page(part.start)
        name = part.name
        if not name:
            return None  # a `Fetch`
        loaded = self._names[name]
        if loaded.state is None:
            text = loaded.before.decode()
            loaded.state = decode(text) if text else NameState()
            self._states.append(loaded.state)
        step = self._step(name, loaded.state, loaded.fence)
        answer = run_part(step, part, again=self._again)
        loaded.fence = step.fence
        self.pushes += step.pushes
        return answer

    def _step(self, name: str, state: NameState, fence: int) -> Step:
        return Step(name, state, self.now, self.listens, fence, metadata=self._metadata)

    def _page(self, start: str) -> Page:
        """The status of some names, none of which is locked."""
        if changes := self.changes():  # of earlier operations in this transaction
            self._link.run(*changes)
        own = self._prefix.encode() + b"\0"
        (rows,) = self._link.run(
            "SELECT id, name, state FROM aiolock_names"
            f" WHERE id > {blob(bytes.fromhex(start))} AND state <> ''"
            f" AND LEFT(name, {len(own)}) = {blob(own)} ORDER BY id LIMIT {_PAGE}"
        )
        found = dict[str, NameState]()
        for _, name, text in rows:
            # An unreadable state of a later version must not hide the others.
            with contextlib.suppress(*UNREADABLE):
                found[name[len(own) :].decode()] = decode(text.decode())
        self._states += found.values()
        statuses = [
            self._step(name, state, 0).status(ReadStatus(name)) for name, state in found.items()
        ]
        return Page(statuses, rows[-1][0].hex() if len(rows) == _PAGE else "")

    def listens(self, client: str) -> bool:
        """Whether the client is alive; asked once in this transaction."""
        if client == self._client or self.presence(client).alive:
            return True
        return self._in_grace(self.now) and self._has_not_left(client)

    def _has_not_left(self, client: str) -> bool:
        """Whether it has not left: after a start of the server it may still come back."""
        (rows,) = self._link.run(f"SELECT 1 FROM aiolock_clients WHERE client = '{client}'")
        return bool(rows)

    def presence(self, client: str) -> Presence:
        """Whether it is alive; asked together with other clients that may be needed next."""
        if client not in self._presence:
            others = [each for each in self._clients() if each not in self._presence]
            asked = [client, *others][:_ASKED_AT_ONCE]
            locks = [
                f"IS_USED_LOCK('aiolock:{each}'), IS_USED_LOCK('aiolock:{each}:bell')"
                for each in asked
            ]
            ((row,),) = self._link.run("SELECT " + ", ".join(locks))
            for number, each in enumerate(asked):
                alive, notifier = row[2 * number : 2 * number + 2]
                self._presence[each] = Presence(alive is not None, notifier)
        return self._presence[client]

    def _clients(self) -> dict[str, None]:
        """The clients that hold or wait."""
        found = dict[str, None]()
        for state in self._states:
            found |= dict.fromkeys(holder.client for holder in state.holders.values())
            found |= dict.fromkeys(waiter.client for _, waiter in state.queue)
        found.pop(RESERVED, None)
        return found

    def _metadata(self, client: str) -> tuple[str, int]:
        """Host and process of a client; empty if they are forgotten."""
        known = self._known_to_say
        if client not in known:
            asked = [client, *(each for each in self._clients() if each not in known)]
            known.update(dict.fromkeys(asked, ("", 0)))
            wanted = ", ".join(f"'{each}'" for each in asked)
            (rows,) = self._link.run(
                f"SELECT client, host, pid FROM aiolock_clients WHERE client IN ({wanted})"
            )
            known.update({each: (host.decode(), pid) for each, host, pid in rows})
        return known[client]

    # Saving

    def changes(self) -> list[str]:
        """The statements that write down what has changed since the last call of this."""
        statements: list[str] = []
        for name, loaded in self._names.items():
            state = loaded.state
            if state is None:
                continue
            text = b"" if state.idle else encode(state).encode()
            if text == loaded.before and loaded.fence == loaded.last_fence:
                continue
            loaded.before, loaded.last_fence = text, loaded.fence
            head = state.queue[0][1].client if state.queue else ""
            statements.append(
                f"UPDATE aiolock_names SET fence = {loaded.fence}, head = '{head}',"
                f" state = {blob(text)}, over_at = {1000 * state.over},"
                f" changed_at = {self.now} WHERE id = x'{key(self._prefix, name).hex()}'"
            )
        return statements

    def left(self, pushes: Sequence[Push]) -> list[str]:
        """The statements that leave pushes for other clients, if there are any."""
        rows = [
            f"('{push.client}', {blob(full(self._prefix, push.event.name))},"
            f" {blob(encode_push(push).encode())})"
            for push in pushes
        ]
        parts = [rows[at : at + _LEFT_AT_ONCE] for at in range(0, len(rows), _LEFT_AT_ONCE)]
        return [
            f"INSERT INTO aiolock_inbox (client, name, push) VALUES {', '.join(part)}"
            for part in parts
        ]


def full(prefix: str, name: str) -> bytes:
    """A name with its prefix, as it is written down."""
    return f"{prefix}\0{name}".encode()


def key(prefix: str, name: str) -> bytes:
    """The key of a name's row: the name itself, if it is short enough for an index."""
    text = full(prefix, name)
    if len(text) <= _LONGEST:
        return text
    # No name begins with 0xff, which is not UTF-8.
    return b"\xff" + text[: _LONGEST // 2] + hashlib.sha256(text).digest()


def blob(value: bytes) -> str:
    """A value as it stands in a statement, whatever is in it."""
    return f"x'{value.hex()}'"
