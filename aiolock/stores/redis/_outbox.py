"""The outbox of a pipe: commands are written in order, kept for the next connection, and given up
when their time is over.

A command is in one of these places until it is answered: ``_sent`` (written on this connection, in
the order of the replies to come), ``_gathered`` (written at the end of this loop iteration, several
as one call), ``_queued`` (for the next connection), or ``_held`` (a slot of a cluster that cannot
be used for a moment).
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from functools import partial
from typing import Any, Final

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.stores._retry_window import RetryWindow
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import Place, store_error
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._scripts import ACQUIRE_SEVERAL, PRESENCE, Script, bulk
from aiolock.stores.redis._wire import FEW, Wire

REPLY_TIMEOUT: Final = 4.0
"""Seconds without the reply that is due, after which the link is considered dead."""
COMMAND_TIMEOUT: Final = 9.0
"""Seconds, over all reconnections, after which a command fails with its outcome unknown."""
_MOST: Final = 32
"""Questions in one call, at most: it blocks all other clients of the server."""
LOOK: Final = 0.5
_NONE: Final = bulk(0)
_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"


def _is_plain(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this loop's clock is asyncio's own."""
    return getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time


class Outbox:
    """The commands that have no answer yet."""

    _link: Link
    _place: Place

    def __init__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        # Asyncio's own clock is that one behind a method in Python, called for each command.
        self._time = time.monotonic if _is_plain(loop) else loop.time
        self.copies = RetryWindow(self._time, bulk)
        self._wire: Wire | None = None
        """The connection, while it is known to serve us."""
        self._proved = False
        """Whether a command was answered on this connection."""
        self._heard, self._heard_at = False, 0.0
        self._probe: Command | None = None
        self._opened = False
        # Commands written to this connection, in order; commands for the next one.
        self._sent: deque[Command] = deque()
        self._queued: dict[Command, None] = {}
        # By slot: commands to be written again in a moment, and those asked for since.
        self._held: dict[int, deque[Command]] = {}
        # First questions that were never written, by waiter: if it gives up, there is nothing to
        # release.
        self._first: dict[str, list[Command]] = {}
        self._watch: asyncio.TimerHandle | None = None
        # The last of those sent, in order: newcomers that wait for others of this loop iteration.
        self._gathered: list[Command] = []
        self._gathered_head = b""
        self._last_head: bytes | None = None
        """The head of the last command, if such a newcomer sent it and no reply has come since."""
        self._scheduled = False
        """A task continues in the next iteration, so every later answer waits for that, too."""
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        self._known: set[Script] = set()
        self.quiet_since = self._time()
        self.patient = False
        """Whether to wait for a replica to become the master: while the client is open,
        not before."""

    @property
    def waits_for(self) -> float:
        """Seconds for which the oldest reply has been due; 0 if none is."""
        return max(0.0, self._time() - self._sent[0].sent) if self._sent else 0.0

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
        waiter: str | None = None,
        joins: bytes | None = None,
        reply: Any = None,
    ) -> asyncio.Future[Any]:
        """Send a call with ``count`` encoded ``arguments``; the future is of the decoded reply.

        A ``must_run`` command is carried out even if its future is done; another one is then not
        sent a second time. ``in_full`` sends the script itself, even if the server knows it. With
        ``expires`` one more argument, not counted, is written with each copy:
        `RetryWindow.not_after`; with ``leaves_tombstone``: `RetryWindow.tombstone`. ``waiter`` is
        set if this is that waiter's first question, see `forget`. ``joins`` is the head of its
        arguments, if it can be sent together with other questions of the same head. ``reply``, a
        `Called`, stands for the future if no task is to wait for it.
        """
        now = self._time()
        few = len(self._sent) < FEW
        future: asyncio.Future[Any]
        future = reply or (Prompt(loop=self._loop) if few else self._loop.create_future())
        if self._closed:
            error = StoreError("the client was closed")
            error.refused = True
            future.set_exception(error)
            return future
        command, copies = (
            Command(script, count, arguments, future, now, must_run=must_run),
            self.copies,
        )
        if expires or leaves_tombstone:
            command.stamp = RetryWindow.not_after if expires else RetryWindow.tombstone
        if self._held and (held := self._held.get(command.slot)) is not None:
            command.waiter = waiter
            held.append(command)
            return future
        wire = self._wire
        if wire is None:
            self._wait_for_connection(command, waiter)
        else:
            command.times = 1
            self._sent.append(command)
            before, self._last_head = self._last_head, joins
            if joins is not None and joins == before:
                command.waiter = waiter
                self._gather(command, joins)
            else:
                # With few commands under way, write at once: a lone hand-off is as fast as can be.
                # Otherwise the commands of one iteration go out together: 200 tasks do not make 200
                # packets.
                if self._gathered:
                    self._write_gathered()
                if expires:  # as `_write`; inlined here to save the call
                    count += 1
                    arguments += copies.stamp if now < copies.stamp_until else copies.not_after(now)
                elif leaves_tombstone:
                    count += 1
                    arguments += copies.tombstone(now) if copies.copies_may_arrive else _NONE
                known = script in self._known and not in_full
                head = script.call(count) if known else self._in_full(script, count)
                wire.write(head + arguments, at_once=few)
        if self._watch is None:
            self._watch = self._loop.call_later(LOOK, self._look)
        return future

    def _wait_for_connection(self, command: Command, waiter: str | None) -> None:
        command.waiter = waiter
        self._queue(command)
        if waiter:
            self._first.setdefault(waiter, []).append(command)

    def _gather(self, command: Command, head: bytes) -> None:
        """Hold it back for others of this iteration: the one before asks for the same lock, too."""
        command.times = 0
        if not self._gathered:
            self._gathered_head = head
            self._loop.call_soon(self._write_gathered)
        self._gathered.append(command)
        if len(self._gathered) == _MOST:
            self._write_gathered()

    def _write_gathered(self) -> None:
        gathered, self._gathered = self._gathered, []
        wire = self._wire
        if not gathered or wire is None:
            return
        first, head = gathered[0], self._gathered_head
        if len(gathered) == 1:
            first.times = 1
            self._write(wire, first, at_once=True)
            return
        assert first.stamp is not None
        first.together = len(gathered)
        for command in gathered:
            command.times = 1
        waiters = b"".join([bulk(command.waiter) for command in gathered])
        arguments = head + waiters + first.stamp(self.copies, first.sent)
        script, count = ACQUIRE_SEVERAL, 9 + len(gathered)
        call = script.call(count) if script in self._known else self._in_full(script, count)
        wire.write(call + arguments, at_once=True)

    def forget(self, waiter: str) -> bool:
        """Whether the first question of this waiter was never written; then it never will be."""
        commands = self._first.pop(waiter, None)
        if commands is None:
            return False
        for command in commands:
            self._queued.pop(command, None)
            command.future.cancel()
        self._see_whether_drained()
        return True

    def _write(self, wire: Wire, command: Command, *, at_once: bool = False) -> None:
        if self._gathered:
            self._write_gathered()
        script, count, arguments = command.script, command.count, command.arguments
        if command.stamp is not None:
            count, arguments = count + 1, arguments + command.stamp(self.copies, command.sent)
        head = script.call(count) if script in self._known else self._in_full(script, count)
        wire.write(head + arguments, at_once=at_once)

    def _send(self, wire: Wire, command: Command) -> None:
        """Write it once more, or after a break."""
        if self._gathered:
            self._write_gathered()
        if command.asking:
            asking = Command(PRESENCE, 0, b"", self._nobody(), command.sent, must_run=False)
            asking.opens_for = command
            self._sent.append(asking)
            wire.write(_ASKING, at_once=False)
        self._sent.append(command)
        self._write(wire, command)

    def _nobody(self) -> asyncio.Future[Any]:
        """A future for a reply that no task waits for."""
        nobody: asyncio.Future[Any] = self._loop.create_future()
        nobody.cancel()
        return nobody

    def _in_full(self, script: Script, count: int) -> bytes:
        """The first call of a script on this connection, by which the server learns it.

        A NOSCRIPT error would cost the command its place among those sent after it. Only the first
        call is in full: for many questions at once that would be megabytes.
        """
        self._known.add(script)
        return script.call_in_full(count)

    def _queue(self, command: Command) -> None:
        """Keep it for the next connection, for as long as it is wanted."""
        command.together = 1
        self._queued[command] = None
        if not command.must_run and isinstance(command.future, asyncio.Future):
            command.future.add_done_callback(partial(self._unwanted, command))

    def _unwanted(self, command: Command, _: asyncio.Future[Any]) -> None:
        self._queued.pop(command, None)
        self._see_whether_drained()

    def _see_whether_drained(self) -> None:
        if self._drained is None or self._sent or self._queued or self._held:
            return
        if not self._drained.done():
            self._drained.set_result(None)

    @property
    def _pending(self) -> list[Command]:
        """All commands without an answer."""
        return [
            *self._sent,
            *self._queued,
            *(each for held in self._held.values() for each in held),
        ]

    # Giving up

    def _give_up(self, command: Command) -> None:
        error = command.refusal or self._link.error
        self._fail(command, error, refused=command.times == 0)

    def _fail(self, command: Command, error: Exception, *, refused: bool = False) -> None:
        if not command.future.done():
            command.future.set_exception(store_error(error, self._place, refused=refused))

    def _look(self) -> None:
        """Check, while commands are under way, if the link is dead or a command's time is over."""
        self._watch = None
        now = self._time()
        # A copy of the list, since a caller that gets the error may send something else at once.
        for command in [each for each in self._sent if now - each.born >= COMMAND_TIMEOUT]:
            self._fail(command, TimeoutError(f"no answer for {COMMAND_TIMEOUT:.0f} s"))
        if self._heard:  # bytes have come since: the link is alive, if slow
            self._heard, self._heard_at = False, now
        if self._sent and now - max(self._sent[0].sent, self._heard_at) >= REPLY_TIMEOUT:
            self._link.drop(TimeoutError(f"no reply for {REPLY_TIMEOUT:.0f} s"))
        for held in self._held.values():
            for command in held:
                if now - command.born >= COMMAND_TIMEOUT:
                    self._give_up(command)
        self._drop_old(now)
        under_way = self._sent or self._queued or self._first or self._held
        if under_way and self._watch is None:  # a caller may have set it
            self._watch = self._loop.call_later(LOOK, self._look)

    def _drop_old(self, now: float) -> None:
        """Give up commands that have waited too long for a connection."""
        # Look at all of them: one from another node may be older than those before it.
        for command in [each for each in self._queued if now - each.born >= COMMAND_TIMEOUT]:
            self._queued.pop(command, None)
            self._give_up(command)
        while self._first:
            waiter, commands = next(iter(self._first.items()))
            # Kept somewhat longer, for a caller that gets the error only now.
            if now - commands[-1].born < COMMAND_TIMEOUT + 2 * LOOK:
                break
            del self._first[waiter]
        self._see_whether_drained()
