"""A client's operations on the database: all that have gathered are carried out together.

They share one transaction, which also writes down the pushes for other clients. After the commit,
those clients are notified: the statement in which they sleep is ended (``KILL QUERY``).
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import pymysql

from aiolock.backoff import Backoff
from aiolock.errors import StoreError
from aiolock.stores._codec import UNREADABLE, decode
from aiolock.stores._effects import Push
from aiolock.stores._operations import Part
from aiolock.stores._outcomes import CarriedOut, Held, Outcome, failed, in_halves
from aiolock.stores._protocols import spoken, works_beside
from aiolock.stores.mysql import _errors, _owner, _schema
from aiolock.stores.mysql._errors import code, store_error
from aiolock.stores.mysql._link import Link
from aiolock.stores.mysql._read import Read
from aiolock.stores.mysql._settings import Settings
from aiolock.stores.mysql._transaction import CLOCK, NOW, Failed, Guard, Transaction

log = logging.getLogger("aiolock")

IDLE: Final = 1
"""Seconds after which the server ends the transaction, with its locks, of a stopped client."""
_LONGEST_IDLE: Final = 4
"""The same limit for a client of which it has ended one: perhaps it is slow, and not stopped. No
longer, because others wait for the rows no longer than `_PATIENCE`."""
_PATIENCE: Final = 5.0
"""Seconds after which an operation that fails is not tried any more."""
_WAITED: Final = 2.5
"""Seconds of that, at most, that it may have waited for the operations before it."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0
_GRACE: Final = 5_000_000
"""Microseconds after a start of the server in which all clients count as alive: they need the time
to come back."""
_KEPT: Final = 600_000_000
"""Microseconds for which an unused name is kept, after all of its state has ended."""
_FORGOTTEN: Final = 3_600_000_000
"""Microseconds after which a client that is gone is forgotten."""
_SWEPT: Final = 256
"""Names that are removed in one sweep; also the dead clients, and the pushes for them: the client's
operations wait meanwhile."""
_RESTARTED: Final = 2_000_000
"""Microseconds by which a server's start may seem to move, because it counts in seconds."""
_MOST: Final = 1000
"""Clients whose host and process are kept in memory."""


class _Unsure(Exception):
    """The transaction may have been committed, or not."""

    def __init__(self, why: BaseException) -> None:
        super().__init__()
        self.why = why


