"""The listening connection: it sleeps at the server, until another client ends its sleep."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from enum import Enum, auto
from typing import Any, Final

from aiolock.backoff import Backoff
from aiolock.stores._codec import decode_push
from aiolock.stores._effects import Push
from aiolock.stores.mysql._database import idle_lock, take
from aiolock.stores.mysql._errors import is_in_the_way
from aiolock.stores.mysql._link import Link
from aiolock.stores.mysql._read import Read
from aiolock.stores.mysql._settings import Settings

log = logging.getLogger("aiolock")

SLEEP: Final = 1.0
"""Seconds after which it sleeps again, which also shows that it is connected.

The table of pushes cannot be altered while the statement lasts that looks into it and sleeps.
An `ALTER TABLE` waits for one sleep, an `OPTIMIZE TABLE` for two, and a push cannot be written
meanwhile: that is tried again for five seconds. (A look in a statement before the sleep would miss
a push that comes between the two. In a block of statements, where each lets go of its tables,
MariaDB 10.11 missed three in a thousand.)
"""
_HELD_UP: Final = 10.0
"""Seconds for which a sleep may not begin, while another session has the table, or the server
hangs: only after that the connection is taken for dead."""
_TRIAL: Final = 1.0
"""Seconds within which a notification arrives, if notifying works."""
_IDLE_POLL: Final = 1.0
"""Seconds between two polls, while no waiter of the client is in a queue."""
_QUEUED: Final = 15.0
"""Seconds for which a waiter counts as queued after the last answer: it asks again sooner."""
_ENDS_WITHIN: Final = 2.0
_RECONNECTS_WITHIN: Final = 0.1
"""Seconds for the other connection to be made again."""
_FIRST_PAUSE: Final = 0.02
_LONGEST_PAUSE: Final = 1.0


class Woken(Enum):
    """The reason why a sleep has ended."""

    NOTIFIED = auto()
    """Another client has notified this one, or had left a push before the sleep began."""
    EXPIRED = auto()
    """The time was over: there is nothing to read."""
    DISCONNECTED = auto()
    """The connection for commands is gone."""


class Listener:
    """Listens for one client, in a thread of its own, on another connection when one breaks."""

    def __init__(
        self,
        settings: Settings,
        prefix: str,
        client: str,
        read: Read,
        *,
        on_pushes: Callable[[list[Push]], None],
        lost: Callable[[Exception | None], None],
        failing: Callable[[Exception], None],
        back: Callable[[], None],
    ) -> None:
        """``on_pushes`` gets the pushes that others have left. ``lost`` gets the reason why there
        is no connection, or None if there may be none. ``back`` is called when it has another one.
        All are called in its thread.
        """
        self._settings = settings
        self._prefix = prefix.encode()
        self._client = client
        self._read = read
        self._on_pushes = on_pushes
        self._lost = lost
        self._failing = failing
        self._back = back
        self._link = Link(settings, lasts=_HELD_UP)
        self._stopped = threading.Event()
        self._listens = threading.Event()
        self._slept = threading.Event()
        self._failure: BaseException | None = None
        self._polls = settings.doorbell == "poll"
        self._queued_at = -_QUEUED
        """The time when an answer last showed that a waiter of this client is in a queue."""
        self._poll_now = threading.Event()
        self._thread = threading.Thread(
            target=self._run, name="aiolock mysql listener", daemon=True
        )

    # In the thread for commands

    def open(self, commands: Link) -> None:
        """Listen, and find out whether notifying works. Raises what PyMySQL raises."""
        self._thread.start()
        self._listens.wait()
        if self._failure is None and self._settings.doorbell == "auto":
            self._try(commands)
        if self._failure is not None:
            raise self._failure

    def _try(self, commands: Link) -> None:
        """Notify it until its trial sleep ends."""
        number = self._number
        while not self._slept.wait(0.01):
            commands.run_until(f"KILL QUERY {number}")

    # In its own thread

    def _run(self) -> None:
        self._backoff = Backoff(_FIRST_PAUSE, _LONGEST_PAUSE, at_once=True)
        try:
            self._begin()
        except BaseException as error:  # noqa: BLE001  # `open` raises it
            self._failure = error
            self._stopped.set()
        finally:
            self._listens.set()
            self._slept.set()
        while not self._stopped.is_set():
            try:
                if not self._link.is_up:
                    self._come_back()
                self._listen()
            except Exception as error:  # noqa: BLE001  # try another connection, whatever it is
                self._link.close()
                if not self._backoff.next:
                    self._lost(error)
                else:
                    self._failing(error)
                self._stopped.wait(self._backoff.pause())
        self._link.close()

    def _begin(self) -> None:
        self._connect()
        self._listens.set()
        if self._settings.doorbell == "auto":
            self._polls = not self._can_be_notified()

    def _come_back(self) -> None:
        self._connect()
        self._look()
        self._back()

    def _connect(self) -> None:
        self._link.connect()
        self._number = self._link.number()
        take(self._link, f"aiolock:{self._client}:bell")

    def _can_be_notified(self) -> bool:
        """Whether another connection can end a sleep."""
        notified = self._sleep("0", _TRIAL) is Woken.NOTIFIED
        if not notified:
            log.info(
                "aiolock: MySQL is polled for pushes, every %g s: KILL QUERY does not arrive",
                self._settings.poll,
            )
        return notified

    def _listen(self) -> None:
        while not self._stopped.is_set():
            if self._polls:
                self._poll_now.clear()
                self._look()
                self._poll_now.wait(self._until_next_look())
            else:
                # Others commit their pushes, then notify: either this sees them, or the sleep ends.
                there = f"EXISTS (SELECT 1 FROM aiolock_inbox WHERE {self._unread()})"
                woken = self._sleep(there, SLEEP)
                if woken is not Woken.EXPIRED:
                    self._look()
                if woken is Woken.DISCONNECTED:
                    self._lost(None)
                    self._stopped.wait(_RECONNECTS_WITHIN)
            self._backoff.reset()

    def _sleep(self, unless: str, seconds: float) -> Woken:
        """Sleep for this long, unless ``unless`` is true.

        It waits for a lock that the connection for commands holds, in one statement on its own.
        (Two clients that end two sleeps of `SLEEP` at once wait for each other, in MariaDB, for two
        seconds. If a client is killed between two statements, it forgets that, or never answers if
        they were sent together. And in `DO`, the condition would lock what it reads, while this
        sleeps.)
        """
        lock = idle_lock(self._client)
        found, error = self._link.run_until(
            f"SELECT IF({unless}, -1, GET_LOCK('{lock}', {seconds}))"
        )
        if error is not None:
            if not is_in_the_way(error):
                raise error
            return Woken.NOTIFIED
        ((answer,),) = found[0]
        if answer is None or answer < 0:
            return Woken.NOTIFIED  # None: the server has ended the sleep
        if answer:
            self._link.run(f"DO RELEASE_LOCK('{lock}')")
            return Woken.DISCONNECTED
        return Woken.EXPIRED

    def _look(self) -> None:
        found, error = self._link.run_until(self._reading())
        if error is None:
            self._deliver(found[0])
        elif not is_in_the_way(error):
            raise error

    def _until_next_look(self) -> float:
        waits = time.monotonic() - self._queued_at < _QUEUED
        return self._settings.poll if waits else _IDLE_POLL

    def _unread(self) -> str:
        read = self._read.to_remove()
        others = f" AND id NOT IN ({', '.join(map(str, read))})" if read else ""
        return f"client = '{self._client}'{others}"

    def _reading(self) -> str:
        return f"SELECT id, name, push FROM aiolock_inbox WHERE {self._unread()} ORDER BY id"

    def _deliver(self, rows: Any) -> None:
        pushes: list[Push] = []
        for number, name, text in rows:
            self._read.add(number)
            prefix, _, rest = name.partition(b"\0")
            try:
                push = decode_push(text.decode(), rest.decode())
            except (KeyError, TypeError, ValueError):
                # An unreadable push of a later version must not stop the others.
                log.warning("aiolock: not a push of this version's: %.200r", text)
                continue
            if prefix == self._prefix:
                pushes.append(push)
        if rows:
            self._on_pushes(pushes)

    # In any thread

    def poll_soon(self) -> None:
        """A waiter of this client is in a queue: a listener that polls must poll soon."""
        seldom = self._until_next_look() > self._settings.poll
        self._queued_at = time.monotonic()
        if seldom:
            self._poll_now.set()

    def stop(self) -> None:
        """Listen no more. Idempotent."""
        self._stopped.set()
        self._poll_now.set()
        self._link.break_()
        if self._thread.ident is not None:
            self._thread.join(_ENDS_WITHIN)

    def drop(self) -> None:
        """Listen on another connection."""
        self._link.break_()
