"""The commands: those of all tasks go through one connection, as many as have gathered at a time.

A command that was under way when the connection broke is sent again on the next one, in order. Each
is idempotent, so it does not matter whether it was carried out. A copy of it may still be carried
out after that: see `aiolock.stores._retry_window`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Final

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.stores._retry_window import RetryWindow
from aiolock.stores.postgres import _codec as codec
from aiolock.stores.postgres._calls import Call, text
from aiolock.stores.postgres._codec import Value, number
from aiolock.stores.postgres._command import Command
from aiolock.stores.postgres._errors import (
    BUSY,
    ELSEWHERE,
    REPLACED,
    Failed,
    is_one_of,
    store_error,
)
from aiolock.stores.postgres._greeting import Greeting
from aiolock.stores.postgres._link import Connection, Link
from aiolock.stores.postgres._notices import TELLS, Notices
from aiolock.stores.postgres._outbox import Outbox
from aiolock.stores.postgres._settings import Settings
from aiolock.stores.postgres._wire import Answer, Wire

REPLY_TIMEOUT: Final = 4.0
"""Seconds without the answer that is due, after which the connection is taken for dead."""
COMMAND_TIMEOUT: Final = 9.0
"""Seconds, over all reconnections, after which a command fails with its outcome unknown."""
_AT_ONCE: Final = 8000
"""Bytes of a transaction with several commands, at most. libpq sends its buffer whenever that holds
8,192 bytes: a process that is stopped just then would have begun a transaction without its end, and
the server would keep the names of that transaction locked until the process goes on."""
_LOOK: Final = 0.5
_AGAIN: Final = 5
"""The most times that a late command is sent again, though once should be enough."""


class Pipeline:
    """One multiplexed connection for the commands of all tasks."""

    def __init__(
        self,
        settings: Settings,
        *,
        on_pushes: Callable[[str, Sequence[str]], None],
        on_lost: Callable[[Exception], None],
        on_failing: Callable[[Exception], None],
        on_restored: Callable[[], None],
    ) -> None:
        """``on_pushes`` gets the name of each command whose answer has pushes, and those pushes;
        ``on_lost`` gets the reason why there is no connection, ``on_failing`` why there is still
        none.

        ``on_restored`` is called when there is a connection again: answers, and the pushes with
        them, may have been lost.
        """
        self._settings = settings
        self._on_pushes = on_pushes
        self._on_lost = on_lost
        self._on_restored = on_restored
        self._loop = loop = asyncio.get_running_loop()
        self._greeting = Greeting(settings)
        self._link = Link(
            settings.commands,
            greet=self._greet,
            on_up=self._on_up,
            on_down=self._on_down,
            on_failing=on_failing,
        )
        self.copies = RetryWindow(loop.time, codec.number)
        self._wire: Wire | None = None
        self._serving = False
        """Whether the connection has been checked."""
        self._first: asyncio.Future[None] | None = None
        """The future of the opening."""
        self._outbox = Outbox(self._send_soon)
        self._batch: list[Command] = []
        """The commands that were sent last, without an answer yet."""
        self._batch_sent = 0.0
        self._notices = Notices(
            drop=self._link.drop, notify_again=self._notify_again, done=self._see_whether_drained
        )
        self._scheduled = False
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

    @property
    def protocol(self) -> int:
        """The protocol of the schema."""
        return self._greeting.protocol

    def call(self, call: Call) -> asyncio.Future[Any]:
        """Call a function; the future is of the decoded answer."""
        future = Prompt(loop=self._loop)
        if self._closed:
            error = StoreError("the client was closed")
            error.refused = True
            future.set_exception(error)
            return future
        stamp: Callable[[float], bytes] | None = None
        if call.expires or call.leaves_tombstone:
            stamp = self.copies.not_after if call.expires else self.copies.tombstone
        command = Command(call, future, self._loop.time(), stamp)
        self._outbox.waiting.append(command)
        self._send_soon()
        return future

    # Sending

    def _send_soon(self) -> None:
        """Send in the next iteration, with all commands of this one."""
        if self._serving and not (self._batch or self._scheduled or self._answering):
            self._scheduled = True
            self._loop.call_soon(self._go_on)
        if self._watch is None:
            self._watch = self._loop.call_later(_LOOK, self._look)

    def _go_on(self) -> None:
        self._scheduled = False
        wire = self._wire
        if wire is None or not self._serving or self._batch:
            return
        batch = self._outbox.next_batch(_AT_ONCE - wire.size)
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
        return self._greeting.ours and self._settings.durable

    def _arguments(self, command: Command) -> Sequence[Value]:
        command.times += 1
        command.sent = self._batch_sent
        more = [] if command.stamp is None else [command.stamp(command.sent)]
        if command.function in TELLS:
            more.append(number(self._flushes))
        return [*command.arguments, *more] if more else command.arguments

    def _notify_again(self, name: str, key: Value) -> asyncio.Future[Any]:
        if self._greeting.goes_on:
            return self.call(Call("go_on", name, (key, b"", b"notify", b"0"), text))
        return self.call(Call("notify_again", name, (key,), text))

    # The answers

    def _answered(self, answers: list[Answer]) -> None:
        batch, self._batch = self._batch, []
        if isinstance(failure := answers[0], Failed):
            for command in batch:
                command.times -= 1  # nothing was done
            if len(batch) > 1:
                for command in batch:
                    command.alone = True
                self._outbox.waiting.extendleft(reversed(batch))
            else:
                self._refused(batch[0], failure)
        else:
            self._link.proved()
            answered = zip(batch, map(str, answers), strict=True)
            in_time = [each for each in answered if not self._is_late(*each)]
            if self._outbox.waiting:
                self._go_on()  # the server works on that while our tasks go on
            self._answering = True
            try:
                for command, answer in in_time:
                    self._resolve(command, answer)
            finally:
                self._answering = False
        if self._outbox.waiting:
            self._go_on()
        else:
            self._see_whether_drained()

    def _is_late(self, command: Command, answer: str) -> bool:
        """Whether a command came too late; if so it is sent again."""
        if late := codec.late(answer):
            command.times -= 1
            self.copies.read_clock(command.sent, late.now)
            self._once_more(command)
        return late is not None

    def _resolve(self, command: Command, answer: str) -> None:
        said, *pushes = answer.split("\n")
        if pushes:
            self._on_pushes(command.name, pushes)
        if said == codec.CHECKED:
            self._outbox.defer(command)
            said = codec.DONE
        if command.future.done():
            return
        try:
            result = command.decode(said, command.times > 1)
        except (LookupError, TypeError, ValueError):
            self._fail(command, Failed(f"not an answer of aiolock's: {said!r}"))
        else:
            command.future.resolve(result)

    def _once_more(self, command: Command) -> None:
        command.again += 1
        if command.again > _AGAIN:
            self._fail(command, Failed("the server's clock runs away from ours"))
        elif command.wanted:
            self._outbox.waiting.appendleft(command)

    def _refused(self, command: Command, failure: Failed) -> None:
        if is_one_of(failure, ELSEWHERE):
            self._outbox.waiting.appendleft(command)
            self._link.drop(failure)
        elif is_one_of(failure, BUSY) and self._loop.time() - command.born < COMMAND_TIMEOUT - 1:
            self._outbox.rest(command)
        elif is_one_of(failure, REPLACED) and command.again < _AGAIN:
            command.again += 1
            self._outbox.rest(command)
        else:
            self._fail(command, failure, refused=command.times == 0)

    def _fail(self, command: Command, error: Exception, *, refused: bool = False) -> None:
        if not command.future.done():
            command.future.set_exception(store_error(error, self._settings.place, refused=refused))

    # The connection

    async def _greet(self, connection: Connection) -> None:
        await self._greeting.greet(connection, opening=self._first is not None)

    def _on_up(self, connection: Connection) -> None:
        local = None if self._greeting.ours else self._settings.transaction()
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
            self._on_restored()
        elif not self._first.done():  # the opening may have been cancelled in this iteration
            self._first.set_result(None)
        self._go_on()

    def _on_down(self, reason: Exception) -> None:
        """Keep the commands without an answer, before those that were not sent."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None
        if self._serving:
            self._serving = False
            self.copies.lost()
        self._notices.down()
        batch, self._batch = self._batch, []
        self._outbox.put_back(batch)
        if self._first is not None and not self._first.done():
            self._first.set_exception(reason)
        self._on_lost(reason)

    def _look(self) -> None:
        """While commands are under way, check for a dead connection and for those out of time."""
        self._watch = None
        now = self._loop.time()
        waited = now - self._batch_sent if self._batch else self._notices.unanswered(now)
        if waited >= REPLY_TIMEOUT:
            self._link.drop(Failed(f"no answer for {REPLY_TIMEOUT:.0f} s"))
        unsent = self._outbox.pending
        for command in (*self._batch, *unsent):
            if now - command.born >= COMMAND_TIMEOUT:
                why = self._link.error if not self._serving else Failed("no answer in time")
                self._fail(command, why, refused=command.times == 0)
        self._outbox.drop(each for each in unsent if now - each.born >= COMMAND_TIMEOUT)
        self._see_whether_drained()
        if self._under_way:
            self._watch = self._loop.call_later(_LOOK, self._look)

    def _see_whether_drained(self) -> None:
        if self._drained is not None and not self._under_way and not self._drained.done():
            self._drained.set_result(None)

    @property
    def _under_way(self) -> bool:
        return bool(self._batch or self._outbox.pending or self._notices.pending)

    async def aclose(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for commands under way, then disconnect. Idempotent."""
        if self._under_way and self._drained is None:
            # For the answers, not the futures: those may be cancelled while a release goes on.
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=timeout)
        self._closed = True
        self._notices.close()
        closed = Failed("the client was closed")
        for command in (*self._batch, *self._outbox.pending):
            self._fail(command, closed, refused=command.times == 0)
        self._batch = []
        self._outbox.close()
        if self._watch is not None:
            self._watch.cancel()
        await self._link.aclose()
