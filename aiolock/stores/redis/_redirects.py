"""Redirects in a cluster: commands that belong to another node, or must be tried again soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Sequence
from typing import Final

from aiolock.stores.redis import _outbox
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import REDIRECTS, Refusal, code_of, is_half_done
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._scripts import PASS, RENEW

_IN_A_MOMENT: Final = 0.02
"""Seconds after which a command is written again that a cluster cannot carry out just now."""

Redirected = Callable[[list[Command], Refusal], None]
"""A function that gets the refused commands of one slot, in order, and the refusal."""

_RELIED_ON: Final = (PASS, RENEW)
"""A renewal relies on the report that its waiter holds the lock, and on the renewal before it."""


class Redirects(Outbox):
    """The commands, some of which go on to other nodes, or have come from them."""

    _redirected: Redirected | None

    def _is_redirect(self, refusal: Refusal) -> bool:
        return self._redirected is not None and (
            code_of(refusal) in REDIRECTS or is_half_done(refusal)
        )

    def _send_on(self, commands: list[Command], refusal: Refusal) -> None:
        """Send commands on that belong to another node, or that no node can carry out now.

        Later commands that must not come before them go on with them, in order.
        """
        assert self._redirected is not None
        slot = commands[0].slot
        if not is_half_done(refusal):
            for command in commands:
                command.times -= 1  # the server did nothing with this copy
        if slot < 0:
            self._fail(commands[0], refusal)  # the command is about this server
            return
        wanted = [command for command in commands if command.wanted]
        if not wanted:
            return  # later commands get replies of their own
        for command in wanted:
            command.refusal = refusal
        later = (
            self._take_sent({slot}) if code_of(refusal) == "MOVED" else self._take_behind(wanted)
        )
        self._redirected([*wanted, *later], refusal)

    def _take_behind(self, refused: Sequence[Command]) -> list[Command]:
        """Take the later commands about their names that must stay behind them.

        The slot is still here, so each other command gets a reply of its own. A renewal must get
        it: it needs only one key, and may be carried out where these cannot. But not before the
        commands that it relies on. After MOVED all of the slot is taken: commands from now on go to
        the new node at once.
        """
        keys = {command.key for command in refused}
        relied_on = [command for command in refused if command.script in _RELIED_ON]

        def must_stay_behind(command: Command) -> bool:
            if command.key not in keys:
                return False
            if command.script is RENEW:
                grant = b"\r\n%b\r\n" % command.grant
                if not any(grant in each.arguments for each in relied_on):
                    return False
            if command.script in _RELIED_ON:
                relied_on.append(command)
            return True

        return self._take_written(must_stay_behind)

    def _take_sent(self, slots: Container[int]) -> list[Command]:
        """Take the commands of these slots that are written but not answered."""
        return self._take_written(lambda command: command.slot in slots)

    def _take_written(self, concerned: Callable[[Command], bool]) -> list[Command]:
        """Take those of the commands that are written but not answered."""
        if self._gathered:
            self._write_gathered()
        taken = list[Command]()
        for number, command in enumerate(self._sent):
            if command.wanted and concerned(command):
                # Its reply on this connection is still due, and must be matched with something.
                self._sent[number] = command.stand_in(self._nobody())
                command.together = 1
                taken.append(command)
        return taken

    def take(self, slots: Container[int]) -> list[Command]:
        """Take all unanswered commands of these slots, in order: another node has the slots now."""
        taken = self._take_sent(slots)
        for slot in [slot for slot in self._held if slot in slots]:
            taken += self._held.pop(slot)
        for command in [command for command in self._queued if command.slot in slots]:
            del self._queued[command]
            taken.append(command)
        taken.sort(key=lambda command: command.born)
        for command in taken:
            if command.waiter and command.times == 0:
                self._first.pop(command.waiter, None)
        self._see_whether_drained()
        return taken

    def again(self, commands: Sequence[Command], *, asking: bool = False) -> None:
        """Send commands that came from another node, in order; ``asking``: by an ASK redirect."""
        now = self._time()
        for command in commands:
            command.asking = asking
            if not command.wanted:
                continue
            if self._closed or now - command.born >= _outbox.COMMAND_TIMEOUT:
                self._give_up(command)
            elif self._held and (held := self._held.get(command.slot)) is not None:
                held.append(command)
            elif self._wire is None:
                self._wait_for_connection(command, None if command.times else command.waiter)
            else:
                command.sent = now
                command.times += 1
                self._send(self._wire, command)
        if self._watch is None and not self._closed:
            self._watch = self._loop.call_later(_outbox.LOOK, self._look)

    def hold(self, commands: Sequence[Command]) -> None:
        """Write these of one slot again in a moment; until then nothing else of that slot."""
        slot = commands[0].slot
        held = self._held.get(slot)
        if held is None:
            held = self._held[slot] = deque()
            self._loop.call_later(_IN_A_MOMENT, self._let_go, slot)
        held.extendleft(reversed(commands))

    def _let_go(self, slot: int) -> None:
        commands = self._held.pop(slot, ())
        for command in commands:
            self.again([command], asking=command.asking)
        self._see_whether_drained()
