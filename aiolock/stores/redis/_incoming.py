"""Replies, which come in the order of the commands: answers, refusals, redirects.

This is the receiving side of the pipe, on top of `_redirects` and `_outbox`. What decides here is
whether the server may have carried the command out: ``Command.times`` counts the copies that may
have been, so a refusal that did nothing takes its copy back.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from typing import Any, Final

from redis.exceptions import InvalidResponse

from aiolock._prompt import Prompt
from aiolock.protocol import Queued
from aiolock.stores.redis._codec import waiter_of
from aiolock.stores.redis._command import Called, Command
from aiolock.stores.redis._errors import Refusal, code_of, did_nothing
from aiolock.stores.redis._protocol import mismatch
from aiolock.stores.redis._redirects import Redirects
from aiolock.stores.redis._replies import Opened, Present, left, several
from aiolock.stores.redis._scripts import (
    ACQUIRE_SEVERAL,
    BEAT,
    GO_ON,
    OPEN,
    PRESENCE,
    RENEW,
    Script,
    bulk,
)
from aiolock.stores.redis._wire import FEW

_AGAIN: Final = 5
"""How often a command is written again after a refusal that should not come a second time."""
_CLOCKS: Final = (OPEN, PRESENCE, BEAT)
"""Scripts whose replies have the server's clock, and which are rarely called."""

_ELSEWHERE: Final = ("READONLY", "LOADING", "MASTERDOWN", "BUSY", "NOREPLICAS")
"""Answers of a server that cannot serve us now: connect again, to it or to its successor."""
_ONLY_PATIENT: Final = ("READONLY", "NOREPLICAS")
"""Those that may last for ever: only a client that was served before waits for their end."""


def _ignore(reply: Any, error: Exception | None) -> None:
    """What a call is answered that nobody waits for."""


def _not_an_answer(reply: Any) -> InvalidResponse:
    return InvalidResponse(f"not an answer of aiolock's: {reply!r}")


