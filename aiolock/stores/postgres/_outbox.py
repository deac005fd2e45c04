"""The outbox of a pipeline: commands that are to be sent, in order, and those that come back to it.

A command comes back if its connection was lost, if it met a conflict with others, or if what it
asks for is deferred until a transaction ends.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

from aiolock.stores.postgres._command import Command

_TOGETHER: Final = 64
"""Commands in one transaction, at most: others that want the same names wait for its end."""
_SOON: Final = 0.05
"""Seconds after which a command that met a conflict with others is tried again."""
_LONGEST_DEFERRED: Final = 1.0
"""Seconds after which, at the latest, a command is called again that is deferred."""


class Outbox:
    """The commands that are not sent, or not any more."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        """``on_ready`` is called when a command has come back that can be sent."""
        self._on_ready = on_ready
        self._loop = asyncio.get_running_loop()
        self.waiting = deque[Command]()
        self._resting = set[Command]()
        """Commands that met a conflict with others, until they are tried again."""
        self._deferred: dict[Command, asyncio.TimerHandle] = {}
        """Commands that are answered, and called again until they are done."""

    @property
    def pending(self) -> list[Command]:
        """Those without an answer."""
        return [*self._resting, *self.waiting]

    def next_batch(self, room: int) -> list[Command]:
        """The commands to send together, sorted by name: all clients do so, against deadlocks.

        ``room``: bytes for them, unless it is only one.
        """
        batch: list[Command] = []
        while self.waiting and len(batch) < _TOGETHER:
            command = self.waiting[0]
            if not command.wanted:
                self.waiting.popleft()
            elif batch and (command.alone or command.size > room):
                break
            else:
                batch.append(self.waiting.popleft())
                room -= command.size
                if command.alone:
                    break
        return sorted(batch, key=lambda command: command.name)

    def put_back(self, batch: Iterable[Command]) -> None:
        """Send the commands of a lost connection again, before those that were not sent."""
        for command in sorted(batch, key=lambda command: command.number, reverse=True):
            if command.wanted:
                self.waiting.appendleft(command)

    def rest(self, command: Command) -> None:
        """Send it again in a moment."""
        self._resting.add(command)
        self._loop.call_later(_SOON, self._rested, command)

    def _rested(self, command: Command) -> None:
        if command in self._resting:
            self._resting.discard(command)
            self.waiting.append(command)
            self._on_ready()

    def defer(self, command: Command) -> None:
        """Call it again, less and less often, until the transaction that defers it has ended."""
        self._deferred[command] = self._loop.call_later(command.pause, self._call_deferred, command)
        command.pause = min(_LONGEST_DEFERRED, 2 * command.pause)

    def _call_deferred(self, command: Command) -> None:
        del self._deferred[command]
        command.born = self._loop.time()
        self.waiting.append(command)
        self._on_ready()

    def drop(self, overdue: Iterable[Command]) -> None:
        """Do not send these, nor any that are not wanted any more."""
        for command in overdue:
            self._resting.discard(command)
            command.must_run = False
        self.waiting = deque(command for command in self.waiting if command.wanted)

    def close(self) -> None:
        """Send nothing more."""
        self._resting.clear()
        self.waiting.clear()
        for timer in self._deferred.values():
            timer.cancel()
        self._deferred.clear()
