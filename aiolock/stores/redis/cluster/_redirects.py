"""Redirects in a cluster: commands that belong to another node, or must be tried again soon."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import REDIRECTS, Refusal, code_of, is_half_done
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._scripts import LIST, PRESENCE, RENEW, REPORT_HANDOFF, SLOTS
from aiolock.stores.redis.cluster._slots import slot_of_key

_IN_A_MOMENT: Final = 0.02
"""Seconds after which a command is written again that a cluster cannot carry out just now."""
_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"

OnRedirect = Callable[[list[Command], Refusal], None]
"""A function that gets the refused commands of one slot, in order, and the refusal."""

_RELIED_ON: Final = (REPORT_HANDOFF, RENEW)
"""A renewal relies on the report that its waiter holds the lock, and on the renewal before it."""
_OF_A_SERVER: Final = (PRESENCE, SLOTS, LIST)
"""Scripts about a server, and not about a name."""


def slot_of_command(command: Command) -> int:
    """The slot of its keys; less than 0 if it is about a server, and not about a name."""
    key = b"" if command.script in _OF_A_SERVER else command.key
    return slot_of_key(key) if key else -1


def set_asking(commands: Iterable[Command], *, asking: bool) -> None:
    """Whether ASKING is sent before each: it goes to the master its slot is being moved to."""
    for command in commands:
        command.preface = _ASKING if asking else b""


class Redirects:
    """The commands of one node that go on to other nodes, have come from them, or must wait."""

    def __init__(self, outbox: Outbox, on_redirect: OnRedirect) -> None:
        self._outbox = outbox
        self._on_redirect = on_redirect
        self._held: dict[int, deque[Command]] = {}
        """By slot: commands to be written again in a moment, and those asked for since."""

    def on_refusal(self, commands: list[Command], refusal: Refusal) -> bool:
        """Send commands on that belong to another node, or that no node can carry out now.

        Later commands that must not come before them go on with them, in order. False if the
        refusal is another one.
        """
        if code_of(refusal) not in REDIRECTS and not is_half_done(refusal):
            return False
        slot = slot_of_command(commands[0])
        if not is_half_done(refusal):
            for command in commands:
                command.times -= 1  # the server did nothing with this copy
        if slot < 0:
            self._outbox.fail(commands[0], refusal)  # the command is about this server
            return True
        wanted = [command for command in commands if command.wanted]
        if not wanted:
            return True  # later commands get replies of their own
        for command in wanted:
            command.refusal = refusal
        later = (
            self._take_sent({slot}) if code_of(refusal) == "MOVED" else self._take_behind(wanted)
        )
        self._on_redirect([*wanted, *later], refusal)
        return True

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
                _, _, renewed = command.leading(3)
                grant = b"\r\n%b\r\n" % renewed
                if not any(grant in each.arguments for each in relied_on):
                    return False
            if command.script in _RELIED_ON:
                relied_on.append(command)
            return True

        return self._outbox.take_written(must_stay_behind)

    def _take_sent(self, slots: Container[int]) -> list[Command]:
        """Take the commands of these slots that are written but not answered."""
        return self._outbox.take_written(lambda command: slot_of_command(command) in slots)

    def take(self, slots: Container[int]) -> list[Command]:
        """Take all unanswered commands of these slots, in order: another node has the slots now."""
        outbox, taken = self._outbox, self._take_sent(slots)
        for slot in [slot for slot in self._held if slot in slots]:
            taken += self._end_hold(slot)
        queued = outbox.queue.commands
        for command in [each for each in queued if slot_of_command(each) in slots]:
            del queued[command]
            taken.append(command)
        taken.sort(key=lambda command: command.born)
        for command in taken:
            if command.waiter and command.times == 0:
                outbox.queue.first.pop(command.waiter, None)
        outbox.check_drained()
        return taken

    def again(self, commands: Sequence[Command], *, asking: bool) -> None:
        """Send commands that came from another node, in order; ``asking``: by an ASK redirect."""
        set_asking(commands, asking=asking)
        self._outbox.again(commands)

    # Slots that cannot be used for a moment

    def hold(self, commands: Sequence[Command]) -> None:
        """Write these of one slot again in a moment; until then nothing else of that slot."""
        slot = slot_of_command(commands[0])
        held = self._held.get(slot)
        if held is None:
            held = self._held[slot] = deque()
            self._outbox.held = self
            self._outbox.loop.call_later(_IN_A_MOMENT, self._let_go, slot)
        held.extendleft(reversed(commands))

    @property
    def commands(self) -> list[Command]:
        """Those that are held."""
        return [each for held in self._held.values() for each in held]

    def keep(self, command: Command) -> bool:
        """Hold this one as well, if its slot is held; whether it is."""
        held = self._held.get(slot_of_command(command))
        if held is not None:
            held.append(command)
        return held is not None

    def _let_go(self, slot: int) -> None:
        self._outbox.again(self._end_hold(slot))
        self._outbox.check_drained()

    def _end_hold(self, slot: int) -> Sequence[Command]:
        held = self._held.pop(slot, ())
        if not self._held:
            self._outbox.held = None
        return held
