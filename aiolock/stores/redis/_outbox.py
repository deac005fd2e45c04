"""The outbox of a pipeline: commands are written in order, and written again if need be.

A command is in one of these places until it is answered: ``sent`` (written on this connection, in
the order of the replies to come), the queue (for the next connection), or ``held`` (kept back for
a moment). The last of those in ``sent`` may be gathered: written at the end of this loop iteration,
several as one call.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.stores._retry_window import RetryWindow
from aiolock.stores.redis._command import NOBODY, Command
from aiolock.stores.redis._errors import Place, store_error
from aiolock.stores.redis._queue import CommandQueue, Held
from aiolock.stores.redis._scripts import ACQUIRE_SEVERAL, PRESENCE, Script, bulk
from aiolock.stores.redis._wire import Wire

COMMAND_TIMEOUT: Final = 9.0
"""Seconds, over all reconnections, after which a command fails with its outcome unknown."""
_MOST: Final = 32
"""Questions in one call, at most: it blocks all other clients of the server."""

not_after: Final = RetryWindow.not_after
tombstone: Final = RetryWindow.tombstone
"""The stamps of commands: see `Command.stamp`."""


def _is_plain(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this loop's clock is asyncio's own."""
    return getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time


class Outbox:
    """The commands that have no answer yet."""

    on_shares: Callable[[bytes], None]
    """Called with the key of a name's holders if shares are used there: see `_sharing`."""
    watch: Callable[[], None]
    """Called when there is a command, and deadlines are not watched; set by `Deadlines`."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self.loop = loop = asyncio.get_running_loop()
        # Asyncio's own clock is that one behind a method in Python, called for each command.
        self.time = time.monotonic if _is_plain(loop) else loop.time
        self.copies = RetryWindow(self.time, bulk)
        self.wire: Wire | None = None
        """The connection, while it is known to serve us."""
        self.error: Exception = ConnectionError("not connected")
        """The last reason why there was no connection."""
        self.sent: deque[Command] = deque()
        self.queue = CommandQueue(self.check_drained)
        self._direct: Wire | None = None
        """The connection, while commands are written as they come: see `_look`."""
        self.known: set[Script] = set()
        """The scripts that were sent on this connection."""
        # The last of those sent, in order: newcomers that wait for others of this loop iteration.
        self._gathered: list[Command] = []
        self._gathered_head = b""
        self._room = _MOST
        """How many more may be gathered."""
        self.last_head: bytes | None = None
        """The head of the last command, if such a newcomer sent it and no reply has come since."""
        self.replied = False
        """Set by each reply."""
        self.drained: asyncio.Future[None] | None = None
        """Set, and then done, when the outbox is to be closed and all is answered."""
        self._held: Held | None = None
        self._watched = self.closed = False

    def _look(self) -> None:
        """See whether commands are written as they come: in one attribute, for each reads it."""
        free = self._held is None and self._watched and not self.closed
        self._direct = self.wire if free else None

    @property
    def held(self) -> Held | None:
        """Set as long as any command is kept back."""
        return self._held

    @held.setter
    def held(self, held: Held | None) -> None:
        self._held = held
        self._look()

    @property
    def watched(self) -> bool:
        """Whether deadlines are watched."""
        return self._watched

    @watched.setter
    def watched(self, watched: bool) -> None:
        self._watched = watched
        self._look()

    @property
    def pending(self) -> list[Command]:
        """All commands without an answer."""
        held = self.held.commands if self.held is not None else ()
        return [*self.sent, *self.queue.commands, *held]

    def call(
        self,
        script: Script,
        count: int,
        arguments: bytes,
        *,
        must_run: bool = True,
        in_full: bool = False,
        expires: bool = False,
        leaves_tombstone: bool = False,
        waiter: str | bytes | None = None,
        joins: bytes | None = None,
        reply: Any = None,
    ) -> asyncio.Future[Any]:
        """Send a call with ``count`` encoded ``arguments``; the future is of the decoded reply.

        A ``must_run`` command is carried out even if its future is done; another one is then not
        sent a second time. ``in_full`` sends the script itself, even if the server knows it. With
        ``expires`` one more argument, not counted, is written with each copy:
        `RetryWindow.not_after`; with ``leaves_tombstone``: `RetryWindow.tombstone`. ``waiter`` is
        set if this is that waiter's first question, see `CommandQueue.forget`. ``joins`` is the
        head of its arguments, if it can be sent together with other questions of the same head.
        ``reply``, a `Receiver`, stands for the future if no task is to wait for it.
        """
        future = reply or Prompt(loop=self.loop)
        command = Command.of(script, count, arguments, future, self.time(), must_run=must_run)
        if in_full:
            self.known.discard(script)
        if expires or leaves_tombstone:
            command.stamp = not_after if expires else tombstone
        command.waiter, command.joins = waiter, joins
        self.post(command)
        return future

    def post(self, command: Command, written: bytes | None = None) -> None:
        """Send a command that was just made; ``written``: as `_encoded` would write it now.

        Flat, as each comes here.
        """
        wire = self._direct
        if wire is None:
            wire = self._wire_of(command)
            if wire is None:
                return
        joins = command.joins
        if joins is not None and joins == self.last_head:
            # Hold it back for others of this iteration: the one before asks for the same lock.
            self.sent.append(command)
            if not self._gathered:
                self._gathered_head = joins
                self.loop.call_soon(self._write_gathered)
            self._gathered.append(command)
            self._room -= 1
            if not self._room:
                self._write_gathered()
            return
        if self._gathered:
            self._write_gathered(at_once=False)
        self.last_head = joins
        command.times = 1
        if written is None:
            written = self._encoded(command)
        sent = self.sent
        # With few commands under way, write at once: a lone hand-off is as fast as can be.
        # Otherwise the commands of one iteration go out together: 200 tasks do not make 200
        # packets.
        if wire.corked:
            sent.append(command)
            wire.write_later(written)
        elif not sent or sent[0] is sent[-1]:  # one, or none: as `FEW` says, without a call
            sent.append(command)
            wire.write_now(written)
        else:
            sent.append(command)
            wire.write(written, at_once=False)

    def _wire_of(self, command: Command) -> Wire | None:
        """Where a command can be written all the same; if nowhere, it is kept, or refused."""
        if self.closed:
            self.loop.call_soon(self._refuse, command)
            return None
        if self._held is not None and self._held.keep(command):
            return None
        if not self._watched:
            self.watch()
        if self.wire is None:
            self.queue.add(command, command.waiter)
        return self.wire

    def _refuse(self, command: Command) -> None:
        if not command.receiver.done():
            error = StoreError("the client was closed")
            error.refused = True
            command.receiver.set_exception(error)

    # Writing

    def write(self, wire: Wire, command: Command, *, at_once: bool = False) -> None:
        if self._gathered:
            self._write_gathered()
        wire.write(self._encoded(command), at_once=at_once)

    def _encoded(self, command: Command) -> bytes:
        """The command as it is written on this connection."""
        script, count, arguments = command.script, command.count, command.arguments
        if command.stamp is not None:
            count, arguments = count + 1, arguments + command.stamp(self.copies, command.sent)
        head = script.heads[count] if script in self.known else self._in_full(script, count)
        return head + arguments

    def send(self, wire: Wire, command: Command, now: float) -> None:
        """Write it once more, or after a break."""
        command.sent = now
        if self._gathered:
            self._write_gathered()
        if command.preface:
            preface = Command.of(PRESENCE, 0, b"", NOBODY, now, must_run=False)
            preface.preface_of = command
            self.sent.append(preface)
            wire.write(command.preface, at_once=False)
        self.sent.append(command)
        self.write(wire, command)

    def again(self, commands: Sequence[Command]) -> None:
        """Send commands again that were taken from here or from another outbox, in order."""
        now = self.time()
        for command in commands:
            if not command.wanted:
                continue
            if self.closed or now - command.born >= COMMAND_TIMEOUT:
                self.give_up(command)
            elif self.held is not None and self.held.keep(command):
                pass
            elif self.wire is None:
                self.queue.add(command, None if command.times else command.waiter)
            else:
                command.times += 1
                self.send(self.wire, command, now)
        if not self.watched and not self.closed:
            self.watch()

    def take_written(self, concerned: Callable[[Command], bool]) -> list[Command]:
        """Take those of the commands that are written but not answered."""
        if self._gathered:
            self._write_gathered()
        taken = list[Command]()
        for number, command in enumerate(self.sent):
            if command.wanted and concerned(command):
                # Its reply on this connection is still due, and must be matched with something.
                self.sent[number] = command.stand_in()
                command.together = 1
                taken.append(command)
        return taken

    def _write_gathered(self, *, at_once: bool = True) -> None:
        gathered, self._gathered, self._room = self._gathered, [], _MOST
        wire = self.wire
        if not gathered or wire is None:
            return
        first, head = gathered[0], self._gathered_head
        if len(gathered) == 1:
            first.times = 1
            self.write(wire, first, at_once=at_once)
            return
        assert first.stamp is not None
        first.together, first.takes = len(gathered), None
        for command in gathered:
            command.times = 1
        waiters = b"".join([cast("bytes", command.waiter) for command in gathered])
        arguments = head + waiters + first.stamp(self.copies, first.sent)
        script, count = ACQUIRE_SEVERAL, 9 + len(gathered)
        call = script.heads[count] if script in self.known else self._in_full(script, count)
        wire.write(call + arguments, at_once=at_once)

    def _in_full(self, script: Script, count: int) -> bytes:
        """The first call of a script on this connection, by which the server learns it.

        A NOSCRIPT error would cost the command its place among those sent after it. Only the first
        call is in full: for many questions at once that would be megabytes.
        """
        self.known.add(script)
        return script.call_in_full(count)

    # The connection comes and goes

    def connected(self, wire: Wire) -> None:
        """Write to this connection from now on; what has waited for it is sent by `resend`."""
        self.wire = wire
        self._look()
        self.copies.connected = True

    def resend(self) -> None:
        """Send the commands that have waited for a connection, in order."""
        wire, now = self.wire, self.time()
        assert wire is not None
        for command in self.queue.take():
            command.times += 1
            self.send(wire, command, now)

    def disconnected(self) -> None:
        """Keep the commands without an answer for the next connection."""
        if self.wire is not None:
            self.wire = None
            self._look()
            self.copies.lost()
        self.queue.put_back([each for each in self.sent if each.wanted], self._gathered)
        self.sent.clear()
        self._gathered.clear()
        self._room = _MOST

    # Giving up

    def fail(self, command: Command, error: Exception, *, refused: bool = False) -> None:
        """``refused``: the server has certainly not carried it out."""
        receiver = command.receiver
        if not receiver.done():
            command.receiver = NOBODY  # a reply may still come
            receiver.set_exception(store_error(error, self._place, refused=refused))

    def give_up(self, command: Command) -> None:
        """Fail it: it has waited for too long to be sent."""
        self.fail(command, command.refusal or self.error, refused=command.times == 0)

    def check_drained(self) -> None:
        """Call this when a command has left."""
        if self.drained is None or self.sent or self.queue.commands or self.held is not None:
            return
        if not self.drained.done():
            self.drained.set_result(None)

    async def drain(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds until all commands are answered."""
        if self.pending and self.drained is None:
            # For the replies, not the futures: those may be cancelled while a release goes on.
            self.drained = self.loop.create_future()
            await asyncio.wait([self.drained], timeout=timeout)

    def close(self) -> None:
        """Fail all commands without an answer; take no more."""
        self.closed = True
        for command in self.pending:
            error = ConnectionError("the client was closed")
            self.fail(command, error, refused=command.times == 0)
        self.sent.clear()
        self.queue.commands.clear()
        self.queue.first.clear()
        self.held = None