class Database:
    """One client's connection for commands: used by one thread."""

    def __init__(
        self,
        settings: Settings,
        prefix: str,
        client: str,
        read: Read,
        *,
        lost: Callable[[BaseException], None],
        back: Callable[[], None],
    ) -> None:
        """``lost`` gets the reason when the connection is lost, while the client is open.

        ``back`` is called when there is another connection: the client may have counted as dead.

        ``read`` has the pushes that were delivered and are still to be removed.
        """
        self._settings = settings
        self._prefix = prefix
        self._client = client
        self._read = read
        self._lost = lost
        self._back = back
        self.link = Link(settings)
        self.protocol = _schema.PROTOCOL
        """The newest protocol of those that have used the tables."""
        self._was_up = False
        self._grace = 0
        """The time until which all clients count as alive, by the server's clock, in µs."""
        self._started: int | None = None
        """The time when the server was started, by its own clock."""
        self._guard = Guard()
        self._to_notify = dict[str, None]()
        """Clients that may have pushes to read, and may not have been notified."""
        self._metadata = dict[str, tuple[str, int]]()
        self._held = Held()
        """The last transaction, since it has had its rows."""
        self._silent = 0.0
        """The seconds from asking for the rows to the commit, in which it sent nothing."""
        self._idle = IDLE

    # The connection

    def open(self) -> None:
        """Connect, and show others that the client is alive; `StoreError` if that fails."""
        try:
            self._connect()
        except StoreError as error:
            error.refused = True
            raise
        except (pymysql.Error, OSError) as error:
            raise self._failure(error, refused=True) from error

    def _connect(self) -> None:
        link = self.link
        try:
            link.connect()
            if self._settings.create and not self._was_up and not _owner.is_made(link):
                _owner.make(link, self._settings)
            self._check_schema()
            if not self._was_up:
                link.run(*_schema.TRIAL)
            take(link, f"aiolock:{self._client}")
            self._hold_idle_lock()
            self._set_up()
        except BaseException:
            link.close()
            raise
        if self._was_up:
            self._back()
        self._was_up = True

    def _check_schema(self) -> None:
        ((found,),) = self.link.run("SELECT MAX(protocol) FROM aiolock_meta")
        protocol = self.protocol = int(found[0] or 0)  # no row: another client is making the tables
        if protocol < _schema.PROTOCOL or not works_beside(_schema.PROTOCOL, protocol):
            raise StoreError(
                f"MySQL at {self._settings.where}: its tables are of another version of aiolock:"
                " run `aiolock init-db URL` of the newer one, and upgrade their clients one"
                f" protocol after the other (protocol {protocol} is spoken there;"
                f" {spoken(_schema.PROTOCOL)})"
            )

    def _failure(self, error: BaseException, *, refused: bool) -> StoreError:
        return store_error(error, self._settings, self.link.account, refused=refused)

    def _hold_idle_lock(self) -> None:
        """Hold the lock that our listener waits for: it gets that when this connection ends."""
        ((has,),) = self.link.run(f"SELECT GET_LOCK('{idle_lock(self._client)}', 2)")[0]
        if not has:
            raise OSError(errno.EBUSY, "the lock that its listener waits for is not free")

    def _set_up(self) -> None:
        link = self.link
        if link.is_mariadb():
            link.run(f"SET SESSION idle_transaction_timeout = {self._idle}")
            self._guard = Guard()
        else:
            # MySQL has a limit for idle connections only.
            self._guard = Guard(
                [f"SET SESSION wait_timeout = {self._idle}"],
                ["SET SESSION wait_timeout = 28800"],
            )
        ((now,),), ((_, uptime),) = link.run(CLOCK, "SHOW GLOBAL STATUS LIKE 'Uptime'")
        started = now - 1_000_000 * _signed(int(uptime))
        if self._started is not None and abs(started - self._started) > _RESTARTED:
            # The server may have recovered for long before it accepted connections. By a clock that
            # was set back meanwhile, it has started earlier than before.
            self._grace = now + _GRACE
        else:
            self._grace = max(self._grace, started + _GRACE)
        self._started = started
        host = socket.gethostname().encode()
        link.run(
            "INSERT INTO aiolock_clients (client, host, pid, seen) VALUES"
            f" ('{self._client}', x'{host.hex()}', {os.getpid()}, {now})"
            f" ON DUPLICATE KEY UPDATE seen = {now}"
        )

    def _in_grace(self, now: int) -> bool:
        """Whether all clients count as alive.

        Not before that time either: otherwise, where the server's clock is set back, no client
        would count as dead until the clock has caught up.
        """
        return self._grace - _GRACE <= now < self._grace

    def beat(self) -> None:
        """Check whether the connection is up, and make another if it is not.

        While it is down, the client counts as dead.
        """
        for _ in range(2):
            try:
                if not self.link.is_up:
                    self._connect()
                self.link.run(
                    f"UPDATE aiolock_clients SET seen = {NOW} WHERE client = '{self._client}'"
                )
                self._notify_again()
            except Exception:  # noqa: BLE001  # the next operation fails with it
                self.link.close()
            else:
                return

    def close(self) -> None:
        """Remove this client from the tables, if that is possible."""
        if self.link.is_up:
            self.link.run_until(
                f"DELETE FROM aiolock_inbox WHERE client = '{self._client}'",
                f"DELETE FROM aiolock_clients WHERE client = '{self._client}'",
            )
        self.link.close()

    # The operations

    def carry_out(self, parts: Sequence[Part], since: float, *, again: bool = False) -> CarriedOut:
        """Carry these out, in order, in one transaction; ``again``: that may be done already."""
        since = max(since, time.monotonic() - _WAITED)
        backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, at_once=True)
        while True:
            self._silent = 0.0
            try:
                if not self.link.is_up:
                    self._connect()
                answers, pushes = self._together(parts, again=again)
                held = self._held.seconds()
            except Failed as fault:
                return self._apart(fault.why, parts, since, again=again)
            except Exception as error:  # noqa: BLE001  # no error may end the thread
                if _errors.is_too_long(error):
                    return self._apart(error, parts, since, again=again)
                if isinstance(error, _Unsure):
                    again = True
                    self.link.close()  # if it was committed, pushes for us may be waiting
                cause = error.why if isinstance(error, _Unsure) else error
                if not self._may_be_tried_again(cause, since):
                    failure = self._failure(cause, refused=not again)
                    return CarriedOut(failed(failure, len(parts)), (), served=False)
                if self._is_ended(cause) and len(parts) > 1:
                    return self._apart(cause, parts, since, again=again)
                time.sleep(backoff.pause())
            else:
                self._notify_again()
                return CarriedOut([Outcome(answer) for answer in answers], pushes, held=held)

    def _may_be_tried_again(self, error: BaseException, since: float) -> bool:
        if _errors.is_in_the_way(error):
            self._roll_back()
        elif _errors.is_lost(error):
            self.link.close()
            if self._was_up:
                self._lost(error)
        elif not self.link.is_up:  # a new connection was refused, for its password perhaps
            if self._was_up:
                self._lost(error)
            return False
        else:
            self._roll_back()
            return False
        return time.monotonic() - since < _PATIENCE

    def _is_ended(self, error: BaseException) -> bool:
        """Whether the server has ended an idle transaction: the next has more time."""
        if self._silent > IDLE / 2 and _errors.is_lost(error):
            self._idle = _LONGEST_IDLE
            return True
        return False

    def _roll_back(self) -> None:
        if self.link.is_up:
            _, failure = self.link.run_until("ROLLBACK", *self._guard.after)
            if failure is not None:
                self.link.close()

    def _apart(
        self, why: BaseException, parts: Sequence[Part], since: float, *, again: bool
    ) -> CarriedOut:
        """Carry out each half by itself: one part may make all of them fail."""
        self._roll_back()
        if len(parts) == 1:
            return CarriedOut([Outcome(None, self._failure(why, refused=not again))], ())
        return in_halves(parts, lambda half: self.carry_out(half, since, again=again))

    def _together(self, parts: Sequence[Part], *, again: bool) -> tuple[list[Any], list[Push]]:
        """The answers, and the pushes for this client."""
        if len(self._metadata) > _MOST:
            self._metadata.clear()
        transaction = Transaction(
            *(self.link, self._prefix, self._client),
            in_grace=self._in_grace,
            metadata=self._metadata,
            again=again,
        )
        began = time.monotonic()  # the process may hardly run before it reads the answer, too
        transaction.load([part.name for part in parts if part.name], self._guard)
        self._held = Held()
        answers = [_carried_out(part, transaction) for part in parts]
        mine: list[Push] = []
        theirs: list[Push] = []
        notifiers = dict[str, int | None]()
        for push in transaction.pushes:
            if push.client == self._client:
                mine.append(push)
            elif transaction.listens(push.client):
                theirs.append(push)
                notifiers[push.client] = transaction.presence(push.client).notifier
        read = self._read.to_remove()
        writing = [
            *transaction.changes(),
            *transaction.left(theirs),
            *self._read.removal(self._client, read),
            "COMMIT",
            *self._guard.after,
        ]
        self._to_notify |= dict.fromkeys(notifiers)
        self._silent = time.monotonic() - began
        self._commit(writing, [notifier for notifier in notifiers.values() if notifier is not None])
        if self.link.is_up:
            for client in notifiers:
                del self._to_notify[client]
        self._read.removed(read)
        return answers, mine

    def _commit(self, writing: Sequence[str], notifiers: Sequence[int]) -> None:
        """Write, and notify, in the same message."""
        kills = [f"KILL QUERY {notifier}" for notifier in notifiers]
        found, error = self.link.run_until(*writing, *kills)
        if len(found) < len(writing):
            assert error is not None
            if _errors.is_lost(error) or len(found) >= writing.index("COMMIT"):
                raise _Unsure(error) from error
            raise error
        notified = len(found) - len(writing)
        while error is not None:
            # A listener that is gone ends the message: notify the others that follow.
            self._check_notified(error)
            kills = kills[notified + 1 :]
            if not kills or not self.link.is_up:
                return
            found, error = self.link.run_until(*kills)
            notified = len(found)

    def _notify_again(self) -> None:
        """Notify the clients that may not have been notified: once too often does no harm."""
        while self._to_notify and self.link.is_up:
            client = next(iter(self._to_notify))
            found, error = self.link.run_until(f"SELECT IS_USED_LOCK('aiolock:{client}:bell')")
            notifier = None if error else found[0][0][0]
            if notifier is not None:
                _, error = self.link.run_until(f"KILL QUERY {notifier}")
            self._check_notified(error)
            if self.link.is_up:
                del self._to_notify[client]

    def _check_notified(self, error: BaseException | None) -> None:
        """Handle an error of notifying. It is committed, and a client not notified polls."""
        if error is None or code(error) == _errors.NO_SUCH_THREAD:
            return
        if _errors.is_lost(error):
            self.link.close()
            return
        advice = ""
        if code(error) in _errors.MAY_NOT_KILL:
            advice = ": let all clients that share locks connect as one user, or use doorbell=poll"
        log.warning("aiolock: another client of MySQL cannot be notified (%s)%s", error, advice)

    # Sweeping

    def sweep(self) -> bool:
        """Remove expired rows, as far as that takes little time.

        Returns whether there may be more: it has found as many of a kind as in one sweep.
        """
        try:
            return self.link.is_up and self._sweep()
        except Exception:  # noqa: BLE001  # retried in the next sweep
            self.link.close()
            return False

    def _sweep(self) -> bool:
        link = self.link
        dead = "IS_USED_LOCK(CONCAT('aiolock:', client)) IS NULL"
        ((now,),), clients, pushes = link.run(
            CLOCK,
            "SELECT client, seen FROM aiolock_clients"
            f" WHERE seen < {NOW} - {_FORGOTTEN} AND {dead} LIMIT {_SWEPT}",
            f"SELECT id FROM aiolock_inbox WHERE {dead} LIMIT {_SWEPT}",
        )
        if self._in_grace(now):
            return False
        # Only what is there now: a client that comes back keeps the pushes that come from now on.
        removing: list[str] = []
        if pushes:
            ids = ", ".join(str(each) for (each,) in pushes)
            removing.append(f"DELETE FROM aiolock_inbox WHERE id IN ({ids})")
        if clients:
            gone = ", ".join(f"('{client}', {seen})" for client, seen in clients)
            removing.append(f"DELETE FROM aiolock_clients WHERE (client, seen) IN ({gone})")
        if removing:
            link.run(*removing)
        return self._forget(now) or _SWEPT in (len(clients), len(pushes))

    def _forget(self, now: int) -> bool:
        """Remove the names that expired first; returns whether there may be more.

        Those that a client uses now are passed over. Those that it waits for come again later.
        """
        *_, rows = self.link.run(
            *self._guard.before,
            "START TRANSACTION",
            "SELECT id, state FROM aiolock_names FORCE INDEX (over_minute)"
            f" WHERE over_minute < {(now - _KEPT) // 60_000_000}"
            f" ORDER BY over_minute, id LIMIT {_SWEPT} FOR UPDATE SKIP LOCKED",
        )
        kept = self._waited_for({each: state for each, state in rows if state})
        gone = [each for each, _ in rows if each not in kept]
        writing: list[str] = []
        if gone:
            writing.append(f"DELETE FROM aiolock_names WHERE id IN ({_listed(gone)})")
        if kept:
            writing.append(
                f"UPDATE aiolock_names SET changed_at = {now} WHERE id IN ({_listed(kept)})"
            )
        self.link.run(*writing, "COMMIT", *self._guard.after)
        return len(rows) == _SWEPT

    def _waited_for(self, states: Mapping[bytes, bytes]) -> set[bytes]:
        """The names for which a living client waits; also those that only a later version reads."""
        kept = set[bytes]()
        names = dict[str, list[bytes]]()
        for each, state in states.items():
            try:
                for _, waiter in decode(state.decode()).queue:
                    names.setdefault(waiter.client, []).append(each)
            except UNREADABLE:
                kept.add(each)
        clients = [*names]
        for at in range(0, len(clients), _SWEPT):
            some = clients[at : at + _SWEPT]
            asked = ", ".join(f"IS_USED_LOCK('aiolock:{client}')" for client in some)
            ((row,),) = self.link.run(f"SELECT {asked}")
            for client, alive in zip(some, row, strict=True):
                if alive is not None:
                    kept.update(names[client])
        return kept


