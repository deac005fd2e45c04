"""The commands: all tasks write to one connection, and replies come back in the same order.

A command that was under way when the connection broke is sent again on the next one, in order:
each is idempotent, so nobody needs to know whether the server had carried it out. The first copy
may still come to the server after that: see `aiolock.stores._copies`.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections import deque
from collections.abc import Callable, Container, Sequence
from functools import partial
from typing import Any, Final

from redis.asyncio.connection import ConnectionPool
from redis.exceptions import InvalidResponse

from aiolock._prompt import Prompt
from aiolock.errors import StoreError
from aiolock.store import Queued
from aiolock.stores._copies import Copies
from aiolock.stores.redis._codec import waiter_of
from aiolock.stores.redis._command import Command
from aiolock.stores.redis._errors import (
    REDIRECTS,
    Place,
    Refusal,
    code_of,
    did_nothing,
    is_half_done,
    store_error,
)
from aiolock.stores.redis._link import Link
from aiolock.stores.redis._scripts import (
    ACQUIRE_SEVERAL,
    BEAT,
    OPEN,
    PRESENCE,
    RELEASE,
    Opened,
    Present,
    Script,
    bulk,
    several,
)
from aiolock.stores.redis._sentinel import Address
from aiolock.stores.redis._wire import FEW, Wire

REPLY_TIMEOUT: Final = 4.0
"""Seconds without the reply that is due, after which the link is taken for dead."""
COMMAND_TIMEOUT: Final = 9.0
"""Seconds, over all reconnections, after which nobody knows what became of a command."""
_AGAIN: Final = 5
"""How often a command is written again that the server refuses though it should not any more."""
_MOST: Final = 32
"""Questions in one call: what others ask of the server waits as long as the call takes."""
_CLOCKS: Final = (OPEN, PRESENCE, BEAT)
"""Their replies say what time it is, and are not asked for often."""
_LOOK: Final = 0.5
_NONE: Final = bulk(0)
_ASKING: Final = b"*1\r\n$6\r\nASKING\r\n"

_ELSEWHERE: Final = ("READONLY", "LOADING", "MASTERDOWN", "BUSY", "NOREPLICAS")
"""Answers of a server that cannot serve us now: connect again, to it or to its successor."""
_ONLY_PATIENT: Final = ("READONLY", "NOREPLICAS")
"""Those that may stay so for ever: waited for by a client that has been served before."""

_IN_A_MOMENT: Final = 0.02
"""Seconds after which a command is written again that a cluster cannot carry out just now."""

Redirected = Callable[[list[Command], Refusal], None]
"""What is done with commands of one slot that were refused so, in their order."""


def _is_plain(loop: asyncio.AbstractEventLoop) -> bool:
    """Whether this loop's clock is asyncio's own."""
    return getattr(type(loop), "time", None) is asyncio.BaseEventLoop.time


def _not_an_answer(reply: Any) -> InvalidResponse:
    return InvalidResponse(f"not an answer of aiolock's: {reply!r}")


class Pipe:
    """One multiplexed connection for the commands of all tasks.

    After a break, the new connection is tried before anything is sent on it: by ``probe``, the
    arguments of a presence, which a server that cannot serve us refuses.
    """

    def __init__(
        self,
        pool: ConnectionPool,
        prefix: str,
        *,
        probe: Callable[[], tuple[int, bytes]],
        told: Callable[[str], None],
        lost: Callable[[Exception], None],
        back: Callable[[int | None], None],
        again: Callable[[], None],
        redirected: Redirected | None = None,
        queued: Callable[[], None] | None = None,
    ) -> None:
        """``told`` gets each push that comes with a reply; ``lost`` why there is no connection.

        ``back`` is called when there is a connection again after there was none: replies, and
        the pushes with them, may have been lost. It gets what the probe said, how many listen to
        the client's channel, unless that was refused. ``again`` is called just before that, when
        what it asks is still asked before all that has waited for the connection. ``redirected`` is
        for a node of a cluster, and so is ``queued``, which is called when a waiter of ours has
        come to stand in a queue.
        """
        self._link = Link(pool, received=self._received, up=self._up, down=self._down)
        self._place = Place.of(pool, prefix, cluster=redirected is not None)
        self._probe_arguments = probe
        self._redirected = redirected
        self._queued_one = queued
        self._told = told
        self._lost = lost
        self._back = back
        self._again = again
        self._loop = loop = asyncio.get_running_loop()
        # Asyncio's own is that clock behind a method of Python's, once for each command.
        self._time = time.monotonic if _is_plain(loop) else loop.time
        self.copies = Copies(self._time, bulk)
        self._wire: Wire | None = None
        """The connection, while it is known to serve us."""
        self._proved = False
        """Whether a command was answered on this connection."""
        self._heard, self._heard_at = False, 0.0
        self._probe: Command | None = None
        self._opened = False
        # What was written to the connection, in order; what is to be written to the next one.
        self._sent: deque[Command] = deque()
        self._queued: dict[Command, None] = {}
        # By slot: what is to be written again in a moment, and what was asked for since.
        self._held: dict[int, deque[Command]] = {}
        # Of those in the queue, or no more: the first questions of waiters, never written.
        self._first: dict[str, list[Command]] = {}
        self._watch: asyncio.TimerHandle | None = None
        # The last of those sent, in order: newcomers that wait for others of this turn.
        self._gathered: list[Command] = []
        self._gathered_head = b""
        self._last_head: bytes | None = None
        """Of the last command, if that was such a newcomer's, and no reply has come since."""
        self._scheduled = False
        """Somebody goes on in the next turn, and so does whoever is answered after that."""
        self._drained: asyncio.Future[None] | None = None
        self._closed = False
        self._known: set[Script] = set()
        self.quiet_since = self._time()
        self.patient = False
        """Whether a replica may yet become the master: while the client is open, not before."""

    async def open(self) -> None:
        await self._link.open()

    def follow(self, address: Address) -> None:
        """The master is at ``address``."""
        self._link.follow(address)

    def call(
        self,
        script: Script,
        count: int,
        arguments: bytes,
        *,
        sure: bool = True,
        in_full: bool = False,
        late: bool = False,
        buries: bool = False,
        waiter: str | None = None,
        joins: bytes | None = None,
    ) -> asyncio.Future[Any]:
        """Send a call with ``count`` encoded ``arguments``; the future is of the decoded reply.

        ``sure``: carried out whatever becomes of the future. Without it, a command whose future
        is done is not sent a second time. ``in_full`` sends the script itself, whether or not the
        server knows it. With ``late`` one more argument, not counted, is written with each copy:
        `Copies.not_after`; with ``buries``: `Copies.buried`. ``waiter``: whose first question
        this is, see `forget`. ``joins``: what its arguments begin with, where it can be asked
        together with others whose arguments begin alike.
        """
        now = self._time()
        few = len(self._sent) < FEW
        future: asyncio.Future[Any] = Prompt(loop=self._loop) if few else self._loop.create_future()
        if self._closed:
            error = StoreError("the client was closed")
            error.refused = True
            future.set_exception(error)
            return future
        command, copies = Command(script, count, arguments, future, now, sure=sure), self.copies
        if late or buries:
            command.stamp = Copies.not_after if late else Copies.buried
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
                # Where little is under way this one waits for nothing: a lone hand-off is as fast
                # as can be. Else the turn's commands go out together: 200 tasks do not make 200
                # packets.
                if self._gathered:
                    self._write_gathered()
                if late:  # as `_write` does, which is called for few
                    count += 1
                    arguments += copies.stamp if now < copies.stamp_until else copies.not_after(now)
                elif buries:
                    count += 1
                    arguments += copies.buried(now) if copies.about else _NONE
                known = script in self._known and not in_full
                head = script.call(count) if known else self._in_full(script, count)
                wire.write(head + arguments, at_once=few)
        if self._watch is None:
            self._watch = self._loop.call_later(_LOOK, self._look)
        return future

    def _wait_for_connection(self, command: Command, waiter: str | None) -> None:
        command.waiter = waiter
        self._queue(command)
        if waiter:
            self._first.setdefault(waiter, []).append(command)

    def _gather(self, command: Command, head: bytes) -> None:
        """Keep it back for others of this turn: the one before it asks for the same lock, too."""
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

    def _in_full(self, script: Script, count: int) -> bytes:
        """The first call of a script on this connection, by which the server learns it.

        Not left to a NOSCRIPT, which costs a command its place among those that were sent after it.
        And only the first: a crowd's questions in full would be megabytes.
        """
        self._known.add(script)
        return script.call_in_full(count)

    def _queue(self, command: Command) -> None:
        """Keep it for the next connection, for as long as it is wanted."""
        command.together = 1
        self._queued[command] = None
        if not command.sure:
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
        """All that has no answer."""
        return [
            *self._sent,
            *self._queued,
            *(each for held in self._held.values() for each in held),
        ]

    # The replies

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
        """One reply for several, which from now on are as any others."""
        commands = [first, *(self._sent.popleft() for _ in range(first.together - 1))]
        first.together = 1
        if isinstance(reply, Refusal):
            self._refused_together(commands, reply)
            return
        self.quiet_since = first.sent
        if not self._proved:
            self._is_proved()
        waiters = [waiter_of(command.waiter) for command in commands if command.waiter]
        try:
            answers = several(reply, waiters)
        except (AttributeError, IndexError, TypeError, ValueError):
            for command in commands:
                self._fail(command, _not_an_answer(reply))
            return
        if self._queued_one is not None:
            self._queued_one()
        for command, answer in zip(commands, answers, strict=True):
            if not command.future.done():
                self._resolve(command.future, answer)

    def _refused_together(self, commands: list[Command], refusal: Refusal) -> None:
        code = code_of(refusal)
        if code == "NOSCRIPT":
            self._known.discard(ACQUIRE_SEVERAL)
        if self._is_elsewhere(code):
            first, *others = commands
            for command in others:
                command.times -= 1  # this copy has done nothing
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
            if script is RELEASE and isinstance(reply, bytes):
                # First: whoever is next need not wait for who was last.
                self._told(reply.decode("utf-8", "replace"))
        finally:
            if not future.done():
                try:
                    decode = script.decode if command.times == 1 else script.decode_again
                    answer = decode(reply)
                except (TypeError, ValueError, IndexError):
                    self._fail(command, _not_an_answer(reply))
                else:
                    if script in _CLOCKS and isinstance(answer, Opened | Present | Queued):
                        self.copies.read_clock(command.sent, answer.now)
                    if self._queued_one is not None and isinstance(answer, Queued):
                        self._queued_one()
                    self._resolve(future, answer)

    def _resolve(self, future: asyncio.Future[Any], answer: Any) -> None:
        # Its task goes on at once where little else is to be done. In a crowd it waits for the next
        # turn, so that what all of them send then goes out together; and so does whoever is
        # answered behind one that waits.
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
            command.times -= 1  # this copy has done nothing
            self._sent.appendleft(command)
            self._link.drop(refusal)
            return
        self._is_proved()
        if code == "NOSCRIPT":
            self._known.discard(command.script)
            self._once_more(command, refusal)
        elif self._is_redirect(refusal):
            self._send_on([command], refusal)
        elif code == "LATE" and (told := re.search(r"\d+", str(refusal))):
            # It is still waited for, so it was the clock that jumped; or we who were stopped.
            self.copies.read_clock(command.sent, int(told[0]))
            self._once_more(command, refusal)
        else:
            self._fail(command, refusal, refused=command.times == 1 and did_nothing(refusal))

    def _is_proved(self) -> None:
        self._proved = True
        self._link.proved()

    def _is_elsewhere(self, code: str) -> bool:
        return code in _ELSEWHERE and (self.patient or code not in _ONLY_PATIENT)

    def _once_more(self, command: Command, refusal: Refusal) -> None:
        """Write a command again that the server has refused, and would not a second time."""
        now = self._time()
        wire = self._wire
        command.again += 1
        if wire is None or command.again > _AGAIN:
            self._fail(command, refusal, refused=command.times == 1)
        elif command.sure or not command.future.done():
            command.sent = now
            self._send(wire, command)

    def _send(self, wire: Wire, command: Command) -> None:
        """Write it once more, or after a break."""
        if self._gathered:
            self._write_gathered()
        if command.asking:
            asking = Command(PRESENCE, 0, b"", self._nobody(), command.sent, sure=False)
            self._sent.append(asking)
            wire.write(_ASKING, at_once=False)
        self._sent.append(command)
        self._write(wire, command)

    def _nobody(self) -> asyncio.Future[Any]:
        """For a reply that nobody waits for."""
        nobody: asyncio.Future[Any] = self._loop.create_future()
        nobody.cancel()
        return nobody

    # In a cluster

    def _is_redirect(self, refusal: Refusal) -> bool:
        return self._redirected is not None and (
            code_of(refusal) in REDIRECTS or is_half_done(refusal)
        )

    def _send_on(self, commands: list[Command], refusal: Refusal) -> None:
        """Commands that are another node's, or that none can carry out just now.

        So are those of the same slot that were written after them. All go on in their order.
        """
        assert self._redirected is not None
        slot = commands[0].slot
        if not is_half_done(refusal):
            for command in commands:
                command.times -= 1  # this copy has done nothing
        if slot < 0:
            self._fail(commands[0], refusal)  # it is about this server
            return
        wanted = [command for command in commands if command.wanted]
        if not wanted:
            return  # nor is this the reply to what was written after it
        for command in wanted:
            command.refusal = refusal
        self._redirected([*wanted, *self._take_sent({slot})], refusal)

    def _take_sent(self, slots: Container[int]) -> list[Command]:
        """What was written and has no answer, which is not waited for any more."""
        if self._gathered:
            self._write_gathered()
        taken = list[Command]()
        for number, command in enumerate(self._sent):
            if command.wanted and command.slot in slots:
                self._sent[number] = command.stand_in(self._nobody())
                command.together = 1
                taken.append(command)
        return taken

    def take(self, slots: Container[int]) -> list[Command]:
        """All of these slots that has no answer, in order: it is another node's now."""
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
        """What was asked of another node, in order; ``asking``: its slot is being moved to here."""
        now = self._time()
        for command in commands:
            command.asking = asking
            if not command.wanted:
                continue
            if self._closed or now - command.born >= COMMAND_TIMEOUT:
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
            self._watch = self._loop.call_later(_LOOK, self._look)

    def hold(self, commands: Sequence[Command]) -> None:
        """Write these of one slot again in a moment, and before them nothing else of that slot."""
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

    def _give_up(self, command: Command) -> None:
        error = command.refusal or self._link.error
        self._fail(command, error, refused=command.times == 0)

    def _fail(self, command: Command, error: Exception, *, refused: bool = False) -> None:
        if not command.future.done():
            command.future.set_exception(store_error(error, self._place, refused=refused))

    # The connection

    def _up(self) -> None:
        self._known.clear()
        self._proved = False
        if not self._opened:  # what is to be told first is who we are, in full
            self._opened = True
            self._go_on()
            return
        assert self._link.wire is not None
        now = self._time()
        self._probe = Command(PRESENCE, *self._probe_arguments(), self._nobody(), now, sure=False)
        self._sent.append(self._probe)
        self._write(self._link.wire, self._probe, at_once=True)
        if self._watch is None:
            self._watch = self._loop.call_later(_LOOK, self._look)

    def _probed(self, probe: Command, reply: Any) -> None:
        """Whether this server serves us; then it gets what has waited for it."""
        self._probe = heard = None
        if isinstance(reply, Refusal):
            if self._is_elsewhere(code_of(reply)):
                self._link.drop(reply)
                return
            # Who has asked for something is to be told that it is refused, or served if it is not.
        else:
            try:
                heard, now = PRESENCE.decode(reply)
            except (TypeError, ValueError):
                self._link.drop(_not_an_answer(reply))
                return
            self.copies.read_clock(probe.sent, now)
        self.quiet_since = probe.sent
        # The link is proved when a command is answered: else a server that grants the probe, and
        # nothing besides, would be dialled again and again without a pause.
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
            if command.future.done() and not command.sure:
                continue
            if command.waiter:
                self._first.pop(command.waiter, None)
            command.sent = now
            command.times += 1
            self._send(wire, command)

    def _down(self, reason: Exception) -> None:
        """Queue again what has no answer, in the order in which it was asked for."""
        if self._wire is not None:
            self._wire = None
            self.copies.lost()
        again = [c for c in self._sent if c is not self._probe and (c.sure or not c.future.done())]
        self._probe = None
        self._sent.clear()
        for command in self._gathered:  # never written
            if command.waiter:
                self._first.setdefault(command.waiter, []).append(command)
        self._gathered.clear()
        younger, self._queued = self._queued, {}
        for command in sorted(again, key=lambda command: command.born):
            self._queue(command)
        self._queued |= younger
        self._lost(reason)

    def _look(self) -> None:
        """See, while anything is under way, whether the link is dead or a command has run out."""
        self._watch = None
        now = self._time()
        for command in self._sent:
            if now - command.born >= COMMAND_TIMEOUT:
                self._fail(command, TimeoutError(f"no answer for {COMMAND_TIMEOUT:.0f} s"))
        if self._heard:  # since we have looked: behind what is slow the link is not dead
            self._heard, self._heard_at = False, now
        if self._sent and now - max(self._sent[0].sent, self._heard_at) >= REPLY_TIMEOUT:
            self._link.drop(TimeoutError(f"no reply for {REPLY_TIMEOUT:.0f} s"))
        for held in self._held.values():
            for command in held:
                if now - command.born >= COMMAND_TIMEOUT:
                    self._give_up(command)
        self._drop_old(now)
        if self._sent or self._queued or self._first or self._held:
            self._watch = self._loop.call_later(_LOOK, self._look)

    def _drop_old(self, now: float) -> None:
        """Give up what has waited too long for a connection: the oldest come first."""
        while self._queued:
            command = next(iter(self._queued))
            if now - command.born < COMMAND_TIMEOUT:
                break
            del self._queued[command]
            self._fail(command, self._link.error, refused=command.times == 0)
        while self._first:
            waiter, commands = next(iter(self._first.items()))
            # Somewhat longer, for who hears of it only now.
            if now - commands[-1].born < COMMAND_TIMEOUT + 2 * _LOOK:
                break
            del self._first[waiter]
        self._see_whether_drained()

    async def aclose(self, timeout: float) -> None:
        """Wait up to ``timeout`` seconds for what is under way, then disconnect. Idempotent."""
        if self._pending and self._drained is None:
            # Of the replies, not of the futures: those may be cancelled while a release goes on.
            self._drained = self._loop.create_future()
            await asyncio.wait([self._drained], timeout=timeout)
        self._closed = True
        for command in self._pending:
            self._fail(
                command, ConnectionError("the client was closed"), refused=command.times == 0
            )
        self._sent.clear()
        self._queued.clear()
        self._held.clear()
        self._first.clear()
        if self._watch is not None:
            self._watch.cancel()
        await self._link.aclose()