class Incoming(Redirects):
    """The commands, and their answers."""

    _probe_script: Script
    _admitted: Callable[[Any], None] | None
    _on_push: Callable[[str], None]
    _back: Callable[[int | None], None]
    _again: Callable[[], None]
    _queued_one: Callable[[], None] | None

    def _received(self, reply: Any) -> None:
        if not self._sent:
            self._link.drop(InvalidResponse(f"nobody asked for {reply!r}"))
            return
        command = self._sent.popleft()
        self._heard, self._last_head = True, None
        if command is self._probe:
            self._probed(command, reply)
        elif command.together > 1:
            self._received_together(command, reply)
        elif isinstance(reply, Refusal):
            self._refused(command, reply)
        else:
            self._answered(command, reply)
        if self._drained is not None:
            self._see_whether_drained()

    def _received_together(self, first: Command, reply: Any) -> None:
        """Split one reply for several commands, which are treated one by one from now on."""
        commands = [first, *(self._sent.popleft() for _ in range(first.together - 1))]
        first.together = 1
        if isinstance(reply, Refusal):
            self._refused_together(commands, reply)
            return
        self.quiet_since = first.sent
        if not self._proved:
            self._is_proved()
        self._split(commands, reply)

    def _split(self, commands: list[Command], reply: Any) -> None:
        waiters = [waiter_of(command.waiter) for command in commands if command.waiter]
        try:
            answers = several(reply, waiters)
        except (AttributeError, IndexError, TypeError, ValueError):
            answered = self._take_rest(reply)
            if answered is not reply:
                self._split(commands, answered)
                return
            for command in commands:
                self._fail(command, _not_an_answer(reply))
            return
        if self._queued_one is not None:
            self._queued_one()
        for command, answer in zip(commands, answers, strict=True):
            if not command.future.done():
                assert not isinstance(command.future, Called), "a member gathers nothing"
                self._resolve(command.future, answer)

    def _refused_together(self, commands: list[Command], refusal: Refusal) -> None:
        code = code_of(refusal)
        if code == "NOSCRIPT":
            self._known.discard(ACQUIRE_SEVERAL)
        if self._is_elsewhere(code):
            first, *others = commands
            for command in others:
                command.times -= 1  # the server did nothing with this copy
            self._sent.extendleft(reversed(others))
            self._refused(first, refusal)
            return
        if self._is_redirect(refusal):
            self._send_on(commands, refusal)
            return
        for command in commands:
            self._refused(command, refusal)

    def _answered(self, command: Command, reply: Any) -> None:
        script, future = command.script, command.future
        self.quiet_since = command.sent
        if not self._proved:
            self._is_proved()
        try:
            if script.pushes and isinstance(reply, bytes):
                # The push comes first: the next holder need not wait for the last one.
                self._on_push(reply.decode("utf-8", "replace"))
        finally:
            if not future.done():
                try:
                    # The first copy may have been carried out as well, and this is the reply to the
                    # second.
                    decode = script.decode if command.times == 1 else script.decode_again
                    answer = decode(reply)
                except (TypeError, ValueError, IndexError):
                    self._undecoded(command, reply)
                else:
                    if script in _CLOCKS and isinstance(answer, Opened | Present | Queued):
                        self.copies.read_clock(command.sent, answer.now)
                    if self._queued_one is not None and isinstance(answer, Queued):
                        self._queued_one()
                    if isinstance(future, Called):
                        future.set_result(answer)  # its function does the rest
                    else:
                        self._resolve(future, answer)
            else:
                self._unawaited(command, reply)

    def _unawaited(self, command: Command, reply: Any) -> None:
        answered = self._take_rest(reply)
        if answered is not reply:
            self._answered(command, answered)

    def _undecoded(self, command: Command, reply: Any) -> None:
        answered = self._take_rest(reply)  # which no decoder takes
        if answered is not reply:
            self._answered(command, answered)
        else:
            self._fail(command, _not_an_answer(reply))

    def _take_rest(self, reply: Any) -> Any:
        """The reply without the work that its script has left, which is asked for."""
        rest = left(reply)
        if rest is None:
            return reply
        for values in rest.calls:
            arguments = bulk(3) + b"".join(map(bulk, values))
            _ = self.call(GO_ON, 1 + len(values), arguments, reply=Called(_ignore))
        return rest.reply

    def _resolve(self, future: asyncio.Future[Any], answer: Any) -> None:
        # Its task continues at once if few replies are due. Otherwise it continues in the next
        # iteration, so that the commands of all tasks go out together; and so does every task that
        # is answered after it, to keep their order.
        if len(self._sent) < FEW and isinstance(future, Prompt) and not self._scheduled:
            future.resolve(answer)
            return
        future.set_result(answer)
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._next_turn)

    def _next_turn(self) -> None:
        self._scheduled = False

    def _refused(self, command: Command, refusal: Refusal) -> None:
        code = code_of(refusal)
        if self._is_elsewhere(code):
            command.times -= 1  # the server did nothing with this copy
            self._sent.appendleft(command)
            self._link.drop(refusal)
            return
        self._is_proved()
        if code == "NOSCRIPT":
            later = self._take_later(command)
            self._known.discard(command.script)
            self._once_more(command, refusal)
            self.again(later, asking=command.asking)
        elif self._is_redirect(refusal):
            self._send_on([command], refusal)
        elif code == "LATE" and (told := re.search(r"\d+", str(refusal))):
            # Its reply is still awaited, so the server's clock was set, or our process was stopped.
            self.copies.read_clock(command.sent, int(told[0]))
            self._once_more(command, refusal)
        else:
            if command.opens_for is not None:  # without ASKING, that one would go in circles
                command = command.opens_for
                command.must_run = False
            self._fail(command, refusal, refused=command.times == 1 and did_nothing(refusal))

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
        return self._take_written(
            lambda other: argument in other.arguments or (renews and other.script is RENEW)
        )

    def _is_proved(self) -> None:
        self._proved = True
        self._link.proved()

    def _is_elsewhere(self, code: str) -> bool:
        return code in _ELSEWHERE and (self.patient or code not in _ONLY_PATIENT)

    def _once_more(self, command: Command, refusal: Refusal) -> None:
        """Write a refused command again, if it would not be refused a second time."""
        now = self._time()
        wire = self._wire
        command.again += 1
        if wire is None or command.again > _AGAIN:
            self._fail(command, refusal, refused=command.times == 1)
        elif command.must_run or not command.future.done():
            command.sent = now
            self._send(wire, command)

    # The probe: the first command on a connection

    def _probed(self, probe: Command, reply: Any) -> None:
        """Whether this server serves us; if so, it gets the commands that have waited."""
        self._probe = heard = None
        if isinstance(reply, Refusal):
            if self._admitted is not None or self._is_elsewhere(code_of(reply)):
                self._link.drop(reply)
                return
            # Serve the commands anyway: each is told that it is refused, if it is.
        else:
            try:
                said = self._probe_script.decode(reply)
            except (TypeError, ValueError):
                self._link.drop(_not_an_answer(reply))
                return
            if isinstance(said, Present) and (error := mismatch(said.others)) is not None:
                self._link.drop(error)
                return
            heard = said.heard
            self.copies.read_clock(probe.sent, said.now)
            if self._admitted is not None:
                self._admitted(said)
        self.quiet_since = probe.sent
        # The link is proved only by a command's answer: otherwise a server that answers nothing but
        # the probe would be dialled again and again without a pause.
        self._go_on(first=self._again)
        self._back(heard)

    def _go_on(self, first: Callable[[], None] | None = None) -> None:
        self._wire = wire = self._link.wire
        assert wire is not None
        self.copies.connected = True
        queued, self._queued = self._queued, {}
        if first is not None:
            first()
        now = self._time()
        for command in queued:
            if command.future.done() and not command.must_run:
                continue
            if command.waiter:
                self._first.pop(command.waiter, None)
            command.sent = now
            command.times += 1
            self._send(wire, command)
