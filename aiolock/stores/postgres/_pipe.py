"""The commands: those of all tasks go through one connection, as many as have gathered at a time.

A command that was under way when the connection broke is sent again on the next one, in order. Each
is idempotent, so it does not matter whether it was carried out. A copy of it may still be carried
out after that: see `aiolock.stores._retry_window`.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final

import psycopg

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.stores._protocols import spoken, works_beside
from aiolock.stores._retry_window import RetryWindow
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres import _server
from aiolock.stores.postgres._codec import Value, number
from aiolock.stores.postgres._errors import (
    BUSY,
    ELSEWHERE,
    Failed,
    is_one_of,
    not_made,
    store_error,
)
from aiolock.stores.postgres._link import Connection, Link
from aiolock.stores.postgres._notices import TELLS, Notices
from aiolock.stores.postgres._schema import PROTOCOL, SEARCH_PATH, statements
from aiolock.stores.postgres._settings import Settings
from aiolock.stores.postgres._wire import FUNCTIONS, Answer, Wire, size

REPLY_TIMEOUT: Final = 4.0
"""Seconds without the answer that is due, after which the connection is taken for dead."""
COMMAND_TIMEOUT: Final = 9.0
"""Seconds, over all reconnections, after which a command fails with its outcome unknown."""
_TOGETHER: Final = 64
"""Commands in one transaction, at most: others that want the same names wait for its end."""
_AT_ONCE: Final = 8000
"""Bytes of a transaction with several commands, at most. libpq sends its buffer whenever that holds
8,192 bytes: a process that is stopped just then would have begun a transaction without its end, and
the server would keep the names of that transaction locked until the process goes on."""
_LOOK: Final = 0.5
_SOON: Final = 0.05
"""Seconds after which a command that met a conflict with others is tried again."""
_LONGEST_DEFERRED: Final = 1.0
"""Seconds after which, at the latest, a command is called again that is deferred."""
_AGAIN: Final = 5
"""The most times that a late command is sent again, though once should be enough."""


_numbers: Final = itertools.count()


class _Command:
    """One call of a function, until it is answered."""

    again = 0
    """The number of times it was sent again because it came too late."""
    times = 0
    """The number of copies that may have been carried out."""
    alone = False
    """Whether it has a transaction of its own."""
    pause = 0.05
    """Seconds until it is called again, if it is deferred."""

    def __init__(  # noqa: PLR0917  # in the order of `Pipe.call`
        self,
        function: str,
        name: str,
        arguments: Sequence[Value],
        decode: Callable[[str, bool], Any],
        future: Prompt,
        now: float,
        *,
        must_run: bool,
        stamp: Callable[[float], bytes] | None,
    ) -> None:
        self.function = function
        self.name = name
        self.arguments = arguments
        self.size = size(function, arguments)
        self.decode = decode
        self.future = future
        self.born = self.sent = now
        self.number = next(_numbers)
        """The place in the order in which commands were asked for."""
        self.must_run = must_run
        self.stamp = stamp

    @property
    def wanted(self) -> bool:
        """Whether it is to be carried out."""
        return self.must_run or not self.future.done()


_ALONE: Final = frozenset({"renew", "status", "snapshot", "sweep", "beat"})
"""Functions about several names, or that may take long."""


class Pipe:
    """One multiplexed connection for the commands of all tasks."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_pushes: Callable[[str, Sequence[str]], None],
        lost: Callable[[Exception], None],
        failing: Callable[[Exception], None],
        back: Callable[[], None],
    ) -> None:
        """``on_pushes`` gets the name of each command whose answer has pushes, and those pushes;
        ``lost`` gets the reason why there is no connection, ``failing`` why there is still none.

        ``back`` is called when there is a connection again: answers, and the pushes with them, may
        have been lost.
        """
        self._settings = settings
        self._on_pushes = on_pushes
        self._lost = lost
        self._back = back
        self._loop = loop = asyncio.get_running_loop()
        self._link = Link(
            settings.commands, greet=self._greet, up=self._up, down=self._down, failing=failing
        )
        self.copies = RetryWindow(loop.time, codec.number)
        self.protocol = PROTOCOL
        """The protocol of the schema."""
        self._wire: Wire | None = None
        self._serving = False
        """Whether the connection has been checked."""
        self._first: asyncio.Future[None] | None = None
        """The future of the opening."""
        self._waiting = deque[_Command]()
        self._batch: list[_Command] = []
        """The commands that were sent last, without an answer yet."""
        self._batch_sent = 0.0
        self._resting = set[_Command]()
        """Commands that met a conflict with others, until they are tried again."""
        self._deferred: dict[_Command, asyncio.TimerHandle] = {}
        """Commands that are answered, and called again until they are done."""
        self._notices = Notices(
            drop=self._link.drop, notify_again=self._notify_again, done=self._see_whether_drained
        )
        self._scheduled = False
        self._ours = False
        """Whether the session is certainly ours: then it keeps settings and prepared statements."""
        self._answering = False
        """Whether tasks go on with their answers: what they ask for is sent when all have."""
        self._watch: asyncio.TimerHandle | None = None
        self._drained: asyncio.Future[None] | None = None
        self._closed = False

    async def open(self) -> None:
        """Connect for the first time; raises what psycopg raises, or `Failed`."""
        self._first = self._loop.create_future()
        await self._link.open()
        try:
            await self._first
        finally:
            self._first = None

    def call(
        self,
        function: str,
        name: str,
        arguments: Sequence[Value],
        decode: Callable[[str, bool], Any],
        *,
        must_run: bool = True,
        expires: bool = False,
        leaves_tombstone: bool = False,
    ) -> asyncio.Future[Any]:
        """Call a function about ``name``; the future is of the decoded answer.

        ``decode`` also gets whether an earlier copy may have been carried out. A ``must_run``
        command is carried out even if its future is done. With ``expires``, or
        ``leaves_tombstone``, each copy has one more argument: `RetryWindow.not_after`, or
        `RetryWindow.tombstone`.
        """
        future = Prompt(loop=self._loop)
        if self._closed:
            error = StoreError("the client was closed")
            error.refused = True
            future.set_exception(error)
            return future
        stamp = (
            self.copies.not_after
            if expires
            else self.copies.tombstone
            if leaves_tombstone
            else None
        )
        now = self._loop.time()
        command = _Command(
            function, name, arguments, decode, future, now, must_run=must_run, stamp=stamp
        )
        command.alone = function in _ALONE
        self._waiting.append(command)
        self._go_on_soon()
        self._watch_soon()
        return future

    def _watch_soon(self) -> None:
        if self._watch is None:
            self._watch = self._loop.call_later(_LOOK, self._look)

    # Sending

    def _go_on_soon(self) -> None:
        """Go on in the next iteration, with all commands of this one."""
        if self._serving and not (self._batch or self._scheduled or self._answering):
            self._scheduled = True
            self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        self._scheduled = False
        wire = self._wire
        if wire is None or not self._serving or self._batch:
            return
        batch = self._next_batch(wire)
        if not batch:
            self._see_whether_drained()
            return
        self._batch, self._batch_sent = batch, self._loop.time()
        calls = [(command.function, self._arguments(command)) for command in batch]
        wire.send(calls, self._answered)
        if self._flushes:
            tells = {each.name: each.arguments[0] for each in batch if each.function in TELLS}
            if tells or (self._notices.failed and any(each.function == "beat" for each in batch)):
                self._notices.flush(wire, tells)

    @property
    def _flushes(self) -> bool:
        """Whether others are notified in a transaction of its own, behind the one that grants.

        While a transaction that notifies is being written to the disk, no other one can notify. If
        commits do not wait for the disk, others are notified in the same transaction. So they are
        where the session is not ours, because it would have to keep the pushes.
        """
        return self._ours and self._settings.durable

    def _next_batch(self, wire: Wire) -> list[_Command]:
        """The commands to send together, sorted by name: all clients do so, against deadlocks."""
        batch: list[_Command] = []
        room = _AT_ONCE - wire.size
        while self._waiting and len(batch) < _TOGETHER:
            command = self._waiting[0]
            if not command.wanted:
                self._waiting.popleft()
            elif batch and (command.alone or command.size > room):
                break
            else:
                batch.append(self._waiting.popleft())
                room -= command.size
                if command.alone:
                    break
        return sorted(batch, key=lambda command: command.name)

    def _arguments(self, command: _Command) -> Sequence[Value]:
        command.times += 1
        command.sent = self._batch_sent
        more = [] if command.stamp is None else [command.stamp(command.sent)]
        if command.function in TELLS:
            more.append(number(self._flushes))
        return [*command.arguments, *more] if more else command.arguments

    def _notify_again(self, name: str, key: Value) -> asyncio.Future[Any]:
        return self.call("notify_again", name, (key,), _text)

    # The answers

    def _answered(self, answers: list[Answer]) -> None:
        batch, self._batch = self._batch, []
        if isinstance(failure := answers[0], Failed):
            for command in batch:
                command.times -= 1  # nothing was done
            if len(batch) > 1:
                for command in batch:
                    command.alone = True
                self._waiting.extendleft(reversed(batch))
            else:
                self._refused(batch[0], failure)
        else:
            self._link.proved()
            answered = zip(batch, map(str, answers), strict=True)
            in_time = [each for each in answered if not self._is_late(*each)]
            if self._waiting:
                self._go_on()  # the server works on that while our tasks go on
            self._answering = True
            try:
                for command, answer in in_time:
                    self._resolve(command, answer)
            finally:
                self._answering = False
        if self._waiting:
            self._go_on()
        else:
            self._see_whether_drained()

    def _is_late(self, command: _Command, answer: str) -> bool:
        """Whether a command came too late; if so it is sent again."""
        if late := codec.late(answer):
            command.times -= 1
            self.copies.read_clock(command.sent, late.now)
            self._once_more(command)
        return late is not None

    def _resolve(self, command: _Command, answer: str) -> None:
        text, *pushes = answer.split("\n")
        if pushes:
            self._on_pushes(command.name, pushes)
        if text == codec.CHECKED:
            self._follow(command)
            text = codec.DONE
        if command.future.done():
            return
        try:
            result = command.decode(text, command.times > 1)
        except (LookupError, TypeError, ValueError):
            self._fail(command, Failed(f"not an answer of aiolock's: {text!r}"))
        else:
            command.future.resolve(result)

    def _follow(self, command: _Command) -> None:
        """Call it again, less and less often, until the transaction that defers it has ended."""
        self._deferred[command] = self._loop.call_later(command.pause, self._call_deferred, command)
        command.pause = min(_LONGEST_DEFERRED, 2 * command.pause)

    def _call_deferred(self, command: _Command) -> None:
        del self._deferred[command]
        command.born = self._loop.time()
        self._waiting.append(command)
        self._go_on_soon()
        self._watch_soon()

    def _once_more(self, command: _Command) -> None:
        command.again += 1
        if command.again > _AGAIN:
            self._fail(command, Failed("the server's clock runs away from ours"))
        elif command.wanted:
            self._waiting.appendleft(command)

    def _refused(self, command: _Command, failure: Failed) -> None:
        if is_one_of(failure, ELSEWHERE):
            self._waiting.appendleft(command)
            self._link.drop(failure)
        elif is_one_of(failure, BUSY) and self._loop.time() - command.born < COMMAND_TIMEOUT - 1:
            self._resting.add(command)
            self._loop.call_later(_SOON, self._rested, command)
        else:
            self._fail(command, failure, refused=command.times == 0)

    def _rested(self, command: _Command) -> None:
        if command in self._resting:
            self._resting.discard(command)
            self._waiting.append(command)
            self._go_on_soon()

    def _fail(self, command: _Command, error: Exception, *, refused: bool = False) -> None:
        if not command.future.done():
            command.future.set_exception(store_error(error, self._settings.place, refused=refused))

    # The connection

    async def _greet(self, connection: Connection) -> None:
        """Check that this server can be used."""
        self._settings.place.connected(connection.info)
        connection.prepare_threshold = None
        certain = await _server.is_ours(connection)
        self._ours = certain and not self._settings.pooled
        if not certain and not self._settings.pooled and self._first is not None:
            # Commands leave nothing in any session. But the listener would be refused.
            await _server.check_kept_beside(connection, self._settings.commands)
        if self._ours:
            await connection.execute(self._settings.session().encode())
        await _server.check_writes(connection)
        if self._settings.create:
            await _make(connection)
        # Where the session is not ours, no search_path is: so PostgreSQL's own are called by their
        # schema.
        cursor = await connection.execute(
            "SELECT aiolock.protocol(), pg_catalog.current_setting('transaction_isolation')"
        )
        row = await cursor.fetchone()
        assert row is not None
        protocol, isolation = row
        if protocol < PROTOCOL or not works_beside(PROTOCOL, protocol):
            raise Failed(
                "its schema is of another version of aiolock: run `aiolock init-db URL` of the"
                " newer one, and upgrade its clients one protocol after the other"
                f" (protocol {protocol} is spoken there; {spoken(PROTOCOL)})"
            )
        self.protocol = protocol
        if isolation != "read committed":
            raise Failed(f"transactions are {isolation} there", "AL001")
        await _see_that_all_may_be_called(connection)

    def _up(self, connection: Connection) -> None:
        local = None if self._ours else self._settings.transaction()
        self._wire = wire = Wire(connection, self._link.drop, local=local)
        sent = self._loop.time()
        wire.send([("clock", ())], lambda answers: self._probed(sent, answers[0]))
        self._loop.call_later(REPLY_TIMEOUT, self._check_probe, wire)

    def _check_probe(self, wire: Wire) -> None:
        if self._wire is wire and not self._serving:
            self._link.drop(Failed(f"no answer for {REPLY_TIMEOUT:.0f} s"))

    def _probed(self, sent: float, answer: Answer) -> None:
        if isinstance(answer, Failed):
            self._link.drop(answer)
            return
        self.copies.read_clock(sent, int(answer))
        self.copies.connected = self._serving = True
        if self._first is None:
            self._notices.up()
            self._back()
        elif not self._first.done():  # the opening may have been cancelled in this iteration
            self._first.set_result(None)
        self._go_on()

    def _down(self, reason: Exception) -> None:
        """Keep the commands without an answer, before those that were not sent."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._serving:
            self._serving = False
            self.copies.lost()
        self._notices.down()
        batch, self._batch = self._batch, []
        for command in sorted(batch, key=lambda command: command.number, reverse=True):
            if command.wanted:
                self._waiting.appendleft(command)
        if self._first is not None and not self._first.done():
            self._first.set_exception(reason)
        self._lost(reason)

    def _look(self) -> None:
        """While commands are under way, check for a dead connection and for those out of time."""
        self._watch = None
        now = self._loop.time()
        waited = now - self._batch_sent if self._batch else self._notices.unanswered(now)
        if waited >= REPLY_TIMEOUT:
            self._link.drop(Failed(f"no answer for {REPLY_TIMEOUT:.0f} s"))
        for command in (*self._batch, *self._resting, *self._waiting):
            if now - command.born >= COMMAND_TIMEOUT:
                why = self._link.error if not self._serving else Failed("no answer in time")
                self._fail(command, why, refused=command.times == 0)
                if command not in self._batch:
                    self._resting.discard(command)
                    command.must_run = False  # so that it is dropped
        self._waiting = deque(c for c in self._waiting if c.wanted)
        self._see_whether_drained()
        if self._under_way:
            self._watch = self._loop.call_later(_LOOK, self._look)

    def _see_whether_drained(self) -> None:
        if self._drained is not None and not self._under_way and not self._drained.done():
            self._drained.set_result(None)

    @property
    def _under_way(self) -> bool:
        return bool(self._batch or self._waiting or self._resting or self._notices.pending)

    async def aclose(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for commands under way, then disconnect. Idempotent."""
        if self._under_way and self._drained is None:
            # For the answers, not the futures: those may be cancelled while a release goes on.
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=timeout)
        self._closed = True
        self._notices.close()
        closed = Failed("the client was closed")
        for command in (*self._batch, *self._resting, *self._waiting):
            self._fail(command, closed, refused=command.times == 0)
        self._batch = []
        self._resting.clear()
        self._waiting.clear()
        for timer in self._deferred.values():
            timer.cancel()
        self._deferred.clear()
        if self._watch is not None:
            self._watch.cancel()
        await self._link.aclose()