def _listed(ids: Iterable[bytes]) -> str:
    return ", ".join(f"x'{each.hex()}'" for each in sorted(ids))


def idle_lock(client: str) -> str:
    """The name of the lock for which a client's listener waits while there are no pushes."""
    return f"aiolock:{client}:quiet"


def take(link: Link, lock: str) -> None:
    """Take a lock of the server's, which shows others that the client is alive, and its connection.

    The server may not have noticed that our last connection is gone. The lock has this name, so the
    connection that holds it was ours, and is killed.
    """
    for patience in (0, 2):
        ((taken,),), ((by,),) = link.run(
            f"SELECT GET_LOCK('{lock}', {patience})", f"SELECT IS_USED_LOCK('{lock}')"
        )
        if taken:
            return
        if by is not None:
            link.run_until(f"KILL {by}")
    raise OSError(errno.EBUSY, f"another connection has its lock {lock!r}")


def _signed(number: int) -> int:
    """The signed value of an unsigned number of 64 bits.

    The server gives its uptime so, if its clock was set back to before its start.
    """
    return number - 2**64 if number >= 2**63 else number


def _carried_out(part: Part, transaction: Transaction) -> Any:
    try:
        return transaction.run(part)
    except (pymysql.Error, OSError):
        raise
    except Exception as error:
        raise Failed(error) from error
