"""The reader of a pipeline: replies come in the order of the commands, and answer or refuse them.

What decides here is whether the server may have carried the command out: ``Command.times`` counts
the copies that may have been, so a refusal that did nothing takes its copy back.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import InvalidResponse

from aiolock.protocol import Granted, Queued, new
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import Refusal, code_of, did_nothing
from aiolock.stores.redis._outbox import Outbox
from aiolock.stores.redis._replies import Opened, Present, several
from aiolock.stores.redis._rest import take_rest
from aiolock.stores.redis._scripts import (
    ACQUIRE_HEARTBEAT,
    ACQUIRE_SEVERAL,
    OPEN,
    PRESENCE,
    RENEW,
)

_AGAIN: Final = 5
"""How often a command is written again after a refusal that should not come a second time."""
_CLOCKS: Final = (OPEN, PRESENCE, ACQUIRE_HEARTBEAT)
"""Scripts whose replies have the server's clock, and which are rarely called."""

_ELSEWHERE: Final = ("READONLY", "LOADING", "MASTERDOWN", "BUSY", "NOREPLICAS")
"""Answers of a server that cannot serve us now: connect again, to it or to its successor."""
_ONLY_PATIENT: Final = ("READONLY", "NOREPLICAS")
"""Those that may last for ever: only a client that was served before waits for their end."""

OnRefusal = Callable[[list[Command], Refusal], bool]
"""A function that gets commands of one call, and why it was refused; whether it deals with them.

It is asked before they fail. A command that it takes over is answered later, or given up.
"""


def not_an_answer(reply: Any) -> InvalidResponse:
    return InvalidResponse(f"not an answer of aiolock's: {reply!r}")


