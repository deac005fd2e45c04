"""The deadlines of commands: each is given up when its time is over, and a dead link is left."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Final

from aiolock.stores.redis import _outbox
from aiolock.stores.redis._outbox import Outbox

REPLY_TIMEOUT: Final = 4.0
"""Seconds without the reply that is due, after which the link is considered dead."""
LOOK: Final = 0.5
"""Seconds between two checks, while commands are under way."""


class Deadlines:
    """Watches the commands of an outbox."""

    def __init__(self, outbox: Outbox, drop: Callable[[Exception], None]) -> None:
        """``drop`` is called with the reason when the link is dead."""
        outbox.watch = self._watch
        self._outbox = outbox
        self._drop = drop
        self._replied_at = 0.0
        """When a check last found that there had been a reply."""
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None

    def _watch(self) -> None:
        self._outbox.watched = True
        self._timer = self._loop.call_later(LOOK, self.check)

    def check(self) -> None:
        """Check if the link is dead or a command's time is over."""
        outbox, timeout = self._outbox, _outbox.COMMAND_TIMEOUT
        outbox.watched = False
        now = outbox.time()
        # A copy of the list, since a caller that gets the error may send something else at once.
        for command in [each for each in outbox.sent if now - each.born >= timeout]:
            outbox.fail(command, TimeoutError(f"no answer for {timeout:.0f} s"))
        if outbox.replied:  # bytes have come since: the link is alive, if slow
            outbox.replied, self._replied_at = False, now
        if outbox.sent and now - max(outbox.sent[0].sent, self._replied_at) >= REPLY_TIMEOUT:
            self._drop(TimeoutError(f"no reply for {REPLY_TIMEOUT:.0f} s"))
        if outbox.held is not None:
            for command in outbox.held.commands:
                if now - command.born >= timeout:
                    outbox.give_up(command)
        # Look at all of them: one from another node may be older than those before it.
        queue = outbox.queue
        for command in [each for each in queue.commands if now - each.born >= timeout]:
            queue.commands.pop(command, None)
            outbox.give_up(command)
        self._forget_first(now)
        outbox.check_drained()
        under_way = outbox.sent or queue.commands or queue.first or outbox.held is not None
        if under_way and not outbox.watched:  # a caller may have it watched already
            self._watch()

    def _forget_first(self, now: float) -> None:
        first = self._outbox.queue.first
        while first:
            waiter, commands = next(iter(first.items()))
            # Kept somewhat longer, for a caller that gets the error only now.
            if now - commands[-1].born < _outbox.COMMAND_TIMEOUT + 2 * LOOK:
                break
            del first[waiter]

    def close(self) -> None:
        """Watch no more."""
        if self._timer is not None:
            self._timer.cancel()
