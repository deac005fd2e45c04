"""The commands of a pipeline that wait for the next connection, in order."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Protocol

from aiolock.errors import StoreError
from aiolock.stores.redis._command import Command


class Held(Protocol):
    """Commands that are kept back for a moment, and that others must not overtake."""

    @property
    def commands(self) -> list[Command]: ...

    def keep(self, command: Command) -> bool:
        """Keep this one back as well if it must come after them; whether it is."""
        ...


class CommandQueue:
    """Commands for the next connection."""

    def __init__(self, on_left: Callable[[], None]) -> None:
        """``on_left`` is called when commands have left that nobody wants any more."""
        self._on_left = on_left
        self.commands: dict[Command, None] = {}
        self.first: dict[str | bytes, list[Command]] = {}
        """First questions that were never written, by waiter: if it gives up, there is nothing to
        release.
        """

    def add(self, command: Command, waiter: str | bytes | None) -> None:
        """Add one; ``waiter`` if this is that waiter's first question and was never written."""
        command.waiter = waiter
        self._queue(command)
        if waiter:
            self._note_first(command, waiter)

    def put_back(self, commands: Iterable[Command], unwritten: Iterable[Command]) -> None:
        """Add the commands of a lost connection, before those that have waited since.

        The ``unwritten`` ones of them are first questions that were never written.
        """
        for command in unwritten:
            if command.waiter:
                self._note_first(command, command.waiter)
        younger, self.commands = self.commands, {}
        # In the order of the calls: a release must not overtake its acquire, on any connection.
        for command in sorted(commands, key=lambda command: command.born):
            self._queue(command)
        self.commands |= younger

    def take(self) -> Iterable[Command]:
        """Take all that are wanted, in order; they are written now."""
        commands, self.commands = self.commands, {}
        for command in commands:
            if command.wanted:
                if command.waiter:
                    self.first.pop(command.waiter, None)
                yield command

    def forget(self, waiter: str | bytes) -> bool:
        """Whether the first question of this waiter was never written; then it never will be."""
        commands = self.first.pop(waiter, None)
        if commands is None:
            return False
        for command in commands:
            self.commands.pop(command, None)
            receiver = command.receiver
            if isinstance(receiver, asyncio.Future):
                receiver.cancel()
            elif not receiver.done():
                error = StoreError("it was released before it was sent")
                error.refused = True
                receiver.set_exception(error)
        self._on_left()
        return True

    def _note_first(self, command: Command, waiter: str | bytes) -> None:
        self.first.setdefault(waiter, []).append(command)

    def _queue(self, command: Command) -> None:
        """Keep it for as long as it is wanted."""
        command.together = 1
        self.commands[command] = None
        if not command.must_run:
            command.unqueue = self._unwanted
            if isinstance(command.receiver, asyncio.Future):
                command.receiver.add_done_callback(partial(self._unwanted, command))

    def _unwanted(self, command: Command, _: asyncio.Future[Any] | None = None) -> None:
        self.commands.pop(command, None)
        self._on_left()