class Reader:
    """Pairs replies with the commands of an outbox."""

    def __init__(
        self,
        outbox: Outbox,
        *,
        drop: Callable[[Exception], None],
        on_push: Callable[[str], None],
        on_probe: Callable[[Command, Any], None],
        on_queued: Callable[[], None] | None = None,
        on_refusal: OnRefusal | None = None,
    ) -> None:
        """``drop`` ends this connection for a reason; the commands without a reply are kept.

        ``on_push`` gets each push that comes with a reply, ``on_probe`` the `probe` and its reply.
        ``on_queued`` is called when a waiter of ours is in a queue.
        """
        self._outbox = outbox
        self._sent = outbox.sent
        self._drop = drop
        self._on_push = on_push
        self._on_probe = on_probe
        self._on_queued = on_queued
        self._on_refusal = on_refusal
        self.probe: Command | None = None
        """The first command on this connection, until it is answered; it is for `on_probe`."""
        self.proved = False
        """Whether another command was answered on this connection."""
        self.quiet_since = outbox.time()
        """When the last command was sent that was answered."""
        self.patient = False
        """Whether to wait for a replica to become the master: while the client is open,
        not before."""

    def on_reply(self, reply: Any) -> None:
        """The reply to the command that was sent first."""
        outbox = self._outbox
        if not self._sent:
            self._drop(InvalidResponse(f"nobody asked for {reply!r}"))
            return
        command = self._sent.popleft()
        outbox.replied, outbox.last_head = True, None
        if type(reply) is command.takes and command.times == 1:
            self.quiet_since, self.proved = command.sent, True
            if command.takes is int:  # as of a release: the answer is the reply
                command.receiver.resolve(reply)
            else:  # a grant, as `answer` decodes it
                self._granted(command, reply)
        elif command.together == 1 and type(reply) is not Refusal and command is not self.probe:
            self._answered(command, reply)
        elif command is self.probe:
            self.probe = None
            self._on_probe(command, reply)
        elif command.together > 1:
            self._answered_together(command, reply)
        elif type(reply) is Refusal:
            self._refused(command, reply)
        if outbox.drained is not None:
            outbox.check_drained()

    # Answers

    def _granted(self, command: Command, reply: Any) -> None:
        try:
            fence, lease, displaced = reply.split()
            granted = int(fence), int(lease), displaced == b"1", False
        except ValueError:
            self._outbox.fail(command, not_an_answer(reply))
        else:
            command.receiver.resolve(new(Granted, granted))

    def _answered(self, command: Command, reply: Any) -> None:
        script = command.script
        self.quiet_since = command.sent
        self.proved = True
        try:
            if script.pushes and type(reply) is bytes:
                # The push comes first: the next holder need not wait for the last one.
                self._on_push(reply.decode("utf-8", "replace"))
        finally:
            try:
                # The first copy may have been carried out as well, and this is the reply to the
                # second.
                answer = (script.decode if command.times == 1 else script.decode_again)(reply)
            except (TypeError, ValueError, IndexError):
                self._undecoded(command, reply)
            else:
                if script in _CLOCKS and isinstance(answer, Opened | Present | Queued):
                    self._outbox.copies.read_clock(command.sent, answer.now)
                if self._on_queued is not None and type(answer) is Queued:
                    self._on_queued()
                command.receiver.resolve(answer)

    def _undecoded(self, command: Command, reply: Any) -> None:
        answered = take_rest(self._outbox, reply)  # which no decoder takes
        if answered is not reply:
            self._answered(command, answered)
        else:
            self._outbox.fail(command, not_an_answer(reply))

    def _answered_together(self, first: Command, reply: Any) -> None:
        """Split one reply for several commands, which are treated one by one from now on."""
        commands = [first, *[self._sent.popleft() for _ in range(first.together - 1)]]
        first.together = 1
        if isinstance(reply, Refusal):
            self._refused_together(commands, reply)
            return
        self.quiet_since = first.sent
        self.proved = True
        self._split(commands, reply)

    def _split(self, commands: list[Command], reply: Any) -> None:
        waiters = [command.asks_for for command in commands if command.asks_for is not None]
        try:
            answers = several(reply, waiters)
        except (AttributeError, IndexError, TypeError, ValueError):
            answered = take_rest(self._outbox, reply)
            if answered is not reply:
                self._split(commands, answered)
                return
            for command in commands:
                self._outbox.fail(command, not_an_answer(reply))
            return
        if self._on_queued is not None:
            self._on_queued()
        for command, answer in zip(commands, answers, strict=True):
            command.receiver.resolve(answer)

    # Refusals

    def cannot_serve(self, code: str) -> bool:
        """Whether a server with this refusal is to be left, and the commands kept for another."""
        return code in _ELSEWHERE and (self.patient or code not in _ONLY_PATIENT)

    def _refused(self, command: Command, refusal: Refusal) -> None:
        code = code_of(refusal)
        if self.cannot_serve(code):
            command.times -= 1  # the server did nothing with this copy
            self._sent.appendleft(command)
            self._drop(refusal)
            return
        self.proved = True
        if code == "NOSCRIPT":
            later = self._take_later(command)
            self._outbox.known.discard(command.script)
            self._once_more(command, refusal)
            self._outbox.again(later)
        elif self._on_refusal is not None and self._on_refusal([command], refusal):
            pass
        elif code == "LATE" and (clock := re.search(r"\d+", str(refusal))):
            # Its reply is still awaited, so the server's clock was set, or our process was stopped.
            self._outbox.copies.read_clock(command.sent, int(clock[0]))
            self._once_more(command, refusal)
        else:
            if command.preface_of is not None:  # without its preface, that one must not be repeated
                command = command.preface_of
                command.must_run = False
            refused = command.times == 1 and did_nothing(refusal)
            self._outbox.fail(command, refusal, refused=refused)

    def _refused_together(self, commands: list[Command], refusal: Refusal) -> None:
        code = code_of(refusal)
        if code == "NOSCRIPT":
            self._outbox.known.discard(ACQUIRE_SEVERAL)
        if self.cannot_serve(code):
            first, *others = commands
            for command in others:
                command.times -= 1  # the server did nothing with this copy
            self._sent.extendleft(reversed(others))
            self._refused(first, refusal)
        elif self._on_refusal is None or not self._on_refusal(commands, refusal):
            for command in commands:
                self._refused(command, refusal)

    def _take_later(self, refused: Command) -> list[Command]:
        """Take the later commands about its name, which may rely on it.

        A renewal relies on the report that its waiter holds the lock. Some of them may be carried
        out twice, which is harmless, as after a break. Nothing relies on a question without an
        answer.
        """
        if not refused.must_run or not refused.key:
            return []
        argument = b"\r\n%b\r\n" % refused.key
        # A renewal is about many names: later ones come behind it, whatever theirs are.
        renews = refused.script is RENEW
        later = self._outbox.take_written(
            lambda other: argument in other.arguments or (renews and other.script is RENEW)
        )
        for command in later:
            command.preface = refused.preface
        return later

    def _once_more(self, command: Command, refusal: Refusal) -> None:
        """Write a refused command again, if it would not be refused a second time."""
        outbox = self._outbox
        command.again += 1
        if outbox.wire is None or command.again > _AGAIN:
            outbox.fail(command, refusal, refused=command.times == 1)
        elif command.wanted:
            outbox.send(outbox.wire, command, outbox.time())