def _text(text: str, _: bool) -> str:  # noqa: FBT001  # a callback
    return text


async def _make(connection: Connection) -> None:
    """Make the schema, if this role is to make it."""
    async with connection.transaction():
        await connection.execute(f"SET LOCAL {SEARCH_PATH}".encode())
        await connection.execute("SET LOCAL client_min_messages = warning")
        if not await _is_made(connection):
            try:
                await connection.execute(statements().encode())
            except psycopg.Error as error:
                raise not_made(error) from error


async def _is_made(connection: Connection) -> bool:
    """Whether there is nothing to make: another role or a later version has made the schema."""
    cursor = await connection.execute(
        "SELECT pg_get_userbyid(s.nspowner) <> current_user FROM pg_namespace s"
        " JOIN pg_proc p ON p.pronamespace = s.oid"
        " WHERE s.nspname = 'aiolock' AND p.proname = 'protocol'"
    )
    row = await cursor.fetchone()
    if row is None:
        return False
    if row[0]:
        return True
    cursor = await connection.execute("SELECT aiolock.protocol()")
    return bool((await cursor.fetchone() or (0,))[0] > PROTOCOL)


async def _see_that_all_may_be_called(connection: Connection) -> None:
    """Check all rights at once: a role may be allowed to acquire, and not to release."""
    cursor = await connection.execute(
        "SELECT name, pg_catalog.has_function_privilege(p.oid, 'EXECUTE')"
        " FROM pg_catalog.unnest(%s::pg_catalog.text[]) name LEFT JOIN pg_catalog.pg_proc p"
        " ON p.proname OPERATOR(pg_catalog.=) name"
        " AND p.pronamespace OPERATOR(pg_catalog.=) 'aiolock'::pg_catalog.regnamespace"
        " ORDER BY name",
        ([*FUNCTIONS, "hello"],),
    )
    found = await cursor.fetchall()
    if missing := [name for name, may in found if may is None]:
        raise Failed(f"there is no function {', '.join(missing)} in the schema aiolock", "42883")
    if denied := [name for name, may in found if not may]:
        raise Failed(f"permission denied for function {', '.join(denied)}", "42501")
