"""One transaction: the states of names are loaded and locked, changed, and saved.

That is two messages to the server, and one commit for all that is done in between.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeVar

from aiolock.store import Page
from aiolock.stores._codec import UNREADABLE, decode, encode, encode_push
from aiolock.stores._operations import Told
from aiolock.stores.machine import NOBODY, NameState, Step
from aiolock.stores.mysql._link import Link

Value = TypeVar("Value")

CLOCK: Final = "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
"""Not `SYSDATE` or `NOW`, which show a local time. A statement of its own, since it stands still
within one: the lock has been waited for by then."""
_LONGEST: Final = 200
"""Bytes of a name that is its own id."""
_PAGE: Final = 200
"""Names of which a snapshot tells at a time."""
_ASKED_AT_ONCE: Final = 100
"""Clients of which it is asked together whether they are there."""


class Guard(NamedTuple):
    """What is said around a transaction, so that it ends if we are stopped in the middle."""

    before: Sequence[str] = ()
    after: Sequence[str] = ()


class Presence(NamedTuple):
    """Whether a client is there."""

    alive: bool
    """Its connection for commands is up."""
    bell: int | None
    """The connection by which it is rung, if that is up."""


class Loaded:
    """What is kept of one name, and what of it was there before."""

    __slots__ = ("before", "fence", "last_fence", "state")

    def __init__(self, state: bytes, fence: int) -> None:
        self.before = state
        self.last_fence = self.fence = fence
        self.state: NameState | None = None
        """Once it is asked for: one that cannot be read is no reason to do nothing with others."""


class Transaction:
    """Operations on the states of names, all of which are saved together or not at all."""

    def __init__(
        self,
        link: Link,
        prefix: str,
        client: str,
        *,
        started: int,
        says: dict[str, tuple[str, int]],
        again: bool = False,
    ) -> None:
        """``started``: until when (µs) everybody passes for alive, since the server was started."""
        self._link = link
        self._prefix = prefix
        self._client = client
        self._grace = started
        self._known_to_say = says
        self.again = again
        """Whether all of it may have been done already, unheard."""
        self._names = dict[str, Loaded]()
        self._states: list[NameState] = []
        """Those that were looked at."""
        self._presence = dict[str, Presence]()
        self.now = 0
        """The server's clock, in µs, when all was locked."""
        self.pushes: list[Told] = []

    # Loading

    def load(self, names: Iterable[str], guard: Guard) -> None:
        """Lock what is kept of these names."""
        ids = {key(self._prefix, name): name for name in names}
        if not ids:
            self.now = int(self._link.run(CLOCK)[0][0][0])
            return
        wanted = ", ".join(f"x'{each.hex()}'" for each in sorted(ids))
        while True:
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
            # Rows that are not there cannot be locked. Made by a transaction of their own, always
            # in one order, they are in nobody's way.
            found = {row[0] for row in rows}
            new = [
                f"(x'{each.hex()}', {blob(full(self._prefix, ids[each]))}, '')"
                for each in sorted(ids.keys() - found)
            ]
            self._link.run(
                "ROLLBACK",
                *guard.after,
                f"INSERT IGNORE INTO aiolock_names (id, name, state) VALUES {', '.join(new)}",
            )
        self.now = int(now)
        for each, fence, state, head, alive, bell in rows:
            self._names[ids[each]] = Loaded(state, fence)
            self._presence[head] = Presence(alive is not None, bell)

    # Changing

    def step(self, name: str, operation: Callable[[Step], Value]) -> Value:
        """Carry out an operation of the state machine."""
        loaded = self._names[name]
        if loaded.state is None:
            text = loaded.before.decode()
            loaded.state = decode(text) if text else NameState()
            self._states.append(loaded.state)
        step = Step(loaded.state, self.now, self.listens, loaded.fence, self._says)
        answer = operation(step)
        loaded.fence = step.fence
        self.pushes += [Told(name, push) for push in step.pushes]
        return answer

    def snapshot(self, start: str) -> Page:
        """The status of some names, none of which is locked; see `Store.snapshot`."""
        if changes := self.changes():  # by what was done before, in this transaction
            self._link.run(*changes)
        own = self._prefix.encode() + b"\0"
        (rows,) = self._link.run(
            "SELECT id, name, state FROM aiolock_names"
            f" WHERE id > {blob(bytes.fromhex(start))} AND state <> ''"
            f" AND LEFT(name, {len(own)}) = {blob(own)} ORDER BY id LIMIT {_PAGE}"
        )
        found = dict[str, NameState]()
        for _, name, text in rows:
            # What a later version has written is no reason to show nothing.
            with contextlib.suppress(*UNREADABLE):
                found[name[len(own) :].decode()] = decode(text.decode())
        self._states += found.values()
        statuses = [
            Step(state, self.now, self.listens, 0, self._says).status(name)
            for name, state in found.items()
        ]
        return Page(statuses, rows[-1][0].hex() if len(rows) == _PAGE else "")

    def listens(self, client: str) -> bool:
        """Whether it does, as far as this transaction is concerned."""
        if client == self._client or self.presence(client).alive:
            return True
        return self.now < self._grace and self._has_not_left(client)

    def _has_not_left(self, client: str) -> bool:
        """Whether it has not said good-bye: it may not have had the time to come back."""
        (rows,) = self._link.run(f"SELECT 1 FROM aiolock_clients WHERE client = '{client}'")
        return bool(rows)

    def presence(self, client: str) -> Presence:
        """Whether it is there; asked together with that of others that may be asked for next."""
        if client not in self._presence:
            others = [each for each in self._clients() if each not in self._presence]
            asked = [client, *others][:_ASKED_AT_ONCE]
            locks = [
                f"IS_USED_LOCK('aiolock:{each}'), IS_USED_LOCK('aiolock:{each}:bell')"
                for each in asked
            ]
            ((row,),) = self._link.run("SELECT " + ", ".join(locks))
            for number, each in enumerate(asked):
                alive, bell = row[2 * number : 2 * number + 2]
                self._presence[each] = Presence(alive is not None, bell)
        return self._presence[client]

    def _clients(self) -> dict[str, None]:
        """Those who hold or wait."""
        found = dict[str, None]()
        for state in self._states:
            found |= dict.fromkeys(holder.client for holder in state.holders.values())
            found |= dict.fromkeys(waiter.client for _, waiter in state.queue)
        found.pop(NOBODY, None)
        return found

    def _says(self, client: str) -> tuple[str, int]:
        """Host and process of a client, empty where it is forgotten."""
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
        """The statements that write down what has changed."""
        statements: list[str] = []
        for name, loaded in self._names.items():
            state = loaded.state
            if state is None:
                continue
            text = b"" if state.idle else encode(state).encode()
            if text == loaded.before and loaded.fence == loaded.last_fence:
                continue
            ends = [holder.end + holder.form.closes for holder in state.holders.values()]
            head = state.queue[0][1].client if state.queue else ""
            statements.append(
                f"UPDATE aiolock_names SET fence = {loaded.fence}, head = '{head}',"
                f" state = {blob(text)}, over_at = {1000 * max(state.until, *ends, 0, 0)},"
                f" changed_at = {self.now} WHERE id = x'{key(self._prefix, name).hex()}'"
            )
        return statements

    def left(self, told: Sequence[Told]) -> list[str]:
        """The statement that leaves pushes for other clients, if there are any."""
        rows = [
            f"('{push.waiter.client}', {blob(full(self._prefix, name))},"
            f" {blob(encode_push(push).encode())})"
            for name, push in told
        ]
        if not rows:
            return []
        return [f"INSERT INTO aiolock_inbox (client, name, push) VALUES {', '.join(rows)}"]


def full(prefix: str, name: str) -> bytes:
    """A name, as it is written down."""
    return f"{prefix}\0{name}".encode()


def key(prefix: str, name: str) -> bytes:
    """What a name's row is found by: itself, if it is not too long for an index."""
    text = full(prefix, name)
    if len(text) <= _LONGEST:
        return text
    # No name begins with 0xff, which is not UTF-8.
    return b"\xff" + text[: _LONGEST // 2] + hashlib.sha256(text).digest()


def blob(value: bytes) -> str:
    """A value, as it is written in a statement: whatever is in it."""
    return f"x'{value.hex()}'"
